"""The effect that policies would have had, from the history of use: read by the hour, and by the window
where needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from moorage.decide.idle.readings import windows_of
from moorage.decide.idle.spans import open_hours, settled, spans_of, spans_of_hours
from moorage.decide.idle.whatif import Outcome, Past, outcome_of
from moorage.decide.usage.samples import Hour, Limits, Point, Stretch
from moorage.usage.samples import SampleStore

PODS_AT_ONCE = 400  # with readings in memory at a time


def replay(samples: SampleStore, pasts: Sequence[Past], *, since: datetime, now: datetime) -> list[Outcome]:
    """The outcome of a policy for each piece of work, sorted by reclaimed GPU-hours, the most first.

    Blocks while it reads the database. Raises StorageError.
    """
    alike: dict[tuple[int, Limits], list[Past]] = {}
    for past in pasts:
        limits = Limits(gpu_percent=past.policy.gpu_below, cpu_milli=past.policy.cpu_below_milli)
        alike.setdefault((int(past.policy.window.total_seconds()), limits), []).append(past)
    rows = [
        outcome
        for (step, limits), mine in alike.items()
        for some in _portions(mine)
        for outcome in _outcomes(samples, some, step, limits, since, now)
    ]
    return sorted(rows, key=lambda each: (-each.reclaimed_hours, -each.idle_hours, each.work.title))


def _portions(pasts: Sequence[Past]) -> list[list[Past]]:
    """Split the work into portions of about PODS_AT_ONCE pods."""
    portions: list[list[Past]] = []
    count = PODS_AT_ONCE
    for past in pasts:
        if count >= PODS_AT_ONCE:
            portions.append([])
            count = 0
        portions[-1].append(past)
        count += len(past.pods)
    return portions


def _outcomes(
    samples: SampleStore, pasts: Sequence[Past], step: int, limits: Limits, since: datetime, now: datetime
) -> list[Outcome]:
    uids = [pod.uid for past in pasts for pod in past.pods]
    stretches: dict[str, list[Stretch]] = {}
    for stretch in samples.stretches(uids, since, now, step, limits):
        stretches.setdefault(stretch.pod_uid, []).append(stretch)
    known = [
        settled(past.pods, [each for pod in past.pods for each in stretches.get(pod.uid, ())], past.policy)
        for past in pasts
    ]
    alone: dict[str, list[datetime]] = {}
    shared: dict[str, list[datetime]] = {}
    for past, spans in zip(pasts, known, strict=True):
        hours = open_hours(past.pods, spans, since, now)
        alone |= hours.alone
        shared |= hours.shared
    windows: dict[str, list[Hour]] = {}
    for hour in samples.hours(alone, since, now, step):
        windows.setdefault(hour.pod_uid, []).append(hour)
    points: dict[str, list[Point]] = {}
    for point in samples.points(uids, since, now, step, hours=shared):
        points.setdefault(point.pod_uid, []).append(point)
    rows = []
    for past, spans in zip(pasts, known, strict=True):
        mine = [point for pod in past.pods for point in points.get(pod.uid, ())]
        spans += spans_of(windows_of(mine, past.pods, now=now), past.policy)
        for pod in past.pods:
            ordered = sorted(windows.get(pod.uid, ()), key=lambda hour: hour.start)
            spans += spans_of_hours(ordered, pod, past.policy)
        rows.append(outcome_of(past, spans, since=since, now=now))
    return rows
