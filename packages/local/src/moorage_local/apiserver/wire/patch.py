"""Patches: JSON patch (RFC 6902) and Kubernetes' strategic merge.

Pure; the arguments are not changed.

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from moorage_kube.documents import parse_json
from moorage_kube.errors import BadRequest, DocumentError, Invalid, ServerError, TooLarge
from moorage_kube.integers import integer_or, is_digits
from moorage_kube.resources import Obj
from moorage_local.apiserver.types.schema import OBJECT_META, FieldInfo, field_info, item_type

JSON_PATCH_MAX_OPERATIONS = 10_000  # as the real server's limit
# of all that `copy` adds; as the real server's AccumulatedCopySizeLimit
JSON_PATCH_COPY_MAX_BYTES = 3 * 1024 * 1024
JSON_PATCH_MAX_SHIFTS = 20_000_000  # list items that insertions and removals move along; some 50 ms
PATCHED_MAX_BYTES = 8 * 1024 * 1024  # an object, a patch of the largest request and its copies
SHOWN_MAX = 200  # characters of a path in a message


def json_kind(value: Any) -> str:
    """The name of a value's type in Go's JSON decoder."""
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
    """RFC 6902. Raises BadRequest for a malformed patch, Invalid (422) for one that does not apply, TooLarge.

    The bounds are the real server's: JSON_PATCH_MAX_OPERATIONS, and JSON_PATCH_COPY_MAX_BYTES for the sum of all
    `copy` operations. JSON_PATCH_MAX_SHIFTS is ours: the event loop waits here.

    The result is as deep as a document may be.
    """
    if not isinstance(operations, list):
        raise BadRequest(
            f"error decoding patch: json: cannot unmarshal {json_kind(operations)} into Go value of type"
            " []handlers.jsonPatchOp"
        )
    if len(operations) > JSON_PATCH_MAX_OPERATIONS:
        raise TooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is"
            f" {JSON_PATCH_MAX_OPERATIONS}, got {len(operations)}"
        )
    for operation in operations:
        if not (
            isinstance(operation, dict)
            and isinstance(operation.get("op"), str)
            and isinstance(operation.get("path"), str)
        ):
            raise BadRequest("every operation of a JSON patch needs `op` and `path`")
    try:
        patching = _Patching(_copied(target))
        for operation in operations:
            patching.operate(operation)
        return parse_json(msgspec.json.encode(patching.doc), bytes_max=PATCHED_MAX_BYTES)
    except (DocumentError, RecursionError) as error:
        raise _refused(f"the patched object is invalid: {error}") from None


class _Patching:
    """A document that patch operations change in place, one after the other."""

    __slots__ = ("_copied_bytes", "_shifts", "doc")

    def __init__(self, doc: Any) -> None:
        self.doc = doc
        self._copied_bytes = 0
        self._shifts = 0  # list items moved along so far

    def operate(self, operation: Obj) -> None:
        op, path = operation["op"], _pointer(operation["path"])
        match op:
            case "add" | "replace" | "test":
                if "value" not in operation:
                    raise BadRequest(f"operation {op!r} of a JSON patch needs `value`")
                value = operation["value"]
                if op == "test":
                    if not _same(_at(self.doc, path, missing_ok=True), value):
                        raise _refused(f"testing value {_short(operation['path'])} failed")
                    return
                if op == "replace":
                    _at(self.doc, path)
                    if path:
                        self._remove(path)
                self._add(path, _copied(value))
            case "remove":
                self._remove(path)
            case "move" | "copy":
                if not isinstance(operation.get("from"), str):
                    raise BadRequest(f"operation {op!r} of a JSON patch needs `from`")
                source = _pointer(operation["from"])
                value = _at(self.doc, source)
                if op == "copy":
                    value = self._copy(value)
                elif path[: len(source)] == source and path != source:
                    raise _refused(f"cannot move {_short(operation['from'])} into itself")
                else:
                    self._remove(source)
                self._add(path, value)
            case _:
                raise _refused(f"unknown operation {_short(op)}")

    def _copy(self, value: Any) -> Any:
        encoded = msgspec.json.encode(value)
        self._copied_bytes += len(encoded)
        if self._copied_bytes > JSON_PATCH_COPY_MAX_BYTES:
            raise _refused(
                f"Unable to complete the copy, the accumulated size increase of copy is {self._copied_bytes},"
                f" exceeding the limit {JSON_PATCH_COPY_MAX_BYTES}"
            )
        return msgspec.json.decode(encoded)

    def _add(self, path: list[str], value: Any) -> None:
        if not path:
            self.doc = value
            return
        *parents, part = path
        holder = _at(self.doc, parents)
        if isinstance(holder, dict):
            holder[part] = value
        elif isinstance(holder, list):
            index = len(holder) if part == "-" else _index(part, len(holder) + 1)
            self._shift(len(holder) - index)
            holder.insert(index, value)
        else:
            raise _refused(f"{_short(part)} cannot be added to a plain value")

    def _remove(self, path: list[str]) -> None:
        if not path:
            raise _refused("the whole document cannot be removed")
        *parents, part = path
        holder = _at(self.doc, parents)
        if isinstance(holder, dict) and part in holder:
            del holder[part]
        elif isinstance(holder, list):
            index = _index(part, len(holder))
            self._shift(len(holder) - index)
            del holder[index]
        else:
            raise _refused(f"{_short(part)} does not exist")

    def _shift(self, items: int) -> None:
        self._shifts += items
        if self._shifts > JSON_PATCH_MAX_SHIFTS:
            raise TooLarge(
                f"a JSON patch may move at most {JSON_PATCH_MAX_SHIFTS} list items by insertions and removals:"
                " add at the end of a list (`-`), or replace the whole list"
            )


def _copied(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


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
        raise BadRequest(f"invalid JSON pointer {_short(text)}: it must begin with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(part: str, length: int) -> int:
    if is_digits(part) and (part == "0" or part[0] != "0"):
        index = integer_or(part, length)
        if index < length:
            return index
    raise _refused(f"index {_short(part)} is out of range")


def _at(doc: Any, path: list[str], *, missing_ok: bool = False) -> Any:
    for part in path:
        if isinstance(doc, dict):
            if part not in doc:
                if missing_ok:
                    return None
                raise _refused(f"{_short('/' + '/'.join(path))} does not exist")
            doc = doc[part]
        elif isinstance(doc, list):
            doc = doc[_index(part, len(doc))]
        else:
            raise _refused(f"{_short('/' + '/'.join(path))} does not exist")
    return doc


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic_merge(original: Obj, patch: Any, type_name: str | None) -> Obj:
    """Merge a patch by the rules of a built-in type. Raises BadRequest for an invalid patch."""
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch must be an object")
    merged: Obj = _merge_map(original, patch, type_name)
    return merged


def _merge_map(original: Obj, patch: Obj, type_name: str | None) -> Obj:
    # a directive may replace or delete the whole map
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
    # orders of lists are checked first, and applied when all items are merged
    out = _retained(original, patch.get(_RETAIN))
    orders = {key.removeprefix(_ORDER): value for key, value in patch.items() if key.startswith(_ORDER)}
    for key, order in orders.items():
        _check_order(patch.get(key), order, field_info(type_name, key) if type_name else None)
    # null deletes a key; maps and lists merge by the type's patch strategy, other values replace
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        if key.startswith(_DELETE):
            _delete_items(out, key, value)
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
    # an order without a list in the patch applies to the existing list
    for key, order in orders.items():
        info = field_info(type_name, key) if type_name else None
        if info and isinstance(out.get(key), list):
            out[key] = _ordered(out[key], original.get(key) or [], info.merge_key, order)
    return out


def _retained(original: Obj, keys: Any) -> Obj:
    """Return a copy of the object with only the keys that the patch retains.

    Without that directive, with all keys.
    """
    if keys is None:
        return dict(original)
    if not isinstance(keys, list):
        raise BadRequest("$retainKeys must be a list")
    kept = {key for key in keys if isinstance(key, str)}
    return {key: value for key, value in original.items() if key in kept}


def _delete_items(out: Obj, key: str, items: Any) -> None:
    """Apply a directive that deletes items from a list of plain values."""
    if not isinstance(items, list):
        raise BadRequest(f"{_short(key)} must be a list")
    name = key.removeprefix(_DELETE)
    if isinstance(out.get(name), list):
        deleted = {_mark(item) for item in items}
        out[name] = [item for item in out[name] if _mark(item) not in deleted]


def _check_order(items: Any, order: Any, info: FieldInfo | None) -> None:
    """Raise ServerError, like the real server, if the items of the patch do not have the order that it sets."""
    if not isinstance(order, list):
        raise BadRequest("$setElementOrder must be a list")
    key = info.merge_key if info else None

    def ident(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    listed = [item for item in items or () if not isinstance(item, dict) or _DIRECTIVE not in item]
    wanted = iter([ident(item) for item in order])
    if not all(ident(item) in wanted for item in listed):
        raise ServerError(
            f"The order in patch list:\n{go_text(listed)}\n doesn't match $setElementOrder list:\n"
            f"{go_text(order)}\n",
            reason="",
        )


def go_text(value: Any) -> str:
    """Format a value like Go's %v."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value))}]"
        case list():
            return f"[{' '.join(go_text(item) for item in value)}]"
        case float():
            return f"{value:g}"
    return str(value)


