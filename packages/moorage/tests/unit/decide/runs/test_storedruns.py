"""What is kept of a run, and how it is shown from that."""

from __future__ import annotations

import copy
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.storedrecords import StoredPod, StoredRun
from moorage.decide.runs.state import State, view_run
from moorage.decide.runs.storedruns import (
    DEFAULT_CONTAINER,
    Seen,
    attempt_facts,
    has_own_log,
    other_logs,
    plan,
    pod_facts,
    stored_pods_of,
    view_deleted,
)
from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_LABEL
from moorage.model.names import RUN_LABEL
from moorage_kube.moments import rfc3339
from moorage_kube.testing.builders import a_container_status, an_owner
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_job, a_run_pod, keyed

MINUTE = timedelta(minutes=1)
CHECKPOINT = {"": "weights", "-from": "earlier", "-at": rfc3339(NOON), "-checked-at": rfc3339(NOON)}


def a_job(attempt=1, *, uid="j", end="", **annotations):
    owner = None if attempt == 1 else {"kind": "Job", "name": "train", "uid": f"{uid}1"}
    notes = keyed(command="python train.py", restart_limit=5, git="https://h/a@0123")
    notes |= {f"moorage.dev/checkpoint{part}": value for part, value in CHECKPOINT.items()} | annotations
    made = {"uid": f"{uid}{attempt}", "created": NOON - 60 * MINUTE, "owner": owner, "annotations": notes}
    made |= {"requests": {"cpu": "1"}, "gpus": 2, "container": {"env": [{"name": "PASSWORD", "value": "hunter2"}]}}
    made |= {"spec": {"backoffLimit": 0}, "pod_annotations": keyed(owner="ada"), "end": end, "finished": NOON}
    return a_run_job("train", attempt, **made)


def a_pod(uid="p1", attempt=1, *, job="j", phase="Running", exit_code=None, **status):
    ended = None if exit_code is None else NOON
    state = a_container_status(exit_code=exit_code, started=NOON - 30 * MINUTE, finished=ended)
    made = {"uid": uid, "created": NOON - 40 * MINUTE, "node": "gpu-1", "gpus": 2, "statuses": [state]}
    made |= {"owner": an_owner(uid=f"{job}{attempt}"), "phase": phase, "status": status}
    return a_run_pod(f"train-{uid}", attempt=attempt, **made)


def written(known: StoredRun, changes: StoredRun) -> StoredRun:
    """What is stored after a write."""
    attempts = {job.job_uid: job for job in (*known.attempts, *changes.attempts)}
    pods = {pod.uid: pod for pod in (*known.pods, *changes.pods)}
    return StoredRun(attempts=tuple(attempts.values()), pods=tuple(pods.values()))


def kept(known=None, **seen):
    """Plan and write, as the store does; planning again gives nothing."""
    known = known or StoredRun()
    seen = {"gpu_types": {"gpu-1": "a100"}, "now": NOON} | seen
    known = written(known, plan(Seen(known=known, **seen)))
    assert plan(Seen(known=known, **seen)) == StoredRun()
    return known


def test_a_pod_that_is_deleted_while_it_runs_has_failed_then_and_there():
    known = kept(jobs=[a_job()], pods=[a_pod()])
    known = kept(known, jobs=[a_job()], deleted={"p1": (a_pod(), NOON + MINUTE)}, now=NOON + 2 * MINUTE)
    (pod,) = known.pods
    assert (pod.phase, pod.reason, pod.node, pod.gpus, pod.gpu_type) == ("Failed", "Deleted", "gpu-1", 2, "a100")
    assert (pod.started, pod.ended, pod.gone) == (NOON - 30 * MINUTE, NOON + MINUTE, NOON + MINUTE)


def test_a_pod_that_came_and_went_between_two_looks_is_kept():
    known = kept(jobs=[a_job()], deleted={"p1": (a_pod(exit_code=3, phase="Failed"), NOON + MINUTE)})
    assert [(pod.exit_code, pod.ended, pod.gone) for pod in known.pods] == [(3, NOON, NOON + MINUTE)]


