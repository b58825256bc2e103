"""The controller of Reservations: the reads and writes around `moorage.decide.machines.calendar`.

One pass looks at all reservations of one machine type, so that of two that do not fit together one is granted.
The machine controller uses the same calendar to decide which guest gets a free place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from moorage.controllers.base import Controller, Shared
from moorage.controllers.machine.controller import MachineController
from moorage.controllers.reservation.plan import (
    events_of,
    leaving_status,
    make_status,
    missing_of,
    seen_of,
    unreadable,
    why_it_leaves,
)
from moorage.decide.machines.calendar import Leave, look_again_in, plan
from moorage.decide.machines.reservation import Guest
from moorage.model.machine import Pool, group_of, parse_machine
from moorage.model.names import MACHINE_GROUP_LABEL, MACHINE_TYPE_LABEL
from moorage.model.reservation import RESERVATIONS, Booking, parse_reservation
from moorage_kube.errors import NotFound, QuantityError
from moorage_kube.meta import Key, labels_of
from moorage_kube.resources import PODS, Obj


class ReservationController(Controller):
    """The controller of reservations; one per operator. Keys are (machine group, machine type).

    It uses the informers of its machine controller.
    """

    def __init__(self, shared: Shared, machines: MachineController) -> None:
        super().__init__(shared, "reservation")
        self._machines, self._pods = machines.machines, machines.pods
        self._reservations = machines.reservations
        self._written: dict[str, Obj] = {}  # by uid: as we wrote it, until the watch has shown it
        self._reservations.on_change(self._forget)
        self.loop.hear(self._reservations, lambda obj: [_key(obj)])
        self.loop.hear(self._machines, self._types_of)
        self.loop.hear(self._pods, self._type_of)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Check all reservations of one machine type and write their status.

        Returns the time until the next look.
        """
        now = self._clock.now()
        known: dict[Key, Obj] = {}
        bookings: list[Booking] = []
        for obj in self._of_type(key):
            try:
                booking = parse_reservation(obj)
            except (ValueError, KeyError, TypeError) as error:
                await self._write_status(obj, unreadable(obj, error, now))
                continue
            known[booking.key] = obj
            bookings.append(booking)
        if not bookings:
            return None
        machine, pool = self._machine(key.namespace)
        pods = {pod["metadata"]["uid"]: pod for pod in self._pods.by_index("group", key.namespace)}
        seen = seen_of(
            key.name,
            pool=pool,
            missing=missing_of(machine, key.name) if machine is not None else 0,
            bookings=bookings,
            pods=pods.values(),
            now=now,
        )
        decided = plan(seen)
        for report in decided.reports:
            obj = known[report.booking.key]
            if await self._write_status(obj, make_status(obj, report, now)):
                for event in events_of(obj, report):
                    await self._events.record(obj, event.type, event.reason, event.message)
        for leave in decided.leave:
            await self._ask_to_leave(pods[leave.guest.uid], leave)
        return look_again_in(decided.wake_at, now)

    # --- reads

    def _of_type(self, key: Key) -> list[Obj]:
        """The reservations from the watch, or as we wrote them since, so that a grant is never lost."""
        return [
            self._written.get(obj["metadata"]["uid"], obj)
            for obj in self._reservations.by_index("group", key.namespace)
            if _key(obj) == key
        ]

    def _machine(self, group: str) -> tuple[Obj | None, Pool | None]:
        """The Machine of the group. If there are two: the older one, as in the machine controller."""
        machines = [machine for machine in self._machines.all() if group_of(machine) == group]
        if not machines:
            return None, None
        machine = min(
            machines,
            key=lambda machine: (machine["metadata"].get("creationTimestamp") or "", machine["metadata"]["name"]),
        )
        try:
            return machine, parse_machine(machine)
        except QuantityError:
            return machine, None

    # --- writes

    async def _write_status(self, obj: Obj, status: Obj | None) -> bool:
        """Write the status if it changed. Returns whether it was written.

        Applies only to the version that was read.
        """
        if status is None:
            return False
        meta = obj["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
        try:
            written = await self._api.patch(
                RESERVATIONS, meta["name"], patch, meta["namespace"], subresource="status"
            )
        except NotFound:
            return False  # cancelled meanwhile; the watch will say so
        known = self._reservations.get(meta["name"], meta["namespace"])
        if known is not None and _version(known) < _version(written):  # else the watch was quicker than the answer
            self._written[meta["uid"]] = written
        return True

    async def _ask_to_leave(self, pod: Obj, leave: Leave[Guest]) -> None:
        """Write the reason on the pod, then delete it with its grace period.

        An interrupted pass is completed by the next.
        """
        meta = pod["metadata"]
        with contextlib.suppress(NotFound):
            status = leaving_status(pod, leave, self._clock.now())
            if status is not None:
                await self._api.patch(PODS, meta["name"], status, meta["namespace"], subresource="status")
            await self._api.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
            await self._events.record(pod, "Normal", "LeavesForReservation", why_it_leaves(leave))

    # --- changes

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            self._written.pop(before["metadata"]["uid"], None)
        elif after is not None:
            written = self._written.get(after["metadata"]["uid"])
            if written is not None and _version(after) >= _version(written):
                del self._written[after["metadata"]["uid"]]

    def _types_of(self, machine: Obj) -> Iterable[Key]:
        group = group_of(machine)
        return {_key(reservation) for reservation in self._reservations.by_index("group", group)}

    def _type_of(self, pod: Obj) -> Iterable[Key]:
        labels = labels_of(pod)
        key = Key(labels.get(MACHINE_GROUP_LABEL, ""), labels.get(MACHINE_TYPE_LABEL, ""))
        reservations = self._reservations.by_index("group", key.namespace)
        return [key] if any(_key(reservation) == key for reservation in reservations) else ()


def _key(obj: Mapping[str, Any]) -> Key:
    spec = obj.get("spec") or {}
    return Key(str(spec.get("machineGroup") or ""), str(spec.get("machineType") or ""))


def _version(obj: Mapping[str, Any]) -> int:
    """The resource version as a number. Versions of one collection grow: https://kep.k8s.io/5504."""
    try:
        return int(obj["metadata"].get("resourceVersion") or 0)
    except ValueError:
        return 0
