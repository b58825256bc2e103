"""How a run stands, from whatever is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.state import (
    PodView,
    State,
    checkpoint_warning,
    exit_code_of,
    view_pod,
    view_run,
    view_runs,
)
from moorage_kube.moments import moment, rfc3339
from moorage_kube.testing.builders import a_condition, a_container_status
from moorage_testing.builders import a_run_job, a_run_pod, keyed

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def ago(**span: float) -> str:
    return rfc3339(NOON - timedelta(**span))


def a_job(attempt: int = 1, *, counts: Mapping[str, int] | None = None, **more: Any) -> dict[str, Any]:
    condition = {key: more.pop(key) for key in ("end", "reason", "message") if key in more}
    made = {"namespace": "default", "uid": f"job-{attempt}", "created": ago(hours=2), "finished": ago(minutes=1)}
    made |= {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "spec": {"backoffLimit": 0}, "status": counts}
    return a_run_job("train", attempt, user="ada", annotations=keyed(**more), **made | condition)


def a_pod(
    attempt: int = 1, phase: str = "Running", *, code: int | None = None, why: str = "", disrupted: str = "",
    started: str = "", ended: str = "", deadline: int = 0, status_reason: str = "", evicted: str | None = None,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    started, ended = started or ago(minutes=5), ended or ago(minutes=1)
    since = started if phase == "Running" else ""
    state = a_container_status(
        exit_code=code, reason=why, started=since or code is not None and started, finished=ended
    )
    marks = [a_condition("DisruptionTarget", reason=disrupted, since=evicted)] if disrupted else []
    made = {"name": f"train-{attempt}-pod", "namespace": "default", "created": started, "node": "node-1"}
    made |= {"started": started} if phase != "Pending" else {}
    made |= {
        "spec": {"activeDeadlineSeconds": deadline} if deadline else {},
        "status": {"reason": status_reason} if status_reason else {},
    }
    return a_run_pod(
        attempt=attempt, phase=phase, statuses=[state], conditions=marks, limits={"memory": "1Gi"}, **made | more
    )


FAILED = {"end": "Failed", "reason": "BackoffLimitExceeded"}
POLICY = {"end": "Failed", "reason": "PodFailurePolicy"}
DISRUPTED = POLICY | {
    "message": "Pod default/train-1-pod has condition DisruptionTarget matching FailJob rule at index 0"
}
BY_CODE = POLICY | {
    "message": "Container main for pod default/train-1-pod failed with exit code 137"
    " matching FailJob rule at index 1"
}


@pytest.mark.parametrize(
    ("jobs", "pods", "state", "reason"),
    [
        pytest.param([a_job()], [], State.WAITING, "", id="no pod yet"),
        pytest.param(
            [a_job()],
            [a_pod(phase="Pending", why="ImagePullBackOff")],
            State.WAITING,
            "ImagePullBackOff",
            id="pending",
        ),
        pytest.param([a_job()], [a_pod()], State.RUNNING, "", id="running"),
        pytest.param(
            [a_job()], [a_pod(phase="Succeeded", code=0, why="Completed")], State.RUNNING, "", id="just over"
        ),
        pytest.param(
            [a_job() | {"spec": a_job()["spec"] | {"backoffLimit": 2}}],
            [a_pod(phase="Failed", code=3, why="Error")],
            State.WAITING,
            "exit code 3",
            id="failed, about to be tried again",
        ),
        pytest.param(
            [a_job(end="Complete")],
            [a_pod(phase="Succeeded", code=0, why="Completed")],
            State.SUCCEEDED,
            "",
            id="done",
        ),
        pytest.param([a_job(end="Complete")], [], State.SUCCEEDED, "", id="done, its pod collected"),
        pytest.param(
            [a_job(**FAILED)],
            [a_pod(phase="Failed", code=3, why="Error")],
            State.FAILED,
            "exit code 3",
            id="failed",
        ),
        pytest.param(
            [a_job(**FAILED)],
            [a_pod(phase="Failed", code=137, why="OOMKilled")],
            State.OOM_KILLED,
            "killed for its memory",
            id="killed for its memory",
        ),
        pytest.param(
            [a_job(**BY_CODE)],
            [a_pod(phase="Failed", code=137, why="OOMKilled")],
            State.OOM_KILLED,
            "killed for its memory",
            id="killed for its memory, with --retries",
        ),
        pytest.param(
            [a_job(**BY_CODE)], [], State.OOM_KILLED, "killed for its memory", id="killed for its memory, pod gone"
        ),
        pytest.param(
            [a_job(**DISRUPTED)],
            [
                a_pod(
                    phase="Failed",
                    code=137,
                    why="Error",
                    disrupted="TerminationByKubelet",
                    status_reason="Evicted",
                )
            ],
            State.FAILED,
            "Evicted",
            id="evicted by its node for memory",
        ),
        pytest.param([a_job(cancelled="yes")], [], State.CANCELLED, "Cancelled", id="cancelled by the other mark"),
        pytest.param(
            [a_job(**FAILED)],
            [a_pod(phase="Failed", code=143, why="Error", status_reason="DeadlineExceeded")],
            State.FAILED,
            "DeadlineExceeded",
            id="over its time",
        ),
        pytest.param(
            [a_job(**DISRUPTED)], [], State.RESTARTING, "PodFailurePolicy", id="pod gone, next attempt due"
        ),
        pytest.param(
            [a_job(**DISRUPTED)],
            [a_pod(phase="Failed", code=143, why="Error", disrupted="EvictionByEvictionAPI")],
            State.RESTARTING,
            "EvictionByEvictionAPI",
            id="drained, next attempt due",
        ),
        pytest.param(
            [a_job()],
            [a_pod(disrupted="PreemptionByScheduler")],
            State.RESTARTING,
            "PreemptionByScheduler",
            id="in its grace period",
        ),
        pytest.param([a_job(**DISRUPTED), a_job(2)], [a_pod(2)], State.RUNNING, "", id="the second attempt runs"),
        pytest.param([a_job(**DISRUPTED), a_job(2)], [], State.WAITING, "", id="the second attempt waits"),
        pytest.param(
            [a_job(**DISRUPTED, ended="RestartLimitReached")],
            [],
            State.FAILED,
            "RestartLimitReached",
            id="the controller gave up",
        ),
        pytest.param(
            [a_job(**DISRUPTED, restart_limit="0")],
            [],
            State.FAILED,
            "PodFailurePolicy",
            id="no restart is allowed",
        ),
        pytest.param(
            [a_job(end="Complete")],
            [a_pod(phase="Succeeded", code=0, disrupted="EvictionByEvictionAPI", evicted=ago())],
            State.SUCCEEDED,
            "",
            id="done, its node drained later",
        ),
        pytest.param(
            [a_job(**FAILED)],
            [a_pod(phase="Failed", code=3, why="Error", disrupted="EvictionByEvictionAPI", evicted=ago())],
            State.FAILED,
            "exit code 3",
            id="failed, its node drained later",
        ),
        pytest.param(
            [a_job(**FAILED, ended="OutOfMemory: killed for its own memory")],
            [],
            State.OOM_KILLED,
            "killed for its memory",
            id="killed for its memory, as the operator noted",
        ),
        pytest.param([a_job(ended="Cancelled by ada")], [], State.CANCELLED, "Cancelled by ada", id="cancelled"),
        pytest.param(
            [a_job(end="Complete", ended="Cancelled by ada")], [], State.SUCCEEDED, "", id="cancelled too late"
        ),
    ],
)
def test_a_run_stands_as_its_newest_attempt_and_the_cause_say(jobs, pods, state, reason):
    run = view_run(jobs, pods)
    assert (run.state, run.reason) == (state, reason)


def test_what_a_run_holds_and_how_long_it_may_go_on():
    run = view_run([a_job()], [a_pod(deadline=3600)], node_types={"node-1": "a100"})
    assert (run.owner, run.gpus, run.gpu_type, run.node) == ("ada", 2, "a100", "node-1")
    assert run.time_left(NOON) == timedelta(minutes=55)


def test_an_attempt_without_a_pod_is_on_no_node_and_a_run_that_ended_stays_on_its_last():
    evicted = a_pod(phase="Failed", disrupted="DeletionByTaintManager")
    assert view_run([a_job(**DISRUPTED), a_job(2)], [evicted]).node == ""
    assert view_run([a_job(**FAILED)], [a_pod(phase="Failed", code=1)]).node == "node-1"


@pytest.mark.parametrize(
    ("pods", "waited", "ran"),
    [
        pytest.param([], 120, None, id="no pod yet"),
        pytest.param([a_pod(started=ago(minutes=30))], 90, 30, id="running"),
        pytest.param(
            [
                a_pod(phase="Failed", code=85, started=ago(minutes=40), ended=ago(minutes=30)),
                a_pod(2, started=ago(minutes=5)),
            ],
            80,
            15,
            id="two attempts: without the wait between them",
        ),
    ],
)
def test_a_run_has_waited_and_run_for_a_time(pods, waited, ran):
    run = view_run([a_job(time_limit_seconds="7200"), a_job(2)], pods)
    minutes = [time and time / timedelta(minutes=1) for time in (run.waited(NOON), run.ran(NOON), run.time_limit)]
    assert minutes == [waited, ran, 120]


@pytest.mark.parametrize(
    ("jobs", "restarts", "retries"),
    [
        pytest.param([a_job()], 0, 0, id="no pod yet"),
        pytest.param([a_job(counts={"active": 1})], 0, 0, id="the first pod"),
        pytest.param([a_job(counts={"failed": 1})], 0, 0, id="failed, and not replaced yet"),
        pytest.param([a_job(counts={"failed": 2, "active": 1})], 0, 2, id="the third pod"),
        pytest.param([a_job(end="Complete", counts={"failed": 1, "succeeded": 1})], 0, 1, id="done by a retry"),
        pytest.param([a_job(**FAILED, counts={"failed": 1})], 0, 0, id="failed without --retries"),
        pytest.param([a_job(**FAILED, counts={"failed": 3})], 0, 2, id="failed after all retries"),
        pytest.param(
            [a_job(cancelled="yes", counts={"failed": 1, "terminating": 1})],
            0,
            1,
            id="a retry in its grace period",
        ),
        pytest.param(
            [a_job(**DISRUPTED, counts={"failed": 1}), a_job(2, counts={"active": 1})], 1, 0, id="disrupted"
        ),
        pytest.param(
            [a_job(**DISRUPTED, counts={"failed": 2}), a_job(2, counts={"failed": 1, "active": 1})],
            1,
            2,
            id="failed, disrupted, failed again",
        ),
    ],
)
def test_pods_replaced_after_failures_are_counted_apart_from_restarts(jobs, restarts, retries):
    run = view_run(jobs, [])
    assert (run.restarts, run.retries) == (restarts, retries)


def test_peak_and_limit_of_memory_are_read_from_the_pod():
    pod = a_pod(annotations={"localcluster.moorage.dev/peak-memory-bytes": "1073741900"})
    [found] = view_run([a_job()], [pod]).pods
    assert (found.memory_limit_bytes, found.peak_memory_bytes) == (2**30, 1073741900)


@pytest.mark.parametrize(
    ("minutes", "at", "warning"),
    [
        pytest.param(9, None, "", id="too early to tell"),
        pytest.param(
            12,
            None,
            "running for 12m and no checkpoint written yet; a restart would begin from the start",
            id="none at all",
        ),
        pytest.param(60, 29, "", id="recent"),
        pytest.param(
            60, 31, "the newest checkpoint is 31m old; a restart would lose the work since then", id="stale"
        ),
    ],
)
def test_a_long_run_that_writes_no_checkpoint_is_warned_of(minutes, at, warning):
    notes = {"checkpoint": "digits"} | ({"checkpoint_at": ago(minutes=at)} if at else {})
    run = view_run([a_job(**notes)], [a_pod(started=ago(minutes=minutes))])
    assert checkpoint_warning(run, NOON) == warning


def test_a_run_without_a_checkpoint_volume_is_not_warned_of():
    run = view_run([a_job()], [a_pod(started=ago(hours=5))])
    assert checkpoint_warning(run, NOON) == ""


@pytest.mark.parametrize(
    ("jobs", "pods", "code"),
    [
        ([a_job(end="Complete")], [], 0),
        ([a_job(**FAILED)], [a_pod(phase="Failed", code=3, why="Error")], 3),
        ([a_job(**FAILED)], [], 1),
        ([a_job(ended="Cancelled by ada")], [], 1),
    ],
)
def test_following_ends_with_the_jobs_own_code(jobs, pods, code):
    assert exit_code_of(view_run(jobs, pods)) == code


def test_times_before_the_pods_creation_are_absent():
    """A runtime that cannot start a container says that it started in 1970."""
    ended = {
        "exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": ago(minutes=2)
    }  # fmt: skip
    pod = a_pod(phase="Failed") | {
        "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    }
    pod["metadata"]["creationTimestamp"] = ago(minutes=3)
    run = view_run([a_job(end="Failed")], [pod])
    assert (run.started, run.pods[0].started, run.exit_code, run.reason) == (None, None, 128, "StartError")
    assert run.pods[0].ended == NOON - timedelta(minutes=2)


@pytest.mark.parametrize("nothing", ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_time_of_nothing_is_no_time(nothing):
    assert moment(nothing) is None
    assert moment("1970-01-01T00:00:01Z") == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    ended = {"exitCode": 128, "reason": "StartError", "startedAt": nothing, "finishedAt": nothing}
    pod = a_pod(phase="Failed")
    del pod["metadata"]["creationTimestamp"]
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    assert view_run([a_job(end="Failed")], [pod]).pods[0].running_time(NOON) is None


@pytest.mark.parametrize(
    ("phase", "started", "ended", "time"),
    [
        pytest.param("Running", 5, None, timedelta(minutes=5), id="it runs"),
        pytest.param("Succeeded", 5, 2, timedelta(minutes=3), id="it ended"),
        pytest.param("Failed", 5, None, None, id="lost: nobody knows when it ended"),
        pytest.param("Failed", None, 2, None, id="it did not start"),
        pytest.param("Failed", 2, 5, timedelta(), id="two clocks"),
    ],
)
def test_the_running_time_of_a_pod_is_known_or_absent(phase, started, ended, time):
    def at(minutes):
        return None if minutes is None else NOON - timedelta(minutes=minutes)

    pod = PodView(name="p", attempt=1, phase=phase, started=at(started), ended=at(ended))
    assert pod.running_time(NOON) == time


def test_a_node_whose_clock_is_slow_still_says_when_it_began():
    pod = a_pod() | {
        "status": {
            "phase": "Running",
            "containerStatuses": [{"state": {"running": {"startedAt": ago(minutes=4)}}}],
        }
    }
    pod["metadata"]["creationTimestamp"] = ago(minutes=3)
    assert view_run([a_job()], [pod]).started == NOON - timedelta(minutes=4)


def test_jobs_that_are_no_runs_are_left_out():
    other = a_job()
    del other["metadata"]["labels"]["moorage.dev/run"]
    assert [run.name for run in view_runs([other, a_job()], [])] == ["train"]


ends = st.sampled_from([None, "Complete", "Failed"])
reasons = st.sampled_from(["", "PodFailurePolicy", "BackoffLimitExceeded"])
some_pods = st.lists(
    st.builds(
        a_pod,
        attempt=st.integers(1, 3),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        code=st.sampled_from([None, 0, 1, 137]),
        why=st.sampled_from(["", "Error", "OOMKilled"]),
        disrupted=st.sampled_from(["", "PreemptionByScheduler"]),
    ),
    max_size=3,
)


@given(
    st.lists(st.tuples(ends, reasons), min_size=1, max_size=3),
    some_pods,
    st.sampled_from(["", "Cancelled by x", "RestartLimitReached"]),
)
def test_every_run_has_a_state_that_agrees_with_its_last_job(found, pods, ended):
    jobs = [a_job(at, end=end, reason=reason) for at, (end, reason) in enumerate(found, start=1)]
    if ended:
        jobs[0]["metadata"]["annotations"] = keyed(ended=ended)
    run = view_run(jobs, pods)
    last = found[-1][0]
    assert (run.state is State.SUCCEEDED) == (last == "Complete")
    if last == "Failed":
        assert run.state.ended or run.state is State.RESTARTING
    if ended:
        assert run.state.ended or last is None
    if run.state.ended:
        assert 0 <= exit_code_of(run) <= 255
    assert len(run.attempts) == len(jobs)


GIB = 2**30


def with_last_words(pod: dict[str, Any], text: str) -> dict[str, Any]:
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = text
    return pod


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(a_pod(), (None, ""), id="nothing was measured yet"),
        pytest.param(
            with_last_words(a_pod(phase="Failed", code=1), "boom\nmoorage: peak-memory-bytes=77\n"),
            (77, "boom"),
            id="its runner wrote it, beside the words of the program",
        ),
        pytest.param(a_pod(phase="Failed", code=137, why="OOMKilled"), (GIB, ""), id="killed at its limit"),
        pytest.param(
            with_last_words(a_pod(phase="Failed", code=137, why="OOMKilled"), "moorage: peak-memory-bytes=77\n"),
            (77, ""),
            id="killed for memory, and measured before",
        ),
        pytest.param(
            a_pod(annotations={"localcluster.moorage.dev/peak-memory-bytes": "88"}), (88, ""), id="by a node agent"
        ),
    ],
)
def test_the_peak_of_memory_is_read_wherever_it_was_measured(pod: Any, want: tuple[int | None, str]) -> None:
    view = view_pod(pod)
    assert (view.peak_memory_bytes, view.message) == want


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        ({}, {}),
        ({"limits": {"memory": "64Mi"}}, {"memory": "64Mi"}),
        ({"limits": {"memory": "64Mi", "cpu": "2"}, "requests": {"cpu": "1"}}, {"memory": "64Mi", "cpu": "1"}),
    ],
)
def test_a_limit_counts_as_a_request_where_none_is_stated(resources: Any, want: dict[str, str]) -> None:
    job = a_job()
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    assert view_run([job], []).requests == want


def test_a_run_on_a_machine_has_the_size_of_the_machine():
    job, pod = a_job(), a_pod()
    guest = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "small"}
    template = job["spec"]["template"]
    template.setdefault("metadata", {})["labels"] = guest
    template["spec"] = {"containers": [{"name": "main"}]}
    size = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
    pod["spec"] |= {"containers": [{"name": "main", "resources": {"limits": size, "requests": size}}]}
    run = view_run([job], [pod], node_types={pod["spec"].get("nodeName", ""): "a100"})
    assert (run.gpus, run.requests) == (1, size)
    assert view_run([job], []).gpus == 0, "its machine is not known before it has a pod"
