"""What a guest gets at admission, and how its gate is lifted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moorage.decide.admission.injection import inject, judge_update, lift
from moorage.model.machine import parse_machine
from moorage_kube.scheduling import NodeInfo, parse_pod, refusal_by_labels

MACHINE = {
    "metadata": {"name": "m", "uid": "u", "labels": {"moorage.dev/machine-group": "gpu"}},
    "spec": {
        "nodePool": [{"name": "n0", "mode": "ready", "machineType": [{"name": "big"}]}],
        "machineTypes": [
            {
                "name": "big",
                "spec": {"cpu": "4000m", "memory": "12Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}},
                "available": 1,
            }
        ],
    },
}
POOLS = {"gpu": parse_machine(MACHINE)}
LABELS = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "big"}
WHOLE = {"cpu": "4000m", "memory": "12Gi", "nvidia.com/gpu": "1"}


def a_pod(*containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    found = list(containers) or [{"name": "main"}]
    meta = {"name": "ada", "namespace": "lab", "uid": "u1", "resourceVersion": "7", "labels": labels or LABELS}
    return {"metadata": meta, "spec": {"containers": found, **spec}}


def test_a_guest_gets_a_machine_its_nodes_the_right_to_its_place_and_the_gate() -> None:
    spec = inject(a_pod(), POOLS).pod["spec"]
    assert spec["containers"] == [{"name": "main", "resources": {"limits": WHOLE, "requests": WHOLE}}]
    assert spec["schedulingGates"] == [{"name": "moorage.dev/machine"}]
    assert spec["priorityClassName"] == "moorage-guest"
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    tolerated = {"key": "moorage.dev/machine-group", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}
    assert tolerated in spec["tolerations"]


def test_a_pod_that_names_no_machine_is_left_alone() -> None:
    pod = a_pod(labels={"app": "web"})
    assert inject(pod, POOLS).pod == pod


def test_injecting_twice_changes_nothing_more() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    pod = a_pod(affinity=affinity, tolerations=[{"key": "mine", "operator": "Exists"}])
    once = inject(pod, POOLS)
    assert inject(once.pod, POOLS).pod == once.pod != pod


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        pytest.param({"requests": {"cpu": "2"}}, {"cpu": ("2", "4000m")}, id="less CPU asked for: kept"),
        pytest.param({"limits": {"memory": "1Gi"}}, {"memory": ("1Gi", "1Gi")}, id="a lower limit: kept"),
        pytest.param({"limits": None}, {"cpu": ("4000m", "4000m")}, id="nothing said: the whole"),
    ],
)
def test_what_the_author_wrote_is_kept(resources: dict[str, Any], want: dict[str, tuple[str, str]]) -> None:
    made = inject(a_pod({"name": "main", "resources": resources}), POOLS).pod["spec"]["containers"][0]["resources"]
    assert {name: (made["requests"][name], made["limits"][name]) for name in want} == want


def test_the_named_container_gets_what_the_others_leave() -> None:
    side = {"name": "side", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}
    pod = a_pod(side, {"name": "train"}, labels=LABELS | {"moorage.dev/machine-container": "train"})
    made = inject(pod, POOLS).pod["spec"]["containers"]
    assert made[0] == side
    want = {"cpu": "3", "memory": str(10 * 2**30), "nvidia.com/gpu": "1"}
    assert made[1]["resources"] == {"limits": want, "requests": want}


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        pytest.param(
            a_pod({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}),
            "spec.containers[0].resources.requests[nvidia.com/gpu]",
            id="more devices than a machine has",
        ),
        pytest.param(
            a_pod({"name": "main", "resources": {"requests": {"cpu": "5"}}}),
            "spec.containers[0].resources.requests[cpu]",
            id="more CPU",
        ),
        pytest.param(
            a_pod({"name": "main", "resources": {"limits": {"amd.com/gpu": "1"}}}),
            "spec.containers[0].resources.requests[amd.com/gpu]",
            id="a device that a machine does not have",
        ),
        pytest.param(
            a_pod(labels=LABELS | {"moorage.dev/machine-type": "nosuch"}),
            "metadata.labels[moorage.dev/machine-type]",
            id="an unknown type",
        ),
        pytest.param(
            a_pod(labels=LABELS | {"moorage.dev/machine-group": "nosuch"}),
            "metadata.labels[moorage.dev/machine-group]",
            id="an unknown group",
        ),
        pytest.param(
            a_pod(labels={"moorage.dev/machine-type": "big"}),
            "metadata.labels[moorage.dev/machine-group]",
            id="no group",
        ),
        pytest.param(
            a_pod(labels=LABELS | {"moorage.dev/machine-container": "nosuch"}),
            "metadata.labels[moorage.dev/machine-container]",
            id="no such container",
        ),
        pytest.param(a_pod(nodeName="n0"), "spec.nodeName", id="a node of its own choice"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(pod: dict[str, Any], field: str) -> None:
    told = inject(pod, POOLS)
    assert [refusal.field for refusal in told.refusals] == [field]
    assert told.pod == pod


def test_a_class_that_may_not_preempt_is_replaced_with_a_warning_and_one_that_may_stays() -> None:
    never = inject(a_pod(priorityClassName="batch", priority=5, preemptionPolicy="Never"), POOLS)
    assert never.pod["spec"]["priorityClassName"] == "moorage-guest"
    assert never.warnings == ("spec.priorityClassName batch may not preempt; moorage-guest takes its place",)
    mine = inject(a_pod(priorityClassName="high", priority=5, preemptionPolicy="PreemptLowerPriority"), POOLS)
    assert mine.pod["spec"]["priorityClassName"] == "high"


def test_nobody_gives_himself_a_place() -> None:
    pod = a_pod()
    pod["metadata"]["annotations"] = {"moorage.dev/machine-place": "n0", "mine": "1"}
    made = inject(pod, POOLS)
    assert made.pod["metadata"]["annotations"] == {"mine": "1"}
    old = inject(a_pod(), POOLS).pod
    pod["spec"] = old["spec"]
    assert [one.field for one in judge_update(old, pod, ours=False)] == [
        "metadata.annotations[moorage.dev/machine-place]"
    ]
    assert judge_update(old, pod, ours=True) == []


def test_nobody_lets_a_guest_through_before_its_turn() -> None:
    """Its class may preempt the pods that hold places for others."""
    old = inject(a_pod(schedulingGates=[{"name": "mine"}]), POOLS).pod
    new = json.loads(json.dumps(old))
    new["spec"]["schedulingGates"] = [{"name": "moorage.dev/machine"}]
    assert judge_update(old, new, ours=False) == []
    new["spec"]["schedulingGates"] = [{"name": "mine"}]
    assert [refusal.field for refusal in judge_update(old, new, ours=False)] == ["spec.schedulingGates"]
    assert judge_update(old, new, ours=True) == []
    del new["spec"]["schedulingGates"]
    assert [refusal.field for refusal in judge_update(old, new, ours=False)] == ["spec.schedulingGates"]


def test_the_machine_asked_for_cannot_be_changed() -> None:
    other = a_pod(labels=LABELS | {"moorage.dev/machine-type": "small"})
    assert [one.field for one in judge_update(a_pod(), other, ours=True)] == [
        "metadata.labels[moorage.dev/machine-type]"
    ]


def test_what_a_guest_waited_for_is_no_longer_said_when_it_is_let_through() -> None:
    at = "2026-11-21T12:00:00Z"
    placed = {"moorage.dev/machine-place": "n0", "moorage.dev/machine-place-at": at}
    pod = inject(a_pod(), POOLS).pod
    assert lift(pod, "n0", at)["metadata"]["annotations"] == placed
    pod["metadata"] = pod["metadata"] | {"annotations": {"moorage.dev/waits-for": f"{at} a booking"}}
    assert lift(pod, "n0", at)["metadata"]["annotations"] == placed | {"moorage.dev/waits-for": None}


def test_lifted_a_guest_can_go_to_its_place_only_and_later_where_a_label_calls_it() -> None:
    pod = inject(a_pod(), POOLS).pod
    patch = lift(pod, "n0", "2026-11-21T12:00:00Z")
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["spec"]["schedulingGates"] == []
    info = parse_pod({"metadata": pod["metadata"], "spec": pod["spec"] | patch["spec"]})
    marks = {"type.machine.moorage.dev/big": "gpu", "moorage.dev/machine-mode": "ready"}
    called = marks | {"place.machine.moorage.dev/u1": "gpu"}
    assert refusal_by_labels(info, NodeInfo(name="n0", labels=marks)) is None
    assert refusal_by_labels(info, NodeInfo(name="n1", labels=marks)) is not None
    assert refusal_by_labels(info, NodeInfo(name="n1", labels=called)) is None
    # the API server lets requirements be added to the terms there are, and nothing else
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    before = pod["spec"]["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"]
    after = patch["spec"]["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"]
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert new["matchExpressions"][: len(old["matchExpressions"])] == old["matchExpressions"]
