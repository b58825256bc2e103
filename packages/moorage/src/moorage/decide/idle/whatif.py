"""Simulate a policy on the past: the same decisions over stored readings, step by step.

Only readings of GPU and CPU are stored. Kernels, browsers, snoozes and checkpoints of the past are unknown: they
would have prevented some suspensions, so the reclaimed hours are an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from moorage.decide.idle.evidence import Facts, Idle, Verdict, Window, judge
from moorage.decide.idle.plan import Act, Observed, Work, after_notice, plan
from moorage.decide.idle.readings import HeldPod
from moorage.decide.idle.spans import HOUR, Span, Use
from moorage.decide.idle.states import Record, State
from moorage.decide.usage.intervals import Interval
from moorage.model.idle import MAP, RUN, WORKFLOW, WORKSPACE, Policy


class Past(Struct, frozen=True, kw_only=True):
    """A piece of past work with GPUs, its pods, and the policy to simulate for it."""

    work: Work
    pods: tuple[HeldPod, ...]
    policy: Policy


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of the simulation for one piece of work. Hours are GPU-hours."""

    work: Work
    held_hours: float
    measured_hours: float
    idle_hours: float
    warned_at: datetime | None
    suspended_at: datetime | None
    reclaimed_hours: float
    why: str


def group_of(interval: Interval) -> tuple[str, str, str] | None:
    """The kind, namespace and name of the work that a pod belonged to. None if it belonged to none."""
    kind, _, name = interval.part_of.partition("/")
    if kind in (MAP, WORKSPACE) and name:
        return kind, interval.namespace, name
    if interval.workflow:
        return WORKFLOW, interval.namespace, interval.workflow
    return (RUN, interval.namespace, interval.run) if interval.run else None


def pasts_of(
    intervals: Iterable[Interval], policy_of: Mapping[tuple[str, str], Policy], *, now: datetime
) -> list[Past]:
    """All past work with GPUs that a policy applies to. `policy_of`: the policy by kind of work and namespace."""
    groups: dict[tuple[str, str, str], list[Interval]] = {}
    for interval in intervals:
        if interval.gpus and (key := group_of(interval)) is not None:
            groups.setdefault(key, []).append(interval)
    pasts = []
    for (kind, namespace, name), mine in sorted(groups.items()):
        policy = policy_of.get((kind, namespace))
        if policy is None or kind not in policy.work:
            continue
        work = Work(
            kind=kind, namespace=namespace, name=name, uid=mine[0].pod_uid, owner=mine[-1].owner,
            gpus=max(each.gpus for each in mine), started=min(each.started_at for each in mine), checkpoint_at=now,
        )  # fmt: skip
        pods = tuple(
            HeldPod(uid=each.pod_uid, gpus=each.gpus, started=each.started_at, ended=each.ended_at)
            for each in mine
        )
        pasts.append(Past(work=work, pods=pods, policy=policy))
    return pasts


def outcome_of(past: Past, spans: Iterable[Span], *, since: datetime, now: datetime) -> Outcome:
    """Simulate the policy. `spans`: all that is known from `since` to `now`, in any order."""
    replay = _Replay(past)
    for span in sorted(spans, key=lambda span: span.start):
        if not replay.go_on(span):
            break
    held = sum(
        (max(timedelta(), min(pod.ended or now, now) - max(pod.started, since)) * pod.gpus for pod in past.pods),
        timedelta(),
    )
    # windows are counted as a whole, and a pod can start or end within one
    return Outcome(
        work=past.work,
        held_hours=held / HOUR,
        measured_hours=min(replay.measured, held) / HOUR,
        idle_hours=min(replay.idle, held) / HOUR,
        warned_at=replay.warned,
        suspended_at=replay.suspended,
        reclaimed_hours=min(replay.reclaimed, held) / HOUR,
        why=replay.why,
    )


class _Replay:
    """Simulates the policy step by step. It skips windows in which nothing can change."""

    def __init__(self, past: Past) -> None:
        self._past = past
        self._record = Record()
        self._since: datetime | None = None  # the beginning of the unbroken idle time up to `_until`
        self._until: datetime | None = None
        self._last: tuple[Span, int, datetime] | None = None  # the last idle window, and since when it was idle
        self.measured = self.idle = self.reclaimed = timedelta()
        self.warned: datetime | None = None
        self.suspended: datetime | None = None

    def go_on(self, span: Span) -> bool:
        """Add a span; False at the end of the simulation, which is the first use after the suspension."""
        if span.use is not Use.IDLE:
            self._record, self._since = Record(), None
        if span.use is Use.UNSEEN:
            return True
        if span.use is Use.USED and self.suspended is not None:
            return False  # a user would have resumed it
        held = span.measured if span.measured is not None else span.held(self._past.pods)
        self.measured += held
        if span.use is Use.IDLE:
            self.idle += held
            self.reclaimed += self._reclaimed(span, held)
        return True

    @property
    def why(self) -> str:
        """The reason why the work was last idle before its suspension; "" if it was never idle."""
        verdict = self._verdict(*self._last) if self._last is not None else None
        return verdict.why if isinstance(verdict, Idle) else ""

    def _reclaimed(self, span: Span, held: timedelta) -> timedelta:
        """Advance by an idle span; return the part of it that the policy would have reclaimed."""
        if self.suspended is not None:
            return held
        if self._since is None or self._until != span.start:  # it begins, or there is a gap in the measurements
            self._since = span.start
            if self._record.warned_at is not None:
                self._record = Record()
        self._until = span.end
        number = self._first_due(span, self._since)
        while number < span.windows:
            self._look(span, number, self._since)
            if self.suspended is not None:
                return span.held(self._past.pods, number + 1)
            due = self._record.next_at
            number = number + 1 if self._record.state is State.ACTIVE else max(number + 1, span.ending(due))
        self._last = span, span.windows - 1, self._since
        return timedelta()

    def _first_due(self, span: Span, since: datetime) -> int:
        if self._record.warned_at is not None:
            return span.ending(self._record.next_at)
        return span.ending(since + self._past.policy.warn_after)

    def _look(self, span: Span, number: int, since: datetime) -> None:
        """Apply the policy at the end of one window."""
        work, policy, now = self._past.work, self._past.policy, span.start + (number + 1) * span.length
        self._last = span, number, since
        verdict = self._verdict(span, number, since)
        step = plan(Observed(work=work, verdict=verdict, policy=policy, record=self._record, now=now))
        self._record = step.record
        if step.act in (Act.WARN, Act.REMIND):
            self._record = after_notice(step.record, delivered=True)
            self.warned = self.warned or now
        if step.act is Act.SUSPEND:
            self.suspended = now

    def _verdict(self, span: Span, number: int, since: datetime) -> Verdict:
        """The verdict at the end of a window of an idle span, for work that is idle since `since`."""
        start = span.start + number * span.length
        window = Window(start=start, end=start + span.length, gpu_peak=0.0, cpu_milli=0.0)
        before = Window(start=start - span.length, end=start, gpu_peak=0.0, cpu_milli=0.0)
        windows = (window,) if start == since else (before, window)
        facts = Facts(started=self._past.work.started or start, windows=windows, proven_since=since)
        return judge(facts, self._past.policy, window.end)
