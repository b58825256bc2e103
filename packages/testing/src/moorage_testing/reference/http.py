"""The reference pages of HTTP: routes with their types, error codes, metrics."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moorage.metrics.families import Family
from moorage_kube.api import Api
from moorage_testing.reference.kinds import cell

SCHEMAS = "#/components/schemas/"


def routes_page(note: str) -> str:
    """Return the page of all routes of the server, with the types of their requests and answers."""
    from moorage.server.rest.openapi import describe
    from moorage.server.service import ServerService

    with tempfile.TemporaryDirectory() as folder:
        service = ServerService(_never_asked(), usage_db=Path(folder) / "usage.db", page_token="none")
        routes: list[Any] = list(service.app.routes)
        service.usage.close()
    described = describe(routes)
    out = [note, "# HTTP API of the server\n", "Unstable until 1.0, as the version in its path says.\n"]
    out.append(
        "`GET /api/v1/openapi.json` describes it for programs. Errors have [codes](error-codes.md)."
        " For a route without types here, see its description.\n"
    )
    out += ["| route | request | answer | |", "|---|---|---|---|"]
    for route in sorted(routes, key=lambda route: str(route.path)):
        if not hasattr(route, "methods") or not route.include_in_schema:  # docker.md has the refused ones
            continue
        methods = sorted(set(getattr(route, "methods", None) or {"GET"}) - {"HEAD"})
        module = inspect.getmodule(route.endpoint)
        text = inspect.getdoc(route.endpoint) or inspect.cleandoc((module and module.__doc__) or "")
        text = text.split("\n\n")[0]
        text = re.sub(r"^(GET|POST) \S+( and \S+)*: ", "", " ".join(text.split()))
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        operation = described["paths"].get(path, {}).get(methods[0].lower(), {})
        names = [_linked(_schema(operation.get("requestBody"))), _linked(_answer(operation))]
        out.append(f"| `{', '.join(methods)} {route.path}` | {' | '.join(names)} | {cell(text)} |")
    out += _parameters(described["paths"])
    out += ["\n## Types\n", "A field marked `?` may be absent.\n"]
    components: Mapping[str, Any] = described["components"]["schemas"]
    for name in sorted(_used(described["paths"], components)):
        out += type_section(name, components[name])
    return "\n".join(out) + "\n"


def _parameters(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the query parameters of each route."""
    yield "\n## Query parameters\n"
    yield "| route | parameter | type | meaning |\n|---|---|---|---|"
    for path, operations in paths.items():
        for method, operation in operations.items():
            for parameter in operation["parameters"]:
                if parameter["in"] == "query":
                    kind, meaning = cell(_type(parameter["schema"])), str(parameter.get("description") or "")
                    yield f"| `{method.upper()} {path}` | `{parameter['name']}` | {kind} | {cell(meaning)} |"


def _never_asked() -> Api:
    """An API for services that only show their routes or metrics: it opens no connection."""
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.remote.config import Connection

    return KubeClient(Connection(server="https://127.0.0.1:1"))


def _schema(body: Mapping[str, Any] | None) -> str:
    """Return the name of a body's type; "" if there is no body, or if its type has no name."""
    content: Mapping[str, Any] = (body or {}).get("content") or {}
    media: Mapping[str, Any] = next(iter(content.values()), {})
    schema: Mapping[str, Any] = media.get("schema") or {}
    ref = str(schema.get("$ref") or "")
    return ref.removeprefix(SCHEMAS)


def _answer(operation: Mapping[str, Any]) -> str:
    good = (
        response for status, response in (operation.get("responses") or {}).items() if str(status).startswith("2")
    )
    return _schema(next(good, None))


def _linked(name: str) -> str:
    return f"[{name}](#{name.lower().replace('.', '')})" if name else ""


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(ref := value.get("$ref"), str):
            yield ref.removeprefix(SCHEMAS)
        for inner in value.values():
            yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)


def _used(paths: Any, components: Mapping[str, Any]) -> set[str]:
    """Return the types of the routes, and the types that these refer to."""
    used: set[str] = set()
    waiting = set(_refs(paths))
    while waiting:
        used |= waiting
        waiting = {ref for name in waiting for ref in _refs(components[name])} - used
    return used


