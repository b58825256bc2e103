"""When the owner of a map gets a notice, and its text.

The caller stores the marks of sent notices with the map, and passes them each time: a notice is due at most once
for each start of the map, however often the caller itself is restarted. Store the new marks before sending: then a
crash in between loses a notice rather than sending it again with every restart.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from moorage_kube.errors import UsageError

EXCERPT = 500  # characters of an item's output that go into a notice
ENOUGH = 20  # items finished before a share of failures means something; smaller maps: all of them


class Event(StrEnum):
    FIRST_FAILURE = "first-failure"
    FAILURE_SHARE = "failure-share"
    ENDED = "ended"


class NoticeRules(Struct, frozen=True, kw_only=True):
    """The notices that a user wants. `failure_share`: of the items finished, above 0 to 1; None: never."""

    first_failure: bool = True
    failure_share: float | None = None
    at_end: bool = True

    def __post_init__(self) -> None:
        if self.failure_share is not None and not 0 < self.failure_share <= 1:
            raise UsageError(f"invalid share of failures {self.failure_share:g}, not above 0 and up to 1")


class MapState(Struct, frozen=True, kw_only=True):
    """The present state of a map. `round` counts its starts, from 1: a retry is a new round with new notices."""

    namespace: str
    name: str
    round: int = 1
    total: int
    done: int
    failed: int  # for good; those that will be tried again do not count
    ended: bool = False
    outcome: str = ""  # once ended: "succeeded", "failed", "cancelled"
    seconds: float | None = None  # since the start
    first_failed_item: str = ""
    first_error: str = ""  # its last output; may hold anything
    address: str = ""  # of the list of items


class Notice(Struct, frozen=True, kw_only=True):
    """The text of a notice. Plain text without control characters; senders escape it for their medium."""

    event: StrEnum
    key: str  # the same for the same notice, always: receivers may drop a second one
    title: str  # one line
    lines: tuple[str, ...]
    address: str = ""

    @property
    def text(self) -> str:
        return "\n".join((self.title, *self.lines, *((self.address,) if self.address else ())))


class Due(Struct, frozen=True):
    """The notifications to send, and all marks to store before that: the old and the new ones."""

    notices: tuple[Notice, ...]
    marks: frozenset[str]


def due(rules: NoticeRules, state: MapState, marks: frozenset[str]) -> Due:
    """The notices due now. Asking again with the returned marks yields nothing until something happens.

    At the end only the end is reported, with its counts; events not reported until then count as reported.
    """
    happened: list[Event] = []
    if rules.first_failure and state.failed:
        happened.append(Event.FIRST_FAILURE)
    if rules.failure_share is not None and _share_reached(state, rules.failure_share):
        happened.append(Event.FAILURE_SHARE)
    if rules.at_end and state.ended:
        happened.append(Event.ENDED)
    new = [event for event in happened if _mark(event, state) not in marks]
    events = [Event.ENDED] if Event.ENDED in new else new if not state.ended or not rules.at_end else []
    return Due(
        tuple(_notice(event, rules, state) for event in events), marks | {_mark(event, state) for event in new}
    )


def _share_reached(state: MapState, share: float) -> bool:
    finished = state.done + state.failed
    return state.failed > 0 and finished >= min(ENOUGH, state.total) and state.failed >= share * finished


def _mark(event: Event, state: MapState) -> str:
    return f"{event}/{state.round}"


def _notice(event: Event, rules: NoticeRules, state: MapState) -> Notice:
    finished = state.done + state.failed
    name = f"map {state.namespace}/{state.name}"
    counts = f"{state.done:,} of {state.total:,} items done, {state.failed:,} failed"
    left = state.total - finished
    lines = [counts + (f", {left:,} left" if left else "")]
    match event:
        case Event.FIRST_FAILURE:
            title = f"{name}: an item failed"
        case Event.FAILURE_SHARE:
            seen = state.failed / finished
            title = f"{name}: {seen:.1%} of the items finished have failed (reported at {rules.failure_share:.1%})"
        case Event.ENDED:
            title = f"{name}: {state.outcome or 'ended'}"
            if state.seconds is not None:
                from moorage.decide.maps.durations import say

                lines.append(f"after {say(state.seconds)}")
    if state.first_failed_item:
        lines.append(f"first failed item: {plain(state.first_failed_item)[:EXCERPT]}")
    if state.first_error:
        lines.append(plain(state.first_error)[-EXCERPT:])
    key = f"{state.namespace}/{state.name}/{_mark(event, state)}"
    return Notice(event=event, key=key, title=plain(title), lines=tuple(lines), address=plain(state.address))


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def plain(text: str) -> str:
    """Clean a text for one line: no control characters, surrogates and marks that change the text direction."""
    return _CONTROL.sub(" ", text).strip()
