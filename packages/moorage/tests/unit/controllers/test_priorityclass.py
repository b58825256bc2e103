"""Which PriorityClass pods have that name none, and who decides it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.priorityclass.controller import PriorityClassController
from moorage.controllers.priorityclass.plan import SetDefault, Warn, plan
from moorage.model.names import CLUSTER_DEFAULT_ANNOTATION, DEFAULT_PRIORITY, STAND_IN_LABEL
from moorage_kube.meta import Key
from moorage_kube.resources import EVENTS, PRIORITYCLASSES
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import running


def a_class(
    name: str, value: int = 0, policy: str = "PreemptLowerPriority", *, default: bool = False, **meta: Any
) -> Any:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, **meta},
        "value": value,
        "preemptionPolicy": policy,
        "globalDefault": default,
    }


def ours(*, default: bool = False, note: str | None = None) -> Any:
    notes = {"annotations": {CLUSTER_DEFAULT_ANNOTATION: note}} if note is not None else {}
    return a_class(DEFAULT_PRIORITY, 0, "Never", default=default, **notes)


STAND_IN = a_class("calm", 1000, "Never", labels={STAND_IN_LABEL: "true"})


@pytest.mark.parametrize(
    ("classes", "want"),
    [
        pytest.param([], [], id="nothing is installed"),
        pytest.param([ours()], [SetDefault(True)], id="no default: ours becomes it"),
        pytest.param([ours(default=True)], [], id="settled"),
        pytest.param([ours(), a_class("urgent", 1000)], [SetDefault(True)], id="others are not the default"),
        pytest.param([ours(), a_class("house", default=True)], [], id="theirs has a stand-in: ours"),
        pytest.param([ours(), a_class("house", 7, "Never", default=True)], [], id="theirs does not preempt"),
        pytest.param([ours(), a_class("house", -10, default=True)], [], id="theirs is as low as reservations"),
        pytest.param([ours(), a_class("house", 1000, default=True)], ["house"], id="theirs pushes out"),
        pytest.param([ours(), a_class("house", 1000, default=True), STAND_IN], [], id="theirs has a stand-in"),
        pytest.param([ours(default=True), a_class("house", default=True)], [SetDefault(False)], id="two defaults"),
        pytest.param([ours(note="false")], [], id="the admin wants none"),
        pytest.param([ours(default=True, note="false")], [SetDefault(False)], id="the admin wants none any more"),
        pytest.param([ours(note="true")], [SetDefault(True)], id="any other word changes nothing"),
    ],
)
def test_ours_is_the_default_where_there_is_no_other(classes, want):
    found = [action.name if isinstance(action, Warn) else action for action in plan(classes)]
    assert found == want


@pytest.mark.anyio
async def test_the_controller_sets_the_default_and_reports_one_that_pushes_out_reservations():
    api, clock = FakeApi(), FakeClock()
    api.put(PRIORITYCLASSES, ours())
    async with running(PriorityClassController(Shared(api=api, clock=clock))) as controller:
        await controller.reconcile(Key("", DEFAULT_PRIORITY))
        assert (await api.get(PRIORITYCLASSES, DEFAULT_PRIORITY))["globalDefault"] is True
        assert (await api.list(EVENTS)).items == []
        # the admin makes another one the default, of a higher value
        await api.patch(PRIORITYCLASSES, DEFAULT_PRIORITY, {"globalDefault": False})
        changed = asyncio.Event()
        controller.informers[0].on_change(lambda _, after: changed.set() if after is not None else None)
        await api.create(PRIORITYCLASSES, a_class("house", 1000, default=True))
        while len(controller.informers[0].all()) < 2:
            changed.clear()
            await changed.wait()
        await controller.reconcile(Key("", DEFAULT_PRIORITY))
        assert (await api.get(PRIORITYCLASSES, DEFAULT_PRIORITY))["globalDefault"] is False
        (event,) = (await api.list(EVENTS)).items
        assert (event["reason"], event["involvedObject"]["name"]) == ("PushesOutReservations", "house")
        assert "create a PriorityClass of the value 1000 with preemptionPolicy Never" in event["message"]
