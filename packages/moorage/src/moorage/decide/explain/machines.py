"""A guest that waits behind the gate of its machine type: the guests ahead of it, and the time of its turn."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.explain.nodes import hold_of, sorted_holders
from moorage.decide.explain.pendingpod import PendingPod
from moorage.decide.explain.schedulerqueue import end_of, span_of, waiter
from moorage.decide.explain.snapshot import ParsedPod
from moorage.decide.explain.types import Earliest, Explanation, MachineLine
from moorage.decide.machines.eligibility import waits_of
from moorage.decide.machines.reservation import Guest, Share, plan
from moorage.decide.machines.reservation import Seen as MachineSeen
from moorage.decide.runs.forecast import Usual
from moorage.decide.usage.gpus import Holder, is_reservation
from moorage.model.machine import Pool, parse_machine
from moorage.model.names import (
    MACHINE_GATE,
    MACHINE_GROUP_LABEL,
    MACHINE_TYPE_LABEL,
    OWNER_LABEL,
    PLACE_ANNOTATION,
    WAITS_ANNOTATION,
)
from moorage_kube.errors import QuantityError
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu


class GuestLine(Struct, frozen=True, kw_only=True):
    """The machine type that a guest waits for, and all other guests of this type."""

    machine: MachineLine
    guests: Sequence[ParsedPod]
    pool: Pool | None = None  # None: no Machine of it could be read
    obj: Obj | None = None  # of the pool


def guest_line(pending: PendingPod) -> GuestLine | None:
    """The machine type that the pod waits for behind our gate. None if it does not wait for a machine."""
    labels = pending.me.labels
    group, kind = labels.get(MACHINE_GROUP_LABEL, ""), labels.get(MACHINE_TYPE_LABEL, "")
    if MACHINE_GATE not in pending.me.gates or not group or not kind:
        return None
    guests = tuple(
        other
        for other in pending.others
        if other.pod.labels.get(MACHINE_GROUP_LABEL) == group
        and other.pod.labels.get(MACHINE_TYPE_LABEL) == kind
        and not other.pod.finished
        and not is_reservation(other.pod)
    )
    used = sum(bool(guest.pod.node or guest.pod.annotations.get(PLACE_ANNOTATION)) for guest in guests)
    pool, obj = _pool_of(pending.snapshot.machines, group, kind)
    if pool is None:
        known = not pending.snapshot.machines  # no Machine could be read: so it is not called absent
        machine = MachineLine(group=group, type=kind, order="", available=0, used=used, known=known)
        return GuestLine(machine=machine, guests=guests)
    until, why = waits_of(pending.me.annotations.get(WAITS_ANNOTATION, "")) or (None, "")
    machine = MachineLine(
        group=group,
        type=kind,
        order=pool.order,
        available=pool.types[kind].available,
        used=used,
        waits_for=why,
        waits_until=until,
    )
    return GuestLine(machine=machine, guests=guests, pool=pool, obj=obj)


def _pool_of(machines: Sequence[Obj], group: str, kind: str) -> tuple[Pool | None, Obj | None]:
    """The last Machine that offers the type, parsed and as the object. (None, None) if no Machine offers it."""
    pool, obj = None, None
    for machine in machines:
        try:
            parsed = parse_machine(machine)
        except (QuantityError, KeyError, TypeError, ValueError):
            continue  # its Ready condition names the fault
        if parsed.group == group and kind in parsed.types:
            pool, obj = parsed, machine
    return pool, obj


def explain_guest(pending: PendingPod, start: Explanation, line: GuestLine) -> Explanation:
    """Explain a guest that waits for a place of its machine type, in the order of the pool."""
    machine = line.machine
    waiting = [guest for guest in line.guests if MACHINE_GATE in guest.pod.gates and not guest.pod.deleting]
    ahead = _ahead(pending.parsed, waiting, line, pending.now)
    placed = [guest for guest in line.guests if guest.holder is not None]
    resource = next((name for name in pending.me.requests if is_gpu(name)), "")
    earliest = likely = None
    if machine.waits_until is not None:
        earliest = Earliest(at=max(pending.now, machine.waits_until), node="")
    elif line.pool is not None and not start.troubles:
        earliest = _turn_comes(pending, machine, placed, ahead, usual=False)
        has_history = bool(pending.snapshot.history.took)
        likely = _turn_comes(pending, machine, placed, ahead, usual=True) if has_history else None
        if likely is not None and earliest is not None and likely.at >= earliest.at:
            likely = None
    return replace(
        start,
        state="gated",
        machine=machine,
        line=tuple(waiter(guest.pod) for guest in ahead),
        held_by=() if pending.brief else sorted_holders(hold_of(pending, guest, resource) for guest in placed),
        earliest=earliest,
        likely=likely,
        smaller=(),
    )


def _turn_comes(
    pending: PendingPod,
    machine: MachineLine,
    placed: Sequence[ParsedPod],
    ahead: Sequence[ParsedPod],
    *,
    usual: bool,
) -> Earliest | None:
    """The time at which this guest gets a place. Each ending guest passes its place to the next in line."""
    ticket = count()
    free = max(0, machine.available - machine.used)
    ends: list[tuple[datetime, int, Holder | None, Usual | None]] = [
        (pending.now, next(ticket), None, None) for _ in range(free)
    ]
    for guest in placed:
        end, by = end_of(pending, guest, usual=usual)
        if end is not None:
            ends.append((max(pending.now, end), next(ticket), guest.holder, by))
    heapq.heapify(ends)
    for guest in ahead:
        if not ends:
            return None
        at, _, _, _ = heapq.heappop(ends)
        if span := span_of(pending, guest, usual=usual):
            heapq.heappush(ends, (at + span, next(ticket), None, None))
    if not ends:
        return None
    at, _, after, by = ends[0]
    return Earliest(at=at, node="", after=after, usual=by)


def _ahead(mine: ParsedPod, waiting: Sequence[ParsedPod], line: GuestLine, now: datetime) -> list[ParsedPod]:
    """The waiting guests that the pool admits before this guest."""
    by_age = sorted((*waiting, mine), key=lambda guest: (_created(guest.obj), guest.pod.namespace, guest.pod.name))
    order: Sequence[str] = [guest.pod.uid for guest in by_age]
    if line.pool is not None and line.obj is not None:
        order = _order_of_pool(by_age, line.pool, line.obj, now) or order
    place = {uid: at for at, uid in enumerate(order)}
    mine_at = place.get(mine.pod.uid, len(order))
    before = [guest for guest in waiting if place.get(guest.pod.uid, len(order)) < mine_at]
    return sorted(before, key=lambda guest: place[guest.pod.uid])


def _order_of_pool(waiting: Sequence[ParsedPod], pool: Pool, machine: Obj, now: datetime) -> Sequence[str]:
    """The uids of the waiting guests, in the order in which the machine's controller would admit them."""
    status = machine.get("status") or {}
    shares = {
        share["owner"]: Share(used=int(share.get("used") or 0), holding=int(share.get("holding") or 0))
        for share in status.get("shares") or ()
    }
    guests = [
        Guest(
            namespace=guest.pod.namespace,
            name=guest.pod.name,
            uid=guest.pod.uid,
            type=guest.pod.labels.get(MACHINE_TYPE_LABEL, ""),
            owner=guest.pod.labels.get(OWNER_LABEL, ""),
            created=_created(guest.obj),
            gated=True,
        )
        for guest in waiting
    ]
    at = status.get("sharesAt")
    observed = MachineSeen(
        pool=pool,
        nodes={},
        reservations=(),
        guests=guests,
        now=now,
        shares=shares,
        shares_at=moment(at) if at else None,
    )
    return plan(observed).line


def _created(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "~")  # a pod not yet created comes last
