"""`moor machines`: which machines there are, who holds them, and how many wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from moorage.apimachinery.resources import Obj
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.machines.listing import booked_of, complaints, rows_of
from moorage.errors import Forbidden, NotFound, NotReady
from moorage.model.machine import MACHINES, group_of
from moorage.model.reservation import RESERVATIONS

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
