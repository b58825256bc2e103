"""StatefulSets: tables for single decisions, and a world that checks order and claims at every write."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.meta import condition, is_deleting, labels_of
from moorage_kube.resources import STATEFULSETS
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples
from moorage_local.controllers.revisions import (
    HASH_LABEL,
    REVISION_HASH,
    CreateRevision,
    DeleteRevision,
    RenumberRevision,
    find_revision,
    make_revision,
    surplus_revisions,
    template_of,
)
from moorage_local.controllers.statefulset.plan import (
    PODS_MAX,
    STALE,
    CreateClaim,
    CreatePod,
    DeletePod,
    Observed,
    OwnClaim,
    WriteStatus,
    ordinal_of,
    plan,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DATA = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}


def a_template(image="v1"):
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": image}]}}


def a_set(replicas=3, image="v1", *, partition=0, **spec):
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    spec = {"serviceName": "peers", "updateStrategy": rolling} | spec
    return builders.a_deployment(
        "web", replicas, resource=STATEFULSETS, image=image, uid="set", resource_version=1, generation=1, spec=spec
    )


class World:
    """A StatefulSet and what it owns; `apply` is the API server and refuses what breaks a promise."""

    def __init__(self, owner):
        self.set = owner
        self.pods = {}
        self.claims = {}
        self.revisions = {}
        self.now = NOON
        self.serial = 0
        self.deleted_claims = set()

    @property
    def size(self):
        return self.set["spec"]["replicas"]

    @property
    def start(self):
        return (self.set["spec"].get("ordinals") or {}).get("start", 0)

    @property
    def in_order(self):
        return self.set["spec"].get("podManagementPolicy") != "Parallel"

    def wanted(self):
        return [f"web-{at}" for at in range(self.start, self.start + self.size)]

    def plan(self):
        parts = copy.deepcopy((self.set, tuple(self.pods.values()), tuple(self.revisions.values()), self.claims))
        return plan(Observed(set=parts[0], pods=parts[1], revisions=parts[2], claims=parts[3], now=self.now))

    def is_up(self, name):
        pod = self.pods.get(name)
        if pod is None or is_deleting(pod) or pod["status"]["phase"] != "Running":
            return False
        ready = condition(pod, "Ready")
        wait = timedelta(seconds=self.set["spec"].get("minReadySeconds", 0))
        return self._ready(name) and rfc3339(self.now - wait) >= ready["lastTransitionTime"]

    def apply(self, action):
        self.serial += 1
        born = {"uid": f"u{self.serial}", "resourceVersion": "1", "creationTimestamp": rfc3339(self.now)}
        match action:
            case CreateRevision(made):
                assert made["metadata"]["name"] not in self.revisions
                self.revisions[made["metadata"]["name"]] = made | {"metadata": made["metadata"] | born}
            case RenumberRevision(revision, number):
                self.revisions[revision["metadata"]["name"]]["revision"] = number
            case DeleteRevision(revision):
                del self.revisions[revision["metadata"]["name"]]
            case CreatePod(made):
                self._create_pod(made, born)
            case DeletePod(pod):
                self._delete_pod(pod["metadata"]["name"])
            case CreateClaim(made):
                assert made["metadata"]["name"] not in self.claims
                self.claims[made["metadata"]["name"]] = made | {"metadata": made["metadata"] | born}
            case OwnClaim(claim, owners):
                meta = self.claims[claim["metadata"]["name"]]["metadata"]
                assert {owner["uid"] for owner in owners} != {
                    ref["uid"] for ref in meta.get("ownerReferences", ())
                }
                meta["ownerReferences"] = owners
            case WriteStatus(status):
                assert status != self.set.get("status")
                self.set["status"] = status

    def _create_pod(self, made, born):
        name = made["metadata"]["name"]
        assert name in self.wanted()
        assert name not in self.pods, "two pods of one name"
        assert labels_of(made)[HASH_LABEL] in self.revisions
        for volume in made["spec"].get("volumes", ()):
            assert volume["persistentVolumeClaim"]["claimName"] in self.claims
        if self.in_order:
            assert all(self.is_up(name) for name in self.wanted()[: ordinal_of("web", made) - self.start])
        self.pods[name] = made | {"metadata": made["metadata"] | born, "status": {"phase": "Pending"}}

    def _delete_pod(self, name):
        pod = self.pods[name]
        assert not is_deleting(pod), "deleted twice"
        ended = pod["status"]["phase"] in ("Failed", "Succeeded")
        if self.in_order and not ended:
            assert all(self.is_up(name) for name in self.wanted())
            surplus = [pod for pod in self.pods.values() if pod["metadata"]["name"] not in self.wanted()]
            if name in self.wanted():
                assert not surplus
            else:
                assert pod is max(surplus, key=lambda pod: ordinal_of("web", pod))
        pod["metadata"]["deletionTimestamp"] = rfc3339(self.now)

    def remove(self, name):
        """A pod that was being deleted is gone, and claims that only it owned go with it."""
        uid = self.pods.pop(name)["metadata"]["uid"]
        for claim in list(self.claims.values()):
            if [ref["uid"] for ref in claim["metadata"].get("ownerReferences") or ()] == [uid]:
                self.deleted_claims.add(claim["metadata"]["name"])
                del self.claims[claim["metadata"]["name"]]

    def turn(self, name, phase="Running", *, ready=None):
        status = self.pods[name]["status"]
        status["phase"] = phase
        at = rfc3339(self.now)
        if ready is not None:
            status["conditions"] = [{"type": "Ready", "status": str(ready), "lastTransitionTime": at}]

    def live(self, rng, chance=0.6, failing=0.0):
        """What kubelets do meanwhile, to some of the pods."""
        self.now += timedelta(seconds=rng.randrange(3))
        for name, pod in list(self.pods.items()):
            if rng.random() > chance:
                continue
            if is_deleting(pod):
                self.remove(name)
            elif pod["status"]["phase"] in ("Pending", "Running") and rng.random() < failing:
                self.turn(name, rng.choice(["Failed", "Succeeded"]), ready=False)
            elif pod["status"]["phase"] == "Pending":
                self.turn(name, "Running", ready=False)
            elif pod["status"]["phase"] == "Running" and not self._ready(name):
                self.turn(name, "Running", ready=True)

    def _ready(self, name):
        ready = condition(self.pods[name], "Ready")
        return ready is not None and ready["status"] == "True"

    def settle(self, rng=None, watch=lambda: None):
        """Plan, act and live until there is nothing more to do; `watch` is called at every step."""
        rng = rng or random.Random(0)
        for _ in range(600):
            decided = self.plan()
            quiet = all(self.is_up(name) for name in self.pods) and decided.look_again_in is None
            if not decided.actions and quiet:
                return self
            for action in decided.actions:
                self.apply(action)
                watch()
            self.live(rng)
            watch()
        raise AssertionError(f"not settled: {decided}")

    def check_settled(self):
        """The wished size at the newest revision, and a status that says so."""
        assert self.plan().actions == ()
        assert sorted(self.pods) == sorted(self.wanted())
        newest = max(self.revisions.values(), key=lambda revision: revision["revision"])
        assert template_of(newest) == self.set["spec"]["template"]
        name = newest["metadata"]["name"]
        assert {labels_of(pod)[HASH_LABEL] for pod in self.pods.values()} <= {name}
        status = {key: value for key, value in self.set["status"].items() if value}
        counts = ("replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas")
        assert status == {"observedGeneration": 1, "currentRevision": name, "updateRevision": name} | (
            dict.fromkeys(counts, self.size) if self.size else {}
        )


def settled(*args, **spec):
    return World(a_set(*args, **spec)).settle()


def steps(decided):
    """Actions in words, without the status."""
    words = []
    for action in decided.actions:
        match action:
            case CreatePod(pod):
                words.append("+" + pod["metadata"]["name"])
            case DeletePod(pod):
                words.append("-" + pod["metadata"]["name"])
            case CreateClaim(claim):
                words.append("+" + claim["metadata"]["name"])
            case OwnClaim(claim, owners):
                words.append(f"{claim['metadata']['name']} of {[owner['kind'] for owner in owners]}")
    return words


# -- one decision at a time


def test_a_pod_bears_its_number_its_host_name_and_its_claims():
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    owner = a_set(1, volumeClaimTemplates=[DATA])
    owner["spec"]["template"]["spec"]["volumes"] = volumes
    decided = World(owner).plan()
    revision, claim, pod, status = decided.actions
    name = revision.revision["metadata"]["name"]
    assert claim == CreateClaim(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data-web-0", "namespace": "lab", "labels": {"app": "x"}},
            "spec": {"accessModes": ["ReadWriteOnce"]},
        }
    )
    made = pod.pod
    assert made["metadata"]["name"] == "web-0"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "set"
    assert labels_of(made) == {
        "app": "x",
        "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": name,
    }
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}
    assert made["spec"] == {
        "containers": [{"name": "main", "image": "v1"}],
        "volumes": [claimed, {"name": "tmp", "emptyDir": {}}],
        "hostname": "web-0",
        "subdomain": "peers",
    }
    assert owner["spec"]["template"]["spec"]["volumes"] == volumes  # the template is left as it was
    assert status.status["updateRevision"] == name


@pytest.mark.parametrize(
    ("name", "want"),
    [("web-0", 0), ("web-12", 12), ("web", None), ("web-x", None), ("web-1-2", None), ("webb-1", None)],
)
def test_a_number_is_read_from_names_of_the_set_only(name, want):
    assert ordinal_of("web", {"metadata": {"name": name}}) == want


def test_numbers_start_where_the_set_says():
    world = settled(2, ordinals={"start": 5})
    assert sorted(world.pods) == ["web-5", "web-6"]
    world.set["spec"]["ordinals"] = {"start": 6}
    assert steps(world.plan()) == ["+web-7"]
    assert sorted(world.settle().pods) == ["web-6", "web-7"]


def test_a_set_of_very_many_makes_as_many_as_a_pass_makes_and_looks_no_further():
    world = World(a_set(2**31 - 1, podManagementPolicy="Parallel"))
    assert steps(world.plan()) == [f"+web-{at}" for at in range(PODS_MAX)]


def in_order_pending(world):
    world.turn("web-1", "Running", ready=False)


def gone(*names):
    def change(world):
        for name in names:
            world.remove(name)

    return change


def ended(name, phase):
    return lambda world: world.turn(name, phase, ready=False)


def going(name):
    return lambda world: world.pods[name]["metadata"].update(deletionTimestamp=rfc3339(NOON))


def sized(size, then=lambda world: None):
    def change(world):
        world.set["spec"]["replicas"] = size
        then(world)

    return change


def templated(image, then=lambda world: None, **strategy):
    def change(world):
        world.set["spec"]["template"] = a_template(image)
        world.set["spec"]["updateStrategy"].update(strategy)
        then(world)

    return change


@pytest.mark.parametrize(
    ("change", "ordered", "parallel"),
    [
        pytest.param(lambda world: None, [], [], id="settled"),
        pytest.param(sized(5), ["+web-3"], ["+web-3", "+web-4"], id="up: in order the next alone"),
        pytest.param(sized(5, in_order_pending), [], ["+web-3", "+web-4"], id="up: not before all are ready"),
        pytest.param(sized(1), ["-web-2"], ["-web-2", "-web-1"], id="down: in order the last alone"),
        pytest.param(sized(1, going("web-2")), [], ["-web-1"], id="down: one at a time"),
        pytest.param(sized(0), ["-web-2"], ["-web-2", "-web-1", "-web-0"], id="to nothing"),
        pytest.param(sized(2, ended("web-0", "Pending")), [], ["-web-2"], id="down: not while one is sick"),
        pytest.param(
            sized(1, in_order_pending),
            ["-web-2"],
            ["-web-2", "-web-1"],
            id="down: a sick one before it may be next",
        ),
        pytest.param(
            sized(1, lambda world: (in_order_pending(world), world.turn("web-2", ready=False))),
            [],
            ["-web-2", "-web-1"],
            id="down: of two sick ones the first is waited for",
        ),
        pytest.param(
            sized(2, lambda world: world.turn("web-2", ready=False)), ["-web-2"], ["-web-2"], id="down: it is"
        ),
        pytest.param(
            sized(1, lambda world: (ended("web-1", "Succeeded")(world), ended("web-2", "Failed")(world))),
            ["-web-2"],
            ["-web-2", "-web-1"],
            id="down: two that ended are not waited for",
        ),
        pytest.param(gone("web-0", "web-1"), ["+web-0"], ["+web-0", "+web-1"], id="lost: the first first"),
        pytest.param(sized(2, gone("web-0")), ["+web-0"], ["+web-0", "-web-2"], id="down: made before removed"),
        pytest.param(ended("web-1", "Failed"), ["-web-1"], ["-web-1"], id="failed: removed, to be made anew"),
        pytest.param(ended("web-1", "Succeeded"), ["-web-1"], ["-web-1"], id="ended: so too"),
        pytest.param(going("web-1"), [], [], id="being deleted: waited for"),
        pytest.param(templated("v2"), ["-web-2"], ["-web-2"], id="update: the last, alone"),
        pytest.param(templated("v2", going("web-2")), [], [], id="update: not while another is on its way"),
        pytest.param(templated("v2", in_order_pending), [], ["-web-2"], id="update: in order all must be ready"),
        pytest.param(
            templated("v2", gone("web-2")), ["+web-2"], ["+web-2"], id="update: what is lost comes first"
        ),
        pytest.param(
            templated("v2", ended("web-2", "Failed")), ["-web-2"], ["-web-2"], id="update: a failed one goes once"
        ),
        pytest.param(
            templated("v2", rollingUpdate={"partition": 2, "maxUnavailable": 2}),
            ["-web-2"],
            ["-web-2"],
            id="update: down to the partition",
        ),
        pytest.param(
            templated("v2", rollingUpdate={"partition": 3}), [], [], id="update: none above the partition"
        ),
        pytest.param(templated("v2", type="OnDelete"), [], [], id="update: on deletion only"),
        pytest.param(sized(4, templated("v2")), ["+web-3"], ["+web-3"], id="update and up: up first"),
        pytest.param(sized(2, templated("v2")), ["-web-2"], ["-web-2", "-web-1"], id="update and down"),
    ],
)
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_the_next_steps(change, ordered, parallel, policy):
    world = settled(3, podManagementPolicy=policy)
    change(world)
    assert steps(world.plan()) == (ordered if policy == "OrderedReady" else parallel)


@pytest.mark.parametrize(
    ("lost", "partition", "want"),
    [("web-0", 2, "v1"), ("web-1", 2, "v1"), ("web-2", 2, "v2"), ("web-0", 0, "v2"), ("web-0", 9, "v1")],
)
def test_a_pod_below_the_partition_comes_back_as_it_was(lost, partition, want):
    world = settled(3, podManagementPolicy="Parallel", partition=partition)
    templated("v2", gone(lost))(world)
    made = next(action.pod for action in world.plan().actions if isinstance(action, CreatePod))
    assert made["spec"]["containers"][0]["image"] == want


def test_on_delete_a_pod_comes_back_new():
    world = settled(2, podManagementPolicy="Parallel", updateStrategy={"type": "OnDelete"})
    templated("v2", gone("web-0"))(world)
    world.settle()
    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in world.pods.items()}
    assert images == {"web-0": "v2", "web-1": "v1"}
    status = world.set["status"]
    assert (status["currentReplicas"], status["updatedReplicas"]) == (1, 1)
    assert status["currentRevision"] != status["updateRevision"]


def test_a_pod_that_is_never_ready_holds_up_the_mended_template_until_it_is_deleted():
    """kubernetes/kubernetes#67250."""
    world = World(a_set(2))
    for action in world.plan().actions:
        world.apply(action)
    templated("v2")(world)
    for action in world.plan().actions:
        world.apply(action)
    assert steps(world.plan()) == []
    world.remove("web-0")
    world.settle().check_settled()


