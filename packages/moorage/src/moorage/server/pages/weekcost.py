"""The cost of the last seven days by user: computed once for all, without the rows that a user may not see."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from msgspec import Struct

from moorage.api.costs import Costs
from moorage.decide.cost.report import By, Ledger, ledger, report_of
from moorage.model.prices import PriceSheet
from moorage.present.costsanswer import make_costs, notes_of
from moorage.server.context import Context
from moorage.server.costs import facts_of, installed_sheet, namespaces_of, viewer
from moorage.server.identity.auth import User

WINDOW = timedelta(days=7)
FRESH_SECONDS = 300.0  # how long a result is shared by all users, unless the prices change


class _Week(Struct, frozen=True, kw_only=True):
    sheet: PriceSheet
    ledger: Ledger
    namespaces: frozenset[str]
    asked: datetime
    begin: datetime
    until: datetime
    at: float  # monotonic seconds


class WeekCost:
    """The cost of the last seven days, computed at most once in FRESH_SECONDS."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._week: _Week | None = None

    async def of(self, user: User) -> Costs:
        """The cost that a user may see. Raises NotFound without prices, UsageError, ApiError, StorageError."""
        week = await self._known()
        sees = await viewer(self._context, user, week.namespaces, read_at=week.until)
        notes = notes_of(week.sheet, asked=week.asked, begin=week.begin)
        return make_costs(
            report_of(week.ledger, sees), week.sheet, by=By.USER, since=week.begin, until=week.until, notes=notes
        )

    async def _known(self) -> _Week:
        sheet = await installed_sheet(self._context)
        async with self._lock:
            at, known = self._context.clock.monotonic(), self._week
            if known is None or known.sheet != sheet or at - known.at >= FRESH_SECONDS:
                known = self._week = await self._compute(sheet, at)
            return known

    async def _compute(self, sheet: PriceSheet, at: float) -> _Week:
        until = self._context.now()
        asked = until - WINDOW
        facts, begin = await facts_of(self._context, sheet, asked, until)
        book = await asyncio.to_thread(lambda: ledger(facts, by=By.USER, since=begin, until=until))
        names = frozenset(namespaces_of(facts))
        return _Week(sheet=sheet, ledger=book, namespaces=names, asked=asked, begin=begin, until=until, at=at)
