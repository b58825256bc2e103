"""Limits of every evaluation, so that no manifest keeps the operator busy or fills its memory."""

from __future__ import annotations

from moorage.decide.workflows.text.errors import TooMuchWork

TEXT_CHARACTERS = 64 * 1024  # of one expression or condition; a Kubernetes object holds about 1.5 MB
NODES = 10_000  # of an expression's tree, as expr-lang has it
DEPTH = 100  # of an expression's tree; some three Python frames each, of 1,000
STEPS = 500_000  # of one evaluation; half a second of one core
STRING_CHARACTERS = 4 * 1024 * 1024  # of one string that an expression makes
LIST_ITEMS = 100_000  # of one list that an expression makes
LAYOUT_CHARACTERS = 1024  # of a date's layout; those of RFC 3339 and others have at most 35
PATTERN_BYTES = 8 * 1024 * 1024  # memory of one regular expression


class Budget:
    """The steps that one evaluation may still take.

    A step is one element visited, or 64 characters written.
    """

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Take steps. Raises TooMuchWork when none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork(f"the expression takes more than {STEPS:,} steps", hint="work on smaller lists")

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
