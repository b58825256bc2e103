"""The tree of an expression in expr-lang, and its parser.

https://expr-lang.org/docs/language-definition
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias, assert_never

from msgspec import Struct

from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.limits import DEPTH, NODES, TEXT_CHARACTERS
from moorage_workflows.decide.workflows.text.tokens import WORD_SIGNS, Kind, Token, tokens_of


class Literal(Struct, frozen=True):
    """A number, string, bytes, bool or nil."""

    value: int | float | str | bytes | bool | None


class Name(Struct, frozen=True):
    """A variable, including those that `let` defines."""

    name: str


class Pointer(Struct, frozen=True):
    """`#`, `#acc` or `#index` in a predicate. The name is "" for `#`, the element itself."""

    name: str


class Member(Struct, frozen=True):
    """`owner.key`, `owner[key]`. `is_optional`: `owner?.key`, which is nil if the owner is nil."""

    owner: Node
    key: Node
    is_optional: bool = False


class Chain(Struct, frozen=True):
    """The limit of an optional chain: if a value before `?.` is nil, the whole chain is nil."""

    node: Node


class Slice(Struct, frozen=True):
    """`owner[start:stop]`."""

    owner: Node
    start: Node | None
    stop: Node | None


class Unary(Struct, frozen=True):
    """`-x`, `+x`, `!x` (`not x`)."""

    sign: str
    node: Node


class Binary(Struct, frozen=True):
    """Two values and an operator. `&&`, `||` and `**` also represent their other spellings."""

    sign: str
    left: Node
    right: Node


class Comparison(Struct, frozen=True):
    """`a < b`, or a chain such as `a < b <= c`, in which each neighbouring pair must be true."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Conditional(Struct, frozen=True):
    """`condition ? then : otherwise`, and `if`. `then` is None in `condition ?: otherwise`."""

    condition: Node
    then: Node | None
    otherwise: Node


class Call(Struct, frozen=True):
    """A call of a function in scope or of a method."""

    callee: Node
    arguments: tuple[Node, ...]


class Builtin(Struct, frozen=True):
    """A call of a built-in function by name. Predicates are arguments of type `Predicate`."""

    name: str
    arguments: tuple[Node, ...]
    position: int


class Predicate(Struct, frozen=True):
    """The expression that a builtin evaluates for each element."""

    node: Node


class Let(Struct, frozen=True):
    """`let name = value; body`."""

    name: str
    value: Node
    body: Node


class Sequence(Struct, frozen=True):
    """`a; b`: the value is that of the last part."""

    nodes: tuple[Node, ...]


class Array(Struct, frozen=True):
    """`[a, b]`."""

    nodes: tuple[Node, ...]


class Map(Struct, frozen=True):
    """`{key: value}`."""

    pairs: tuple[tuple[Node, Node], ...]


Node: TypeAlias = (
    Literal
    | Name
    | Pointer
    | Member
    | Chain
    | Slice
    | Unary
    | Binary
    | Comparison
    | Conditional
    | Call
    | Builtin
    | Predicate
    | Let
    | Sequence
    | Array
    | Map
)

UNARY = {"not": 50, "!": 50, "-": 90, "+": 90}
BINARY = {
    "|": 0,
    "||": 10,
    "&&": 15,
    "==": 20,
    "!=": 20,
    "<": 20,
    ">": 20,
    ">=": 20,
    "<=": 20,
    "in": 20,
    "matches": 20,
    "contains": 20,
    "startsWith": 20,
    "endsWith": 20,
    "..": 25,
    "+": 30,
    "-": 30,
    "*": 60,
    "/": 60,
    "%": 60,
    "**": 100,
    "??": 500,
}
_SPELLINGS = {"and": "&&", "or": "||", "^": "**"}
_COMPARISONS = frozenset(("<", ">", ">=", "<="))
_NEGATABLE = frozenset(("in", "matches", "contains", "startsWith", "endsWith"))
CHAINED = frozenset(("+", "&&", "||"))  # many in a row are one level deep

# how many arguments a function with a predicate has before it, and whether the predicate may be left out
_WITH_PREDICATE = {
    "all": False,
    "none": False,
    "any": False,
    "one": False,
    "filter": False,
    "map": False,
    "find": False,
    "findIndex": False,
    "findLast": False,
    "findLastIndex": False,
    "groupBy": False,
    "count": True,
    "sum": True,
    "sortBy": True,
    "reduce": False,
}
_WITH_MORE = frozenset(("sortBy", "reduce"))  # an argument may follow the predicate