def test_a_pod_counts_as_available_when_it_was_ready_long_enough():
    world = World(a_set(2, minReadySeconds=10))
    for action in world.plan().actions:
        world.apply(action)
    world.turn("web-0", ready=True)
    decided = world.plan()
    assert steps(decided) == []
    assert decided.look_again_in == timedelta(seconds=10)
    (written,) = decided.actions
    assert (written.status["readyReplicas"], written.status["availableReplicas"]) == (1, 0)
    world.now += timedelta(seconds=10)
    assert steps(world.plan()) == ["+web-1"]


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_a_set_being_deleted_only_tells_its_status(policy):
    world = settled(2, podManagementPolicy=policy)
    world.set["metadata"]["deletionTimestamp"] = rfc3339(NOON)
    sized(5, ended("web-0", "Failed"))(world)
    assert [type(action) for action in world.plan().actions] == [WriteStatus]


# -- claims


def with_claims(size, deleted="Retain", scaled="Retain", **spec):
    policy = {"whenDeleted": deleted, "whenScaled": scaled}
    more = {"volumeClaimTemplates": [DATA], "persistentVolumeClaimRetentionPolicy": policy}
    return settled(size, **more, **spec)


def owners_of(world):
    return {
        name: [ref["kind"] for ref in claim["metadata"].get("ownerReferences") or ()]
        for name, claim in world.claims.items()
    }


