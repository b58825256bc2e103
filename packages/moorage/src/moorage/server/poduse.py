"""Resource use of pods, as answers: over the life of a run or workspace, and now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from moorage.api.use import PodNow, PodSeries, Use, UseNow, UsePoint
from moorage.decide.runs.storedruns import uid_of
from moorage.decide.usage.gpus import owner_of, step_of
from moorage.decide.usage.readings import is_sampled
from moorage.decide.usage.samples import PodUse, Point, Reading, Tally, by_pod, step_for
from moorage.model.names import MAP_LABEL, RUN_LABEL, WORKSPACE_LABEL
from moorage.server.context import Context
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

FRESH = timedelta(minutes=5)  # an older reading is not the current use
_DIGITS = 3


async def use_of_pods(context: Context, pods: Mapping[str, tuple[str, int]], *, most: int = 240) -> Use:
    """Use of pods over their lives: uid → (name, attempt), in order. Raises StorageError."""

    def read() -> Use:
        uses = context.samples.use_of(pods)
        if not uses:
            return Use(step_seconds=step_for(timedelta(), most=most))
        since, until = min(use.first for use in uses.values()), max(use.last for use in uses.values())
        step = step_for(max(use.last - use.first for use in uses.values()), most=most)
        points = by_pod(context.samples.points(pods, since, until + timedelta(seconds=1), step))
        return Use(
            step_seconds=step,
            pods=tuple(
                PodSeries(
                    pod=name,
                    uid=uid,
                    attempt=attempt,
                    total=_total(uses[uid]),
                    points=tuple(_point(point) for point in points.get(uid, ())),
                )
                for uid, (name, attempt) in pods.items()
                if uid in uses
            ),
        )

    return await asyncio.to_thread(read)


async def use_now(context: Context) -> UseNow:
    """Current use of each measured pod. Raises StorageError."""
    cluster, now = await context.ready(), context.now()
    latest = await asyncio.to_thread(context.samples.latest, since=now - FRESH)
    rows = [
        _now(pod, latest[uid_of(pod)]) for pod in cluster.pods.all() if uid_of(pod) in latest and is_sampled(pod)
    ]
    rows.sort(
        key=lambda row: (-row.gpus * (row.gpu_percent or 0), -row.gpus, -(row.cpu or 0), row.namespace, row.pod)
    )
    return UseNow(now=now.replace(microsecond=0), pods=tuple(rows))


def point_of(tally: Tally, start: datetime, length: timedelta) -> UsePoint:
    return UsePoint(
        start=start,
        seconds=int(length.total_seconds()),
        measured_seconds=tally.seconds,
        gpu_percent=_rounded(tally.gpu_utilisation),
        gpu_peak_percent=_rounded(tally.gpu_utilisation_peak),
        gpu_memory_bytes=tally.gpu_memory_bytes,
        power_watts=_rounded(tally.power_watts),
        cpu=None if tally.cpu_milli is None else _rounded(tally.cpu_milli / 1000),
        memory_bytes=tally.memory_bytes,
        memory_peak_bytes=tally.memory_bytes_peak,
    )


def _total(use: PodUse) -> UsePoint:
    """The use over the whole life of a pod. Its length is at least one interval, even after a single reading."""
    return point_of(use.tally, use.first, max(use.last - use.first, timedelta(seconds=use.tally.seconds)))


def _point(point: Point) -> UsePoint:
    return point_of(point.tally, point.start, point.length)


def _now(obj: Obj, reading: Reading) -> PodNow:
    pod, gpus = parse_pod(obj), reading.gpus
    kind, title = _title(obj)
    total = sum(gpu.memory_total_bytes for gpu in gpus)
    power = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    return PodNow(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        owner=owner_of(pod),
        node=pod.node,
        title=title,
        kind=kind,
        at=reading.at,
        gpus=pod.gpus,
        gpu_percent=_rounded(sum(gpu.utilisation for gpu in gpus) / len(gpus)) if gpus else None,
        gpu_memory_bytes=sum(gpu.memory_bytes for gpu in gpus) if gpus else None,
        gpu_memory_total_bytes=total or None,
        power_watts=_rounded(sum(power)) if power else None,
        cpu=None if reading.cpu_milli is None else reading.cpu_milli / 1000,
        memory_bytes=reading.memory_bytes,
    )


def _title(obj: Obj) -> tuple[str, str]:
    labels = labels_of(obj)
    for kind, label in (("run", RUN_LABEL), ("workspace", WORKSPACE_LABEL), ("map", MAP_LABEL)):
        if labels.get(label):
            return kind, labels[label]
    if step := step_of(parse_pod(obj)):
        return "workflow", step
    return "pod", str(obj["metadata"]["name"])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def names_of(pods: Sequence[Obj]) -> dict[str, tuple[str, int]]:
    """The names of pods that belong to no run, in the format of `use_of_pods`."""
    return {uid_of(pod): (str(pod["metadata"]["name"]), 0) for pod in pods}
