"""`when` of a step, a task or a CronWorkflow: a condition in govaluate's language, after tags were replaced.

Words without quotes are strings, numbers are floats, a quoted date is a number of seconds. Operators of the same
precedence are evaluated from left to right. https://github.com/Knetic/govaluate/blob/master/MANUAL.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

from moorage.decide.evaluation import STRING_CHARACTERS, TextError, current
from moorage_workflows.decide.workflows.text import moments, patterns
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.limits import DEPTH, TEXT_CHARACTERS
from moorage_workflows.decide.workflows.text.values import go_float


class _Kind(StrEnum):
    """The type of a token; the value is its word in messages."""

    START = "the start"
    PREFIX = "prefix"
    NUMBER = "number"
    BOOLEAN = "boolean"
    WORD = "word"
    STRING = "string"
    TIME = "date"
    OPEN = "("
    CLOSE = ")"
    COMPARATOR = "comparator"
    MODIFIER = "operator"
    LOGICAL = "logical operator"
    TERNARY = "ternary operator"
    SEPARATOR = "comma"


_VALUES = frozenset((_Kind.NUMBER, _Kind.BOOLEAN, _Kind.WORD, _Kind.OPEN))
_AFTER_VALUE = frozenset(
    (_Kind.MODIFIER, _Kind.COMPARATOR, _Kind.LOGICAL, _Kind.CLOSE, _Kind.TERNARY, _Kind.SEPARATOR)
)
_ANY_VALUE = _VALUES | {_Kind.PREFIX, _Kind.STRING, _Kind.TIME}
# tokens that may follow a token; neither a string nor a bare word after a prefix, no date after an operator
_FOLLOWS: dict[_Kind, frozenset[_Kind]] = {
    _Kind.START: _ANY_VALUE,
    _Kind.OPEN: _ANY_VALUE | {_Kind.CLOSE},
    _Kind.CLOSE: _AFTER_VALUE,
    _Kind.NUMBER: _AFTER_VALUE,
    _Kind.BOOLEAN: _AFTER_VALUE,
    _Kind.WORD: _AFTER_VALUE,
    _Kind.STRING: _AFTER_VALUE,
    _Kind.TIME: _AFTER_VALUE - {_Kind.TERNARY},
    _Kind.MODIFIER: _VALUES | {_Kind.PREFIX, _Kind.STRING},
    _Kind.COMPARATOR: _ANY_VALUE,
    _Kind.LOGICAL: _ANY_VALUE,
    _Kind.TERNARY: _ANY_VALUE,
    _Kind.SEPARATOR: _ANY_VALUE,
    _Kind.PREFIX: _VALUES - {_Kind.WORD},
}
_AT_END = frozenset((_Kind.CLOSE, _Kind.NUMBER, _Kind.BOOLEAN, _Kind.WORD, _Kind.STRING, _Kind.TIME))

_PREFIXES = frozenset(("-", "!", "~"))
_SIGNS: dict[str, tuple[_Kind, int]] = {
    ",": (_Kind.SEPARATOR, 0),
    "?": (_Kind.TERNARY, 1),
    ":": (_Kind.TERNARY, 1),
    "??": (_Kind.TERNARY, 1),
    "||": (_Kind.LOGICAL, 2),
    "&&": (_Kind.LOGICAL, 3),
    **dict.fromkeys(("==", "!=", ">", ">=", "<", "<=", "=~", "!~", "in"), (_Kind.COMPARATOR, 4)),
    **dict.fromkeys(("&", "|", "^"), (_Kind.MODIFIER, 5)),
    **dict.fromkeys(("<<", ">>"), (_Kind.MODIFIER, 6)),
    **dict.fromkeys(("+", "-"), (_Kind.MODIFIER, 7)),
    **dict.fromkeys(("*", "/", "%"), (_Kind.MODIFIER, 8)),
    "**": (_Kind.MODIFIER, 9),
}
_DATES = (
    moments.ANSIC,
    moments.UNIX_DATE,
    moments.RUBY_DATE,
    moments.KITCHEN,
    moments.RFC3339,
    moments.RFC3339_NANO,
    "2006-01-02",
    "2006-01-02 15:04",
    "2006-01-02 15:04:05",
    "2006-01-02 15:04:05-07:00",
    "2006-01-02T15Z0700",
    "2006-01-02T15:04Z0700",
    "2006-01-02T15:04:05Z0700",
    "2006-01-02T15:04:05.999999999Z0700",
)
_LIKE_A_DATE = re.compile(r"\d{4}-\d|\d{1,2}:\d\d[ap]m|[a-z]{3} [a-z]{3} ", re.IGNORECASE | re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Token(Struct, frozen=True):
    kind: _Kind
    value: Any
    position: int


class _Value(Struct, frozen=True):
    value: Any


class _Prefixed(Struct, frozen=True):
    sign: str
    node: _Node


class _Joined(Struct, frozen=True):
    sign: str
    left: _Node
    right: _Node


_Node: TypeAlias = _Value | _Prefixed | _Joined


def holds(text: str) -> bool:
    """Whether the condition is true; an empty one is.

    Raises TextError for texts that govaluate refuses: words with a hyphen or a dot outside quotes, a string
    against a number, an operator that touches the next one, a result that is neither true nor false.
    """
    if text == "":
        return True
    if len(text) > TEXT_CHARACTERS:
        raise SyntaxProblem(f"a when condition has {len(text):,} characters; the limit is {TEXT_CHARACTERS:,}")
    current().read(text)
    try:
        result = _evaluate(_Parser(_Lexer(text).tokens()).whole())
    except SyntaxProblem as exc:
        where = f", at character {exc.position + 1}"
        raise SyntaxProblem(
            f"invalid when condition {_shown(text)}{where}: {exc.message}", position=exc.position, hint=exc.hint
        ) from exc
    except TextError as exc:
        raise TextError(f"when condition {_shown(text)} fails: {exc.message}", hint=exc.hint) from exc
    if not isinstance(result, bool):
        raise TextError(
            f"when condition {_shown(text)} is {_text(result)!r}, neither true nor false",
            hint="compare it with a value, such as {{inputs.parameters.x}} == yes",
        )
    return result


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:117] + "...")


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def tokens(self) -> list[_Token]:
        tokens: list[_Token] = []
        kind = _Kind.START
        while True:
            while self.position < len(self.text) and self.text[self.position].isspace():
                self.position += 1
            if self.position == len(self.text):
                break
            start = self.position
            token = self.token(kind)
            if token.kind not in _FOLLOWS[kind]:
                after = f"after {kind.value}" if kind is not _Kind.START else "at the start"
                raise SyntaxProblem(
                    f"{token.kind.value} {self.text[start : self.position].strip()!r} is not expected {after}",
                    position=start,
                    hint="put values in quotes",
                )
            kind = token.kind
            tokens.append(token)
        if kind not in _AT_END:
            raise SyntaxProblem("it ends too early", position=len(self.text))
        return tokens

    def token(self, before: _Kind) -> _Token:
        start = self.position
        character = self.text[start]
        if character.isdigit() or character == ".":
            return _Token(_Kind.NUMBER, self.number(), start)
        if character == ",":
            self.position += 1
            return _Token(_Kind.SEPARATOR, ",", start)
        if character == "[":
            self.position += 1
            return _Token(_Kind.WORD, self.until("]", "a bracket"), start)
        if character.isalpha():
            return self.word(start)
        if character in "'\"":
            self.position += 1
            value = self.until("'\"", "a string")
            seconds = _seconds(value)
            return _Token(_Kind.STRING, value, start) if seconds is None else _Token(_Kind.TIME, seconds, start)
        if character in "()":
            self.position += 1
            return _Token(_Kind.OPEN if character == "(" else _Kind.CLOSE, character, start)
        sign = self.run(lambda character: not (character.isalnum() or character in "()[]'\""))
        if _Kind.PREFIX in _FOLLOWS[before] and sign in _PREFIXES:
            return _Token(_Kind.PREFIX, sign, start)
        if sign in _SIGNS and sign != ",":
            return _Token(_SIGNS[sign][0], sign, start)
        raise SyntaxProblem(
            f"{sign!r} is not an operator",
            position=start,
            hint="put values in quotes, and spaces between operators",
        )

    def run(self, belongs: Callable[[str], bool]) -> str:
        """Read characters while they belong to a token; a character after a backslash always belongs to it."""
        taken: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "\\":
                taken.append(self.escaped())
                continue
            if character.isspace() or not belongs(character):
                break
            taken.append(character)
            self.position += 1
        return "".join(taken)

    def escaped(self) -> str:
        if self.position + 1 >= len(self.text):
            raise SyntaxProblem("a backslash is the last character", position=self.position)
        self.position += 2
        return self.text[self.position - 1]

    def until(self, ends: str, what: str) -> str:
        """Read up to one of the `ends` characters and skip it. Either quote ends a string."""
        start = self.position - 1
        taken: list[str] = []
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "\\":
                taken.append(self.escaped())
                continue
            self.position += 1
            if character in ends:
                return "".join(taken)
            taken.append(character)
        raise SyntaxProblem(f"{what} is not closed: {' or '.join(ends)} is missing", position=start)

    def number(self) -> float:
        start = self.position
        if self.text.startswith("0x", start):
            self.position += 2
            digits = self.run(lambda character: character in "0123456789abcdefABCDEF")
            if not digits or len(digits) > 16:
                raise SyntaxProblem(f"invalid number {self.text[start : self.position]!r}", position=start)
            return float(int(digits, 16))
        digits = self.run(lambda character: character.isdigit() or character == ".")
        try:
            if not digits.isascii() or not digits.strip("."):
                raise ValueError
            return float(digits)
        except ValueError as exc:
            raise SyntaxProblem(
                f"invalid number {digits!r}", position=start, hint="put versions in quotes"
            ) from exc

    def word(self, start: int) -> _Token:
        word = self.run(lambda character: character.isalnum() or character in "_.")
        if word in ("true", "false"):
            return _Token(_Kind.BOOLEAN, word == "true", start)
        if word in ("in", "IN"):
            return _Token(_Kind.COMPARATOR, "in", start)
        if "." in word[1:]:
            raise SyntaxProblem(f"{word!r} has a dot", position=start, hint=f'put it in quotes: "{word}"')
        return _Token(_Kind.WORD, word, start)


def _seconds(text: str) -> float | None:
    """Return the seconds since 1970 of a date, in UTC unless it has a zone; None if the text is not a date."""
    if not _LIKE_A_DATE.match(text) or len(text) > 60:
        return None
    for layout in _DATES:
        try:
            moment = moments.parse_moment(text, layout)
        except TextError:
            continue
        return float((moment - _EPOCH).total_seconds() // 1)
    return None


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.index = 0
        self.depth = 0

    def whole(self) -> _Node:
        node = self.joined(0)
        if self.index < len(self.tokens):
            token = self.tokens[self.index]
            raise SyntaxProblem(f"{token.value!r} is not expected", position=token.position)
        return node

    def joined(self, level: int) -> _Node:
        """The operands that operators of this precedence and of higher ones join."""
        left = self.single()
        while self.index < len(self.tokens):
            token = self.tokens[self.index]
            sign = _SIGNS.get(token.value) if isinstance(token.value, str) else None
            if token.kind in _VALUES or sign is None or sign[0] is not token.kind or sign[1] < level:
                break
            self.index += 1
            left = _Joined(token.value, left, self.joined(sign[1] + 1))
        return left

    def single(self) -> _Node:
        token = self.tokens[self.index]
        self.index += 1
        if token.kind is _Kind.PREFIX:
            return _Prefixed(token.value, self.single())
        if token.kind is not _Kind.OPEN:
            return _Value(token.value)
        self.depth += 1
        if self.depth > DEPTH // 2:
            raise SyntaxProblem(f"it is nested more than {DEPTH // 2} deep", position=token.position)
        if self.tokens[self.index].kind is _Kind.CLOSE:
            raise SyntaxProblem("the brackets are empty", position=token.position)
        node = self.joined(0)
        if self.index >= len(self.tokens) or self.tokens[self.index].kind is not _Kind.CLOSE:
            raise SyntaxProblem("a bracket is not closed: ) is missing", position=token.position)
        self.index += 1
        self.depth -= 1
        return node


def _evaluate(node: _Node) -> Any:
    row: list[_Joined] = []
    while isinstance(node, _Joined):
        row.append(node)
        node = node.left
    value = _prefixed(node.sign, _evaluate(node.node)) if isinstance(node, _Prefixed) else node.value
    for joined in reversed(row):
        value = _join(joined.sign, value, joined.right)
    return value


def _prefixed(sign: str, value: Any) -> Any:
    if sign == "!":
        if not isinstance(value, bool):
            raise TextError(f"!{_text(value)}: the value is neither true nor false")
        return not value
    if not isinstance(value, float):
        raise TextError(f"{sign}{_text(value)}: the value is not a number")
    return -value if sign == "-" else float(~_whole(value, 63))


def _join(sign: str, left: Any, node: _Node) -> Any:
    """Join a value with the right side, which is not evaluated where the left decides."""
    match sign:
        case "&&" if left is False:
            return False
        case "||" if left is True:
            return True
        case "??" | ":":
            return _evaluate(node) if left is None else left
        case "?":
            if not isinstance(left, bool):
                raise TextError(f"{_text(left)!r} ?: the value is neither true nor false")
            return _evaluate(node) if left else None
    right = _evaluate(node)
    if sign in ("&&", "||"):
        for side in (left, right):
            if not isinstance(side, bool):
                raise TextError(f"{sign}: {_text(side)!r} is neither true nor false")
        return right
    if sign in _COMPARATORS:
        return _COMPARATORS[sign](left, right)
    if sign == ",":
        return (*left, right) if isinstance(left, tuple) else (left, right)
    if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
        text = _text(left) + _text(right)
        if len(text) > STRING_CHARACTERS:
            raise TextError(f"+ makes a string of {len(text):,} characters; the limit is {STRING_CHARACTERS:,}")
        return text
    for side in (left, right):
        if not isinstance(side, float):
            raise TextError(
                f"{sign}: {_text(side)!r} is not a number",
                hint='put words with hyphens or slashes in quotes: "a-b"',
            )
    return _MODIFIERS[sign](left, right)


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if isinstance(left, float) and isinstance(right, float):
            return compare(left, right)
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        raise TextError(
            f"{_text(left)!r} and {_text(right)!r} have no order", hint="compare two numbers or two strings"
        )

    return ordered


def _found(left: Any, right: Any) -> bool:
    for side in (left, right):
        if not isinstance(side, str):
            raise TextError(f"=~: {_text(side)!r} is not a string", hint="put it in quotes")
    return patterns.matches(right, left)


def _is_in(left: Any, right: Any) -> bool:
    if not isinstance(right, tuple):
        raise TextError(f"in: {_text(right)!r} is not a list", hint="write two values or more: x in ('a', 'b')")
    return any(_same(left, element) for element in right)


_COMPARATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": _same,
    "!=": lambda left, right: not _same(left, right),
    "<": _ordered(lambda left, right: bool(left < right)),
    "<=": _ordered(lambda left, right: bool(left <= right)),
    ">": _ordered(lambda left, right: bool(left > right)),
    ">=": _ordered(lambda left, right: bool(left >= right)),
    "=~": _found,
    "!~": lambda left, right: not _found(left, right),
    "in": _is_in,
}


def _whole(value: float, bits: int) -> int:
    """Cut a float to a whole number. Raises TextError if it does not fit into `bits` bits."""
    if not math.isfinite(value) or abs(value) >= 2.0**bits:
        raise TextError(f"{_text(value)} is too large for a bit operator; the limit is 2^{bits}")
    return int(value)


def _power(left: float, right: float) -> float:
    try:
        return math.pow(left, right)
    except OverflowError:
        return -math.inf if left < 0 and right % 2 else math.inf
    except ValueError:
        return math.inf if left == 0 else math.nan


def _quotient(left: float, right: float) -> float:
    if right == 0:
        return (
            math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
        )
    return left / right


def _modulus(left: float, right: float) -> float:
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


def _shifted_left(left: float, right: float) -> float:
    count = _whole(right, 63) if right >= 0 else 64
    return float((_whole(left, 63) % 2**64 << min(count, 64)) % 2**64)


def _shifted_right(left: float, right: float) -> float:
    count = _whole(right, 63) if right >= 0 else 64
    return float(_whole(left, 63) % 2**64 >> min(count, 64))


_MODIFIERS: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _quotient,
    "%": _modulus,
    "**": _power,
    "&": lambda left, right: float(_whole(left, 63) & _whole(right, 63)),
    "|": lambda left, right: float(_whole(left, 63) | _whole(right, 63)),
    "^": lambda left, right: float(_whole(left, 63) ^ _whole(right, 63)),
    "<<": _shifted_left,
    ">>": _shifted_right,
}


def _text(value: Any) -> str:
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return go_float(value)
        case tuple():
            return "[" + " ".join(_text(element) for element in value) + "]"
    return str(value)
