"""Decide the number of workers of a map, their Jobs, and the map's end. Pure.

A round is one Job without completions. Kubernetes makes no further pod for such a Job after one of its pods has
succeeded. After failures it does so only with a back-off of the whole Job (10 s, doubled up to minutes),
independent of the number of pods; nor does it limit replacements. So a Job with an ended pod is never scaled up:
it is cut to its active pods, and further workers are a new round with a new Job, made at once and counted.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#parallel-jobs

A worker is *lost* when its pod ended while the map is running, unless it was stopped to scale down. At most
`parallelism` + `restart_limit` workers are made: beyond that each loss leaves one fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from math import ceil

from msgspec import Struct

from moorage.decide.runs.kueue import QueueWait
from moorage.model.mapjob import ACCEPTED, CANCELLED, COMPLETE, FAILED, FINISHED, PAUSED, RUNNING, MapView
from moorage_kube.moments import moment
from moorage_kube.quantity import counted

PROBE = 10  # workers of a map of which none was heard yet; with a preflight one
PROVE = timedelta(seconds=10)  # a function loads after its first lease: workers must not fail for this long
FEW = 3  # pods that fail in the same way with nothing done in between, and it is not their nodes
PULL_PATIENCE = timedelta(seconds=60)  # a registry may stumble
LITTLE = 10  # workers, or a tenth, above the capacity of nodes: pending pods trigger an autoscaler
DOWN = 0.8  # one step down leaves this share; less than a step is left alone
DOWN_EVERY = timedelta(seconds=5)  # the server reports every two seconds
GONE_HOLD = timedelta(seconds=5)  # after workers left in order: the news that all is done may be on its way
LEAVE = timedelta(seconds=30)  # workers of a map that is done leave by themselves; then they are stopped
GRACE_SECONDS = 30  # Kubernetes' own default
QUOTA_AGAIN = timedelta(seconds=30)

OUT_OF_MEMORY, CANNOT_WORK, NO_START, FAULT = "OutOfMemory", "CannotWork", "CannotStart", "WorkerFailed"
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable"})
_NO_START = frozenset(
    {
        "InvalidImageName",
        "ImageNotRunnable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
    }
)
_START_CODES = frozenset({126, 127, 128})


class PodSeen(Struct, frozen=True, kw_only=True):
    """An existing worker pod."""

    name: str
    job: str  # uid of its Job
    created: datetime
    phase: str = "Pending"
    held: bool = False  # by Kueue, because of a quota
    deleting: bool = False
    disrupted: bool = False  # condition DisruptionTarget, and not by its kubelet for lack of memory
    waiting: str = ""  # why its container waits
    reason: str = ""  # of the container's end, or of the pod's
    code: int | None = None
    message: str = ""
    ended: datetime | None = None


class JobSeen(Struct, frozen=True, kw_only=True):
    """One round."""

    round: int
    name: str
    uid: str
    template: str  # hash
    parallelism: int = 0
    active: int = 0
    ready: int = 0
    ended: int = 0  # pods that succeeded or failed
    finished: bool = False
    deleting: bool = False
    failure: str = ""  # why the Job itself failed
    scaled_at: datetime | None = None
    released: int = 0  # workers stopped because fewer were wanted; some of them may not have ended yet

    def released_at(self, parallelism: int) -> int:
        """`released` after scaling down to `parallelism`.

        Existing pods are stopped, missing pods are not created.
        """
        return self.released + max(0, min(self.active, self.parallelism) - parallelism)

    @property
    def may_grow(self) -> bool:
        """Whether Kubernetes creates additional pods of this Job at once."""
        return not (self.ended or self.finished or self.deleting)

    @property
    def committed(self) -> int:
        """The number of workers that the Job has or will have."""
        if self.finished or self.deleting:
            return 0
        return self.parallelism if self.may_grow else min(self.parallelism, self.active)


class Seen(Struct, frozen=True, kw_only=True):
    """One MapJob and all data that was read about it, at one moment. `jobs` are sorted by round."""

    map: MapView
    template: str  # hash of its pods' template
    now: datetime
    jobs: tuple[JobSeen, ...] = ()
    pods: tuple[PodSeen, ...] = ()
    hold: int | None = None  # workers that all nodes together could hold; None: not known
    queue: QueueWait | None = None  # why a held worker waits; None if unknown
    taken_back: int = 0  # workers whose quota Kueue took back, and that status.workers.excused has not yet
    quota: int | None = None  # further workers that the namespace's quotas allow; None: any number
    grace: float = GRACE_SECONDS
    refused: str = ""  # why the API will not have the Job


class Verb(StrEnum):
    MAKE = "make"
    SCALE = "scale"
    DELETE = "delete"


class Step(Struct, frozen=True):
    """MAKE creates round `round` with `parallelism`; SCALE and DELETE change the Job `job`."""

    verb: Verb
    round: int
    parallelism: int = 0
    job: JobSeen | None = None


class Word(Struct, frozen=True, kw_only=True):
    """The new value of a condition."""

    status: bool
    reason: str
    message: str = ""


class Workers(Struct, frozen=True, kw_only=True):
    desired: int = 0
    active: int = 0
    ready: int = 0
    lost: int = 0
    restarts: int = 0
    excused: int = 0
    released: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """Steps in order, then the new counts and conditions."""

    steps: tuple[Step, ...] = ()
    workers: Workers = Workers()
    working: Word = Word(status=False, reason="Waiting")
    complete: Word = Word(status=False, reason="Waiting")
    failed: Word | None = None  # None: it has not, and never had
    look_again_in: timedelta | None = None


def plan(seen: Seen) -> Plan:
    """The steps that scale the workers to the queue; none if nothing is to be changed.

    Safe to stop after any step: the next plan finishes the work.
    """
    return _Pass(seen).decide()


class _Pass:
    def __init__(self, seen: Seen) -> None:
        self.seen, self.map = seen, seen.map
        self.items, self.state = seen.map.status.items, seen.map.status.state
        self.waits: list[timedelta] = []
        self.ended = sum(job.ended for job in seen.jobs)
        before = seen.map.status.workers
        self.released = sum(min(job.released, job.ended) for job in seen.jobs)
        fresh = max(0, self.released - before.released) + seen.taken_back  # not yet counted in a status
        self.excused = min(before.excused + fresh, self.ended)
        self.active = sum(job.active for job in seen.jobs)
        self.held = min(self.active, sum(pod.held and not pod.deleting for pod in seen.pods))
        if self.state != RUNNING:
            self.excused = self.ended  # a worker that leaves an ended or paused map is not lost
        self.lost = self.ended - self.excused

    def decide(self) -> Plan:
        failed = self._failed()
        wanted, working = self._wanted(failed)
        steps = [] if self._is_leaving() else self._steps(wanted, stop=failed is not None and failed.status)
        if not steps:
            steps = self._clean_up()
        kept = {step.job.name: step.parallelism for step in steps if step.job is not None}
        desired = sum(kept.get(job.name, job.committed) for job in self.seen.jobs)
        desired += sum(step.parallelism for step in steps if step.verb is Verb.MAKE)
        workers = Workers(
            desired=desired,
            active=self.active,
            ready=sum(job.ready for job in self.seen.jobs),
            lost=self.lost,
            restarts=min(self.lost, self.map.restart_limit),
            excused=self.excused,
            released=self.released,
        )
        return Plan(
            steps=tuple(steps),
            workers=workers,
            working=working,
            complete=self._complete(),
            failed=failed,
            look_again_in=min((wait for wait in self.waits if wait > timedelta(0)), default=None),
        )

    # --- how many

    def _finished_text(self) -> str:
        """The message for a finished map, with the number of failed items."""
        dead = self.items.dead
        return f"every item has ended; {counted(dead, 'item')} failed" if dead else "every item is done"

    def _wanted(self, failed: Word | None) -> tuple[int, Word]:
        if failed is not None and failed.status:
            return 0, Word(status=False, reason=failed.reason, message="stopped; see the condition Failed")
        if self.map.deleting:
            return 0, Word(status=False, reason="Deleted")
        if not self.map.is_true(ACCEPTED) or not self.state:
            return 0, Word(
                status=False, reason="NotAccepted", message="the server has not put it into the queue (yet)"
            )
        if self.state == FINISHED:
            return 0, Word(status=False, reason="Finished", message=self._finished_text())
        if self.state == CANCELLED:
            return 0, Word(status=False, reason="Cancelled")
        if self.state == PAUSED:  # items that have begun may end; further ones are not leased
            left = sum(job.ready for job in self.seen.jobs) if self.items.leased else 0
            return min(left, self._committed()), Word(status=False, reason="Paused")
        usable = self.items.ready + self.items.waiting + self.items.leased
        useful = usable if self.items.at_once is None else min(usable, max(1, self.items.at_once))
        needed = ceil(useful / self.map.slots)
        if not usable:
            needed = min(1, self.items.total)  # one worker waits for further items
        return self._bounded(needed)

    def _bounded(self, needed: int) -> tuple[int, Word]:
        """Limit the workers by parallelism, restart limit, probing, quota, queue and nodes.

        Returns the number and why.
        """
        bounds = {
            "Working": needed,
            "Parallelism": self.map.spec.parallelism,
            "RestartLimit": self.map.spec.parallelism - max(0, self.lost - self.map.restart_limit),
        }
        if not self._proved():
            bounds["Probing"] = 1 if self.map.spec.preflight is not None else PROBE
        have = self._committed()
        if self.seen.hold is not None:
            bounds["Nodes"] = max(have, self.seen.hold + max(LITTLE, self.seen.hold // 10))
        if self.held or self.map.local_queue:
            # twice as many at a time while Kueue admits all; then a few, that it sees more are wanted
            admitted = self.active - self.held
            more = admitted // 10 if self.held else admitted
            bounds["Queue"] = max(have, admitted + max(LITTLE, more))
        if self.held:
            self.waits.append(QUOTA_AGAIN)
        if self.seen.quota is not None and needed > have:
            # a quota counts existing pods, not those that a Job still has to make
            bounds["Quota"] = max(have, self.active + max(0, self.seen.quota))
            self.waits.append(QUOTA_AGAIN)
        wanted = max(0, min(bounds.values()))
        binding = next(name for name, bound in bounds.items() if max(0, bound) == wanted)
        message = {
            "Working": "as many workers as the items can use",
            "Parallelism": "as many workers as parallelism allows",
            "RestartLimit": f"{self.lost:,} workers were lost; no more than {self.map.restart_limit} are replaced",
            "Probing": "the first workers try; the others come when one has taken an item",
            "Nodes": "as many workers as the nodes could hold, and a few",
            "Quota": "a quota of the namespace allows no more",
            "Queue": "twice as many workers as Kueue has admitted",
        }[binding]
        if not self.items.total:
            return 0, Word(status=False, reason="NoItems", message="the map has no items yet")
        if not (self.items.ready + self.items.waiting + self.items.leased) and self.items.large:
            message = f"{self.items.large} items need more memory than these workers have"
            return wanted, Word(status=wanted > 0, reason="NeedsMemory", message=message)
        if self.held and wanted:
            return wanted, Word(status=self.held < self.active, reason="Queue", message=self._in_queue())
        return wanted, Word(status=wanted > 0, reason=binding, message=message)

    def _in_queue(self) -> str:
        wait = self.seen.queue
        queue = f"Kueue's queue {wait.queue}" if wait is not None else "a queue of Kueue"
        why = f": {wait.message}" if wait is not None and wait.message else ""
        return f"{self.held} of {counted(self.active, 'worker')} wait in {queue}{why}"

    def _proved(self) -> bool:
        """Whether a worker of the map has been proved to work."""
        if self.items.done + self.items.dead or self.map.status.queue.progress_at:
            return True
        heard = moment(self.map.status.queue.heard_at)
        if heard is None:
            return False
        if self.map.spec.function is None:
            return True
        left = heard + PROVE - self.seen.now
        self.waits.append(left)
        return left <= timedelta(0)

    def _committed(self) -> int:
        return sum(job.committed for job in self.seen.jobs if job.template == self.seen.template)

    def _is_leaving(self) -> bool:
        if self.state != FINISHED or self.map.deleting or not any(job.active for job in self.seen.jobs):
            return False
        left = (self.map.since(COMPLETE) or self.seen.now) + LEAVE - self.seen.now
        if not self.map.is_true(COMPLETE):
            left = LEAVE
        self.waits.append(left)
        return left > timedelta(0)

    # --- by which Jobs

    def _steps(self, wanted: int, *, stop: bool) -> list[Step]:
        seen, steps = self.seen, []
        goals = {job.round: job.committed for job in seen.jobs}
        current = [job for job in seen.jobs if job.template == seen.template]
        for job in seen.jobs:
            if job.template != seen.template:
                goals[job.round] = 0  # the template of its pods has changed
        have = sum(goals[job.round] for job in current)
        made: Step | None = None
        if wanted > have:
            made = self._grow(current, goals, wanted - have)
        elif wanted < have:
            at_once = stop or not wanted
            if not at_once and have > self.map.spec.parallelism:  # its owner wants fewer: no guess of ours
                wanted, at_once = self.map.spec.parallelism, True
            self._shrink(current, goals, have, wanted, at_once=at_once)
        for job in seen.jobs:
            if not job.finished and not job.deleting and goals[job.round] != job.parallelism:
                steps.append(Step(Verb.SCALE, job.round, goals[job.round], job))
        return steps + ([made] if made is not None else [])

    def _grow(self, current: Sequence[JobSeen], goals: dict[int, int], more: int) -> Step | None:
        left = [
            pod.ended for pod in self.seen.pods if pod.phase == "Succeeded" and not pod.disrupted and pod.ended
        ]
        if left and (wait := max(left) + GONE_HOLD - self.seen.now) > timedelta(0):
            self.waits.append(wait)
            return None
        latest = current[-1] if current else None
        if latest is not None and latest.may_grow and latest is self.seen.jobs[-1]:
            goals[latest.round] += more
            return None
        rounds = [job.round for job in self.seen.jobs]
        return Step(Verb.MAKE, max(rounds, default=0) + 1, more)

    def _news_may_come(self) -> bool:
        """Whether a worker has just ended normally: the server may be about to report that the map is done."""
        left = [
            pod.ended for pod in self.seen.pods if pod.phase == "Succeeded" and not pod.disrupted and pod.ended
        ]
        if left and (wait := max(left) + GONE_HOLD - self.seen.now) > timedelta(0):
            self.waits.append(wait)
            return True
        return False

    def _shrink(
        self, current: Sequence[JobSeen], goals: dict[int, int], have: int, wanted: int, *, at_once: bool
    ) -> None:
        """Scale down.

        The Job controller deletes pods that do not run first; its choice among the others is undefined.

        A worker with an item ends the item within its grace period, if that is long enough. If it may be too
        short, only pods that do not run are removed.
        """
        if not at_once:
            if wanted > DOWN * have:
                return
            last = max((job.scaled_at for job in current if job.scaled_at is not None), default=None)
            if last is not None and (wait := last + DOWN_EVERY - self.seen.now) > timedelta(0):
                self.waits.append(wait)
                return
            wanted = max(wanted, min(have - 1, ceil(DOWN * have)))
            if not self._short():
                wanted = max(wanted, min(have, sum(job.ready for job in current)))
            self.waits.append(DOWN_EVERY)
        surplus = have - wanted
        for idle_only in (True, False):
            for job in reversed(current):
                spare = max(0, goals[job.round] - job.ready) if idle_only else goals[job.round]
                taken = min(surplus, spare)
                goals[job.round] -= taken
                surplus -= taken

    def _short(self) -> bool:
        mean = self.items.mean_seconds
        return mean is not None and 2 * mean <= self.seen.grace

    # --- how it ends

    def _complete(self) -> Word:
        if self.state != FINISHED:
            return Word(status=False, reason="Cancelled" if self.state == CANCELLED else "Unfinished")
        message = f"{counted(self.items.done, 'item')} done, {self.items.dead:,} failed"
        return Word(status=True, reason="ItemsFailed" if self.items.dead else "Finished", message=message)

    def _failed(self) -> Word | None:
        before = self.map.condition(FAILED)
        stands = before is not None and before.status == "True"
        if self.state == FINISHED or (
            stands and before is not None and before.observed_generation == self.map.generation
        ):
            return None if before is None else Word(status=stands, reason=before.reason, message=before.message)
        if self.seen.refused:
            return Word(status=True, reason="Refused", message=self.seen.refused)
        trouble = None if stands else self._trouble()
        if trouble is not None:
            return trouble
        return None if before is None else Word(status=False, reason="Again", message="the MapJob was changed")

    def _trouble(self) -> Word | None:
        """A failure that repeats without any progress, so that more workers would not help."""
        progress = moment(self.map.status.queue.progress_at)
        since = max((moment for moment in (progress, self.map.since(FAILED)) if moment is not None), default=None)
        mine = {job.uid for job in self.seen.jobs if job.template == self.seen.template}
        pods = [pod for pod in self.seen.pods if pod.job in mine]
        by_cause: dict[str, list[PodSeen]] = {}
        for pod in pods:
            fresh = since is None or pod.ended is None or pod.ended > since
            if pod.phase == "Failed" and not pod.disrupted and fresh and (cause := cause_of(pod)):
                by_cause.setdefault(cause, []).append(pod)
        for cause, failed in by_cause.items():
            if len(failed) >= FEW:
                last = max(failed, key=lambda pod: (pod.ended or pod.created, pod.name))
                return Word(status=True, reason=cause, message=_advice(cause, last, len(failed)))
        if not self.map.status.queue.heard_at:
            waiting = [pod for pod in pods if pod.phase == "Pending" and self._will_not_start(pod)]
            if waiting and len(waiting) >= min(FEW, sum(job.committed for job in self.seen.jobs) or 1):
                return Word(status=True, reason=NO_START, message=_advice(NO_START, waiting[0], len(waiting)))
        allowed = self.map.spec.parallelism + self.map.restart_limit
        if self.state == RUNNING and self.lost >= allowed and not self._news_may_come():
            limit = self.map.restart_limit
            message = f"{self.lost} workers were lost and {limit} replaced, the limit (spec.restartLimit)"
            return Word(status=True, reason="RestartLimit", message=message)
        return None

    def _will_not_start(self, pod: PodSeen) -> bool:
        if pod.waiting in _NO_START:
            patience = GONE_HOLD
        elif pod.waiting in _PULL:
            patience = PULL_PATIENCE
        else:
            return False
        left = pod.created + patience - self.seen.now
        self.waits.append(left)
        return left <= timedelta(0)

    # --- afterwards

    def _clean_up(self) -> list[Step]:
        """Delete worker Jobs, and with them their pods, some time after the end; then counting starts again."""
        over = self.state == FINISHED and self.map.is_true(COMPLETE)
        over = over or (self.state == CANCELLED and any(not job.active for job in self.seen.jobs))
        since = self.map.since(COMPLETE if self.state == FINISHED else "Working")
        if not over or since is None or any(job.active for job in self.seen.jobs):
            return []
        left = since + timedelta(seconds=self.map.kept_seconds) - self.seen.now
        if left > timedelta(0):
            self.waits.append(left)
            return []
        return [Step(Verb.DELETE, job.round, 0, job) for job in self.seen.jobs if not job.deleting]


def cause_of(pod: PodSeen) -> str:
    """The reason why a worker's end is not its node's fault; "" if it may be."""
    if pod.reason in ("OOMKilled", "Evicted"):
        return OUT_OF_MEMORY
    if pod.code == 3:
        return CANNOT_WORK
    if pod.reason in ("StartError", "ContainerCannotRun") or pod.code in _START_CODES:
        return NO_START
    return FAULT if pod.code == 1 else ""


def _advice(cause: str, pod: PodSeen, count: int) -> str:
    what = (pod.message or pod.waiting or pod.reason or f"exit code {pod.code}").strip()[-1000:]
    todo = {
        OUT_OF_MEMORY: "raise the memory limit in spec.template, or lower spec.slots",
        CANNOT_WORK: "mend it and change the MapJob, or make it again",
        NO_START: "check the image's name, its pull secret, and that it has python3 in PATH",
        FAULT: "this is a fault of Moorage's worker: report it with the pod's log",
    }[cause]
    return f"{count} workers in a row, {pod.name} the last: {what}. To fix it: {todo}"