def test_of_a_pod_that_vanished_while_nobody_watched_the_end_is_not_known():
    known = kept(kept(jobs=[a_job()], pods=[a_pod()]), jobs=[a_job()], now=NOON + 9 * MINUTE)
    assert [(pod.phase, pod.ended, pod.gone) for pod in known.pods] == [("Failed", None, NOON + 9 * MINUTE)]


def test_what_took_a_pod_away_stays_its_reason():
    lost = a_pod(
        conditions=[
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
                "message": "make room",
            }
        ]
    )
    known = kept(jobs=[a_job()], deleted={"p1": (lost, NOON)})
    (pod,) = known.pods
    assert (pod.reason, pod.message, pod.disrupted) == ("PreemptionByScheduler", "make room", True)


def test_a_later_look_that_knows_less_takes_nothing_away():
    known = kept(jobs=[a_job()], pods=[a_pod()])
    bare = a_pod(phase="Failed", containerStatuses=[])
    known = kept(known, jobs=[a_job()], pods=[bare], gpu_types={})
    assert [(pod.started, pod.gpu_type) for pod in known.pods] == [(NOON - 30 * MINUTE, "a100")]


def test_a_pod_taken_for_gone_that_is_there_runs_again():
    known = kept(jobs=[a_job()], pods=[a_pod()])
    known = kept(known, jobs=[a_job()], now=NOON + MINUTE)
    known = kept(known, jobs=[a_job()], pods=[a_pod()])
    assert [(pod.phase, pod.ended, pod.gone) for pod in known.pods] == [("Running", None, None)]


def test_what_a_program_is_given_to_know_is_not_kept():
    facts = attempt_facts(a_job(**{"moorage.dev/report-token-sha256": "0" * 64}))
    text = msgspec.json.encode(facts).decode()
    assert "hunter2" not in text
    assert "report-token" not in text
    assert "python train.py" in text


@given(st.data())
def test_a_run_shown_from_what_is_kept_is_the_run_that_was_seen(data):
    """Whatever its objects were: shown from their kept facts it is the same, but for what says that it is gone."""
    end = data.draw(st.sampled_from([None, "Complete", "Failed"]))
    attempts = data.draw(st.integers(1, 3))
    codes = data.draw(st.lists(st.none() | st.sampled_from([0, 1, 137]), min_size=attempts, max_size=attempts))
    jobs = [a_job(number, end="Failed" if number < attempts else end) for number in range(1, attempts + 1)]
    pods = [
        a_pod(
            f"p{number}",
            number,
            phase="Running" if code is None else "Failed" if code else "Succeeded",
            exit_code=code,
        )
        for number, code in enumerate(codes, 1)
    ]
    before = view_run(jobs, pods, node_types={"gpu-1": "a100"})
    known = kept(jobs=jobs, pods=pods)
    gone = {obj["metadata"]["uid"]: (obj, NOON) for obj in (*jobs, *pods)}
    known = kept(known, deleted=gone)
    run = view_deleted(known)
    assert run is not None
    # a deletion changes the state, the end and the pods of a run; all else is as before
    changed = {name: getattr(run, name) for name in ("ended", "deadline", "reason", "attempts")}
    assert run == msgspec.structs.replace(before, state=State.DELETED, **changed)
    assert [pod.name for pod in run.pods] == [pod.name for pod in before.pods]
    assert run.ended is not None


# -- mixed with what is there


def test_gone_pods_stand_before_those_that_are_there_and_do_not_change_the_state():
    jobs, live = [a_job()], a_pod("p2")
    live["metadata"]["creationTimestamp"] = rfc3339(NOON)
    known = kept(jobs=jobs, deleted={"p1": (a_pod(), NOON - 10 * MINUTE)}, pods=[live])
    run = view_run(jobs, [live], kept=stored_pods_of(known, jobs))
    assert [(pod.name, pod.gone) for pod in run.pods] == [("train-p1", True), ("train-p2", False)]
    assert (run.state, run.node) == (State.RUNNING, "gpu-1")
    waiting = view_run(jobs, [], kept=stored_pods_of(known, jobs))
    assert waiting.state is view_run(jobs, []).state is State.WAITING


