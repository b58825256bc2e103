"""Between a run's objects and the decision about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from moorage.controllers.run.plan import attempts_of, failed_status, is_lost, next_job, observe
from moorage.decide.runs.restarts import AttemptSeen, Observed, PodSeen, StartAttempt
from moorage_kube.resources import Obj
from moorage_kube.testing.clock import NOON

LABELS = {"moorage.dev/run": "train", "moorage.dev/attempt": "1", "moorage.dev/owner": "ada"}
JOB_LABELS = {
    "controller-uid": "u1",
    "job-name": "train",
    "batch.kubernetes.io/controller-uid": "u1",
    "batch.kubernetes.io/job-name": "train",
}


def a_job(name: str = "train", **more: Any) -> Obj:
    meta = {"name": name, "namespace": "lab", "uid": "u1", "resourceVersion": "9", "labels": dict(LABELS)}
    spec = {
        "backoffLimit": 2,
        "completions": 1,
        "parallelism": 1,
        "podReplacementPolicy": "Failed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}},
        "suspend": False,
        "ttlSecondsAfterFinished": 60,
        "template": {
            "metadata": {"labels": LABELS | JOB_LABELS, "annotations": {"moorage.dev/owner": "ada@example.org"}},
            "spec": {
                "activeDeadlineSeconds": 3600,
                "containers": [{"name": "main"}],
                "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "ckpt"}}],
            },
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta | more.pop("metadata", {}),
        "spec": spec | more.pop("spec", {}),
    } | more


def test_the_next_attempt_is_the_last_one_with_what_is_left() -> None:
    first = a_job(
        metadata={
            "annotations": {
                "moorage.dev/owner": "ada@example.org",
                "moorage.dev/time-limit-seconds": "3600",
                "moorage.dev/used-seconds": "100",
                "moorage.dev/attempts": "1",
                "moorage.dev/checkpoint-at": "2026-11-21T12:00:00Z",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            }
        },
        status={"failed": 1},
    )
    before = repr(first)
    assert next_job("train", first, first, StartAttempt(2, 1, 3500, "x")) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train-r2",
            "namespace": "lab",
            "labels": LABELS | {"moorage.dev/attempt": "2"},
            "annotations": {"moorage.dev/owner": "ada@example.org", "moorage.dev/time-limit-seconds": "3600"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "train",
                    "uid": "u1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "backoffLimit": 1,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {
                    "labels": LABELS | {"moorage.dev/attempt": "2"},
                    "annotations": {"moorage.dev/owner": "ada@example.org"},
                },
                "spec": {
                    "activeDeadlineSeconds": 3500,
                    "containers": [{"name": "main"}],
                    "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "ckpt"}}],
                },
            },
        },
    }
    assert repr(first) == before, "what was read is shared and must not change"


def test_without_a_limit_of_time_the_pods_own_stays() -> None:
    made = next_job("train", a_job(), a_job(), StartAttempt(3, 0, None, "x"))
    assert made["metadata"]["name"] == "train-r3"
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 3600


def test_the_next_attempt_keeps_the_users_labels() -> None:
    first = a_job()
    first["metadata"]["labels"]["project"] = "vision"
    first["spec"]["template"]["metadata"]["labels"]["project"] = "vision"
    made = next_job("train", first, first, StartAttempt(2, 0, None, "x"))
    for labels in (made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]):
        assert (labels["project"], labels["moorage.dev/attempt"]) == ("vision", "2")


def test_attempts_are_known_by_their_labels_and_computed_names() -> None:
    def named(name: str, **labels: str) -> Obj:
        return {"metadata": {"name": name, "labels": {"moorage.dev/run": "train"} | labels}}

    jobs = [
        named("train-r10", **{"moorage.dev/attempt": "10"}),
        named("train-r2", **{"moorage.dev/attempt": "2"}),
        named("train"),
        named("other", **{"moorage.dev/attempt": "3"}),
        named("train-r4", **{"moorage.dev/attempt": "x"}),
        {"metadata": {"name": "train", "labels": {"moorage.dev/run": "else"}}},
    ]
    assert [(number, job["metadata"]["name"]) for number, job in attempts_of("train", jobs)] == [
        (1, "train"),
        (2, "train-r2"),
        (10, "train-r10"),
    ]


def test_nothing_is_decided_about_a_run_without_jobs() -> None:
    assert observe("train", [], [], {}, now=NOON) is None


def test_everything_that_decides_is_read() -> None:
    annotations = {
        "moorage.dev/restart-limit": "5",
        "moorage.dev/time-limit-seconds": "3600",
        "moorage.dev/attempts": "1",
        "moorage.dev/ended": "Cancelled by ada",
        "moorage.dev/cancelled": "",
        "moorage.dev/running-since": "2026-11-21T11:59:00Z",
        "moorage.dev/used-seconds": "59",
    }
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "PodFailurePolicy",
        "message": "why",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    job = a_job(metadata={"annotations": annotations}, status={"conditions": [failed], "failed": 3})
    terminated = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-21T11:59:30Z"}
    disruption = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "lastTransitionTime": "2026-11-21T11:59:20Z",
    }
    pod = {
        "metadata": {
            "name": "train-x",
            "uid": "p",
            "ownerReferences": [{"uid": "u1", "controller": True}],
            "deletionTimestamp": "2026-11-21T11:59:50Z",
            "deletionGracePeriodSeconds": 0,
        },
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Failed",
            "reason": "Terminated",
            "startTime": "2026-11-21T11:59:00Z",
            "conditions": [disruption],
            "containerStatuses": [{"state": {"terminated": terminated}}],
        },
    }
    stranger = {"metadata": {"name": "s", "uid": "s"}}
    second = timedelta(seconds=1)
    assert observe("train", [job], [pod, stranger], {"n1": None}, now=NOON, lost_after=second) == Observed(
        run="train",
        now=NOON,
        restart_limit=5,
        time_limit_seconds=3600,
        ended="Cancelled by ada",
        cancelled=True,
        made=1,
        lost_nodes={"n1": None},
        lost_after=second,
        attempts=(
            AttemptSeen(
                number=1,
                job="train",
                uid="u1",
                state="failed",
                reason="PodFailurePolicy",
                message="why",
                ended=NOON,
                backoff_limit=2,
                failed_pods=3,
                running_since=NOON - 60 * second,
                used_seconds=59,
                pods=(
                    PodSeen(
                        name="train-x",
                        uid="p",
                        node="n1",
                        phase="Failed",
                        status_reason="Terminated",
                        disruption="EvictionByEvictionAPI",
                        disrupted_at=NOON - 40 * second,
                        out_of_memory=True,
                        started=NOON - 60 * second,
                        ended=NOON - 30 * second,
                        deleting_since=NOON - 10 * second,
                        forced=True,
                    ),
                ),
            ),
        ),
    )


def test_nonsense_in_annotations_counts_as_nothing() -> None:
    annotations = {
        "moorage.dev/restart-limit": "many",
        "moorage.dev/time-limit-seconds": "-1",
        "moorage.dev/attempts": "²",
        "moorage.dev/running-since": "yesterday",
    }
    seen = observe("train", [a_job(metadata={"annotations": annotations})], [], {}, now=NOON)
    assert seen is not None
    assert (seen.restart_limit, seen.time_limit_seconds, seen.made) == (20, None, 1)
    assert seen.attempts[0].running_since is None


@pytest.mark.parametrize(
    ("node", "want"),
    [
        pytest.param({"status": {}}, (False, None), id="new"),
        pytest.param({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, (False, None), id="ready"),
        pytest.param(
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            (False, None),
            id="its kubelet speaks",
        ),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-21T12:00:00Z"}
                    ]
                }
            },
            (True, NOON),
            id="silent",
        ),
        pytest.param(
            {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "timeAdded": "2026-11-21T12:00:00Z"}]}},
            (True, NOON),
            id="tainted",
        ),
    ],
)
def test_a_node_is_lost_when_nobody_hears_from_it(node: Obj, want: Any) -> None:
    assert is_lost(node) == want


def test_a_pod_on_a_lost_node_is_said_to_have_failed_by_a_disruption() -> None:
    ready = {"type": "Ready", "status": "True"}
    status = failed_status({"status": {"conditions": [ready]}}, now=NOON)["status"]
    assert status["phase"] == "Failed"
    assert [
        (condition["type"], condition["status"], condition.get("reason")) for condition in status["conditions"]
    ] == [("Ready", "True", None), ("DisruptionTarget", "True", "DeletionByMoorage")]
    tainted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    kept = failed_status({"status": {"conditions": [tainted]}}, now=NOON)["status"]["conditions"]
    assert kept == [tainted], "who took the pod first is kept"
