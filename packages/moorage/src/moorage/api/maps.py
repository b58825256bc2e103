"""Maps on the wire: `/api/v1/maps`, their items, results and output; `/api/v1/limits`. docs/design/0005-map.md

Messages between workers and the queue are in `moorage.decide.maps.leasing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Natural, Query, Request, Seconds, Text, Text64, Time, about

PRIORITY_LIMIT = 1000
BATCH_ITEMS = 10  # in one grant, where the policy names no other number
FINISHED = "finished"  # computed by the queue: the list of items is complete, and all are done or dead

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
    """A limit that a map respects."""

    tokens: Annotated[Tokens, about("Tokens of the limit that each lease holds.")] = 1
    capacity: Annotated[
        Capacity | None, about("Tokens of the limit in all, if it is new; null: it must exist.")
    ] = None


class MapPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The policy by which the queue hands out and retries the items of a map."""

    retries: Annotated[
        int, msgspec.Meta(ge=0, le=1000), about("Further tries of an item after an error or a time-out.")
    ] = 3
    loss_limit: Annotated[
        int, msgspec.Meta(ge=0, le=10_000), about("Workers that an item may lose before it is dead.")
    ] = 20
    backoff_seconds: Annotated[
        float, msgspec.Meta(ge=0, le=86_400), about("Seconds before the first retry; doubled for each next.")
    ] = 2.0
    max_backoff_seconds: Annotated[
        float, msgspec.Meta(ge=0, le=86_400), about("Longest wait before a retry, in seconds.")
    ] = 300.0
    time_seconds: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None,
        about("Longest time of an item, in seconds; null: no limit."),
    ] = None
    lease_seconds: Annotated[
        float, msgspec.Meta(ge=2, le=86_400), about("How long a worker may be silent, in seconds.")
    ] = 60.0
    memory_bytes: Annotated[Natural, about("Memory of the map's workers in bytes; 0: not known.")] = 0
    max_memory_bytes: Annotated[
        Natural, about("Most memory for an item killed for memory, in bytes; 0: no more.")
    ] = 0
    idempotent: Annotated[bool, about("Whether slow items may run twice; the first answer counts.")] = False
    batch_items: Annotated[int, msgspec.Meta(ge=1, le=1000), about("Most items in one grant to a worker.")] = (
        BATCH_ITEMS
    )
    rate: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None,
        about("Leases handed out per second, at most; null: no limit."),
    ] = None


class MapWorkers(Request):
    """The workers of a map: command, pods and their number. Texts are written as the options of `moor map create`.

    In `command`, {item} is the item, {item.FIELD} is a field of it, and {index} is its number.
    """

    command: Annotated[
        list[str], about("Command with its arguments; {item}, {item.FIELD} and {index} are replaced.")
    ]
    parallelism: Annotated[int, about("Pods at a time, at most.")] = 1
    slots: Annotated[int, about("Items at a time in each pod.")] = 1
    image: Annotated[str | None, about("Container image with python3; left out: the default.")] = None
    env: Annotated[dict[str, str], about("Environment variables of the command.")] = {}
    secrets: Annotated[
        list[str], about("Secrets as variables or files: NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH.")
    ] = []
    cpu: Annotated[str | int | float | None, about("CPUs of a pod, such as 4 or 500m.")] = None
    memory: Annotated[str | None, about("Memory limit of a pod, such as 8Gi.")] = None
    gpus: Annotated[int, about("GPUs of a pod.")] = 0
    gpu_type: Annotated[str | None, about("GPU type, such as a100; left out: any.")] = None
    gpu_resource: Annotated[
        str | None, about("Resource that counts as a GPU, such as nvidia.com/mig-1g.10gb.")
    ] = None
    gpu_claim: Annotated[
        str | None, about("ResourceClaimTemplate by which a pod claims GPUs, instead of `gpus`.")
    ] = None
    volumes: Annotated[list[str], about("Volumes to mount, each NAME:/PATH or NAME:/PATH:ro.")] = []
    datasets: Annotated[list[str], about("Datasets to mount read-only, each [NAMESPACE/]NAME:/PATH.")] = []
    working_dir: Annotated[str | None, about("Working directory in a volume, NAME:PATH.")] = None
    host_env: Annotated[bool, about("On a local cluster: run in this machine's environment.")] = False
    priority_class: Annotated[str | None, about("PriorityClass of the pods.")] = None
    queue: Annotated[
        str | None, about("LocalQueue of Kueue, in whose quota they run; left out: `default`, or none.")
    ] = None
    spot: Annotated[bool, about("Whether pods may run on preemptible nodes.")] = False
    restart_limit: Annotated[
        int | None, about("Lost pods that are replaced, at most; left out: 100 or parallelism, the larger.")
    ] = None
    preflight_read: Annotated[list[str], about("Paths that must be readable before any item starts.")] = []
    preflight_write: Annotated[list[str], about("Paths that must be writable before any item starts.")] = []
    notify: Annotated[list[str], about("Where notices go, each https://… or mailto:ADDRESS.")] = []


