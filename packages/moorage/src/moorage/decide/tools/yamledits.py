"""Small changes to a YAML or JSON text that leave all else as it is: comments, order, quotes, line ends.

The places come from the positions of libyaml's nodes; the document is not serialized again. Nodes that cannot be
changed without touching other parts (aliases, merge keys) are left unchanged: there is no patch for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct

from moorage.decide.admission.fields import Path
from moorage_kube.yamldocuments import NodeLoader

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")  # a key or value that needs no quotes; numbers get some
_ALIAS = re.compile(r"[ ]*:[ ]+\*[^\s,\[\]{}]+")  # behind a key
_COMMENT = re.compile(r"#[^\n]*")
_MERGE = "tag:yaml.org,2002:merge"


class Add(Struct, frozen=True, kw_only=True):
    """Add missing keys to a mapping. The mapping is created if it is missing. Values are texts."""

    path: Path  # of the mapping
    values: Mapping[str, str]


class Remove(Struct, frozen=True, kw_only=True):
    """Remove keys of a mapping, with the comments after them."""

    path: Path  # of the mapping
    keys: frozenset[str]


Edit = Add | Remove


class Patch(Struct, frozen=True, order=True):
    """Characters `start` to `end` of the text, and their replacement."""

    start: int
    end: int
    text: str


def nodes_of(text: str) -> list[Any]:
    """The root node of each document. The text must have passed `check_yaml`."""
    loader = NodeLoader(text)
    nodes = []
    try:
        while loader.check_node():
            nodes.append(loader.get_node())
    finally:
        loader.dispose()
    return nodes


def patches_of(text: str, root: Any, edit: Edit) -> list[Patch] | None:
    """The patches for an edit below a root node. None if the edit would change other parts of the text."""
    if isinstance(edit, Add):
        return _added(text, root, edit)
    return _removed(text, root, edit)


def patched(text: str, patches: Sequence[Patch]) -> str:
    """The text after all patches. Patches must not overlap."""
    for patch in sorted(patches, reverse=True):
        text = text[: patch.start] + patch.text + text[patch.end :]
    return text


# --- adding


def _added(text: str, root: Any, edit: Add) -> list[Patch] | None:
    node, rest = root, list(edit.path)
    while rest:
        below = _child(node, rest[0])
        if below is None:
            break
        if below.is_alias or _is_marked(text, below.node):
            return None
        if _is_null(below.node):
            return _replaced_null(text, below, _nested(rest[1:], edit.values))
        node = below.node
        rest = rest[1:]
    if not isinstance(node, yaml.MappingNode) or any(not isinstance(step, str) for step in rest):
        return None
    if any(key.tag == _MERGE for key, _ in node.value):
        return None  # keys written next to it would hide those that it merges
    present = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    values = _nested(rest, {key: value for key, value in edit.values.items() if rest or key not in present})
    if not values:
        return []
    if node.flow_style:
        return _into_flow(text, node, values)
    return _into_block(text, node, values)


class _Child(Struct, frozen=True):
    key: Any
    node: Any
    is_alias: bool


def _child(node: Any, step: str | int) -> _Child | None:
    if isinstance(node, yaml.MappingNode) and isinstance(step, str):
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == step:
                return _Child(key, value, value.start_mark.index < key.end_mark.index)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        before = node.value[step - 1].end_mark.index if step else node.start_mark.index
        return _Child(None, item, item.start_mark.index < before)
    return None


def _is_marked(text: str, node: Any) -> bool:
    """Whether the node has an anchor or a tag. Other places may then share its value, or its type may differ."""
    return text[node.start_mark.index : node.start_mark.index + 1] in ("&", "!")


def _is_null(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _nested(path: Sequence[str | int], values: Mapping[str, str]) -> dict[str, Any]:
    nested: dict[str, Any] = dict(values)
    for step in reversed(path) if values else ():
        nested = {str(step): nested}
    return nested


def _replaced_null(text: str, child: _Child, values: Mapping[str, Any]) -> list[Patch] | None:
    start, end = child.node.start_mark.index, child.node.end_mark.index
    is_quoted = child.key is not None and child.key.style == '"'
    flow = _flow(values, is_quoted=is_quoted)
    is_tight = text[:start].endswith(":")
    return [Patch(start, end, f" {flow}" if is_tight else flow)]


def _into_flow(text: str, node: Any, values: Mapping[str, Any]) -> list[Patch] | None:
    end = node.end_mark.index - 1
    if text[end : end + 1] != "}":
        return None
    is_quoted = not node.value or node.value[0][0].style == '"'
    inner = _flow(values, is_quoted=is_quoted)[1:-1]
    if not node.value:
        return [Patch(end, end, inner)]
    last = _value_end(text, *node.value[-1])
    if last is None:
        return None
    if "," in _COMMENT.sub("", text[last:end]):
        return [Patch(end, end, inner)]
    return [Patch(last, last, f", {inner}")]


def _into_block(text: str, node: Any, values: Mapping[str, Any]) -> list[Patch] | None:
    end = _end(text, node)
    if not node.value or end is None:
        return None
    indent = node.value[0][0].start_mark.column
    first = text.find("\n")
    newline = "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"
    lines = _block(values, indent, newline)
    if end > 0 and text[end - 1] == "\n":  # behind a block scalar
        return [Patch(end, end, lines)]
    line_end = text.find("\n", end)
    if line_end < 0 and _has_block_text(node):
        # a line end behind it would become part of the text: new keys are put before the last key
        start = text.rfind("\n", 0, node.value[-1][0].start_mark.index) + 1
        is_first = bool(text[start : node.value[-1][0].start_mark.index].strip())
        return None if is_first else [Patch(start, start, lines)]
    if line_end < 0:
        return [Patch(len(text), len(text), newline + lines.removesuffix(newline))]
    return [Patch(line_end + 1, line_end + 1, lines)]


def _end(text: str, node: Any) -> int | None:
    """The end of the last character of a node.

    PyYAML's end mark of a block collection is the start of the next token.

    None if the node ends with an alias that cannot be located.
    """
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    if isinstance(node, yaml.MappingNode) and node.value:
        return _value_end(text, *node.value[-1])
    if isinstance(node, yaml.SequenceNode) and node.value:
        previous = node.value[-2].end_mark.index if len(node.value) > 1 else node.start_mark.index
        if node.value[-1].start_mark.index >= previous:
            return _end(text, node.value[-1])
    return None


def _has_block_text(node: Any) -> bool:
    """Whether the node ends with a block scalar."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")


