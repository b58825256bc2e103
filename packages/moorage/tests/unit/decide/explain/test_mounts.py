"""Which event says why a volume of a pod is not mounted, and what people read of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.mounts import FAILED_ATTACH, FAILED_MOUNT, FailedMount, Source, failed_mount
from moorage.decide.explain.public import as_public
from moorage.decide.explain.starting import Starting, starting_of
from moorage.present.explanation import explain_text
from moorage.present.explanationanswer import make_explanation
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj
from moorage_testing.builders import a_run_pod

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
VOLUMES = [
    {"name": "keys", "secret": {"secretName": "s3"}},
    {"name": "config", "configMap": {"name": "settings"}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "images"}},
    {"name": "scratch", "emptyDir": {}},
]
NO_SECRET = 'MountVolume.SetUp failed for volume "keys" : secret "s3" not found'
NO_CONFIG = 'MountVolume.SetUp failed for volume "config" : configmap "settings" not found'
GAVE_UP = (
    "Unable to attach or mount volumes: unmounted volumes=[keys], unattached volumes=[], failed to process"
    " volumes=[]: context deadline exceeded"
)
NO_DISK = 'AttachVolume.Attach failed for volume "pvc-1" : disk not found'
SECRET = Source(kind="Secret", name="s3")


def event(reason: str, message: str = "", *, minute: int = 0, uid: str = "u", kind: str = "Pod") -> Obj:
    at = rfc3339(NOON + timedelta(minutes=minute))
    about = {"kind": kind, "name": "train-x", "uid": uid}
    return {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": at, "metadata": {}}


def in_series(reason: str, message: str, *, minute: int) -> Obj:
    """As newer reporters write it: the last time is in the series."""
    obj = event(reason, message)
    del obj["lastTimestamp"]
    last = rfc3339(NOON + timedelta(minutes=minute))
    return obj | {"eventTime": rfc3339(NOON), "series": {"count": 2, "lastObservedTime": last}}


@pytest.mark.parametrize(
    ("events", "want"),
    [
        pytest.param([], None, id="no event"),
        pytest.param([event("Scheduled")], None, id="events of another kind"),
        pytest.param(
            [event(FAILED_MOUNT, NO_SECRET)],
            FailedMount(reason=FAILED_MOUNT, message=NO_SECRET, volume="keys", source=SECRET),
            id="a Secret is missing",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_CONFIG, minute=2), event(FAILED_MOUNT, NO_SECRET, minute=1)],
            FailedMount(
                reason=FAILED_MOUNT,
                message=NO_CONFIG,
                volume="config",
                source=Source(kind="ConfigMap", name="settings"),
            ),
            id="the newest, whatever their order",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_CONFIG, minute=1), in_series(FAILED_MOUNT, NO_SECRET, minute=2)],
            FailedMount(reason=FAILED_MOUNT, message=NO_SECRET, volume="keys", source=SECRET),
            id="the newest by its series",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_SECRET), event(FAILED_MOUNT, GAVE_UP, minute=2)],
            FailedMount(reason=FAILED_MOUNT, message=NO_SECRET, volume="keys", source=SECRET),
            id="a cause rather than that the kubelet gave up waiting",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_CONFIG), event(FAILED_MOUNT, GAVE_UP, minute=2)],
            FailedMount(reason=FAILED_MOUNT, message=GAVE_UP, volume="keys", source=SECRET),
            id="a cause of another volume, which is mounted by now, is none",
        ),
        pytest.param(
            [event(FAILED_ATTACH, NO_DISK)],
            FailedMount(
                reason=FAILED_ATTACH,
                message=NO_DISK,
                volume="data",
                source=Source(kind="PersistentVolumeClaim", name="images"),
            ),
            id="the volume of a claim, by the name of its PersistentVolume",
        ),
        pytest.param(
            [
                event(FAILED_ATTACH, NO_DISK),
                event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pvc-1"', minute=1),
            ],
            None,
            id="attached meanwhile",
        ),
        pytest.param(
            [
                event(FAILED_ATTACH, NO_DISK),
                event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pvc-2"', minute=1),
            ],
            FailedMount(
                reason=FAILED_ATTACH,
                message=NO_DISK,
                volume="data",
                source=Source(kind="PersistentVolumeClaim", name="images"),
            ),
            id="another volume is attached",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_SECRET), event("Pulling", minute=1)], None, id="mounted: it pulls its image"
        ),
        pytest.param([event(FAILED_MOUNT, NO_SECRET), event("Pulled")], None, id="within the same second"),
        pytest.param(
            [event("Pulled"), event(FAILED_MOUNT, NO_SECRET, minute=1)],
            FailedMount(reason=FAILED_MOUNT, message=NO_SECRET, volume="keys", source=SECRET),
            id="later than what a kubelet does after it has mounted all",
        ),
        pytest.param([event(FAILED_MOUNT, NO_SECRET, uid="old")], None, id="of a former pod of this name"),
        pytest.param([event(FAILED_MOUNT, NO_SECRET, kind="Job")], None, id="of something else"),
        pytest.param(
            [event(FAILED_MOUNT, 'object "lab"/"x" not registered')],
            FailedMount(reason=FAILED_MOUNT, message='object "lab"/"x" not registered'),
            id="no volume is named",
        ),
        pytest.param(
            [event(FAILED_MOUNT, NO_SECRET) | {"lastTimestamp": "?"}], None, id="a time that cannot be read"
        ),
    ],
)
def test_the_event_that_says_why_a_volume_is_not_mounted(events: list[Obj], want: FailedMount | None) -> None:
    assert failed_mount(events, uid="u", volumes=VOLUMES) == want


def a_pod(*statuses: Obj, **more: Any) -> Obj:
    made: Obj = {"uid": "u", "node": "n1", "image": "train:1", "spec": {"volumes": VOLUMES}}
    made |= {"phase": "Pending", "started": "2026-11-21T11:50:00Z", "statuses": statuses}
    return a_run_pod(**made | more)


CREATING = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
UNPULLED = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
FAILURE = FailedMount(reason=FAILED_MOUNT, message=NO_SECRET, volume="keys", source=SECRET)
TROUBLE = Starting(reason=FAILED_MOUNT, message=NO_SECRET, mount=FAILURE)


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_pod(CREATING), TROUBLE, id="its containers are to be created"),
        pytest.param(a_pod(), TROUBLE, id="the kubelet has said nothing yet"),
        pytest.param(
            a_pod(UNPULLED),
            Starting(reason="ErrImagePull", container="main", image="train:1", message="not found"),
            id="what a container waits for is newer: volumes come first",
        ),
        pytest.param(
            a_pod(CREATING, conditions=[{"type": "PodReadyToStartContainers", "status": "True"}]),
            Starting(reason="ContainerCreating", container="main", image="train:1"),
            id="its sandbox is there, so its volumes are",
        ),
        pytest.param(
            a_pod(CREATING, status={"initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}]}),
            Starting(reason="ContainerCreating", container="main", image="train:1"),
            id="an init container runs",
        ),
        pytest.param(a_pod({"name": "main", "state": {"running": {}}}, phase="Running"), None, id="it runs"),
    ],
)
def test_a_pod_waits_for_its_volumes_until_a_container_ran(pod: Obj, want: Starting | None) -> None:
    assert starting_of(pod, [event(FAILED_MOUNT, NO_SECRET)]) == want


def told(*events: Obj, run: str = "train") -> list[str]:
    text = explain_text(explain(a_pod(CREATING, run=run), nodes=(), pods=(), now=NOON, events=events))
    return text.splitlines()


def test_a_missing_secret_is_quoted_with_the_command_that_creates_it() -> None:
    assert told(event(FAILED_MOUNT, NO_SECRET)) == [
        "run lab/train does not start on n1: volume keys (Secret s3) cannot be mounted (FailedMount)",
        NO_SECRET,
        "The Secret s3 does not exist: create it with `moor secret create s3 KEY -n lab`;"
        " the pod then starts by itself",
        "It has held its place since 21 Nov 11:50 UTC; end unknown",
    ]


@pytest.mark.parametrize(
    ("reason", "message", "headline", "way"),
    [
        pytest.param(
            FAILED_MOUNT,
            NO_CONFIG,
            "volume config (ConfigMap settings) cannot be mounted (FailedMount)",
            "The ConfigMap settings does not exist: create it with `kubectl create configmap settings -n lab"
            " --from-file=KEY=FILE`; the pod then starts by itself",
            id="a ConfigMap",
        ),
        pytest.param(
            FAILED_MOUNT,
            'MountVolume.SetUp failed for volume "keys" : references non-existent secret key: token',
            "volume keys (Secret s3) cannot be mounted (FailedMount)",
            "The Secret s3 has no key token: replace it, with all its keys:"
            " `moor secret create s3 token -n lab --replace`; the pod then starts by"
            " itself",
            id="a key of a Secret",
        ),
        pytest.param(
            FAILED_MOUNT,
            'Unable to attach or mount volume "data": persistentvolumeclaim "images" not found',
            "volume data (PersistentVolumeClaim images) cannot be mounted (FailedMount)",
            "The volume images does not exist: create it with `moor volume create images -n lab`; the pod then"
            " starts by itself",
            id="a claim",
        ),
        pytest.param(
            FAILED_ATTACH,
            'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other',
            "volume data (PersistentVolumeClaim images) cannot be attached to the node (FailedAttachVolume)",
            "The volume images is in use on another node, and must be free there first: `moor volume list -n lab`"
            " shows the pods that mount it",
            id="a disk that another node uses",
        ),
        pytest.param(
            FAILED_MOUNT,
            'MountVolume.MountDevice failed for volume "pvc-1" : exit status 32',
            "volume data (PersistentVolumeClaim images) cannot be mounted (FailedMount)",
            "Its node tries again by itself: `moor volume list -n lab` shows the pods that mount it, and every try"
            " is in its events: `kubectl describe pod train-x -n lab`",
            id="a disk, whatever the reason",
        ),
        pytest.param(
            FAILED_MOUNT,
            'MountVolume.SetUp failed for volume "scratch" : hostPath type check failed: /x is not a directory',
            "volume scratch cannot be mounted (FailedMount)",
            "Its node tries again by itself; every try is in its events: `kubectl describe pod train-x -n lab`",
            id="a path of the node",
        ),
    ],
)
def test_what_to_do_about_each_volume(reason: str, message: str, headline: str, way: str) -> None:
    lines = told(event(reason, message))
    assert lines[:3] == [f"run lab/train does not start on n1: {headline}", message, way]


def test_a_name_that_is_no_name_is_not_offered_to_be_typed() -> None:
    lines = told(event(FAILED_MOUNT, 'MountVolume.SetUp failed for volume "keys" : secret "$(x)" not found'))
    assert (
        lines[2]
        == "Its node tries again by itself; every try is in its events: `kubectl describe pod train-x -n lab`"
    )


def test_everybody_else_learns_no_names_of_volumes() -> None:
    full = explain(a_pod(CREATING), nodes=(), pods=(), now=NOON, events=[event(FAILED_MOUNT, NO_SECRET)])
    public = as_public(full)
    assert "s3" not in repr(public)
    assert "keys" not in repr(public)


def test_programs_get_the_reason_and_the_sentence() -> None:
    full = explain(a_pod(CREATING), nodes=(), pods=(), now=NOON, events=[event(FAILED_MOUNT, NO_SECRET)])
    answer = make_explanation(full)
    assert (answer.starting, answer.starting_container, answer.starting_message) == (FAILED_MOUNT, "", NO_SECRET)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (NO_SECRET, 'secret "s3" not found'),
        (GAVE_UP, GAVE_UP),
        ('MountVolume.SetUp failed for volume "n" : mount failed\nOutput: denied', "mount failed Output: denied"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_the_cause_fits_on_one_line(message: str, cause: str) -> None:
    assert FailedMount(reason=FAILED_MOUNT, message=message).cause == cause
