"""Whether a run is started again after its last attempt ended, and the notes on its Jobs for that.

A run is one Job per attempt. Kubernetes fails an attempt's Job with reason PodFailurePolicy as soon as a pod of it
is disrupted; the next attempt is then a new Job with a computed name. Everything that a later decision needs is in
annotations of the Jobs, so the operator may be killed between any two steps.

- Started again: preempted, drained (eviction API), removed by a taint, collected with its node, stopped because
  the node shuts down, deleted; with any exit code, by the rule of `moorage.decide.interruptions`. Restarts are
  counted apart from failures: attempt n has n - 1 restarts behind it.
- Started again after its turn: an attempt that gave its place to another run (`YIELDS_TO_ANNOTATION`), once that
  run has a place or waits no more. It does not count as a restart.
- Started again when it is resumed: an attempt whose program was interrupted by a suspension. It does not count as
  a restart. A Job that Kueue suspended returns to its queue at once.
- Never started again: ended by its own exit code, killed for its memory, evicted by its kubelet (the next node
  would be short of memory too), cancelled, out of time, or past its limit of restarts.

Running time is counted from the start of an attempt's first pod to the end of its last, back-off between retries
included, rounded up to whole seconds. An attempt that was never seen running counts as zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from math import ceil
from typing import Literal

from msgspec import Struct, field

from moorage.decide.interruptions import STOPPED

LOST_AFTER = timedelta(minutes=5)  # Kubernetes' own patience with an unreachable node (tolerationSeconds: 300)
TURN_PATIENCE = timedelta(minutes=10)  # for the run that a place was given to; then it is taken again
TURN_LOOK = timedelta(seconds=5)  # between two looks whether that run has started
EVICTED = "Evicted"  # status.reason of a pod that its kubelet evicted for memory, disk or process ids

# https://github.com/kubernetes/kubernetes/blob/v1.36.0/pkg/controller/job/pod_failure_policy.go
_BY_CONDITION = re.compile(r"Pod (?P<namespace>[^/\s]+)/(?P<pod>\S+) has condition (?P<condition>\S+) matching")
_BY_EXIT_CODE = re.compile(r"failed with exit code (?P<code>\d+) matching")
INTERRUPTED = "Interrupted"  # reason of an attempt with a Job that ended after its pod was asked to stop
DEADLINE = "DeadlineExceeded"  # status.reason of a pod that was stopped after its time
_KILLED = 137  # 128 + SIGKILL; the rule that names it stands for "killed for its memory"


class Cause(Enum):
    """The reason why the Job of an attempt failed."""

    DISRUPTED = "disrupted"
    MEMORY = "killed for its own memory"
    EVICTED = "evicted by its node for memory or disk"
    FAILED = "failed by itself"


class PodSeen(Struct, frozen=True, kw_only=True):
    """An existing pod of an attempt."""

    name: str
    uid: str
    node: str = ""
    phase: str = "Pending"
    status_reason: str = ""  # status.reason, such as Evicted or DeadlineExceeded
    disruption: str | None = None  # reason of the condition DisruptionTarget when it is True
    disrupted_at: datetime | None = None
    out_of_memory: bool = False  # a container ended as OOMKilled
    started: datetime | None = None  # status.startTime: accepted by its node
    ended: datetime | None = None  # when its last container ended
    deleting_since: datetime | None = None  # deletionTimestamp: the end of its grace period
    forced: bool = False  # it was deleted without grace already

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class Yielding(Struct, frozen=True, kw_only=True):
    """Whether an attempt ended without a disruption because it yielded its place."""

    yields_to: str = ""  # NAMESPACE/RUN that its place is given to; empty: it keeps it
    ended_suspended: bool = False

    @property
    def gave_way(self) -> bool:
        """Whether the attempt ended by a suspension or yielded to another run.

        The next attempt does not count as a restart.
        """
        return bool(self.yields_to) or self.ended_suspended


class AttemptSeen(Yielding, frozen=True, kw_only=True):
    """One attempt: a Job of the run."""

    number: int
    job: str
    uid: str
    state: Literal["active", "succeeded", "failed"] = "active"
    reason: str = ""  # of the Job's condition Failed
    message: str = ""
    ended: datetime | None = None
    deleting: bool = False
    suspended: bool = False
    backoff_limit: int = 0
    failed_pods: int = 0  # status.failed: own failures and the disrupted pods
    parallelism: int = 1
    running_since: datetime | None = None  # as written down
    used_seconds: int | None = None  # as written down
    is_queued: bool = False  # Kueue suspends and resumes it, and a user has not suspended it
    stopped_at: datetime | None = None  # when its pod was asked to stop, where no runner sees that
    is_noted: bool = False  # the stop request is recorded
    pods: tuple[PodSeen, ...] = ()


class Observed(Struct, frozen=True, kw_only=True):
    """One run and all data that was read about it, at one moment. `attempts` are sorted by number."""

    run: str
    attempts: tuple[AttemptSeen, ...]
    now: datetime
    restart_limit: int
    time_limit_seconds: int | None = None
    ended: str | None = None  # the value of ENDED_ANNOTATION
    cancelled: bool = False
    made: int = 1  # the value of ATTEMPTS_ANNOTATION
    lost_nodes: Mapping[str, datetime | None] = field(default_factory=dict)  # unreachable since; None: deleted
    lost_after: timedelta = LOST_AFTER
    turn_over: bool = True  # the run that the last attempt gave its place to has one, or waits no more

    @property
    def by_user(self) -> bool:
        """Whether the user cancelled the run."""
        return self.cancelled or (self.ended or "").startswith("Cancelled")


class NoteRunning(Struct, frozen=True):
    """Record the start of the attempt on its Job."""

    attempt: AttemptSeen
    since: datetime


class NoteUsed(Struct, frozen=True):
    """Record the run time of the attempt on its Job."""

    attempt: AttemptSeen
    seconds: int


class NoteStopped(Struct, frozen=True):
    """Record on the attempt's Job the time when its pod was asked to stop: the pod is deleted when the Job has
    ended.
    """

    attempt: AttemptSeen
    stopped_at: datetime


class StartAttempt(Struct, frozen=True):
    """Create the Job of attempt `number`. `deadline_seconds`: the rest of the run's time; None: no limit."""

    number: int
    backoff_limit: int
    deadline_seconds: int | None
    cause: str


