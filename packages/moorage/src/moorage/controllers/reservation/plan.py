"""Convert reservations and their pods between API objects and `moorage.decide.machines.calendar`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from moorage.controllers.machine.plan import guest_of, is_finished, is_reservation
from moorage.decide.machines.bookings import Hold
from moorage.decide.machines.calendar import Condition, Leave, Report, Seen
from moorage.decide.machines.reservation import Guest
from moorage.model.machine import Pool
from moorage.model.names import MACHINE_TYPE_LABEL, PLACE_ANNOTATION, PROMISED_TO_LABEL
from moorage.model.reservation import ACTIVE, EXPIRED, PENDING, PREPARING, REFUSED, Booking
from moorage_kube.meta import annotations_of, condition, is_condition_true, is_deleting, labels_of, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj

LEFT_REASON = "MachineReserved"  # of the condition DisruptionTarget on backfill that is asked to leave


class Event(Struct, frozen=True):
    """An event: its type, reason and message."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def seen_of(
    kind: str,
    *,
    pool: Pool | None,
    missing: int,
    bookings: Sequence[Booking],
    pods: Iterable[Obj],
    now: datetime,
) -> Seen[Guest]:
    """The calendar's input for one machine type.

    `pods` are those of its group; `pool` None if there is no such group.
    """
    # reservation pods show which guests have a promise
    promised_to, others = set(), []
    for pod in pods:
        if labels_of(pod).get(MACHINE_TYPE_LABEL) != kind:
            continue
        if not is_reservation(pod):
            others.append(pod)
        elif (
            (uid := labels_of(pod).get(PROMISED_TO_LABEL)) and pod["spec"].get("nodeName") and not is_deleting(pod)
        ):
            promised_to.add(uid)
    # a guest counts if it has a place or a promise
    guests = (
        guest_of(pod)
        for pod in others
        if (pod["metadata"]["uid"] in promised_to or PLACE_ANNOTATION in annotations_of(pod))
        and not is_finished(pod)
    )
    # without guests that only wait, or that end before they start
    holding = [
        guest
        for guest in guests
        if (guest.place and not guest.gated and (guest.node or not guest.deleting)) or guest.uid in promised_to
    ]
    known = pool.types.get(kind) if pool is not None else None
    return Seen(
        available=known.available if known is not None else None,
        missing=missing,
        bookings=bookings,
        guests=holding,
        now=now,
    )


def missing_of(machine: Mapping[str, Any], kind: str) -> int:
    """The number of machines of the type that do not fit on any node, from the Machine's status."""
    for available_machine in (machine.get("status") or {}).get("availableMachines") or ():
        if available_machine.get("name") == kind:
            return int((available_machine.get("usage") or {}).get("unplaced") or 0)
    return 0


def make_status(obj: Mapping[str, Any], report: Report[Guest], now: datetime) -> Obj | None:
    """The new status of the reservation; None if it is unchanged."""
    status = obj.get("status") or {}
    wanted: Obj = {
        "phase": report.phase,
        "held": report.held,
        "inUse": report.in_use,
        "shortfall": report.shortfall,
        "fullAt": rfc3339(report.full_at) if report.full_at else None,
        "blockedBy": [
            {"owner": blocking.guest.owner, "namespace": blocking.guest.namespace, "pod": blocking.guest.name}
            | ({"until": rfc3339(blocking.until)} if blocking.until else {})
            for blocking in report.blocked_by
        ],
        "granted": _granted(report.hold) if report.hold else None,
        "conditions": _conditions(status.get("conditions") or (), report.conditions, now),
        "observedGeneration": obj["metadata"].get("generation") or 0,
    }
    return wanted if any(status.get(key) != value for key, value in wanted.items()) else None


def unreadable(obj: Mapping[str, Any], error: Exception, now: datetime) -> Obj | None:
    """The status of an invalid reservation. None if the status already says so."""
    refused = Condition("Accepted", "False", "Invalid", str(error))
    had = (obj.get("status") or {}).get("conditions") or ()
    wanted: Obj = {
        "phase": REFUSED,
        "conditions": _conditions(had, (refused,), now),
        "observedGeneration": obj["metadata"].get("generation") or 0,
    }
    status = obj.get("status") or {}
    return wanted if any(status.get(key) != value for key, value in wanted.items()) else None


def events_of(obj: Mapping[str, Any], report: Report[Guest]) -> list[Event]:
    """The events since the status in `obj`."""
    before = (obj.get("status") or {}).get("phase")
    accepted, held = report.conditions
    events = []
    if report.phase != before and report.hold is not None:
        events.append(Event("Normal", report.phase, _sentence(report.phase, report.hold)))
    was_refused = (condition(obj, "Accepted") or {}).get("reason") == accepted.reason
    if accepted.status == "False" and not was_refused:
        events.append(Event("Warning", accepted.reason, accepted.message))
    was_short = (condition(obj, "Held") or {}).get("reason") == "Shortfall"
    if held.reason == "Shortfall" and not was_short:
        events.append(Event("Warning", "Shortfall", held.message))
    return events


def leaving_status(pod: Mapping[str, Any], leave: Leave[Guest], now: datetime) -> Obj | None:
    """The status patch with the reason why a pod will be deleted. None if the pod already has a reason.

    The pod's Job and our own restarts then treat the end as a disruption and not as a failure.
    """
    if is_condition_true(pod, "DisruptionTarget"):
        return None
    had = (pod.get("status") or {}).get("conditions") or ()
    conditions = with_condition(
        had, "DisruptionTarget", "True", now=rfc3339(now), reason=LEFT_REASON, message=why_it_leaves(leave)
    )
    return {
        "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]},
        "status": {"conditions": conditions},
    }


def why_it_leaves(leave: Leave[Guest]) -> str:
    """The reason for the deletion, for the pod's owner."""
    terms = leave.hold.terms
    return f"Its machine is reserved from {rfc3339(terms.start)} for {leave.hold.whom} ({leave.hold.key})"


def _sentence(phase: str, hold: Hold) -> str:
    terms, what = hold.terms, f"{hold.terms.count} {hold.booking.type}"
    sentences = {
        PENDING: f"{what} will be reserved from {rfc3339(terms.start)} to {rfc3339(terms.end)}",
        PREPARING: f"No guest without a time limit starts on {what} any more",
        ACTIVE: f"{what} are reserved until {rfc3339(terms.end)}",
        EXPIRED: f"It ended at {rfc3339(terms.end)}: the machines are released",
    }
    return sentences[phase]


def _granted(hold: Hold) -> Obj:
    return {
        "machineGroup": hold.booking.group,
        "machineType": hold.booking.type,
        "count": hold.terms.count,
        "from": rfc3339(hold.terms.start),
        "to": rfc3339(hold.terms.end),
        "at": rfc3339(hold.since),
    }


def _conditions(had: Sequence[Obj], stated: Iterable[Condition], now: datetime) -> list[Obj]:
    conditions = list(had)
    for wanted in stated:
        conditions = with_condition(
            conditions, wanted.type, wanted.status, now=rfc3339(now), reason=wanted.reason, message=wanted.message
        )
    return conditions
