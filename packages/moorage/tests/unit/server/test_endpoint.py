"""OpenAPI and the reference page say what fields and parameters mean, from the types themselves."""

from __future__ import annotations

from typing import Annotated

import pytest

from moorage.api.fields import Answer, Page, Query, Request, Time, about
from moorage.server.endpoint import Endpoint
from moorage.server.inputs import decode_query
from moorage.server.rest.openapi import describe
from moorage_testing.reference.http import type_section


class Berth(Answer, frozen=True):
    """A place."""

    name: str
    depth: Annotated[float | None, about("Depth in metres; null: not measured.")] = None
    free_since: Annotated[Time | None, about("When the last ship left.")] = None


class NewBerth(Request):
    depth: Annotated[float, about("Depth in metres.")] = 4.0


class BerthQuery(Query):
    kind: Annotated[tuple[str, ...], about("sand or stone; may repeat.")] = ()
    quay: str = ""


async def handle(_call):
    """Show a berth."""


@pytest.fixture
def described():
    endpoint = Endpoint(
        method="POST", path="/api/v1/berths", handler=handle, body=NewBerth, query=BerthQuery, answer=Berth
    )
    return describe([endpoint.route(None)])


def test_a_described_field_shows_its_description_in_openapi(described):
    schemas = described["components"]["schemas"]
    assert schemas["Berth"]["properties"]["depth"] == {
        "description": "Depth in metres; null: not measured.",
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "default": None,
    }
    assert schemas["NewBerth"]["properties"]["depth"]["description"] == "Depth in metres."
    assert "description" not in schemas["Berth"]["properties"]["name"]


def test_a_time_has_its_format_in_openapi(described):
    assert {"type": "string", "format": "date-time"} in described["components"]["schemas"]["Berth"]["properties"][
        "freeSince"
    ]["anyOf"]


def test_a_described_parameter_has_its_description_beside_its_schema(described):
    assert described["paths"]["/api/v1/berths"]["post"]["parameters"] == [
        {
            "name": "kind",
            "in": "query",
            "schema": {"type": "array", "items": {"type": "string"}, "default": ()},
            "description": "sand or stone; may repeat.",
        },
        {"name": "quay", "in": "query", "schema": {"type": "string", "default": ""}},
    ]


def test_the_reference_page_has_the_meaning_in_a_column_of_its_own(described):
    assert list(type_section("Berth", described["components"]["schemas"]["Berth"])) == [
        "### Berth\n",
        "A place.\n",
        "| field | type | meaning |\n|---|---|---|",
        "| `name` | string |  |",
        "| `depth`? | number | Depth in metres; null: not measured. |",
        "| `freeSince`? | time | When the last ship left. |",
        "",
    ]


def test_a_described_parameter_may_still_repeat():
    assert decode_query([("kind", "sand"), ("kind", "stone")], BerthQuery).kind == ("sand", "stone")


def test_a_description_leaves_the_limits_of_a_field_in_force():
    with pytest.raises(Exception, match=">= 1"):
        decode_query([("limit", "0")], Page)
