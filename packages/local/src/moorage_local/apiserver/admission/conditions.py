"""Match conditions of webhooks: the part of CEL that compares text of a request.

Supported: `request.` fields that hold text, strings in quotes, `true`, `false`, `==`, `!=`, `!`, `&&`, `||`,
parentheses, and `.startsWith("…")`, `.endsWith("…")`, `.contains("…")`. All other expressions are refused
when the configuration is created, so that conditions are never evaluated in another way than kube-apiserver
does.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-matchconditions
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

Request = Mapping[str, str]  # field, such as userInfo.username → its text
Value = str | bool

FIELDS: Final = (
    "name",
    "namespace",
    "operation",
    "subResource",
    "resource.group",
    "resource.version",
    "resource.resource",
    "userInfo.username",
)
LENGTH_MAX: Final = 4096  # characters of one expression
DEPTH_MAX: Final = 32  # parentheses and negations within each other

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'[^'\\\n]*'|"[^"\\\n]*")|(?P<operator>&&|\|\||==|!=|[!()])"""
    r"""|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<call>\.[A-Za-z_]\w*))"""
)
_CALLS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


class Unsupported(ValueError):
    """The expression is not CEL, or uses a part of CEL that is not supported here."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of an expression.

    `read` evaluates it for a request; `is_text`: the result is text, not true or false.
    """

    read: Callable[[Request], Value]
    is_text: bool = False


@functools.lru_cache(maxsize=256)
def parse_condition(expression: str) -> Callable[[Request], bool]:
    """Return the condition as a function of the request's FIELDS. A field that is not set is empty.

    Raises Unsupported.
    """
    if len(expression) > LENGTH_MAX:
        raise Unsupported(f"{len(expression)} characters; at most {LENGTH_MAX}")
    parser = _Parser(_tokens(expression))
    term = parser.either(0)
    if parser.ahead is not None:
        raise Unsupported(f"unexpected {parser.ahead[1]!r}")
    if term.is_text:
        raise Unsupported("the result is text; it must be true or false")
    return lambda request: bool(term.read(request))


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"cannot read {text[at : at + 20]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


class _Parser:
    """A recursive descent parser, with CEL's precedence: `||`, `&&`, `==` and `!=`, `!`, calls."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def ahead(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def either(self, depth: int) -> Term:
        term = self._all(depth)
        while self._took("||"):
            term = _joined(term, self._all(depth), "||", any)
        return term

    def _all(self, depth: int) -> Term:
        term = self._equal(depth)
        while self._took("&&"):
            term = _joined(term, self._equal(depth), "&&", all)
        return term

    def _equal(self, depth: int) -> Term:
        left = self._not(depth)
        is_equality = self._took("==")
        if not is_equality and not self._took("!="):
            return left
        right = self._not(depth)
        if left.is_text != right.is_text:
            raise Unsupported("text is compared with a condition")
        return Term(lambda request: (left.read(request) == right.read(request)) is is_equality)

    def _not(self, depth: int) -> Term:
        if depth > DEPTH_MAX:
            raise Unsupported(f"more than {DEPTH_MAX} levels")
        if self._took("!"):
            term = self._not(depth + 1)
            _check_condition(term, "!")
            return Term(lambda request: not term.read(request))
        return self._called(self._primary(depth))

    def _called(self, term: Term, name: str = "") -> Term:
        if not name:
            if self.ahead is None or self.ahead[0] != "call":
                return term
            name = self._next()[1][1:]
        call = _CALLS.get(name)
        if call is None or not term.is_text:
            raise Unsupported(f"cannot call {name!r}; known: {', '.join(_CALLS)}, of text")
        self._expect("(")
        kind, text = self._next()
        if kind != "text":
            raise Unsupported(f"{name} takes text in quotes, not {text!r}")
        self._expect(")")
        return Term(lambda request: call(str(term.read(request)), text[1:-1]))

    def _primary(self, depth: int) -> Term:
        kind, text = self._next()
        if kind == "text":
            return Term(lambda _: text[1:-1], is_text=True)
        if text == "(":
            term = self.either(depth + 1)
            self._expect(")")
            return term
        if text in ("true", "false"):
            return Term(lambda _: text == "true")
        path, _, method = text.rpartition(".")
        if kind == "name" and self.ahead == ("operator", "(") and path:
            return self._called(self._field(path), method)
        return self._field(text)

    def _field(self, path: str) -> Term:
        field = path.removeprefix("request.")
        if field == path or field not in FIELDS:
            raise Unsupported(f"unknown field {path!r}; known: {', '.join(f'request.{name}' for name in FIELDS)}")
        return Term(lambda request: request[field], is_text=True)

    def _took(self, operator: str) -> bool:
        if self.ahead == ("operator", operator):
            self._at += 1
            return True
        return False

    def _next(self) -> tuple[str, str]:
        if self.ahead is None:
            raise Unsupported("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, operator: str) -> None:
        if not self._took(operator):
            raise Unsupported(f"{operator!r} is missing")


def _joined(left: Term, right: Term, operator: str, join: Callable[[Iterable[Value]], bool]) -> Term:
    _check_condition(left, operator)
    _check_condition(right, operator)
    return Term(lambda request: join(term.read(request) for term in (left, right)))


def _check_condition(term: Term, operator: str) -> None:
    if term.is_text:
        raise Unsupported(f"{operator} takes conditions, not text")
