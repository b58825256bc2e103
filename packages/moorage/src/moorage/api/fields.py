"""Field types that several requests use."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec


def about(text: str) -> msgspec.Meta:
    """The description of a field, for OpenAPI and the reference: `Annotated[int, about("Size in bytes.")]`."""
    return msgspec.Meta(description=text)


PAGE_MOST = 500  # objects in one answer of a listing

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Text64 = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
Time = Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class Request(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of all request bodies; unknown fields are refused."""


class Query(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all queries; unknown parameters are ignored."""


class Page(Query):
    """Paging parameters of a list."""

    namespace: Annotated[Text, about("Only this namespace; empty: all that the user may list.")] = ""
    limit: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=PAGE_MOST)] | None,
        about("Objects per page, 1 to 500; left out: all in one answer."),
    ] = None
    after: Annotated[Text | None, about("The `continue` of the previous page; left out: the first page.")] = (
        msgspec.field(default=None, name="continue")
    )


class Force(Query):
    """Whether to delete an object that is in use."""

    force: Annotated[bool, about("Delete it even while it is in use.")] = False


class Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all answers. Readers ignore unknown fields; times have a time zone."""
