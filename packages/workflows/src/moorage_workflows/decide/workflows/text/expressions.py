"""Expressions in expr-lang, as Argo evaluates them: `{{=asInt(inputs.parameters.n) + 1}}`.

https://expr-lang.org/docs/language-definition, https://argo-workflows.readthedocs.io/en/latest/variables/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, assert_never

from msgspec import Struct

from moorage.decide.evaluation import Budget, TextError, current, where
from moorage_workflows.decide.workflows.text import functions, patterns, values
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem, UnresolvedTag
from moorage_workflows.decide.workflows.text.functions import BUILTINS, Call, Signature, items
from moorage_workflows.decide.workflows.text.methods import call_method
from moorage_workflows.decide.workflows.text.sprig import REFUSED, SPRIG
from moorage_workflows.decide.workflows.text.syntax import (
    CHAINED,
    Array,
    Binary,
    Builtin,
    Chain,
    Comparison,
    Conditional,
    Let,
    Literal,
    Map,
    Member,
    Name,
    Node,
    Pointer,
    Predicate,
    Slice,
    Unary,
    children,
    operands,
    parse,
    walk,
)
from moorage_workflows.decide.workflows.text.syntax import Call as Calling
from moorage_workflows.decide.workflows.text.syntax import Sequence as Statements
from moorage_workflows.decide.workflows.text.values import is_list, is_map, is_number, shown, type_name

# variables that get their value late: a tag with one of them waits until it is in scope
LATE = ("item", "retries", "lastRetry", "workflow.status", "workflow.failures")

_MISSING = object()
_KEPT_CHARACTERS = 1024  # of a text that is parsed once; a longer one is parsed each time, and not cached


class Scope:
    """The variables of an evaluation, by dotted name, and the nested maps that they form.

    `a` is dropped if `a.b` exists too: `workflow.parameters` is then the map of the parameters. A scope may have
    many thousands of variables, so only the maps that an expression reads are built.
    """

    __slots__ = ("_names", "_tree", "flat")

    def __init__(self, flat: Mapping[str, Any]) -> None:
        self.flat = flat
        self._tree: dict[str, Any] | None = None
        self._names: str | None = None  # all of them, each between line breaks: searched faster than a loop does

    @property
    def tree(self) -> dict[str, Any]:
        """All variables, as nested maps."""
        if self._tree is None:
            self._tree = _nested(self.flat)
        return self._tree

    def exact(self, name: str) -> Any:
        """Return the value of a dotted name.

        `_MISSING` if the name does not exist, or if it is the beginning of longer names.
        """
        value = self.flat.get(name, _MISSING)
        return _MISSING if value is not _MISSING and self._begins(name) else value

    def around(self, path: Sequence[str]) -> dict[str, Any]:
        """Return the nested maps that a path needs."""
        if self._tree is not None:
            return self._tree
        if len(path) < 2:
            return (
                self.tree
                if self._begins(path[0])
                else {name: self.flat[name] for name in path if name in self.flat}
            )
        owner = f"{path[0]}.{path[1]}"
        near = [owner] if owner in self.flat else []
        near += self._longer(owner)
        if near:
            return _nested({name: self.flat[name] for name in near})
        if self._begins(path[0]):
            return {path[0]: {}}
        return {path[0]: self.flat[path[0]]} if path[0] in self.flat else {}

    def has(self, path: Sequence[str]) -> bool:
        """Whether a path of names leads to a value. The value may be nil."""
        if ".".join(path) in self.flat:
            return True
        level: Any = self.around(path)
        for part in path:
            if not is_map(level) or part not in level:
                return False
            level = level[part]
        return True

    def needed(self, names: Iterable[str]) -> dict[str, Any]:
        """The variables that an expression with these names can distinguish from missing ones."""
        near: set[str] = set()
        for name in names:
            parts = name.split(".")
            owner = ".".join(parts[:2])
            near |= {parts[0], owner, name}
            near.update(self._longer(owner))
            near.update(self._longer(parts[0], most=1))
        return {name: self.flat[name] for name in near if name in self.flat}

    def _begins(self, name: str) -> bool:
        """Whether this name is the beginning of longer names."""
        return f"\n{name}." in self._text()

    def _longer(self, name: str, most: int | None = None) -> list[str]:
        """Return the longer names that begin with this name. `most`: the maximum number of names."""
        text, start = self._text(), f"\n{name}."
        longer: list[str] = []
        place = text.find(start)
        while place >= 0 and (most is None or len(longer) < most):
            end = text.find("\n", place + 1)
            longer.append(text[place + 1 : end])
            place = text.find(start, end)
        return [name for name in longer if name in self.flat]

    def _text(self) -> str:
        if self._names is None:
            self._names = "\n".join(("", *self.flat, ""))
        return self._names


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name in sorted(flat, key=lambda name: -name.count(".")):
        *owners, last = name.split(".")
        level = tree
        for owner in owners:
            level = level.setdefault(owner, {})
        level.setdefault(last, flat[name])
    return tree


class _Frame(Struct):
    """The state of an evaluation: the scope, the variables of `let`, and the element of the innermost
    predicate.
    """

    scope: Scope
    call: Call
    local: dict[str, Any]
    element: Any = None
    accumulated: Any = None
    index: int = 0


_Compiled: TypeAlias = Callable[[_Frame], Any]


class Program(Struct, frozen=True):
    """A compiled expression that can be evaluated often. `names`: the dotted variables that it reads."""

    text: str
    names: frozenset[str]
    late: tuple[tuple[str, ...], ...]  # the paths among the names that wait until they are in scope
    run: Callable[[Scope, datetime | None], Any]


def evaluate(expression: str, scope: Mapping[str, Any], *, now: datetime | None = None) -> Any:
    """Evaluate an expression. `scope`: values by dotted name ("inputs.parameters.x").

    `now`: the value of `now()`; None: `now()` is refused. Raises SyntaxProblem for wrong syntax and unknown
    functions, UnresolvedTag for a variable that is not in scope (a last name on the left of `??`, or with
    `?.`, is nil instead), TooMuchWork past the limits, and TextError for values that do not fit.
    """
    return compile_expression(expression).run(Scope(scope), now)


def expression_text(value: Any) -> str:
    """Return a result as it appears in a document: a string unchanged, other values as compact JSON.

    Keys are sorted; a time is RFC 3339, without quotes.
    """
    return value if isinstance(value, str) else values.json_text(value, current()).strip('"')


def names_in(expression: str) -> set[str]:
    """Return the dotted variables that an expression reads.

    `tasks['a'].outputs.result` is "tasks.a.outputs.result".

    Raises SyntaxProblem.
    """
    return set(compile_expression(expression).names)


def compile_expression(text: str) -> Program:
    """Compile an expression. Raises SyntaxProblem with the text and the position."""
    return _compiled(text) if len(text) <= _KEPT_CHARACTERS else _compiled.__wrapped__(text)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Program:
    current().read(text)
    root = parse(text)
    names = frozenset(".".join(path) for path in _paths(root))
    late = tuple(
        tuple(word.split("."))
        for word in LATE
        if any(name == word or name.startswith(word + ".") for name in names)
    )
    try:
        compiled = _Compiler().compile(root, frozenset())
    except SyntaxProblem as exc:
        raise SyntaxProblem(f"invalid expression {text[:120]!r}: {exc.message}", position=exc.position) from exc

    def run(scope: Scope, now: datetime | None) -> Any:
        if (call := where()) is not None:
            return call(evaluate, text, scope.flat if "$env" in text else scope.needed(names), now=now)
        try:
            return compiled(_Frame(scope, Call(current(), now), {}))
        except _Nil:
            return None
        except RecursionError as exc:
            raise TextError(f"the expression {text[:120]!r} is nested too deep") from exc

    return Program(text, names, late, run)


class _Nil(Exception):
    """A value before `?.` is nil, so the whole chain is nil."""


def _static_path(node: Node) -> tuple[str, ...] | None:
    """Return the names of a path such as `a.b['c']`; None for other nodes."""
    parts: list[str] = []
    while isinstance(node, Member):
        if not isinstance(node.key, Literal) or not isinstance(node.key.value, str) or node.is_optional:
            return None
        parts.append(node.key.value)
        node = node.owner
    if not isinstance(node, Name):
        return None
    parts.append(node.name)
    return tuple(reversed(parts))


def _any_path(node: Node) -> tuple[str, ...] | None:
    """Return the names of a path, which may have optional parts; None for other nodes."""
    parts: list[str] = []
    while isinstance(node, (Member, Chain)):
        if isinstance(node, Chain):
            node = node.node
            continue
        if not isinstance(node.key, Literal) or not isinstance(node.key.value, str):
            return None
        parts.append(node.key.value)
        node = node.owner
    if not isinstance(node, Name):
        return None
    parts.append(node.name)
    path = tuple(reversed(parts))
    return path[1:] if path[0] == "$env" else path


def _paths(root: Node) -> Iterator[tuple[str, ...]]:
    """Yield the variables that a tree reads, each up to the last constant name."""
    stack: list[tuple[Node, frozenset[str]]] = [(root, frozenset())]
    while stack:
        node, local = stack.pop()
        match node:
            case Name() | Member() | Chain() if (path := _any_path(node)) is not None:
                if path and path[0] not in local and path[0] != "sprig":
                    yield path
            case Let(name, value, body):
                stack += [(value, local), (body, local | {name})]
            case Calling(Member(owner), arguments):
                stack += [(owner, local), *((argument, local) for argument in arguments)]
            case Calling(Chain(Member(owner)), arguments):
                stack += [(owner, local), *((argument, local) for argument in arguments)]
            case _:
                stack += [(child, local) for child in children(node)]


class _Compiler:
    """Compiles a tree into functions of a frame."""

    def __init__(self) -> None:
        self.guarded = 0  # number of `??` with the current node on their left

    def compile(self, node: Node, local: frozenset[str]) -> _Compiled:
        match node:
            case Literal(value):
                return lambda _frame: value
            case Name(name):
                return self._name(name, local)
            case Pointer(name):
                return _POINTERS[name]
            case Member():
                return self._member(node, local)
            case Chain(inner):
                return self._chain(inner, local)
            case Slice(owner, start, stop):
                return self._slice(owner, start, stop, local)
            case Unary(sign, inner):
                return self._unary(sign, self.compile(inner, local))
            case Binary():
                return self._binary(node, local)
            case Comparison(first, rest):
                return self._comparison(first, rest, local)
            case Conditional(condition, then, otherwise):
                return self._conditional(condition, then, otherwise, local)
            case Calling(callee, arguments):
                return self._call(callee, arguments, local)
            case Builtin(name, arguments, position):
                return self._builtin(name, arguments, position, local)
            case Predicate():
                raise SyntaxProblem("a predicate is not expected here")
            case Let(name, value, body):
                return self._let(name, value, body, local)
            case Statements(nodes):
                return self._statements(nodes, local)
            case Array(nodes):
                return self._array(nodes, local)
            case Map(pairs):
                return self._map(pairs, local)
            case _:
                assert_never(node)

    def _name(self, name: str, local: frozenset[str]) -> _Compiled:
        if name in local:
            return lambda frame: frame.local[name]
        if name == "$env":
            return lambda frame: frame.scope.tree

        def variable(frame: _Frame) -> Any:
            value = frame.scope.exact(name)
            if value is not _MISSING:
                return value
            tree = frame.scope.around((name,))
            if name not in tree:
                raise UnresolvedTag(name)
            return tree[name]

        return variable

    def _member(self, node: Member, local: frozenset[str]) -> _Compiled:
        path = _static_path(node)
        if path is not None and path[0] not in local and path[0] != "$env":
            return self._path(path, is_guarded=self.guarded > 0)
        self.guarded += node.is_optional
        owner = self.compile(node.owner, local)
        self.guarded -= node.is_optional
        key = self.compile(node.key, local)
        if node.is_optional:

            def optional(frame: _Frame) -> Any:
                value = owner(frame)
                if value is None:
                    raise _Nil
                return fetch(value, key(frame))

            return optional
        return lambda frame: fetch(owner(frame), key(frame))

    def _path(self, path: tuple[str, ...], *, is_guarded: bool) -> _Compiled:
        dotted = ".".join(path)

        def variable(frame: _Frame) -> Any:
            value = frame.scope.exact(dotted)
            if value is not _MISSING:
                return value
            value = frame.scope.around(path)
            for place, part in enumerate(path):
                if is_map(value) and (part in value or not place):
                    if part not in value:
                        raise UnresolvedTag(dotted)
                    value = value[part]
                elif is_map(value):
                    if is_guarded and place == len(path) - 1:
                        return None
                    raise UnresolvedTag(dotted)
                elif value is None:
                    if is_guarded:
                        return None
                    raise TextError(f"{'.'.join(path[:place])} is nil, so {dotted} cannot be read")
                else:
                    value = fetch(value, part)
            return value

        return variable

    def _chain(self, inner: Node, local: frozenset[str]) -> _Compiled:
        compiled = self.compile(inner, local)

        def chain(frame: _Frame) -> Any:
            try:
                return compiled(frame)
            except _Nil:
                return None

        return chain

    def _slice(self, owner: Node, start: Node | None, stop: Node | None, local: frozenset[str]) -> _Compiled:
        compiled = self.compile(owner, local)
        first = self.compile(start, local) if start is not None else None
        last = self.compile(stop, local) if stop is not None else None

        def sliced(frame: _Frame) -> Any:
            value = compiled(frame)
            if isinstance(value, str):
                length = functions.byte_length(value)
            elif is_list(value) or isinstance(value, bytes):
                length = len(value)
            else:
                raise TextError(f"{shown(value)} cannot be sliced; use a string or a list")
            begin = values.whole(first(frame)) if first else 0
            end = values.whole(last(frame)) if last else length
            begin = max(begin + length if begin < 0 else begin, 0)
            end = min(max(end + length if end < 0 else end, 0), length)
            frame.call.budget.spend(1 + (end - begin) // 8 if end > begin else 1)
            return (
                functions.byte_slice(value, begin, max(begin, end)) if isinstance(value, str) else value[begin:end]
            )

        return sliced

    def _unary(self, sign: str, inner: _Compiled) -> _Compiled:
        if sign == "!":
            return lambda frame: not truth(inner(frame), "!")

        def signed(frame: _Frame) -> Any:
            value = inner(frame)
            if isinstance(value, values.Duration):
                return values.Duration(-value.nanoseconds) if sign == "-" else value
            if not is_number(value):
                raise TextError(f"{sign}{shown(value)}: {shown(value)} is not a number")
            if sign == "+":
                return value
            return values.wrapped(-value) if isinstance(value, int) else -value

        return signed

    def _binary(self, node: Binary, local: frozenset[str]) -> _Compiled:
        if node.sign in CHAINED:
            row = [self.compile(part, local) for part in operands(node)]
            return _ROWS[node.sign](row)
        if node.sign == "??":
            self.guarded += 1
            left = self.compile(node.left, local)
            self.guarded -= 1
            right = self.compile(node.right, local)

            def either(frame: _Frame) -> Any:
                value = left(frame)
                return right(frame) if value is None else value

            return either
        left, right = self.compile(node.left, local), self.compile(node.right, local)
        operation = OPERATIONS[node.sign]
        return lambda frame: operation(left(frame), right(frame), frame.call.budget)

    def _comparison(self, first: Node, rest: tuple[tuple[str, Node], ...], local: frozenset[str]) -> _Compiled:
        start = self.compile(first, local)
        row = [(OPERATIONS[sign], self.compile(part, local)) for sign, part in rest]

        def compared(frame: _Frame) -> bool:
            left = start(frame)
            for operation, part in row:
                right = part(frame)
                if not operation(left, right, frame.call.budget):
                    return False
                left = right
            return True

        return compared

    def _conditional(
        self, condition: Node, then: Node | None, otherwise: Node, local: frozenset[str]
    ) -> _Compiled:
        test, second = self.compile(condition, local), self.compile(otherwise, local)
        first = self.compile(then, local) if then is not None else None

        def chosen(frame: _Frame) -> Any:
            value = test(frame)
            if truth(value, "?"):
                return first(frame) if first else value
            return second(frame)

        return chosen

    def _let(self, name: str, value: Node, body: Node, local: frozenset[str]) -> _Compiled:
        compiled, inner = self.compile(value, local), self.compile(body, local | {name})

        def let(frame: _Frame) -> Any:
            before = frame.local
            frame.local = {**before, name: compiled(frame)}
            try:
                return inner(frame)
            finally:
                frame.local = before

        return let

    def _statements(self, nodes: tuple[Node, ...], local: frozenset[str]) -> _Compiled:
        row = [self.compile(node, local) for node in nodes]
        return lambda frame: [part(frame) for part in row][-1]

    def _array(self, nodes: tuple[Node, ...], local: frozenset[str]) -> _Compiled:
        row = [self.compile(node, local) for node in nodes]
        return lambda frame: [part(frame) for part in row]

    def _map(self, pairs: tuple[tuple[Node, Node], ...], local: frozenset[str]) -> _Compiled:
        row = [(self.compile(key, local), self.compile(value, local)) for key, value in pairs]

        def mapping(frame: _Frame) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for key, value in row:
                name = key(frame)
                if not isinstance(name, str):
                    raise TextError(f"{shown(name)} is not a key of a map; use a string")
                made[name] = value(frame)
            return made

        return mapping

    def _call(self, callee: Node, arguments: tuple[Node, ...], local: frozenset[str]) -> _Compiled:
        if not isinstance(callee, Member) or not isinstance(callee.key, Literal):
            raise SyntaxProblem("only functions and methods can be called")
        name = str(callee.key.value)
        row = [self.compile(argument, local) for argument in arguments]
        if callee.owner == Name("sprig"):
            if name in REFUSED:
                raise SyntaxProblem(f"sprig.{name} is not supported: {REFUSED[name]}")
            if name not in SPRIG:
                raise SyntaxProblem(f"sprig has no function {name}")
            return _applied(f"sprig.{name}", SPRIG[name], row)
        owner = self.compile(callee.owner, local)
        is_optional = callee.is_optional

        def method(frame: _Frame) -> Any:
            value = owner(frame)
            if value is None and is_optional:
                raise _Nil
            return call_method(value, name, [part(frame) for part in row], frame.call)

        return method

    def _builtin(self, name: str, arguments: tuple[Node, ...], position: int, local: frozenset[str]) -> _Compiled:
        if name in PREDICATED:
            return self._predicated(name, arguments, local)
        signature = BUILTINS.get(name)
        if signature is None:
            raise SyntaxProblem(f"there is no function {name}", position=position)
        return _applied(name, signature, [self.compile(argument, local) for argument in arguments])

    def _predicated(self, name: str, arguments: tuple[Node, ...], local: frozenset[str]) -> _Compiled:
        source = self.compile(arguments[0], local)
        predicate: _Compiled | None = None
        cost = 1
        if len(arguments) > 1:
            assert isinstance(arguments[1], Predicate)
            predicate = self.compile(arguments[1].node, local)
            cost = 1 + sum(1 for _ in walk(arguments[1].node))
        more = self.compile(arguments[2], local) if len(arguments) > 2 else None
        function = PREDICATED[name]

        def applied(frame: _Frame) -> Any:
            elements = items(source(frame), name)
            extra = more(frame) if more else _MISSING
            before = frame.element, frame.accumulated, frame.index
            try:
                return function(_Loop(frame, elements, predicate, cost), extra)
            finally:
                frame.element, frame.accumulated, frame.index = before

        return applied


class _Loop(Struct, frozen=True):
    """A running function with a predicate, such as `filter`."""

    frame: _Frame
    elements: Sequence[Any]
    predicate: _Compiled | None
    cost: int  # steps for each element

    def each(self, *, backwards: bool = False) -> Iterator[tuple[int, Any, Any]]:
        """Yield for each element: its index, the element, and the value of the predicate."""
        frame = self.frame
        order = range(len(self.elements))
        for index in reversed(order) if backwards else order:
            frame.call.budget.spend(self.cost)
            element = self.elements[index]
            frame.element, frame.index = element, index
            yield index, element, self.predicate(frame) if self.predicate else element

    def chosen(self, name: str, *, backwards: bool = False) -> Iterator[tuple[int, Any]]:
        """Yield index and element of each element for which the predicate is true."""
        return ((index, element) for index, element, value in self.each(backwards=backwards) if truth(value, name))


def _reduce(loop: _Loop, initial: Any) -> Any:
    frame = loop.frame
    frame.accumulated = initial
    assert loop.predicate is not None
    for index, element in enumerate(loop.elements):
        frame.call.budget.spend(loop.cost)
        if frame.accumulated is _MISSING:
            frame.accumulated = element
            continue
        frame.element, frame.index = element, index
        frame.accumulated = loop.predicate(frame)
    if frame.accumulated is _MISSING:
        raise TextError("reduce: the list is empty, and there is no initial value")
    return frame.accumulated


def _group(loop: _Loop, _extra: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for _, element, key in loop.each():
        if is_list(key) or is_map(key):
            raise TextError(f"groupBy: {shown(key)} is not a key of a map")
        groups.setdefault(key, []).append(element)
    return groups


def _sort(loop: _Loop, order: Any) -> list[Any]:
    descending = functions.is_descending(order, "sortBy") if order is not _MISSING else False
    keys = [value for _, _, value in loop.each()]
    return functions.sorted_list(loop.elements, keys, descending=descending, budget=loop.frame.call.budget)


PREDICATED: dict[str, Callable[[_Loop, Any], Any]] = {
    "all": lambda loop, _: all(truth(value, "all") for _, _, value in loop.each()),
    "any": lambda loop, _: any(truth(value, "any") for _, _, value in loop.each()),
    "none": lambda loop, _: not any(truth(value, "none") for _, _, value in loop.each()),
    "one": lambda loop, _: sum(1 for _ in loop.chosen("one")) == 1,
    "filter": lambda loop, _: [element for _, element in loop.chosen("filter")],
    "map": lambda loop, _: [value for _, _, value in loop.each()],
    "find": lambda loop, _: next((element for _, element in loop.chosen("find")), None),
    "findIndex": lambda loop, _: next((index for index, _ in loop.chosen("findIndex")), -1),
    "findLast": lambda loop, _: next((element for _, element in loop.chosen("findLast", backwards=True)), None),
    "findLastIndex": lambda loop, _: next(
        (index for index, _ in loop.chosen("findLastIndex", backwards=True)), -1
    ),
    "count": lambda loop, _: sum(1 for _ in loop.chosen("count")),
    "sum": lambda loop, _: functions.total([value for _, _, value in loop.each()], loop.frame.call.budget),
    "groupBy": _group,
    "sortBy": _sort,
    "reduce": _reduce,
}


def _pointer(frame: _Frame) -> Any:
    return frame.element


def _pointer_to_sum(frame: _Frame) -> Any:
    return frame.accumulated


def _pointer_to_index(frame: _Frame) -> Any:
    return frame.index


_POINTERS: dict[str, _Compiled] = {"": _pointer, "acc": _pointer_to_sum, "index": _pointer_to_index}


def _applied(name: str, signature: Signature, row: Sequence[_Compiled]) -> _Compiled:
    """Compile a function call. Raises SyntaxProblem for a wrong number of arguments."""
    least, most = signature.least, signature.most
    if len(row) < least or (most is not None and len(row) > most):
        wanted = f"{least} or more" if most is None else str(least) if least == most else f"{least} to {most}"
        raise SyntaxProblem(f"{name} takes {wanted} arguments, not {len(row)}")
    function = signature.function

    def applied(frame: _Frame) -> Any:
        arguments = [part(frame) for part in row]
        for argument in arguments:
            if isinstance(argument, (str, bytes, list, tuple, dict)):
                frame.call.budget.spend(len(argument) // 256)
        result = function(frame.call, arguments)
        if isinstance(result, (str, bytes)):
            frame.call.budget.string(len(result))
        elif is_list(result) or is_map(result):
            frame.call.budget.items(len(result))
        else:
            frame.call.budget.spend()
        return result

    return applied


def truth(value: Any, where: str) -> bool:
    """Return a boolean. Raises TextError with the operator or function if the value is not a boolean."""
    if not isinstance(value, bool):
        raise TextError(
            f"{where}: {shown(value)} is neither true nor false", hint="compare it, such as x == 'true'"
        )
    return value


def fetch(owner: Any, key: Any) -> Any:
    """Return `owner[key]`; nil for a missing key of a map.

    Raises TextError outside a list and for other owners.
    """
    if is_map(owner):
        return functions.get(owner, key)
    if is_list(owner) or isinstance(owner, (str, bytes)):
        if not is_number(key):
            raise TextError(f"{shown(owner)} has no member {shown(key)}; use an index, such as [0]")
        elements = owner.encode("utf-8", "surrogatepass") if isinstance(owner, str) else owner
        index = values.whole(key)
        if not -len(elements) <= index < len(elements):
            raise TextError(f"index {index} is outside a list of {len(elements)} items")
        return elements[index]
    raise TextError(f"{shown(owner)} ({type_name(owner)}) has no member {shown(key)}")


def _all_of(row: Sequence[_Compiled]) -> _Compiled:
    def every(frame: _Frame) -> Any:
        value: Any = True
        for part in row:
            value = truth(part(frame), "&&")
            if not value:
                return False
        return value

    return every


def _any_of(row: Sequence[_Compiled]) -> _Compiled:
    return lambda frame: any(truth(part(frame), "||") for part in row)


def _sum_of(row: Sequence[_Compiled]) -> _Compiled:
    def joined(frame: _Frame) -> Any:
        value = row[0](frame)
        for part in row[1:]:
            value = values.add(value, part(frame), frame.call.budget)
        return value

    return joined


_ROWS: dict[str, Callable[[Sequence[_Compiled]], _Compiled]] = {"&&": _all_of, "||": _any_of, "+": _sum_of}


def _range(left: Any, right: Any, budget: Budget) -> list[int]:
    start, stop = values.whole(left), values.whole(right)
    budget.items(max(stop - start + 1, 0))
    return list(range(start, stop + 1))


def _is_less(left: Any, right: Any, budget: Budget) -> bool:
    if isinstance(left, str):
        budget.spend(len(left) // 256)
    return values.less(left, right)


def _is_in(left: Any, right: Any, budget: Budget) -> bool:
    if right is None:
        return False
    if is_list(right):
        return any(values.equal(left, element, budget) for element in right)
    if is_map(right):
        return isinstance(left, (str, int, float, bool)) and left in right
    raise TextError(
        f"{shown(left)} in {shown(right)}: the right side is not a list or map", hint="use contains for strings"
    )


def _strings(left: Any, right: Any, sign: str) -> tuple[str, str]:
    if not isinstance(left, str) or not isinstance(right, str):
        raise TextError(f"{shown(left)} {sign} {shown(right)}: both sides have to be strings")
    return left, right


def _matches(left: Any, right: Any, budget: Budget) -> bool:
    if left is None:
        return False
    text, pattern = _strings(left, right, "matches")
    budget.spend(len(text) // 16)
    return patterns.matches(pattern, text)


def _contains(left: Any, right: Any, budget: Budget) -> bool:
    text, part = _strings(left, right, "contains")
    budget.spend(len(text) // 256)
    return part in text


def _starts(left: Any, right: Any, budget: Budget) -> bool:
    text, part = _strings(left, right, "startsWith")
    budget.spend(len(part) // 256)
    return text.startswith(part)


def _ends(left: Any, right: Any, budget: Budget) -> bool:
    text, part = _strings(left, right, "endsWith")
    budget.spend(len(part) // 256)
    return text.endswith(part)


OPERATIONS: dict[str, Callable[[Any, Any, Budget], Any]] = {
    "==": values.equal,
    "!=": lambda left, right, budget: not values.equal(left, right, budget),
    "<": lambda left, right, budget: _is_less(left, right, budget),
    ">": lambda left, right, budget: _is_less(right, left, budget),
    "<=": lambda left, right, budget: _is_less(left, right, budget) or left == right,
    ">=": lambda left, right, budget: _is_less(right, left, budget) or left == right,
    "in": _is_in,
    "matches": _matches,
    "contains": _contains,
    "startsWith": _starts,
    "endsWith": _ends,
    "..": _range,
    "-": lambda left, right, _: values.subtract(left, right),
    "*": lambda left, right, _: values.multiply(left, right),
    "/": lambda left, right, _: values.divide(left, right),
    "%": lambda left, right, _: values.remainder(left, right),
    "**": lambda left, right, _: values.power(left, right),
}
