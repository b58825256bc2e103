"""What a dataset needs next, as tables; and that it is Ready only behind the filler's own word."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.controllers.dataset.plan import (
    STALLED_MAX,
    AttemptSeen,
    ClaimSeen,
    DropJob,
    MakeClaim,
    MakeClone,
    MakeJob,
    ReaderSeen,
    Seen,
    SetFinalizer,
    ShareWith,
    Unshare,
    method_of,
    plan,
)
from moorage.model.dataset import (
    DATASET_FINALIZER,
    FAILED,
    FILLING,
    PENDING,
    PUBLISHING,
    READY,
    DatasetStatus,
    FillProgress,
    parse_dataset,
)
from moorage.model.storageclass import ROX, RWO, RWX, ClassView, modes_of
from moorage_kube.testing.clock import NOON
from moorage_testing.datasets import make_dataset

FILES = ClassView(
    name="files",
    provisioner="p",
    modes=frozenset({RWO, RWX, ROX}),
    default=True,
    expands=True,
    reclaim="",
    waits=False,
)
DISKS = replace(FILES, name="disks", modes=frozenset({RWO, ROX}))
LOCAL_DISKS = replace(FILES, name="one", modes=frozenset({RWO}))
UNKNOWN = replace(FILES, name="odd", modes=None)


def a_view(url="s3://b/x", *, status: DatasetStatus | None = None, finalizers=(), deleting=False, **given):
    obj = make_dataset("photos", "lab", url=url, size="10Gi", **given)
    obj["metadata"]["uid"] = "uid"
    view = parse_dataset(obj)
    return replace(view, status=status or view.status, finalizers=tuple(finalizers), deleting=deleting)


REVISION = a_view().revision
CLAIM = ClaimSeen(phase="Bound", modes=(RWX,))
RESULT = {"phase": "ready", "revision": REVISION, "files": 3, "bytes": 30, "sha256": "abc", "versions": "def"}


def an_attempt(number=1, **given) -> AttemptSeen:
    known = {"name": f"dataset-photos-{number}", "uid": f"u{number}", "revision": REVISION}
    return AttemptSeen(number=number, **(known | given))


def seen(**given) -> Seen:
    return Seen(**({"dataset": a_view(), "now": NOON, "storage": FILES} | given))


def begun(**given) -> DatasetStatus:
    return DatasetStatus(**({"phase": FILLING, "revision": REVISION, "access": "shared", "attempts": 1} | given))


def broken(number=1, **given) -> AttemptSeen:
    return an_attempt(number, failed=True, ended=NOON, **given)


def filling(size: int) -> FillProgress:
    return FillProgress(phase="filling", bytes=size, bytes_total=100)


@pytest.mark.parametrize(
    ("given", "phase", "reason", "actions"),
    [
        pytest.param({}, PENDING, "MakingVolume", (MakeClaim(RWX),), id="new: a volume"),
        pytest.param({"storage": DISKS}, PENDING, "MakingVolume", (MakeClaim(RWO),), id="new: a disk"),
        pytest.param(
            {"storage": UNKNOWN}, PENDING, "MakingVolume", (MakeClaim(RWX),), id="new: an unknown class is asked"
        ),
        pytest.param({"storage": LOCAL_DISKS}, FAILED, "NoStorage", (), id="no class that many can read"),
        pytest.param({"storage": None}, FAILED, "NoStorage", (), id="no class at all"),
        pytest.param({"claim": CLAIM}, FILLING, "Starting", (MakeJob(1),), id="a volume: the first attempt"),
        pytest.param({"claim": replace(CLAIM, ours=False)}, FAILED, "NameTaken", (), id="a stranger's volume"),
        pytest.param(
            {"claim": replace(CLAIM, deleting=True)}, PENDING, "VolumeGoing", (), id="a volume on its way out"
        ),
        pytest.param({"claim": CLAIM, "image": False}, FAILED, "NoImage", (), id="no image"),
        pytest.param({"refused": "quota"}, FAILED, "Refused", (), id="the API will not have the claim"),
        pytest.param(
            {"claim": CLAIM, "refused": "quota"}, FAILED, "Refused", (), id="the API will not have the Job"
        ),
        pytest.param({"claim": CLAIM, "attempts": [an_attempt()]}, FILLING, "Filling", (), id="under way"),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(waiting="no node")]},
            FILLING,
            "Waiting",
            (),
            id="waits for a node",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(ours=False)]}, FAILED, "NameTaken", (), id="a stranger's Job"
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(succeeded=True, result=RESULT)]},
            READY,
            "Filled",
            (),
            id="done",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(succeeded=True)], "dataset": a_view(status=begun())},
            FILLING,
            "Starting",
            (MakeJob(2),),
            id="done, but its word was lost: asked once more",
        ),
        pytest.param(
            {
                "claim": CLAIM,
                "attempts": [an_attempt(succeeded=True, result=RESULT | {"revision": "other"}, ended=NOON)],
                "dataset": a_view(status=begun()),
            },
            FILLING,
            "Starting",
            (MakeJob(2),),
            id="the word of another revision is none",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(result=RESULT)]},
            FILLING,
            "Filling",
            (),
            id="a word before the end",
        ),
        pytest.param(
            {
                "claim": CLAIM,
                "attempts": [
                    broken(result={"phase": "failed", "final": True, "reason": "SourceDenied", "message": "no"})
                ],
                "dataset": a_view(status=begun()),
            },
            FAILED,
            "SourceDenied",
            (),
            id="no use in trying again",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [broken()], "dataset": a_view(status=begun(progress=filling(50)))},
            FILLING,
            "Starting",
            (MakeJob(2),),
            id="killed, but got further: at once",
        ),
        pytest.param(
            {
                "claim": CLAIM,
                "attempts": [broken()],
                "dataset": a_view(status=begun(progress=filling(50), mark=50)),
            },
            FILLING,
            "Retrying",
            (),
            id="killed and got no further: later",
        ),
        pytest.param(
            {
                "claim": CLAIM,
                "attempts": [broken()],
                "dataset": a_view(status=begun(stalled=STALLED_MAX - 1, progress=filling(50), mark=50)),
            },
            FAILED,
            "FillFailed",
            (),
            id="too often no further",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [an_attempt(revision="old")]},
            FILLING,
            "Starting",
            (DropJob(an_attempt(revision="old")),),
            id="an older source's filler ends first",
        ),
        pytest.param(
            {"claim": CLAIM, "attempts": [broken(1), an_attempt(2)]},
            FILLING,
            "Filling",
            (DropJob(broken(1)),),
            id="attempts before the newest go",
        ),
        pytest.param({"dataset": a_view("volume:../x")}, FAILED, "Invalid", (), id="a source that leads out"),
    ],
)
def test_a_dataset_on_its_way(given, phase, reason, actions):
    decided = plan(seen(**given))
    assert (decided.status.phase, decided.ready.reason, decided.actions) == (phase, reason, actions)
    assert decided.ready.status == (phase == READY)


def test_what_the_filler_told_is_the_status():
    status = plan(seen(claim=CLAIM, attempts=[an_attempt(succeeded=True, result=RESULT, ended=NOON)])).status
    assert (status.files, status.bytes, status.checksum, status.source_version) == (3, 30, "abc", "def")
    assert (status.filled_at, status.claim, status.access) == (NOON, "dataset-photos", "shared")


def test_a_disk_is_cloned_before_it_is_ready():
    given = {"storage": DISKS, "claim": replace(CLAIM, modes=(RWO,))}
    done = [an_attempt(succeeded=True, result=RESULT)]
    first = plan(seen(**given, attempts=done))
    assert (first.status.phase, first.actions) == (PUBLISHING, (MakeClone(),))
    made = plan(seen(**given, attempts=done, clone=ClaimSeen(phase="Pending")))
    assert (made.status.phase, made.actions) == (PUBLISHING, ())
    bound = plan(seen(**given, attempts=done, clone=ClaimSeen(phase="Bound")))
    assert (bound.status.phase, bound.status.claim) == (READY, "dataset-photos-read")
    lazy = plan(seen(**given | {"storage": replace(DISKS, waits=True)}, attempts=done, clone=ClaimSeen()))
    assert lazy.status.phase == READY  # its first pod makes it


def test_what_is_filled_does_not_change_with_its_source():
    status = begun(phase=READY, revision="another", files=3, bytes=30, checksum="abc", claim="dataset-photos")
    decided = plan(seen(dataset=a_view(status=status), claim=CLAIM))
    assert decided.ready.status
    assert "changed since" in decided.ready.message
    assert (decided.status.revision, decided.status.checksum, decided.actions) == ("another", "abc", ())


def test_once_it_is_written_down_that_a_dataset_is_ready_its_ended_fillers_go_with_their_pods():
    done = an_attempt(2, succeeded=True, ended=NOON, result=RESULT)
    attempts = [broken(1), done, broken(3, deleting=True), an_attempt(4, failed=True, ours=False), an_attempt(5)]
    before = plan(seen(dataset=a_view(status=begun()), claim=CLAIM, attempts=[done]))
    assert (before.status.phase, before.actions) == (READY, ())  # a crash here would fill it again
    status = begun(phase=READY, files=3, bytes=30, checksum="abc", claim="dataset-photos")
    after = plan(seen(dataset=a_view(status=status), claim=CLAIM, attempts=attempts))
    assert (after.status.phase, after.actions) == (READY, (DropJob(attempts[0]), DropJob(done)))


def test_a_dataset_whose_volume_is_gone_is_not_ready():
    decided = plan(seen(dataset=a_view(status=begun(phase=READY)), claim=None))
    assert (decided.status.phase, decided.ready.reason) == (FAILED, "VolumeLost")


@pytest.mark.parametrize(
    ("spec", "storage", "want"),
    [
        ({}, FILES, "shared"),
        ({}, DISKS, "clone"),
        ({}, LOCAL_DISKS, ""),
        ({"access": "clone"}, FILES, "clone"),
        ({"access": "shared"}, DISKS, ""),
        ({"access": "clone"}, UNKNOWN, "clone"),
        ({"access": "clone"}, LOCAL_DISKS, ""),
    ],
)
def test_how_many_come_to_read_it(spec, storage, want):
    method, why = method_of(seen(dataset=a_view(**spec), storage=storage))
    assert method == want
    assert bool(why) == (not want)


@pytest.mark.parametrize(
    ("said", "provisioner", "want"),
    [
        (None, "nfs.csi.k8s.io", {RWO, RWX, ROX}),
        (None, "rook-ceph.rbd.csi.ceph.com", {RWO, ROX}),
        (None, "ebs.csi.aws.com", {RWO}),
        (None, "new.example.com", None),
        ("ReadWriteMany", "ebs.csi.aws.com", {RWX}),
    ],
)
def test_what_a_class_can_do(said, provisioner, want):
    assert modes_of(said, provisioner) == want


# --- readers

READ = {"phase": READY, "files": 3, "bytes": 30, "claim": "dataset-photos"}


def ready(readers=(), **given) -> Seen:
    finalizers = given.pop("finalizers", (DATASET_FINALIZER,))
    view = a_view(status=begun(**READ), finalizers=finalizers, readers=tuple(reader.tenant for reader in readers))
    return seen(
        dataset=replace(view, deleting=given.pop("deleting", False)), claim=CLAIM, readers=readers, **given
    )


VISION = ReaderSeen(tenant="vision", namespace="vision", claim="c")
BOUND = replace(VISION, claim_phase="Bound", has_volume=True)


@pytest.mark.parametrize(
    ("given", "actions", "shared"),
    [
        pytest.param(
            {"readers": [VISION], "finalizers": ()}, (SetFinalizer(True),), False, id="the finalizer first"
        ),
        pytest.param({"readers": [VISION]}, (ShareWith(VISION),), False, id="then the claim"),
        pytest.param({"readers": [BOUND]}, (), True, id="settled"),
        pytest.param(
            {"readers": [replace(VISION, namespace="")]}, (SetFinalizer(False),), False, id="no such tenant"
        ),
        pytest.param({"readers": [replace(VISION, namespace="lab")]}, (SetFinalizer(False),), True, id="itself"),
        pytest.param({"readers": [VISION], "shareable": "a disk"}, (), False, id="a disk"),
        pytest.param({"strangers": [("vision", "c")]}, (Unshare("vision", "c"),), None, id="no longer a reader"),
        pytest.param({}, (SetFinalizer(False),), None, id="nobody left: the finalizer goes"),
        pytest.param({"finalizers": ()}, (), None, id="nobody at all"),
        pytest.param(
            {"deleting": True, "strangers": [("v", "c")]}, (Unshare("v", "c"),), None, id="deleted: claims first"
        ),
        pytest.param({"deleting": True}, (SetFinalizer(False),), None, id="deleted: then the finalizer"),
    ],
)
def test_who_may_read_it(given, actions, shared):
    decided = plan(ready(**given))
    assert decided.actions == actions
    assert (decided.shared.status if decided.shared else None) == shared


# --- for ever


@given(
    st.lists(
        st.tuples(st.sampled_from(["killed", "further", "final", "done", "lost"]), st.integers(0, 300)),
        max_size=20,
    )
)
def test_whatever_happens_to_fillers_it_ends_ready_by_their_word_or_failed_or_goes_on(story):
    """One filler at a time, and none after the end."""
    status, attempts, now, size = DatasetStatus(), [], NOON, 0
    ended_well = False
    for event, pause in story:
        for _ in range(4):
            now += timedelta(seconds=pause / 4)
            decided = plan(seen(dataset=a_view(status=status), claim=CLAIM, attempts=attempts, now=now))
            told = decided.status
            status = DatasetStatus(
                phase=told.phase,
                revision=told.revision,
                access=told.access,
                attempts=told.attempts,
                stalled=told.stalled,
                mark=told.mark,
                progress=told.progress,
                files=told.files,
                claim=told.claim,
            )
            for action in decided.actions:
                if isinstance(action, DropJob):
                    attempts = [attempt for attempt in attempts if attempt != action.attempt]
                if isinstance(action, MakeJob):
                    assert not any(attempt.active for attempt in attempts)
                    attempts = [*attempts, an_attempt(action.number)]
        assert sum(attempt.active for attempt in attempts) <= 1
        if status.phase == READY:
            assert ended_well
            assert attempts == []  # nor does an ended one hold a claim
            return
        if not attempts or not attempts[-1].active:
            continue
        last = attempts[-1]
        if event == "further":
            size += 10
            last = replace(last, result={"phase": "filling", "files": 1, "bytes": size})
        elif event == "final":
            failed = {"phase": "failed", "final": True, "reason": "BadSource", "message": "no"}
            last = replace(last, failed=True, ended=now, result=failed)
        elif event == "done":
            last, ended_well = replace(last, succeeded=True, ended=now, result=RESULT), True
        else:
            last = replace(last, failed=True, ended=now, result=None)
        attempts = [*attempts[:-1], last]


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("", "no: the dataset names no Secret with credentials"),
        ("aws", "no: it refused the keys of Secret 'aws', or they may not read it"),
    ],
)
def test_a_source_that_refuses_says_by_which_credentials(secret, says):
    view = a_view(status=begun())
    view = replace(
        view,
        spec=msgspec.structs.replace(view.spec, source=msgspec.structs.replace(view.spec.source, secret=secret)),
    )
    result = {"phase": "failed", "final": True, "reason": "SourceDenied", "message": "no"}
    made = plan(seen(dataset=view, claim=CLAIM, attempts=(broken(result=result),)))
    assert (made.ready.reason, made.ready.message) == ("SourceDenied", says)
