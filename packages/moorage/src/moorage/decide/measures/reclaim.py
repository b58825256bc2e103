"""GPUs that idle work holds, the money spent, and the use of each budget: by tenant, user and budget."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from fractions import Fraction

from msgspec import Struct

from moorage.decide.cost.report import IDLE, Report
from moorage.decide.idle.states import State
from moorage.decide.idle.work import Held
from moorage.decide.measures.gpus import NO_TENANT, TenantOf, Values
from moorage.decide.measures.work import TENANTS_MAX
from moorage.metrics.families import Family, Measured, measured
from moorage.model.budget import Budget
from moorage.model.idle import WORK

STATES = (State.IDLE, State.WARNED, State.REMINDED, State.SNOOZED, State.SUSPENDED)
KINDS = ("used", "unused", "not_measured", "reserved", "idle")  # of money: the columns of `moor cost report`
_STATES = ", ".join(STATES)

IDLE_WORK = Family(
    name="moorage_idle_work",
    help=f"Idle work that holds GPUs or was suspended, by state ({_STATES}), kind ({', '.join(WORK)}) and tenant",
    labels=("state", "kind", "tenant"),
    series_max=len(STATES) * len(WORK) * TENANTS_MAX,
)
IDLE_GPUS = Family(
    name="moorage_idle_gpus",
    help="GPUs that idle work holds, by its state and tenant; of suspended work: those that it held",
    labels=("state", "tenant"),
    series_max=len(STATES) * TENANTS_MAX,
)
COST = Family(
    name="moorage_cost_24h",
    help=f"Money of the last 24 hours, in units of the currency, by kind ({', '.join(KINDS)}) and tenant;"
    " computed every 5 minutes, absent without a price file",
    labels=("tenant", "kind", "currency"),
    series_max=len(KINDS) * TENANTS_MAX,
)
UNPRICED = Family(
    name="moorage_cost_24h_unpriced_node_seconds",
    help="Seconds of nodes in the last 24 hours that the price file has no price for",
    series_max=1,
)
COMPUTED = Family(
    name="moorage_cost_24h_computed_timestamp_seconds",
    help="When moorage_cost_24h was computed, in Unix time",
    series_max=1,
)
BUDGETS = Family(
    name="moorage_budget_used_ratio",
    help="Share of a budget that a user or tenant (kind) has used in the current period; 1 is all of it",
    labels=("budget", "kind", "name"),
)
FAMILIES = (IDLE_WORK, IDLE_GPUS, COST, UNPRICED, COMPUTED, BUDGETS)


class Cost(Struct, frozen=True, kw_only=True):
    """A cost report by tenant for the 24 hours before a moment."""

    report: Report
    currency: str
    computed: datetime


def measure_idle(held: Iterable[Held], tenant_of: TenantOf) -> list[Measured]:
    """Work without pods holds nothing, and counts only while it is suspended.

    Every state of each tenant with such work has a series, also where it is 0: a missing series has no meaning.
    """
    pieces = [
        (each, tenant_of(each.work.namespace), sum(pod.gpus for pod in each.pods))
        for each in held
        if each.pods or each.record.state is State.SUSPENDED
    ]

    def work() -> Values:
        for kind, tenant in dict.fromkeys((each.work.kind, tenant) for each, tenant, _ in pieces):
            yield from (((state.value, kind, tenant), 0) for state in STATES)
        for each, tenant, _ in pieces:
            if each.record.state in STATES:
                yield (each.record.state.value, each.work.kind, tenant), 1

    def gpus() -> Values:
        for tenant in dict.fromkeys(tenant for _, tenant, _ in pieces):
            yield from (((state.value, tenant), 0) for state in STATES)
        for each, tenant, many in pieces:
            if each.record.state is State.SUSPENDED:
                yield (State.SUSPENDED.value, tenant), each.record.gpus
            elif each.record.state in STATES:
                yield (each.record.state.value, tenant), many

    return [measured(IDLE_WORK, work()), measured(IDLE_GPUS, gpus())]


def measure_cost(cost: Cost | None) -> list[Measured]:
    """Empty for None. Idle money, and that of namespaces without a tenant, belongs to NO_TENANT."""
    if cost is None:
        return []

    def money() -> Values:
        for row in cost.report.rows:
            is_of_none = row.name == IDLE or row.name.startswith("namespace ")
            tenant = NO_TENANT if is_of_none else row.name
            for kind in KINDS:
                yield (tenant, kind, cost.currency), float(getattr(row, kind))

    hours = sum(cost.report.unpriced.values(), Fraction(0))
    return [
        measured(COST, money()),
        measured(UNPRICED, [((), float(hours * 3600))]),
        measured(COMPUTED, [((), cost.computed.timestamp())]),
    ]


def measure_budgets(budgets: Iterable[Budget], now: datetime) -> list[Measured]:
    """The use of each budget by its status, rounded down to a percent.

    After the end of the period, the use is 0.
    """
    return [
        measured(
            BUDGETS,
            (
                ((budget.name, "user" if budget.users else "tenant", use.name), use.percent / 100)
                for budget in budgets
                if budget.end is not None and now < budget.end
                for use in budget.uses
            ),
        )
    ]