class NoteMade(Struct, frozen=True):
    """Record on the first attempt's Job that attempt `number` was created: if missing later, it was deleted."""

    number: int


class End(Struct, frozen=True):
    """Record on the first attempt's Job why the run is not started again.

    `reason`: OutOfMemory, Evicted, RestartLimit, TimeLimit, Deleted or CannotRestart.
    """

    reason: str
    message: str


class Suspend(Struct, frozen=True):
    """Stop an attempt that was created while its run was being cancelled."""

    attempt: AttemptSeen


class FailPod(Struct, frozen=True):
    """Mark the pod as failed, as pod garbage collection does, because its node cannot report it."""

    pod: PodSeen


class RemovePod(Struct, frozen=True):
    """Delete the pod without waiting for its node."""

    pod: PodSeen


class GivePlace(Struct, frozen=True):
    """End the pod with its grace period, as a disruption: another run gets its place."""

    pod: PodSeen
    to: str


Action = (
    NoteRunning
    | NoteUsed
    | NoteStopped
    | StartAttempt
    | NoteMade
    | End
    | Suspend
    | FailPod
    | RemovePod
    | GivePlace
)


class Plan(Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None  # None: wait for the next change


def plan(seen: Observed) -> Plan:
    """Return the steps that bring the run closer to its end.

    Safe to stop after any step: planning again on the reached state finishes the work. Planning on a settled run
    returns no steps. Actions are in the order in which they must be done.
    """
    released, again = _release(seen)
    actions: list[Action] = list(released)
    if seen.attempts and seen.attempts[0].number == 1 and not seen.attempts[0].deleting:
        actions += _advance(seen)
        if _waits_for_turn(seen, seen.attempts[-1]):
            again = min(again or TURN_LOOK, TURN_LOOK)
    return Plan(tuple(actions), again)


def turns_of(attempts: Iterable[Yielding]) -> int:
    """The number of attempts that ended by a suspension or because they yielded to another run."""
    return sum(attempt.gave_way for attempt in attempts)


def _waits_for_turn(seen: Observed, last: AttemptSeen) -> bool:
    """Whether the next attempt must wait, so that the run that got the place can start."""
    if not last.yields_to or last.state != "failed" or seen.ended is not None or seen.cancelled or seen.turn_over:
        return False
    return last.ended is None or seen.now - last.ended < TURN_PATIENCE


def cause_of(attempt: AttemptSeen) -> Cause:
    """Why a failed attempt ended, from its Job first: disrupted pods are often deleted by then."""
    match = _BY_CONDITION.search(attempt.message) if attempt.reason == "PodFailurePolicy" else None
    if match is not None and match["condition"] == "DisruptionTarget":
        # only the pod that ended the Job counts: an earlier one may have been killed for memory and retried
        judged = [pod for pod in attempt.pods if pod.name == match["pod"]]
        return _own_fault(judged) or Cause.DISRUPTED
    if fault := _own_fault(attempt.pods):
        return fault
    if attempt.reason == INTERRUPTED:
        return Cause.DISRUPTED
    if attempt.reason == "PodFailurePolicy":
        code = _BY_EXIT_CODE.search(attempt.message)
        if code is not None and int(code["code"]) == _KILLED:
            return Cause.MEMORY
        if code is not None and int(code["code"]) == STOPPED:
            by_time = any(pod.status_reason == DEADLINE for pod in attempt.pods)
            return Cause.FAILED if by_time else Cause.DISRUPTED
        if code is None and match is None and any(pod.disruption for pod in attempt.pods):
            return Cause.DISRUPTED  # a Job controller that words its message in another way
    return Cause.FAILED


def used_seconds(attempt: AttemptSeen) -> int:
    """The best known run time of the attempt in seconds; see the module's docstring."""
    if attempt.used_seconds is not None:
        return attempt.used_seconds
    starts = [pod.started for pod in attempt.pods if pod.started is not None]
    since = attempt.running_since or min(starts, default=None)
    if since is None:
        return 0
    ends = [when for pod in attempt.pods if (when := pod.ended or pod.disrupted_at) is not None]
    until = max(ends, default=None) or attempt.ended
    return max(0, ceil((until - since).total_seconds())) if until is not None else 0


def _own_fault(pods: Iterable[PodSeen]) -> Cause | None:
    if any(pod.out_of_memory for pod in pods):
        return Cause.MEMORY
    return Cause.EVICTED if any(pod.status_reason == EVICTED for pod in pods) else None


def _advance(seen: Observed) -> list[Action]:
    last = seen.attempts[-1]
    actions: list[Action] = []
    if seen.time_limit_seconds is not None and last.state == "active" and last.running_since is None:
        starts = [pod.started for pod in last.pods if pod.started is not None]
        if starts:
            actions.append(NoteRunning(last, min(starts)))
    if last.stopped_at is not None and not last.is_noted and not last.suspended and not last.deleting:
        actions.append(NoteStopped(last, last.stopped_at))
    if last.number > seen.made:
        actions.append(NoteMade(last.number))
    if seen.ended is not None or seen.cancelled:
        is_live = last.state == "active" and not last.suspended and not last.deleting
        if seen.by_user and last.number > 1 and is_live:
            actions.append(Suspend(last))
        return actions
    if last.yields_to and last.state == "active" and not last.deleting:
        actions += [
            GivePlace(pod, last.yields_to)
            for pod in last.pods
            if not pod.finished and (pod.deleting_since is None or pod.disruption is None)
        ]
    if last.state != "failed" or last.deleting or _waits_for_turn(seen, last):
        return actions
    if last.suspended and not last.is_queued and cause_of(last) is Cause.DISRUPTED:
        return actions  # the next attempt starts when the run is resumed
    return actions + _after_failure(seen, last)


def _after_failure(seen: Observed, last: AttemptSeen) -> list[Action]:
    if last.number < seen.made:
        return [End("Deleted", f"attempt {seen.made} was deleted, so the run is over")]
    match cause_of(last):
        case Cause.FAILED:
            return []
        case Cause.MEMORY:
            return [End("OutOfMemory", "killed for its own memory; such a run is not started again")]
        case Cause.EVICTED:
            return [End("Evicted", _evicted(last))]
        case Cause.DISRUPTED:
            return _restart(seen, last)


def _restart(seen: Observed, last: AttemptSeen) -> list[Action]:
    if last.number - turns_of(seen.attempts) > seen.restart_limit and not last.gave_way:
        times = f"{seen.restart_limit} time{'' if seen.restart_limit == 1 else 's'}"
        return [End("RestartLimit", f"disrupted again after being started again {times}, its limit")]
    used = used_seconds(last)
    actions: list[Action] = [] if last.used_seconds is not None else [NoteUsed(last, used)]
    left = None
    if seen.time_limit_seconds is not None:
        spent = used + sum(used_seconds(attempt) for attempt in seen.attempts[:-1])
        left = seen.time_limit_seconds - spent
        if left <= 0:
            message = f"disrupted after {spent} s of the {seen.time_limit_seconds} s it may run"
            return [*actions, End("TimeLimit", message)]
    # with FailJob the other pods of the Job are stopped and counted too, so up to `parallelism` are not its fault
    own_failures = max(0, last.failed_pods - last.parallelism)
    number = last.number + 1
    start = StartAttempt(number, max(0, last.backoff_limit - own_failures), left, _disruption(last))
    return [*actions, start, NoteMade(number)]


def _disruption(last: AttemptSeen) -> str:
    if last.yields_to:
        return f"the turn of {last.yields_to}"
    if last.ended_suspended:
        return "a suspension"
    reasons = sorted({pod.disruption for pod in last.pods if pod.disruption})
    return ", ".join(reasons) or "a disruption"


def _evicted(last: AttemptSeen) -> str:
    nodes = sorted({pod.node for pod in last.pods if pod.status_reason == EVICTED and pod.node})
    where = f" ({', '.join(nodes)})" if nodes else ""
    return f"evicted by its node{where} for memory or disk; such a run is not started again"


def _release(seen: Observed) -> tuple[list[Action], timedelta | None]:
    """Delete pods by force that are being deleted on nodes that do not answer.

    It is unknown whether the process has ended there: a node that lost only its network may still run it, and
    write to the same volume as the next attempt. This risk is taken after `lost_after`, so that the run can
    continue.
    """
    actions: list[Action] = []
    waits: list[timedelta] = []
    for pod in (pod for attempt in seen.attempts for pod in attempt.pods):
        if pod.deleting_since is None or pod.node not in seen.lost_nodes:
            continue
        lost_since = seen.lost_nodes[pod.node] or pod.deleting_since
        wait = max(pod.deleting_since, lost_since) + seen.lost_after - seen.now
        if wait > timedelta(0):
            waits.append(wait)
            continue
        if not pod.finished:
            actions.append(FailPod(pod))
        if not pod.forced:
            actions.append(RemovePod(pod))
    return actions, min(waits, default=None)
