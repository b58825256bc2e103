"""The state of a run: read from its Jobs (one per attempt) and their remaining pods.

A run's pods may be deleted (preempted, cancelled, collected); its Jobs contain the cause, so only the details
depend on the existence of a pod. Stored pods (`decide.runs.storedruns`) provide these when the pods are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.admission.templates import is_guest
from moorage.decide.explain.nodeconstraints import wanted_types
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.idle.states import Record, read_record
from moorage.decide.interruptions import is_interruption, stop_time
from moorage.decide.runs.code import Code, code_of
from moorage.decide.runs.interrupted import ended_suspended, was_interrupted
from moorage.decide.runs.kueue import queue_of
from moorage.decide.runs.restarts import INTERRUPTED, AttemptSeen, Cause, PodSeen, Yielding, cause_of, turns_of
from moorage.decide.runs.terminationmessage import split_termination_message
from moorage.decide.usage.gpus import owner_of
from moorage.model.labels import user_labels
from moorage.model.moves import Moves
from moorage.model.names import (
    ATTEMPT_LABEL,
    CANCELLED_ANNOTATION,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    CHECKPOINT_CHECKED_ANNOTATION,
    CHECKPOINT_FROM_ANNOTATION,
    COMMAND_ANNOTATION,
    ENDED_ANNOTATION,
    GIT_ANNOTATION,
    IDLE_ANNOTATION,
    RESTART_LIMIT,
    RESTART_LIMIT_ANNOTATION,
    RUN_LABEL,
    SUSPENDED_ANNOTATION,
    TIME_LIMIT_ANNOTATION,
    YIELDS_TO_ANNOTATION,
)
from moorage_kube.errors import QuantityError
from moorage_kube.meta import annotations_of, condition, is_condition_true, is_deleting, labels_of
from moorage_kube.moments import format_duration, moment, readable_moment, span_of
from moorage_kube.quantity import parse_count
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

CANCELLED = "Cancelled"  # how ENDED_ANNOTATION begins after `moor cancel`
OUT_OF_MEMORY = "OutOfMemory"  # how it begins after a kill for memory
PEAK_MEMORY_ANNOTATION = "localcluster.moorage.dev/peak-memory-bytes"  # on a pod, by node agents that measure it
LONG_RUN = timedelta(minutes=10)  # from here on a run without a checkpoint has something to lose
STALE_CHECKPOINT = timedelta(minutes=30)
CLOCK_SKEW = timedelta(minutes=5)  # of a node's clock behind the API server's


class State(StrEnum):
    WAITING = "Waiting"
    RUNNING = "Running"
    RESTARTING = "Restarting"  # disrupted, and the next attempt is due
    SUSPENDED = "Suspended"  # holds nothing until a user resumes it
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    OOM_KILLED = "OOMKilled"
    CANCELLED = "Cancelled"
    DELETED = "Deleted"  # its Jobs are deleted; it is shown from stored facts

    @property
    def ended(self) -> bool:
        return RUN_MOVES.after(self) <= {State.DELETED}


RUN_MOVES = Moves(
    "a run",
    {
        (None, State.WAITING): "moor run",
        (State.WAITING, State.RUNNING): "scheduled and started",
        (State.WAITING, State.RESTARTING): "disrupted before it started",
        (State.WAITING, State.SUSPENDED): "moor suspend",
        (State.WAITING, State.CANCELLED): "moor cancel",
        (State.WAITING, State.FAILED): "its pod is refused, or it ended before it was seen running",
        (State.WAITING, State.SUCCEEDED): "it ended before it was seen running",
        (State.WAITING, State.OOM_KILLED): "it ended before it was seen running",
        (State.WAITING, State.DELETED): "its Jobs are deleted",
        (State.RUNNING, State.WAITING): "Kubernetes makes another pod (--retries)",
        (State.RUNNING, State.RESTARTING): "disrupted, or the turn of another run",
        (State.RUNNING, State.SUSPENDED): "moor suspend, or an IdlePolicy",
        (State.RUNNING, State.CANCELLED): "moor cancel",
        (State.RUNNING, State.SUCCEEDED): "exit code 0",
        (State.RUNNING, State.OOM_KILLED): "killed for memory",
        (State.RUNNING, State.FAILED): "any other end",
        (State.RUNNING, State.DELETED): "its Jobs are deleted",
        (State.RESTARTING, State.WAITING): "next attempt",
        (State.RESTARTING, State.RUNNING): "next attempt",
        (State.RESTARTING, State.SUSPENDED): "moor suspend",
        (State.RESTARTING, State.CANCELLED): "moor cancel",
        (State.RESTARTING, State.FAILED): "restart limit reached",
        (State.RESTARTING, State.SUCCEEDED): "it ended by itself before it was stopped",
        (State.RESTARTING, State.OOM_KILLED): "killed for memory while it was stopped",
        (State.RESTARTING, State.DELETED): "its Jobs are deleted",
        (State.SUSPENDED, State.WAITING): "moor resume",
        (State.SUSPENDED, State.RUNNING): "moor resume",
        (State.SUSPENDED, State.CANCELLED): "moor cancel",
        (State.SUSPENDED, State.FAILED): "it ended by itself before it was stopped",
        (State.SUSPENDED, State.SUCCEEDED): "it ended by itself before it was stopped",
        (State.SUSPENDED, State.DELETED): "its Jobs are deleted",
        (State.SUCCEEDED, State.DELETED): "its Jobs are deleted",
        (State.FAILED, State.DELETED): "its Jobs are deleted",
        (State.OOM_KILLED, State.DELETED): "its Jobs are deleted",
        (State.CANCELLED, State.DELETED): "its Jobs are deleted",
    },
)


class PodView(Struct, frozen=True, kw_only=True):
    """One pod of a run. `exit_code` is None until its container ended, or if it is unknown."""

    name: str
    attempt: int
    phase: str
    node: str = ""
    created: datetime | None = None
    started: datetime | None = None  # when its container began
    ended: datetime | None = None
    exit_code: int | None = None
    reason: str = ""  # OOMKilled, Error, Evicted, DeadlineExceeded, PreemptionByScheduler, …
    message: str = ""
    memory_limit_bytes: int | None = None
    peak_memory_bytes: int | None = None
    deadline: datetime | None = None  # when activeDeadlineSeconds ends it
    disrupted: bool = False
    deleting: bool = False
    uid: str = ""
    gone: bool = False  # its object is deleted: these are stored facts

    def running_time(self, now: datetime) -> timedelta | None:
        """How long its container ran. None: it did not start, or its end is unknown."""
        if self.started is None or (self.ended is None and self.phase != "Running"):
            return None
        return max(timedelta(), (self.ended or now) - self.started)

    @property
    def is_lost(self) -> bool:
        """Whether it ran and is deleted without a reported end: its node was lost, or it was removed by force."""
        return self.gone and self.started is not None and self.exit_code is None


class AttemptView(Yielding, frozen=True, kw_only=True):
    """One attempt (Job) of a run."""

    number: int
    job: str
    state: str  # Waiting, Running, Succeeded, Failed
    reason: str = ""
    message: str = ""
    cause: Cause | None = None  # why it failed; None: it did not
    created: datetime | None = None
    ended: datetime | None = None
    pods: tuple[PodView, ...] = ()  # oldest first
    misses_pods: bool = False  # pods that it made may be deleted


class RunView(Struct, frozen=True, kw_only=True):
    """One run, at one moment."""

    namespace: str
    name: str
    owner: str
    state: State
    gpus: int
    gpu_type: str  # of its node, else the requested one; empty: any, or none
    node: str
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    deadline: datetime | None  # when its running pod is killed; None: no limit, or nothing runs
    restarts: int
    restart_limit: int
    retries: int  # pods that Kubernetes made after a pod of the same attempt failed by itself (--retries)
    checkpoint: str  # claim name; empty: none
    checkpoint_at: datetime | None
    checkpoint_checked_at: datetime | None
    command: str
    requests: Mapping[str, str]
    reason: str  # why it ended or waits, one word or a sentence; empty when there is nothing to say
    exit_code: int | None  # of the newest pod that ended
    attempts: tuple[AttemptView, ...]
    code: Code | None = None
    git: str = ""  # URL@COMMIT that it has checked out; empty: none
    checkpoint_from: str = ""  # the run whose checkpoint it continued at its start; empty: none
    labels: Mapping[str, str] = field(default_factory=dict)  # those of its user
    idle: Record = field(default_factory=Record)  # the record of its idleness; active: it is in use
    time_limit: timedelta | None = None  # of its running time over all attempts; None: no limit

    @property
    def is_retrying(self) -> bool:
        """Whether its newest pod failed by itself, and Kubernetes waits before it creates the next one."""
        newest = next(iter(_present(self.attempts[-1])[-1:]), None)
        return self.state is State.WAITING and newest is not None and newest.phase == "Failed"

    def waited(self, now: datetime) -> timedelta | None:
        """The time from its creation to its first start. None: its creation is unknown."""
        return (
            None if self.created is None else max(timedelta(), (self.started or self.ended or now) - self.created)
        )

    def ran(self, now: datetime) -> timedelta | None:
        """The running time of all its pods. None: none has started, or the end of one is unknown."""
        times = [pod.running_time(now) for pod in self.pods if pod.started]
        return sum((time for time in times if time), timedelta()) if times and None not in times else None

    @property
    def pods(self) -> tuple[PodView, ...]:
        return tuple(pod for attempt in self.attempts for pod in attempt.pods)

    def time_left(self, now: datetime) -> timedelta | None:
        """The time until the time limit, negative after it. None without a limit, or if the run is not running."""
        return None if self.deadline is None else self.deadline - now


def view_runs(
    jobs: Iterable[Obj], pods: Iterable[Obj], *, node_types: Mapping[str, str] | None = None
) -> tuple[RunView, ...]:
    """Every run among the Jobs, newest first. `node_types`: node name → GPU type, if the caller may see it."""
    by_run: dict[tuple[str, str], list[Obj]] = {}
    for job in jobs:
        if name := labels_of(job).get(RUN_LABEL):
            by_run.setdefault((job["metadata"].get("namespace") or "default", name), []).append(job)
    pods_of: dict[tuple[str, str], list[Obj]] = {}
    for pod in pods:
        if name := labels_of(pod).get(RUN_LABEL):
            pods_of.setdefault((pod["metadata"].get("namespace") or "default", name), []).append(pod)
    views = [view_run(attempts, pods_of.get(key, ()), node_types=node_types) for key, attempts in by_run.items()]
    return newest_first(views)


def newest_first(runs: Iterable[RunView]) -> tuple[RunView, ...]:
    """Sort runs for lists: the newest first, then by name."""
    by_name = sorted(runs, key=lambda run: (run.namespace, run.name))
    return tuple(sorted(by_name, key=lambda run: run.created.timestamp() if run.created else 0.0, reverse=True))


def view_run(
    jobs: Sequence[Obj],
    pods: Iterable[Obj],
    *,
    node_types: Mapping[str, str] | None = None,
    kept: Sequence[PodView] = (),
) -> RunView:
    """One run; `jobs` (at least one) are all its attempts. `kept`: stored facts of its pods."""
    # the first Job has the run's notes, the last one its state
    ordered = sorted(jobs, key=attempt_of)
    first, last = ordered[0], ordered[-1]
    pods = list(pods)
    seen = sorted(
        _with_kept([view_pod(pod) for pod in pods], kept),
        key=lambda pod: (pod.attempt, _stamp(pod.created), pod.name),
    )
    attempts = tuple(_view_attempt(job, seen) for job in ordered)
    model = parse_pod(pod_of_job(last))
    notes = annotations_of(first)
    # the reason of an end counts before the states of attempts
    ended_because = notes.get(ENDED_ANNOTATION, "")
    if CANCELLED_ANNOTATION in notes and not ended_because:
        ended_because = CANCELLED
    limit = _number(notes.get(RESTART_LIMIT_ANNOTATION), RESTART_LIMIT)
    state = _state(attempts, ended_because, limit, int(last["spec"].get("backoffLimit", 6)))
    suspension = suspension_of(last)
    if suspension and not state.ended:
        state = State.SUSPENDED
    # the pod that runs, else the newest, says where the run is; an attempt without a pod is nowhere
    live = next((pod for pod in reversed(_present(attempts[-1])) if pod.phase == "Running"), None)
    newest = seen[-1] if seen else None
    place = live or newest
    node = place.node if place and (state.ended or place.attempt == attempts[-1].number) else ""
    done = [pod for pod in seen if pod.exit_code is not None]
    starts = [pod.started for pod in seen if pod.started]
    # the size is that of the Job, except for guests of machines
    template, gpus = last["spec"]["template"], model.gpus
    guests = pods if is_guest(template) else ()  # their size is the machine's, which admission gives to pods
    if guest := next((pod for pod in guests if newest and pod["metadata"]["name"] == newest.name), None):
        template, gpus = guest, parse_pod(guest).gpus
    container = (template["spec"].get("containers") or [{}])[0]
    ended = attempts[-1].ended if state.ended else None
    seconds = _number(notes.get(TIME_LIMIT_ANNOTATION), 0) or first["spec"]["template"]["spec"].get(
        "activeDeadlineSeconds"
    )
    return RunView(
        namespace=first["metadata"].get("namespace") or "default",
        name=labels_of(first).get(RUN_LABEL) or first["metadata"]["name"],
        owner=owner_of(model),
        state=state,
        gpus=gpus,
        gpu_type=_type_of(gpus, node, node_types or {}, wanted_types(model)),
        node=node,
        created=moment(first["metadata"].get("creationTimestamp")),
        started=min(starts) if starts else None,
        ended=ended,
        deadline=live.deadline if live else None,
        restarts=max(0, attempts[-1].number - 1 - turns_of(attempts[:-1])),
        restart_limit=limit,
        retries=sum(_retries(job) for job in ordered),
        checkpoint=notes.get(CHECKPOINT_ANNOTATION, ""),
        checkpoint_from=notes.get(CHECKPOINT_FROM_ANNOTATION, ""),
        checkpoint_at=readable_moment(notes.get(CHECKPOINT_AT_ANNOTATION)),
        checkpoint_checked_at=readable_moment(notes.get(CHECKPOINT_CHECKED_ANNOTATION)),
        command=notes.get(COMMAND_ANNOTATION, ""),
        code=code_of(first),
        git=notes.get(GIT_ANNOTATION, ""),
        requests=_requests(container),
        reason=suspension if state is State.SUSPENDED else _reason(state, attempts[-1], ended_because),
        exit_code=0 if state is State.SUCCEEDED else done[-1].exit_code if done else None,
        attempts=attempts,
        labels=user_labels(labels_of(first)),
        idle=Record() if state.ended else read_record(notes.get(IDLE_ANNOTATION)),
        time_limit=span_of(seconds) if seconds else None,
    )


def suspension_of(job: Mapping[str, Any]) -> str:
    """The user and reason of a Job's suspension, in a sentence; "" if not suspended, or by Kueue."""
    text = annotations_of(job).get(SUSPENDED_ANNOTATION)
    if not text or not job["spec"].get("suspend"):
        return ""
    suspension = read_suspension(text)
    return f"suspended by {suspension.by}" + (f": {suspension.why}" if suspension.why else "")


