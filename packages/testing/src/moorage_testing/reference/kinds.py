"""The reference page of our kinds: fields from the Structs of `model`, and conditions from their table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

UNBOUNDED = 2**53  # a maximum from here on only says that a number must fit its type
SKIPPED = ("apiVersion", "kind", "metadata")


def kinds_page(note: str) -> str:
    """Return the page of all kinds with their fields, columns and conditions."""
    from moorage.model.conditions import CONDITIONS
    from moorage.model.crds import KINDS

    out = [note, "# Kinds\n", "The custom resources of Moorage, all of them in `moorage.dev/v1alpha1`.\n"]
    out.append(
        "A field without a default is optional, unless it is marked as required. `[]` means each item of a"
        " list, `{}` each value of a map. Only Moorage writes `status`.\n\n"
        "Each item of `status.conditions` has `type`, `status` (`True`, `False` or `Unknown`), `reason`,"
        " `message`, `lastTransitionTime` and `observedGeneration`. The reasons are below the fields.\n"
    )
    kinds = sorted(KINDS, key=lambda kind: kind.resource.kind)
    out.append(" · ".join(f"[{kind.resource.kind}](#{kind.resource.kind.lower()})" for kind in kinds) + "\n")
    for kind in kinds:
        resource = kind.resource
        scope = "in a namespace" if resource.namespaced else "in the whole cluster"
        names = [resource.plural, *kind.short_names]
        out += [f"## {resource.kind}\n", _description(kind.struct), ""]
        out.append(f"Exists {scope}. `kubectl get {resource.plural}`" + _short(names[1:]) + "\n")
        out += ["| field | type | default | description |", "|---|---|---|---|"]
        for path, schema, required in fields_of(kind.struct):
            default = "required" if required else _default(schema)
            text = cell(" ".join(str(schema.get("description") or "").split()))
            out.append(f"| `{path}` | {cell(_type(schema))} | {cell(default)} | {text} |")
        out.append("")
        if resource.kind not in CONDITIONS:
            raise ValueError(f"CONDITIONS of moorage.model.conditions lacks {resource.kind}")
        for condition in CONDITIONS[resource.kind]:
            out += [f"**Condition {condition.name}**: {condition.meaning}\n", "| reason | meaning |", "|---|---|"]
            out += [f"| `{reason}` | {cell(meaning)} |" for reason, meaning in condition.reasons.items()]
            out.append("")
    return "\n".join(out)


def fields_of(struct: type[Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield the fields of `spec` and `status` in source order, each with its schema and whether it is required."""
    import msgspec

    schema = msgspec.json.schema(struct)
    definitions: Mapping[str, Any] = schema.get("$defs") or {}

    def resolved(of: Mapping[str, Any]) -> dict[str, Any]:
        if ref := of.get("$ref"):
            beside = {key: value for key, value in of.items() if key != "$ref"}
            return resolved(definitions[str(ref).rsplit("/", 1)[-1]]) | beside
        some = [member for member in of.get("anyOf") or () if member.get("type") != "null"]
        if len(some) == 1:
            return resolved(some[0]) | {k: v for k, v in of.items() if k != "anyOf"}
        return dict(of)

    def walk(of: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
        for name, raw in (of.get("properties") or {}).items():
            if not path and name in SKIPPED:
                continue
            field, here = resolved(raw), f"{path}.{name}".lstrip(".")
            inner: Mapping[str, Any] = field
            while True:
                if isinstance(inner.get("items"), Mapping):
                    inner, here = resolved(inner["items"]), f"{here}[]"
                elif isinstance(inner.get("additionalProperties"), Mapping) and inner["additionalProperties"]:
                    inner, here = resolved(inner["additionalProperties"]), f"{here}.{{}}"
                else:
                    break
            shown = field if field.get("description") else field | {"description": inner.get("description", "")}
            yield f"{path}.{name}".lstrip("."), shown, name in (of.get("required") or ())
            if (
                inner.get("properties") and name != "conditions"
            ):  # the same fields everywhere: described once, above
                yield from walk(inner, here)

    yield from walk(resolved(schema), "")


def _description(struct: type[Any]) -> str:
    return " ".join((struct.__doc__ or "").split())


def _short(names: list[str]) -> str:
    return f", in short `{'`, `'.join(names)}`." if names else "."


def _type(schema: Mapping[str, Any]) -> str:
    """The type with its constraints: an enumeration, bounds, lengths, a pattern."""
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" if value else "empty" for value in values)
    if union := schema.get("anyOf"):
        kinds = {member.get("type") for member in union} - {"null"}
        return "quantity" if kinds == {"integer", "string"} else " or ".join(sorted(str(kind) for kind in kinds))
    kind = str(schema.get("type") or "any")
    if schema.get("format") == "date-time":
        return "time"
    if kind == "array":
        return f"list, at most {schema['maxItems']:,}" if "maxItems" in schema else "list"
    if kind == "object":
        return "object" if schema.get("properties") else "map" if schema.get("additionalProperties") else "object"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and high < UNBOUNDED:
        return f"{kind}, {low:,} to {high:,}"
    if low is not None:
        return f"{kind}, at least {low:,}"
    if "maxLength" in schema:
        return f"{kind}, at most {schema['maxLength']:,} characters"
    return kind


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if value in (None, "", [], {}) or isinstance(value, Mapping):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
