"""Who got the GPUs that suspended work gave back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from moorage.api.idle import IdleWork
from moorage.cli.idle import row_of
from moorage.decide.idle.states import Record, State
from moorage.decide.idle.successors import next_holder, takers_of
from moorage_kube.testing.builders import GPU
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_pod

LAB = ("workspace", "vision", "lab")
MINUTE = timedelta(minutes=1)
SUSPENDED = Record(state=State.SUSPENDED, suspended_at=NOON, node="n1", devices=("n1/0",), gpus=1)


def a_pod(name, *, after, node="n1", gpus=1, devices=(), owner="bob", phase="Running", **labels):
    made = {
        "namespace": "vision",
        "uid": name,
        "labels": labels,
        "node": node,
        "limits": {GPU: str(gpus)},
        "phase": phase,
    }
    assigned = {"name": GPU, "resources": [{"resourceID": device} for device in devices]}
    made |= {"started": NOON + after, "statuses": [{"name": "main", "allocatedResourcesStatus": [assigned]}]}
    return a_run_pod(name, run="", user=owner, **made)


def a_run(name, **more):
    return a_pod(name, **more, **{"moorage.dev/run": name})


@pytest.mark.parametrize(
    ("pods", "who"),
    [
        ([], ""),
        ([a_run("next", after=MINUTE)], "run vision/next of bob"),
        ([a_run("later", after=2 * MINUTE), a_run("next", after=MINUTE)], "run vision/next of bob"),
        ([a_run("over", after=MINUTE, phase="Succeeded")], "run vision/over of bob"),
        ([a_run("before", after=-MINUTE)], ""),
        ([a_run("elsewhere", after=MINUTE, node="n2")], ""),
        ([a_run("nothing", after=MINUTE, gpus=0)], ""),
        ([a_run("beside", after=MINUTE, devices=("1",))], ""),
        ([a_run("beside", after=MINUTE, devices=("1",)), a_run("next", after=2 * MINUTE, devices=("0",))], "next"),
        ([a_pod("bare", after=MINUTE, owner="")], "pod vision/bare"),
        ([a_pod("ws-lab-x", after=MINUTE, **{"moorage.dev/workspace": "lab"})], ""),
        ([a_pod("ws-other-x", after=MINUTE, **{"moorage.dev/workspace": "other"})], "workspace vision/other"),
    ],
)  # fmt: skip
def test_it_is_the_first_that_took_one_of_them(pods, who):
    found = next_holder(LAB, SUSPENDED, takers_of(pods))
    assert who in found
    assert bool(who) == bool(found)


def test_where_the_node_names_no_devices_it_is_the_first_on_the_node():
    unnamed = Record(state=State.SUSPENDED, suspended_at=NOON, node="n1, n2", gpus=2)
    pods = [a_run("next", after=MINUTE, node="n2", devices=("7",))]
    assert next_holder(LAB, unnamed, takers_of(pods)) == "run vision/next of bob"


def test_work_that_is_not_suspended_gave_nothing_back():
    assert next_holder(LAB, Record(state=State.WARNED), takers_of([a_run("next", after=MINUTE)])) == ""


def test_the_list_of_idle_work_says_it():
    item = IdleWork(
        kind="workspace", namespace="vision", name="lab", state="suspended", went_to="run vision/next of bob"
    )
    assert row_of(item, NOON, named=False)[5] == "GPUs now used by run vision/next of bob"
