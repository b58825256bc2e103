"""The current utilisation of each GPU, as a small part of the front page. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from moorage.decide.usage.gpus import Gpu, GpuView, place_of
from moorage.decide.usage.samples import Reading


class UseNow(Struct, frozen=True):
    """GPU utilisation in percent by node and GPU index, and the mean of all measured GPUs."""

    by_node: Mapping[str, tuple[int | None, ...]]
    measured: int = 0
    mean: int = 0

    @property
    def text(self) -> str:
        """A line for each node with a measured GPU: its name, then the percentage or "-" of each GPU."""
        lines = []
        for node, values in self.by_node.items():
            if any(value is not None for value in values):
                lines.append(" ".join([node, *("-" if value is None else str(value) for value in values)]))
        return "\n".join(lines)


def use_now(view: GpuView, readings: Mapping[tuple[str, str], Reading]) -> UseNow:
    """Match readings to GPUs, by device, else in order. `readings`: the newest of each pod, by namespace
    and name.
    """
    by_node: dict[str, tuple[int | None, ...]] = {}
    known: list[int] = []
    for node in view.nodes:
        places: dict[tuple[str, str], list[Gpu]] = {}
        for gpu in node.gpus:
            if gpu.holder is not None:
                places.setdefault((gpu.holder.namespace, gpu.holder.pod), []).append(gpu)
        values: dict[int, int] = {}
        for pod, gpus in places.items():
            reading = readings.get(pod)
            for gpu, percent in _matched(gpus, reading, node.name) if reading is not None else ():
                values[gpu.index] = percent
        known += values.values()
        by_node[node.name] = tuple(values.get(gpu.index) for gpu in node.gpus)
    return UseNow(by_node, len(known), round(sum(known) / len(known)) if known else 0)


def _matched(gpus: list[Gpu], reading: Reading, node: str) -> list[tuple[Gpu, int]]:
    """The percentage of each GPU of a pod; empty if pod and reading have different numbers of GPUs."""
    if len(reading.gpus) != len(gpus):
        return []
    by_device = {measured.device: measured for measured in reading.gpus}
    by_place = {place_of(measured.device.rpartition("/")[2], node): measured for measured in reading.gpus}
    pairs = []
    for at, gpu in enumerate(gpus):
        measured = by_device.get(gpu.device) or by_place.get(gpu.index) or reading.gpus[at]
        pairs.append((gpu, round(measured.utilisation)))
    return pairs
