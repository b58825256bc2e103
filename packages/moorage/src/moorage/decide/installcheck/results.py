"""The results of checks."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from moorage.decide.installcheck.facts import Unread


class Outcome(StrEnum):
    """Found: in order. Missing: it does not exist. Wrong: it exists with a fault. Unknown: it cannot be
    determined.
    """

    FOUND = "found"
    MISSING = "missing"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Result(Struct, frozen=True, kw_only=True):
    """The result of a check. `fix`: commands or sentences.

    `bearable`: the check is required, but this result is not a failure.
    """

    outcome: Outcome
    message: str
    fix: tuple[str, ...] = ()
    bearable: bool = False


def in_order(message: str) -> Result:
    return Result(outcome=Outcome.FOUND, message=message)


def missing(message: str, *fix: str, bearable: bool = False) -> Result:
    return Result(outcome=Outcome.MISSING, message=message, fix=fix, bearable=bearable)


def wrong(message: str, *fix: str, bearable: bool = False) -> Result:
    return Result(outcome=Outcome.WRONG, message=message, fix=fix, bearable=bearable)


def unknown(message: str, *fix: str) -> Result:
    return Result(outcome=Outcome.UNKNOWN, message=message, fix=fix)


def unread(what: str, reason: Unread) -> Result:
    """The result for an object that could not be read."""
    return unknown(f"{what} cannot be read: {reason.why}")


def some(names: list[str], most: int = 5) -> str:
    """The first `most` names, joined for display, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
