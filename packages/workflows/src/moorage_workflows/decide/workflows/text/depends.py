"""`depends` of a DAG task: results of other tasks, joined by &&, || and !.

https://argo-workflows.readthedocs.io/en/latest/enhanced-depends-logic/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias, assert_never

from msgspec import Struct

from moorage.decide.evaluation import current
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.limits import DEPTH, TEXT_CHARACTERS

RESULTS = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed")
OK = "Ok"  # a task's name alone: it ended so that those who depend on it start

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z0-9][A-Za-z0-9_-]*)(?:\.(?P<result>[A-Za-z]\w*))?|(?P<sign>&&|\|\||[!()]))", re.ASCII
)
_WORDS = {"and": "&&", "or": "||", "not": "!"}  # expr-lang's other spelling of the operators


class _Is(Struct, frozen=True):
    task: str
    result: str


class _Not(Struct, frozen=True):
    term: _Term


class _All(Struct, frozen=True):
    terms: tuple[_Term, ...]


class _Any(Struct, frozen=True):
    terms: tuple[_Term, ...]


_Term: TypeAlias = _Is | _Not | _All | _Any


class Depends(Struct, frozen=True):
    """A condition on tasks. `tasks`: the tasks in the condition, each once, in the order of their first use."""

    tasks: tuple[str, ...]
    words: tuple[tuple[str, str], ...]  # (task, result) as written; a task without a result has "Ok"
    _root: _Term | None

    def holds(self, outcomes: Mapping[str, frozenset[str]]) -> bool:
        """Whether the condition is true. `outcomes`: the results that are true for each task.

        A task name without a result means "Ok". All results of a missing task are false.
        An empty condition is true.
        """
        return self._root is None or _holds(self._root, outcomes)


def _holds(term: _Term, outcomes: Mapping[str, frozenset[str]]) -> bool:
    match term:
        case _Is(task, result):
            return result in outcomes.get(task, frozenset())
        case _Not(inner):
            return not _holds(inner, outcomes)
        case _All(terms):
            return all(_holds(inner, outcomes) for inner in terms)
        case _Any(terms):
            return any(_holds(inner, outcomes) for inner in terms)
        case _:
            assert_never(term)


@lru_cache(maxsize=4096)
def parse_depends(text: str) -> Depends:
    """Read a condition; an empty condition is always true and has no tasks.

    Raises SyntaxProblem, with the position, for wrong syntax and for unknown results, such as `A.Done`.
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > TEXT_CHARACTERS:
            raise SyntaxProblem(f"depends has {len(text):,} characters; the limit is {TEXT_CHARACTERS:,}")
        current().read(text)
        self.text = text
        self.position = 0  # after the current token
        self.start = 0  # of the current token
        self.sign = ""  # the current token: an operator or bracket, "name", or "" at the end
        self.leaf = _Is("", "")
        self.words: dict[tuple[str, str], None] = {}
        self.depth = 0
        self._next()

    def parse(self) -> Depends:
        root = self._either() if self.sign else None
        if self.sign:
            raise self._wrong(f"{self._shown()} is not expected; join tasks with && or ||")
        words = tuple(self.words)
        return Depends(tuple(dict.fromkeys(task for task, _ in words)), words, root)

    def _next(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            rest = self.text[self.position :]
            self.start = self.position + len(rest) - len(rest.lstrip())
            if rest.strip():
                raise self._wrong(
                    f"{self.text[self.start]!r} is not expected; use task names, results, &&, ||, ! and ()"
                )
            self.sign, self.position = "", len(self.text)
            return
        self.start, self.position = match.start(match.lastgroup or 0), match.end()
        self.start = match.start("name") if match["name"] else match.start("sign")
        if match["sign"]:
            self.sign = match["sign"]
            return
        name, result = match["name"], match["result"]
        if result is None and name in _WORDS:
            self.sign = _WORDS[name]
            return
        if self.text[self.position : self.position + 1] == ".":
            raise self._wrong(
                f"task {name!r} is followed by '.' without a result; use one of {', '.join(RESULTS)}"
            )
        if result is not None and result not in RESULTS:
            self.start = match.start("result")
            raise self._wrong(f"{result!r} is not a result of task {name!r}; use one of {', '.join(RESULTS)}")
        self.sign, self.leaf = "name", _Is(name, result or OK)

    def _either(self) -> _Term:
        terms = [self._both()]
        while self.sign == "||":
            self._next()
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else _Any(tuple(terms))

    def _both(self) -> _Term:
        terms = [self._single()]
        while self.sign == "&&":
            self._next()
            terms.append(self._single())
        return terms[0] if len(terms) == 1 else _All(tuple(terms))

    def _single(self) -> _Term:
        self.depth += 1
        if self.depth > DEPTH:
            raise self._wrong(f"it is nested more than {DEPTH} deep")
        term: _Term
        match self.sign:
            case "!":
                self._next()
                term = _Not(self._single())
            case "(":
                self._next()
                term = self._either()
                self._close()
            case "name":
                term = self.leaf
                self.words[term.task, term.result] = None
                self._next()
            case _:
                raise self._wrong(f"a task's name is missing before {self._shown()}")
        self.depth -= 1
        return term

    def _close(self) -> None:
        if self.sign != ")":
            raise self._wrong(f"')' is missing before {self._shown()}")
        self._next()

    def _shown(self) -> str:
        return repr(self.text[self.start : self.position]) if self.sign else "the end"

    def _wrong(self, why: str) -> SyntaxProblem:
        shown = self.text if len(self.text) <= 120 else self.text[:117] + "..."
        return SyntaxProblem(
            f"invalid depends {shown!r}, at character {self.start + 1}: {why}", position=self.start
        )
