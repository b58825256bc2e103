"""Read YAML from outside within the bounds of `moorage_kube.documents`.

Scalars are read as Kubernetes reads them (go-yaml in sigs.k8s.io/yaml). Timestamps and base-60 integers are not
supported: the time to read them grows with the square of their length.

https://pkg.go.dev/sigs.k8s.io/yaml
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from moorage_kube.documentbounds import BYTES_MAX, NESTING_MAX, check_length, text_of
from moorage_kube.errors import DocumentError

VALUES_MAX = 1_000_000  # of one text with its aliases expanded; an object has at most 1.5 MiB
ALIASED_MAX = 100_000  # of these, the values added by aliases: a few bytes must not cost as much as megabytes
TOO_DEEP = f"the YAML is nested more than {NESTING_MAX} levels deep"
DIRECTIVES_MAX = 100  # %TAG lines: libyaml compares each with all before it


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMBER_CHARACTERS_MAX = 4000  # below the limit of int(); its time grows with the square of the length
_NUMBER_STARTS = frozenset("+-.0123456789")


def parse_yaml(data: bytes | str, *, bytes_max: int = BYTES_MAX) -> Any:
    """Read one YAML document (or JSON, which is YAML) as JSON types; None if there is no document.

    The limits NESTING_MAX and VALUES_MAX apply to the document with its aliases expanded. Raises
    DocumentError, also for a second document.
    """
    documents = parse_yaml_documents(data, bytes_max=bytes_max)
    if len(documents) > 1:
        raise DocumentError(f"there are {len(documents)} YAML documents where one is expected")
    return documents[0] if documents else None


def parse_yaml_documents(data: bytes | str, *, bytes_max: int = BYTES_MAX) -> list[Any]:
    """Read all documents of a YAML text as JSON types.

    Keys are strings, numbers finite, and values are not shared.

    Raises DocumentError with the line.
    """
    text = text_of(data)
    check_length(text, bytes_max)
    documents: list[Any] = []
    building = _Building()
    aliased = False
    for event in _bounded_events(text, bytes_max):
        kind = type(event)
        if kind is yaml.ScalarEvent:
            building.add(event, _scalar(event))
        elif kind is yaml.SequenceStartEvent:
            building.begin(event, [])
        elif kind is yaml.MappingStartEvent:
            building.begin(event, {})
        elif kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
            building.end()
        elif kind is yaml.AliasEvent:
            aliased = True
            building.add(event, building.anchors[event.anchor or ""])
        elif kind is yaml.DocumentStartEvent:
            building = _Building()
        elif kind is yaml.DocumentEndEvent:
            documents.append(building.root)
    if aliased:  # copy shared values, so that a change in one place does not change another
        copied: list[Any] = msgspec.json.decode(msgspec.json.encode(documents))
        return copied
    return documents


def check_yaml(data: bytes | str, *, bytes_max: int = BYTES_MAX) -> None:
    """Raise DocumentError for a text that is not valid YAML or is beyond the bounds; builds nothing.

    A text that passes is safe for libyaml's composer: its recursion is bounded.
    """
    text = text_of(data)
    check_length(text, bytes_max)
    for _ in _bounded_events(text, bytes_max):
        pass


class NodeLoader(_Loader):  # type: ignore[misc]
    """A loader for callers that need nodes with their lines. It reads scalars as `plain_scalar` does.

    Only for a text that has passed `check_yaml`: libyaml's composer is recursive.
    """


_NUMBER_TAG = _TAG + "float"
NodeLoader.yaml_implicit_resolvers = {
    first: [
        (tag, form) for tag, form in resolvers if tag not in (_TAG + "int", _TAG + "float", _TAG + "timestamp")
    ]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
NodeLoader.add_implicit_resolver(
    _NUMBER_TAG, re.compile(rf"(?:{_INTEGER.pattern}|{_FLOAT.pattern})\Z"), list("+-.0123456789")
)
NodeLoader.add_constructor(_NUMBER_TAG, lambda loader, node: plain_scalar(loader.construct_scalar(node)))


def plain_scalar(text: str) -> Any:
    """Return the meaning of an unquoted scalar in Kubernetes: null, a truth value, a number, else the text itself.

    An integer beyond 64 bits is a float, and a number beyond a float is a text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS or len(text) > _NUMBER_CHARACTERS_MAX:
        return text
    if _INTEGER.fullmatch(text):
        value = _integer(text)
        if value is not None and -(1 << 63) <= value < 1 << 64:
            return value
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        return number if math.isfinite(number) else text
    if text.lstrip("+-").lower() in (".inf", ".nan"):
        raise DocumentError(f"{text} is not a JSON value")
    return text


