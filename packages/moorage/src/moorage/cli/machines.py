"""`moor machines`: list the machines that users can request, and the users of a group's machines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from moorage import settings
from moorage.cli import console
from moorage.cli.listing import Listing, watch_option
from moorage.cli.nodes import read_nodes
from moorage.cli.plan import load_sheet
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.watching import follow
from moorage.decide.machines.listing import booked_of, complaints, rows_of
from moorage.decide.machines.offers import MachineOffer, how_to_ask, offers_of, price_of
from moorage.decide.machines.quota import quota_words
from moorage.model.machine import MACHINES, group_of
from moorage.model.prices import PriceSheet
from moorage.model.reservation import RESERVATIONS
from moorage_kube.errors import ApiError, Forbidden, NotFound, NotReady
from moorage_kube.quantity import format_bytes, format_milli
from moorage_kube.resources import Obj, Resource

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
GROUP_HEADERS = (
    "GROUP", "TYPE", "MAXIMUM", "RESERVED", "USED", "WAITING", "PENDING", "UNMANAGED", "BOOKED", "SIZE", "READY"
)  # fmt: skip
HEADERS = ("TYPE", "FREE", "READY", "GPUS", "CPU", "MEMORY", "MARKET", "REGION")
NO_NODES = (
    "this cluster has no nodes; its administrator adds them: by node pools of the cloud, or by moor up --nodes 2"
    " on one machine"
)


@console.command(
    examples={
        "moor machines": "every type of machine, how much is free, and how to ask for it",
        "moor machines --prices prices.yaml": "with the price of each per hour",
        "moor machines lab": "holders of the machines of one group of kind Machine",
        "moor machines --watch": "keep the list up to date",
    }
)
@click.argument("group", required=False)
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Price file, as moor plan reads it (default: $MOORAGE_PRICES).",
)
@watch_option
@console.output_option
@target_options
def machines(target: Target, group: str | None, prices: Path | None, watch: bool, output: str) -> int:
    """List the types of machines.

    For each type: GPUs, CPU and memory of one machine, how many are ready, how much is free, and how to ask.

    FREE counts GPUs, or CPUs where there are none, on the nodes that are ready. MARKET is spot (the node may
    be taken away) or on-demand, if labels of the nodes say so. A name in brackets is the only machine group
    or tenant that may use these nodes. A type GROUP/TYPE is of kind Machine: its places are reserved for pods
    that ask for it. With GROUP, show that group: how many machines are reserved, used, waited for and booked.
    """
    file = prices or settings.PRICES.read(os.environ)
    sheet = load_sheet(Path(file)) if file else None

    async def work(session: Session) -> int:
        if watch:

            async def read_again() -> Listing:
                return (await _read(session, group, sheet)).listing

            return await follow(session, (), read_again, output=output)
        answer = await _read(session, group, sheet)
        answer.listing.show(output)
        if output in console.TABLES:
            for line in answer.lines:
                console.say(line)
            if group is None and answer.listing.items and (words := await _quota(session)):
                console.say(words)
        return 0

    return in_session(target, work)


class _Answer(Struct, frozen=True):
    """A listing, and the lines below its table."""

    listing: Listing
    lines: tuple[str, ...]


async def _read(session: Session, group: str | None, sheet: PriceSheet | None) -> _Answer:
    if group is not None:
        return await _group(session, group)
    offers = offers_of((await read_nodes(session)).nodes)
    held, notes = await _held(session)
    priced = ("PRICE/H",) if sheet is not None else ()
    rows = [_offer_row(offer, sheet) for offer in offers]
    rows += [_held_row(row, priced=bool(priced)) for row in held]
    return _Answer(
        Listing(
            headers=(*HEADERS[:2], *priced, *HEADERS[2:]),
            rows=lambda: rows,
            items=[*(_offer_item(offer, sheet) for offer in offers), *map(_held_item, held)],
            names=[row[0] for row in rows],
            nothing=NO_NODES,
            keys=[f"{at}" for at in range(len(rows))],
        ),
        (*_ways(offers, held), *notes),
    )


def _ways(offers: Iterable[MachineOffer], held: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """The commands that request each type; duplicates are left out."""
    types: dict[str, list[str]] = {}
    for offer in offers:
        if offer.kept_for:
            continue
        types.setdefault(how_to_ask(offer), []).append(offer.name)
    for row in held:
        types.setdefault(_ask(row), []).append(_type(row))
    if types:
        yield "ask for one:"
    width = max((len(command) for command in types), default=0)
    for command, names in types.items():
        yield f"  {command:<{width}}  # {', '.join(dict.fromkeys(names))}"


def _offer_row(offer: MachineOffer, sheet: PriceSheet | None) -> list[str]:
    free = (
        f"{offer.free_gpus}/{offer.all_gpus} GPUs"
        if offer.gpus
        else f"{format_milli(offer.free_cpu)}/{format_milli(offer.cpu * offer.nodes)} CPUs"
    )
    price = []
    if sheet is not None:
        known = price_of(offer, sheet)
        price = [f"{known.price_per_hour:.2f} {sheet.currency}" if known else ""]
    return [
        f"{offer.name} ({offer.kept_for})" if offer.kept_for else offer.name,
        free,
        *price,
        f"{offer.ready}/{offer.nodes}",
        f"{offer.gpus} {offer.gpu_type}" if offer.gpus else "",
        format_milli(offer.cpu),
        format_bytes(offer.memory),
        offer.market,
        offer.region,
    ]


def _offer_item(offer: MachineOffer, sheet: PriceSheet | None) -> dict[str, Any]:
    known = None if sheet is None else price_of(offer, sheet)
    return {
        "kind": "Node",
        "type": offer.name,
        "keptFor": offer.kept_for,
        "region": offer.region,
        "market": offer.market,
        "gpuType": offer.gpu_type,
        "gpus": offer.gpus,
        "cpuMillicores": offer.cpu,
        "memoryBytes": offer.memory,
        "count": offer.nodes,
        "ready": offer.ready,
        "gpusFree": offer.free_gpus,
        "gpusTogether": offer.together,
        "cpuFreeMillicores": offer.free_cpu,
        "memoryFreeBytes": offer.free_memory,
        "pricePerHour": None if known is None else known.price_per_hour,
        "currency": "" if known is None or sheet is None else sheet.currency,
        "ask": "" if offer.kept_for else how_to_ask(offer),
    }


def _type(row: Mapping[str, Any]) -> str:
    return f"{row['group']}/{row['type']}"


def _ask(row: Mapping[str, Any]) -> str:
    return f"moor run --machine {_type(row)} -- COMMAND"


def _held_row(row: Mapping[str, Any], *, priced: bool) -> list[str]:
    size, usage = row["size"], row["usage"] or {}
    gpu = size.get("gpu") or {}
    return [
        _type(row),
        f"{usage.get('reserved', 0)}/{usage.get('maximum', row['available'])} machines",
        *([""] if priced else []),
        f"{usage.get('maximum', 0)}/{row['available']}",
        f"{gpu['num']} {gpu.get('family') or gpu['type']}" if gpu else "",
        str(size["cpu"]),
        str(size["memory"]),
        "",
        "",
    ]


def _held_item(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "Machine", **row, "type": _type(row), "ask": _ask(row)}


async def _held(session: Session) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the types of kind Machine, and their problems.

    Empty if this user may not list them, or the cluster does not know the kind.
    """
    try:
        listed = (await session.api.list(MACHINES)).items
    except (NotFound, Forbidden):
        return [], []
    booked = booked_of(await _calendar(session))
    return [row for machine in listed for row in rows_of(machine, booked)], _notes(listed)


