"""Charts of the resource use of a run or workspace: GPU utilisation, CPU and memory, a line for each
pod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from moorage.api.use import PodSeries, Use, UsePoint
from moorage.server.pages.charts import Chart, Series
from moorage.server.pages.texts import say

PODS = 6  # lines of a chart at most: the newest
GIB, MIB = 2**30, 2**20


def use_charts(use: Use) -> tuple[Chart, ...]:
    """A chart for each measure that has values."""
    pods = [pod for pod in use.pods if pod.points][-PODS:]
    step = timedelta(seconds=use.step_seconds)
    starts = {point.start for pod in pods for point in pod.points}
    ends = {point.start + max(step, timedelta(seconds=point.seconds)) for pod in pods for point in pod.points}
    times = tuple(sorted(starts | ends))  # at the end of a window where none follows a gap begins

    def chart(
        id: str, title: str, unit: str, read: Callable[[UsePoint], float | None], most: float | None
    ) -> Chart:
        def line(pod: PodSeries) -> Series:
            values = {point.start: read(point) for point in pod.points}
            return Series(name=_name(pod, pods), values=tuple(values.get(at) for at in times), area=len(pods) == 1)

        return Chart(id=id, title=title, unit=unit, times=times, series=tuple(map(line, pods)), most=most)

    most_memory = max((point.memory_bytes or 0 for pod in pods for point in pod.points), default=0)
    memory_unit = GIB if most_memory >= GIB else MIB
    charts = (
        chart("use-gpu", say("GPU utilisation"), "%", lambda point: point.gpu_percent, 100.0),
        chart("use-cpu", say("CPUs in use"), "", lambda point: point.cpu, None),
        chart(
            "use-memory",
            say("Memory in use"),
            "GiB" if most_memory >= GIB else "MiB",
            lambda point: None if point.memory_bytes is None else point.memory_bytes / memory_unit,
            None,
        ),
    )
    return tuple(
        each for each in charts if any(value is not None for line in each.series for value in line.values)
    )


def _name(pod: PodSeries, pods: Sequence[PodSeries]) -> str:
    same = [other for other in pods if other.attempt == pod.attempt]
    return say("attempt {number}", number=pod.attempt) if pod.attempt and len(same) == 1 else pod.pod
