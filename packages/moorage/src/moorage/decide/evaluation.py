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
    """A user's expression or template cannot be parsed or evaluated."""


class TooMuchWork(TextError):
    """The evaluation exceeds a limit on steps or sizes."""


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
        """Start the next reconcile of the object: the count of steps begins again, bytes and nodes do not."""
        self.left, self.others = STEPS, others

    def take_over(self, other: Budget) -> None:
        """Continue with the rest of the same budget, after another process used some of it."""
        self.left, self.bytes_left, self.nodes = other.left, other.bytes_left, other.nodes

    def spend(self, steps: int = 1) -> None:
        """Use up steps. Raises TooMuchWork if too few are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork(
                f"the tags and expressions of one object take more than {STEPS:,} steps",
                hint="use smaller lists and strings",
            )

    def read(self, text: str) -> None:
        """Use up the steps for parsing a text: some for each character."""
        self.spend(1 + READ_STEPS * len(text))

    def string(self, characters: int) -> None:
        """Check the length of a string. Call this before you create the string."""
        if characters > STRING_CHARACTERS:
            raise TooMuchWork(
                f"the expression makes a string of {characters:,} characters; the limit is {STRING_CHARACTERS:,}"
            )
        self.spend(1 + characters // 64)

    def items(self, count: int) -> None:
        """Check the length of a list or map. Call this before you create it."""
        if count > LIST_ITEMS:
            raise TooMuchWork(f"the expression makes a list of {count:,} items; the limit is {LIST_ITEMS:,}")
        self.spend(1 + count)

    def write(self, size: int) -> None:
        """Count the size of values for the object's documents."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise TooMuchWork(
                f"the values of the tags of one object have more than {BYTES:,} bytes",
                hint="hand large values on as artifacts",
            )
        self.spend(size // 64)

    def add_nodes(self, count: int) -> None:
        """Count new nodes. Call this before you create them."""
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
    """The budget of the current object; a new budget if there is no current object."""
    return _SHARED.get() or Budget()


@contextmanager
def shared(budget: Budget) -> Iterator[Budget]:
    """Use one budget for all evaluations within the `with` block."""
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
    """Use another evaluator for all evaluations within the `with` block."""
    token = _ELSEWHERE.set(evaluates)
    try:
        yield
    finally:
        _ELSEWHERE.reset(token)
