"""Readings of the resource usage of pods, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.decide.usage.samples import GpuReading, Reading

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
MIB = 2**20


def a_reading(
    uid: str = "u1",
    *,
    at: datetime = TEN,
    cpu: int | None = 1500,
    memory: int | None = 512 * MIB,
    use: tuple[float, ...] = (50.0,),
    power: float | None = 200.0,
    owner: str = "ada",
) -> Reading:
    """A reading of a pod that has a GPU for each value of `use`, in percent."""
    return Reading(
        pod_uid=uid,
        at=at,
        cpu_milli=cpu,
        memory_bytes=memory,
        gpus=tuple(
            GpuReading(
                device=f"gpu-{number}",
                utilisation=percent,
                memory_bytes=1024 * MIB,
                memory_total_bytes=40 * 1024 * MIB,
                power_watts=power,
            )
            for number, percent in enumerate(use)
        ),
        owner=owner,
        namespace="lab",
    )


def at_slot(number: int) -> datetime:
    """Return the start of a slot of 30 s; slot 0 starts at TEN."""
    return TEN + number * timedelta(seconds=30)