class Suspension(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user, time and reason of a suspension; stored on the Job."""

    by: str = "somebody"
    at: datetime | None = None
    why: str = ""


def read_suspension(text: str) -> Suspension:
    """Parse the annotation; an empty value if it is unreadable."""
    try:
        return msgspec.json.decode(text, type=Suspension)
    except (msgspec.MsgspecError, ValueError):  # it was written by hand
        return Suspension()


def attempt_of(job: Mapping[str, Any]) -> int:
    """The attempt number of a Job or pod; 1 if it has none."""
    return max(1, _number(labels_of(job).get(ATTEMPT_LABEL), 1))


def checkpoint_warning(run: RunView, now: datetime) -> str:
    """The risk of a long run without fresh checkpoints, in one sentence; empty if there is none."""
    if run.state is not State.RUNNING or run.started is None:
        return ""
    live = next((pod for pod in reversed(run.pods) if pod.phase == "Running" and pod.started), None)
    since = live.started if live and live.started else run.started
    if now - since < LONG_RUN:
        return ""
    if not run.checkpoint:
        return ""
    if run.checkpoint_at is None:
        return (
            f"running for {format_duration(now - since)} and no checkpoint written yet;"
            " a restart would begin from the start"
        )
    age = now - run.checkpoint_at
    if age > STALE_CHECKPOINT:
        return f"the newest checkpoint is {format_duration(age)} old; a restart would lose the work since then"
    return ""


def exit_code_of(run: RunView) -> int:
    """The exit code of `moor run --follow`: the job's own; 1 if it failed and its exit code is unknown."""
    if run.state is State.SUCCEEDED:
        return 0
    last = next((pod for pod in reversed(run.attempts[-1].pods) if pod.exit_code), None)
    return last.exit_code if last and last.exit_code else 1


def _state(attempts: Sequence[AttemptView], ended_because: str, limit: int, retries: int) -> State:
    last = attempts[-1]
    if last.state == "Succeeded":
        return State.SUCCEEDED
    if ended_because.startswith(CANCELLED):
        return State.CANCELLED
    if last.state == "Failed":
        if last.cause is Cause.MEMORY or ended_because.startswith(OUT_OF_MEMORY):
            return State.OOM_KILLED  # the pod that shows it may be deleted
        match last.cause:
            case Cause.DISRUPTED if not ended_because and (
                last.gave_way or last.number - turns_of(attempts) <= limit
            ):
                return State.RESTARTING
            case _:
                return State.FAILED
    newest = next(iter(_present(last)[-1:]), None)
    if newest is not None and newest.disrupted:
        return State.RESTARTING
    if newest is None or newest.phase == "Pending" or (newest.phase == "Failed" and retries):
        return State.WAITING
    return State.RUNNING  # or just over: its Job says so in a moment


def _cause(attempt: AttemptView) -> Cause:
    """The reason why a failed attempt ended, by the same function that the run controller uses."""
    return cause_of(
        AttemptSeen(
            number=attempt.number,
            job=attempt.job,
            uid="",
            state="failed",
            reason=attempt.reason,
            message=attempt.message,
            pods=tuple(
                PodSeen(
                    name=pod.name,
                    uid="",
                    status_reason=pod.reason,
                    disruption=pod.reason if pod.disrupted else None,
                    out_of_memory=pod.reason == "OOMKilled",
                )
                for pod in attempt.pods
            ),
        )
    )


def _reason(state: State, last: AttemptView, ended_because: str) -> str:
    newest = last.pods[-1] if last.pods else None
    present = next(iter(_present(last)[-1:]), None)
    match state:
        case State.SUCCEEDED | State.RUNNING:
            return ""
        case State.CANCELLED:
            return ended_because
        case State.OOM_KILLED:
            return "killed for its memory"
        case State.WAITING | State.RESTARTING:
            if present is not None and present.phase == "Failed" and present.reason == "Error":
                return f"exit code {present.exit_code}"
            return (present.reason if present else "") or last.reason
    if ended_because:
        return ended_because
    if newest is not None and newest.reason and newest.reason != "Error":
        return newest.reason
    if newest is not None and newest.exit_code:
        return f"exit code {newest.exit_code}"
    return last.reason


def _requests(container: Mapping[str, Any]) -> Mapping[str, str]:
    """The requests of a container. A limit counts as a request where none is set, as for the API server."""
    resources = container.get("resources") or {}
    return (resources.get("limits") or {}) | (resources.get("requests") or {})


def _retries(job: Obj) -> int:
    """Pods created beyond the first one. An attempt has one pod at a time; the Job counts deleted ones too."""
    return max(0, _made(job) - 1)


def _view_attempt(job: Obj, pods: Sequence[PodView]) -> AttemptView:
    number = attempt_of(job)
    mine = tuple(pod for pod in pods if pod.attempt == number)
    status = job.get("status") or {}
    state, ended = "Waiting", None
    why: Mapping[str, Any] | None = None
    if was_interrupted(job):
        why = condition(job, "Failed") or {}
        state, ended = "Failed", moment(status.get("completionTime") or why.get("lastTransitionTime"))
        why = {"reason": INTERRUPTED}
    elif is_condition_true(job, "Complete"):
        state, ended = "Succeeded", moment(status.get("completionTime"))
    elif is_condition_true(job, "Failed"):
        why = condition(job, "Failed") or {}
        state, ended = "Failed", moment(why.get("lastTransitionTime"))
    elif is_condition_true(job, "Suspended") or job["spec"].get("suspend"):
        why = condition(job, "Suspended") or {}
        state, ended = "Suspended", moment(why.get("lastTransitionTime"))
    elif any(pod.phase == "Running" and not pod.gone for pod in mine):
        state = "Running"
    reason = str((why or {}).get("reason") or "")
    if state == "Suspended" and (queue := queue_of(job)):
        reason = f"in Kueue's queue {queue}"
    view = AttemptView(
        number=number,
        job=job["metadata"]["name"],
        state=state,
        reason=reason,
        message=str((why or {}).get("message") or ""),
        created=moment(job["metadata"].get("creationTimestamp")),
        ended=ended,
        pods=mine,
        misses_pods=_misses_pods(job, mine),
        yields_to=annotations_of(job).get(YIELDS_TO_ANNOTATION, ""),
        ended_suspended=ended_suspended(job),
    )
    return replace(view, cause=_cause(view)) if state == "Failed" else view


def _made(job: Obj) -> int:
    """The number of pods that a Job counts, deleted ones too."""
    status = job.get("status") or {}
    return sum(int(status.get(count) or 0) for count in ("active", "terminating", "succeeded", "failed"))


def _misses_pods(job: Obj, pods: Sequence[PodView]) -> bool:
    """Whether pods of a Job are missing.

    True if the Job created more pods than exist, ended without a pod, or may have been suspended. A Job does
    not count pods that it deleted for a suspension. Its condition shows the suspension even after the Job was
    resumed.
    """
    is_over = any(is_condition_true(job, kind) for kind in ("Complete", "Failed"))
    is_stopped = is_over or bool((job.get("spec") or {}).get("suspend"))
    was_suspended = condition(job, "Suspended") is not None
    return was_suspended or sum(not pod.gone for pod in pods) < max(_made(job), is_stopped)


def _present(attempt: AttemptView) -> list[PodView]:
    return [pod for pod in attempt.pods if not pod.gone]


def _with_kept(present: list[PodView], kept: Sequence[PodView]) -> list[PodView]:
    """The present pods, with facts that only the store has, and the deleted pods."""
    known = {pod.uid: pod for pod in kept}
    names = {pod.name for pod in present}
    return [
        replace(pod, peak_memory_bytes=higher(pod.peak_memory_bytes, known[pod.uid].peak_memory_bytes))
        if pod.uid in known
        else pod
        for pod in present
    ] + [pod for pod in kept if pod.name not in names]


def higher(peak: int | None, other: int | None) -> int | None:
    """The higher of two measurements; None means not measured."""
    return max((each for each in (peak, other) if each is not None), default=None)


def view_pod(pod: Obj) -> PodView:
    """Convert a pod to the view of a run's pod."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    container = (status.get("containerStatuses") or [{}])[0]
    states = container.get("state") or {}
    ended, waiting = states.get("terminated") or {}, states.get("waiting") or {}
    running = states.get("running") or {}
    disruption = condition(pod, "DisruptionTarget") or {}
    # a pod that had ended before it was evicted, as by a later drain, was not disrupted
    disrupted = disruption.get("status") == "True" and is_interruption(
        exit_code=ended.get("exitCode"), ended=moment(ended.get("finishedAt")), stopped_at=stop_time(pod)
    )
    unscheduled = condition(pod, "PodScheduled") or {}
    created = moment(pod["metadata"].get("creationTimestamp"))
    started = _since(created, ended.get("startedAt") or running.get("startedAt"))
    accepted = _since(created, status.get("startTime"))
    deadline = spec.get("activeDeadlineSeconds")
    limits = ((spec.get("containers") or [{}])[0].get("resources") or {}).get("limits") or {}
    limit = _bytes(limits.get("memory"))
    written_peak, termination_message = split_termination_message(str(ended.get("message") or ""))
    # an agent that measures knows better: where containers share a cgroup, a program sees the use of all
    measured = _bytes(annotations_of(pod).get(PEAK_MEMORY_ANNOTATION))
    peaks = (measured, None if measured else written_peak)
    if ended.get("reason") == "OOMKilled" and not any(peaks):
        peaks = (limit, None)  # it was killed when it wanted more
    # the cause comes first: the disruption of the pod, then the end of its container
    reason = str(
        status.get("reason")
        or (ended.get("reason") if ended.get("reason") == "OOMKilled" else "")
        or (disruption.get("reason") if disrupted else "")
        or ended.get("reason")
        or waiting.get("reason")
        or (unscheduled.get("reason") if unscheduled.get("status") == "False" else "")
        or ""
    )
    message = str(
        status.get("message")
        or (disruption.get("message") if disrupted else "")
        or termination_message
        or waiting.get("message")
        or (unscheduled.get("message") if unscheduled.get("status") == "False" else "")
        or ""
    )
    view = PodView(
        name=pod["metadata"]["name"],
        attempt=attempt_of(pod),
        phase=status.get("phase") or "Pending",
        node=spec.get("nodeName") or "",
        created=created,
        started=started,
        ended=_since(created, ended.get("finishedAt")),
        exit_code=int(ended["exitCode"]) if "exitCode" in ended else None,
        reason="" if reason == "Completed" else reason,
        message=message,
        memory_limit_bytes=limit,
        peak_memory_bytes=max((peak for peak in peaks if peak), default=None),
        deadline=accepted + span_of(int(deadline)) if accepted and deadline else None,
        disrupted=disrupted,
        deleting=is_deleting(pod),
        uid=str(pod["metadata"].get("uid") or ""),
    )
    if view.phase == "Running" and view.started is None:
        return replace(view, started=accepted)
    return view


def _since(created: datetime | None, text: str | None) -> datetime | None:
    """Parse a time in a pod's life. None if it is before the pod's creation.

    A runtime that cannot start a container reports a start in 1970. Small differences are allowed: nodes'
    clocks may be slow.
    """
    when = moment(text)
    return None if when is not None and created is not None and when < created - CLOCK_SKEW else when


def _type_of(gpus: int, node: str, node_types: Mapping[str, str], asked: Sequence[str]) -> str:
    if not gpus:
        return ""
    return node_types.get(node) or ",".join(asked)


def _stamp(when: datetime | None) -> float:
    return when.timestamp() if when else 0.0


def _number(text: str | None, usual: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else usual


def _bytes(text: str | None) -> int | None:
    try:
        return parse_count(text) if text else None
    except QuantityError:
        return None
