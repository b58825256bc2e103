"""Idle GPUs, money and budgets, as Prometheus is shown them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.cost.report import Report, Row
from moorage.decide.idle.plan import Work
from moorage.decide.idle.readings import HeldPod
from moorage.decide.idle.states import Record, State
from moorage.decide.idle.work import Held
from moorage.decide.measures.reclaim import (
    BUDGETS,
    COMPUTED,
    COST,
    IDLE_GPUS,
    IDLE_WORK,
    UNPRICED,
    Cost,
    measure_budgets,
    measure_cost,
    measure_idle,
)
from moorage.model.budget import parse_budget
from moorage.model.idle import RUN, WORK, WORKSPACE

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def a_piece(name, state, *, held=0, recorded=0, kind=RUN, namespace="lab"):
    """`held`: GPUs of its pod, if not 0. `recorded`: GPUs that its record has."""
    pods = (HeldPod(uid=name, gpus=held, started=NOON),) if held else ()
    return Held(
        work=Work(kind=kind, namespace=namespace, name=name, uid=name, gpus=held or recorded),
        obj={},
        record=Record(state=state, gpus=recorded),
        pods=pods,
    )


def tenant_of(namespace):
    return {"lab": "vision"}.get(namespace, "-")


def values(rows):
    return {row.family: {key: value for key, value in row.values.items() if value} for row in rows}


def test_idle_work_is_counted_by_state_with_the_gpus_that_it_holds():
    held = [
        a_piece("busy", State.ACTIVE, held=4),
        a_piece("left", State.IDLE, held=2),
        a_piece("lab", State.WARNED, held=1, kind=WORKSPACE),
        a_piece("put-off", State.SNOOZED, held=3, namespace="other"),
        a_piece("gone", State.SUSPENDED, recorded=8),
        a_piece("over", State.REMINDED, recorded=5),  # its pods ended, and nobody wrote so yet
    ]
    made = values(measure_idle(held, tenant_of))
    assert made[IDLE_GPUS] == {
        ("idle", "vision"): 2,
        ("warned", "vision"): 1,
        ("snoozed", "-"): 3,
        ("suspended", "vision"): 8,
    }
    assert made[IDLE_WORK] == {
        ("idle", "run", "vision"): 1,
        ("warned", "workspace", "vision"): 1,
        ("snoozed", "run", "-"): 1,
        ("suspended", "run", "vision"): 1,
    }


def test_every_state_of_a_tenant_is_there_where_it_is_none():
    (work, gpus) = measure_idle([a_piece("busy", State.ACTIVE, held=4)], tenant_of)
    states = ("idle", "warned", "reminded", "snoozed", "suspended")
    assert dict(gpus.values) == {(state, "vision"): 0 for state in states}
    assert dict(work.values) == {(state, "run", "vision"): 0 for state in states}


pieces = st.lists(
    st.tuples(st.sampled_from(State), st.integers(0, 8), st.integers(0, 8), st.sampled_from(WORK)), max_size=8
)


@given(pieces)
def test_no_more_gpus_are_idle_than_are_held(drawn):
    held = [
        a_piece(str(at), state, held=many, recorded=recorded, kind=kind)
        for at, (state, many, recorded, kind) in enumerate(drawn)
    ]
    made = values(measure_idle(held, tenant_of))
    now = sum(many for (state, _), many in made[IDLE_GPUS].items() if state != "suspended")
    idle = sum(many for state, many, *_ in drawn if state not in (State.ACTIVE, State.EXEMPT, State.SUSPENDED))
    assert now == idle <= sum(many for _, many, *_ in drawn)


def a_row(name, used=0, unused=0, unmeasured=0, reserved=0, idle=0):
    return Row(
        name=name,
        used=Decimal(used),
        unused=Decimal(unused),
        not_measured=Decimal(unmeasured),
        reserved=Decimal(reserved),
        idle=Decimal(idle),
        gpu_hours=1.0,
        pods=1,
    )


def test_money_is_by_tenant_and_kind_with_its_currency():
    rows = (
        a_row("vision", used="3.25", unused=1),
        a_row("namespace a", unmeasured=2),
        a_row("namespace b", unmeasured=3),
        a_row("(system)", unmeasured=4),
        a_row("(idle)", idle="9.5"),
    )
    report = Report(rows=rows, total=a_row("total"), unpriced={"x": Fraction(1, 2), "y": Fraction(1)})
    made = values(measure_cost(Cost(report=report, currency="USD", computed=NOON)))
    assert made[COST] == {
        ("vision", "used", "USD"): 3.25,
        ("vision", "unused", "USD"): 1,
        ("-", "not_measured", "USD"): 5,
        ("(system)", "not_measured", "USD"): 4,
        ("-", "idle", "USD"): 9.5,
    }
    assert sum(made[COST].values()) == pytest.approx(float(sum(row.whole for row in rows)))
    assert made[UNPRICED] == {(): 5400}
    assert made[COMPUTED] == {(): NOON.timestamp()}


def test_without_prices_there_is_no_family_of_money():
    assert measure_cost(None) == []


def a_budget(name, spec, *uses, end="2026-12-01T00:00:00Z"):
    rows = [{"name": who, "used": "1", "percent": percent} for who, percent in uses]
    status = {"start": "2026-11-01T00:00:00Z", "end": end, "uses": rows}
    return parse_budget({"metadata": {"name": name}, "spec": spec | {"gpuHours": "10"}, "status": status})


def test_the_share_of_a_budget_is_that_of_the_period_that_is_on():
    budgets = [
        a_budget("month", {"tenants": ["vision", "speech"]}, ("vision", 120), ("speech", 7)),
        a_budget("day", {"users": ["*"]}, ("ada", 100)),
        a_budget("past", {"users": ["*"]}, ("ada", 100), end="2026-11-20T00:00:00Z"),
    ]
    made = values(measure_budgets(budgets, NOON))
    assert made[BUDGETS] == {
        ("month", "tenant", "vision"): 1.2,
        ("month", "tenant", "speech"): 0.07,
        ("day", "user", "ada"): 1.0,
    }
    assert values(measure_budgets(budgets[:1], NOON + timedelta(days=30))) == {BUDGETS: {}}
