"""Rollouts: tables for single decisions, and a world that checks the two limits at every step."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.errors import UsageError
from moorage_kube.meta import condition
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples
from moorage_local.controllers.deployment.plan import (
    CreateSet,
    DeleteSet,
    Observed,
    SetRevision,
    UpdateSet,
    WriteStatus,
    available_of,
    find_new,
    limits_of,
    make_set,
    plan,
    revision_of,
    size_of,
)
from moorage_local.controllers.intorpercent import scaled

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def a_deployment(replicas=4, image="v1", surge="25%", unavailable="25%", *, strategy="RollingUpdate", **spec):
    chosen = {"type": strategy}
    if strategy == "RollingUpdate":
        chosen["rollingUpdate"] = {"maxSurge": surge, "maxUnavailable": unavailable}
    made = builders.a_deployment("web", replicas, image=image, uid="dep", resource_version=1, generation=1)
    return made | {"spec": made["spec"] | {"strategy": chosen} | spec}


def a_set(image, size, available=None, *, revision=1, age=0, wanted=4, pods=None, maximum=None):
    made = make_set(a_deployment(image=image))
    made["metadata"] |= {
        "uid": image,
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": rfc3339(NOON - timedelta(seconds=age)),
        "annotations": {
            "deployment.kubernetes.io/revision": str(revision),
            "deployment.kubernetes.io/desired-replicas": str(wanted),
            "deployment.kubernetes.io/max-replicas": str(maximum or wanted + 1),
        },
    }
    made["spec"]["replicas"] = size
    available = size if available is None else available
    count = size if pods is None else pods
    made["status"] = {"replicas": count, "readyReplicas": available, "availableReplicas": available}
    made["status"]["observedGeneration"] = 1
    return made


def decide(deployment, *sets, live=None, now=NOON):
    return plan(Observed(deployment=deployment, sets=sets, now=now, live_pods=live or {}))


def sizes(decided, *sets):
    out = {replica_set["metadata"]["uid"]: size_of(replica_set) for replica_set in sets}
    for action in decided.actions:
        if isinstance(action, UpdateSet) and "replicas" in action.patch.get("spec", {}):
            out[action.set["metadata"]["uid"]] = action.patch["spec"]["replicas"]
        if isinstance(action, CreateSet):
            out["created"] = action.set["spec"]["replicas"]
    return out


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "want"),
    [
        (4, "25%", "25%", (1, 1)),
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (3, 0, 0, (0, 1)),
        (3, "0%", 2, (0, 2)),
        (2, 5, 9, (5, 2)),
    ],
)
def test_surge_is_rounded_up_and_unavailable_down(replicas, surge, unavailable, want):
    assert limits_of(a_deployment(replicas, surge=surge, unavailable=unavailable)) == want


@pytest.mark.parametrize(
    ("value", "up", "want"), [(3, True, 3), ("3", True, 3), ("25%", True, 3), ("25%", False, 2)]
)
def test_a_number_or_a_percentage(value, up, want):
    assert scaled(value, 10, up=up) == want


@pytest.mark.parametrize("value", ["", "x", "1.5", "-1%", "%"])
def test_what_is_neither_number_nor_percentage_is_refused(value):
    with pytest.raises(UsageError, match="neither a number nor a percentage"):
        scaled(value, 10, up=True)


def test_a_new_deployment_creates_its_set_at_full_size():
    decided = decide(a_deployment(3))
    assert [type(action).__name__ for action in decided.actions] == ["CreateSet", "SetRevision", "WriteStatus"]
    made = decided.actions[0].set
    assert made["spec"]["replicas"] == 3
    digest = made["metadata"]["labels"]["pod-template-hash"]
    assert made["metadata"]["name"] == f"web-{digest}"
    assert made["spec"]["selector"]["matchLabels"] == {"app": "x", "pod-template-hash": digest}
    assert made["spec"]["template"]["metadata"]["labels"] == {"app": "x", "pod-template-hash": digest}
    assert made["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert decided.actions[1] == SetRevision("1")
    status = decided.actions[2].status
    assert condition({"status": status}, "Progressing")["reason"] == "NewReplicaSetCreated"
    assert condition({"status": status}, "Available")["status"] == "False"


def test_the_hash_does_not_depend_on_the_order_of_keys():
    deployment = a_deployment()
    other = copy.deepcopy(deployment)
    other["spec"]["template"] = dict(reversed(list(other["spec"]["template"].items())))
    assert make_set(deployment)["metadata"]["name"] == make_set(other)["metadata"]["name"]


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        pytest.param((a_set("v1", 4),), {"v1": 4, "created": 1}, id="first the surge"),
        pytest.param((a_set("v1", 4, age=9), a_set("v2", 1, 0)), {"v1": 3, "v2": 1}, id="one may be missing"),
        pytest.param((a_set("v1", 3, age=9), a_set("v2", 2, 0)), {"v1": 3, "v2": 2}, id="wait for the new"),
        pytest.param((a_set("v1", 3, age=9), a_set("v2", 2, 2)), {"v1": 1, "v2": 2}, id="then on"),
        pytest.param((a_set("v1", 4, 1, age=9), a_set("v2", 1, 0)), {"v1": 3, "v2": 1}, id="the sick go first"),
        pytest.param((a_set("v1", 1, age=9), a_set("v2", 4)), {"v1": 0, "v2": 4}, id="the last old one"),
        pytest.param((a_set("v1", 0, age=9), a_set("v2", 4)), {"v1": 0, "v2": 4}, id="done"),
    ],
)
def test_a_rolling_update_goes_step_by_step(sets, want):
    assert sizes(decide(a_deployment(4, "v2"), *sets), *sets) == want


@pytest.mark.parametrize(
    ("sets", "live", "want"),
    [
        pytest.param((a_set("v1", 4),), {"v1": 4}, {"v1": 0}, id="old ones down"),
        pytest.param((a_set("v1", 0),), {"v1": 2}, {"v1": 0}, id="wait for their pods"),
        pytest.param((a_set("v1", 0),), {}, {"v1": 0, "created": 4}, id="then the new"),
    ],
)
def test_recreate_waits_for_the_old_pods(sets, live, want):
    assert sizes(decide(a_deployment(4, "v2", strategy="Recreate"), *sets, live=live), *sets) == want


def test_scaling_in_the_middle_of_a_rollout_is_shared_by_size():
    sets = (a_set("v1", 6, age=9, wanted=10, maximum=13), a_set("v2", 4, 1, wanted=10, maximum=13))
    decided = decide(a_deployment(20, "v2"), *sets)
    got = sizes(decided, *sets)
    assert sum(got.values()) == 25  # 20 and a quarter
    assert got["v1"] > got["v2"] > 4


def test_a_paused_deployment_is_scaled_but_not_rolled():
    sets = (a_set("v1", 4),)
    decided = decide(a_deployment(2, "v2", paused=True), *sets)
    assert sizes(decided, *sets) == {"v1": 2}
    assert not any(isinstance(action, CreateSet) for action in decided.actions)


def test_going_back_to_an_old_template_takes_the_highest_revision():
    sets = (a_set("v1", 0, revision=1, age=9), a_set("v2", 4, revision=2))
    decided = decide(a_deployment(4, "v1"), *sets)
    assert SetRevision("3") in decided.actions
    assert find_new(a_deployment(4, "v1"), sets) is sets[0]


def test_old_sets_beyond_the_history_limit_go_oldest_first():
    sets = tuple(a_set(f"v{n}", 0, revision=n, age=99 - n) for n in range(1, 6)) + (a_set("v9", 4, revision=9),)
    decided = decide(a_deployment(4, "v9", revisionHistoryLimit=2), *sets)
    gone = [action.set["metadata"]["uid"] for action in decided.actions if isinstance(action, DeleteSet)]
    assert gone == ["v1", "v2", "v3"]


def test_a_rollout_that_does_not_move_is_said_to_have_timed_out():
    deployment = a_deployment(4, "v2", progressDeadlineSeconds=60)
    sets = (a_set("v1", 3, age=9), a_set("v2", 2, 0, revision=2))
    status = next(action.status for action in decide(deployment, *sets).actions if isinstance(action, WriteStatus))
    deployment["status"] = status
    deployment["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "2"}
    waiting = decide(deployment, *sets, now=NOON + timedelta(seconds=30))
    assert waiting.actions == ()
    assert waiting.look_again_in == timedelta(seconds=31)
    late = decide(deployment, *sets, now=NOON + timedelta(seconds=61))
    progressing = condition({"status": late.actions[-1].status}, "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")


class World:
    def __init__(self, deployment):
        self.deployment = deployment
        self.sets = {}
        self.pods = {}  # set → list of available?
        self.clock = NOON
        self.serial = 0

    def observe(self):
        for uid, replica_set in self.sets.items():
            pods = self.pods[uid]
            replica_set["status"] = {
                "replicas": len(pods),
                "readyReplicas": sum(pods),
                "availableReplicas": sum(pods),
                "observedGeneration": 1,
            }
        return Observed(
            deployment=copy.deepcopy(self.deployment),
            sets=copy.deepcopy(list(self.sets.values())),
            now=self.clock,
            live_pods={uid: len(pods) for uid, pods in self.pods.items()},
        )

    def apply(self, action):
        match action:
            case CreateSet(made):
                if any(
                    replica_set["metadata"]["name"] == made["metadata"]["name"]
                    for replica_set in self.sets.values()
                ):
                    return
                self.serial += 1
                uid = f"set-{self.serial}"
                stamp = rfc3339(NOON + timedelta(seconds=self.serial))
                self.sets[uid] = made | {"metadata": made["metadata"] | {"uid": uid, "creationTimestamp": stamp}}
                self.pods[uid] = []
            case UpdateSet(one, patch, _):
                mine = self.sets[one["metadata"]["uid"]]
                mine["spec"].update(patch.get("spec", {}))
                known = mine["metadata"].setdefault("annotations", {})
                known.update(patch.get("metadata", {}).get("annotations", {}))
            case DeleteSet(one):
                del self.sets[one["metadata"]["uid"]], self.pods[one["metadata"]["uid"]]
            case SetRevision(revision):
                note = {"deployment.kubernetes.io/revision": revision}
                self.deployment["metadata"]["annotations"] = note
            case WriteStatus(status):
                self.deployment["status"] = status

    def run_sets(self):
        """What the ReplicaSet controller does: those not ready go first."""
        for uid, replica_set in self.sets.items():
            pods = sorted(self.pods[uid], reverse=True)
            wanted = size_of(replica_set)
            self.pods[uid] = (pods + [False] * wanted)[:wanted]


@settings(max_examples=examples(30, full=120), deadline=None)
@given(
    replicas=st.integers(1, 9),
    surge=st.one_of(st.integers(0, 3), st.sampled_from(["0%", "25%", "100%"])),
    unavailable=st.one_of(st.integers(0, 3), st.sampled_from(["0%", "25%", "50%"])),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_rollout_cut_off_anywhere_ends_and_keeps_both_limits(replicas, surge, unavailable, seed):
    rng = random.Random(seed)
    world = World(a_deployment(replicas, "v1", surge, unavailable, revisionHistoryLimit=1))
    more, less = limits_of(world.deployment)
    for image in ("v1", "v2", "v3"):
        world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image
        steady = image != "v1"
        for _ in range(300):
            decided = plan(world.observe())
            if not decided.actions and all(all(pods) for pods in world.pods.values()):
                break
            cut = rng.randrange(len(decided.actions) + 1) if rng.random() < 0.3 else len(decided.actions)
            for action in decided.actions[:cut]:
                world.apply(action)
                assert sum(size_of(replica_set) for replica_set in world.sets.values()) <= replicas + more
            world.run_sets()
            if steady:
                assert sum(sum(pods) for pods in world.pods.values()) >= replicas - less
            for pods in world.pods.values():
                for at in range(len(pods)):
                    pods[at] = pods[at] or rng.random() < 0.5
        observed = world.observe()
        new = find_new(world.deployment, list(world.sets.values()))
        assert plan(observed).actions == ()
        assert (size_of(new), available_of(new)) == (replicas, replicas)
        assert all(size_of(replica_set) == 0 for replica_set in world.sets.values() if replica_set is not new)
        assert revision_of(new) == {"v1": 1, "v2": 2, "v3": 3}[image]
        assert condition(world.deployment, "Progressing")["reason"] == "NewReplicaSetAvailable"
    assert len(world.sets) == 2  # the newest and one of history
