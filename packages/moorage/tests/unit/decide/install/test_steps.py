"""What an installation makes, changes and removes, in which order; and how far a Deployment is."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.installobjects import wanted_objects
from moorage.decide.install.changes import changes
from moorage.decide.install.record import Ref, refs_of
from moorage.decide.install.rollout import hint_for, rollout
from moorage.decide.install.steps import (
    FIELD_MANAGER,
    Phase,
    check_kubernetes,
    in_order,
    needed_rights,
    phase_of,
    plan_install,
    rollout_groups,
    to_apply,
)
from moorage.decide.install.values import InstallValues, parse_values
from moorage_kube.access import Right
from moorage_kube.errors import NotReady

values_lists = st.lists(
    st.builds(
        InstallValues,
        image=st.sampled_from(("moorage:1", "moorage:2")),
        public_url=st.sampled_from(("", "https://a.example.org", "https://b.example.org")),
        ingress_class=st.sampled_from(("", "nginx")),
        replicas=st.dictionaries(st.sampled_from(("webhook", "server")), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=3,
)


def applied(live: dict[Ref, dict[str, Any]], obj: dict[str, Any]) -> dict[str, Any]:
    """What an apply leaves in a world where nobody else writes."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(obj))  # a copy, made quickly
    return made | ({"status": live[Ref.of(obj)].get("status", {})} if Ref.of(obj) in live else {})


def install(world: dict[Ref, dict[str, Any]], written: list[Ref], values: InstallValues) -> Any:
    """Install on a world, and return the plan."""
    wanted = [to_apply(obj, world.get(Ref.of(obj)), values.replicas) for obj in wanted_objects(values)]
    tried = {Ref.of(obj): applied(world, obj) for obj in wanted if Ref.of(obj) in world}
    plan = plan_install(wanted, dict(world), tried, written)
    for obj in plan.write:
        world[Ref.of(obj)] = applied(world, obj)
    for ref in plan.removed:
        del world[ref]
    written[:] = refs_of(plan.write)
    return plan


@given(values_lists)
def test_installing_twice_leaves_nothing_to_do(chosen):
    world: dict[Ref, dict[str, Any]] = {}
    written: list[Ref] = []
    for values in chosen:
        install(world, written, values)
    again = install(world, written, chosen[-1])
    assert again.is_empty
    fresh: dict[Ref, dict[str, Any]] = {}
    install(fresh, [], chosen[-1])
    assert set(world) == set(fresh)  # and nothing of an earlier choice is left


def test_what_another_stands_on_is_written_first():
    phases = [phase_of(obj) for obj in in_order(reversed(wanted_objects(InstallValues())))]
    assert phases == sorted(phases)
    assert set(phases) == set(Phase)


def test_the_webhook_is_rolled_out_before_those_whose_objects_it_judges():
    deployments = [
        obj["metadata"]["name"] for obj in in_order(wanted_objects(InstallValues())) if obj["kind"] == "Deployment"
    ]
    assert deployments[0] == "moorage-webhook"
    assert deployments[-1] == "moorage-server"


@pytest.mark.parametrize(
    ("rolling", "absent", "want"),
    [
        pytest.param(False, {"webhook", "extender", "operator", "server"},
                     [["webhook", "extender", "operator", "server"]], id="first: all together"),
        pytest.param(True, set(), [["webhook"], ["extender"], ["operator"], ["server"]], id="upgrade: one by one"),
        pytest.param(True, {"webhook", "extender", "operator", "server"},
                     [["webhook", "extender", "operator", "server"]], id="interrupted before any of them"),
        pytest.param(True, {"extender", "operator", "server"}, [["extender", "operator", "server"], ["webhook"]],
                     id="interrupted after the webhook, whose Secret the operator makes"),
        pytest.param(True, {"operator"}, [["operator"], ["webhook"], ["extender"], ["server"]],
                     id="one was deleted"),
    ],
)  # fmt: skip
def test_services_that_are_not_there_are_written_together_and_first(rolling, absent, want):
    services = [obj for obj in in_order(wanted_objects(InstallValues())) if obj["kind"] == "Deployment"]
    made = {Ref.of(obj) for obj in services if obj["metadata"]["name"].removeprefix("moorage-") in absent}
    groups = rollout_groups(services, made, rolling=rolling)
    assert [[obj["metadata"]["name"].removeprefix("moorage-") for obj in group] for group in groups] == want


