"""Measured use of pods: over their lives, and now."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Query, Time, about


class UsePoint(Answer, frozen=True):
    """Use of a pod in a window: mean values, and peaks in fields named so. null: not measured."""

    start: Annotated[Time, about("Start of the window.")]
    seconds: Annotated[int, about("Length of the window.")]
    measured_seconds: Annotated[int, about("How much of it there are readings of.")]
    gpu_percent: Annotated[float | None, about("Utilisation, the mean of its GPUs.")] = None
    gpu_peak_percent: Annotated[float | None, about("Highest utilisation of one of its GPUs.")] = None
    gpu_memory_bytes: Annotated[int | None, about("Memory in use on one GPU, the mean.")] = None
    power_watts: Annotated[float | None, about("Power of one GPU, the mean.")] = None
    cpu: Annotated[float | None, about("CPUs in use.")] = None
    memory_bytes: Annotated[int | None, about("Memory in use, as it counts against the limit.")] = None
    memory_peak_bytes: Annotated[int | None, about("Highest memory use.")] = None


class PodSeries(Answer, frozen=True):
    """Use of a pod over its life. A window without a reading has no point."""

    pod: str
    uid: str
    total: Annotated[UsePoint, about("All of its life as one window.")]
    attempt: Annotated[int, about("Number of the attempt in its run; 0: it is of no run.")] = 0
    points: Annotated[
        tuple[UsePoint, ...], about("One point for each window with readings, the oldest first.")
    ] = ()


class Use(Answer, frozen=True):
    """Use of the pods of a run or workspace, including deleted pods."""

    step_seconds: Annotated[int, about("Length of a window; older points may be longer.")]
    pods: Annotated[tuple[PodSeries, ...], about("Pods with readings, in the order of their start.")] = ()


class UseQuery(Query):
    """How many points."""

    points: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2000)], about("Points of a pod at most, where its life allows it.")
    ] = 240


class PodNow(Answer, frozen=True):
    """Present use of a pod. null: not measured."""

    namespace: str
    pod: str
    uid: str
    owner: str
    node: str
    title: Annotated[str, about("Name of its run, workspace, map or step; else its own name.")]
    kind: Annotated[str, about("run, workspace, map, workflow or pod.")]
    at: Annotated[Time, about("When it was measured.")]
    gpus: Annotated[int, about("GPUs that it holds.")] = 0
    gpu_percent: Annotated[float | None, about("Utilisation, the mean of its GPUs.")] = None
    gpu_memory_bytes: Annotated[int | None, about("Memory in use on all of its GPUs.")] = None
    gpu_memory_total_bytes: Annotated[int | None, about("Memory that its GPUs have.")] = None
    power_watts: Annotated[float | None, about("Power of all of its GPUs.")] = None
    cpu: Annotated[float | None, about("CPUs in use.")] = None
    memory_bytes: Annotated[int | None, about("Memory in use.")] = None


class UseNow(Answer, frozen=True):
    """Present use of every measured pod."""

    now: Annotated[Time, about("When this was answered.")]
    pods: Annotated[tuple[PodNow, ...], about("By the time of GPUs in use, the largest first.")] = ()
