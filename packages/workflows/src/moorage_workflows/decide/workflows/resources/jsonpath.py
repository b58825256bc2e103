"""JSONPath in the dialect of `kubectl`: literal text, and paths in braces.

`{.metadata.name}`, `{.items[*].status.phase}`, `{.spec.ports[?(@.name=="web")].port}`, `{range .items[*]}…{end}`.
A missing field gives nothing; an index outside its list is an error, as in kubectl.
https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from moorage.decide.evaluation import TextError

CHARACTERS_MAX = 16 * 1024
NESTING_MAX = 20  # range in range, filter in filter


class JsonPathError(TextError):
    """A path is invalid, or does not fit the object."""


class Text(Struct, frozen=True):
    """Text outside of braces or in quotes."""

    text: str


class Field(Struct, frozen=True):
    """A field: `.name`, `['name']`; "*" selects every value."""

    name: str


class Part(Struct, frozen=True):
    """A list index or slice: `[0]`, `[-1]`, `[1:3]`, `[*]`."""

    index: int | None = None
    start: int | None = None
    stop: int | None = None
    step: int = 1


class Union(Struct, frozen=True):
    """`[0,2]`, `['a','b']`."""

    steps: tuple[Field | Part, ...]


class Below(Struct, frozen=True):
    """`..`: this value and every value below it."""


class Filter(Struct, frozen=True):
    """`[?(@.a == "b")]`; without an operator: `left` finds a value."""

    left: Operand
    operator: str = ""
    right: Operand | None = None


Step: TypeAlias = Field | Part | Union | Below | Filter


class Path(Struct, frozen=True):
    """`from_root`: `$`; else from the place of the expression."""

    steps: tuple[Step, ...]
    from_root: bool = False


class Value(Struct, frozen=True):
    """A string, number or boolean in a filter."""

    value: str | float | bool


Operand: TypeAlias = Path | Value


class Range(Struct, frozen=True):
    """`{range PATH}…{end}`."""

    path: Path
    body: tuple[Node, ...]


Node: TypeAlias = Text | Path | Range

_NAME = re.compile(r"(?:\\.|[^\s.\[\]{}()'\"\\,?@$=<>!|*])+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_SLICE = re.compile(r"\s*(-?\d+)?\s*(:)?\s*(-?\d+)?\s*(:)?\s*(-?\d+)?\s*", re.ASCII)
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def parse(text: str) -> tuple[Node, ...]:
    """Parse a JSONPath. Raises JsonPathError with the position."""
    if len(text) > CHARACTERS_MAX:
        raise JsonPathError(f"jsonPath has {len(text)} characters, and at most {CHARACTERS_MAX} are allowed")
    return _Reader(text).nodes(0, is_inside=False)


def render(nodes: Sequence[Node], obj: Any) -> str:
    """The object as kubectl prints it with this template. Raises JsonPathError."""
    return "".join(_rendered(nodes, obj, obj))


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def nodes(self, depth: int, *, is_inside: bool) -> tuple[Node, ...]:
        """Parse nodes up to the end of the text or up to `{end}`."""
        if depth > NESTING_MAX:
            raise self._error(f"has more than {NESTING_MAX} ranges within each other")
        nodes: list[Node] = []
        while self._at < len(self._text):
            brace = self._text.find("{", self._at)
            if brace < 0:
                brace = len(self._text)
            if brace > self._at:
                nodes.append(Text(self._text[self._at : brace]))
                self._at = brace
                continue
            self._at += 1
            self._blanks()
            if self._word("end"):
                self._take("}")
                if not is_inside:
                    raise self._error("has an end without a range")
                return tuple(nodes)
            if self._word("range"):
                self._blanks()
                path = self._path()
                self._blanks()
                self._take("}")
                nodes.append(Range(path, self.nodes(depth + 1, is_inside=True)))
                continue
            while True:
                self._blanks()
                if self._skip("}"):
                    break
                quote = self._peek()
                nodes.append(Text(self._quoted()) if quote in ("'", '"') else self._path())
        if is_inside:
            raise self._error("has a range without an end")
        return tuple(nodes)

    def _path(self, depth: int = 0) -> Path:
        from_root, begin = False, self._at
        if self._skip("$"):
            from_root = True
        else:
            self._skip("@")
        steps: list[Step] = []
        while True:
            if self._text.startswith("..", self._at):
                self._at += 2
                steps.append(Below())
                if self._peek() != "[":
                    steps.append(Field(self._name()))
            elif self._skip("."):
                if self._peek() not in ("[", "", "}", ")", " "):  # {.} and {.[0]} are paths as well
                    steps.append(Field(self._name()))
            elif self._skip("["):
                steps.append(self._bracket(depth))
            elif self._at == begin:
                steps.append(Field(self._name()))  # {metadata.name}
            else:
                return Path(tuple(steps), from_root)

    def _name(self) -> str:
        if self._skip("*"):
            return "*"
        matched = _NAME.match(self._text, self._at)
        if matched is None:
            raise self._error(f"has {self._peek() or 'its end'!r} where a field's name is to be")
        self._at = matched.end()
        return re.sub(r"\\(.)", r"\1", matched[0])

    def _bracket(self, depth: int) -> Step:
        self._blanks()
        if self._text.startswith("?(", self._at):
            if depth > NESTING_MAX:
                raise self._error(f"has more than {NESTING_MAX} filters within each other")
            self._at += 2
            made = self._filter(depth + 1)
            self._take(")")
            self._blanks()
            self._take("]")
            return made
        steps = [self._part()]
        self._blanks()
        while self._skip(","):
            self._blanks()
            steps.append(self._part())
            self._blanks()
        self._take("]")
        return steps[0] if len(steps) == 1 else Union(tuple(steps))

    def _part(self) -> Field | Part:
        if self._peek() in ("'", '"'):
            return Field(self._quoted())
        if self._skip("*"):
            return Part()
        matched = _SLICE.match(self._text, self._at)
        if matched is not None and matched[0].strip():
            self._at = matched.end()
            first, colon, second, _, step = matched.groups()
            if not colon:
                return Part(index=int(first))
            if step is not None and int(step) <= 0:
                raise self._error("has a slice with a step that is not positive")
            return Part(start=_whole(first), stop=_whole(second), step=_whole(step) or 1)
        return Field(self._name())

    def _filter(self, depth: int) -> Filter:
        self._blanks()
        left = self._operand(depth)
        matched = _OPERATOR.match(self._text, self._at)
        if matched is None:
            self._blanks()
            return Filter(left)
        self._at = matched.end()
        right = self._operand(depth)
        self._blanks()
        return Filter(left, matched[1], right)

    def _operand(self, depth: int) -> Operand:
        if self._peek() in ("'", '"'):
            return Value(self._quoted())
        if matched := _NUMBER.match(self._text, self._at):
            self._at = matched.end()
            return Value(float(matched[0]))
        for word, value in (("true", True), ("false", False)):
            if self._word(word):
                return Value(value)
        if self._peek() not in ("@", "$", "."):
            raise self._error(f"has {self._peek() or 'its end'!r} in a filter: use @.field, a string or a number")
        return self._path(depth)

    def _quoted(self) -> str:
        quote = self._text[self._at]
        made: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            if char == quote:
                return "".join(made)
            if char == "\\" and self._at < len(self._text):
                char = self._text[self._at]
                self._at += 1
                char = _ESCAPES.get(char, char)
            made.append(char)
        raise self._error(f"has a string without its closing {quote}")

    def _word(self, word: str) -> bool:
        end = self._at + len(word)
        if not self._text.startswith(word, self._at) or self._text[end : end + 1].isalnum():
            return False
        self._at = end
        return True

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _take(self, char: str) -> None:
        self._blanks()
        if not self._skip(char):
            raise self._error(f"has {self._peek() or 'its end'!r} where {char!r} is to be")

    def _blanks(self) -> None:
        while self._peek().isspace():
            self._at += 1

    def _error(self, what: str) -> JsonPathError:
        shown = self._text if len(self._text) <= 80 else self._text[:80] + "…"
        return JsonPathError(f"jsonPath {shown!r} {what} (character {min(self._at, len(self._text)) + 1})")


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _rendered(nodes: Sequence[Node], here: Any, root: Any) -> Iterator[str]:
    for node in nodes:
        match node:
            case Text():
                yield node.text
            case Path():
                yield " ".join(_shown(value) for value in _found(node, here, root))
            case Range():
                for value in _found(node.path, here, root):
                    yield from _rendered(node.body, value, root)
            case _:
                assert_never(node)


def _found(path: Path, here: Any, root: Any) -> list[Any]:
    values = [root if path.from_root else here]
    for step in path.steps:
        values = [after for value in values for after in _after(step, value, root)]
    return values


def _after(step: Step, value: Any, root: Any) -> Iterator[Any]:
    match step:
        case Field():
            if isinstance(value, Mapping):
                if step.name == "*":
                    yield from value.values()
                elif step.name in value:
                    yield value[step.name]
            elif isinstance(value, list) and step.name == "*":
                yield from value
        case Part():
            yield from _picked(step, value)
        case Union():
            for each in step.steps:
                yield from _after(each, value, root)
        case Below():
            yield from _all_below(value)
        case Filter():
            rows = value if isinstance(value, list) else list(value.values()) if isinstance(value, Mapping) else []
            yield from (row for row in rows if _holds(step, row, root))
        case _:
            assert_never(step)


def _picked(step: Part, value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        if value is not None and step.index is not None:
            raise JsonPathError(
                f"jsonPath has the index {step.index} for a value that is not a list: {_shown(value)[:80]}"
            )
        if isinstance(value, Mapping) and step == Part():
            yield from value.values()
        return
    if step.index is None:
        yield from value[step.start : step.stop : step.step]
        return
    if not -len(value) <= step.index < len(value):
        raise JsonPathError(f"jsonPath has the index {step.index} of a list with {len(value)} entries")
    yield value[step.index]


def _all_below(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        following = waiting.pop()
        yield following
        if isinstance(following, Mapping):
            waiting += reversed(list(following.values()))
        elif isinstance(following, list):
            waiting += reversed(following)


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def _holds(step: Filter, row: Any, root: Any) -> bool:
    left = _operands(step.left, row, root)
    if not step.operator:
        return bool(left)
    assert step.right is not None
    right = _operands(step.right, row, root)
    if len(left) != 1 or len(right) != 1:
        return False
    first, second = left[0], right[0]
    is_alike = type(first) is type(second) or (_is_number(first) and _is_number(second))
    if not is_alike:
        return step.operator == "!="
    if step.operator not in ("==", "!=") and not (isinstance(first, str) or _is_number(first)):
        return False
    return _COMPARED[step.operator](first, second)


def _operands(operand: Operand, row: Any, root: Any) -> list[Any]:
    return [operand.value] if isinstance(operand, Value) else _found(operand, row, root)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(int(value)) if value.is_integer() else format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
