"""`moor show`, `moor logs` and `moor cancel --forget` of what is gone."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from msgspec.structs import replace

from moorage.actions.runs import job_of
from moorage.api.kept import KeptLog, KeptRun
from moorage.cli.jobshow import LOST
from moorage.decide.runs.state import RunView, view_run
from moorage.decide.runs.storedruns import Seen, kept_pods_of, plan, view_deleted
from moorage.present.joboverview import make_overview
from moorage_kube.clock import rfc3339
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import JOBS
from moorage_kube.testing.clock import NOON, FakeClock

KEPT = "/api/v1/jobs/default/train/kept"
OVERVIEW = "/api/v1/jobs/default/train/overview"
LABELS = {"moorage.dev/run": "train", "moorage.dev/attempt": "1"}
JOB = {
    "metadata": {
        "namespace": "default",
        "name": "train",
        "uid": "j1",
        "labels": LABELS,
        "annotations": {"moorage.dev/owner": "ada"},
        "creationTimestamp": rfc3339(NOON),
    },
    "spec": {"suspend": True, "template": {"spec": {"containers": [{"name": "main"}]}}},
    "status": {},
}
POD = {
    "metadata": {
        "namespace": "default",
        "name": "train-x",
        "uid": "p1",
        "labels": LABELS,
        "ownerReferences": [{"kind": "Job", "controller": True, "uid": "j1"}],
        "creationTimestamp": rfc3339(NOON),
    },
    "spec": {"nodeName": "gpu-1", "containers": [{"name": "main"}]},
    "status": {
        "phase": "Running",
        "containerStatuses": [{"state": {"running": {"startedAt": rfc3339(NOON)}}}],
    },
}


def facts(**of_pod) -> KeptRun:
    later = NOON.replace(minute=30)
    kept = plan(Seen(jobs=[JOB], deleted={"p1": (POD, later)}, now=later))
    return replace(kept, pods=tuple(replace(pod, **of_pod) for pod in kept.pods))


def overview(run: RunView):
    return msgspec.to_builtins(make_overview(run, job_of(run, NOON), NOON))


@pytest.fixture
def gone(moor):
    """A run whose pod is gone, of which the server keeps all."""
    moor.clock = FakeClock()
    moor.api.put(JOBS, JOB)
    kept = facts()
    moor.server.answers[KEPT] = msgspec.to_builtins(kept)
    moor.server.answers[OVERVIEW] = overview(view_run([JOB], [], kept=kept_pods_of(kept, [JOB])))
    log = KeptLog(lines=b"2026-11-21T12:00:00Z one\n2026-11-21T12:00:01Z two\n", cut=True, most_bytes=2**20)
    moor.server.answers[f"{KEPT}/p1"] = msgspec.to_builtins(log)
    return moor


def test_facts_of_a_pod_that_is_gone_stand_among_the_attempts(gone):
    lines = gone("show", "train").out.splitlines()
    assert [re.split(" {2,}", line.strip()) for line in lines if "train-x" in line] == [
        ["1", "train-x", "gpu-1", "Failed, gone", "Deleted (exit code unknown)", "30m", "peak unknown, no limit"]
    ]
    assert f"  {LOST}" in lines
    (pod,) = json.loads(gone("show", "train", "-o", "json").out)["history"][0]["pods"]
    assert (pod["node"], pod["gone"], pod["ended"]) == ("gpu-1", True, "2026-11-21T12:30:00Z")


def test_what_a_lost_node_never_reported_is_shown_as_unknown(gone):
    lost = {"ended": None, "reason": "DeletionByTaintManager", "memory_limit_bytes": 2**30}
    kept = kept_pods_of(facts(**lost), [JOB])
    gone.server.answers[OVERVIEW] = overview(view_run([JOB], [], kept=kept))
    lines = gone("show", "train").out.splitlines()
    assert [re.split(" {2,}", line.strip())[4:] for line in lines if "train-x" in line] == [
        ["DeletionByTaintManager (exit code unknown)", "unknown", "peak unknown, limit 1Gi"]
    ]
    kept = kept_pods_of(facts(**lost | {"exit_code": 3, "ended": NOON}), [JOB])
    gone.server.answers[OVERVIEW] = overview(view_run([JOB], [], kept=kept))
    assert "unknown" not in gone("show", "train").out


def test_the_kept_log_is_printed_and_says_where_it_begins(gone):
    done = gone("logs", "train")
    assert (done.code, done.out) == (0, "one\ntwo\n")
    assert done.err == "note: earlier lines of train-x were dropped: the last 1Mi are stored\n"
    assert gone("logs", "train", "--tail", "1") == type(done)(0, "two\n", "")


def test_a_run_that_was_deleted_is_shown_from_what_is_kept(gone):
    gone.api.remove(JOBS, "train")
    gone.server.answers[OVERVIEW] = overview(view_deleted(facts()))
    assert "state       Deleted: deleted before it ended" in gone("show", "train").out
    assert gone("logs", "train").out == gone("logs", "-f", "train").out == "one\ntwo\n"


def test_a_server_that_cannot_be_asked_is_noted_once_and_stands_in_nobodys_way(gone):
    async def away(*_, **__):
        raise ServerError("Moorage's server at http://x does not answer", status=0)

    gone.server.ask = away
    done = gone("logs", "train")
    assert done.code == 0
    assert done.err.count("note: records of deleted pods are missing here:") == 1
    done = gone("show", "train")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: Moorage's server at http://x does not answer\n"
        "hint: without Moorage's server: kubectl describe jobs,pods -n default -l moorage.dev/run=train\n"
    )


def test_a_log_that_may_not_be_read_is_refused(gone):
    whole = gone.server.ask

    async def refuses(kind, method, path, **more):
        if path.endswith("/p1"):
            raise Forbidden("ada may not read the logs of pods in namespace default")
        return await whole(kind, method, path, **more)

    gone.server.ask = refuses
    done = gone("logs", "train")
    assert (done.code, done.out) == (1, "")
    assert "may not read the logs of pods" in done.err


def test_what_is_kept_is_erased_with_the_run_or_after_it(gone):
    erased = {"pods": 1}
    whole = gone.server.ask

    async def ask(kind, method, path, **more):
        if method == "DELETE":
            return msgspec.convert(erased, kind)
        return await whole(kind, method, path, **more)

    gone.server.ask = ask
    assert gone("cancel", "train", "--forget").out == "train deleted; records of 1 pod erased\n"
    assert gone("cancel", "train", "--forget").out == "train was deleted before; records of 1 pod erased\n"
    erased["pods"] = 0
    assert gone("cancel", "train", "--forget").code == 1
