"""Patches: JSON merge (RFC 7386), JSON patch (RFC 6902) and Kubernetes' strategic merge.

Pure; what is given stays as it is.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.errors import BadRequest, Invalid, ServerError
from moorage.localcluster.apiserver.schema import OBJECT_META, FieldInfo, field_info, item_type

JSON_PATCH_MAX_OPERATIONS = 10_000  # as the real server's limit


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge_patch(out.get(key), value)
    return out


def json_kind(value: Any) -> str:
    """What Go's JSON decoder calls a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. Raises BadRequest for what is no patch, Invalid (422) for one that does not apply."""
    if not isinstance(operations, list):
        raise BadRequest(
            f"error decoding patch: json: cannot unmarshal {json_kind(operations)} into Go value of type"
            " []handlers.jsonPatchOp"
        )
    if len(operations) > JSON_PATCH_MAX_OPERATIONS:
        raise Invalid(
            f"The allowed maximum operations in a JSON patch is {JSON_PATCH_MAX_OPERATIONS}, got {len(operations)}"
        )
    for one in operations:
        if not isinstance(one, dict) or not isinstance(one.get("op"), str) or not isinstance(one.get("path"), str):
            raise BadRequest("every operation of a JSON patch needs `op` and `path`")
        target = _operate(target, one)
    return target


def _operate(doc: Any, operation: Obj) -> Any:
    op, path = operation["op"], _pointer(operation["path"])
    match op:
        case "add" | "replace" | "test":
            if "value" not in operation:
                raise BadRequest(f"operation {op!r} of a JSON patch needs `value`")
            value = operation["value"]
            if op == "add":
                return _add(doc, path, value)
            if op == "replace":
                _at(doc, path)
                return value if not path else _add(_remove(doc, path), path, value)
            found = _at(doc, path, missing_ok=True)
            if not _same(found, value):
                raise _refused(f"testing value {operation['path']} failed")
            return doc
        case "remove":
            return _remove(doc, path)
        case "move" | "copy":
            if not isinstance(operation.get("from"), str):
                raise BadRequest(f"operation {op!r} of a JSON patch needs `from`")
            source = _pointer(operation["from"])
            value = _at(doc, source)
            if op == "move":
                if path[: len(source)] == source and path != source:
                    raise _refused(f"cannot move {operation['from']} into itself")
                doc = _remove(doc, source)
            return _add(doc, path, value)
    raise _refused(f"unknown operation {op!r}")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def _refused(detail: str) -> Invalid:
    return Invalid("the server rejected our request due to an error in our request", details={}, hint=detail)


