"""Reservations: machines reserved for a user or a namespace, from one time to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from moorage.actions.objects import Kind, create_object, get_object, no_kind, refuse
from moorage.decide.machines.calendar import check
from moorage.model.machine import MACHINES, Pool, parse_machine
from moorage.model.reservation import RESERVATIONS, Booking, bookings_of
from moorage_kube.api import Api
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.meta import is_deleting, key_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj

RESERVATION = Kind(RESERVATIONS, "reservation")


def plan_reservation(
    name: str, namespace: str, *, group: str, kind: str, count: int, begins: datetime, ends: datetime,
    user: str = "", lead_seconds: int | None = None,
) -> Obj:  # fmt: skip
    """The Reservation of `count` machines of a type; for the namespace if it names no user."""
    spec: Obj = {
        "machineGroup": group,
        "machineType": kind,
        "count": count,
        "from": rfc3339(begins),
        "to": rfc3339(ends),
    }
    if user:
        spec["user"] = user
    if lead_seconds is not None:
        spec["leadSeconds"] = lead_seconds
    return {
        "apiVersion": RESERVATIONS.api_version,
        "kind": RESERVATIONS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


async def read_calendar(api: Api) -> tuple[list[Pool], list[Booking]]:
    """The machines of the cluster, and their reservations. Raises NotReady if the kinds are missing."""
    try:
        machines = (await api.list(MACHINES)).items
        reservations = (await api.list(RESERVATIONS)).items
    except NotFound as error:
        raise no_kind(RESERVATIONS) from error
    return [parse_machine(machine) for machine in machines if not is_deleting(machine)], bookings_of(reservations)


async def list_reservations(api: Api, namespace: str | None = None) -> list[Obj]:
    """Reservations of one namespace or of all, sorted by their start. Raises NotReady."""
    try:
        objs = (await api.list(RESERVATIONS, namespace)).items
    except NotFound as error:
        raise no_kind(RESERVATIONS) from error
    return sorted(objs, key=lambda obj: (str(obj["spec"]["from"]), key_of(obj)))


def judge(
    obj: Obj, pools: Sequence[Pool], calendar: Sequence[Booking], *, now: datetime,
    when: Callable[[datetime], str] = rfc3339,
) -> None:  # fmt: skip
    """Check a reservation: raise Conflict if the machines are not free, InvalidObject if it is invalid.

    The webhook makes the same checks; this function also covers a cluster without the webhook.
    """
    faults = check(obj, None, pools, calendar, now=now, when=when)
    conflicts = [fault.message for fault in faults if fault.field == "spec.count"]
    if conflicts:
        raise Conflict(conflicts[0], hint="list the reservations: moor reserve list", field="count")
    refuse(faults)


async def create_reservation(api: Api, obj: Obj, *, dry_run: bool = False) -> Obj:
    """Create a checked reservation. Raises AlreadyExists."""
    return await create_object(api, RESERVATION, obj, dry_run=dry_run)


async def get_reservation(api: Api, namespace: str, name: str) -> Obj:
    """One reservation. Raises NotFound."""
    return await get_object(api, RESERVATION, namespace, name)


async def cancel_reservation(api: Api, namespace: str, name: str) -> None:
    """Delete a reservation: its machines are free at once, running pods continue. Raises NotFound."""
    obj = await get_reservation(api, namespace, name)
    await api.delete(RESERVATIONS, name, namespace, uid=obj["metadata"]["uid"])