class NewMap(Request):
    """A map to create. A repeat with the same `request` returns the existing map."""

    name: Annotated[Text, about("Name of the map, unique in its namespace.")]
    request: Annotated[Text64, about("Id that the caller makes; the same id again returns the same map.")]
    policy: MapPolicy = MapPolicy()
    limits: Annotated[
        dict[LimitName, MapLimit], about("Name of each limit, and the tokens that a lease holds.")
    ] = {}
    priority: Annotated[
        Priority, about("-1000 to 1000; the highest is served first among maps that share a limit.")
    ] = 0
    workers: Annotated[MapWorkers | None, about("Workers to create; left out: the map is only in the queue.")] = (
        None
    )


class MapChange(Request, omit_defaults=True):
    """A change of a map. Fields that are left out stay unchanged; a rate of 0 removes the rate."""

    state: Annotated[MapState | None, about("running, paused or cancelled.")] = None
    closed: Annotated[bool | None, about("true: the list of items is complete; false: more may come.")] = None
    priority: Annotated[
        Priority | None, about("-1000 to 1000; the highest is served first among maps that share a limit.")
    ] = None
    rate: Annotated[Rate | None, about("Leases handed out per second, at most; 0 removes the rate.")] = None
    parallelism: Annotated[int | None, about("Workers at most, from 1 to 10000, of a map that has workers.")] = (
        None
    )


class LimitChange(Request):
    """A change of a named limit."""

    capacity: Annotated[Capacity, about("Tokens of the limit in all.")]


class NewItem(msgspec.Struct, frozen=True):
    """One line of the items to add."""

    value: Annotated[msgspec.Raw, about("Value of the item, any JSON up to 64 KiB.")]
    key: Annotated[str | None, about("Name of the item, repeated in its result.")] = None
    seconds: Annotated[Seconds | None, about("How long the item is expected to take, in seconds.")] = None
    priority: Annotated[int, about("The highest is served first within the map.")] = 0
    memory: Annotated[Natural, about("Memory in bytes, when it needs more than the map's workers have.")] = 0


class AddItems(Query):
    """Query parameters for adding items."""

    first: Annotated[Natural | None, about("Number of the first line; the same items again add nothing.")] = None
    request: Annotated[str | None, about("Id of these lines; the same id again adds nothing.")] = None
    close: Annotated[bool, about("The list of items is complete after these.")] = False


class ItemPage(Query):
    """Filters for a list of items."""

    state: Annotated[
        tuple[str, ...], about("waiting, ready, running, done or failed; may repeat; left out: all.")
    ] = ()
    after: Annotated[Natural | None, about("Only items after this number; the `next` of the previous page.")] = (
        None
    )
    limit: Annotated[Natural | None, about("Items per page, at most 1000.")] = None


class After(Query):
    """The position after which the results begin."""

    after: Annotated[Natural | None, about("Only results of items after this number.")] = None
    inputs: Annotated[bool, about("Whether each result includes the value of its item.")] = False


class OutputPage(Query):
    """The part of the output to return."""

    item: Annotated[Natural | None, about("Only the output of this item; left out: of all.")] = None
    after: Annotated[Natural, about("Only parts after this `id`.")] = 0
    follow: Annotated[bool, about("Go on until the map has ended.")] = False


