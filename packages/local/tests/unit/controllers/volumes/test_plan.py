"""Binding of claims and volumes: tables, and a world in which binding is cut off anywhere."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.errors import StorageError
from moorage_kube.resources import PVCS, PVS, STORAGECLASSES
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples
from moorage_local.controllers.volumes.controller import Folders, index_by_claim
from moorage_local.controllers.volumes.plan import (
    ClaimObserved,
    PatchClaim,
    PatchVolume,
    Provision,
    Reclaim,
    SetClaimStatus,
    SetFinalizer,
    SetVolumePhase,
    Tell,
    VolumeObserved,
    best_volume,
    default_class,
    mismatch,
    plan_claim,
    plan_volume,
)

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
OURS = "localcluster.moorage.dev/folder"


def a_class(name="local", *, default=True, provisioner=OURS, mode="Immediate", grow=True, policy="Delete"):
    return builders.an_object(
        STORAGECLASSES, name, created="2026-01-01T00:00:00Z", provisioner=provisioner, volumeBindingMode=mode,
        annotations={"storageclass.kubernetes.io/is-default-class": "true"} if default else {},
        allowVolumeExpansion=grow, reclaimPolicy=policy,
    )  # fmt: skip


def a_claim(
    size="1Gi", *, storage_class="local", volume=None, phase=None, annotations=None, deleting=False, uid="c1",
    **spec,
):  # fmt: skip
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}} | spec
    if storage_class is not None:
        body["storageClassName"] = storage_class
    return builders.an_object(
        PVCS, "data", uid=uid, resource_version=1, finalizers=[CLAIM_FINALIZER], deleting=deleting,
        metadata={"annotations": dict(annotations or {})}, status=builders.given(phase=phase),
        spec=body | builders.given(volumeName=volume),
    )  # fmt: skip


def a_volume(
    name="pv", size="1Gi", *, storage_class="local", ref=None, phase="Available", policy="Retain", ours=False,
    deleting=False, modes=("ReadWriteOnce",), labels=None, **spec,
):  # fmt: skip
    body = {"capacity": {"storage": size}, "accessModes": list(modes), "hostPath": {"path": f"/v/{name}"}}
    body |= {"storageClassName": storage_class, "persistentVolumeReclaimPolicy": policy} | spec
    return builders.an_object(
        PVS, name, uid=f"uid-{name}", resource_version=1, finalizers=[VOLUME_FINALIZER], labels=labels,
        annotations={"pv.kubernetes.io/provisioned-by": OURS} if ours else {}, deleting=deleting,
        spec=body | builders.given(claimRef=ref), status={"phase": phase},
    )  # fmt: skip


def ref_to(claim, **more):
    meta = claim["metadata"]
    return {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]} | more


def a_pod(phase="Running", *, gated=False, node=""):
    return builders.a_pod(phase=phase, gates=["wait"] if gated else [], node=node)


def decide(claim, *volumes, classes=(), pods=(), free_bytes=None):
    seen = ClaimObserved(
        claim=claim, volumes=volumes, classes=classes, pods=pods, folder="/v", free_bytes=free_bytes
    )
    return plan_claim(seen)


def kinds(actions):
    return [type(action).__name__ for action in actions]


BOUND = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}


def test_a_claim_without_protection_gets_it_first():
    claim = a_claim()
    claim["metadata"]["finalizers"] = []
    assert decide(claim, classes=[a_class()]) == (SetFinalizer(CLAIM_FINALIZER, True),)


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        ((), (SetFinalizer(CLAIM_FINALIZER, False),)),
        ((a_pod("Pending"),), (SetFinalizer(CLAIM_FINALIZER, False),)),
        ((a_pod("Pending"), a_pod("Running", node="n1")), ()),
        ((a_pod("Succeeded", node="n1"),), ()),
    ],
    ids=["no pod", "a pod without a node", "a pod that runs", "a pod that has finished"],
)
def test_the_protection_of_a_deleted_claim_goes_with_the_last_pod_that_has_a_node(pods, want):
    """As in kube-controller-manager 1.36: a pod that has finished holds its claims until it is deleted."""
    assert decide(a_claim(deleting=True), pods=pods) == want


def test_a_claim_without_class_gets_the_default_one():
    assert decide(a_claim(storage_class=None), classes=[a_class()]) == (
        PatchClaim({"spec": {"storageClassName": "local"}}),
    )


def test_the_newest_of_several_default_classes_counts():
    old, new = a_class("old"), a_class("new")
    new["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
    assert default_class([old, new, a_class("none", default=False)]) == "new"
    assert default_class([a_class("none", default=False)]) is None


def test_a_folder_is_provisioned_under_a_computed_name():
    actions = decide(a_claim("3Gi"), classes=[a_class()])
    assert kinds(actions) == ["PatchClaim", "Provision", "Tell"]
    volume = actions[1].volume
    assert volume["metadata"]["name"] == "pvc-c1"
    assert volume["spec"]["hostPath"] == {"path": "/v/pvc-c1", "type": "DirectoryOrCreate"}
    assert volume["spec"]["capacity"] == {"storage": "3Gi"}
    assert volume["spec"]["claimRef"]["uid"] == "c1"
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


def test_a_claim_that_asks_for_more_than_the_disk_has_free_waits_for_space():
    claim = a_claim(size="3Gi", finalizers=[CLAIM_FINALIZER])
    for free_bytes in ((3 << 30) - 1, 0):
        [_, told] = decide(claim, classes=(a_class(),), free_bytes=free_bytes)
        assert told.reason == "ProvisioningFailed"
        assert told.message.startswith(f"the volume asks for 3Gi; the disk has {free_bytes >> 20}Mi free")
    for enough in (3 << 30, None):
        assert "Provision" in kinds(decide(claim, classes=(a_class(),), free_bytes=enough))


@pytest.mark.parametrize(
    ("claim", "classes", "reason"),
    [
        (a_claim(storage_class=""), (), "FailedBinding"),
        (a_claim(storage_class=None), (), "FailedBinding"),
        (a_claim(storage_class="fast"), (), "ProvisioningFailed"),
        (a_claim(storage_class="fast"), (a_class("fast", provisioner="ebs"),), "ExternalProvisioning"),
        (a_claim(volumeMode="Block"), (a_class(),), "ProvisioningFailed"),
        (a_claim(selector={"matchLabels": {"a": "b"}}), (a_class(),), "ProvisioningFailed"),
        (a_claim(), (a_class(mode="WaitForFirstConsumer"),), "WaitForFirstConsumer"),
        (a_claim(volume="gone"), (a_class(),), "FailedBinding"),
    ],
)
def test_why_a_claim_waits_is_told(claim, classes, reason):
    actions = decide(claim, classes=classes)
    assert actions[0] == SetClaimStatus({"phase": "Pending"})
    assert actions[-1].reason == reason
    waiting = decide(claim | {"status": {"phase": "Pending"}}, classes=classes)
    assert kinds(waiting) == ["Tell"]


@pytest.mark.parametrize(
    ("pods", "provisioned"),
    [((a_pod("Pending"),), True), ((a_pod(gated=True),), False), ((a_pod("Failed"),), False)],
)
def test_a_late_binding_claim_waits_for_a_pod_that_may_run(pods, provisioned):
    actions = decide(a_claim(), classes=[a_class(mode="WaitForFirstConsumer")], pods=pods)
    assert ("Provision" in kinds(actions)) is provisioned


@pytest.mark.parametrize(
    ("volumes", "want"),
    [
        ((a_volume("big", "9Gi"), a_volume("fit", "2Gi"), a_volume("small", "1Mi")), "fit"),
        ((a_volume("other", storage_class="fast"),), None),
        ((a_volume("taken", ref={"namespace": "lab", "name": "x", "uid": "c9"}),), None),
        ((a_volume("free", "1Gi"), a_volume("kept", "5Gi", ref={"namespace": "lab", "name": "data"})), "kept"),
        ((a_volume("old", ref={"namespace": "lab", "name": "data", "uid": "c0"}),), None),
        ((a_volume("ro", modes=("ReadOnlyMany",)),), None),
        ((a_volume("going", deleting=True),), None),
        ((a_volume("released", phase="Released"),), None),
        ((a_volume("block", volumeMode="Block"),), None),
    ],
)
def test_the_smallest_volume_that_serves_is_chosen_reserved_ones_first(volumes, want):
    volume = best_volume(a_claim(), volumes)
    assert (volume or {"metadata": {"name": None}})["metadata"]["name"] == want


def test_a_selector_narrows_the_choice():
    claim = a_claim(selector={"matchLabels": {"tier": "fast"}})
    assert best_volume(claim, [a_volume("a")]) is None
    assert best_volume(claim, [a_volume("a"), a_volume("b", labels={"tier": "fast"})])["metadata"]["name"] == "b"


def test_a_match_is_bound_volume_first():
    actions = decide(a_claim(), a_volume(size="2Gi"))
    assert kinds(actions) == ["PatchVolume", "PatchClaim", "SetClaimStatus"]
    assert actions[0].patch["spec"]["claimRef"]["uid"] == "c1"
    assert actions[1].patch["spec"] == {"volumeName": "pv"}
    assert actions[1].patch["metadata"]["annotations"] == BOUND
    assert actions[2].status == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
    }


def test_a_volume_asked_for_by_name_is_bound_only_if_it_serves():
    assert kinds(decide(a_claim(volume="pv"), a_volume())) == ["PatchVolume", "PatchClaim", "SetClaimStatus"]
    refused = decide(a_claim("5Gi", volume="pv"), a_volume())
    assert refused[-1].reason == "VolumeMismatch"
    assert "too small" in mismatch(a_claim("5Gi"), a_volume())


@pytest.mark.parametrize(("free_bytes", "grows"), [(1 << 30, True), ((1 << 30) - 1, False), (None, True)])
def test_a_folder_grows_by_no_more_than_the_disk_has(free_bytes, grows):
    claim = a_claim("2Gi", volume="pv", annotations=BOUND, phase="Bound")
    volume = a_volume(ref=ref_to(claim), phase="Bound", ours=True)
    actions = decide(claim, volume, classes=[a_class()], free_bytes=free_bytes)
    assert ("PatchVolume" in kinds(actions)) is grows
    message = (
        "Resized to 2Gi" if grows else "Cannot resize to 2Gi: the volume asks for 1Gi; the disk has 1023Mi free"
    )
    assert actions[-1].reason == ("VolumeResizeSuccessful" if grows else "VolumeResizeFailed")
    assert actions[-1].message.startswith(message)


@pytest.mark.parametrize(
    "volumes",
    [(), (a_volume(ref={"namespace": "lab", "name": "x", "uid": "c9"}),), (a_volume(),)],
)
def test_a_bound_claim_that_lost_its_volume_says_so(volumes):
    actions = decide(a_claim(volume="pv", annotations=BOUND, phase="Bound"), *volumes)
    assert actions[0] == SetClaimStatus({"phase": "Lost"})
    assert actions[1].reason == "ClaimLost"


@pytest.mark.parametrize(
    ("ours", "grow", "grows"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_a_folder_grows_with_its_claim(ours, grow, grows):
    claim = a_claim("2Gi", volume="pv", annotations=BOUND, phase="Bound")
    volume = a_volume(ref=ref_to(claim), phase="Bound", ours=ours)
    actions = decide(claim, volume, classes=[a_class(grow=grow)])
    assert ("PatchVolume" in kinds(actions)) is grows
    status = next(action.status for action in actions if isinstance(action, SetClaimStatus))
    assert status["capacity"] == {"storage": "2Gi" if grows else "1Gi"}


@pytest.mark.parametrize(
    ("volume", "claim", "want"),
    [
        pytest.param(a_volume(phase="Pending"), None, (SetVolumePhase("Available"),), id="new"),
        pytest.param(a_volume(), None, (), id="waiting"),
        pytest.param(
            a_volume(ref=ref_to(a_claim()), phase="Bound"), a_claim(volume="pv"), (), id="bound and so it says"
        ),
        pytest.param(
            a_volume(ref=ref_to(a_claim())), a_claim(volume="pv"), (SetVolumePhase("Bound"),), id="just bound"
        ),
        pytest.param(a_volume(ref=ref_to(a_claim())), a_claim(), (), id="half bound: the claim goes on"),
        pytest.param(
            a_volume(ref=ref_to(a_claim()), phase="Bound"), None, (SetVolumePhase("Released"),), id="kept"
        ),
        pytest.param(
            a_volume(ref=ref_to(a_claim()), phase="Bound"),
            a_claim(uid="c2"),
            (SetVolumePhase("Released"),),
            id="a new claim of the same name is another",
        ),
        pytest.param(
            a_volume(ref=ref_to(a_claim()), phase="Bound", deleting=True), a_claim(volume="pv"), (), id="in use"
        ),
        pytest.param(
            a_volume(deleting=True), None, (SetFinalizer(VOLUME_FINALIZER, False),), id="not in use: may go"
        ),
    ],
)
def test_the_phase_of_a_volume_follows_its_claim(volume, claim, want):
    assert plan_volume(VolumeObserved(volume=volume, claim=claim)) == want


def test_a_released_folder_is_reclaimed_only_if_it_is_ours():
    ours = a_volume(ref=ref_to(a_claim()), phase="Bound", policy="Delete", ours=True)
    assert plan_volume(VolumeObserved(volume=ours, claim=None)) == (SetVolumePhase("Released"), Reclaim(ours))
    foreign = a_volume(ref=ref_to(a_claim()), phase="Bound", policy="Delete")
    actions = plan_volume(VolumeObserved(volume=foreign, claim=None))
    assert actions[0].phase == "Failed"
    assert isinstance(actions[1], Tell)


def test_which_claims_a_pod_names():
    pod = {
        "metadata": {"name": "p", "namespace": "lab"},
        "spec": {
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {}},
                {"name": "c", "emptyDir": {}},
            ]
        },
    }
    pod["spec"]["volumes"][1]["ephemeral"] = {"volumeClaimTemplate": {}}
    assert index_by_claim(pod) == ["lab/data", "lab/p-b"]


class World:
    def __init__(self, claim, volumes, classes):
        self.claim = claim
        self.volumes = {volume["metadata"]["name"]: volume for volume in volumes}
        self.classes = classes
        self.folders = set()

    def claim_actions(self):
        volumes = copy.deepcopy(list(self.volumes.values()))
        return decide(copy.deepcopy(self.claim), *volumes, classes=self.classes)

    def volume_actions(self, name):
        volume = self.volumes[name]
        ref = volume["spec"].get("claimRef")
        claim = self.claim if ref and ref["name"] == "data" else None
        return plan_volume(VolumeObserved(volume=copy.deepcopy(volume), claim=copy.deepcopy(claim)))

    def apply_claim(self, action):
        match action:
            case PatchClaim(patch):
                self.claim["spec"].update(patch.get("spec", {}))
                self.claim["metadata"]["annotations"].update(patch.get("metadata", {}).get("annotations", {}))
            case SetClaimStatus(status):
                self.claim["status"] = copy.deepcopy(status)
            case PatchVolume(volume, patch):
                mine = self.volumes[volume["metadata"]["name"]]
                mine["spec"].update(copy.deepcopy(patch.get("spec", {})))
            case Provision(volume):
                self.folders.add(volume["metadata"]["name"])
                self.volumes.setdefault(
                    volume["metadata"]["name"], copy.deepcopy(volume) | {"status": {"phase": "Pending"}}
                )

    def apply_volume(self, name, action):
        match action:
            case SetVolumePhase(phase, _):
                self.volumes[name]["status"] = {"phase": phase}
            case Reclaim():
                del self.volumes[name]
                self.folders.discard(name)


@settings(max_examples=examples(37, full=150), deadline=None)
@given(
    sizes=st.lists(st.sampled_from(["1Mi", "1Gi", "2Gi", "9Gi"]), max_size=4),
    dynamic=st.booleans(),
    named=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_binding_cut_off_anywhere_ends_bound_to_exactly_one_volume(sizes, dynamic, named, seed):
    rng = random.Random(seed)
    volumes = [a_volume(f"pv-{at}", size) for at, size in enumerate(sizes)]
    fitting = [volume["metadata"]["name"] for volume in volumes if volume["spec"]["capacity"]["storage"] != "1Mi"]
    wanted = rng.choice(fitting) if named and fitting else None
    world = World(a_claim(volume=wanted), volumes, [a_class()] if dynamic else [])
    quiet = 0
    for _ in range(200):
        actions = [action for action in world.claim_actions() if not isinstance(action, Tell)]
        cut = rng.randrange(len(actions) + 1) if rng.random() < 0.5 else len(actions)
        for action in actions[:cut]:
            world.apply_claim(action)
        moved = bool(actions)
        for name in list(world.volumes):
            steps = world.volume_actions(name)
            moved = moved or bool(steps)
            for action in steps[: rng.randrange(len(steps) + 1)]:
                world.apply_volume(name, action)
        quiet = 0 if moved else quiet + 1
        if quiet == 3:
            break
    assert quiet == 3
    held = [volume for volume in world.volumes.values() if volume["spec"].get("claimRef")]
    if fitting or dynamic:
        assert world.claim["status"]["phase"] == "Bound"
        assert [volume["metadata"]["name"] for volume in held] == [world.claim["spec"]["volumeName"]]
        assert held[0]["status"]["phase"] == "Bound"
        assert wanted in (None, world.claim["spec"]["volumeName"])
        assert not fitting or not world.folders
    else:
        assert world.claim["status"]["phase"] == "Pending"
        assert held == []


def test_folders_are_made_and_removed_only_under_the_root(tmp_path):
    folders = Folders(tmp_path / "volumes")
    folders.make("pvc-1")
    folders.make("pvc-1")
    (folders.root / "pvc-1" / "f").write_text("x")
    folders.remove(str(folders.root / "pvc-1"))
    assert list(folders.root.iterdir()) == []
    folders.remove(str(folders.root / "pvc-1"))
    outside = tmp_path / "precious"
    outside.mkdir()
    for path in (outside, folders.root, folders.root / "a" / "b", folders.root / ".."):
        with pytest.raises(StorageError, match="cannot remove .*: it is not a volume's folder under "):
            folders.remove(str(path))
    assert outside.is_dir()


def test_removals_that_were_cut_short_are_finished_at_the_start(tmp_path):
    folders = Folders(tmp_path)
    (tmp_path / ".deleted-pvc-1-ab" / "deep").mkdir(parents=True)
    folders.make("pvc-2")
    folders.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["pvc-2"]
    Folders(tmp_path / "missing").sweep()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the folder of volume pvc-1"):
        Folders(tmp_path / "file").make("pvc-1")
