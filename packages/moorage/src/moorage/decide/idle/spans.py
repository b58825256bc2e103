"""The past of a piece of work as spans of time in which it was used, idle or unknown.

Most hours have the same use throughout: a store returns them as stretches, without their windows. Windows are read
only for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from itertools import groupby, pairwise
from typing import NamedTuple

from moorage.decide.idle.evidence import Window, is_idle
from moorage.decide.idle.readings import HeldPod
from moorage.decide.usage.samples import SLOT_SECONDS, Hour, Level, Seen, Stretch, floor, tenths_of
from moorage.model.idle import Policy

HOUR = timedelta(seconds=Level.HOUR)


class Use(Enum):
    """The known use of a span."""

    USED = "used"
    IDLE = "idle"  # by its measurements
    UNSEEN = "unseen"  # a GPU was not measured


class Span(NamedTuple):
    """Consecutive windows of the same length with the same use."""

    start: datetime
    end: datetime
    length: timedelta  # of a window
    use: Use
    measured: timedelta | None = None  # GPUs × time with readings; None: that the pods held

    @property
    def windows(self) -> int:
        return (self.end - self.start) // self.length

    def ending(self, moment: datetime | None) -> int:
        """The index of the first window that ends at or after `moment`; the number of windows for None."""
        return self.windows if moment is None else max(0, -((self.start - moment) // self.length) - 1)

    def held(self, pods: Iterable[HeldPod], first: int = 0) -> timedelta:
        """GPUs × time of all windows, or of the windows from `first` on.

        A pod counts in each window in which it existed.
        """
        start, windows = self.start + first * self.length, timedelta()
        for pod in pods:
            if pod.started >= self.end or (pod.ended is not None and pod.ended <= start):
                continue
            begin = max(0, (pod.started - start) // self.length)
            last = (self.end - start) // self.length
            if pod.ended is not None:
                last = min(last, -((start - pod.ended) // self.length))
            windows += max(0, last - begin) * pod.gpus * self.length
        return windows


def spans_of(windows: Iterable[Window], policy: Policy) -> list[Span]:
    """Merge consecutive windows (oldest first) of the same use into spans."""
    spans = _Joined()
    for window in windows:
        use = _use(window.gpu_peak, window.cpu_milli, policy)
        spans.add(Span(window.start, window.end, window.end - window.start, use))
    return spans.all


def spans_of_hours(hours: Iterable[Hour], pod: HeldPod, policy: Policy) -> list[Span]:
    """The hours (oldest first) in which this pod was the only one of the work, as spans."""
    spans, (used_from, _) = _Joined(), tenths_of(policy.gpu_below)
    for hour in hours:
        length, windows = max(hour.length, policy.window), hour.windows
        if (many := length // hour.length) > 1:
            windows = [
                Seen.joined(place, some) for place, some in groupby(windows, lambda seen: seen.place // many)
            ]
        slots = length.total_seconds() / SLOT_SECONDS
        uses = [
            (
                seen.place,
                Use.USED
                if seen.gpu_peak >= used_from
                else _use(seen.gpu_percent(pod.gpus, slots), seen.cpu_milli(slots), policy),
            )
            for seen in windows
        ]
        first = 0
        for number, (place, use) in enumerate(uses, 1):
            if number == len(uses) or uses[number] != (place + 1, use):
                start, time = hour.start + uses[first][0] * length, (number - first) * length
                spans.add(Span(start, start + time, length, use, time * pod.gpus))
                first = number
    return spans.all


class _Joined:
    """A list of spans that merges neighbours of the same use. Add the oldest first."""

    def __init__(self) -> None:
        self.all: list[Span] = []

    def add(self, span: Span) -> None:
        last = self.all[-1] if self.all else None
        if last is None or (last.end, last.use, last.length) != (span.start, span.use, span.length):
            self.all.append(span)
            return
        measured = None if last.measured is None or span.measured is None else last.measured + span.measured
        self.all[-1] = Span(last.start, span.end, span.length, span.use, measured)


def _use(gpu_peak: float | None, cpu_milli: float | None, policy: Policy) -> Use:
    if gpu_peak is None:
        return Use.UNSEEN
    return Use.IDLE if is_idle(gpu_peak, cpu_milli, policy) else Use.USED


def settled(pods: Sequence[HeldPod], stretches: Iterable[Stretch], policy: Policy) -> list[Span]:
    """The use of the work by stretches of its pods: used where one pod was, idle where all present pods were."""
    if len(pods) == 1:
        return [span for stretch in stretches if (span := _span_of(pods[0], stretch)) is not None]
    by_start = sorted(stretches, key=lambda stretch: stretch.start)
    cuts = sorted({moment for stretch in by_start for moment in (stretch.start, stretch.end)})
    spans: list[Span] = []
    now: dict[str, Stretch] = {}
    place = 0
    for start, end in pairwise(cuts):
        now = {uid: stretch for uid, stretch in now.items() if stretch.end > start}
        while place < len(by_start) and by_start[place].start <= start:
            now[by_start[place].pod_uid] = by_start[place]
            place += 1
        if now and (use := _use_of(pods, now, policy, start, end)) is not None:
            spans.append(Span(start, end, next(iter(now.values())).length, use))
    return spans


def _span_of(pod: HeldPod, stretch: Stretch) -> Span | None:
    """The span of a stretch, if this pod is the only one of the work. None if its windows must be read."""
    start, end, length = stretch.start, stretch.end, stretch.length
    if not stretch.is_used and (stretch.gpus < pod.gpus or not _is_throughout(pod, start, end, length)):
        return None
    use = Use.USED if stretch.is_used else Use.IDLE
    return Span(start, end, length, use, stretch.windows * length * pod.gpus)


def _use_of(
    pods: Iterable[HeldPod], stretches: Mapping[str, Stretch], policy: Policy, start: datetime, end: datetime
) -> Use | None:
    """The use of a stretch; None if its windows must be read."""
    there = [pod for pod in pods if pod.started < end and (pod.ended is None or pod.ended > start)]
    known = {
        pod.uid: stretch
        for pod in there
        if (stretch := stretches.get(pod.uid)) is not None and _is_throughout(pod, start, end, stretch.length)
    }
    if any(stretch.is_used and stretch.is_whole for stretch in known.values()):
        return Use.USED
    if not there or any(
        pod.uid not in known or known[pod.uid].is_used or known[pod.uid].gpus < pod.gpus for pod in there
    ):
        return None
    return Use.IDLE if sum(stretch.cpu_milli for stretch in known.values()) < policy.cpu_below_milli else None


def _is_throughout(pod: HeldPod, start: datetime, end: datetime, length: timedelta) -> bool:
    """Whether the pod existed in each window."""
    return pod.started < start + length and (pod.ended is None or pod.ended > end - length)


class OpenHours(NamedTuple):
    """Hours that are not covered by a span, by the uid of the pod."""

    alone: dict[str, list[datetime]]  # in which no other pod of the work was there
    shared: dict[str, list[datetime]]


def open_hours(pods: Sequence[HeldPod], spans: Iterable[Span], since: datetime, now: datetime) -> OpenHours:
    """The hours of the pods of a piece of work whose windows must be read."""
    gaps, at = [], floor(since, Level.HOUR)
    for start, end in sorted((span.start, span.end) for span in spans):
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    gaps.append((at, now))
    hours: dict[str, list[datetime]] = {}
    for pod in pods:
        begin, last = floor(pod.started, Level.HOUR), min(pod.ended or now, now)
        hours[pod.uid] = [
            max(start, begin) + hour * HOUR
            for start, end in gaps
            for hour in range(-((max(start, begin) - min(end, last)) // HOUR))
        ]
    if len(pods) == 1:
        return OpenHours(hours, {})
    pods_in = Counter(at for mine in hours.values() for at in mine)
    return OpenHours(
        {uid: [at for at in mine if pods_in[at] == 1] for uid, mine in hours.items()},
        {uid: [at for at in mine if pods_in[at] > 1] for uid, mine in hours.items()},
    )
