"""OpenAPI 3.1 of the REST API, generated from the routes and their Structs.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from moorage import __version__
from moorage.api.datasets import NewDataset
from moorage.api.errors import ErrorAnswer
from moorage.api.workspaces import NewWorkspace
from moorage.model.dataset import DatasetSpec
from moorage.model.workspace import WorkspaceSpec
from moorage.server.endpoint import Described, DescribedRoute
from moorage.server.problems import Json

PREFIX = "/api/v1/"
PATH = f"{PREFIX}openapi.json"
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
NUMBER = {"type": "integer", "minimum": 0}
KEY = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}}
SPECS: Mapping[type[Any], type[Any]] = {NewDataset: DatasetSpec, NewWorkspace: WorkspaceSpec}  # of their `spec`
REFERENCE = "#/components/schemas/{name}"

_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")

Schema = Mapping[str, Any]


def routes(others: Iterable[BaseRoute]) -> list[BaseRoute]:
    """A route with the description of all others; the description is made at the first request."""
    others = list(others)

    @functools.cache
    def described() -> dict[str, Any]:
        return describe(others)

    async def openapi(_request: Request) -> Response:
        """This description: OpenAPI 3.1."""
        return Json(described())

    return [DescribedRoute(PATH, openapi, "GET", Described(answer=dict[str, Any]))]


def describe(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The description of those routes that declare their parameters and answers."""
    described = [route for route in routes if isinstance(route, DescribedRoute) and route.path.startswith(PREFIX)]
    schemas, components = _schemas(route.described for route in described)
    paths: dict[str, dict[str, Any]] = {}
    for route in described:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moorage",
            "version": __version__,
            "description": "Errors are `{code, message, hint?, field?}`. Changes are made as the user who asks.",
        },
        "security": [{"bearer": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": components,
        },
    }


def _schemas(described: Iterable[Described]) -> tuple[dict[Any, Schema], dict[str, Any]]:
    """The schemas of all types that the routes use, and the components that these schemas refer to."""
    types = (kind for row in described for kind in (row.body, row.query, row.answer) if kind is not None)
    kinds = list(dict.fromkeys([ErrorAnswer, *types, *SPECS.values()]))
    made, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    schemas: dict[Any, Schema] = dict(zip(kinds, made, strict=True))
    for body, spec in SPECS.items():
        if body.__name__ in components:
            components[body.__name__]["properties"]["spec"] = schemas[spec]
    return schemas, components


def _operation(route: DescribedRoute, path: str, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    row = route.described
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", path.removeprefix(PREFIX))]),
        "summary": _sentence(route),
        "parameters": [*_path_parameters(route), *_query_parameters(row.query), *([KEY] if row.once else [])],
        "responses": {
            str(204 if row.answer is None and not row.media_type else row.status): _answer(route, schemas),
            "4XX": {
                "description": "Refused.",
                "content": {"application/json": {"schema": dict(schemas[ErrorAnswer])}},
            },
        },
    }
    if row.body is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": dict(schemas[row.body])}}}
    return operation


def _answer(route: DescribedRoute, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    row = route.described
    answer: dict[str, Any] = {"description": _sentence(route)}
    if row.answer is not None:
        answer["content"] = {"application/json": {"schema": dict(schemas[row.answer])}}
    elif row.media_type:
        answer["content"] = {row.media_type: {"schema": {"type": "string"}}}
    return answer


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [name for name, _ in _PARAMETER.findall(route.path)]
    return [
        {"name": name, "in": "path", "required": True, "schema": NUMBER if name == "item" else NAME}
        for name in names
    ]


def _query_parameters(query: type | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    (_,), components = msgspec.json.schema_components([query], ref_template=REFERENCE)
    properties: Mapping[str, Schema] = components[query.__name__]["properties"]
    return [_query_parameter(name, schema) for name, schema in properties.items()]


def _query_parameter(name: str, field: Schema) -> dict[str, Any]:
    """A query parameter; the field's description is moved from its schema to the parameter."""
    schema = dict(field)
    meaning = schema.pop("description", None)
    parameter = {"name": name, "in": "query", "schema": schema}
    return parameter if meaning is None else {**parameter, "description": meaning}


def _sentence(route: Route) -> str:
    text = inspect.getdoc(route.endpoint) or inspect.getdoc(inspect.getmodule(route.endpoint)) or ""
    return " ".join(text.partition("\n\n")[0].split())