def _merge_list(original: list[Any], patch: list[Any], info: FieldInfo, order: list[Any] | None) -> list[Any]:
    key = info.merge_key
    if not key:
        known = {_mark(item) for item in original}
        merged = [*original, *(item for item in patch if _mark(item) not in known)]
        return _ordered(merged, original, None, patch if order is None else order)
    kind = item_type(info.code)
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [
            _without_directives(item)
            for item in patch
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" and set(item) == {_DIRECTIVE})
        ]
    out: list[Any] = list(original)
    places: dict[Any, list[int]] = {}  # by merge key: where its items are in `out`
    for at, had in enumerate(out):
        if isinstance(had, dict):
            places.setdefault(_mark(had.get(key)), []).append(at)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise BadRequest(f"map: {_short(str(item))} does not contain declared merge key: {key}")
        mark = _mark(item[key])
        if item.get(_DIRECTIVE) == "delete":
            for at in places.pop(mark, ()):
                out[at] = _GONE
        elif mark in places:
            at = places[mark][0]
            out[at] = _merge_map(out[at], item, kind)
        else:
            places[mark] = [len(out)]
            out.append(_without_directives(item))
    if order is None:
        order = [item for item in patch if _DIRECTIVE not in item]
    return _ordered([item for item in out if item is not _GONE], original, key, order)


