"""The current period and use of a budget, the recipients of notices, and the treatment of new work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from msgspec import Struct

from moorage.decide.maps.notices import Notice
from moorage.decide.usage.gpus import NOBODY
from moorage.decide.usage.intervals import Interval, clipped
from moorage.model.budget import ACTIONS, EVERYBODY, USES_MAX, Budget, Use

HOUR = timedelta(hours=1)
_HUNDREDTH = Decimal("0.01")


class BudgetEvent(StrEnum):
    SHARE = "budget-share"


class Standing(Struct, frozen=True, kw_only=True):
    """A budget, and the use of it by one user."""

    budget: Budget
    use: Use

    @property
    def is_over(self) -> bool:
        return self.use.percent >= 100  # `used` is rounded

    @property
    def text(self) -> str:
        """Text for people: `budget vision-month of ada.

        512.00 of 500 GPU-hours used (102 %), until 2026-12-01`.
        """
        budget = self.budget
        until = f", until {budget.end.astimezone(ZoneInfo(budget.zone)):%Y-%m-%d}" if budget.end else ""
        return (
            f"budget {budget.name} of {self.use.name}: {self.use.used} of {budget.limit} {budget.unit} used"
            f" ({self.use.percent} %){until}"
        )


def period_of(now: datetime, period: str, zone: str) -> tuple[datetime, datetime]:
    """The start and end of the period around a moment, in a time zone: its day, week (from Monday) or month."""
    where = ZoneInfo(zone)
    day = now.astimezone(where).date()
    if period == "week":
        first = day - timedelta(days=day.weekday())
        last = first + timedelta(days=7)
    elif period == "month":
        first = day.replace(day=1)
        last = (first + timedelta(days=32)).replace(day=1)
    else:
        first, last = day, day + timedelta(days=1)
    return datetime.combine(first, time(), where), datetime.combine(last, time(), where)


def gpu_hours(
    intervals: Iterable[Interval], *, since: datetime, until: datetime, tenants: Mapping[str, str] | None
) -> dict[str, Decimal]:
    """GPU-hours in the counting of `moor top`, by user, or by tenant if `tenants` (namespace → tenant) is
    given.
    """
    spans: dict[str, timedelta] = {}
    for interval in intervals:
        if not interval.gpus or interval.reserved_for:
            continue
        name = interval.owner if tenants is None else tenants.get(interval.namespace, "")
        if name and name != NOBODY:
            span = clipped(interval, since=since, until=until) * interval.gpus
            spans[name] = spans.get(name, timedelta()) + span
    microsecond = timedelta(microseconds=1)
    return {name: Decimal(span // microsecond) / (HOUR // microsecond) for name, span in spans.items()}


def uses_of(budget: Budget, used: Mapping[str, Decimal], *, start: datetime) -> tuple[Use, ...]:
    """The rows of a status, the largest first. Records of sent notices are retained within a period."""
    names = budget.users or budget.tenants
    warned = {use.name: use.warned for use in budget.uses} if budget.start == start else {}
    uses = [
        Use(
            name=name,
            used=amount.quantize(_HUNDREDTH, ROUND_HALF_UP),
            percent=int(amount * 100 / budget.limit),
            warned=warned.get(name, 0),
        )
        for name, amount in used.items()
        if amount > 0 and (EVERYBODY in names or name in names)
    ]
    return tuple(sorted(uses, key=lambda use: (-use.used, use.name))[:USES_MAX])


def due(budget: Budget, uses: Iterable[Use], *, start: datetime) -> tuple[tuple[Use, ...], tuple[Notice, ...]]:
    """The updated uses, and a notice for each use that reached a threshold.

    Store the uses before you send notices.
    """
    marked, notices = [], []
    for use in uses:
        share = max((share for share in budget.warn_at if share <= use.percent), default=0)
        if share > use.warned:
            use = Use(name=use.name, used=use.used, percent=use.percent, warned=share)
            standing = Standing(budget=budget, use=use)
            lines = [
                f"{use.used} of {budget.limit} {budget.unit} are used since {start:%Y-%m-%d} ({use.percent} %)."
            ]
            if standing.is_over:
                lines.append(_CONSEQUENCES[budget.when_over])
            notices.append(
                Notice(
                    event=BudgetEvent.SHARE,
                    key=f"budget/{budget.name}/{use.name}/{start:%Y-%m-%d}/{share}",
                    title=f"budget {budget.name}: {use.name} has used {share} %",
                    lines=tuple(lines),
                )
            )
        marked.append(use)
    return tuple(marked), tuple(notices)


def standings(budgets: Iterable[Budget], *, user: str, tenant: str, now: datetime) -> list[Standing]:
    """Every budget that applies to a user's work in a tenant's namespace, and its use."""
    result = []
    for budget in budgets:
        if name := budget.is_for(user=user, tenant=tenant):
            use = budget.use_of(name, now) or Use(name=name, used=Decimal("0.00"), percent=0)
            result.append(Standing(budget=budget, use=use))
    return result


def strictest(over: Iterable[Standing]) -> Standing | None:
    """The exceeded budget with the strictest consequence; None if all budgets are within their limits."""
    return max(
        (standing for standing in over if standing.is_over),
        key=lambda standing: ACTIONS.index(standing.budget.when_over),
        default=None,
    )


_CONSEQUENCES = {
    "warn": "New work is started as before.",
    "queue": "New work waits behind that of others until the period ends. Running work continues.",
    "refuse": "New work is refused until the period ends. Running work continues.",
}
