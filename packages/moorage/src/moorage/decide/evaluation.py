"""The work that users' texts may cause: one budget of steps, bytes and nodes for all texts of one object.

The code that decides about an object makes its budget and shares it (`shared`) meanwhile; every text that is
evaluated takes from it. Without a shared one, as in a program of users, each evaluation has its own. A service has
other processes evaluate (`elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from moorage_kube.errors import MoorageError

STEPS = 5_000_000  # of one look at an object; two seconds of one core
BYTES = 128 * 1024 * 1024  # of the values that the tags of one object leave
STRING_CHARACTERS = 4 * 1024 * 1024  # of one string that an expression makes
LIST_ITEMS = 100_000  # of one list that an expression makes
OBJECT_NODES = 25_000  # of one workflow: items of its loops, and the steps and tasks that they run
TENANT_NODES = 50_000  # of the workflows of one namespace that run at a time; measured, 10 kB each
READ_STEPS = 8  # for one character of an expression or a condition: measured, 3 µs


class TextError(MoorageError):
    """A text of a user that cannot be read or evaluated."""


class TooMuchWork(TextError):
    """The evaluation passes a limit on steps or sizes."""


class Budget:
    """The amounts that one object may still use.

    A step is one element visited, 64 characters written, or 32 of a document with tags. `nodes`: those that the
    object has already. `others`: the nodes of all other workflows of its namespace that run now.
    """

    __slots__ = ("bytes_left", "left", "nodes", "others")

    def __init__(self, steps: int = STEPS, *, nodes: int = 0, others: int = 0) -> None:
        self.left = steps
        self.bytes_left = BYTES
        self.nodes = nodes
        self.others = others

    def renew(self, *, others: int = 0) -> None:
        """Begin the next look at the object: steps are of one look, bytes and nodes of the object."""
        self.left, self.others = STEPS, others

    def take_over(self, other: Budget) -> None:
        """Continue with the rest of the same budget, after another process used some of it."""
        self.left, self.bytes_left, self.nodes = other.left, other.bytes_left, other.nodes

    def spend(self, steps: int = 1) -> None:
        """Take steps. Raises TooMuchWork when none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork(
                f"the tags and expressions of one object take more than {STEPS:,} steps",
                hint="work on smaller lists and texts",
            )

    def read(self, text: str) -> None:
        """Allow a text of a language to be read, which takes some steps for each character."""
        self.spend(1 + READ_STEPS * len(text))

    def string(self, characters: int) -> None:
        """Allow a string of this length. Call before it is made."""
        if characters > STRING_CHARACTERS:
            raise TooMuchWork(
                f"the expression makes a string of {characters:,} characters; the limit is {STRING_CHARACTERS:,}"
            )
        self.spend(1 + characters // 64)

    def items(self, count: int) -> None:
        """Allow a list or map of this length. Call before it is made."""
        if count > LIST_ITEMS:
            raise TooMuchWork(f"the expression makes a list of {count:,} items; the limit is {LIST_ITEMS:,}")
        self.spend(1 + count)

    def write(self, size: int) -> None:
        """Allow values of this size in the object's documents."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise TooMuchWork(
                f"the values of the tags of one object have more than {BYTES:,} bytes",
                hint="hand large values on as artifacts",
            )
        self.spend(size // 64)

    def add_nodes(self, count: int) -> None:
        """Allow more nodes. Call before they are made."""
        if self.nodes + count > OBJECT_NODES:
            raise TooMuchWork(
                f"with {count:,} more the workflow has {self.nodes + count:,} nodes; at most {OBJECT_NODES:,} are"
                " allowed",
                hint="give each step more of the work, or use a map",
            )
        if self.others + self.nodes + count > TENANT_NODES:
            raise TooMuchWork(
                f"with {count:,} more the running workflows of this namespace have"
                f" {self.others + self.nodes + count:,} nodes; at most {TENANT_NODES:,} are allowed at a time",
                hint="submit it again when others have ended",
            )
        self.nodes += count


_SHARED: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget:
    """The budget of the object that is decided about; a new one where there is no such object."""
    return _SHARED.get() or Budget()


@contextmanager
def shared(budget: Budget) -> Iterator[Budget]:
    """Have everything within take from one budget."""
    token = _SHARED.set(budget)
    try:
        yield budget
    finally:
        _SHARED.reset(token)


Elsewhere: TypeAlias = Callable[..., Any]
"""Calls a function, given first, with the arguments that follow, as another process does."""

_ELSEWHERE: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


def where() -> Elsewhere | None:
    """The evaluator in another process; None: this process evaluates."""
    return _ELSEWHERE.get()


@contextmanager
def elsewhere(evaluates: Elsewhere) -> Iterator[None]:
    """Have everything within evaluated by another."""
    token = _ELSEWHERE.set(evaluates)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)
