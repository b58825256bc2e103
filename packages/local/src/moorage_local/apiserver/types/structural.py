"""Structural schemas of custom resources.

Pruning, defaults, and checks that report all errors with field paths.

CEL rules (`x-kubernetes-validations`) are not evaluated: they are stored and have no effect here.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Decoded
from moorage_local.apiserver.types import schema as types
from moorage_local.apiserver.types.fields import Cause, FieldErrors, shown

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
_RESOURCE_KEYS = ("apiVersion", "kind", "metadata")
_INT_RANGE = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_DURATION = re.compile(r"[-+]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w|y))+|0")
_MAC = re.compile(r"([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")


class StructuralCodec:
    """Decodes objects of one version of a custom kind. `schema` is the `openAPIV3Schema` of the version."""

    patch_type: str | None = None

    def __init__(self, schema: Obj, *, preserve: bool, kind: str, version: str) -> None:
        """`preserve`: do not remove unknown fields (`spec.preserveUnknownFields`)."""
        self._schema = schema
        self._preserve = preserve
        self._kind = kind
        self._version = version
        self._validator: Any = None

    def decode(self, obj: Obj) -> Decoded:
        unknown: list[str] = []
        body = {key: value for key, value in obj.items() if key not in _RESOURCE_KEYS}
        pruned: Obj = dict(body) if self._preserve else prune(body, self._schema, "", unknown)
        pruned = fill_defaults(_drop_nulls(pruned, self._schema), self._schema)
        reading = types.Reading(path=["metadata"])
        try:
            meta = types.read(types.OBJECT_META, obj.get("metadata") or {}, reading)
        except types.WrongType as error:
            text = str(error).replace(" ObjectMeta.metadata.", " ObjectMeta.")  # this part is read by itself
            raise BadRequest(
                f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: {text}'
            ) from None
        errors = FieldErrors()
        errors.causes += self.check(pruned)
        head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta}
        return Decoded(head | pruned, [*unknown, *reading.unknown], errors)

    def check(self, body: Any) -> list[Cause]:
        """Return all violations of the schema."""
        causes = _causes(self._compiled().iter_errors(body))
        _check_lists(body, self._schema, "", causes)
        return causes

    def _compiled(self) -> Any:
        if self._validator is None:
            self._validator = compile_schema(self._schema, root=True)
        return self._validator


def compile_schema(schema: Obj, *, root: bool = False) -> Any:
    """Return a jsonschema-rs validator. Raises ValueError if it cannot read the schema."""
    import jsonschema_rs

    translated = translate(schema)
    if root:
        translated["properties"] = {
            key: value for key, value in translated.get("properties", {}).items() if key not in _RESOURCE_KEYS
        }
        if "required" in translated:
            translated["required"] = [key for key in translated["required"] if key not in _RESOURCE_KEYS]
    return jsonschema_rs.Draft7Validator(
        translated,
        validate_formats=True,
        ignore_unknown_formats=True,
        formats={
            "byte": _is_base64,
            "duration": lambda text: _DURATION.fullmatch(text) is not None,
            "mac": lambda text: _MAC.fullmatch(text) is not None,
            "password": lambda _: True,
        },
    )


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def translate(schema: Any) -> Obj:
    """Translate a schema from Kubernetes' dialect (OpenAPI 3.0 with extensions) to JSON Schema draft 7."""
    if not isinstance(schema, Mapping):
        return {}
    out: Obj = {}
    # copy the keywords that both dialects have, and translate the schemas in them
    for key, value in schema.items():
        match key:
            case "properties" | "definitions" | "patternProperties":
                out[key] = {name: translate(subschema) for name, subschema in value.items()}
            case "items" | "not":
                out[key] = translate(value)
            case "additionalProperties":
                out[key] = translate(value) if isinstance(value, Mapping) else value
            case "allOf" | "anyOf" | "oneOf":
                out[key] = [translate(subschema) for subschema in value]
            case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
                continue
            case "nullable" | "default" | "example" | "description" | "title" | "externalDocs" | "id":
                continue
            case _ if key.startswith(("x-", "$")):
                continue
            case _:
                out[key] = value
    # OpenAPI 3.0 has a boolean for an exclusive limit, JSON Schema a number
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and limit in out:
            out[exclusive] = out.pop(limit)
    # Kubernetes' own extensions become plain types
    if schema.get(INT_OR_STRING):
        out["type"] = ["integer", "string"]
    if out.get("format") in _INT_RANGE:
        low, high = _INT_RANGE[out.pop("format")]
        out.setdefault("minimum", low)
        out.setdefault("maximum", high)
    if schema.get(EMBEDDED):
        out["type"] = "object"
        properties = out.setdefault("properties", {})
        properties |= {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        }
        out["required"] = [*dict.fromkeys([*(out.get("required") or ()), "apiVersion", "kind"])]
    # a nullable value has null as another type, and in an enumeration as another value
    if schema.get("nullable") and "type" in out:
        listed = out["type"] if isinstance(out["type"], list) else [out["type"]]
        out["type"] = [*listed, "null"]
        if "enum" in out:
            out["enum"] = [*out["enum"], None]
    return out


