"""What an uninstall takes away and leaves: properties over worlds, and each case by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.installobjects import whatever_is_shipped
from moorage.decide.install.record import Ref, refs_of
from moorage.decide.install.removal import (
    AwaitServices,
    CleanNode,
    Delete,
    LiftGates,
    Present,
    Release,
    Step,
    plan_removal,
)
from moorage.decide.install.steps import REGISTRATIONS

SHIPPED = refs_of(whatever_is_shipped())
KEPT_KINDS = {"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim"}
OURS, THEIRS = "moorage.dev/dataset", "example.org/theirs"


def an_object(kind: str, name: str, finalizers: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "lab", "finalizers": list(finalizers)}
    return {"apiVersion": "moorage.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def a_pod(name: str, *gates: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "lab", "labels": labels or {}}
    return {"metadata": meta, "spec": {"schedulingGates": [{"name": gate} for gate in gates]} | spec}


def a_node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {"moorage.dev/machine-node-pool": "a100"}}}


def present(**fields: Any) -> Present:
    return Present(**({"written": SHIPPED, "class_users": {}} | fields))


def after(seen: Present, step: Step) -> Present:
    """The world after one step, nobody else acting."""
    world = {name: getattr(seen, name) for name in Present.__struct_fields__}
    world = copy.deepcopy(world)
    match step:
        case Delete(ref):
            world["written"] = [other for other in world["written"] if other != ref]
            world["ours"] = [obj for obj in world["ours"] if Ref.of(obj) != ref or obj["metadata"]["finalizers"]]
            world["shared"] = [other for other in world["shared"] if other != ref]
            world["admin_bindings"] = [other for other in world["admin_bindings"] if other != ref]
            world["pods"] = [
                pod
                for pod in world["pods"]
                if ("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
                != (ref.kind, ref.namespace, ref.name)
            ]
        case Release(ref, left):
            for obj in world["ours"]:
                if Ref.of(obj) == ref:
                    obj["metadata"]["finalizers"] = list(left)
        case LiftGates(namespace, name, left):
            for pod in world["pods"]:
                if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                    pod["spec"]["schedulingGates"] = [{"name": gate} for gate in left]
        case CleanNode(name):
            for node in world["nodes"]:
                if node["metadata"]["name"] == name:
                    node["metadata"]["annotations"] = {}
        case AwaitServices():
            pass
    return Present(**world)


finalizers = st.lists(st.sampled_from((OURS, "moorage.dev/map", THEIRS)), unique=True).map(tuple)
gates = st.lists(
    st.sampled_from(("moorage.dev/machine", "moorage.dev/memory", "moorage.dev/container", "example.org/theirs")),
    unique=True,
)
worlds = st.builds(
    present,
    written=st.lists(st.sampled_from(SHIPPED), unique=True, min_size=1),
    ours=st.lists(finalizers, max_size=3).map(
        lambda each: [an_object("Dataset", f"d{place}", names) for place, names in enumerate(each)]
    ),
    pods=st.lists(gates, max_size=3).map(lambda each: [a_pod(f"p{place}", *g) for place, g in enumerate(each)]),
    nodes=st.sampled_from(([], [a_node("n1")])),
    shared=st.sampled_from(([], [Ref("v1", "PersistentVolumeClaim", "team", "digits")])),
    class_users=st.sampled_from(({}, {"moorage-guest": ["Job lab/train"]})),
    accounts=st.integers(0, 3),
)


@given(worlds, st.booleans(), st.integers(0, 60))
def test_a_removal_that_was_stopped_is_finished_by_the_next(seen, delete_data, steps_before_crash):
    for step in plan_removal(seen, delete_data=delete_data).steps[:steps_before_crash]:
        seen = after(seen, step)
    for step in plan_removal(seen, delete_data=delete_data).steps:
        seen = after(seen, step)
    held = tuple(Delete(Ref.of(obj)) for obj in seen.ours) if delete_data else ()  # by the finalizers of others
    assert plan_removal(seen, delete_data=delete_data).steps == (AwaitServices(), *held)  # else nothing is left
    kept_classes = {name for name, users in seen.class_users.items() if users}
    for ref in seen.written:  # and what is left is what is said to stay
        assert ref.name in kept_classes or (not delete_data and ref.kind in KEPT_KINDS)
    for obj in seen.ours:
        assert set(obj["metadata"]["finalizers"]) <= {THEIRS}
        assert not delete_data or THEIRS in obj["metadata"]["finalizers"]
    for pod in seen.pods:
        left = {gate["name"] for gate in pod["spec"]["schedulingGates"]}
        assert left <= {"moorage.dev/container", "example.org/theirs"}
    assert not (delete_data and (seen.shared or any(node["metadata"]["annotations"] for node in seen.nodes)))


@given(worlds, st.booleans())
def test_registrations_go_first_then_the_services_then_all_else(seen, delete_data):
    def place(step: Step) -> int:
        match step:
            case Delete(ref) if ref.kind in REGISTRATIONS:
                return 0
            case Delete(ref) if ref.kind == "Deployment":
                return 1
            case AwaitServices():
                return 2
            case Delete(ref) if ref.kind == "CustomResourceDefinition":
                return 4
            case Delete(ref) if ref.kind == "Namespace":
                return 5
            case _:
                return 3

    places = [place(step) for step in plan_removal(seen, delete_data=delete_data).steps]
    assert places == sorted(places)


def test_whatever_is_installed_is_gone_with_its_data():
    seen = present()
    for step in plan_removal(seen, delete_data=True).steps:
        seen = after(seen, step)
    assert list(seen.written) == []


def test_pods_in_wait_for_the_second_scheduler_are_made_anew_or_named():
    owner = [{"kind": "Job", "controller": True}]
    waits = a_pod("job-1", schedulerName="moorage-scheduler")
    waits["metadata"]["ownerReferences"] = owner
    alone = a_pod("alone", schedulerName="moorage-scheduler")
    runs = a_pod("runs", schedulerName="moorage-scheduler", nodeName="n1")
    removal = plan_removal(present(pods=[waits, alone, runs]), delete_data=False)
    deleted = [step.ref for step in removal.steps if isinstance(step, Delete) and step.ref.kind == "Pod"]
    assert deleted == [Ref("v1", "Pod", "lab", "job-1")]
    assert any(line.startswith("pods lab/alone: they are not scheduled") for line in removal.stays)


def test_places_of_machines_go_with_those_who_hold_them():
    place = a_pod("place", labels={"moorage.dev/reservation": "kept"})
    place["metadata"]["namespace"] = "moorage-system"
    users = a_pod("users", labels={"moorage.dev/reservation": "kept"})
    removal = plan_removal(present(pods=[place, users]), delete_data=False)
    deleted = [step.ref for step in removal.steps if isinstance(step, Delete) and step.ref.kind == "Pod"]
    assert deleted == [Ref("v1", "Pod", "moorage-system", "place")]
    assert "pods that hold places of machines: 1" in removal.goes


@pytest.mark.parametrize(
    ("delete_data", "going", "staying"),
    [
        (
            False,
            "our finalizers on Dataset lab/digits: later deletions are not blocked",
            "the kinds of moorage.dev: 1 Dataset, 1 Tenant",
        ),
        (
            True,
            "DATA: 1 Dataset, 1 Tenant, with the volumes of datasets",
            "PriorityClass moorage-guest: Job lab/train could not create pods without it",
        ),
    ],
)
def test_what_goes_and_what_stays_is_said_first(delete_data, going, staying):
    tenant = an_object("Tenant", "vision", namespace="team-vision", onDelete="Delete")
    seen = present(
        ours=[an_object("Dataset", "digits", (OURS,)), tenant],
        class_users={"moorage-guest": ["Job lab/train"]},
        accounts=2,
    )
    removal = plan_removal(seen, delete_data=delete_data)
    assert going in removal.goes
    assert staying in removal.stays
    owned = "DATA: namespaces of tenants with onDelete: Delete, and all in them: team-vision"
    assert (owned in removal.goes) is delete_data
    assert (
        "accounts in moorage-users: 2; these users cannot log in meanwhile" in removal.stays
    ) is not delete_data


def test_containers_that_nobody_has_started_are_named_and_left():
    removal = plan_removal(present(pods=[a_pod("web", "moorage.dev/container")]), delete_data=False)
    assert not any(isinstance(step, LiftGates) for step in removal.steps)
    assert "containers that were created and not started: lab/web; delete them with kubectl" in removal.stays