def test_data_is_never_pruned():
    refs = [Ref("v1", kind, "moorage-system", "old") for kind in ("PersistentVolumeClaim", "Secret", "ConfigMap")]
    refs += [
        Ref("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "old"),
        Ref("v1", "Namespace", "", "old"),
    ]
    live = {ref: {"metadata": {"name": "old"}} for ref in refs}
    assert plan_install([], live, {}, refs).removed == (Ref("v1", "ConfigMap", "moorage-system", "old"),)


def test_changes_are_named_by_their_fields():
    before = {
        "metadata": {"name": "a", "resourceVersion": "1", "managedFields": []},
        "spec": {"containers": [{"name": "main", "image": "a:1", "args": ["x"]}], "replicas": 1},
        "status": {"replicas": 1},
    }
    after = copy.deepcopy(before)
    after["metadata"]["resourceVersion"] = "2"
    after["spec"]["containers"][0] |= {"image": "a:2", "args": ["x", "y"]}
    after["spec"]["containers"].append({"name": "side"})
    del after["spec"]["replicas"]
    after["status"] = {}
    assert [str(change) for change in changes(before, after)] == [
        "spec.containers[main].image: a:1 → a:2",
        "spec.containers[main].args: ['x'] → ['x', 'y']",
        "spec.containers[side]: (none) → {'name': 'side'}",
        "spec.replicas: 1 → (none)",
    ]
    assert changes(before, before) == []


def registration(path: str) -> dict[str, Any]:
    client = {"service": {"namespace": "moorage-system", "name": "moorage-webhook", "path": path, "port": 443}}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "moorage"},
        "webhooks": [{"name": "mutate.guard.moorage.dev", "clientConfig": client}],
    }


def test_the_path_that_the_operator_has_given_a_token_is_left_to_it():
    live = registration("/mutate/secret")
    assert to_apply(registration("/mutate"), live, {}) == live
    assert to_apply(registration("/other"), live, {}) == registration("/other")
    assert to_apply(registration("/mutate"), None, {}) == registration("/mutate")


def deployment(replicas: int, manager: str = FIELD_MANAGER) -> dict[str, Any]:
    managed = [{"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    meta = {"name": "moorage-webhook", "managedFields": managed}
    return {"kind": "Deployment", "metadata": meta, "spec": {"replicas": replicas}}


def test_a_deployment_that_somebody_has_scaled_keeps_its_replicas():
    wanted = {"kind": "Deployment", "metadata": {"name": "moorage-webhook"}, "spec": {"replicas": 2}}
    assert to_apply(wanted, deployment(5, "kubectl"), {})["spec"]["replicas"] == 5
    assert to_apply(wanted, deployment(5), {})["spec"]["replicas"] == 2
    assert to_apply(wanted, deployment(5, "kubectl"), {"webhook": 2})["spec"]["replicas"] == 2


def test_the_spec_of_a_claim_that_is_there_is_left_as_it_is():
    wanted = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "a"},
        "spec": {"resources": {"requests": "5Gi"}},
    }
    live = {"spec": {"resources": {"requests": "9Gi"}, "storageClassName": "fast", "volumeName": "pv-1"}}
    spec = {"resources": {"requests": "9Gi"}, "storageClassName": "fast"}
    assert to_apply(wanted, live, {})["spec"] == spec


