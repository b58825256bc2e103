"""JSONPath in the dialect of Argo's `jsonpath` function: `$.a[0]`, `['b']`, `[1:3]`, `[*]`, `..`, `[?(@.x > 1)]`.

A path of keys and indexes gives a value, other paths give a list. An index after a list of results selects from
that list. Any other step applies to each result; results that do not fit the step are left out.
https://github.com/evilmonkeyinc/jsonpath
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from moorage.decide.evaluation import Budget, TextError
from moorage_workflows.decide.workflows.text import patterns
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.limits import DEPTH, TEXT_CHARACTERS
from moorage_workflows.decide.workflows.text.values import (
    add,
    divide,
    equal,
    is_list,
    is_map,
    is_number,
    less,
    multiply,
    remainder,
    shown,
    subtract,
)


class Key(Struct, frozen=True):
    """`.name`, `['name']`."""

    name: str


class Index(Struct, frozen=True):
    """`[0]`, `[-1]`."""

    index: int


class Range(Struct, frozen=True):
    """`[start:stop:step]`."""

    start: int | None
    stop: int | None
    step: int


class Union(Struct, frozen=True):
    """`[0,2]`, `['a','b']`."""

    steps: tuple[Key | Index, ...]


class Wildcard(Struct, frozen=True):
    """`*`, `[*]`."""


class Recursive(Struct, frozen=True):
    """`..`: apply the rest of the path to this value and to every value below it."""


class Length(Struct, frozen=True):
    """`.length`."""


class Filter(Struct, frozen=True):
    """`[?(condition)]`."""

    condition: Term


class Script(Struct, frozen=True):
    """`[(expression)]`: an index or key computed by an expression."""

    expression: Term


Step: TypeAlias = Key | Index | Range | Union | Wildcard | Recursive | Length | Filter | Script


class Constant(Struct, frozen=True):
    """A constant in a filter."""

    value: Any


class Path(Struct, frozen=True):
    """`@.a` or `$.a` in a filter. `is_root`: it starts with `$`."""

    is_root: bool
    steps: tuple[Step, ...]


class Operation(Struct, frozen=True):
    """An operator and its operands: one term for `!`, else two."""

    sign: str
    terms: tuple[Term, ...]


Term: TypeAlias = Constant | Path | Operation

_PRECEDENCE = {"||": 1, "&&": 2, "==": 3, "!=": 3, "=~": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3}
_PRECEDENCE |= {"+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_SIGN = re.compile(r"\|\||&&|==|!=|=~|<=|>=|[<>+\-*/%]|in(?!\w)")
_NAME = re.compile(r"[^\s.\[\]()'\",?@$&|=!<>+*/%:]+")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_RANGE = re.compile(r"\s*+(-?[0-9]{1,18})?+\s*+:\s*+(-?[0-9]{1,18})?+\s*+(?::\s*+(-?[0-9]{1,18})?+\s*+)?+\]")
_WORD = re.compile(r"(?:true|false|null|nil)(?!\w)")
_INTEGER = re.compile(r"\s*(-?[0-9]{1,18})\s*")


def query(path: str, document: Any, budget: Budget) -> Any:
    """Return the value that the path selects in a JSON document, or a list of several values.

    Raises SyntaxProblem for a path that cannot be read, TextError where a key or index does not exist.
    """
    budget.read(path)
    return _apply(parse_path(path), document, document, budget, 0)


@lru_cache(maxsize=512)
def parse_path(text: str) -> tuple[Step, ...]:
    """Parse a path. Raises SyntaxProblem with the position."""
    if len(text) > TEXT_CHARACTERS:
        raise SyntaxProblem(f"a JSONPath has {len(text):,} characters; the limit is {TEXT_CHARACTERS:,}")
    parser = _Parser(text)
    parser.spaces()
    if parser.peek() == "$":
        parser.position += 1
    elif parser.peek() not in (".", "["):
        raise parser.wrong("it does not start with $")
    steps = parser.steps()
    parser.spaces()
    if parser.position < len(text):
        raise parser.wrong(f"{parser.peek()!r} is not expected")
    return steps


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0

    def peek(self, length: int = 1) -> str:
        return self.text[self.position : self.position + length]

    def spaces(self) -> None:
        while self.peek().isspace():
            self.position += 1

    def wrong(self, why: str) -> SyntaxProblem:
        shown_text = self.text if len(self.text) <= 120 else self.text[:117] + "..."
        return SyntaxProblem(
            f"invalid JSONPath {shown_text!r}, at character {self.position + 1}: {why}", position=self.position
        )

    def expect(self, text: str) -> None:
        self.spaces()
        if not self.text.startswith(text, self.position):
            raise self.wrong(f"{text!r} is missing")
        self.position += len(text)

    def steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        while True:
            if self.peek(2) == "..":
                self.position += 2
                steps.append(Recursive())
                if self.peek() != "[":
                    steps.append(self.name())
            elif self.peek() == ".":
                self.position += 1
                steps.append(self.name())
            elif self.peek() == "[":
                self.position += 1
                steps.append(self.subscript())
            else:
                return tuple(steps)

    def name(self) -> Step:
        if self.peek() == "*":
            self.position += 1
            return Wildcard()
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.wrong("a key is missing")
        if self.depth and re.fullmatch(r"length-[0-9]+", match[0]):
            self.position += len("length")  # a subtraction, not a key with a hyphen
            return Length()
        self.position = match.end()
        return Length() if match[0] == "length" else Key(match[0])

    def subscript(self) -> Step:
        self.spaces()
        if self.peek() == "*":
            self.position += 1
            self.expect("]")
            return Wildcard()
        if self.peek() == "?":
            self.position += 1
            self.spaces()
            condition = self.term(0)
            self.expect("]")
            return Filter(condition)
        if self.peek() == "(":
            expression = self.term(0)
            self.expect("]")
            return Script(expression)
        if match := _RANGE.match(self.text, self.position):
            self.position = match.end()
            start, stop, step = (int(part) if part else None for part in match.groups())
            if step == 0:
                raise self.wrong("the step of a range is 0")
            return Range(start, stop, 1 if step is None else step)
        steps = [self.element()]
        self.spaces()
        while self.peek() == ",":
            self.position += 1
            steps.append(self.element())
            self.spaces()
        self.expect("]")
        return steps[0] if len(steps) == 1 else Union(tuple(steps))

    def element(self) -> Key | Index:
        self.spaces()
        if self.peek() in ("'", '"'):
            return Key(self.string())
        if match := _INTEGER.match(self.text, self.position):
            self.position = match.end()
            return Index(int(match[1]))
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self.wrong("a key or an index is missing")
        self.position = match.end()
        return Key(match[0])

    def string(self) -> str:
        quote = self.peek()
        self.position += 1
        written: list[str] = []
        while (character := self.peek()) != quote:
            if not character:
                raise self.wrong(f"a string is not closed: {quote} is missing")
            if character == "\\":
                self.position += 1
                character = self.peek()
                character = {"n": "\n", "t": "\t", "r": "\r"}.get(character, character)
            written.append(character)
            self.position += 1
        self.position += 1
        return "".join(written)

    def term(self, precedence: int) -> Term:
        self.depth += 1
        if self.depth > DEPTH:
            raise self.wrong(f"it is nested more than {DEPTH} deep")
        left = self.primary()
        rows = 0
        while True:
            self.spaces()
            match = _SIGN.match(self.text, self.position)
            if match is None or _PRECEDENCE[match[0]] <= precedence:
                break
            rows += 1
            if rows > DEPTH:
                raise self.wrong(f"it joins more than {DEPTH} terms")
            self.position = match.end()
            left = Operation(match[0], (left, self.term(_PRECEDENCE[match[0]])))
        self.depth -= 1
        return left

    def primary(self) -> Term:
        self.spaces()
        character = self.peek()
        if character == "!":
            self.position += 1
            self.depth += 1
            if self.depth > DEPTH:
                raise self.wrong(f"it is nested more than {DEPTH} deep")
            inner = self.primary()
            self.depth -= 1
            return Operation("!", (inner,))
        if character == "(":
            self.position += 1
            term = self.term(0)
            self.expect(")")
            return term
        if character in ("@", "$"):
            self.position += 1
            return Path(character == "$", self.steps())
        if character in ("'", '"'):
            return Constant(self.string())
        if character == "/":
            end = self.text.find("/", self.position + 1)
            if end < 0:
                raise self.wrong("a regular expression is not closed: / is missing")
            pattern = self.text[self.position + 1 : end]
            self.position = end + 1
            return Constant(pattern)
        if character == "[":
            return self.listed()
        if match := _NUMBER.match(self.text, self.position):
            self.position = match.end()
            return Constant(float(match[0]))
        if match := _WORD.match(self.text, self.position):
            self.position = match.end()
            return Constant({"true": True, "false": False}.get(match[0]))
        raise self.wrong("a value is missing")

    def listed(self) -> Term:
        self.position += 1
        elements: list[Any] = []
        self.spaces()
        while self.peek() != "]":
            if elements:
                self.expect(",")
            element = self.primary()
            if not isinstance(element, Constant):
                raise self.wrong("a list in a filter may have constants alone")
            elements.append(element.value)
            self.spaces()
        self.position += 1
        return Constant(elements)


def _apply(steps: Sequence[Step], current: Any, root: Any, budget: Budget, depth: int) -> Any:
    # the budget and the depth limit any path
    budget.spend()
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    if not steps:
        return current
    # one value: apply the rest of the path to it
    step, rest = steps[0], steps[1:]
    match step:
        case Key() | Index() | Length():
            return _apply(rest, _pick(step, current), root, budget, depth + 1)
        case Script(expression):
            key = _evaluate(expression, current, root, budget, depth)
            if is_number(key) and math.isfinite(key):
                return _apply(rest, _pick(Index(int(key)), current), root, budget, depth + 1)
            if isinstance(key, str):
                return _apply(rest, _pick(Key(key), current), root, budget, depth + 1)
            raise TextError(f"jsonpath: {shown(key)} is neither an index nor a key")
        # several values: apply it to each
        case Wildcard():
            return _each(_elements(current, "*"), rest, root, budget, depth)
        case Range(start, stop, span):
            if not is_list(current):
                raise TextError(f"jsonpath: {shown(current)} is not a list, so it has no range")
            elements = current[slice(start, stop)]
            return _each(elements[::span] if span > 0 else elements[::-1][::-span], rest, root, budget, depth)
        case Union(parts):
            picked = [_pick(part, current) for part in parts if _has(part, current)]
            return _each(picked, rest, root, budget, depth)
        case Filter(condition):
            kept = [
                element
                for element in _elements(current, "?()")
                if _is_true(_evaluated(condition, element, root, budget, depth))
            ]
            return _each(kept, rest, root, budget, depth)
        case Recursive():
            results: list[Any] = []
            _below(current, rest, root, budget, depth, results)
            return results
        case _:
            assert_never(step)


def _each(elements: Sequence[Any], rest: Sequence[Step], root: Any, budget: Budget, depth: int) -> Any:
    """Apply the rest of the path to each element; elements that do not fit are left out."""
    budget.items(len(elements))
    if not rest:
        return list(elements)
    if isinstance(rest[0], Index):
        return _apply(rest, list(elements), root, budget, depth + 1)
    results: list[Any] = []
    for element in elements:
        try:
            result = _apply(rest, element, root, budget, depth + 1)
        except _Missing:
            continue
        if result is not None:
            results.append(result)
    return results


class _Missing(TextError):
    """A key or index does not exist."""


def _pick(step: Key | Index | Length, current: Any) -> Any:
    match step:
        case Key(name):
            if is_map(current) and name in current:
                return current[name]
            raise _Missing(f"jsonpath: key {name!r} does not exist in {_kind(current)}")
        case Length():
            if is_map(current) and "length" in current:
                return current["length"]
            if is_map(current) or is_list(current) or isinstance(current, str):
                return float(len(current))
            raise _Missing(f"jsonpath: {_kind(current)} has no length")
        case Index(index):
            if is_list(current) and -len(current) <= index < len(current):
                return current[index]
            raise _Missing(f"jsonpath: index {index} does not exist in {_kind(current)}")
        case _:
            assert_never(step)


def _has(step: Key | Index, current: Any) -> bool:
    if isinstance(step, Key):
        return is_map(current) and step.name in current
    return is_list(current) and -len(current) <= step.index < len(current)


def _kind(value: Any) -> str:
    if is_map(value):
        return f"a map with {len(value)} keys"
    return f"a list of {len(value)} items" if is_list(value) else shown(value)


def _elements(current: Any, sign: str) -> Sequence[Any]:
    if is_map(current):
        return [current[key] for key in sorted(current, key=str)]
    if is_list(current):
        return current
    raise _Missing(f"jsonpath: {shown(current)} is neither list nor map, so {sign} selects nothing in it")


def _below(current: Any, rest: Sequence[Step], root: Any, budget: Budget, depth: int, results: list[Any]) -> None:
    budget.spend()
    if depth > DEPTH:
        raise TextError(f"a value is nested more than {DEPTH} deep")
    if current is None:
        return
    try:
        result = _apply(rest, current, root, budget, depth + 1)
    except _Missing:
        result = None
    if rest and is_list(result):
        results.extend(result)
    elif result is not None:
        results.append(result)
    budget.items(len(results))
    if is_map(current) or is_list(current):
        for element in _elements(current, ".."):
            _below(element, rest, root, budget, depth + 1, results)


def _evaluated(term: Term, current: Any, root: Any, budget: Budget, depth: int) -> Any:
    """Return the value of a condition; None if the condition does not fit the element."""
    try:
        return _evaluate(term, current, root, budget, depth)
    except (SyntaxProblem, _Missing):
        return None


def _is_true(value: Any) -> bool:
    return bool(value)


def _evaluate(term: Term, current: Any, root: Any, budget: Budget, depth: int) -> Any:
    budget.spend()
    match term:
        case Constant(value):
            return value
        case Path(is_root, steps):
            return _apply(steps, root if is_root else current, root, budget, depth + 1)
        case Operation("!", (inner,)):
            return not _is_true(_evaluated(inner, current, root, budget, depth))
        case Operation("&&", (left, right)):
            return _is_true(_evaluated(left, current, root, budget, depth)) and _is_true(
                _evaluated(right, current, root, budget, depth)
            )
        case Operation("||", (left, right)):
            return _is_true(_evaluated(left, current, root, budget, depth)) or _is_true(
                _evaluated(right, current, root, budget, depth)
            )
        case Operation(sign, (left, right)):
            return _operate(
                sign,
                _evaluate(left, current, root, budget, depth),
                _evaluate(right, current, root, budget, depth),
                budget,
            )
    raise AssertionError(term)


def _operate(sign: str, left: Any, right: Any, budget: Budget) -> Any:
    match sign:
        case "==":
            return equal(left, right, budget)
        case "!=":
            return not equal(left, right, budget)
        case "=~":
            if not isinstance(left, str) or not isinstance(right, str):
                raise _Missing(f"jsonpath: =~ needs two strings, not {shown(left)} and {shown(right)}")
            return patterns.matches(right, left)
        case "in":
            return is_list(right) and any(equal(left, element, budget) for element in right)
        case "<" | ">" | "<=" | ">=":
            if not (is_number(left) and is_number(right)) and not (
                isinstance(left, str) and isinstance(right, str)
            ):
                raise _Missing(f"jsonpath: {shown(left)} and {shown(right)} have no order")
            match sign:
                case "<":
                    return less(left, right)
                case ">":
                    return less(right, left)
                case "<=":
                    return not less(right, left)
            return not less(left, right)
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return add(left, right, budget)
    if not is_number(left) or not is_number(right):
        raise _Missing(f"jsonpath: {shown(left)} {sign} {shown(right)}: use two numbers")
    match sign:
        case "+":
            return add(left, right, budget)
        case "-":
            return subtract(left, right)
        case "*":
            return multiply(left, right)
        case "/":
            return divide(left, right)
    return remainder(int(left), int(right))
