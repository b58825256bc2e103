"""The lower parts of the front page: the use of GPUs over time, and current and future work.

The first is the same for all users and is read from the history once; the second depends on the
user's rights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.idle import idle_work
from moorage.actions.reservations import list_reservations
from moorage.api.budgets import BudgetRow
from moorage.api.idle import IdleWork
from moorage.features import load_all
from moorage.model.reservation import EXPIRED, REFUSED, RESERVATIONS, Booking, bookings_of
from moorage.server.budgets.use import budgets_for
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages import mappages
from moorage.server.pages.board import owner_hues
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.mapboard import MapRow
from moorage.server.pages.refusals import is_htmx
from moorage.server.pages.site import Page, Site
from moorage.server.pages.texts import N_, say
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError, MoorageError, NotFound
from moorage_kube.moments import rfc3339

log = logging.getLogger(__name__)

HISTORY, WORK, COST = "/glance/history", "/glance/work", "/glance/cost"
ROWS = 5  # of each list
IDLE_ROWS = 10
IDLE_SECONDS = 15.0  # a list of idle work is shared by all users this long
COST_ROWS = 10
COST_NAMES = (N_("(idle)"), N_("(system)"), N_("(reserved)"), N_("(others)"))  # of a report
PLACES = {"workspace": "workspaces", "run": "jobs", "map": "maps", "workflow": "workflows"}  # its pages
CALENDAR_DAYS = 14


class BookingRow(Struct, frozen=True, kw_only=True):
    """A reservation on the calendar. `left` and `width` are days: `left` counts from now, within the calendar."""

    namespace: str
    name: str
    what: str
    whom: str
    hue: int
    begins: str
    ends: str
    left: float
    width: float
    is_active: bool


class WorkModel(Struct, frozen=True, kw_only=True):
    """Current and future work that the user may see; None: not allowed, or it cannot be read."""

    idle: tuple[IdleWork, ...] | None
    maps: tuple[MapRow, ...] | None
    bookings: tuple[BookingRow, ...] | None


async def show_history(site: Site, request: Request) -> Response:
    """The part of the front page with the use of GPUs over time."""
    await site.context.ready()
    part = fragment("glance_history.html", charts=await site.history.charts())
    return _answer(site, request, say("GPUs in use over time"), part)


async def show_work(site: Site, request: Request) -> Response:
    """The part of the front page with reservations, maps and workflows that the caller may see."""
    await site.context.ready()
    model = WorkModel(
        idle=await _idle(site),
        maps=await _maps(site, request),
        bookings=await _bookings(site, request),
    )
    part = fragment("glance_work.html", work=model, places=PLACES, days=CALENDAR_DAYS)
    for tile in load_all("glance"):
        part += await tile(site, request)
    return _answer(site, request, say("Reservations, maps and workflows"), part)


async def show_cost(site: Site, request: Request) -> Response:
    """The part of the front page with the cost of the last 7 days and the budgets that the caller may see."""
    context, user = site.context, request.state.user
    await context.ready()
    answer, is_priced = None, True
    try:
        answer = await site.week_cost.of(user)
    except NotFound:
        is_priced = False
    except (Problem, MoorageError) as error:
        log.warning("the front page shows no cost", extra={"error": str(error)})
    budgets = await _budgets(context, user)
    part = fragment("glance_cost.html", answer=answer, is_priced=is_priced, budgets=budgets, most=COST_ROWS)
    return _answer(site, request, say("Cost, last 7 days"), part)


def _answer(site: Site, request: Request, title: str, part: str) -> Response:
    """The part for the front page, or a separate page for a browser that follows the link without
    JavaScript.
    """
    if is_htmx(request.headers):
        return HTMLResponse(part)
    return site.page(request, "glance.html", "/", live=False, title=title, part=part)


PAGES = (
    Page(method="GET", path=COST, handler=show_cost, live=True),
    Page(method="GET", path=HISTORY, handler=show_history, live=True),
    Page(method="GET", path=WORK, handler=show_work, live=True),
)


async def _idle(site: Site) -> tuple[IdleWork, ...] | None:
    loop, at, known = site.context.idle, site.context.clock.monotonic(), site.idle_work
    if loop is None:
        return None
    if known is not None and at - known[0] < IDLE_SECONDS:
        return known[1]
    try:
        held = await loop.held()
    except (ApiError, MoorageError) as error:
        log.warning("the front page shows no idle work", extra={"error": str(error)})
        return None
    rows = tuple(idle_work(held, loop.policies()))[:IDLE_ROWS]
    site.idle_work = (at, rows)
    return rows


async def _budgets(context: Context, user: User) -> tuple[BudgetRow, ...]:
    """Use of the budgets that apply to the caller, the fullest first; empty if they cannot be read."""
    try:
        rows = (await budgets_for(context, user)).budgets
    except (ApiError, Problem, MoorageError) as error:
        log.warning("the front page shows no budgets", extra={"error": str(error)})
        return ()
    return tuple(sorted(rows, key=lambda row: (-row.percent, row.budget, row.name)))


async def _maps(site: Site, request: Request) -> tuple[MapRow, ...] | None:
    try:
        shown = await mappages.listed(site.context, request)
    except (Problem, MoorageError):
        return None
    return shown.rows[:ROWS]


async def _bookings(site: Site, request: Request) -> tuple[BookingRow, ...] | None:
    user = request.state.user
    try:
        api = site.context.acting(user)

        async def in_namespace(place: str | None) -> list[dict[str, Any]]:
            return list(await list_reservations(api, place))

        objs = await site.everywhere(user, RESERVATIONS, in_namespace)
    except (Problem, ApiError, MoorageError):
        return None
    phases = {(obj["metadata"].get("namespace"), obj["metadata"]["name"]): _phase(obj) for obj in objs}
    return booking_rows(bookings_of(objs), phases, site.context.now())


def booking_rows(
    bookings: list[Booking], phases: Mapping[tuple[Any, Any], str], now: datetime
) -> tuple[BookingRow, ...]:
    """Current and future reservations by their start, as bars over the next CALENDAR_DAYS days."""
    day = timedelta(days=1)
    rows = []
    hues = owner_hues(booking.user or booking.namespace for booking in bookings)
    for booking in sorted(bookings, key=lambda booking: (booking.asked.start, booking.namespace, booking.name)):
        phase = phases.get((booking.namespace, booking.name), "")
        start, end = booking.asked.start, booking.asked.end
        if end <= now or booking.cancelled or phase in (EXPIRED, REFUSED):
            continue
        left = min(CALENDAR_DAYS, max(0.0, (start - now) / day))
        right = min(CALENDAR_DAYS, (end - now) / day)
        rows.append(
            BookingRow(
                namespace=booking.namespace,
                name=booking.name,
                what=f"{booking.asked.count} × {booking.group}/{booking.type}",
                whom=booking.user or booking.namespace,
                hue=hues[booking.user or booking.namespace],
                begins=_stamp(start),
                ends=_stamp(end),
                left=round(left, 2),
                width=round(max(0.1, right - left), 2),
                is_active=start <= now,
            )
        )
    return tuple(rows)


def _phase(obj: Mapping[str, Any]) -> str:
    return str((obj.get("status") or {}).get("phase") or "")


def _stamp(moment: datetime) -> str:
    return rfc3339(moment)[:16].replace("T", " ")
