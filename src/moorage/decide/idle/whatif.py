"""What a policy would have done in the past: the same decisions over stored readings, step by step.

Only readings of GPU and CPU are kept. Kernels, browsers, snoozes and checkpoints of the past are not known: they
would have kept some of it, so what is said to be reclaimed is the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from moorage.decide.idle.evidence import Facts, Idle, is_idle, judge
from moorage.decide.idle.plan import Act, Observed, Work, after_notice, plan
from moorage.decide.idle.readings import HeldPod, windows_of
from moorage.decide.idle.states import Record
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.samples import Point
from moorage.model.idle import MAP, RUN, WORKFLOW, WORKSPACE, Policy

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What would have come of one piece of work. Hours are GPU-hours."""

    work: Work
    held_hours: float
    measured_hours: float
    idle_hours: float
    warned_at: datetime | None
    suspended_at: datetime | None
    reclaimed_hours: float
    why: str


def group_of(interval: Interval) -> tuple[str, str, str] | None:
    """The kind, namespace and name of the work that a pod was of; None: of none."""
    kind, _, name = interval.part_of.partition("/")
    if kind in (MAP, WORKSPACE) and name:
        return kind, interval.namespace, name
    if interval.workflow:
        return WORKFLOW, interval.namespace, interval.workflow
    return (RUN, interval.namespace, interval.run) if interval.run else None


def outcomes(
    intervals: Iterable[Interval],
    points: Mapping[str, Sequence[Point]],
    policy_of: Mapping[tuple[str, str], Policy] | Policy,
    *,
    since: datetime,
    now: datetime,
) -> list[Outcome]:
    """Of all work that held GPUs, those with most to reclaim first. `points`: by the uid of the pod."""
    groups: dict[tuple[str, str, str], list[Interval]] = {}
    for interval in intervals:
        if interval.gpus and (key := group_of(interval)) is not None:
            groups.setdefault(key, []).append(interval)
    rows = []
    for (kind, namespace, name), mine in sorted(groups.items()):
        policy = policy_of if isinstance(policy_of, Policy) else policy_of.get((kind, namespace))
        if policy is None or kind not in policy.work:
            continue
        work = Work(kind=kind, namespace=namespace, name=name, uid=mine[0].pod_uid, owner=mine[-1].owner)
        mine_points = [point for interval in mine for point in points.get(interval.pod_uid, ())]
        rows.append(_replay(work, mine, mine_points, policy, since=since, now=now))
    return sorted(rows, key=lambda each: (-each.reclaimed_hours, -each.idle_hours, each.work.title))


def _replay(
    work: Work,
    mine: Sequence[Interval],
    points: Sequence[Point],
    policy: Policy,
    *,
    since: datetime,
    now: datetime,
) -> Outcome:
    pods = [
        HeldPod(uid=each.pod_uid, gpus=each.gpus, started=each.started_at, ended=each.ended_at) for each in mine
    ]
    windows = windows_of(points, pods, now=now)
    held = sum(
        (max(timedelta(), min(each.ended_at or now, now) - max(each.started_at, since)) / HOUR) * each.gpus
        for each in mine
    )
    started = min(each.started_at for each in mine)
    work = replace(work, gpus=max(each.gpus for each in mine), started=started, checkpoint_at=now)
    record, warned, suspended, idle, reclaimed = Record(), None, None, 0.0, 0.0
    measured, why = 0.0, ""
    for at, window in enumerate(windows):
        gpus = sum(pod.gpus for pod in pods if pod.started < window.end and (pod.ended or now) > window.start)
        hours = (window.end - window.start) / HOUR * gpus
        if window.gpu_peak is None:
            record = Record()
            continue
        measured += hours
        if not is_idle(window, policy):
            if suspended is not None:
                break  # it was used: somebody would have resumed it
            record = Record()
            continue
        facts = Facts(started=started, windows=windows[max(0, at - 1) : at + 1], proven_since=record.since)
        verdict = judge(facts, policy, window.end)
        if isinstance(verdict, Idle):
            idle += hours
            if suspended is not None:
                reclaimed += hours
                continue
        elif suspended is not None:
            break
        step = plan(Observed(work=work, verdict=verdict, policy=policy, record=record, now=window.end))
        record = step.record if isinstance(verdict, Idle) else Record()
        if step.act in (Act.WARN, Act.REMIND):
            record = after_notice(record, delivered=True)
            warned = warned or window.end
        if step.act is Act.SUSPEND:
            suspended = window.end
        why = verdict.why if isinstance(verdict, Idle) else why
    return Outcome(
        work=work,
        held_hours=held,
        measured_hours=measured,
        idle_hours=idle,
        warned_at=warned,
        suspended_at=suspended,
        reclaimed_hours=reclaimed,
        why=why,
    )