def _notes(machines: Iterable[Obj]) -> list[str]:
    return [f"note: {group_of(machine)}: {message}" for machine in machines for message in complaints(machine)]


async def _quota(session: Session) -> str:
    """Describe the used part of the namespace's quota; empty if there is none, or it cannot be read."""
    try:
        quotas = (await session.api.list(QUOTAS, session.namespace)).items
    except ApiError:
        return ""
    words = quota_words(quotas)
    return f"quota of namespace {session.namespace}: {words}" if words else ""


async def _group(session: Session, group: str) -> _Answer:
    try:
        all_machines = (await session.api.list(MACHINES)).items
    except NotFound as error:
        raise NotReady("this cluster has no kind Machine", hint="install Moorage's definitions first") from error
    shown = [machine for machine in all_machines if group_of(machine) == group]
    if not shown:
        groups = sorted({group_of(machine) for machine in all_machines})
        raise NotFound(
            f"machine group {group!r} not found",
            hint=f"there are: {', '.join(groups)}" if groups else "this cluster has none; see moor machines",
        )
    booked = booked_of(await _calendar(session))
    rows = [row for machine in shown for row in rows_of(machine, booked)]
    return _Answer(
        Listing(
            headers=GROUP_HEADERS,
            rows=lambda: [_cells(row) for row in rows],
            items=rows,
            names=[_type(row) for row in rows],
            nothing=f"machine group {group} has no machine type",
        ),
        tuple(_notes(shown)),
    )


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
