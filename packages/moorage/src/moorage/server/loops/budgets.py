"""Computes the use of each Budget, writes it into the status, and sends notices: one server at a time."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from moorage.decide.budgets.use import due, gpu_hours, period_of, uses_of
from moorage.decide.cost.money import exact
from moorage.decide.cost.report import By, Facts, daily
from moorage.decide.maps.notices import Notice
from moorage.decide.usage.intervals import Interval
from moorage.model.budget import BUDGETS, Budget, parse_budget
from moorage.model.targets import parse_target
from moorage.model.tenant import tenant_names
from moorage.notify.delivery import Delivery
from moorage.notify.outbound import outbound_of
from moorage.notify.send import send
from moorage.server.context import Context
from moorage.server.costs import facts_of, installed_sheet
from moorage.server.namespaces import by_namespace
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, MoorageError, NotFound, StorageError, UsageError
from moorage_kube.moments import rfc3339
from moorage_kube.remote.events import EventRecorder
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

LOOK_SECONDS = (
    60.0  # between two computations: the use that admission reads is at most this old, plus a watch's delay
)
Send = Callable[[Notice, Sequence[str]], Awaitable[Sequence[Delivery]]]


class BudgetKeeper:
    """Updates the status of every Budget."""

    def __init__(self, context: Context, *, send: Send | None = None) -> None:
        self._context, self._clock = context, context.clock
        self._api: Api = context.api
        self._send = send or self._deliver
        self._events = EventRecorder(context.api, component="moorage-server", clock=context.clock)
        self._told: set[str] = set()  # budgets that could not be computed, and why

    async def run(self) -> None:
        """Update until cancelled. A failure is logged once, and the update is retried."""
        while True:
            try:
                await self.compute()
            except (ApiError, StorageError, OSError) as error:
                self._log("budgets", str(error))
            await self._clock.sleep(LOOK_SECONDS)

    async def compute(self) -> None:
        """Update the status of every Budget once. Raises ApiError, StorageError."""
        try:
            objects = (await self._api.list(BUDGETS)).items
        except NotFound:  # no such kind here
            return
        history = _History(self._context, self._clock.now())
        for obj in objects:
            try:
                await self._compute(obj, parse_budget(obj), history)
            except (ValueError, MoorageError) as error:
                name = str(obj["metadata"]["name"])
                message = error.message if isinstance(error, MoorageError) else str(error)
                self._log(name, message)
                await self._fail(obj, message)

    async def _compute(self, obj: Obj, budget: Budget, history: _History) -> None:
        now = history.now
        start, end = period_of(now, budget.period, budget.zone)
        used, currency = await (history.money(budget, start) if budget.is_money else history.hours(budget, start))
        uses, notices = due(budget, uses_of(budget, used, start=start), start=start)
        status = {
            "start": rfc3339(start),
            "end": rfc3339(end),
            "computedAt": rfc3339(now),
            "currency": currency,
            "uses": [
                {"name": use.name, "used": str(use.used), "percent": use.percent}
                | ({"warned": use.warned} if use.warned else {})
                for use in uses
            ],
            "observedGeneration": budget.generation,
            "conditions": _ready(obj, now, "True", "Computed", "use is computed every minute"),
        }
        if not await self._write(obj, status):
            return  # another server wrote it, and sends the notices
        for notice in notices:
            await self._tell(obj, notice, budget.notify)

    async def _tell(self, obj: Obj, notice: Notice, targets: Sequence[str]) -> None:
        """Send a notice; a failed delivery becomes an event of the Budget."""
        try:
            deliveries = await self._send(notice, targets)
            problems = [f"to {delivery.target}: {delivery.problem}" for delivery in deliveries if delivery.problem]
        except UsageError as error:
            log.warning("a notice was not delivered", extra={"notice": notice.key, "problem": error.message})
            problems = [f"to any target: {error.message}"]
        about = {**obj, "apiVersion": BUDGETS.api_version, "kind": BUDGETS.kind}
        for problem in problems:
            message = f"the notice {notice.title!r} was not delivered {problem}"
            await self._events.record(about, "Warning", "NoticeLost", message)

    async def _fail(self, obj: Obj, message: str) -> None:
        """Clear the numbers of a budget that cannot be computed, so that it limits no work."""
        status = {
            "uses": [],
            "observedGeneration": int(obj["metadata"].get("generation") or 0),
            "conditions": _ready(obj, self._clock.now(), "False", "NotComputed", message),
        }
        await self._write(obj, status)

    async def _write(self, obj: Obj, status: dict[str, Any]) -> bool:
        """Write the status; return False on failure, for example if the object has changed since it was read."""
        name, version = obj["metadata"]["name"], obj["metadata"].get("resourceVersion")
        patch = {"metadata": {"resourceVersion": version}, "status": status}
        try:
            await self._api.patch(BUDGETS, name, patch, subresource="status")
        except ApiError as error:
            self._log(str(name), error.message)
            return False
        return True

    async def _deliver(self, notice: Notice, targets: Sequence[str]) -> Sequence[Delivery]:
        """Send a notification to all targets.

        Raises UsageError if a target or a setting of the server is invalid.
        """
        if not targets:
            return ()
        outbound, parsed = outbound_of(os.environ), [parse_target(target) for target in targets]
        return await send(notice, parsed, outbound, clock=self._clock)

    def _log(self, name: str, message: str) -> None:
        if f"{name} {message}" not in self._told:
            self._told = {*list(self._told)[-100:], f"{name} {message}"}
            log.warning("a budget is not computed", extra={"budget": name, "error": message})


class _History:
    """The use until `now`. Budgets that share a period read it once: a month of many pods takes seconds."""

    def __init__(self, context: Context, now: datetime) -> None:
        self._context, self.now = context, now
        self._intervals: dict[datetime, list[Interval]] = {}
        self._facts: dict[datetime, tuple[Facts, datetime]] = {}

    async def hours(self, budget: Budget, start: datetime) -> tuple[dict[str, Decimal], str]:
        """GPU-hours by user or tenant, and "" as the currency. Raises StorageError."""
        if start not in self._intervals:
            overlapping = await asyncio.to_thread(self._context.usage.overlapping, start, self.now)
            self._intervals[start] = await by_namespace(self._context.api, overlapping)
        tenants = None if budget.users else tenant_names(await self._context.tenants.all())
        return gpu_hours(self._intervals[start], since=start, until=self.now, tenants=tenants), ""

    async def money(self, budget: Budget, start: datetime) -> tuple[dict[str, Decimal], str]:
        """Cost by user or tenant, and its currency. Raises NotFound without prices, UsageError, StorageError."""
        if start not in self._facts:
            sheet = await installed_sheet(self._context)
            self._facts[start] = await facts_of(self._context, sheet, start, self.now, measured=False)
        facts, begin = self._facts[start]
        by = By.USER if budget.users else By.TENANT
        table = await asyncio.to_thread(lambda: daily(facts, by=by, since=begin, until=self.now, days=(begin,)))
        money = {name: exact(sum(days.values())) for name, days in table.items() if not name.startswith("(")}
        return {name: _decimal(amount) for name, amount in money.items()}, facts.sheet.currency


def _ready(obj: Obj, now: datetime, status: str, reason: str, message: str) -> list[dict[str, Any]]:
    before: dict[str, Any] = next(iter((obj.get("status") or {}).get("conditions") or ()), {})
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return [
        {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or rfc3339(now),
            "observedGeneration": int(obj["metadata"].get("generation") or 0),
        }
    ]


def _decimal(amount: Fraction) -> Decimal:
    return Decimal(amount.numerator) / Decimal(amount.denominator)
