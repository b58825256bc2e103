"""Turn stored readings of pods into the windows by which idleness is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from moorage.decide.idle.evidence import Window
from moorage.decide.usage.samples import BUSY_PERCENT, NOTHING, SLOT_SECONDS, Point, Tally

SETTLED = timedelta(seconds=2 * SLOT_SECONDS)  # readings arrive by then; a window that ended later is no evidence


class HeldPod(Struct, frozen=True, kw_only=True):
    """A pod that holds or held GPUs."""

    uid: str
    gpus: int
    started: datetime
    ended: datetime | None = None  # None: it holds them still


def windows_of(points: Iterable[Point], pods: Sequence[HeldPod], *, now: datetime) -> tuple[Window, ...]:
    """Total use of all these pods, oldest first; a window for each length and start of `points`.

    A window is measured where each pod that ran then has readings of all its GPUs and of its CPU for three
    quarters of it. A window that is not over, or ended just now, is left out, unless a pod was busy in it.
    """
    by_start: dict[tuple[datetime, timedelta], dict[str, Tally]] = {}
    for point in points:
        by_start.setdefault((point.start, point.length), {})[point.pod_uid] = point.tally
    windows = []
    for (start, length), tallies in sorted(by_start.items()):
        end = start + length
        if end > now - SETTLED:
            if any(tally.busy_gpus for tally in tallies.values()):
                windows.append(_window(start, min(end, now), tallies, pods, length))
            continue
        windows.append(_window(start, end, tallies, pods, length))
    return tuple(windows)


def _window(
    start: datetime, end: datetime, tallies: Mapping[str, Tally], pods: Sequence[HeldPod], length: timedelta
) -> Window:
    slots = length.total_seconds() / SLOT_SECONDS
    peaks: list[float | None] = []
    cpu_milli: float | None = 0.0
    for pod in pods:
        if pod.started >= end or (pod.ended is not None and pod.ended <= start):
            continue
        seen = tallies.get(pod.uid, NOTHING).seen
        peaks.append(seen.gpu_percent(pod.gpus, slots))
        mean = seen.cpu_milli(slots)
        cpu_milli = None if mean is None or cpu_milli is None else cpu_milli + mean
    highest = max((peak for peak in peaks if peak is not None), default=0.0)
    is_known = None not in peaks or highest >= BUSY_PERCENT  # one busy moment is proof enough
    return Window(start=start, end=end, gpu_peak=highest if is_known else None, cpu_milli=cpu_milli)
