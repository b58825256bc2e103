"""GPUs on the wire: `/api/v1/gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moorage.api.fields import Answer, Query, Text


class GpuQuery(Query):
    """`namespace`: the answer has what its tenant fills in, for those who may create Jobs in it."""

    namespace: Text = ""


class GpuCounts(Answer, frozen=True):
    """`together`: the most free ones on one node; `fragmented` and `stranded` are free and of little use."""

    total: int = 0
    used: int = 0
    free: int = 0
    unavailable: int = 0
    reserved: int = 0
    fragmented: int = 0
    stranded: int = 0
    together: int = 0


class GpuType(GpuCounts, frozen=True):
    type: str = ""


class Gpu(Answer, frozen=True):
    """`state`: free, used, reserved or unavailable (`why`); who holds it, and until when that is expected.

    Without a holder `owner`, `run`, `namespace` and `pod` are empty.
    """

    index: int
    type: str = ""
    resource: str = ""
    device: str = ""
    state: str = ""
    why: str = ""
    fragmented: bool = False
    stranded: bool = False
    owner: str = ""
    run: str = ""
    namespace: str = ""
    pod: str = ""
    since: datetime | None = None
    expected_until: datetime | None = None


class GpuNode(GpuCounts, frozen=True):
    name: str = ""
    type: str = ""
    ready: bool = False
    cordoned: bool = False
    gpus: tuple[Gpu, ...] = ()


class GpuUser(Answer, frozen=True):
    user: str
    gpus: int = 0
    types: Mapping[str, int] = {}


class Gpus(Answer, frozen=True):
    """Every GPU of the cluster at a moment."""

    now: datetime
    totals: GpuCounts = GpuCounts()
    types: tuple[GpuType, ...] = ()
    users: tuple[GpuUser, ...] = ()
    nodes: tuple[GpuNode, ...] = ()
    process_runtime: bool = False  # pods run as plain processes
    tenant: Mapping[str, Any] | None = None  # of the namespace that was asked for
