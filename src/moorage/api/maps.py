"""Maps on the wire: `/api/v1/maps`, their items, results and output; `/api/v1/limits`. docs/design/0005-map.md

What workers exchange with the queue is not here: `moorage.decide.maps.leasing` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Natural, Query, Request, Seconds, Text, Text64

PRIORITY_LIMIT = 1000
BATCH_ITEMS = 10  # in one grant, where the policy names no other number
FINISHED = "finished"  # a state that the queue works out: all items are done or dead, and no more will come

LimitName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Capacity = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Priority = Annotated[int, msgspec.Meta(ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT)]


class MapState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"


# -- requests


class MapLimit(Request):
    """Tokens that each lease of a map holds; `capacity` makes the limit when it is new."""

    tokens: Tokens = 1
    capacity: Capacity | None = None


class MapPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What a map asks of the queue. Names, units and defaults are those of `leasing.Policy`."""

    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    loss_limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    backoff_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 2.0
    backoff_limit_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None
    lease_seconds: Annotated[float, msgspec.Meta(ge=2, le=86_400)] = 60.0
    memory_bytes: Natural = 0
    memory_limit_bytes: Natural = 0
    idempotent: bool = False
    batch_items: Annotated[int, msgspec.Meta(ge=1, le=1000)] = BATCH_ITEMS
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None


class NewMap(Request):
    """A map in the queue. The same `request` (an id of the caller's) again finds the map that it made."""

    name: Text
    request: Text64
    policy: MapPolicy = MapPolicy()
    limits: dict[LimitName, MapLimit] = {}
    priority: Priority = 0


class MapChange(Request, omit_defaults=True):
    """What is left out stays as it is; a rate of 0 removes the rate."""

    state: MapState | None = None
    closed: bool | None = None
    priority: Priority | None = None
    rate: Rate | None = None


class LimitChange(Request):
    capacity: Capacity


class NewItem(msgspec.Struct, frozen=True):
    """One line of the items that are added."""

    value: msgspec.Raw
    key: str | None = None
    seconds: Seconds | None = None  # how long it is expected to take
    priority: int = 0
    memory: Natural = 0  # bytes, when it needs more than the map's workers have


class AddItems(Query):
    """`first`: the number of the first line, so that sending again adds nothing twice; `request`: an id of these
    lines with the same effect; `close`: no more items will come."""

    first: Natural | None = None
    request: str | None = None
    close: bool = False


class ItemPage(Query):
    """Items of these states, behind item `after`, at most `limit`."""

    state: tuple[str, ...] = ()
    after: Natural | None = None
    limit: Natural | None = None


class After(Query):
    """Only what is behind item `after`."""

    after: Natural | None = None


class OutputPage(Query):
    """The output of one `item` or of all, behind part `after`; `follow`: until the map has ended."""

    item: Natural | None = None
    after: Natural = 0
    follow: bool = False


# -- answers


class MapCounts(Answer, frozen=True):
    """Items by state, workers, and sums over the map's whole life. `done + dead` falls only by a retry."""

    total: int = 0
    waiting: int = 0
    ready: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    large: int = 0
    leases: int = 0
    workers: int = 0
    granted: int = 0
    lost: int = 0
    returned: int = 0
    failed: int = 0
    refused: int = 0
    twinned: int = 0
    measured: int = 0
    hinted: int = 0

    @property
    def ended(self) -> int:
        return self.done + self.dead

    @property
    def executions(self) -> int:
        """How often an item was begun."""
        return self.granted - self.returned


class Map(Answer, frozen=True):
    """A map. `state`: running, paused, cancelled or finished; what is not known yet is None."""

    namespace: str
    name: str
    created_at: datetime
    uid: str = ""
    owner: str = ""
    state: str = MapState.RUNNING
    closed: bool = False
    priority: int = 0
    policy: MapPolicy = MapPolicy()
    limits: Mapping[str, int] = {}
    counts: MapCounts = MapCounts()
    spent_seconds: float = 0.0
    hinted_seconds: float = 0.0
    mean_seconds: float | None = None
    items_per_second: float | None = None
    seconds_left: float | None = None

    @property
    def is_finished(self) -> bool:
        return self.state == FINISHED

    @property
    def has_ended(self) -> bool:
        return self.state in (FINISHED, MapState.CANCELLED)


class MapList(Answer, frozen=True):
    maps: tuple[Map, ...] = ()


class Deleted(Answer, frozen=True):
    deleted: bool = True


class ItemFailure(Answer, frozen=True, omit_defaults=True):
    """Why an item failed for good."""

    at_ms: int
    cause: str
    message: str
    exit: int | None = None
    tries: int = 0
    output_bytes: int = 0


class MapItem(Answer, frozen=True, omit_defaults=True):
    """An item. `state`: waiting, ready, leased, done or dead; `value` is JSON."""

    item: int
    state: str
    value: msgspec.Raw
    key: str | None = None
    tries: int = 0
    losses: int = 0
    memory_bytes: int = 0
    ready_at_ms: int = 0
    leases: int = 0
    finished_at_ms: int | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    path: str | None = None
    failure: ItemFailure | None = None


class ItemList(Answer, frozen=True):
    """A page of items; `next` is the `after` of the next page, None at the end."""

    items: tuple[MapItem, ...] = ()
    next: int | None = None


class ItemOutput(Answer, frozen=True):
    """An item with the last output of its last failure."""

    item: MapItem
    output: bytes = b""


class ItemsAdded(Answer, frozen=True):
    added: int
    total: int


class Retried(Answer, frozen=True):
    retried: int


class WorkerToken(Answer, frozen=True):
    token: str


class MapResult(Answer, frozen=True, omit_defaults=True):
    """One line of the results: a value, which is JSON, or the path where it is."""

    item: int
    at_ms: int
    key: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    path: str | None = None
    seconds: float | None = None
    peak_bytes: int | None = None


class OutputPart(Answer, frozen=True):
    """What an item printed. Item -1: a note of the worker's own."""

    id: int
    at_ms: int
    pod: str
    item: int
    lease: int
    output: bytes = b""


class Limit(Answer, frozen=True):
    """A named limit: its tokens, and how many are held."""

    name: str
    capacity: int
    held: int = 0


class LimitList(Answer, frozen=True):
    limits: tuple[Limit, ...] = ()


class LimitSet(Answer, frozen=True):
    name: str
    capacity: int