# -- answers


class MapCounts(Answer, frozen=True):
    """Items by state, workers, and sums since the map was created. Only a retry reduces `done + dead`."""

    total: Annotated[int, about("Items in all.")] = 0
    waiting: Annotated[int, about("Items that wait for their next try.")] = 0
    ready: Annotated[int, about("Items that a worker can take now.")] = 0
    leased: Annotated[int, about("Items that workers have.")] = 0
    done: Annotated[int, about("Items with a result.")] = 0
    dead: Annotated[int, about("Items that failed for good.")] = 0
    large: Annotated[int, about("Ready items that need more memory than the map's workers have.")] = 0
    leases: Annotated[int, about("Leases that workers hold now.")] = 0
    workers: Annotated[int, about("Workers that are connected.")] = 0
    granted: Annotated[int, about("Leases ever given.")] = 0
    lost: Annotated[int, about("Leases that ended by preemption or silence.")] = 0
    returned: Annotated[int, about("Leases returned unused.")] = 0
    failed: Annotated[int, about("Leases that ended by error, time-out or memory.")] = 0
    refused: Annotated[int, about("Answers that came too late to count.")] = 0
    twinned: Annotated[int, about("Leases given for items that another worker had too.")] = 0
    measured: Annotated[int, about("Done items whose time is known.")] = 0
    hinted: Annotated[int, about("Items added with an expected time.")] = 0

    @property
    def ended(self) -> int:
        return self.done + self.dead

    @property
    def executions(self) -> int:
        """The number of times that items were started."""
        return self.granted - self.returned


class Map(Answer, frozen=True):
    """A map."""

    namespace: str
    name: str
    created_at: Annotated[Time, about("When the map was created.")]
    uid: Annotated[str, about("Id of the map, never used again.")] = ""
    owner: Annotated[str, about("User who created it.")] = ""
    state: Annotated[str, about("running, paused, cancelled or finished.")] = MapState.RUNNING
    closed: Annotated[bool, about("Whether the list of items is complete.")] = False
    priority: Annotated[
        int, about("-1000 to 1000; the highest is served first among maps that share a limit.")
    ] = 0
    policy: MapPolicy = MapPolicy()
    limits: Annotated[Mapping[str, int], about("Name of each limit, and the tokens that a lease holds.")] = {}
    counts: MapCounts = MapCounts()
    spent_seconds: Annotated[float, about("Sum of the time of all measured items, in seconds.")] = 0.0
    hinted_seconds: Annotated[float, about("Sum of the expected time of all hinted items, in seconds.")] = 0.0
    mean_seconds: Annotated[float | None, about("Mean time of an item in seconds; null: not known yet.")] = None
    items_per_second: Annotated[
        float | None, about("Items done per second of late; null: not known yet, or cancelled.")
    ] = None
    seconds_left: Annotated[
        float | None, about("Expected seconds until all items are done; null: not known yet, or cancelled.")
    ] = None

    @property
    def is_finished(self) -> bool:
        return self.state == FINISHED

    @property
    def has_ended(self) -> bool:
        return self.state in (FINISHED, MapState.CANCELLED)


class CreatedMap(Map, frozen=True):
    """A map that was just created. `notes`, for a map with workers: defaults that were filled in, and advice."""

    notes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class MapList(Answer, frozen=True):
    maps: tuple[Map, ...] = ()


class Deleted(Answer, frozen=True):
    deleted: bool = True


class ItemFailure(Answer, frozen=True, omit_defaults=True):
    """The reason why an item failed for good."""

    at_ms: Annotated[int, about("When it failed, milliseconds since 1970-01-01 UTC.")]
    cause: Annotated[str, about("error, timeout, invalid, oom or lost.")]
    message: Annotated[str, about("Message of the worker, a sentence.")]
    exit: Annotated[int | None, about("Exit code of the command; left out: none.")] = None
    tries: Annotated[int, about("Tries that had failed by then.")] = 0
    output_bytes: Annotated[int, about("Size of the stored output in bytes.")] = 0


