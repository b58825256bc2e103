"""GPU-hours on the wire: `/api/v1/top`."""

from __future__ import annotations

from datetime import datetime

import msgspec

from moorage.api.fields import Answer, Query, Text


class TopQuery(Query):
    """`since` and `until`: a span before now (24h, 7d) or an RFC 3339 moment; `by`: user, run, type or gpu."""

    by: Text = "user"
    since: Text = "24h"
    until: Text | None = None


class TopRow(Answer, frozen=True):
    name: str
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    memory_hours: float = msgspec.field(default=0.0, name="memoryGiBHours")  # GiB-hours
    running_gpus: int = 0
    pods: int = 0


class Top(Answer, frozen=True):
    """Use in a window of time."""

    since: datetime
    until: datetime
    by: str = "user"
    rows: tuple[TopRow, ...] = ()
