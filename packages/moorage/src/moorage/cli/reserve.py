"""`moor reserve`: machines reserved from one moment to another, for a user or a namespace.

Moments are read and shown in this machine's time zone, or in that of `--time-zone`; they are stored in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

from moorage.actions.reservations import create_reservation, list_reservations, plan_reservation, read_calendar
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.decide.machines.calendar import check, machines_for_gpus
from moorage.model.machine import Pool
from moorage.model.names import is_dns_label
from moorage.model.reservation import EXPIRED, REFUSED, RESERVATIONS, Booking
from moorage_kube.errors import Conflict, InvalidName, NotFound, UsageError
from moorage_kube.meta import condition
from moorage_kube.moments import format_duration, moment
from moorage_kube.resources import Obj

HEADERS = ("NAMESPACE", "NAME", "MACHINE", "COUNT", "FOR", "FROM", "TO", "PHASE", "HELD", "SHORT")
UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_SPAN = re.compile(r"(?:\d+[wdhms])+")

zone_option = click.option(
    "--time-zone",
    "zone",
    default=None,
    metavar="ZONE",
    help="Time zone, such as Europe/Berlin (default: this machine's).",
)


@console.group(
    examples={
        "moor reserve create paper --gpus 8 --gpu-type a100 --from +1d --to +3d": "keep 8 GPUs for two days",
        "moor reserve list": "reserved machines",
        "moor reserve delete paper": "release them",
    }
)
def reserve() -> None:
    """Reserve machines for a period."""


@reserve.command(
    examples={
        "moor reserve create paper --gpus 8 --gpu-type a100 --from +1d --to +3d": "keep 8 GPUs from tomorrow on",
        "moor reserve create course --machine lab/a100x8 --count 2 --to +3d": "keep two machines, from now on",
        "moor reserve create paper --gpus 8 --gpu-type a100 --to +3d --dry-run": "print it; create nothing",
    }
)
@click.argument("name")
@click.option(
    "--machine",
    default=None,
    metavar="[GROUP/]TYPE",
    help="Machine type, as `moor machines` lists it.",
    shell_complete=complete("machines"),
)
@click.option("--count", type=click.IntRange(1), default=None, help="Number of machines (default: 1).")
@click.option("--gpus", type=click.IntRange(1), default=None, help="Number of GPUs, instead of machines.")
@click.option(
    "--gpu-type", default=None, metavar="TYPE", help="Type of the GPUs.", shell_complete=complete("gpu_types")
)
@click.option("--from", "start", default="now", show_default=True, help="Start: 2026-12-01T09:00, +2h or now.")
@click.option("--to", "end", required=True, help="End: 2026-12-04T09:00, or +3d after --from.")
@click.option("--user", default=None, help="Reserve for this user, in all namespaces.")
@click.option(
    "--tenant",
    default=None,
    metavar="NAMESPACE",
    help="Reserve for this namespace (default: the current namespace).",
)
@click.option(
    "--lead", default=None, help="Time before the start in which only runs with a time limit start (default: 1d)."
)
@zone_option
@click.option("--dry-run", is_flag=True, help="Print the manifest; reserve nothing.")
@target_options
def create(
    target: Target,
    name: str,
    machine: str | None,
    count: int | None,
    gpus: int | None,
    gpu_type: str | None,
    start: str,
    end: str,
    user: str | None,
    tenant: str | None,
    lead: str | None,
    zone: str | None,
    dry_run: bool,
) -> int:
    """Reserve machines of a type, or GPUs of a type."""
    # check the options that need no cluster
    if not is_dns_label(name):
        raise InvalidName(
            f"invalid reservation name {name!r}: use at most 63 of a-z, 0-9 and '-',"
            " a letter or digit at both ends"
        )
    if (machine is None) == (gpus is None):
        raise UsageError("machines missing: use --machine TYPE --count N, or --gpus N --gpu-type TYPE")
    if gpus is not None and (count is not None or gpu_type is None):
        raise UsageError("--gpus needs --gpu-type, and cannot be used with --count")
    if user is not None and tenant is not None:
        raise UsageError("--user and --tenant cannot be used together")
    chosen = zone_of(zone)

    async def work(session: Session) -> int:
        # relative times are resolved in the chosen zone; the end may be relative to the start
        now = session.clock.now()
        begins = parse_when(start, now, chosen)
        ends = parse_when(end, begins, chosen)
        # a number of GPUs becomes a number of machines of one type
        pools, calendar = await read_calendar(session.api)
        pool, kind, number = (
            _machine(pools, machine, count) if machine is not None else _gpus(pools, gpus or 0, gpu_type or "")
        )
        made = plan_reservation(
            name,
            tenant or session.namespace,
            group=pool,
            kind=kind,
            count=number,
            begins=begins,
            ends=ends,
            user=user or "",
            lead_seconds=int(parse_span(lead).total_seconds()) if lead is not None else None,
        )
        # judge here too, so that the refusal shows times in this zone, also without the webhook
        _judge(made, pools, calendar, now, chosen)
        await create_reservation(session.api, made, dry_run=dry_run)
        # the name is for scripts; the sentence for people is printed on stderr
        console.show_text(console.as_yaml(made).rstrip("\n") if dry_run else name)
        whom = f"user {user}" if user else f"namespace {made['metadata']['namespace']}"
        word = "would be" if dry_run else "will be"
        span = f"from {show(begins, chosen)} to {show(ends, chosen)} ({format_duration(ends - begins)})"
        console.note(f"{number} {pool}/{kind} {word} reserved for {whom} {span}")
        return 0

    return in_session(target, work)


@reserve.command(
    "list",
    examples={
        "moor reserve list": "the reservations of all namespaces",
        "moor reserve list -n lab --all": "those of one namespace, expired ones too",
    },
)
@click.option("--all", "everything", is_flag=True, help="Also list expired reservations.")
@zone_option
@console.output_option
@target_options
def list_(target: Target, everything: bool, zone: str | None, output: str) -> int:
    """List the reservations of all namespaces, or of one namespace with -n."""
    chosen = zone_of(zone)

    async def work(session: Session) -> int:
        shown = [
            reservation
            for reservation in await list_reservations(session.api, target.namespace)
            if everything or (reservation.get("status") or {}).get("phase") != EXPIRED
        ]
        items = [as_json(reservation) for reservation in shown]
        console.print_listing(
            output,
            headers=HEADERS,
            rows=lambda: [_cells(item, chosen) for item in items],
            items=items,
            names=[f"{item['namespace']}/{item['name']}" for item in items],
            nothing="no reservations",
        )
        return 0

    return in_session(target, work)


@reserve.command(
    "show",
    examples={
        "moor reserve show paper": "machines held and missing, and pods that block it",
        "moor reserve show paper --time-zone Asia/Tokyo": "with the times of another zone",
    },
)
@click.argument("name", shell_complete=complete("reservations"))
@zone_option
@console.output_option
@target_options
def show_one(target: Target, name: str, zone: str | None, output: str) -> int:
    """Show the status of a reservation.

    The machines that are held, those that are missing, and pods that block it.
    """
    chosen = zone_of(zone)

    async def work(session: Session) -> int:
        reservation = as_json(await _get(session, name))
        if output == "name":
            console.show(name)
        elif output in console.TABLES:
            console.show(*_page(reservation, chosen, session.clock.now()))
        else:
            console.print_document(reservation, output)
        return 0

    return in_session(target, work)


@reserve.command(
    examples={
        "moor reserve delete paper --dry-run": "print the machines that would be released",
        "moor reserve delete paper": "release the machines",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("reservations"))
@click.option("--dry-run", is_flag=True, help="Print the machines that would be released; release nothing.")
@target_options
def delete(target: Target, names: tuple[str, ...], dry_run: bool) -> int:
    """Cancel reservations. Their machines are free at once; running pods continue."""

    async def work(session: Session) -> int:
        reservations = {name: await _get(session, name) for name in dict.fromkeys(names)}
        for name, reservation in reservations.items():
            if not dry_run:
                await session.api.delete(RESERVATIONS, name, session.namespace, uid=reservation["metadata"]["uid"])
            console.show(f"{name} {'would be deleted' if dry_run else 'deleted'}")
        return 0

    return in_session(target, work)


# --- moments


def zone_of(name: str | None) -> tzinfo | None:
    """The time zone of that name; None (the local zone of this machine) for None. Raises UsageError."""
    if name is None:
        return None
    if name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        hint = "use an IANA name, such as Europe/Berlin"
        raise UsageError(f"invalid --time-zone {name!r}", hint=hint) from error


def parse_span(text: str) -> timedelta:
    """Parse 3d, 1d12h, 90m. Raises UsageError. A day has 24 hours, even if the clocks change."""
    if not _SPAN.fullmatch(text):
        raise UsageError(f"invalid duration {text!r}: use 3d, 12h, 90m or 1d12h")
    return timedelta(seconds=sum(int(match[:-1]) * UNITS[match[-1]] for match in re.findall(r"\d+[wdhms]", text)))


def parse_when(text: str, base: datetime, zone: tzinfo | None) -> datetime:
    """Parse `now`, `+3d` (after `base`), or a date with optional time in the zone or with a UTC offset.

    The result is UTC in whole seconds. Raises UsageError, also for a time that the zone skips when its clocks go
    forward.
    """
    if text == "now":
        return base.replace(microsecond=0)
    if text.startswith("+"):
        return (base + parse_span(text[1:])).replace(microsecond=0)
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"invalid time {text!r}", hint="use 2026-12-01T09:00, 2026-12-01T09:00+01:00, 2026-12-01, +3d or now"
        ) from error
    if read.tzinfo is None:
        here = read.replace(tzinfo=zone) if zone is not None else read.astimezone()
        if here.astimezone(UTC).astimezone(here.tzinfo).replace(tzinfo=None) != read:
            raise UsageError(f"{text} does not exist in the time zone: its clocks go forward then")
        read = here
    return read.astimezone(UTC).replace(microsecond=0)


def show(at: datetime, zone: tzinfo | None) -> str:
    """Format a moment for people, with its zone."""
    return at.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")


# --- the request


def _machine(pools: Sequence[Pool], text: str, count: int | None) -> tuple[str, str, int]:
    group, _, kind = text.rpartition("/")
    groups = [pool.group for pool in pools if kind in pool.types and group in ("", pool.group)]
    if not groups:
        known = ", ".join(sorted(f"{pool.group}/{name}" for pool in pools for name in pool.types)) or "none"
        raise UsageError(f"machine type {text!r} not found", hint=f"available: {known}")
    if len(groups) > 1:
        choices = " or ".join(f"--machine {group}/{kind}" for group in sorted(groups))
        raise UsageError(f"--machine: {kind} is a machine type of several groups", hint=f"say {choices}")
    return groups[0], kind, count or 1


def _gpus(pools: Sequence[Pool], gpus: int, gpu_type: str) -> tuple[str, str, int]:
    machines = machines_for_gpus(pools, gpus, gpu_type)
    choices = [f"--machine {pool.group}/{kind.name} --count {count}" for pool, kind, count in machines]
    if not machines:
        raise UsageError(
            f"no number of machines has exactly {gpus} GPUs of type {gpu_type!r}",
            hint="`moor machines` shows them all",
        )
    if len(machines) > 1:
        raise UsageError(f"{gpus} GPUs of type {gpu_type} match several machine types", hint=" or ".join(choices))
    pool, kind, count = machines[0]
    return pool.group, kind.name, count


def _judge(
    made: Obj, pools: Sequence[Pool], calendar: Sequence[Booking], now: datetime, zone: tzinfo | None
) -> None:
    """Raise the webhook's refusals with times in this zone; also on clusters without the webhook."""
    faults = check(made, None, pools, calendar, now=now, when=lambda at: show(at, zone))
    conflicts = [fault.message for fault in faults if fault.field == "spec.count"]
    if conflicts:
        raise Conflict(conflicts[0], hint="`moor reserve list` shows who has them")
    if faults:
        names = {"spec.to": "--to", "spec.machineGroup": "--machine", "spec.machineType": "--machine"}
        raise Problems(
            [(f"{names.get(fault.field, fault.field)}: {fault.value} {fault.message}", None) for fault in faults]
        )


