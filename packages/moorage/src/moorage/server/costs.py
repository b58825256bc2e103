"""Data for costs: the installed price file, and the facts of a window."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction

from moorage.api.errors import ErrorCode
from moorage.decide.cost.money import microseconds
from moorage.decide.cost.report import Booking, Facts, Measured, Sees
from moorage.decide.usage.gpus import NOBODY
from moorage.decide.usage.intervals import Interval, clipped
from moorage.decide.usage.samples import Tally
from moorage.model.names import PRICES_CONFIGMAP, PRICES_KEY, SYSTEM_NAMESPACE
from moorage.model.prices import PriceSheet, parse_sheet
from moorage.model.reservation import RESERVATIONS, bookings_of
from moorage.model.tenant import tenant_names
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.namespaces import by_namespace, created_at, is_too_old
from moorage_kube.documents import parse_document
from moorage_kube.errors import ApiError, DocumentError, NotFound, UsageError
from moorage_kube.resources import CONFIGMAPS

_MILLION = 1_000_000


async def installed_text(context: Context) -> str:
    """The text of the price file in the cluster; "" if there is none. Raises ApiError."""
    listed = await context.api.list(
        CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={PRICES_CONFIGMAP}"
    )
    return str((listed.items[0].get("data") or {}).get(PRICES_KEY) or "") if listed.items else ""


async def installed_sheet(context: Context) -> PriceSheet:
    """The prices of the installation. Raises NotFound if there are none, UsageError if they are invalid."""
    text = await installed_text(context)
    if not text.strip():
        raise NotFound("prices are not installed", hint="an administrator installs them: moor cost prices FILE")
    return read_sheet(text, "the installed price file")


def read_sheet(text: str, what: str) -> PriceSheet:
    """Parse a price file. Raises UsageError that names the invalid field."""
    try:
        return parse_sheet(parse_document(text))
    except DocumentError as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{what} is neither YAML nor JSON: {first}", code=ErrorCode.INVALID, field="prices"
        ) from error
    except UsageError as error:
        raise UsageError(
            f"{what}: {error.message}", hint=error.hint, code=ErrorCode.INVALID, field="prices"
        ) from error


async def facts_of(
    context: Context, sheet: PriceSheet, since: datetime, until: datetime, *, measured: bool = True
) -> tuple[Facts, datetime]:
    """The facts of a window, and its real begin: not before nodes were recorded. Raises StorageError.

    `measured` False: without samples, if the caller does not need the split into used and unused.
    """
    began = await asyncio.to_thread(context.usage.nodes_recorded_since)
    begin = until if began is None else min(max(since, began), until)
    lives = await asyncio.to_thread(context.usage.lives, begin, until)
    overlapping = await asyncio.to_thread(lambda: context.usage.overlapping(begin, until, every_pod=True))
    intervals = await by_namespace(context.api, overlapping)
    bookings = await _bookings(context) if any(interval.reserved_for for interval in intervals) else []
    now = context.now()
    return (
        Facts(
            lives=lives,
            intervals=intervals,
            sheet=sheet,
            now=now,
            tenants=tenant_names(await context.tenants.all()),
            measured=await _measured(context, intervals, begin, min(until, now)) if measured else {},
            bookings=bookings,
        ),
        begin,
    )


async def viewer(
    context: Context, user: User, namespaces: Iterable[str], *, read_at: datetime | None = None
) -> Sees | None:
    """A function that says whether the user may see a pod's name; None if the user may see all.

    Users see their own pods, and those of namespaces with readable pods. `read_at`: when the data was read, if
    earlier; a namespace created later does not count.
    """
    try:
        if await context.auth.may(user, "list", "pods"):
            return None
    except ApiError:
        pass
    asked = sorted(set(namespaces))
    may = await asyncio.gather(*(context.auth.may_read_pods(user, namespace) for namespace in asked))
    readable = {namespace for namespace, is_readable in zip(asked, may, strict=True) if is_readable}
    if read_at is not None:
        created = await created_at(context.api, readable)
        readable = {namespace for namespace in readable if not is_too_old(read_at, created[namespace])}
    return lambda owner, namespace: owner == user.name or namespace in readable


def measured_of(
    uses: Mapping[str, Tally], intervals: Iterable[Interval], *, since: datetime, until: datetime
) -> dict[str, Measured]:
    """Measurements of the pods with GPUs that have samples."""
    measured = {}
    for interval in intervals:
        use = uses.get(interval.pod_uid)
        busy = None if use is None else use.gpu_utilisation
        span = microseconds(clipped(interval, since=since, until=until))
        if use is not None and busy is not None and span > 0:
            covered = round(Fraction(use.seconds * _MILLION * _MILLION, span))
            measured[interval.pod_uid] = Measured(
                covered=min(covered, _MILLION), busy=round(min(busy, 100.0) * _MILLION / 100)
            )
    return measured


async def _measured(
    context: Context, intervals: Iterable[Interval], since: datetime, until: datetime
) -> dict[str, Measured]:
    with_gpus = [interval for interval in intervals if interval.gpus and not interval.reserved_for]
    if not with_gpus:
        return {}
    uids = [interval.pod_uid for interval in with_gpus]
    uses = await asyncio.to_thread(lambda: context.samples.gpu_use_of(uids, since=since, until=until))
    return measured_of(uses, with_gpus, since=since, until=until)


async def _bookings(context: Context) -> list[Booking]:
    try:
        reservations = (await context.api.list(RESERVATIONS)).items
    except ApiError:
        return []
    return [
        Booking(
            name=booking.name,
            namespace=booking.namespace,
            owner=booking.user or NOBODY,
            machine=f"{booking.group}/{booking.type}",
            count=terms.count,
            since=terms.start,
            until=terms.end,
        )
        for booking in bookings_of(reservations)
        if (terms := booking.granted) is not None
    ]


def namespaces_of(facts: Facts) -> set[str]:
    return {interval.namespace for interval in facts.intervals}