class MapItem(Answer, frozen=True, omit_defaults=True):
    """An item of a map."""

    item: Annotated[int, about("Index of the item in the map, from 0.")]
    state: Annotated[str, about("waiting, ready, leased (it runs), done or dead (it failed for good).")]
    value: Annotated[msgspec.Raw, about("Value of the item, any JSON.")]
    key: Annotated[str | None, about("Name of the item, as it was added.")] = None
    tries: Annotated[int, about("Tries that failed.")] = 0
    losses: Annotated[int, about("Workers that vanished while they had it.")] = 0
    memory_bytes: Annotated[int, about("Memory that it needs in bytes; 0: as the map's workers have.")] = 0
    ready_at_ms: Annotated[
        int, about("When its next try may start, milliseconds since 1970-01-01 UTC; 0: at once.")
    ] = 0
    leases: Annotated[int, about("How often it was given to a worker.")] = 0
    finished_at_ms: Annotated[int | None, about("When it was done, milliseconds since 1970-01-01 UTC.")] = None
    seconds: Annotated[float | None, about("How long it took, in seconds.")] = None
    peak_bytes: Annotated[int | None, about("Highest memory use in bytes.")] = None
    path: Annotated[str | None, about("Path of the result, where it is in a file.")] = None
    failure: Annotated[ItemFailure | None, about("Why it failed for good.")] = None


class ItemList(Answer, frozen=True):
    """A page of items."""

    items: tuple[MapItem, ...] = ()
    next: Annotated[int | None, about("Send it as `after` for the next page; null: this is the last page.")] = None


class ItemOutput(Answer, frozen=True):
    """An item with the last output of its last failure."""

    item: MapItem
    output: Annotated[bytes, about("Last output of its last failure, base64.")] = b""


class ItemsAdded(Answer, frozen=True):
    """The result of adding items."""

    added: Annotated[int, about("Items that this request added.")]
    total: Annotated[int, about("Items of the map now.")]


class Retried(Answer, frozen=True):
    """The result of a retry of a map."""

    retried: Annotated[int, about("Dead items that are ready again.")]


class WorkerToken(Answer, frozen=True):
    """The token of a map's workers."""

    token: Annotated[str, about("Bearer token that the map's workers present.")]


class MapResult(Answer, frozen=True, omit_defaults=True):
    """A line of a map's results."""

    item: Annotated[int, about("Number of the item, from 0.")]
    at_ms: Annotated[int, about("When it was done, milliseconds since 1970-01-01 UTC.")]
    key: Annotated[str | None, about("Name of the item, as it was added.")] = None
    value: Annotated[
        msgspec.Raw | msgspec.UnsetType, about("Result, any JSON; left out: it is in the file `path`.")
    ] = msgspec.UNSET
    path: Annotated[str | None, about("Path of the file with the result.")] = None
    input: Annotated[
        msgspec.Raw | msgspec.UnsetType, about("The item's value, if the query asks for `inputs`.")
    ] = msgspec.UNSET
    seconds: Annotated[float | None, about("How long the item took, in seconds.")] = None
    peak_bytes: Annotated[int | None, about("Highest memory use in bytes.")] = None


class OutputPart(Answer, frozen=True):
    """A part of the output of items."""

    id: Annotated[int, about("Number of the part; `after` takes it.")]
    at_ms: Annotated[int, about("When the worker sent it, milliseconds since 1970-01-01 UTC.")]
    pod: Annotated[str, about("Pod of the worker.")]
    item: Annotated[int, about("Number of the item; -1: a note of the worker itself.")]
    lease: Annotated[int, about("Number of the item's lease, from 1.")]
    output: Annotated[bytes, about("The output, base64.")] = b""


class Limit(Answer, frozen=True):
    """A named limit."""

    name: str
    capacity: Annotated[int, about("Tokens in all.")]
    held: Annotated[int, about("Tokens that leases hold now.")] = 0


class LimitList(Answer, frozen=True):
    limits: tuple[Limit, ...] = ()


class LimitSet(Answer, frozen=True):
    """A named limit after a change."""

    name: str
    capacity: Annotated[int, about("Tokens in all.")]