@pytest.mark.parametrize("version", ["v1.29.9", "v1.9.0", "v0.30.0"])
def test_a_kubernetes_that_is_too_old_is_refused(version):
    with pytest.raises(NotReady) as refused:
        check_kubernetes(version)
    assert refused.value.message == f"the cluster runs Kubernetes {version}; Moorage needs 1.30 or newer"


@pytest.mark.parametrize("version", ["v1.30.0", "v1.31.5-gke.100", "v1.36.2+k3s1", "v2.0.0"])
def test_a_newer_kubernetes_is_taken(version):
    check_kubernetes(version)


def test_rights_are_asked_for_every_kind_that_is_written():
    wanted = wanted_objects(parse_values({"publicUrl": "https://a.example.org", "ingressClass": "nginx"}))
    plurals = {kind: kind.lower() + "s" for kind in {obj["kind"] for obj in wanted}}
    rights = needed_rights(wanted, plurals, removing=False)
    assert Right("patch", "apps", "deployments", "moorage-system") in rights
    assert Right("escalate", "rbac.authorization.k8s.io", "clusterroles") in rights
    assert Right("create", "networking.k8s.io", "ingresss", "moorage-system") in rights
    assert {right.verb for right in needed_rights(wanted, plurals, removing=True)} == {"get", "delete"}


# --- how far a Deployment is


def pod(**status: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "server", "image": "registry/moorage:1"}]}
    return {"metadata": {"name": "moorage-server-1"}, "spec": spec, "status": status}


def unplaced(message: str) -> dict[str, Any]:
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def waiting(why: str, message: str = "", **last: Any) -> dict[str, Any]:
    state = {"name": "server", "state": {"waiting": {"reason": why, "message": message}}}
    return pod(containerStatuses=[state | ({"lastState": {"terminated": last}} if last else {})])


def a_deployment(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "moorage-server", "generation": 2}, "spec": {"replicas": 2}, "status": status}


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({}, False),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, True),
    ],
)
def test_a_rollout_is_done_when_all_replicas_are_new_and_available(status, done):
    assert rollout(a_deployment(**status), []).done is done


@pytest.mark.parametrize(
    ("seen", "reason", "hint"),
    [
        (
            waiting("ImagePullBackOff", "not found"),
            "image registry/moorage:1 cannot be pulled: not found",
            "check --image; for a private registry, list imagePullSecrets in --values FILE",
        ),
        (
            waiting("CrashLoopBackOff", reason="OOMKilled", exitCode=137),
            "server ends again and again (OOMKilled, exit code 137)",
            "kubectl -n moorage-system describe pods -l app.kubernetes.io/name=moorage-server",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "postgres" not found'),
            'server cannot start: CreateContainerConfigError: secret "postgres" not found',
            "kubectl -n moorage-system describe pods -l app.kubernetes.io/name=moorage-server",
        ),
        (
            pod(
                conditions=[{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}]
            ),
            "no node takes it: 0/2 nodes: Insufficient cpu",
            "make room on the nodes, or lower `resources` in --values FILE",
        ),
        (
            pod(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "message": "unbound PersistentVolumeClaim"}
                ]
            ),
            "no node takes it: unbound PersistentVolumeClaim",
            "choose a class that exists with --storage-class: kubectl get storageclass",
        ),
    ],
)
def test_why_a_deployment_does_not_come_up_is_said_with_what_to_do(seen, reason, hint):
    state = rollout(a_deployment(), [seen])
    assert state.reasons == (reason,)
    assert hint_for(state.reasons, "moorage-system", "moorage-server") == hint


def test_a_quota_that_keeps_pods_from_being_made_is_named():
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: all"}
    state = rollout(a_deployment(conditions=[failure]), [waiting("ContainerCreating")])
    assert state.reasons == ("exceeded quota: all",)
    assert "raise the quota" in hint_for(state.reasons, "moorage-system", "moorage-server")


def test_pods_that_are_going_are_no_reason():
    going = waiting("ImagePullBackOff")
    going["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert rollout(a_deployment(), [going]).reasons == ()