_GONE = object()


def _mark(value: Any) -> Any:
    """Return a hashable form of a value: equal values have equal marks."""
    if isinstance(value, dict | list):
        return ("", msgspec.json.encode(value, order="deterministic"))
    return value


def _ordered(items: list[Any], server: list[Any], key: str | None, order: list[Any]) -> list[Any]:
    """Sort the items that are in `order` into that order; the others keep the server's order."""

    def mark(item: Any) -> Any:
        return _mark(item.get(key) if key and isinstance(item, dict) else item)

    wanted: dict[Any, int] = {}
    place: dict[Any, int] = {}
    for known, listed in ((wanted, order), (place, server)):
        for at, item in enumerate(listed):
            known.setdefault(mark(item), at)
    named = deque(sorted((item for item in items if mark(item) in wanted), key=lambda item: wanted[mark(item)]))
    rest = deque(item for item in items if mark(item) not in wanted)
    out: list[Any] = []
    while named and rest:
        mine, theirs = mark(named[0]), mark(rest[0])
        is_first = mine not in place or (theirs in place and place[mine] < place[theirs])
        out.append(named.popleft() if is_first else rest.popleft())
    return [*out, *named, *rest]


def _without_directives(value: Any) -> Any:
    """A copy of a patch's value without directives and nulls."""
    if isinstance(value, dict):
        return {
            key: _without_directives(item)
            for key, item in value.items()
            if item is not None and key not in (_DIRECTIVE, _RETAIN) and not key.startswith((_ORDER, _DELETE))
        }
    if isinstance(value, list):
        return [
            _without_directives(item)
            for item in value
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) == "delete")
        ]
    return value


def apply_merge(current: Any, wanted: Any, type_name: str | None, schema: Obj | None) -> Any:
    """Server-side apply to a stored object, without ownership: sent values win, the rest stays.

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
            known = {_mark(item) for item in had}
            out[key] = [*had, *(item for item in value if _mark(item) not in known)]
        elif isinstance(value, dict) and isinstance(had, dict):
            out[key] = apply_merge(had, value, kind, sub)
        else:
            out[key] = value
    return out


def _apply_info(
    type_name: str | None, schema: Obj | None, key: str
) -> tuple[str | None, tuple[str, ...], bool, Obj | None]:
    """Return (type, map keys, whether it is a set, schema) of a field or of its items."""
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
    def mark(item: Any) -> tuple[Any, ...]:
        return tuple(_mark(item.get(key, "TCP" if key == "protocol" else None)) for key in keys)

    out = list(had)
    places: dict[Any, int] = {}
    for at, old in enumerate(out):
        if isinstance(old, dict):
            places.setdefault(mark(old), at)
    for item in wanted:
        if not isinstance(item, dict):
            continue
        at = places.setdefault(mark(item), len(out))
        if at == len(out):
            out.append(item)
        else:
            out[at] = apply_merge(out[at], item, kind, sub)
    return out