def _integer(text: str) -> int | None:
    sign = -1 if text[0] == "-" else 1
    digits = text.lstrip("+-").replace("_", "")
    base = 10
    if digits[:2] in ("0b", "0x", "0o"):
        base, digits = {"b": 2, "x": 16, "o": 8}[digits[1]], digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base = 8
    try:
        return sign * int(digits, base)
    except ValueError:
        return None  # no digits but underscores


@dataclass(slots=True)
class _Open:
    """An open list or mapping. `values` and `characters` are the counts at its start."""

    anchor: str | None
    values: int
    characters: int
    levels: int = 1  # of itself and the deepest within


def _bounded_events(text: str, characters_max: int) -> Iterator[Any]:
    """Yield the events of libyaml's parser, which is not recursive; raises DocumentError beyond the limits."""
    if text.count("%TAG") > DIRECTIVES_MAX:
        raise DocumentError(f"the YAML has more than {DIRECTIVES_MAX} %TAG directives")
    values = aliased = characters = 0
    stack: list[_Open] = []
    anchors: dict[str, tuple[int, int, int] | None] = {}  # values, characters and levels; None: not closed yet
    event: Any
    try:
        for event in yaml.parse(text, Loader=_Loader):
            # count values, characters and levels; an anchor remembers the size of its value
            kind, levels = type(event), 0
            if kind is yaml.ScalarEvent:
                values += 1
                characters += len(event.value)
                if event.anchor is not None:
                    anchors[event.anchor] = (1, len(event.value), 0)
            elif kind is yaml.SequenceStartEvent or kind is yaml.MappingStartEvent:
                values += 1
                stack.append(_Open(event.anchor, values - 1, characters))
                if event.anchor is not None:
                    anchors[event.anchor] = None
            elif kind is yaml.SequenceEndEvent or kind is yaml.MappingEndEvent:
                closed = stack.pop()
                if closed.anchor is not None:
                    anchors[closed.anchor] = (
                        values - closed.values,
                        characters - closed.characters,
                        closed.levels,
                    )
                if stack:
                    stack[-1].levels = max(stack[-1].levels, closed.levels + 1)
            elif kind is yaml.AliasEvent:
                if event.anchor not in anchors:
                    raise _refused(event, f"the alias *{event.anchor} has no anchor")
                # an alias costs as much as its anchor: that is how a few bytes become gigabytes
                size = anchors[event.anchor]
                if size is None:
                    raise _refused(event, f"the anchor &{event.anchor} contains itself")
                values, characters, levels = values + size[0], characters + size[1], size[2]
                aliased += size[0]
                if aliased > ALIASED_MAX:
                    raise _refused(event, f"the YAML's aliases expand to more than {ALIASED_MAX:,} values")
                if stack:
                    stack[-1].levels = max(stack[-1].levels, levels + 1)
            elif kind is yaml.DocumentStartEvent:
                values += 1
                anchors = {}
            # check before the event is used, so that the reader never holds more than the bounds
            if len(stack) + levels > NESTING_MAX:
                raise _refused(event, TOO_DEEP)
            if values > VALUES_MAX:
                raise _refused(event, f"the YAML holds more than {VALUES_MAX:,} values")
            if characters > characters_max:
                raise _refused(event, f"the YAML is longer than {characters_max:,} bytes once aliases are put in")
            yield event
    except yaml.YAMLError as error:
        raise _of_yaml(error) from None
    except ValueError as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(" ".join(str(error).split())) from None


