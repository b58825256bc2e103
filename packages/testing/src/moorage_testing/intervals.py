"""Intervals of GPU use for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from moorage.decide.usage.intervals import Interval

TEN = datetime(2026, 1, 5, 10, 0, 0, 123456, tzinfo=UTC)
HOUR = timedelta(hours=1)


def an_interval(
    uid: str = "u1",
    *,
    start: datetime = TEN,
    end: datetime | None = None,
    seen: datetime = TEN,
    node: str = "n1",
    owner: str = "ada",
    gpus: int = 2,
) -> Interval:
    """An interval of a run on two GPUs. `end` None: it is still open."""
    return Interval(
        pod_uid=uid,
        namespace="lab",
        pod="train-x",
        run="train",
        attempt=1,
        owner=owner,
        node=node,
        gpu_type="a100",
        gpus=gpus,
        cpu_milli=1500,
        memory_bytes=2**40,
        started_at=start,
        ended_at=end,
        last_seen_at=seen,
    )
