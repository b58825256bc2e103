"""OpenAPI: made from the Structs, with one shape of errors and a name for each operation."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.server.rest.openapi import describe


@pytest.fixture
def described(site: Any) -> dict[str, Any]:
    return describe(site.service.app.routes)


def operations(described: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in described["paths"].values() for operation in methods.values()]


def test_every_operation_has_a_name_of_its_own(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(described)]
    assert len(names) == len(set(names)) > 50


def test_every_error_has_one_shape(described: dict[str, Any]) -> None:
    refused = [operation["responses"]["4XX"]["content"]["application/json"] for operation in operations(described)]
    assert all(content == {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}} for content in refused)
    assert "Problem" not in described["components"]["schemas"]


def test_containers_are_described_by_their_structs(described: dict[str, Any]) -> None:
    create = described["paths"]["/api/v1/containers"]["post"]
    assert {parameter["name"] for parameter in create["parameters"]} == {
        "name",
        "dryRun",
        "platform",
        "namespace",
        "Idempotency-Key",
    }
    assert create["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/NewContainer")
    assert create["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ContainerCreated"
    )
    assert "NanoCpus" in described["components"]["schemas"]["HostConfig"]["properties"]