async def _get(session: Session, name: str) -> Obj:
    try:
        return await session.api.get(RESERVATIONS, name, session.namespace)
    except NotFound as error:
        raise NotFound(
            f"reservation {name!r} not found in namespace {session.namespace}",
            hint="`moor reserve list` shows them all; -n chooses the namespace",
        ) from error


# --- the output


def as_json(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A reservation as JSON, with times in UTC."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    granted = status.get("granted") or {}
    accepted = condition(obj, "Accepted") or {}
    return {
        "namespace": meta.get("namespace") or "",
        "name": meta["name"],
        "machine": f"{spec['machineGroup']}/{spec['machineType']}",
        "count": spec["count"],
        "user": spec.get("user") or "",
        "from": spec["from"],
        "to": spec["to"],
        "phase": status.get("phase") or "",
        "held": int(status.get("held") or 0),
        "inUse": int(status.get("inUse") or 0),
        "shortfall": int(status.get("shortfall") or 0),
        "fullAt": status.get("fullAt") or "",
        "blockedBy": list(status.get("blockedBy") or ()),
        "granted": granted,
        "accepted": accepted.get("status") == "True",
        "message": accepted.get("message") or (condition(obj, "Held") or {}).get("message") or "",
    }


def _whom(item: Mapping[str, Any]) -> str:
    return f"user {item['user']}" if item["user"] else f"namespace {item['namespace']}"


def _cells(item: Mapping[str, Any], zone: tzinfo | None) -> list[str]:
    return [
        item["namespace"],
        item["name"],
        item["machine"],
        str(item["count"]),
        item["user"] or item["namespace"],
        _shown(item["from"], zone),
        _shown(item["to"], zone),
        item["phase"],
        str(item["held"]),
        str(item["shortfall"] or ""),
    ]


def _page(item: Mapping[str, Any], zone: tzinfo | None, now: datetime) -> list[str]:
    lines = [
        f"Reservation: {item['namespace']}/{item['name']}",
        f"Machines:    {item['count']} {item['machine']}",
        f"For:         {_whom(item)}",
        f"From:        {_shown(item['from'], zone)}{_away(item['from'], now)}",
        f"To:          {_shown(item['to'], zone)}{_away(item['to'], now)}",
        f"Phase:       {item['phase'] or 'not yet handled by the operator'}",
    ]
    if item["phase"] != REFUSED:
        lines.append(f"Held:        {item['held']}, of which {item['inUse']} in use by their owner")
    if item["shortfall"]:
        until = f", until {_shown(item['fullAt'], zone)}" if item["fullAt"] else ""
        lines.append(f"Short:       {item['shortfall']}{until}")
    if item["message"]:
        lines.append(f"Message:     {item['message']}")
    if item["blockedBy"]:
        lines += ["", "Blocked by:"]
        rows = [
            [
                blocker.get("owner", ""),
                blocker["namespace"],
                blocker["pod"],
                _shown(blocker.get("until") or "", zone),
            ]
            for blocker in item["blockedBy"]
        ]
        headers = ("OWNER", "NAMESPACE", "POD", "UNTIL")
        lines.append(console.plain_table_for_terminal(headers, rows, indent="  "))
    return lines


def _shown(text: str, zone: tzinfo | None) -> str:
    at = moment(text)
    return show(at, zone) if at is not None else ""


def _away(text: str, now: datetime) -> str:
    at = moment(text)
    if at is None or at == now:
        return ""
    return f" (in {format_duration(at - now)})" if at > now else f" ({format_duration(now - at)} ago)"
