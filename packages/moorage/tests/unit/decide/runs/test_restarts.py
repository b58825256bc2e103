"""When a run is started again, when it is not, and that no interruption loses or doubles an attempt."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.controllers.run.plan import attempts_of, next_job, observe
from moorage.decide.runs.restarts import (
    TURN_LOOK,
    TURN_PATIENCE,
    AttemptSeen,
    Cause,
    End,
    FailPod,
    GivePlace,
    NoteMade,
    NoteRunning,
    NoteUsed,
    Observed,
    Plan,
    PodSeen,
    RemovePod,
    StartAttempt,
    Suspend,
    cause_of,
    plan,
    used_seconds,
)
from moorage.decide.runs.state import RUN_MOVES, State, view_run
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj
from moorage_kube.testing.clock import NOON
from moorage_kube.testing.examples import examples

MINUTE = timedelta(minutes=1)
DISRUPTED = "Pod lab/train-x1 has condition DisruptionTarget matching FailJob rule at index 0"
KILLED = "Container main for pod lab/train-x1 failed with exit code 137 matching FailJob rule at index 1"


def a_pod(**more: Any) -> PodSeen:
    return PodSeen(**({"name": "train-x1", "uid": "p1", "node": "n1", "phase": "Failed"} | more))


def an_attempt(number: int = 1, **more: Any) -> AttemptSeen:
    name = "train" if number == 1 else f"train-r{number}"
    return AttemptSeen(**({"number": number, "job": name, "uid": f"u{number}"} | more))


def disrupted(number: int = 1, **more: Any) -> AttemptSeen:
    known = {
        "state": "failed",
        "reason": "PodFailurePolicy",
        "message": DISRUPTED,
        "failed_pods": 1,
        "ended": NOON,
    }
    return an_attempt(number, **(known | more))


def a_run(*attempts: AttemptSeen, **more: Any) -> Observed:
    made = max((attempt.number for attempt in attempts), default=1)
    known = {"run": "train", "attempts": attempts, "now": NOON, "restart_limit": 3, "made": made}
    return Observed(**(known | more))


def start(
    number: int, *, backoff: int = 0, deadline: int | None = None, cause: str = "a disruption"
) -> StartAttempt:
    return StartAttempt(number, backoff, deadline, cause)


@pytest.mark.parametrize(
    ("attempt", "want"),
    [
        pytest.param(disrupted(), Cause.DISRUPTED, id="its pod is gone: only the API takes pods away"),
        *(
            pytest.param(disrupted(pods=(a_pod(disruption=reason),)), Cause.DISRUPTED, id=reason)
            for reason in (
                "PreemptionByScheduler",
                "EvictionByEvictionAPI",
                "DeletionByTaintManager",
                "DeletionByPodGC",
                "DeletionByMoorage",
            )
        ),
        pytest.param(
            disrupted(pods=(a_pod(disruption="TerminationByKubelet", status_reason="NodeShutdown"),)),
            Cause.DISRUPTED,
            id="its node shuts down",
        ),
        pytest.param(
            disrupted(pods=(a_pod(disruption="TerminationByKubelet", status_reason="Evicted"),)),
            Cause.EVICTED,
            id="evicted by its kubelet: the wandering bomb",
        ),
        pytest.param(
            disrupted(pods=(a_pod(disruption="PreemptionByScheduler", out_of_memory=True),)),
            Cause.MEMORY,
            id="preempted, but killed for its memory before that took effect",
        ),
        pytest.param(
            disrupted(
                pods=(a_pod(name="train-x0", out_of_memory=True), a_pod(disruption="DeletionByTaintManager"))
            ),
            Cause.DISRUPTED,
            id="an earlier pod was killed for memory and retried: the last one counts",
        ),
        pytest.param(
            an_attempt(state="failed", reason="PodFailurePolicy", message=KILLED), Cause.MEMORY, id="exit code 137"
        ),
        pytest.param(
            an_attempt(state="failed", reason="PodFailurePolicy", message="exit code 3 matching FailJob"),
            Cause.FAILED,
            id="another rule of the user's own",
        ),
        pytest.param(
            an_attempt(state="failed", reason="PodFailurePolicy", message="?", pods=(a_pod(disruption="X"),)),
            Cause.DISRUPTED,
            id="a Job controller with other words, and a pod that tells",
        ),
        pytest.param(
            an_attempt(state="failed", reason="BackoffLimitExceeded"), Cause.FAILED, id="its own exit code"
        ),
        pytest.param(
            an_attempt(state="failed", reason="BackoffLimitExceeded", pods=(a_pod(disruption="X"),)),
            Cause.FAILED,
            id="no rule for disruptions: not a run of ours to start again",
        ),
        pytest.param(
            an_attempt(state="failed", reason="BackoffLimitExceeded", pods=(a_pod(out_of_memory=True),)),
            Cause.MEMORY,
            id="killed for memory without retries",
        ),
        pytest.param(an_attempt(state="failed", reason="DeadlineExceeded"), Cause.FAILED, id="out of time"),
    ],
)
def test_the_cause_of_a_failure_is_read_from_the_job_first(attempt: AttemptSeen, want: Cause) -> None:
    assert cause_of(attempt) is want


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(a_run(), (), id="no attempt: nothing"),
        pytest.param(a_run(an_attempt()), (), id="running: left alone"),
        pytest.param(a_run(an_attempt(state="succeeded")), (), id="succeeded: left alone"),
        pytest.param(
            a_run(an_attempt(state="failed", reason="BackoffLimitExceeded")), (), id="its own failure: left alone"
        ),
        pytest.param(
            a_run(disrupted()), (NoteUsed(disrupted(), 0), start(2), NoteMade(2)), id="disrupted: started again"
        ),
        pytest.param(
            a_run(disrupted(used_seconds=7)),
            (start(2), NoteMade(2)),
            id="what is written down is not written twice",
        ),
        pytest.param(
            a_run(disrupted(used_seconds=7), an_attempt(2), made=1), (NoteMade(2),), id="made, and not yet noted"
        ),
        pytest.param(a_run(disrupted(used_seconds=7), an_attempt(2)), (), id="made and noted: settled"),
        pytest.param(
            a_run(disrupted(used_seconds=7), made=2),
            (End("Deleted", "attempt 2 was deleted, so the run is over"),),
            id="the user deleted the second attempt: it does not come back",
        ),
        pytest.param(
            a_run(disrupted(1, used_seconds=1), disrupted(2, used_seconds=1), restart_limit=1),
            (End("RestartLimit", "disrupted again after being started again 1 time, its limit"),),
            id="at its limit: ended",
        ),
        pytest.param(
            a_run(disrupted(), restart_limit=0),
            (End("RestartLimit", "disrupted again after being started again 0 times, its limit"),),
            id="never to be started again",
        ),
        pytest.param(
            a_run(an_attempt(state="failed", reason="PodFailurePolicy", message=KILLED)),
            (End("OutOfMemory", "killed for its own memory; such a run is not started again"),),
            id="killed for memory: ended",
        ),
        pytest.param(
            a_run(disrupted(pods=(a_pod(status_reason="Evicted", disruption="TerminationByKubelet"),))),
            (End("Evicted", "evicted by its node (n1) for memory or disk; such a run is not started again"),),
            id="evicted by its kubelet: ended",
        ),
        pytest.param(a_run(disrupted(), ended="Cancelled by ada"), (), id="cancelled by its mark: left alone"),
        pytest.param(a_run(disrupted(), cancelled=True), (), id="cancelled: left alone"),
        pytest.param(a_run(disrupted(deleting=True)), (), id="being deleted: left alone"),
        pytest.param(
            a_run(disrupted(used_seconds=1), disrupted(2, deleting=True)),
            (),
            id="its last attempt is being deleted",
        ),
        pytest.param(a_run(disrupted(2)), (), id="no first attempt: nothing to own another"),
        pytest.param(
            a_run(disrupted(used_seconds=1), an_attempt(2), ended="Cancelled by ada"),
            (Suspend(an_attempt(2)),),
            id="cancelled while it was made: stopped",
        ),
        pytest.param(
            a_run(disrupted(used_seconds=1), an_attempt(2, suspended=True), ended="Cancelled by ada"),
            (),
            id="cancelled and stopped: settled",
        ),
        pytest.param(
            a_run(disrupted(used_seconds=100), time_limit_seconds=3600),
            (start(2, deadline=3500), NoteMade(2)),
            id="a restart gets what is left of the time",
        ),
        pytest.param(
            a_run(disrupted(1, used_seconds=3000), disrupted(2, used_seconds=600), time_limit_seconds=3600),
            (End("TimeLimit", "disrupted after 3600 s of the 3600 s it may run"),),
            id="no time left: ended",
        ),
        pytest.param(
            a_run(disrupted(used_seconds=0, backoff_limit=3, failed_pods=3)),
            (start(2, backoff=1), NoteMade(2)),
            id="a restart gets what is left of the retries: two of three pods failed by themselves",
        ),
        pytest.param(
            a_run(disrupted(used_seconds=0, backoff_limit=3, failed_pods=4, parallelism=4)),
            (start(2, backoff=3), NoteMade(2)),
            id="four pods stopped together are no failures of its own",
        ),
        pytest.param(
            a_run(an_attempt(pods=(a_pod(phase="Running", started=NOON),)), time_limit_seconds=60),
            (NoteRunning(an_attempt(pods=(a_pod(phase="Running", started=NOON),)), NOON),),
            id="with a time limit, the start is written down while somebody can see it",
        ),
        pytest.param(
            a_run(an_attempt(pods=(a_pod(phase="Running", started=NOON),))), (), id="without one it need not be"
        ),
    ],
)
def test_a_run_is_started_again_after_disruptions_only(seen: Observed, want: tuple[Any, ...]) -> None:
    assert plan(seen) == Plan(want)


@pytest.mark.parametrize(
    ("attempt", "want"),
    [
        pytest.param(disrupted(used_seconds=5, running_since=NOON), 5, id="as written down"),
        pytest.param(disrupted(), 0, id="nobody saw it running"),
        pytest.param(disrupted(running_since=NOON - MINUTE), 60, id="pods gone: until the Job failed"),
        pytest.param(
            disrupted(pods=(a_pod(started=NOON - MINUTE, ended=NOON - MINUTE / 2),)), 30, id="its pod says both"
        ),
        pytest.param(
            disrupted(pods=(a_pod(started=NOON - 2 * MINUTE, disrupted_at=NOON - MINUTE),)),
            60,
            id="a pod on a lost node: until it was given up",
        ),
        pytest.param(
            disrupted(running_since=NOON - timedelta(seconds=0.2)), 1, id="rounded up: time is never given twice"
        ),
        pytest.param(disrupted(running_since=NOON + MINUTE), 0, id="clocks that differ never give negative time"),
        pytest.param(disrupted(running_since=NOON, ended=None), 0, id="no end is known"),
    ],
)
def test_running_time_is_counted_as_best_known(attempt: AttemptSeen, want: int) -> None:
    assert used_seconds(attempt) == want


LONG_AGO, JUST_NOW = NOON - 10 * MINUTE, NOON - MINUTE
STUCK = a_pod(phase="Running", deleting_since=LONG_AGO)


@pytest.mark.parametrize(
    ("pod", "lost", "want"),
    [
        pytest.param(STUCK, {}, Plan(), id="its node answers: left to it"),
        pytest.param(STUCK, {"n1": LONG_AGO}, Plan((FailPod(STUCK), RemovePod(STUCK))), id="node lost for long"),
        pytest.param(STUCK, {"n1": None}, Plan((FailPod(STUCK), RemovePod(STUCK))), id="node gone"),
        pytest.param(STUCK, {"n1": JUST_NOW}, Plan((), 4 * MINUTE), id="node lost just now: it may come back"),
        pytest.param(
            replace(STUCK, deleting_since=JUST_NOW), {"n1": None}, Plan((), 4 * MINUTE), id="node gone just now"
        ),
        pytest.param(replace(STUCK, deleting_since=None), {"n1": LONG_AGO}, Plan(), id="nobody deleted the pod"),
        pytest.param(
            replace(STUCK, phase="Failed"),
            {"n1": LONG_AGO},
            Plan((RemovePod(replace(STUCK, phase="Failed")),)),
            id="it is known to have failed: only removed",
        ),
        pytest.param(
            replace(STUCK, forced=True),
            {"n1": LONG_AGO},
            Plan((FailPod(replace(STUCK, forced=True)),)),
            id="deleted by force, but its Job still waits for its end",
        ),
        pytest.param(replace(STUCK, forced=True, phase="Failed"), {"n1": LONG_AGO}, Plan(), id="all done"),
    ],
)
def test_pods_on_lost_nodes_are_let_go_after_a_while(
    pod: PodSeen, lost: dict[str, datetime | None], want: Plan
) -> None:
    assert plan(a_run(an_attempt(pods=(pod,)), lost_nodes=lost)) == want


def test_pods_are_let_go_even_when_their_run_is_being_deleted() -> None:
    seen = a_run(an_attempt(deleting=True, pods=(STUCK,)), lost_nodes={"n1": None})
    assert plan(seen) == Plan((FailPod(STUCK), RemovePod(STUCK)))


# --- worlds


LIVE = a_pod(phase="Running", uid="p1")
GIVEN = disrupted(2, yields_to="lab/other", pods=(a_pod(disruption="TurnOver"),))


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            a_run(an_attempt(yields_to="lab/other", pods=(LIVE,))),
            Plan((GivePlace(LIVE, "lab/other"),)),
            id="it is asked for its place: its pod is ended",
        ),
        pytest.param(
            a_run(
                an_attempt(
                    yields_to="lab/other", pods=(replace(LIVE, deleting_since=NOON, disruption="TurnOver"),)
                )
            ),
            Plan(),
            id="its pod is ending: it has its grace period",
        ),
        pytest.param(
            a_run(an_attempt(), GIVEN, turn_over=False),
            Plan((), TURN_LOOK),
            id="the other has no place yet: it waits",
        ),
        pytest.param(
            a_run(an_attempt(), GIVEN, turn_over=False, now=NOON + TURN_PATIENCE),
            Plan((NoteUsed(GIVEN, 0), start(3, cause="the turn of lab/other"), NoteMade(3))),
            id="the other could not start for long: it takes its place again",
        ),
        pytest.param(
            a_run(an_attempt(), GIVEN, restart_limit=0),
            Plan((NoteUsed(GIVEN, 0), start(3, cause="the turn of lab/other"), NoteMade(3))),
            id="a turn is no restart",
        ),
        pytest.param(
            a_run(disrupted(1), GIVEN, disrupted(3), restart_limit=1),
            Plan((End("RestartLimit", "disrupted again after being started again 1 time, its limit"),)),
            id="a disruption after a turn is one",
        ),
        pytest.param(
            a_run(an_attempt(), GIVEN, turn_over=False, cancelled=True), Plan(), id="cancelled while it waits"
        ),
        pytest.param(
            a_run(an_attempt(yields_to="lab/other", pods=(LIVE,)), cancelled=True),
            Plan(),
            id="cancelled: Kubernetes ends its pod",
        ),
    ],
)
def test_a_run_gives_its_place_and_takes_it_again(seen: Observed, want: Plan) -> None:
    assert plan(seen) == want


class World:
    """Jobs and pods as the API would hold them; actions and outcomes change them."""

    def __init__(self, *, limit: int, time_limit: int | None, backoff: int) -> None:
        self.now = NOON
        self.pods: list[Obj] = []
        self.made: list[str] = []
        notes = {"moorage.dev/restart-limit": str(limit)}
        if time_limit is not None:
            notes["moorage.dev/time-limit-seconds"] = str(time_limit)
        labels = {"moorage.dev/run": "train", "moorage.dev/attempt": "1"}
        first = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "lab", "labels": labels, "annotations": notes},
            "spec": {
                "backoffLimit": backoff,
                "parallelism": 1,
                "template": {"metadata": {"labels": dict(labels)}, "spec": {"containers": [{"name": "main"}]}},
            },
        }
        self.jobs: dict[str, Obj] = {}
        self.states: list[State] = []
        self.create(first)

    def create(self, job: Obj) -> None:
        name = job["metadata"]["name"]
        assert name not in self.jobs, "two Jobs for one attempt"
        assert not self.active(), "two attempts at once"
        stored = json.loads(json.dumps(job))
        stored["metadata"]["uid"] = f"uid-{len(self.made)}"
        self.jobs[name] = stored
        self.made.append(name)
        self.start(stored)

    def start(self, stored: Obj) -> None:
        self.pods.append(
            {
                "metadata": {
                    "name": f"{stored['metadata']['name']}-pod",
                    "namespace": "lab",
                    "uid": f"pod-{len(self.made)}",
                    "labels": stored["metadata"]["labels"],
                    "ownerReferences": [{"controller": True, "uid": stored["metadata"]["uid"]}],
                },
                "spec": {"nodeName": "n1"},
                "status": {"phase": "Running", "startTime": rfc3339(self.now)},
            }
        )
        self.look()

    def look(self) -> None:
        """Show the run: it only ever makes a legal move."""
        state = view_run(list(self.jobs.values()), self.pods).state
        before = self.states[-1] if self.states else State.WAITING
        if state is not before:
            RUN_MOVES.check(before, state, self.states)
        self.states.append(state)

    def active(self) -> list[Obj]:
        return [job for job in self.jobs.values() if not (job.get("status") or {}).get("conditions")]

    def observe(self) -> Observed | None:
        return observe("train", self.jobs.values(), self.pods, {}, now=self.now)

    def outcome(self, what: str) -> None:
        """The running attempt ends in one of the ways there are, after a minute."""
        self.now += MINUTE
        job = self.active()[0]
        name = job["metadata"]["name"]
        pod = next(pod for pod in self.pods if pod["metadata"]["name"] == f"{name}-pod")
        pod["status"]["phase"] = "Failed"
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if what in ("preempted", "drained, pod gone", "kubelet evicted"):
            reason = "PodFailurePolicy"
            message = f"Pod lab/{name}-pod has condition DisruptionTarget matching FailJob rule at index 0"
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "Whatever"}]
        if what == "kubelet evicted":
            pod["status"]["reason"] = "Evicted"
        if what == "out of memory":
            ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
            pod["status"]["containerStatuses"] = [{"name": "main", "state": ended}]
        if what == "drained, pod gone":
            self.pods.remove(pod)
        failed = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        done = {"type": "Complete", "status": "True"}
        condition = (done if what == "succeeds" else failed) | {"lastTransitionTime": rfc3339(self.now)}
        job["status"] = {"conditions": [condition], "failed": 0 if what == "succeeds" else 1}
        self.look()

    def switch(self, what: str) -> None:
        """Its user suspends, resumes or cancels it, as `moor` does."""
        job, first = self.jobs[self.made[-1]], self.jobs["train"]
        notes = job["metadata"].setdefault("annotations", {})
        if what == "resume":
            if "moorage.dev/suspended" not in notes or "moorage.dev/ended" in first["metadata"]["annotations"]:
                return
            del notes["moorage.dev/suspended"], job["spec"]["suspend"], job["status"]
            self.start(job)
            return
        if not self.active() and not job["spec"].get("suspend"):
            return
        if what == "suspend":
            notes["moorage.dev/suspended"] = "{}"
        else:
            first["metadata"]["annotations"]["moorage.dev/ended"] = "Cancelled by ada"
        job["spec"]["suspend"] = True
        job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
        self.look()
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != f"{self.made[-1]}-pod"]
        self.look()

    def give_place(self, name: str) -> None:
        """Two writes; an operator that is killed between them does the other at its next pass."""
        pod = next(pod for pod in self.pods if pod["metadata"]["name"] == name)
        if not pod["status"].get("conditions"):
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "TurnOver"}]
        else:
            pod["metadata"]["deletionTimestamp"] = rfc3339(self.now)
        self.look()

    def turn(self, interruptions: list[int]) -> None:
        """The running attempt is asked for its place and gives it, whatever happens to the operator meanwhile."""
        job = self.active()[0]
        job["metadata"].setdefault("annotations", {})["moorage.dev/yields-to"] = "lab/other"
        for steps in interruptions:
            self.pass_over(steps)
        self.settle()
        assert self.pods[-1]["metadata"]["deletionTimestamp"]
        self.outcome("preempted")

    def act(self, action: Any) -> None:
        def note(job: str, key: str, text: str) -> None:
            self.jobs[job]["metadata"].setdefault("annotations", {})[f"moorage.dev/{key}"] = text

        match action:
            case NoteRunning(attempt, since):
                note(attempt.job, "running-since", rfc3339(since))
            case NoteUsed(attempt, seconds):
                note(attempt.job, "used-seconds", str(seconds))
            case NoteMade(number):
                note("train", "attempts", str(number))
            case End(reason, message):
                assert "moorage.dev/ended" not in self.jobs["train"]["metadata"]["annotations"]
                note("train", "ended", f"{reason}: {message}")
            case GivePlace(pod):
                self.give_place(pod.name)
            case StartAttempt():
                last = attempts_of("train", self.jobs.values())[-1][1]
                self.create(next_job("train", self.jobs["train"], last, action))
            case _:
                raise AssertionError(action)
        self.look()

    def pass_over(self, steps: int | None = None) -> bool:
        """One pass, cut off after so many steps; whether there was anything to do."""
        seen = self.observe()
        assert seen is not None
        actions = plan(seen).actions
        for action in actions[:steps]:
            self.act(action)
        return bool(actions)

    def settle(self) -> None:
        for _ in range(10):
            if not self.pass_over():
                return
        raise AssertionError("never settled")


OUTCOMES = ("preempted", "drained, pod gone", "kubelet evicted", "out of memory", "fails", "succeeds")
stories = st.lists(
    st.tuples(
        st.sampled_from(("preempted", "drained, pod gone") * 4 + OUTCOMES), st.lists(st.integers(0, 3), max_size=4)
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=examples(50, full=200))
@given(
    story=stories,
    limit=st.integers(0, 5),
    time_limit=st.sampled_from((None, 30, 150, 10_000)),
    backoff=st.integers(0, 2),
)
def test_an_operator_killed_at_any_step_neither_loses_nor_doubles_an_attempt(
    story: list[tuple[str, list[int]]], limit: int, time_limit: int | None, backoff: int
) -> None:
    world = World(limit=limit, time_limit=time_limit, backoff=backoff)
    last = "running"
    for what, interruptions in story:
        world.settle()  # as it runs: its start is noted where that matters
        if not world.active():
            break
        world.outcome(what)
        last = what
        for steps in interruptions:
            world.pass_over(steps)
    world.settle()
    count = len(world.made)
    notes = world.jobs["train"]["metadata"]["annotations"]
    ended = notes.get("moorage.dev/ended", "").partition(":")[0]
    assert world.made == ["train", *(f"train-r{number}" for number in range(2, count + 1))]
    assert count - 1 <= limit
    assert int(notes.get("moorage.dev/attempts", "1")) == count
    if world.active():
        assert ended == ""
        deadline = world.active()[0]["spec"]["template"]["spec"].get("activeDeadlineSeconds")
        assert deadline == (time_limit - 60 * (count - 1) if time_limit is not None and count > 1 else None)
    elif last in ("preempted", "drained, pod gone"):
        out_of_time = time_limit is not None and 60 * count >= time_limit
        assert ended == ("RestartLimit" if count - 1 == limit else "TimeLimit")
        assert ended == "RestartLimit" or out_of_time
    else:
        assert ended == {"kubelet evicted": "Evicted", "out of memory": "OutOfMemory"}.get(last, "")


@settings(deadline=None, max_examples=examples(50, full=200))
@given(
    turns=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 3), max_size=4)), min_size=1, max_size=8),
    limit=st.integers(0, 5),
)
def test_an_operator_killed_in_the_middle_of_turns_loses_no_run_and_runs_none_twice(
    turns: list[tuple[bool, list[int]]], limit: int
) -> None:
    """Turns and preemptions in any order: `create` of the world refuses a second attempt beside a live one."""
    world = World(limit=limit, time_limit=None, backoff=0)
    preempted = 0
    for is_turn, interruptions in turns:
        if is_turn:
            world.turn(interruptions)
        else:
            world.outcome("preempted")
            preempted += 1
        for steps in interruptions:
            world.pass_over(steps)
        world.settle()
        if not world.active():
            break
    notes = world.jobs["train"]["metadata"]["annotations"]
    if world.active():
        assert preempted <= limit
        assert "moorage.dev/ended" not in notes
        assert "moorage.dev/yields-to" not in (world.active()[0]["metadata"].get("annotations") or {})
    else:
        assert preempted == limit + 1
        assert notes["moorage.dev/ended"].startswith("RestartLimit")


@settings(deadline=None)
@given(story=stories, steps=st.integers(0, 4))
def test_planning_on_a_settled_run_gives_nothing(story: list[tuple[str, list[int]]], steps: int) -> None:
    world = World(limit=3, time_limit=None, backoff=0)
    for what, _ in story:
        if world.active():
            world.outcome(what)
        world.pass_over(steps)
        world.settle()
        seen = world.observe()
        assert seen is not None
        assert plan(seen).actions == ()


HAPPENINGS = st.sampled_from((*OUTCOMES, *("suspend", "resume", "preempted") * 4, "cancel"))


@settings(deadline=None, max_examples=examples(100, full=1000))
@given(
    st.lists(
        st.sampled_from((*OUTCOMES, *("suspend", "resume", "preempted") * 4, "cancel")), min_size=6, max_size=12
    )
)
def test_a_run_makes_moves_of_the_table_alone_whatever_happens(story: list[str]) -> None:
    world = World(limit=2, time_limit=None, backoff=0)
    for what in story:
        if what in ("suspend", "resume", "cancel"):
            world.switch(what)
        elif world.active():
            world.outcome(what)
        world.settle()
