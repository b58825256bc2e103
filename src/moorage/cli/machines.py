"""`moor machines`: which machines there are, who holds them, and how many wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from moorage.apimachinery.meta import condition
from moorage.apimachinery.resources import Obj
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.errors import Forbidden, NotFound, NotReady
from moorage.model.machine import FIFO, MACHINES, group_of
from moorage.model.reservation import ACTIVE, RESERVATIONS

HEADERS = (
    "GROUP", "TYPE", "MAXIMUM", "RESERVED", "USED", "WAITING", "PENDING", "UNMANAGED", "BOOKED", "SIZE", "READY"
)  # fmt: skip


@console.command(
    examples={
        "moor machines": "the machines of every type",
        "moor machines lab": "the machines of one group",
    }
)
@click.argument("group", required=False)
@console.output_option
@target_options
def machines(target: Target, group: str | None, output: str) -> int:
    """Show the machines of each type: how many there are, reserved, used, waited for, and booked."""

    async def work(session: Session) -> int:
        try:
            all_machines = (await session.api.list(MACHINES)).items
        except NotFound as error:
            raise NotReady(
                "this cluster has no kind Machine", hint="install Moorage's definitions first"
            ) from error
        shown = [machine for machine in all_machines if group is None or group_of(machine) == group]
        booked = booked_of(await _calendar(session))
        rows = [row for machine in shown for row in rows_of(machine, booked)]
        console.print_listing(
            output,
            headers=HEADERS,
            rows=lambda: [_cells(row) for row in rows],
            items=rows,
            names=[f"{row['group']}/{row['type']}" for row in rows],
            nothing=f"machine group {group} not found" if group else "no machines in this cluster",
        )
        if output in console.TABLES:
            for machine in shown:
                for message in complaints(machine):
                    console.note(f"{group_of(machine)}: {message}")
        return 0

    return in_session(target, work)


async def _calendar(session: Session) -> list[Obj]:
    try:
        return (await session.api.list(RESERVATIONS)).items
    except (NotFound, Forbidden):  # an older installation
        return []


def booked_of(reservations: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Machines of each (group, type) that a reservation of the calendar keeps right now, in use or not."""
    booked: dict[tuple[str, str], int] = {}
    for reservation in reservations:
        spec, status = reservation.get("spec") or {}, reservation.get("status") or {}
        if status.get("phase") == ACTIVE:
            key = (str(spec.get("machineGroup")), str(spec.get("machineType")))
            booked[key] = booked.get(key, 0) + int(status.get("held") or 0)
    return booked


def rows_of(
    machine: Mapping[str, Any], booked: Mapping[tuple[str, str], int] | None = None
) -> list[dict[str, Any]]:
    """One row for each machine type, as JSON shows it."""
    booked = booked or {}
    spec, status = machine.get("spec") or {}, machine.get("status") or {}
    usage = {machine["name"]: machine["usage"] for machine in status.get("availableMachines") or ()}
    ready = condition(machine, "Ready")
    return [
        {
            "group": group_of(machine),
            "type": kind["name"],
            "size": kind["spec"],
            "available": kind["available"],
            "order": spec.get("order") or FIFO,
            "usage": usage.get(kind["name"]),
            "booked": booked.get((group_of(machine), kind["name"]), 0),
            "ready": (ready or {}).get("status", "Unknown"),
            "reason": (ready or {}).get("reason", ""),
        }
        for kind in spec.get("machineTypes") or ()
    ]


def complaints(machine: Mapping[str, Any]) -> Sequence[str]:
    """What the conditions say is not as it should be."""
    bad = {"Ready": "False", "Oversubscribed": "True", "UnmanagedGuests": "True"}
    return [
        str(reported["message"])
        for kind, word in bad.items()
        if (reported := condition(machine, kind)) is not None
        and reported.get("status") == word
        and reported.get("message")
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    size, usage = row["size"], row["usage"] or {}
    gpu = size.get("gpu") or {}
    shown = f"{size['cpu']} CPU, {size['memory']}" + (f", {gpu['num']} {gpu['type']}" if gpu else "")
    counts = [
        str(usage.get(key, "")) for key in ("maximum", "reserved", "used", "waiting", "pending", "unmanaged")
    ]
    counts.append(str(row["booked"] or ""))
    ready = row["ready"] if row["ready"] == "True" else f"{row['ready']} ({row['reason']})"
    return [row["group"], row["type"], *counts, shown, ready]
