"""Which PriorityClasses pods may name."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.priority import allowed_classes, judge_priority, stand_in
from moorage.decide.admission.templates import WORKLOADS
from moorage.model.manifests.machines import make_machine_objects
from moorage.model.names import STAND_IN_LABEL


def a_class(name: str, value: int = 0, *, default: bool = False, policy: str = "PreemptLowerPriority") -> Any:
    return {"metadata": {"name": name}, "value": value, "globalDefault": default, "preemptionPolicy": policy}


CLASSES = [
    a_class("moorage-default", default=True, policy="Never"),
    a_class("moorage-guest"),
    a_class("moorage-reservation", -10, policy="Never"),
    a_class("system-node-critical", 2000001000),
    a_class("system-cluster-critical", 2000000000),
    a_class("urgent", 1000),
    a_class("mine", 100),
]
PLAIN = {"metadata": {"name": "beta"}, "spec": {"namespace": "beta"}}
LISTS = {"metadata": {"name": "beta"}, "spec": {"namespace": "beta", "priorityClasses": ["mine"]}}
GREEDY = {
    "metadata": {"name": "beta"},
    "spec": {"namespace": "beta", "priorityClasses": ["system-node-critical", "moorage-guest"]},
}


def a_workload(kind: str, spec: Any, labels: Any = None) -> Any:
    obj: Any = {"metadata": {"labels": labels or {}}, "spec": spec}
    for step in reversed(WORKLOADS[kind]):
        obj = {step: obj}
    return obj | {"metadata": obj.get("metadata") or {"name": "x"}}


def judge(kind: str, spec: Any, tenant: Any = PLAIN, *, old: Any = None, labels: Any = None) -> list[str]:
    before = a_workload(kind, old) if old is not None else None
    found = judge_priority(kind, a_workload(kind, spec, labels), before, tenant=tenant, classes=CLASSES)
    return [one.field.rpartition(".")[2] for one in found]


@pytest.mark.parametrize("kind", list(WORKLOADS))
@pytest.mark.parametrize(
    ("name", "tenant", "is_good"),
    [
        ("", PLAIN, True),
        ("moorage-default", PLAIN, True),
        ("mine", PLAIN, False),
        ("mine", LISTS, True),
        ("urgent", LISTS, False),
        ("not-there", PLAIN, False),
        (["mine"], LISTS, False),
        ({"mine": 1}, LISTS, False),
        ("system-node-critical", PLAIN, False),
        ("system-cluster-critical", LISTS, False),
        ("system-anything", LISTS, False),
        ("moorage-guest", PLAIN, False),
        ("moorage-reservation", PLAIN, False),
        ("system-node-critical", GREEDY, False),
        ("moorage-guest", GREEDY, False),
        ("urgent", None, True),  # guarded, and no tenant's
        ("system-node-critical", None, False),
        ("moorage-guest", None, False),
        ("moorage-reservation", None, False),
    ],
)
def test_classes_are_the_tenants(kind: str, name: str, tenant: Any, is_good: bool) -> None:
    assert judge(kind, {"priorityClassName": name}, tenant) == ([] if is_good else ["priorityClassName"])


def test_the_clusters_own_default_is_everybodys() -> None:
    classes = [a_class("house", 5, default=True)]
    assert allowed_classes(None, classes) == ("house", "moorage-default")
    assert not judge_priority(
        "Pod",
        a_workload("Pod", {"priorityClassName": "house", "priority": 5}),
        None,
        tenant=PLAIN,
        classes=classes,
    )


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({"priorityClassName": "mine", "priority": 100, "preemptionPolicy": "PreemptLowerPriority"}, []),
        ({"priorityClassName": "mine", "priority": 101}, ["priority"]),
        ({"priority": 1}, ["priority"]),
        ({"priority": 0, "preemptionPolicy": "Never"}, []),
        ({"preemptionPolicy": "PreemptLowerPriority"}, ["preemptionPolicy"]),
        (
            {"priorityClassName": "moorage-default", "preemptionPolicy": "PreemptLowerPriority"},
            ["preemptionPolicy"],
        ),
        ({"priorityClassName": "mine", "priority": 100, "preemptionPolicy": "Never"}, []),
    ],
)
def test_numbers_say_no_more_than_the_class(spec: Any, wrong: list[str]) -> None:
    assert judge("Pod", spec, LISTS) == wrong


def test_a_number_in_a_template_is_left_to_kubernetes() -> None:
    assert judge("Deployment", {"priority": 2000001000}) == ["priority"]
    assert judge("Deployment", {"priorityClassName": "mine", "priority": 2000001000}, LISTS) == ["priority"]
    assert judge("Deployment", {"priorityClassName": "mine", "priority": 100}, LISTS) == []


def test_a_class_newer_than_our_copy_is_kubernetes_to_judge() -> None:
    tenant = {"metadata": {"name": "b"}, "spec": {"priorityClasses": ["new"]}}
    assert judge("Pod", {"priorityClassName": "new", "priority": 7}, tenant) == []


GUEST = {"moorage.dev/machine-type": "large", "moorage.dev/machine-group": "gpu"}
GATED = {"schedulingGates": [{"name": "moorage.dev/machine"}]}
OF_GUESTS = {"priorityClassName": "moorage-guest", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}


def test_the_class_of_guests_is_for_guests_that_wait_their_turn() -> None:
    assert judge("Pod", OF_GUESTS | GATED, labels=GUEST) == []
    assert judge("Pod", OF_GUESTS, labels=GUEST) == ["priorityClassName"]
    assert judge("Pod", OF_GUESTS | GATED) == ["priorityClassName"]
    assert judge("Job", {"priorityClassName": "moorage-guest"}, labels=GUEST) == []


@pytest.mark.parametrize("kind", ["Deployment", "CronJob", "Pod"])
def test_what_was_there_before_may_be_changed_otherwise(kind: str) -> None:
    old = {"priorityClassName": "urgent", "containers": []}
    assert judge(kind, old | {"containers": [{"name": "x"}]}, old=old) == []
    assert judge(kind, {"priorityClassName": "system-node-critical"}, old=old) == ["priorityClassName"]


CALM = a_class("calm", 1000, policy="Never") | {"metadata": {"name": "calm", "labels": {STAND_IN_LABEL: "true"}}}
OURS = a_class("moorage-default", policy="Never")
GUEST = {"moorage.dev/machine-type": "x", "moorage.dev/machine-group": "y"}


def house(value: int = 0, policy: str = "PreemptLowerPriority") -> Any:
    return a_class("house", value, default=True, policy=policy)


def a_pod_of(name: str, value: int = 0, policy: str = "PreemptLowerPriority", labels: Any = None) -> Any:
    spec: Any = {"priority": value, "preemptionPolicy": policy} | ({"priorityClassName": name} if name else {})
    return {"metadata": {"labels": labels or {}}, "spec": spec}


@pytest.mark.parametrize(
    ("pod", "classes", "want"),
    [
        pytest.param(a_pod_of(""), [OURS], "moorage-default", id="no class, no default"),
        pytest.param(a_pod_of(""), [], None, id="ours is missing"),
        pytest.param(a_pod_of("house"), [OURS, house()], "moorage-default", id="theirs, of our value"),
        pytest.param(a_pod_of("house", 1000), [OURS, house(1000)], None, id="theirs, of another value"),
        pytest.param(a_pod_of("house", 1000), [OURS, house(1000), CALM], "calm", id="the admin's stand-in"),
        pytest.param(a_pod_of("house", 0, "Never"), [OURS, house(policy="Never")], None, id="theirs is calm"),
        pytest.param(a_pod_of("house", -10), [OURS, house(-10)], None, id="theirs is as low as reservations"),
        pytest.param(a_pod_of("urgent", 1000), [OURS, *CLASSES, CALM], None, id="not the default"),
        pytest.param(a_pod_of("mine"), [OURS, a_class("mine", default=True)], None, id="the Tenant lists it"),
        pytest.param(a_pod_of("", labels=GUEST), [OURS], None, id="a machine's guest"),
        pytest.param(a_pod_of("moorage-default", 0, "Never"), [OURS | {"globalDefault": True}], None, id="ours"),
        pytest.param({"metadata": {}, "spec": None}, [OURS], "moorage-default", id="nothing in it"),
    ],
)
def test_a_pod_of_the_default_class_gets_one_that_does_not_preempt(pod, classes, want):
    patches = stand_in(pod, tenant=LISTS, classes=classes)
    made = {patch["path"].rpartition("/")[2]: patch["value"] for patch in patches}
    assert made.get("priorityClassName") == want
    if want is not None:
        value = (pod["spec"] or {}).get("priority", 0)
        assert made == {"priorityClassName": want, "priority": value, "preemptionPolicy": "Never"}
        again = {"metadata": pod["metadata"], "spec": (pod["spec"] or {}) | made}
        assert stand_in(again, tenant=LISTS, classes=classes) == ()
        assert judge_priority("Pod", again, None, tenant=PLAIN, classes=classes) == ()


def test_an_installation_makes_no_class_the_default_of_the_cluster():
    classes = [obj for obj in make_machine_objects() if obj["kind"] == "PriorityClass"]
    assert [obj.get("globalDefault") for obj in classes] == [None] * 4
    assert {obj["metadata"]["name"]: obj["value"] for obj in classes}["moorage-default"] == 0
