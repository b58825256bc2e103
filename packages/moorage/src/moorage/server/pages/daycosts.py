"""The cost of each day by team or person: computed once for all, without the names that a user may not see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, time
from zoneinfo import ZoneInfo

from msgspec import Struct

from moorage.decide.cost.money import exact
from moorage.decide.cost.report import By, DailyLedger, daily_ledger, daily_of, days_between
from moorage.model.prices import PriceSheet
from moorage.server.context import Context
from moorage.server.costs import facts_of, installed_sheet, namespaces_of, viewer
from moorage.server.identity.auth import User

FRESH_SECONDS = 300.0  # how long a result is shared by all users, unless the prices change
KEPT = 24  # results; the newest

Key = tuple[By, datetime, str]


class Days(Struct, frozen=True, kw_only=True):
    """`money`: name → the amount of each day; the largest sum first, names in parentheses last."""

    days: tuple[datetime, ...]
    money: Mapping[str, tuple[float, ...]]
    currency: str


class _Result(Struct, frozen=True, kw_only=True):
    sheet: PriceSheet
    ledger: DailyLedger
    namespaces: frozenset[str]
    days: tuple[datetime, ...]
    until: datetime
    at: float  # monotonic seconds


class DayCosts:
    """The cost of each day since a moment; each is computed at most once in FRESH_SECONDS."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._known: dict[Key, _Result] = {}

    async def of(self, user: User, by: By, since: datetime, zone: str = "UTC") -> Days:
        """The costs that a user may see. Raises NotFound without prices, UsageError, ApiError, StorageError.

        `zone`: time zone in which days begin. `since` is the start of a day there.
        """
        sheet = await installed_sheet(self._context)
        async with self._lock:
            result = await self._result((by, since, zone), sheet)
        sees = await viewer(self._context, user, result.namespaces, read_at=result.until)
        table = daily_of(result.ledger, sees)
        return Days(
            days=result.days,
            money={
                name: tuple(float(exact(table[name].get(day, 0))) for day in result.days)
                for name in sorted(
                    table, key=lambda name: (name.startswith("("), -sum(table[name].values()), name)
                )
            },
            currency=sheet.currency,
        )

    async def _result(self, key: Key, sheet: PriceSheet) -> _Result:
        now, known = self._context.clock.monotonic(), self._known.pop(key, None)
        if known is None or known.sheet != sheet or now - known.at >= FRESH_SECONDS:
            known = await self._compute(key, sheet, now)
        self._known[key] = known
        for old in list(self._known)[:-KEPT]:
            del self._known[old]
        return known

    async def _compute(self, key: Key, sheet: PriceSheet, at: float) -> _Result:
        by, since, zone = key[0], key[1], ZoneInfo(key[2])
        until = self._context.now()
        facts, begin = await facts_of(self._context, sheet, since, until, measured=False)

        def midnight(moment: datetime) -> datetime:
            return datetime.combine(moment.astimezone(zone).date(), time(), zone)

        days = days_between(begin, until, midnight)
        table = await asyncio.to_thread(daily_ledger, facts, by=by, since=begin, until=until, days=days)
        names = frozenset(namespaces_of(facts))
        return _Result(sheet=sheet, ledger=table, namespaces=names, days=days, until=until, at=at)