@dataclass(slots=True)
class _Frame:
    container: Any
    anchor: str | None
    key: str | None = None
    is_merge: bool = False
    merged: list[dict[str, Any]] = field(default_factory=list)
    event: Any = None


class _Building:
    """Builds one document from parser events."""

    __slots__ = ("_frames", "anchors", "root")

    def __init__(self) -> None:
        self.root: Any = None
        self.anchors: dict[str, Any] = {}
        self._frames: list[_Frame] = []

    def begin(self, event: Any, container: Any) -> None:
        usual = _TAG + ("map" if isinstance(container, dict) else "seq")
        if event.tag not in (None, "!", usual):
            raise _refused(event, f"the tag {event.tag} is not known")
        if self._wants_key():
            raise _refused(event, "a key must be a string, not a list or a mapping")
        self._frames.append(_Frame(container, event.anchor, event=event))

    def end(self) -> None:
        frame = self._frames.pop()
        for mapping in frame.merged:
            for key, value in mapping.items():
                frame.container.setdefault(key, value)
        if frame.anchor is not None:
            self.anchors[frame.anchor] = frame.container
        self._put(frame.event, frame.container)

    def add(self, event: Any, value: Any) -> None:
        """Add a scalar, or the value of an alias."""
        if event.anchor is not None and type(event) is yaml.ScalarEvent:
            self.anchors[event.anchor] = value
        if self._wants_key():
            frame = self._frames[-1]
            frame.is_merge = value == "<<" and type(event) is yaml.ScalarEvent and event.implicit[0]
            frame.key = value if type(value) is str else _key(event, value)
        else:
            self._put(event, value)

    def _wants_key(self) -> bool:
        if not self._frames:
            return False
        frame = self._frames[-1]
        return frame.key is None and type(frame.container) is dict

    def _put(self, event: Any, value: Any) -> None:
        if not self._frames:
            self.root = value
            return
        frame = self._frames[-1]
        if frame.key is None:
            frame.container.append(value)
            return
        if frame.is_merge:
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parts):
                raise _refused(event, "<< takes a mapping or a list of mappings")
            frame.merged += parts
        else:
            frame.container[frame.key] = value
        frame.key = None


def _key(event: Any, value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
    raise _refused(event, "a key must be a string, not null, a list or a mapping")


def _scalar(event: Any) -> Any:
    text: str = event.value
    tag = event.tag
    if tag is None or tag == "!":
        return plain_scalar(text) if event.implicit[0] and tag is None else text
    value: Any = text
    match tag.removeprefix(_TAG):
        case "str" | "timestamp":
            return text
        case "binary":
            try:
                return base64.b64decode("".join(text.split()), validate=True).decode()
            except (binascii.Error, ValueError):
                raise _refused(event, "!!binary must be text in base64") from None
        case "null" | "bool" | "int":
            value = plain_scalar(text)
        case "float":
            value = plain_scalar(text)
            if type(value) is int:
                return float(value)
        case _:
            raise _refused(event, f"the tag {tag} is not known")
    wanted = {"null": type(None), "bool": bool, "int": int, "float": float}[tag.removeprefix(_TAG)]
    if type(value) is not wanted:
        raise _refused(event, f"invalid !!{tag.removeprefix(_TAG)} {_short(text)}")
    return value


def _refused(event: Any, message: str) -> DocumentError:
    return DocumentError(message, line=_line_of(event.start_mark))


def _of_yaml(error: yaml.YAMLError) -> DocumentError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if error.problem == "exceeded maximum nesting depth":  # a limit of libyaml, in PyYAML from 6.0.4 on
            return DocumentError(TOO_DEEP, line=_line_of(mark))
        message = ", ".join(part for part in (error.context, error.problem) if part)
        return DocumentError(message, line=_line_of(mark))
    return DocumentError(" ".join(str(error).split()))


def _line_of(mark: Any) -> int | None:
    return None if mark is None else int(mark.line) + 1


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