def prune(value: Any, schema: Mapping[str, Any], path: str, unknown: list[str]) -> Any:
    """Remove the fields that are not in the schema, and add their paths to `unknown`."""
    if isinstance(value, list):
        items = schema.get("items")
        if not isinstance(items, Mapping):
            return value
        return [prune(item, items, f"{path}[{at}]", unknown) for at, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    keep = schema.get(PRESERVE) is True or more is True
    embedded = schema.get(EMBEDDED) is True
    out = {}
    for key, field_value in value.items():
        where = f"{path}.{key}" if path else key
        if key in properties:
            out[key] = prune(field_value, properties[key], where, unknown)
        elif embedded and key in _RESOURCE_KEYS:
            out[key] = field_value
        elif isinstance(more, Mapping):
            out[key] = prune(field_value, more, where, unknown)
        elif keep:
            out[key] = field_value
        else:
            unknown.append(where)
    return out


def _drop_nulls(value: Any, schema: Mapping[str, Any]) -> Any:
    """Remove nulls where the schema does not allow null: they count as absent.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#defaulting-and-nullable
    """
    if isinstance(value, list):
        items = schema.get("items")
        return [_drop_nulls(item, items) for item in value] if isinstance(items, Mapping) else value
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    more = schema.get("additionalProperties")
    out = {}
    for key, field_value in value.items():
        sub = properties.get(key) or (more if isinstance(more, Mapping) else None)
        if field_value is None and sub is not None and not sub.get("nullable"):
            continue
        out[key] = _drop_nulls(field_value, sub) if sub is not None else field_value
    return out


def fill_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """Set the defaults of absent fields, in the given value and in the defaults themselves."""
    if isinstance(value, list):
        items = schema.get("items")
        return [fill_defaults(item, items) for item in value] if isinstance(items, Mapping) else value
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    out = dict(value)
    for key, sub in properties.items():
        if key not in out and "default" in sub:
            out[key] = msgspec.json.decode(msgspec.json.encode(sub["default"]))
        if key in out:
            out[key] = fill_defaults(out[key], sub)
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        for key in out:
            if key not in properties:
                out[key] = fill_defaults(out[key], more)
    return out


def _check_lists(value: Any, schema: Mapping[str, Any], path: str, causes: list[Cause]) -> None:
    """Check that lists of the types set and map have no duplicates, and that map items have their keys."""
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        more = schema.get("additionalProperties")
        for key, field_value in value.items():
            sub = properties.get(key) or (more if isinstance(more, Mapping) else None)
            if sub is not None:
                _check_lists(field_value, sub, f"{path}.{key}" if path else key, causes)
        return
    if not isinstance(value, list):
        return
    items = schema.get("items")
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for at, item in enumerate(value):
        where = f"{path}[{at}]"
        if isinstance(items, Mapping):
            _check_lists(item, items, where, causes)
        ident = item
        if kind == "map" and isinstance(item, dict):
            ident = {key: item.get(key) for key in keys}
        if kind in ("set", "map"):
            if ident in seen:
                causes.append(Cause("FieldValueDuplicate", where, f"Duplicate value: {shown(ident)}"))
            seen.append(ident)


def field_path(parts: list[Any]) -> str:
    out = ""
    for part in parts:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


_STRING_RULES = ("MaxLength", "MinLength", "Pattern")  # in their order; only the first broken rule is reported


def _causes(violations: Iterable[Any]) -> list[Cause]:
    """Convert errors of jsonschema-rs to causes.

    A string has only its first error. If no alternative matches, the errors of the first are added.
    """
    errors = list(violations)
    first_broken: dict[str, int] = {}
    for error in errors:
        name = _name(error)
        if name in _STRING_RULES:
            where = field_path(list(error.instance_path))
            first_broken[where] = min(first_broken.get(where, len(_STRING_RULES)), _STRING_RULES.index(name))
    causes = []
    for error in errors:
        name = _name(error)
        where = field_path(list(error.instance_path))
        if name in _STRING_RULES and first_broken[where] != _STRING_RULES.index(name):
            continue
        causes.append(_cause(error))
        if name in ("OneOfNotValid", "AnyOf"):
            alternatives = error.kind.context
            causes += _causes(alternatives[0] if alternatives else ())
    return causes


def _name(error: Any) -> str:
    return type(error.kind).__name__.rpartition("_")[2]


def _cause(error: Any) -> Cause:
    """Convert one error of jsonschema-rs to a cause with the real server's message."""
    parts = list(error.instance_path)
    path = field_path(parts)
    value = error.instance
    kind = error.kind
    name = _name(error)
    where = path or "<nil>"
    # rules with a special reason in Kubernetes
    match name:
        case "Required":
            missing = str(kind.property)
            return Cause("FieldValueRequired", f"{path}.{missing}" if path else missing, "Required value")
        case "Type":
            wanted = ",".join(sorted(kind_name for kind_name in kind.types if kind_name != "null"))
            got = _json_type(value)
            return Cause(
                "FieldValueTypeInvalid",
                where,
                f'Invalid value: "{got}": {path} in body must be of type {wanted}: "{got}"',
            )
        case "Enum":
            allowed = ", ".join(shown(option) for option in kind.options if option is not None)
            return Cause(
                "FieldValueNotSupported", where, f"Unsupported value: {shown(value)}: supported values: {allowed}"
            )
        case "MaxLength":
            return Cause("FieldValueTooLong", where, f"Too long: may not be more than {kind.limit} bytes")
        case "MaxItems":
            return Cause(
                "FieldValueTooMany", where, f"Too many: {len(value)}: must have at most {kind.limit} items"
            )
    # rules that are all FieldValueInvalid
    rules: dict[str, Callable[[], str]] = {
        "Minimum": lambda: f"should be greater than or equal to {kind.limit}",
        "Maximum": lambda: f"should be less than or equal to {kind.limit}",
        "ExclusiveMinimum": lambda: f"should be greater than {kind.limit}",
        "ExclusiveMaximum": lambda: f"should be less than {kind.limit}",
        "MinLength": lambda: f"should be at least {kind.limit} chars long",
        "MinItems": lambda: f"should have at least {kind.limit} items",
        "MinProperties": lambda: f"should have at least {kind.limit} properties",
        "MaxProperties": lambda: f"should have at most {kind.limit} properties",
        "Pattern": lambda: f"should match '{kind.pattern}'",
        "UniqueItems": lambda: "shouldn't contain duplicates",
        "MultipleOf": lambda: f"should be a multiple of {kind.multiple_of}",
        "Format": lambda: f"must be of type {kind.format}: {shown(value)}",
        "OneOfNotValid": lambda: "must validate one and only one schema (oneOf). Found none valid",
        "OneOfMultipleValid": lambda: "must validate one and only one schema (oneOf). Found 2 valid alternatives",
        "AnyOf": lambda: "must validate at least one schema (anyOf)",
        "Not": lambda: "must not validate the schema (not)",
    }
    rule = rules.get(name)
    if rule is None:
        return Cause("FieldValueInvalid", where, f"Invalid value: {shown(value)}: {error.message}")
    # those of alternatives name no field
    problem = (
        f'"{path}" {rule()}'
        if name in ("OneOfNotValid", "OneOfMultipleValid", "AnyOf", "Not")
        else (f"{path} in body {rule()}")
    )
    if name in ("OneOfNotValid", "OneOfMultipleValid", "AnyOf"):
        return Cause("FieldValueInvalid", "<nil>", f'Invalid value: "": {problem}')
    reason = "FieldValueTypeInvalid" if name == "Format" else "FieldValueInvalid"
    return Cause(reason, where, f"Invalid value: {shown(value)}: {problem}")


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
