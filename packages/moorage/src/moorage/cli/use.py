"""The use of pods, read from the server, and shown as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta

from moorage.api.use import PodSeries, Use, UsePoint
from moorage.cli.session import Session
from moorage.present.sizes import bytes_text
from moorage.present.usechart import BLOCKS, Line, chart_lines
from moorage_kube.errors import MoorageError
from moorage_kube.moments import format_duration

PODS_SHOWN = 6  # the newest


async def ask_use(session: Session, path: str) -> Use | None:
    """Return the use of the pods of an object with this `path`; None if the server is away, or has no record."""
    try:
        return await session.server.ask(Use, "GET", f"{path}/use")
    except MoorageError:
        return None


def use_lines(use: Use | None) -> list[str]:
    """Return a chart of each pod, attempt after attempt; empty without measurements."""
    if use is None or not use.pods:
        return []
    shown = use.pods[-PODS_SHOWN:]
    lines = [
        "",
        "Use" if len(shown) == len(use.pods) else f"Use of the newest {PODS_SHOWN} of {len(use.pods)} pods",
    ]
    for pod in shown:
        lines.append(f"  {_title(pod, use)}")
        lines += [f"    {line}" for line in chart_lines(_measures(pod, use.step_seconds), blocks=_has_blocks())]
    return lines


def _title(pod: PodSeries, use: Use) -> str:
    name = f"attempt {pod.attempt}" if pod.attempt else pod.pod
    span = format_duration(timedelta(seconds=pod.total.seconds))
    together = max(1, -(-len(_windows(pod, use.step_seconds)) // 60))
    column = format_duration(timedelta(seconds=use.step_seconds * together))
    return f"{name}: {span}, {column} a column"


def _measures(pod: PodSeries, step: int) -> list[Line]:
    windows, total = _windows(pod, step), pod.total

    def line(name: str, read: Callable[[UsePoint], float | None], mean: str, peak: str, most: float = 0.0) -> Line:
        values = [None if point is None else read(point) for point in windows]
        return Line(name=name, values=values, most=most, mean=mean, peak=peak)

    cpus = max((point.cpu or 0.0 for point in pod.points), default=0.0)
    gpu = _percent(total.gpu_percent), _percent(total.gpu_peak_percent)
    memory = _size(total.memory_bytes), _size(total.memory_peak_bytes)
    return [
        line("GPU", lambda point: point.gpu_percent, *gpu, most=100.0),
        line("CPU", lambda point: point.cpu, _cpus(total.cpu), _cpus(cpus)),
        line("memory", lambda point: point.memory_bytes, *memory),
    ]


def _windows(pod: PodSeries, step: int) -> Sequence[UsePoint | None]:
    """Return one point for each window of a pod's life, None for a gap; a long point fills all its windows."""
    if not pod.points:
        return []
    first, last = pod.points[0].start, pod.points[-1]
    count = int((last.start - first).total_seconds()) // step + max(1, last.seconds // step)
    windows: list[UsePoint | None] = [None] * count
    for point in pod.points:
        begin = int((point.start - first).total_seconds()) // step
        for at in range(begin, min(count, begin + max(1, point.seconds // step))):
            windows[at] = point
    return windows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _cpus(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _size(value: int | None) -> str:
    return "" if value is None else bytes_text(value)


def _has_blocks() -> bool:
    """Whether stdout can encode characters outside ASCII."""
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
