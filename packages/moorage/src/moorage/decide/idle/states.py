"""The states of work that holds GPUs, the legal moves between them, and the record that is stored with the work.

The record is one annotation on the object: it is deleted with the object, and a restarted server reads it. Work
without a record is active. docs/explanation/idle.md draws the moves from `MOVES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from moorage.model.moves import Moves

HISTORY = 8  # moves that are stored in a record


class State(StrEnum):
    """The state of a piece of work."""

    ACTIVE = "active"
    IDLE = "idle"
    WARNED = "warned"
    REMINDED = "reminded"
    SNOOZED = "snoozed"
    SUSPENDED = "suspended"
    EXEMPT = "exempt"


MEANINGS: Mapping[State, str] = {
    State.ACTIVE: "The work is used, or its use is unknown.",
    State.IDLE: "The work is idle, for a shorter time than `warnAfter` of the policy.",
    State.WARNED: "The owner was warned.",
    State.REMINDED: "The owner was reminded.",
    State.SNOOZED: "The owner snoozed the work until a certain time.",
    State.SUSPENDED: "The work was suspended. Its volumes stay, and one command resumes it.",
    State.EXEMPT: "The policy exempts the work.",
}

MOVES: Moves[State] = Moves("work", {
    (None, State.ACTIVE): "",
    (State.ACTIVE, State.IDLE): "two windows without use",
    (State.ACTIVE, State.SNOOZED): "its owner snoozes it",
    (State.ACTIVE, State.EXEMPT): "the policy exempts it",
    (State.IDLE, State.ACTIVE): "it is used, or not measured",
    (State.IDLE, State.WARNED): "idle for warnAfter",
    (State.IDLE, State.SNOOZED): "its owner snoozes it",
    (State.IDLE, State.EXEMPT): "the policy exempts it",
    (State.WARNED, State.ACTIVE): "it is used, or not measured",
    (State.WARNED, State.WARNED): "the warning was not delivered: another",
    (State.WARNED, State.REMINDED): "remindAfter since the warning",
    (State.WARNED, State.SUSPENDED): "suspendAfter since the warning",
    (State.WARNED, State.SNOOZED): "its owner snoozes it",
    (State.WARNED, State.EXEMPT): "the policy exempts it",
    (State.REMINDED, State.ACTIVE): "it is used, or not measured",
    (State.REMINDED, State.WARNED): "notices were not delivered: another warning",
    (State.REMINDED, State.SUSPENDED): "suspendAfter since the warning",
    (State.REMINDED, State.SNOOZED): "its owner snoozes it",
    (State.REMINDED, State.EXEMPT): "the policy exempts it",
    (State.SNOOZED, State.ACTIVE): "the snooze is over, and it is used",
    (State.SNOOZED, State.IDLE): "the snooze is over, and it is idle",
    (State.SNOOZED, State.SNOOZED): "its owner snoozes it again",
    (State.SNOOZED, State.EXEMPT): "the policy exempts it",
    (State.SUSPENDED, State.ACTIVE): "a user resumes it",
    (State.EXEMPT, State.ACTIVE): "the policy does not exempt it any more",
})  # fmt: skip


class Record(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The stored state of one piece of work. Every moment is in UTC.

    `pending`: the action that was about to be done when this was written: "warn", "remind", "suspend" or "report"
    (the notice of the suspension). A server that finds it at its start does not know whether it was done.
    """

    state: State = State.ACTIVE
    since: datetime | None = None  # idle since; None: it is not
    why: str = ""
    at: datetime | None = None  # when it came into this state
    warned_at: datetime | None = None
    warnings: int = 0  # since it became idle
    delivered: bool = False  # at least one notice since the first warning was delivered
    pending: str = ""
    suspended_at: datetime | None = None
    snoozed_until: datetime | None = None
    snoozed_by: str = ""
    snoozes: int = 0  # in a row, since it was last used
    next: str = ""  # the next step, unless it is used: warn, remind, suspend, or end (of a snooze)
    next_at: datetime | None = None
    policy: str = ""
    gpus: int = 0  # that it held when this was written
    node: str = ""  # of the GPUs, when it was suspended; several with ", " between them
    devices: tuple[str, ...] = ()  # the GPUs, when it was suspended: "NODE/ID"; empty: the node names none
    went_to: str = ""  # their next user, for display
    told_at: datetime | None = None  # when `why` was last written
    history: tuple[str, ...] = ()  # "warned 2026-01-31T09:10:00Z", oldest first


def move(record: Record, to: State, now: datetime, **changes: Any) -> Record:
    """Move a record to another state. Raises IllegalMove."""
    MOVES.check(record.state, to, record.history)
    entry = f"{to} {now:%Y-%m-%dT%H:%M:%SZ}"
    history = (*record.history, entry)[-HISTORY:]
    return msgspec.structs.replace(record, state=to, at=now, history=history, **changes)


def read_record(text: str | None) -> Record:
    """Parse the annotation; an empty record if it is missing or unreadable."""
    if not text:
        return Record()
    try:
        return msgspec.json.decode(text, type=Record)
    except (msgspec.MsgspecError, ValueError):  # it was written by hand
        return Record()


def write_record(record: Record) -> str | None:
    """The annotation for a record; None if there is nothing to store."""
    if record.state is State.ACTIVE and not record.snoozes and not record.pending:
        return None
    return msgspec.json.encode(record).decode()