def _value_end(text: str, key: Any, value: Any) -> int | None:
    if value.start_mark.index >= key.end_mark.index:
        return _end(text, value)
    alias = _ALIAS.match(text, key.end_mark.index)
    return alias.end() if alias else None


def _flow(values: Mapping[str, Any], *, is_quoted: bool) -> str:
    parts = []
    for key, value in values.items():
        held = _flow(value, is_quoted=is_quoted) if isinstance(value, Mapping) else _scalar(value, is_quoted)
        parts.append(f"{_scalar(key, is_quoted)}: {held}")
    return "{" + ", ".join(parts) + "}"


def _block(values: Mapping[str, Any], indent: int, newline: str) -> str:
    lines = ""
    for key, value in values.items():
        head = " " * indent + _scalar(key, False) + ":"
        if isinstance(value, Mapping):
            lines += head + newline + _block(value, indent + 2, newline)
        else:
            lines += f"{head} {_scalar(value, False)}{newline}"
    return lines


def _scalar(value: str, is_quoted: bool) -> str:
    if is_quoted or not (_PLAIN.fullmatch(value) or re.fullmatch(r"[0-9]+[A-Za-z]+", value)):
        return json.dumps(value)
    return value


# --- removing


def _removed(text: str, root: Any, edit: Remove) -> list[Patch] | None:
    node, key_before = root, None
    for step in edit.path:
        child = _child(node, step)
        if child is None or child.is_alias or _is_marked(text, child.node):
            return None
        node, key_before = child.node, child.key
    if not isinstance(node, yaml.MappingNode):
        return None
    going = [index for index, (key, _) in enumerate(node.value) if key.value in edit.keys]
    if not going:
        return None
    if any(_is_shared(*node.value[index]) or _is_marked(text, node.value[index][1]) for index in going):
        return None
    if len(going) == len(node.value):
        whole_end = _end(text, node)
        if key_before is None or whole_end is None:
            return None
        return [Patch(key_before.end_mark.index, whole_end, _after_key(text, key_before) + " {}")]
    if node.flow_style:
        return _without_flow_key(text, node, going[0]) if len(going) == 1 else None
    patches = []
    for index in going:
        key, value = node.value[index]
        start = text.rfind("\n", 0, key.start_mark.index) + 1
        if text[start : key.start_mark.index].strip():
            return None
        end = _end(text, value)
        if end is None:
            return None
        if not (end > 0 and text[end - 1] == "\n"):
            line_end = text.find("\n", end)
            end = len(text) if line_end < 0 else line_end + 1
        patches.append(Patch(start, end, ""))
    return patches


def _is_shared(key: Any, value: Any) -> bool:
    return bool(value.start_mark.index < key.end_mark.index)


def _after_key(text: str, key: Any) -> str:
    """The text between a key and its value, up to the colon."""
    end = key.end_mark.index
    return text[end : text.index(":", end) + 1]


def _without_flow_key(text: str, node: Any, index: int) -> list[Patch] | None:
    key, value = node.value[index]
    if index + 1 < len(node.value):
        return [Patch(key.start_mark.index, node.value[index + 1][0].start_mark.index, "")]
    start = _value_end(text, *node.value[index - 1])
    return None if start is None else [Patch(start, value.end_mark.index, "")]
