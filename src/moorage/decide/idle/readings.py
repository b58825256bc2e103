"""From what is kept of pods' use to the windows by which idleness is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from moorage.decide.idle.evidence import Window
from moorage.decide.usage.samples import SLOT_SECONDS, Point, Tally

COVERED = 0.75  # of a window that must be measured: a restart of the server costs less than a minute
SETTLED = timedelta(seconds=2 * SLOT_SECONDS)  # readings arrive by then; a window that ended later is no evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPod:
    """A pod that holds GPUs, or held them."""

    uid: str
    gpus: int
    started: datetime
    ended: datetime | None = None  # None: it holds them still


def windows_of(points: Iterable[Point], pods: Sequence[HeldPod], *, now: datetime) -> tuple[Window, ...]:
    """What all these pods used together, oldest first; a window for each length and start of `points`.

    A window is measured where each pod that was there has readings of all its GPUs and of its CPU for three
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
    gpu_peak: float | None = 0.0
    cpu_milli: float | None = 0.0
    for pod in pods:
        if pod.started >= end or (pod.ended is not None and pod.ended <= start):
            continue
        tally = tallies.get(pod.uid)
        is_covered = tally is not None and tally.seconds >= COVERED * length.total_seconds()
        if tally is not None and tally.busy_gpus:  # one busy moment is proof enough
            gpu_peak = max(gpu_peak or 0.0, tally.gpu_utilisation_peak or 0.0)
        elif tally is None or not is_covered or tally.gpus < pod.gpus or tally.gpu_count < pod.gpus * tally.slots:
            gpu_peak = gpu_peak if gpu_peak else None
        elif gpu_peak is not None:
            gpu_peak = max(gpu_peak, tally.gpu_utilisation_peak or 0.0)
        if tally is None or not is_covered or tally.cpu_milli is None or tally.cpu_count < tally.slots:
            cpu_milli = None
        elif cpu_milli is not None:
            cpu_milli += tally.cpu_milli
    return Window(start=start, end=end, gpu_peak=gpu_peak, cpu_milli=cpu_milli)
