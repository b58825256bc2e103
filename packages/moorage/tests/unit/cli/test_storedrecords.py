"""`moor show`, `moor logs` and `moor cancel --forget` of what is gone."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from msgspec.structs import replace

from moorage.actions.runs import job_of
from moorage.api.storedrecords import StoredLog, StoredRun
from moorage.cli.jobshow import LOST
from moorage.decide.runs.state import RunView, view_run
from moorage.decide.runs.storedruns import Seen, plan, stored_pods_of, view_deleted
from moorage.present.joboverview import make_overview
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import JOBS
from moorage_kube.testing.builders import a_container_status, an_owner
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_testing.builders import a_run_job, a_run_pod, keyed

RECORDS = "/api/v1/jobs/default/train/records"
OVERVIEW = "/api/v1/jobs/default/train/overview"
JOB = a_run_job(
    namespace="default", uid="j1", created=NOON, annotations=keyed(owner="ada"), suspend=True, status={"failed": 0}
)
POD = a_run_pod(
    attempt=1,
    namespace="default",
    uid="p1",
    owner=an_owner(uid="j1"),
    created=NOON,
    node="gpu-1",
    statuses=[a_container_status(started=NOON)],
)


def facts(**of_pod) -> StoredRun:
    later = NOON.replace(minute=30)
    kept = plan(Seen(jobs=[JOB], deleted={"p1": (POD, later)}, now=later))
    return replace(kept, pods=tuple(replace(pod, **of_pod) for pod in kept.pods))


def overview(run: RunView):
    return msgspec.to_builtins(make_overview(run, job_of(run, NOON), NOON))


def overview_of_gone(**of_pod):
    return overview(view_run([JOB], [], kept=stored_pods_of(facts(**of_pod), [JOB])))


@pytest.fixture
def gone(moor):
    """A run whose pod is deleted; the server has its records."""
    moor.clock = FakeClock()
    moor.api.put(JOBS, JOB)
    moor.server.answers[RECORDS] = msgspec.to_builtins(facts())
    moor.server.answers[OVERVIEW] = overview_of_gone()
    log = StoredLog(lines=b"2026-11-21T12:00:00Z one\n2026-11-21T12:00:01Z two\n", cut=True, most_bytes=2**20)
    moor.server.answers[f"{RECORDS}/p1"] = msgspec.to_builtins(log)
    return moor


def test_a_deleted_pod_is_listed_among_the_attempts(gone):
    lines = gone("show", "train").out.splitlines()
    assert [re.split(" {2,}", line.strip()) for line in lines if "train-x" in line] == [
        ["1", "train-x", "gpu-1", "Failed, gone", "Deleted (exit code unknown)", "30m", "peak unknown, no limit"]
    ]
    assert f"  {LOST}" in lines
    (pod,) = json.loads(gone("show", "train", "-o", "json").out)["history"][0]["pods"]
    assert (pod["node"], pod["gone"], pod["ended"]) == ("gpu-1", True, "2026-11-21T12:30:00Z")


def test_facts_that_a_lost_node_never_reported_are_shown_as_unknown(gone):
    lost = {"ended": None, "reason": "DeletionByTaintManager", "memory_limit_bytes": 2**30}
    gone.server.answers[OVERVIEW] = overview_of_gone(**lost)
    lines = gone("show", "train").out.splitlines()
    assert [re.split(" {2,}", line.strip())[4:] for line in lines if "train-x" in line] == [
        ["DeletionByTaintManager (exit code unknown)", "unknown", "peak unknown, limit 1Gi"]
    ]
    gone.server.answers[OVERVIEW] = overview_of_gone(**lost | {"exit_code": 3, "ended": NOON})
    assert "unknown" not in gone("show", "train").out


def test_the_stored_log_is_printed_with_a_note_about_its_first_line(gone):
    done = gone("logs", "train")
    assert (done.code, done.out) == (0, "one\ntwo\n")
    assert done.err == "note: earlier lines of train-x were dropped: the last 1Mi are stored\n"
    assert gone("logs", "train", "--tail", "1") == type(done)(0, "two\n", "")


def test_a_deleted_run_is_shown_from_its_stored_records(gone):
    gone.api.remove(JOBS, "train")
    gone.server.answers[OVERVIEW] = overview(view_deleted(facts()))
    assert "state       Deleted: deleted before it ended" in gone("show", "train").out
    assert gone("logs", "train").out == gone("logs", "-f", "train").out == "one\ntwo\n"


def test_a_server_that_does_not_answer_is_noted_once(gone):
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


def test_stored_records_are_erased_with_the_run_or_after_it(gone):
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