def _pointer(text: str) -> list[str]:
    if not text:
        return []
    if not text.startswith("/"):
        raise BadRequest(f"{text!r} is no JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(part: str, length: int) -> int:
    if part.isdigit() and (part == "0" or part[0] != "0") and int(part) < length:
        return int(part)
    raise _refused(f"index {part} is out of range")


def _at(doc: Any, path: list[str], *, missing_ok: bool = False) -> Any:
    for part in path:
        if isinstance(doc, dict):
            if part not in doc:
                if missing_ok:
                    return None
                raise _refused(f"/{'/'.join(path)} does not exist")
            doc = doc[part]
        elif isinstance(doc, list):
            doc = doc[_index(part, len(doc))]
        else:
            raise _refused(f"/{'/'.join(path)} does not exist")
    return doc


def _add(doc: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(doc, dict):
        if rest and part not in doc:
            raise _refused(f"{part} does not exist")
        return {**doc, part: _add(doc[part], rest, value) if rest else value}
    if isinstance(doc, list):
        if rest:
            at = _index(part, len(doc))
            return [*doc[:at], _add(doc[at], rest, value), *doc[at + 1 :]]
        at = len(doc) if part == "-" else _index(part, len(doc) + 1)
        return [*doc[:at], value, *doc[at:]]
    raise _refused(f"{part} cannot be added to a plain value")


def _remove(doc: Any, path: list[str]) -> Any:
    if not path:
        raise _refused("the whole document cannot be removed")
    part, rest = path[0], path[1:]
    if isinstance(doc, dict) and part in doc:
        if rest:
            return {**doc, part: _remove(doc[part], rest)}
        return {key: value for key, value in doc.items() if key != part}
    if isinstance(doc, list):
        at = _index(part, len(doc))
        return [*doc[:at], *([_remove(doc[at], rest)] if rest else []), *doc[at + 1 :]]
    raise _refused(f"{part} does not exist")


_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic_merge(original: Obj, patch: Any, type_name: str | None) -> Obj:
    """Merge by the rules of a built-in type. Raises BadRequest for a patch that is none."""
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch must be an object")
    merged: Obj = _merge_map(original, patch, type_name)
    return merged


def _merge_map(original: Obj, patch: Obj, type_name: str | None) -> Obj:
    match patch.get(_DIRECTIVE):
        case None:
            pass
        case "replace":
            taken: Obj = _without_directives(patch)
            return taken
        case "delete":
            return {}
        case "merge":
            pass
        case other:
            raise BadRequest(f"Unknown $patch type {other!r} in a strategic merge patch")
    out = dict(original)
    retain = patch.get(_RETAIN)
    if retain is not None:
        if not isinstance(retain, list):
            raise BadRequest("$retainKeys must be a list")
        out = {key: value for key, value in out.items() if key in retain}
    orders = {key.removeprefix(_ORDER): value for key, value in patch.items() if key.startswith(_ORDER)}
    for key, order in orders.items():
        _check_order(patch.get(key), order, field_info(type_name, key) if type_name else None)
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            if isinstance(out.get(name), list):
                out[name] = [one for one in out[name] if one not in value]
            continue
        if value is None:
            out.pop(key, None)
            continue
        info = field_info(type_name, key) if type_name else None
        current = out.get(key)
        if isinstance(value, dict) and isinstance(current, dict):
            if info and "replace" in info.strategies:
                out[key] = _without_directives(value)
            else:
                out[key] = _merge_map(current, value, item_type(info.code) if info else None)
        elif isinstance(value, list) and info and "merge" in info.strategies:
            start = current if isinstance(current, list) else []
            out[key] = _merge_list(start, value, info, orders.pop(key, None))
        else:
            out[key] = _without_directives(value)
    for key, order in orders.items():
        info = field_info(type_name, key) if type_name else None
        if info and isinstance(out.get(key), list):
            out[key] = _ordered(out[key], original.get(key) or [], info.merge_key, order)
    return out


def _check_order(items: Any, order: Any, info: FieldInfo | None) -> None:
    """Raises ServerError, as the real server, unless the patch's items come in the order that the patch sets."""
    if not isinstance(order, list):
        raise BadRequest("$setElementOrder must be a list")
    key = info.merge_key if info else None

    def ident(one: Any) -> Any:
        return one.get(key) if key and isinstance(one, dict) else one

    listed = [one for one in items or () if not isinstance(one, dict) or _DIRECTIVE not in one]
    wanted = iter([ident(one) for one in order])
    if not all(ident(one) in wanted for one in listed):
        raise ServerError(
            f"The order in patch list:\n{go_text(listed)}\n doesn't match $setElementOrder list:\n"
            f"{go_text(order)}\n",
            reason="",
        )


def go_text(value: Any) -> str:
    """A value as Go's %v prints it."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(go_text(one) for one in value)}]"
        case float():
            return f"{value:g}"
    return str(value)


def _merge_list(original: list[Any], patch: list[Any], info: FieldInfo, order: list[Any] | None) -> list[Any]:
    key = info.merge_key
    if not key:
        merged = list(original)
        merged += [one for one in patch if one not in merged]
        return _ordered(merged, original, None, patch if order is None else order)
    kind = item_type(info.code)
    if any(isinstance(one, dict) and one.get(_DIRECTIVE) == "replace" for one in patch):
        return [
            _without_directives(one)
            for one in patch
            if not (isinstance(one, dict) and one.get(_DIRECTIVE) == "replace" and set(one) == {_DIRECTIVE})
        ]
    out = list(original)
    for one in patch:
        if not isinstance(one, dict) or key not in one:
            raise BadRequest(f"map: {one} does not contain declared merge key: {key}")
        at = next((at for at, had in enumerate(out) if isinstance(had, dict) and had.get(key) == one[key]), None)
        if one.get(_DIRECTIVE) == "delete":
            out = [had for had in out if not (isinstance(had, dict) and had.get(key) == one[key])]
        elif at is None:
            out.append(_without_directives(one))
        else:
            out[at] = _merge_map(out[at], one, kind)
    if order is None:
        order = [one for one in patch if _DIRECTIVE not in one]
    return _ordered(out, original, key, order)


def _ordered(items: list[Any], server: list[Any], key: str | None, order: list[Any]) -> list[Any]:
    """Put the items that `order` names into its order; the others keep their place among the server's."""

    def ident(one: Any) -> Any:
        return one.get(key) if key and isinstance(one, dict) else one

    wanted = [ident(one) for one in order]
    place = [ident(one) for one in server]
    named = sorted((one for one in items if ident(one) in wanted), key=lambda one: wanted.index(ident(one)))
    rest = [one for one in items if ident(one) not in wanted]
    out: list[Any] = []
    while named and rest:
        mine, theirs = ident(named[0]), ident(rest[0])
        if mine not in place or (theirs in place and place.index(mine) < place.index(theirs)):
            out.append(named.pop(0))
        else:
            out.append(rest.pop(0))
    return out + named + rest


def _without_directives(value: Any) -> Any:
    """A patch's value taken as it is: directives and nulls are left out."""
    if isinstance(value, dict):
        return {
            key: _without_directives(one)
            for key, one in value.items()
            if one is not None and key not in (_DIRECTIVE, _RETAIN) and not key.startswith((_ORDER, _DELETE))
        }
    if isinstance(value, list):
        return [
            _without_directives(one)
            for one in value
            if not (isinstance(one, dict) and one.get(_DIRECTIVE) == "delete")
        ]
    return value


def apply_merge(current: Any, wanted: Any, type_name: str | None, schema: Obj | None) -> Any:
    """What server-side apply makes of a stored object, without ownership: what is sent wins, the rest stays.

    Lists are merged by the map keys of their type (built-in) or of their schema (custom); others are replaced.
    """
    if not isinstance(wanted, dict) or not isinstance(current, dict):
        return wanted
    out = dict(current)
    for key, value in wanted.items():
        if value is None:
            continue
        kind, keys, is_set, sub = _apply_info(type_name, schema, key)
        had = out.get(key)
        if isinstance(value, list) and isinstance(had, list) and keys:
            out[key] = _apply_list(had, value, keys, kind, sub)
        elif isinstance(value, list) and isinstance(had, list) and is_set:
            out[key] = [*had, *(one for one in value if one not in had)]
        elif isinstance(value, dict) and isinstance(had, dict):
            out[key] = apply_merge(had, value, kind, sub)
        else:
            out[key] = value
    return out


def _apply_info(
    type_name: str | None, schema: Obj | None, key: str
) -> tuple[str | None, tuple[str, ...], bool, Obj | None]:
    """(type, map keys, whether a set, schema) of a field or of its items."""
    if type_name is not None:
        info = field_info(type_name, key)
        if info is None:
            return None, (), False, None
        keys = info.list_keys if info.list_type == "map" else ()
        return item_type(info.code), keys, info.list_type == "set", None
    if schema is None:
        return None, (), False, None
    if key == "metadata" and "properties" in schema and "apiVersion" in (schema["properties"] or {}):
        return OBJECT_META, (), False, None
    sub = (schema.get("properties") or {}).get(key) or schema.get("additionalProperties")
    if not isinstance(sub, dict):
        return None, (), False, None
    list_type = sub.get("x-kubernetes-list-type")
    keys = tuple(sub.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
    return None, keys, list_type == "set", sub.get("items") if "items" in sub else sub


def _apply_list(
    had: list[Any], wanted: list[Any], keys: tuple[str, ...], kind: str | None, sub: Obj | None
) -> list[Any]:
    def ident(one: Any) -> tuple[Any, ...]:
        return tuple(one.get(key, "TCP" if key == "protocol" else None) for key in keys)

    out = list(had)
    for one in wanted:
        if not isinstance(one, dict):
            continue
        at = next((at for at, old in enumerate(out) if isinstance(old, dict) and ident(old) == ident(one)), None)
        if at is None:
            out.append(one)
        else:
            out[at] = apply_merge(out[at], one, kind, sub)
    return out