def type_section(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of a type with its fields: name, type and meaning."""
    yield f"### {name}\n"
    if text := " ".join(str(schema.get("description") or "").split()):
        yield text + "\n"
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if not properties:
        return
    required = set(schema.get("required") or ())
    yield "| field | type | meaning |\n|---|---|---|"
    for field, of in properties.items():
        mark = "" if field in required else "?"
        meaning = str(of.get("description") or "")
        yield f"| `{field}`{mark} | {cell(_type(of))} | {cell(meaning)} |"
    yield ""


def _type(schema: Mapping[str, Any]) -> str:
    if ref := schema.get("$ref"):
        return _linked(str(ref).removeprefix(SCHEMAS))
    if union := schema.get("anyOf"):
        kinds = [_type(member) for member in union if member.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    kind = schema.get("type") or "any"
    if schema.get("format") == "date-time":
        return "time"
    if kind == "array":
        items = schema.get("items")
        return f"list of {_type(items)}" if isinstance(items, Mapping) else "list"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), Mapping):
        return f"map of {_type(values)}" if values else "map"
    if isinstance(kind, list):
        return " or ".join(str(name) for name in kind if name != "null")
    return str(kind)


def codes_page(note: str) -> str:
    """Return the page of all error codes of the REST API."""
    from moorage.api.errors import ErrorAnswer, ErrorCode

    out = [note, "# Error codes of the REST API\n", f"{ErrorAnswer.__doc__}\n"]
    out.append(
        "Programs read `code`, people `message`. An optional `hint` has the next step. [Errors](errors.md)"
        " lists the exceptions of Python and the exit codes of `moor`.\n"
    )
    out += ["| code | HTTP status | meaning |", "|---|---|---|"]
    out += [f"| `{code}` | {code.status} | {cell(code.meaning)} |" for code in ErrorCode]
    return "\n".join(out) + "\n"


def metrics_page(note: str) -> str:
    """Return the page of all metrics that our services offer to Prometheus."""
    from moorage.controllers import measures as operator
    from moorage.extender import app as extender
    from moorage.extender.cache import ExtenderCache
    from moorage.server.rest import health
    from moorage.webhooks import measures as webhook
    from moorage_workflows.decide.workflows.metrics import BUILT_IN, PREFIX

    # the families are built from the code, with their bounds
    services = {
        "server": [_family_row(family) for family in health.FAMILIES],
        "operator": [_family_row(family) for family in operator.FAMILIES],
        "webhook": [_family_row(family) for family in webhook.FAMILIES],
        "extender": [
            *_metrics(extender.make_metrics(ExtenderCache(_never_asked()))[0]),
            *(_family_row(family) for family in extender.FAMILIES),
        ],
    }
    out = [note, "# Metrics\n", "Every service has metrics at `/metrics`, in Prometheus' text format.\n"]
    out.append(
        "`/metrics` needs the token of a user that may `get` it: bind the ClusterRole `moorage-metrics-reader`."
        " A histogram has `_bucket`, `_sum` and `_count`."
        " Each page also has `process_cpu_seconds_total`, `process_resident_memory_bytes` and"
        " the other metrics of a process.\n"
    )
    out.append(
        "The last column is the maximum number of sets of labels. All sets above it are one series, with `other`"
        " as the value of each label.\n"
    )
    out.append(
        "The server also shows the `metrics` that workflows define, as `argo_workflows_` and the name, with the"
        " label `workflow_namespace`.\n"
    )
    # a table for workflows, then one for each service
    words = "On the server, under the names of Argo's controller. Workflows that Argo runs are not counted."
    out += ["## Workflows\n", f"{words}\n"]
    out += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for row in BUILT_IN:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        out.append(f"| `{PREFIX}{row.name}` | {row.kind} | {labels} | {cell(row.help)} |")
    out.append("")
    for service, rows in services.items():
        out += [f"## {service}\n", "| metric | type | labels | meaning | sets |", "|---|---|---|---|---|"]
        out += [
            f"| `{name}` | {kind} | {labels} | {cell(text)} | {bound} |"
            for name, kind, labels, text, bound in sorted(rows)
        ]
        out.append("")
    return "\n".join(out)


def _family_row(family: Family) -> tuple[str, str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return family.name, family.kind, labels, family.help, f"{family.series_max:,}"


def _metrics(registry: Any) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, type, labels, meaning and bound of each metric of a registry."""
    for made in list(registry._collector_to_names):
        collector: Any = made
        labelled = hasattr(collector, "_labelnames")
        families: Iterable[Any] = collector.describe() if labelled else collector.collect()
        for family in families:
            labels: Any = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            name = f"{family.name}_total" if family.type == "counter" else family.name
            bound = "2 for a node" if "node" in labels else ""
            yield name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation, bound
