"""How many pods a ReplicaSet makes and which it removes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moorage_kube.clock import rfc3339
from moorage_kube.resources import REPLICASETS
from moorage_kube.selectors import label_selector_of
from moorage_kube.testing import builders
from moorage_local.controllers.ownership import adoption, claims, release
from moorage_local.controllers.pods import child_names, finished_at
from moorage_local.controllers.replicaset.plan import CreatePod, DeletePod, Observed, WriteStatus, plan

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_set(replicas=2, status=None, **spec):
    made = builders.a_deployment(
        "rs", replicas, resource=REPLICASETS, uid="rs-1", resource_version=5, generation=3
    )
    return made | {"spec": made["spec"] | spec, "status": status or {}}


def a_pod(
    name, phase="Running", *, ready=None, age=0, deleting=False, cost=None, labels=None, owner="rs-1", **more
):
    if ready is not None:
        more["conditions"] = [builders.a_condition("Ready", since=NOON - timedelta(seconds=ready))]
    return builders.a_pod(
        name, uid=f"uid-{name}", phase=phase, labels={"app": "x"} if labels is None else labels,
        created=NOON - timedelta(seconds=age), deleting=deleting and NOON,
        owner=builders.an_owner("ReplicaSet", "rs", owner) if owner else None,
        annotations={} if cost is None else {"controller.kubernetes.io/pod-deletion-cost": str(cost)},
        **{"node": "n1"} | more,
    )  # fmt: skip


def decide(replica_set, *pods):
    return plan(Observed(set=replica_set, pods=pods, now=NOON))


def removed(decided):
    return [action.pod["metadata"]["name"] for action in decided.actions if isinstance(action, DeletePod)]


@pytest.mark.parametrize(
    ("replicas", "pods", "creates", "deletes"),
    [
        pytest.param(2, (), 2, [], id="from nothing"),
        pytest.param(2, (a_pod("a"),), 1, [], id="one missing"),
        pytest.param(1, (a_pod("a", "Failed"), a_pod("b", deleting=True)), 1, [], id="the dead do not count"),
        pytest.param(1, (a_pod("a", ready=9), a_pod("b")), 0, ["b"], id="not ready before ready"),
        pytest.param(1, (a_pod("a"), a_pod("b", node="")), 0, ["b"], id="unbound first"),
        pytest.param(1, (a_pod("a", "Pending"), a_pod("b")), 0, ["a"], id="pending first"),
        pytest.param(1, (a_pod("a", age=9), a_pod("b", age=5)), 0, ["b"], id="younger first"),
        pytest.param(1, (a_pod("a", cost=-1), a_pod("b", age=-5)), 0, ["a"], id="cheaper first"),
        pytest.param(1, (a_pod("a", cost="+5", age=-5), a_pod("b", cost=3)), 0, ["a"], id="a cost with + is none"),
        pytest.param(
            1, (a_pod("a", cost="05", age=-5), a_pod("b", cost=3)), 0, ["a"], id="nor is one with 0 first"
        ),
        pytest.param(2, (a_pod("a", node="n2"), a_pod("b"), a_pod("c")), 0, ["b"], id="crowded node first"),
        pytest.param(0, (a_pod("a"), a_pod("b")), 0, ["a", "b"], id="to zero"),
        pytest.param(None, (), 1, [], id="one when not said"),
    ],
)
def test_the_number_of_pods_follows_the_spec(replicas, pods, creates, deletes):
    decided = decide(a_set(replicas), *pods)
    assert sum(isinstance(action, CreatePod) for action in decided.actions) == creates
    assert removed(decided) == deletes


def test_the_status_counts_and_waits_for_availability():
    decided = decide(
        a_set(3, minReadySeconds=10), a_pod("a", ready=30), a_pod("b", ready=4), a_pod("c", labels={})
    )
    assert decided.actions == (
        WriteStatus(
            {
                "replicas": 3,
                "observedGeneration": 3,
                "fullyLabeledReplicas": 2,
                "readyReplicas": 2,
                "availableReplicas": 1,
            }
        ),
    )
    assert decided.look_again_in == timedelta(seconds=6)
    settled = a_set(3, decided.actions[0].status, minReadySeconds=10)
    assert decide(settled, a_pod("a", ready=30), a_pod("b", ready=4), a_pod("c", labels={})).actions == ()


def test_names_of_children_never_meet_those_that_are_there():
    owner = a_set()
    names = child_names("x" * 80, owner, (), 200)
    assert len(set(names)) == 200
    assert all(len(name) <= 63 for name in names)
    assert names == child_names("x" * 80, owner, (), 200)
    taken = [a_pod(names[0])]
    assert names[0] not in child_names("x" * 80, owner, taken, 200)


def test_orphans_are_adopted_and_strangers_let_go():
    owner = a_set()
    owned, orphan = a_pod("owned"), a_pod("orphan", owner=None)
    stranger = a_pod("stranger", labels={"app": "y"})
    others = a_pod("others", owner="somebody else")
    going = a_pod("going", owner=None, deleting=True)
    sorted_out = claims(
        owner, label_selector_of(owner["spec"]["selector"]), [owned, orphan, stranger, others, going]
    )
    assert (sorted_out.owned, sorted_out.adopt, sorted_out.release) == ((owned,), (orphan,), (stranger,))
    assert adoption(owner, orphan)["metadata"]["ownerReferences"][0]["uid"] == "rs-1"
    assert release(owner, stranger)["metadata"]["ownerReferences"] is None


def test_a_set_being_deleted_adopts_nothing():
    owner = a_set()
    owner["metadata"]["deletionTimestamp"] = rfc3339(NOON)
    sorted_out = claims(owner, label_selector_of({"matchLabels": {"app": "x"}}), [a_pod("a", owner=None)])
    assert sorted_out.adopt == ()


def test_when_a_pod_ended_is_found_in_several_places():
    pod = a_pod("a", "Failed", age=50)
    assert finished_at(pod) == NOON - timedelta(seconds=50)
    pod["metadata"] |= {"deletionTimestamp": rfc3339(NOON), "deletionGracePeriodSeconds": 30}
    assert finished_at(pod) == NOON - timedelta(seconds=30)
    at = rfc3339(NOON - timedelta(seconds=20))
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": at}]
    assert finished_at(pod) == NOON - timedelta(seconds=20)
    at = rfc3339(NOON - timedelta(seconds=10))
    pod["status"]["containerStatuses"] = [{"name": "m", "state": {"terminated": {"finishedAt": at}}}]
    assert finished_at(pod) == NOON - timedelta(seconds=10)
