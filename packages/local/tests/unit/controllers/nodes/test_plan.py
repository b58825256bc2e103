"""Which nodes are lost, which taints they bear, when pods must leave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.testing import builders
from moorage_local.controllers.nodes.plan import (
    Observed,
    SetTaints,
    WriteStatus,
    disrupted_conditions,
    leaves_at,
    not_ready_conditions,
    plan,
    taints_for,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GRACE = timedelta(seconds=40)
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def a_node(ready="True", *, cordoned=False, taints=(), **conditions):
    statuses = dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure"), "False") | conditions
    return builders.a_node(
        uid="n", resource_version=1, created=NOON, cordoned=cordoned, taints=taints, ready=None,
        conditions=[
            builders.a_condition(kind, status, since=NOON)
            for kind, status in ({"Ready": ready} | statuses).items()
            if status is not None
        ],
    )  # fmt: skip


def decide(node, silent=0):
    return plan(Observed(node=node, silent=timedelta(seconds=silent), now=NOON, grace=GRACE))


def test_a_node_that_reports_is_left_alone_until_its_grace_may_be_over():
    decided = decide(a_node(), silent=10)
    assert (decided.actions, decided.look_again_in) == ((), timedelta(seconds=30))
    assert not decided.pods_not_ready


def test_a_silent_node_becomes_unknown_and_is_tainted():
    decided = decide(a_node(), silent=40)
    status, event, taints = decided.actions
    assert {entry["type"]: (entry["status"], entry["reason"]) for entry in status.conditions} == dict.fromkeys(
        ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"), ("Unknown", "NodeStatusUnknown")
    )
    assert event.reason == "NodeNotReady"
    assert taints == SetTaints(
        (
            {"key": UNREACHABLE, "effect": "NoSchedule"},
            {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(NOON)},
        )
    )
    assert decided.pods_not_ready


def test_what_was_decided_for_a_lost_node_is_not_decided_again():
    node = a_node()
    for action in decide(node, silent=40).actions:
        if isinstance(action, WriteStatus):
            node["status"]["conditions"] = list(action.conditions)
        if isinstance(action, SetTaints):
            node["spec"]["taints"] = list(action.taints)
    assert decide(node, silent=90).actions == ()


def test_a_node_that_never_reported_gets_all_four_conditions():
    node = a_node(None, MemoryPressure=None, DiskPressure=None, PIDPressure=None)
    status = decide(node, silent=40).actions[0]
    assert [entry["reason"] for entry in status.conditions] == ["NodeStatusNeverUpdated"] * 4


OTHER = {"key": "gpu", "value": "a100", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "want"),
    [
        (a_node(), []),
        (a_node("False"), [(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        (a_node("Unknown"), [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        (a_node(cordoned=True), [("node.kubernetes.io/unschedulable", "NoSchedule")]),
        (a_node(MemoryPressure="True"), [("node.kubernetes.io/memory-pressure", "NoSchedule")]),
        (a_node(NetworkUnavailable="True"), [("node.kubernetes.io/network-unavailable", "NoSchedule")]),
        (a_node(taints=[OTHER, {"key": NOT_READY, "effect": "NoExecute"}]), [("gpu", "NoSchedule")]),
        (a_node(None), []),
    ],
)
def test_taints_follow_conditions_and_those_of_others_stay(node, want):
    assert [(taint["key"], taint["effect"]) for taint in taints_for(node, NOON)] == want


def test_a_taint_keeps_the_time_it_was_added():
    node = a_node("Unknown")
    node["spec"]["taints"] = taints_for(node, NOON - timedelta(hours=1))
    assert taints_for(node, NOON) == node["spec"]["taints"]


def a_pod(*tolerations, phase="Running", deleting=False):
    return builders.a_pod(tolerations=tolerations, phase=phase, deleting=deleting)


def toleration(key=UNREACHABLE, seconds=None):
    out = {"key": key, "operator": "Exists", "effect": "NoExecute"}
    return out if seconds is None else out | {"tolerationSeconds": seconds}


TAINTS = [
    {"key": UNREACHABLE, "effect": "NoSchedule"},
    {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(NOON - timedelta(seconds=60))},
]


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_pod(), -60, id="not tolerated: at once"),
        pytest.param(a_pod(toleration()), None, id="tolerated for ever"),
        pytest.param(a_pod(toleration(seconds=300)), 240, id="five minutes from when it was added"),
        pytest.param(a_pod(toleration(seconds=-5)), -60, id="negative is zero"),
        pytest.param(a_pod(toleration(seconds=300), toleration(seconds=100)), 40, id="the shorter counts"),
        pytest.param(a_pod(toleration(), toleration(seconds=100)), 40, id="limited beats unlimited"),
        pytest.param(a_pod({"operator": "Exists"}), None, id="everything tolerated"),
        pytest.param(a_pod(phase="Succeeded"), None, id="finished"),
        pytest.param(a_pod(deleting=True), None, id="leaving already"),
    ],
)
def test_when_a_pod_must_leave(pod, want):
    assert leaves_at(pod, TAINTS, NOON) == (None if want is None else NOON + timedelta(seconds=want))


def test_a_pod_of_a_lost_node_is_not_ready_any_more():
    pod = a_pod()
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]
    conditions = not_ready_conditions(pod, NOON)
    assert [(entry["type"], entry["status"]) for entry in conditions] == [
        ("Ready", "False"),
        ("Initialized", "True"),
    ]
    pod["status"]["conditions"] = conditions
    assert not_ready_conditions(pod, NOON) is None


def test_a_disruption_is_said_once():
    pod = a_pod()
    pod["status"]["conditions"] = disrupted_conditions(pod, "A", "first", NOON)
    again = disrupted_conditions(pod, "DeletionByPodGC", "second", NOON)
    assert [entry["reason"] for entry in again] == ["DeletionByPodGC"]


@given(
    ready=st.sampled_from(["True", "False", "Unknown", None]),
    cordoned=st.booleans(),
    pressure=st.sampled_from(["True", "False", "Unknown"]),
    extra=st.lists(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]), unique=True),
)
def test_taints_settle_at_once(ready, cordoned, pressure, extra):
    others = [{"key": "team", "effect": effect} for effect in extra]
    node = a_node(ready, cordoned=cordoned, taints=others, DiskPressure=pressure)
    once = taints_for(node, NOON)
    node["spec"]["taints"] = once
    assert taints_for(node, NOON + timedelta(hours=1)) == once
    assert [taint for taint in once if taint["key"] == "team"] == others


@pytest.mark.parametrize(
    ("taint_age", "slept", "want"),
    [
        pytest.param(100, 0, 200, id="no sleep: the toleration runs"),
        pytest.param(3600, 3600, 300, id="asleep since the taint came: it has all its time left"),
        pytest.param(3700, 3600, 200, id="awake for 100 s before the sleep: these count"),
        pytest.param(400, 0, -100, id="a node that stayed away while we listened: over"),
    ],
)
def test_a_toleration_does_not_run_out_while_the_machine_sleeps(taint_age, slept, want):
    added = NOON - timedelta(seconds=taint_age)
    taint = {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": rfc3339(added)}
    pod = a_pod({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    due = leaves_at(
        pod, [taint], NOON, lambda moment: timedelta(seconds=slept) if moment == added else timedelta(0)
    )
    assert due == NOON + timedelta(seconds=want)