@pytest.mark.parametrize(
    ("deleted", "scaled", "before", "scaling", "after"),
    [
        ("Retain", "Retain", [], [], ["data-web-0", "data-web-1"]),
        ("Delete", "Retain", ["StatefulSet"], ["StatefulSet"], ["data-web-0", "data-web-1"]),
        ("Retain", "Delete", [], ["Pod"], ["data-web-0"]),
        ("Delete", "Delete", ["StatefulSet"], ["Pod"], ["data-web-0"]),
    ],
)
def test_claims_go_with_the_pod_with_the_set_or_not_at_all(deleted, scaled, before, scaling, after):
    world = with_claims(2, deleted, scaled)
    assert owners_of(world) == {"data-web-0": before, "data-web-1": before}
    sized(1)(world)
    for action in world.plan().actions:
        world.apply(action)
    assert owners_of(world) == {"data-web-0": before, "data-web-1": scaling}
    world.settle()
    assert sorted(world.claims) == after


def test_owners_that_others_gave_a_claim_are_kept():
    world = with_claims(1)
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "other"}
    world.claims["data-web-0"]["metadata"]["ownerReferences"] = [other]
    assert steps(world.plan()) == []
    world.set["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] = "Delete"
    assert steps(world.plan()) == ["data-web-0 of ['ConfigMap', 'StatefulSet']"]


def test_growing_again_takes_the_claim_back_from_a_pod_that_stays():
    world = with_claims(2, scaled="Delete")
    sized(1)(world)
    own, _ = (action for action in world.plan().actions if isinstance(action, OwnClaim | DeletePod))
    world.apply(own)  # and killed before the deletion
    sized(2)(world)
    assert steps(world.plan()) == ["data-web-1 of []"]
    world.settle()
    assert world.deleted_claims == set()


@pytest.mark.parametrize("sign", ["going", "owned"])
def test_a_pod_waits_for_the_claim_of_the_one_before_it_to_go(sign):
    world = with_claims(2, scaled="Delete")
    world.remove("web-1")
    meta = world.claims["data-web-1"]["metadata"]
    if sign == "going":
        meta["deletionTimestamp"] = rfc3339(NOON)
    else:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": "the last one"}]
    decided = world.plan()
    assert (steps(decided), decided.look_again_in) == ([], STALE)
    del world.claims["data-web-1"]
    assert steps(world.plan()) == ["+data-web-1", "+web-1"]


def test_a_claim_that_a_waiting_pod_lost_is_made_again():
    world = with_claims(1)
    world.turn("web-0", "Pending", ready=False)
    del world.claims["data-web-0"]
    assert steps(world.plan()) == ["+data-web-0"]


# -- revisions


def test_the_name_of_a_revision_follows_from_the_template_alone():
    revision = make_revision(a_set(), 1)
    other = a_set(9)
    other["spec"]["template"] = dict(reversed(list(other["spec"]["template"].items())))
    assert make_revision(other, 1) == revision
    assert make_revision(a_set(image="v2"), 1)["metadata"]["name"] != revision["metadata"]["name"]
    assert revision["metadata"]["name"] == "web-" + revision["metadata"]["labels"][REVISION_HASH]
    assert template_of(revision) == a_template()


def test_an_old_template_serves_again_under_the_highest_number():
    first, second = make_revision(a_set(image="v1"), 1), make_revision(a_set(image="v2"), 2)
    assert find_revision(a_set(image="v2"), [first, second]) == (second, ())
    assert find_revision(a_set(image="v1"), [second, first]) == (first, (RenumberRevision(first, 3),))
    third = make_revision(a_set(image="v3"), 3)
    assert find_revision(a_set(image="v3"), [first, second]) == (third, (CreateRevision(third),))


@pytest.mark.parametrize(
    ("limit", "want"), [(None, []), (2, ["v1"]), (1, ["v1", "v3"]), (0, ["v1", "v3", "v4"]), (9, [])]
)
def test_revisions_beyond_the_limit_go_oldest_first_but_never_those_in_use(limit, want):
    known = [make_revision(a_set(image=f"v{n}"), n) for n in range(1, 6)]
    live = [known[1]["metadata"]["name"], known[4]["metadata"]["name"]]
    surplus = surplus_revisions(a_set(revisionHistoryLimit=limit), list(reversed(known)), live)
    images = [template_of(action.revision)["spec"]["containers"][0]["image"] for action in surplus]
    assert images == want


# -- properties

policies = st.sampled_from(["OrderedReady", "Parallel"])
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=examples(30, full=120))
@given(
    policy=policies,
    min_ready=st.sampled_from([0, 0, 2]),
    scaled=st.sampled_from(["Retain", "Delete"]),
    deleted=st.sampled_from(["Retain", "Delete"]),
    history=st.integers(0, 2),
    seed=seeds,
)
@example(policy="OrderedReady", min_ready=0, scaled="Retain", deleted="Delete", history=2, seed=2267)
@example(policy="OrderedReady", min_ready=2, scaled="Delete", deleted="Delete", history=2, seed=1057)
def test_whatever_happens_meanwhile_the_set_ends_at_its_size_and_newest_template(
    policy, min_ready, scaled, deleted, history, seed
):
    """Resized, updated, its pods failing and its controller killed between any two writes. Order, single names and
    that no pod starts without its claim are checked by the world at every write."""
    rng = random.Random(seed)
    world = World(
        a_set(
            rng.randrange(5),
            podManagementPolicy=policy,
            minReadySeconds=min_ready,
            revisionHistoryLimit=history,
            volumeClaimTemplates=[DATA],
            persistentVolumeClaimRetentionPolicy={"whenDeleted": deleted, "whenScaled": scaled},
        )
    )
    ever = set()
    for _ in range(60):
        if rng.random() < 0.1:
            world.set["spec"]["replicas"] = rng.randrange(5)
        if rng.random() < 0.1:
            world.set["spec"]["template"] = a_template(rng.choice(["v1", "v2", "v3", "v4"]))
        actions = world.plan().actions
        cut = rng.randrange(len(actions) + 1) if rng.random() < 0.3 else len(actions)
        for action in actions[:cut]:
            world.apply(action)
        ever |= set(world.claims)
        world.live(rng, failing=0.05)
    world.settle(rng)
    ever |= set(world.claims)
    world.check_settled()
    assert len(world.revisions) <= 1 + history
    assert {f"data-{name}" for name in world.wanted()} <= set(world.claims)
    if scaled == "Retain":
        assert set(world.claims) == ever  # no claim goes unless told
        assert world.deleted_claims == set()
    of_set = ["StatefulSet"] if deleted == "Delete" else []
    assert all(owners_of(world)[f"data-{name}"] == of_set for name in world.wanted())