def test_the_pods_of_an_earlier_run_of_the_name_are_left_out():
    known = kept(jobs=[a_job(uid="old")], deleted={"p1": (a_pod(job="old"), NOON)})
    jobs = [a_job()]
    assert view_run(jobs, [], kept=stored_pods_of(known, jobs)).pods == ()


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_job(end="Complete"), "was Succeeded"),
        (a_job(**{"moorage.dev/ended": "Cancelled by ada"}), "was Cancelled"),
        (a_job(), "deleted before it ended"),
    ],
)
def test_a_deleted_run_says_how_it_stood(job, reason):
    known = kept(kept(jobs=[copy.deepcopy(job)]), deleted={"j1": (job, NOON)})
    run = view_deleted(known)
    assert run is not None
    assert (run.state, run.reason, run.state.ended) == (State.DELETED, reason, True)


def test_a_deleted_run_has_its_users_labels():
    job = a_job()
    job["metadata"]["labels"] |= {"project": "vision", "batch.kubernetes.io/job-name": "train"}
    run = view_deleted(kept(kept(jobs=[copy.deepcopy(job)]), deleted={"j1": (job, NOON)}))
    assert run is not None
    assert run.labels == {"project": "vision"}


def test_of_nothing_kept_nothing_is_shown():
    assert view_deleted(StoredRun()) is None


def test_facts_of_a_pod_without_status_are_few():
    bare = {"metadata": {"name": "x", "uid": "u", "labels": {"moorage.dev/run": "x"}}, "spec": {}}
    assert pod_facts(bare, {}).phase == "Pending"


def a_step(*rows, init=(), phase="Running", sidecars=(), restart_policy="Never"):
    owner = {"kind": "Workflow", "name": "nightly", "controller": True, "uid": "w1"}
    return {
        "metadata": {
            "name": "s1",
            "labels": {WORKFLOW_LABEL: "nightly"},
            "annotations": {NODE_NAME_ANNOTATION: "nightly.fit", DEFAULT_CONTAINER: "main"},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [{"name": "main"}],
            "initContainers": [{"name": name, "restartPolicy": "Always"} for name in sidecars],
            "restartPolicy": restart_policy,
        },
        "status": {"phase": phase, "containerStatuses": list(rows), "initContainerStatuses": list(init)},
    }


def a_container(name, **state):
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_step(a_container("main", running={})), [], id="main's log is the pod's"),
        pytest.param(
            a_step(a_container("wait", running={}), init=[a_container("init", terminated={})]),
            [],
            id="those of the executor",
        ),
        pytest.param(a_step(a_container("proxy", waiting={})), [], id="it has not started"),
        pytest.param(a_step(a_container("proxy", running={})), [("proxy", False)], id="it runs"),
        pytest.param(
            a_step(init=[a_container("fetch", terminated={})]), [("fetch", True)], id="an init container has ended"
        ),
        pytest.param(
            a_step(a_container("proxy", terminated={}), restart_policy="OnFailure"),
            [("proxy", False)],
            id="it may be started again",
        ),
        pytest.param(
            a_step(init=[a_container("proxy", terminated={})], sidecars=["proxy"]),
            [("proxy", False)],
            id="a sidecar is started again",
        ),
        pytest.param(
            a_step(a_container("proxy", waiting={}) | {"lastState": {"terminated": {}}}),
            [("proxy", False)],
            id="it waits for its next start",
        ),
        pytest.param(
            a_step(init=[a_container("proxy", terminated={})], sidecars=["proxy"], phase="Succeeded"),
            [("proxy", True)],
            id="the pod is over",
        ),
        pytest.param(
            a_step(a_container("a", running={}), a_container("b", running={})),
            [("a", False), ("b", False)],
            id="several",
        ),
        pytest.param({"metadata": {"labels": {RUN_LABEL: "train"}}}, [], id="a pod of a run"),
    ],
)
def test_logs_that_are_kept_beside_the_pods_own(pod, want):
    assert [(log.container, log.ended) for log in other_logs(pod)] == want


@pytest.mark.parametrize(
    ("stored", "container", "want"),
    [
        ("main", "", True),
        ("main", "main", True),
        ("main", "proxy", False),
        ("first", "first", True),
        ("first", "main", False),
        ("", "main", True),
        ("", "proxy", False),
    ],
)
def test_which_container_has_the_pods_own_log(stored, container, want):
    pod = StoredPod(uid="u", job_uid="w", namespace="lab", run="", attempt=1, name="s1", container=stored)
    assert has_own_log(pod, container) == want
