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
    """One result. `fix`: commands to type, or sentences. `bearable`: no failure, though the check is required."""

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
    """Names in a row, the first few."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