@settings(max_examples=examples(20, full=80))
@given(
    policy=policies, size=st.integers(1, 6), partition=st.integers(0, 6), min_ready=st.integers(0, 2), seed=seeds
)
def test_a_new_template_takes_down_one_pod_at_a_time_from_the_last_to_the_partition(
    policy, size, partition, min_ready, seed
):
    world = settled(size, podManagementPolicy=policy, partition=partition, minReadySeconds=min_ready)
    untouched = {name: world.pods[name]["metadata"]["uid"] for name in world.wanted()[:partition]}
    gone_in_order = []

    def watch():
        down = [name for name in world.wanted() if not world.is_up(name)]
        assert len(down) <= 1
        gone_in_order.extend(name for name in down if name not in gone_in_order)

    templated("v2")(world)
    world.settle(random.Random(seed), watch)
    assert gone_in_order == list(reversed(world.wanted()[partition:]))
    assert {name: world.pods[name]["metadata"]["uid"] for name in untouched} == untouched
    status = world.set["status"]
    assert status.get("updatedReplicas", 0) == max(0, size - partition)
    assert (status["currentRevision"] == status["updateRevision"]) == (partition == 0)


@settings(max_examples=examples(20, full=60))
@given(policy=policies, before=st.integers(0, 6), after=st.integers(0, 6), deletes=st.booleans(), seed=seeds)
def test_a_resized_set_grows_from_the_first_and_shrinks_from_the_last(policy, before, after, deletes, seed):
    world = with_claims(before, scaled="Delete" if deletes else "Retain", podManagementPolicy=policy)
    kept = {name: world.pods[name]["metadata"]["uid"] for name in world.wanted()[:after]}
    sized(after)(world)
    world.settle(random.Random(seed))
    world.check_settled()
    assert {name: world.pods[name]["metadata"]["uid"] for name in kept} == kept
    assert sorted(world.claims) == [f"data-web-{at}" for at in range(after if deletes else max(before, after))]