def parse(text: str) -> Node:
    """Parse an expression. Raises SyntaxProblem with the text and the position."""
    if len(text) > TEXT_CHARACTERS:
        raise SyntaxProblem(f"an expression has {len(text):,} characters; the limit is {TEXT_CHARACTERS:,}")
    try:
        root = _Parser(tokens_of(text)).whole()
        _check_depth(root)
    except SyntaxProblem as exc:
        shown = text if len(text) <= 120 else text[:117] + "..."
        raise SyntaxProblem(
            f"invalid expression {shown!r}, at character {exc.position + 1}: {exc.message}", position=exc.position
        ) from exc
    return root


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below a node."""
    match node:
        case Literal() | Name() | Pointer():
            return ()
        case Member(owner, key):
            return (owner, key)
        case Slice(owner, start, stop):
            return (owner, *(part for part in (start, stop) if part is not None))
        case Chain(inner) | Unary(_, inner) | Predicate(inner):
            return (inner,)
        case Binary(_, left, right):
            return (left, right)
        case Conditional(condition, then, otherwise):
            return (condition, otherwise) if then is None else (condition, then, otherwise)
        case Comparison(first, rest):
            return (first, *(compared for _, compared in rest))
        case Call(callee, arguments):
            return (callee, *arguments)
        case Builtin(_, arguments):
            return arguments
        case Let(_, value, body):
            return (value, body)
        case Sequence(nodes) | Array(nodes):
            return nodes
        case Map(pairs):
            return tuple(part for pair in pairs for part in pair)
        case _:
            assert_never(node)


def operands(node: Binary) -> list[Node]:
    """The operands of a chain of one operator, from the left: a, b, c of `a + b + c`."""
    row: list[Node] = []
    left: Node = node
    while isinstance(left, Binary) and left.sign == node.sign:
        row.append(left.right)
        left = left.left
    row.append(left)
    row.reverse()
    return row


def walk(root: Node) -> Iterator[Node]:
    """Yield every node; a node comes before the nodes below it."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def _check_depth(root: Node) -> None:
    stack = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > DEPTH:
            raise SyntaxProblem(f"it is nested more than {DEPTH} deep")
        below = operands(node) if isinstance(node, Binary) and node.sign in CHAINED else children(node)
        stack.extend((child, depth + 1) for child in below)


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.index = 0
        self.token = tokens[0]
        self.depth = 0  # of expressions within expressions
        self.predicates = 0  # around the current token
        self.nodes = 0

    def whole(self) -> Node:
        node = self.sequence()
        if self.token.kind is not Kind.END:
            raise self.wrong(f"{self.token} is not expected")
        return node

    def wrong(self, why: str) -> SyntaxProblem:
        return SyntaxProblem(why, position=self.token.position)

    def next(self) -> Token:
        token = self.token
        if token.kind is not Kind.END:
            self.index += 1
            self.token = self.tokens[self.index]
        return token

    def is_sign(self, *signs: str) -> bool:
        return self.token.kind is Kind.SIGN and self.token.value in signs

    def expect(self, sign: str) -> None:
        if not self.is_sign(sign):
            raise self.wrong(f"{sign!r} is missing before {self.token}")
        self.next()

    def expect_name(self) -> Token:
        if self.token.kind is not Kind.NAME:
            raise self.wrong(f"a name is missing before {self.token}")
        return self.next()

    def sequence(self) -> Node:
        nodes = [self.expression(0)]
        while self.is_sign(";"):
            self.next()
            if self.token.kind is Kind.END:
                break
            nodes.append(self.expression(0))
        return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))

    def expression(self, precedence: int) -> Node:
        self.depth += 1
        self.nodes += 1
        if self.depth > DEPTH:
            raise self.wrong(f"it is nested more than {DEPTH} deep")
        if self.nodes > NODES:
            raise self.wrong(f"it has more than {NODES:,} parts")
        if precedence == 0 and self.is_sign("let"):
            node = self.let()
        elif precedence == 0 and self.is_sign("if"):
            node = self.condition()
        else:
            node = self.operation(precedence)
            if precedence == 0:
                node = self.ternary(node)
        self.depth -= 1
        return node

    def operation(self, precedence: int) -> Node:
        left = self.primary()
        before = ""
        while self.token.kind is Kind.SIGN:
            start = self.index
            negated = self.token.value == "not"
            if negated:
                self.next()
                if not self.is_sign(*_NEGATABLE):
                    raise self.wrong(f"{self.token} is not expected after 'not'")
            sign = _SPELLINGS.get(self.token.value, self.token.value)
            if sign not in BINARY or BINARY[sign] < precedence:
                self.index, self.token = start, self.tokens[start]
                break
            if before == "??" and sign not in ("??", "|"):
                raise self.wrong(f"{sign!r} next to '??' is ambiguous; put one of them in parentheses")
            self.next()
            self.nodes += 1
            if sign == "|":
                name = self.expect_name()
                left = self.postfix(self.call(name, (left,)))
            elif sign in _COMPARISONS:
                left = self.comparison(left, sign)
            else:
                right = self.expression(BINARY[sign] + (0 if sign == "**" else 1))
                left = Binary(sign, left, right)
                if negated:
                    left = Unary("!", left)
            before = sign
        return left

    def comparison(self, left: Node, sign: str) -> Node:
        rest: list[tuple[str, Node]] = []
        while True:
            rest.append((sign, self.expression(BINARY[sign] + 1)))
            if not self.is_sign(*_COMPARISONS):
                return Comparison(left, tuple(rest))
            sign = self.next().value

    def ternary(self, node: Node) -> Node:
        while self.is_sign("?"):
            self.next()
            if self.is_sign(":"):
                self.next()
                node = Conditional(node, None, self.expression(0))
                continue
            then = self.expression(0)
            self.expect(":")
            node = Conditional(node, then, self.expression(0))
        return node

    def let(self) -> Node:
        self.next()
        name = self.expect_name().value
        self.expect("=")
        value = self.expression(0)
        self.expect(";")
        return Let(name, value, self.sequence())

    def condition(self) -> Node:
        self.next()
        condition = self.expression(0)
        self.expect("{")
        then = self.sequence()
        self.expect("}")
        self.expect("else")
        if self.is_sign("if"):
            return Conditional(condition, then, self.expression(0))
        self.expect("{")
        otherwise = self.sequence()
        self.expect("}")
        return Conditional(condition, then, otherwise)

    def primary(self) -> Node:
        # signs that may begin a value
        token = self.token
        if token.kind is Kind.SIGN:
            if token.value in UNARY:
                self.next()
                inner = self.expression(UNARY[token.value])
                return self.postfix(Unary("!" if token.value == "not" else token.value, inner))
            if token.value == "(":
                self.next()
                node = self.sequence()
                self.expect(")")
                return self.postfix(node)
            if token.value == "[":
                return self.postfix(self.array())
            if token.value == "{":
                return self.postfix(self.map())
            # pointers of predicates: #, #acc, #index, .field
            if token.value in ("#", ".") and self.predicates:
                name = ""
                if token.value == "#":
                    self.next()
                    touching = self.token.position == token.position + 1
                    if self.token.kind is Kind.NAME and touching:
                        name = self.next().value
                        if name not in ("acc", "index"):
                            raise self.wrong(f"'#{name}' is unknown; use #, #acc or #index")
                return self.postfix(Pointer(name))
            if token.value == "::":
                self.next()
                return self.postfix(self.call(self.expect_name(), ()))
        # names and literals
        match token.kind:
            case Kind.NAME:
                self.next()
                if token.value in ("true", "false", "nil"):
                    return Literal({"true": True, "false": False, "nil": None}[token.value])
                if self.is_sign("("):
                    return self.postfix(self.call(token, ()))
                return self.postfix(Name(token.value))
            case Kind.NUMBER:
                self.next()
                return Literal(self.number(token))
            case Kind.STRING:
                self.next()
                return self.postfix(Literal(token.value))
            case Kind.BYTES:
                self.next()
                return self.postfix(Literal(token.value.encode("latin-1")))
            case Kind.SIGN | Kind.END:
                raise self.wrong(f"a value is missing before {token}")
            case _:
                assert_never(token.kind)

    def number(self, token: Token) -> int | float:
        digits = token.value.replace("_", "")
        lower = digits.lower()
        try:
            if lower.startswith(("0x", "0o", "0b")):
                value: int | float = int(lower, 0)
            elif "." in lower or "e" in lower:
                value = float(lower)
            else:
                value = int(lower[:20])
        except ValueError as exc:
            raise SyntaxProblem(f"invalid number {token.value!r}", position=token.position) from exc
        if isinstance(value, int) and (value >= 2**63 or len(lower) > 80):
            raise SyntaxProblem(f"number {token.value!r} is above 2^63-1", position=token.position)
        if isinstance(value, float) and math.isinf(value):
            raise SyntaxProblem(f"number {token.value!r} is too large", position=token.position)
        return value

    def call(self, name: Token, arguments: tuple[Node, ...]) -> Node:
        """A call by a bare name; if it is not a builtin, it is looked up in scope at evaluation."""
        self.nodes += 1
        if name.value not in _WITH_PREDICATE:
            return Builtin(name.value, arguments + self.arguments(), name.position)
        self.expect("(")
        given = list(arguments)
        if not given:
            given.append(self.expression(0))
            if self.is_sign(","):
                self.next()
        if not self.is_sign(")"):
            given.append(self.predicate())
            if self.is_sign(","):
                self.next()
            if name.value in _WITH_MORE and not self.is_sign(")"):
                given.append(self.expression(0))
                if self.is_sign(","):
                    self.next()
        elif not _WITH_PREDICATE[name.value]:
            raise self.wrong(f"{name.value} needs a predicate, such as {{# > 1}}")
        self.expect(")")
        return Builtin(name.value, tuple(given), name.position)

    def predicate(self) -> Node:
        self.predicates += 1
        if self.is_sign("{"):
            self.next()
            node = self.sequence()
            self.expect("}")
        else:
            node = self.expression(0)
        self.predicates -= 1
        return Predicate(node)

    def arguments(self) -> tuple[Node, ...]:
        self.expect("(")
        return tuple(self.listed(")"))

    def array(self) -> Node:
        self.expect("[")
        return Array(tuple(self.listed("]")))

    def listed(self, end: str) -> list[Node]:
        nodes: list[Node] = []
        while not self.is_sign(end):
            if nodes:
                self.expect(",")
                if self.is_sign(end):
                    break
            nodes.append(self.expression(0))
        self.expect(end)
        return nodes

    def map(self) -> Node:
        self.expect("{")
        pairs: list[tuple[Node, Node]] = []
        while not self.is_sign("}"):
            if pairs:
                self.expect(",")
                if self.is_sign("}"):
                    break
            key: Node
            if self.token.kind in (Kind.NUMBER, Kind.STRING, Kind.NAME):
                key = Literal(self.next().value)
            elif self.is_sign("("):
                key = self.expression(0)
            else:
                raise self.wrong(f"a map's key is missing before {self.token}: use a name, string, number or (…)")
            self.expect(":")
            pairs.append((key, self.expression(0)))
        self.expect("}")
        return Map(tuple(pairs))

    def postfix(self, node: Node) -> Node:
        while self.is_sign(".", "?.", "["):
            self.nodes += 1
            sign = self.next().value
            if sign == "?." and self.is_sign("["):
                self.next()
                node = Chain(self.indexed(node, is_optional=True))
            elif sign == "[":
                node = self.indexed(node, is_optional=False)
            else:
                token = self.next()
                if token.kind is not Kind.NAME and token.value not in WORD_SIGNS:
                    raise SyntaxProblem(f"a name is missing before {token}", position=token.position)
                chained = isinstance(node, Chain)
                owner = node.node if isinstance(node, Chain) else node
                node = Member(owner, Literal(token.value), sign == "?.")
                if self.is_sign("("):
                    node = Call(node, self.arguments())
                if chained or sign == "?.":
                    node = Chain(node)
        return node

    def indexed(self, owner: Node, *, is_optional: bool) -> Node:
        if self.is_sign(":"):
            self.next()
            return self.sliced(owner, None)
        key = self.expression(0)
        if self.is_sign(":"):
            self.next()
            return self.sliced(owner, key)
        self.expect("]")
        return Member(owner, key, is_optional)

    def sliced(self, owner: Node, start: Node | None) -> Node:
        stop = None if self.is_sign("]") else self.expression(0)
        self.expect("]")
        return Slice(owner, start, stop)
