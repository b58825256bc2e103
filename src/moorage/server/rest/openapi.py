"""The REST API described: OpenAPI 3.1, drawn from the routes themselves.

A route's path, method and first sentence come from the route; what it takes in query and body from the tables
here, which a test holds against the routes. https://spec.openapis.org/oas/v3.1.0
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
from moorage.server.endpoint import Endpoint, EndpointRoute
from moorage.server.problems import Json

PREFIX = "/api/v1/"
PATH = f"{PREFIX}openapi.json"
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
TEXT = {"type": "string", "maxLength": 1024}
COUNT = {"type": "integer", "minimum": 0}
SWITCH = {"type": "boolean"}
MOMENT = {"type": "string", "format": "date-time"}
OBJECT = {"type": "object"}

_CONTAINER = {
    "type": "object",
    "required": ["Image"],
    "properties": {
        "Image": {"type": "string", "minLength": 1},
        "Cmd": {"type": ["array", "null"], "items": {"type": "string"}},
        "Entrypoint": {"type": ["array", "null"], "items": {"type": "string"}},
        "Env": {"type": ["array", "null"], "items": {"type": "string"}},
        "WorkingDir": {"type": "string"},
        "User": {"type": "string"},
        "Labels": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "HostConfig": {
            "type": "object",
            "properties": {
                "Memory": {"type": "integer", "minimum": 0},
                "NanoCpus": {"type": "integer", "minimum": 0},
                "Binds": {"type": ["array", "null"], "items": {"type": "string"}},
                "Mounts": {"type": ["array", "null"], "items": {"type": "object"}},
                "DeviceRequests": {"type": ["array", "null"], "items": {"type": "object"}},
                "PortBindings": {"type": ["object", "null"]},
                "AutoRemove": {"type": "boolean"},
            },
        },
    },
}

QUERY: Mapping[str, Mapping[str, Any]] = {
    "GET /api/v1/containers": {"all": SWITCH, "limit": COUNT, "after": NAME, "filters": TEXT, "namespace": NAME},
    "POST /api/v1/containers": {"name": NAME, "dryRun": SWITCH, "namespace": NAME},
    "DELETE /api/v1/containers/{id}": {"force": SWITCH},
    "GET /api/v1/containers/{id}/logs": {"tail": TEXT, "since": COUNT, "timestamps": SWITCH},
}
BODIES: Mapping[str, Mapping[str, Any] | type[Any]] = {
    "POST /api/v1/containers": _CONTAINER,
}
SPECS: Mapping[type[Any], type[Any]] = {NewDataset: DatasetSpec, NewWorkspace: WorkspaceSpec}  # of their `spec`
ONCE = ("POST /api/v1/containers",)
STREAMS = frozenset({"text/event-stream"})
TAKES_NOTHING = ("/start", "/stop", "/restart", "/kill", "/wait", "/attach", "/retry", "/token")

_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")


def routes(others: Iterable[BaseRoute]) -> list[BaseRoute]:
    """The description of all the others, as a route of its own; drawn when it is first asked for."""
    others = list(others)

    @functools.cache
    def described() -> dict[str, Any]:
        return describe(others)

    async def openapi(_request: Request) -> Response:
        """This description: OpenAPI 3.1."""
        return Json(described())

    return [Route(PATH, openapi, methods=["GET"])]


def describe(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    routes = list(routes)
    paths: dict[str, dict[str, Any]] = {}
    bodies, components = _bodies()
    routes = [route for route in routes if getattr(route, "path", "").startswith(PREFIX)]
    declared = [route.declared for route in routes if isinstance(route, EndpointRoute)]
    schemas, more = _schemas(declared)
    components |= more
    for route in routes:
        if isinstance(route, EndpointRoute):
            path = _PARAMETER.sub(r"{\1}", route.path)
            row = route.declared
            paths.setdefault(path, {})[row.method.lower()] = _declared(route, row, path, schemas)
        elif isinstance(route, Route) and route.path.startswith(PREFIX):
            path = _PARAMETER.sub(r"{\1}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(path, {})[method.lower()] = _operation(route, method, path, bodies)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moorage",
            "version": __version__,
            "description": "Errors are `{code, message, hint?, field?}`. Changes are made as the one who asks.",
        },
        "security": [{"bearer": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["code", "message"],
                    "properties": {one: {"type": "string"} for one in ("code", "message", "hint", "field")},
                },
                **components,
            },
        },
    }


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0} if name == "item" else NAME,
        }
        for name, _ in _PARAMETER.findall(route.path)
    ]


def _schemas(rows: Iterable[Endpoint[Any, Any]]) -> tuple[dict[type, dict[str, Any]], dict[str, Any]]:
    """The schema of each type of the table, and the components that they refer to."""
    types = (kind for row in rows for kind in (row.body, row.query, row.answer, ErrorAnswer) if kind is not None)
    kinds = list(dict.fromkeys([*types, *SPECS.values()]))
    made, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(kinds, made, strict=True))
    for body, spec in SPECS.items():
        components[body.__name__]["properties"]["spec"] = schemas[spec]
    return schemas, components


def _declared(
    route: EndpointRoute, row: Endpoint[Any, Any], path: str, schemas: Mapping[type, Mapping[str, Any]]
) -> dict[str, Any]:
    """An operation as its row of the table has it, answers included."""
    parameters = _path_parameters(route)
    if row.query is not None:
        fields = {field.name: field for field in msgspec.structs.fields(row.query)}
        query = msgspec.json.schema(row.query, ref_template="#/components/schemas/{name}")
        properties = next(iter(query["$defs"].values()))["properties"] if "$defs" in query else {}
        parameters += [
            {"name": field.encode_name, "in": "query", "schema": properties[field.encode_name]}
            for field in fields.values()
        ]
    if row.once:
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}}
        )
    done: dict[str, Any] = {"description": _sentence(route)}
    if row.answer is not None:
        done["content"] = {"application/json": {"schema": dict(schemas[row.answer])}}
    elif row.media_type:
        done["content"] = {row.media_type: {"schema": {"type": "string"}}}
    status = 204 if row.answer is None and not row.media_type else row.status
    made: dict[str, Any] = {
        "operationId": "_".join([row.method.lower(), *re.findall(r"\w+", path.removeprefix(PREFIX))]),
        "summary": _sentence(route),
        "parameters": parameters,
        "responses": {
            str(status): done,
            "4XX": {
                "description": "Refused.",
                "content": {"application/json": {"schema": dict(schemas[ErrorAnswer])}},
            },
        },
    }
    if row.body is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": dict(schemas[row.body])}}}
    return made


def _operation(route: Route, method: str, path: str, bodies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    key = f"{method} {path}"
    parameters = _path_parameters(route)
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in QUERY.get(key, {}).items()]
    if key in ONCE:
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 255}}
        )
    words = [method.lower(), *re.findall(r"\w+", path.removeprefix(PREFIX))]
    made: dict[str, Any] = {
        "operationId": "_".join(words),
        "summary": _sentence(route),
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "Done."},
            "4XX": {
                "description": "Refused.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if method in ("POST", "PUT", "PATCH") and not path.endswith(TAKES_NOTHING):
        made["requestBody"] = {"content": {"application/json": {"schema": dict(bodies.get(key, OBJECT))}}}
    return made


def _bodies() -> tuple[dict[str, Mapping[str, Any]], dict[str, Any]]:
    """The schema of each body, and the components that they refer to."""
    kinds = {key: one for key, one in BODIES.items() if isinstance(one, type)}
    types = list(kinds.values())
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, found, strict=True))
    plain = {key: one for key, one in BODIES.items() if not isinstance(one, type)}
    return {**plain, **{key: by_type[one] for key, one in kinds.items()}}, components


def _sentence(route: Route) -> str:
    text = inspect.getdoc(route.endpoint) or inspect.getdoc(inspect.getmodule(route.endpoint)) or ""
    return " ".join(text.partition("\n\n")[0].split())
