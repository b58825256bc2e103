"""Maps in the queue: make, list, change and delete them; their items, results, output and limits.

The rights on `mapjobs.moorage.dev` are checked before. The objects of a map on a cluster, its MapJob and
workers, are in `mapjobs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

import msgspec

from moorage.api.errors import ErrorCode
from moorage.api.maps import (
    FINISHED,
    ItemList,
    ItemOutput,
    ItemsAdded,
    Limit,
    Map,
    MapChange,
    MapCounts,
    MapPolicy,
    MapResult,
    MapState,
    NewItem,
    NewMap,
    OutputPart,
)
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Policy, State
from moorage.model.names import RUN_NAME_MAX, is_dns_label
from moorage.queue.manager import Queue
from moorage.queue.outputs import Outputs
from moorage.queue.store import PAGE_ROWS, Store, Stored
from moorage_kube.documents import check_nesting
from moorage_kube.errors import AlreadyExists, Conflict, DocumentError, NotFound, UsageError

ADD_AT_ONCE = 2000  # items per transaction
END_LOOK_SECONDS = 2.0  # between two looks whether a map that is followed has ended
WORDS = {"leased": "running", "dead": "failed", "large": "ready"}  # the queue's states, as people read them
_BY_NAME = {"ready": (State.READY, State.LARGE)} | {
    state.name.lower(): (state,) for state in State if state not in leasing.READY_STATES
}
STATES = _BY_NAME | {
    WORDS[name]: states for name, states in _BY_NAME.items() if name in WORDS
}  # the states that a client may request

_LINE = msgspec.json.Decoder(NewItem)


# -- maps


async def create_map(
    queue: Queue, namespace: str, request: NewMap, owner: str, *, since: datetime | None = None
) -> Stored:
    """Create a map; a repeat of the same request by the same owner returns the existing map.

    `since`: as in the queue. Raises AlreadyExists, QuotaExceeded, and UsageError for a limit that does not exist.
    """
    check_name(request.name)
    limits = {name: limit.tokens for name, limit in request.limits.items()}
    try:
        stored = await queue.create_map(
            namespace=namespace,
            name=request.name,
            owner=owner,
            policy=Policy(**msgspec.structs.asdict(request.policy), limits=limits),
            request=request.request,
            limits={name: limit.capacity for name, limit in request.limits.items() if limit.capacity is not None},
            priority=request.priority,
            since=since,
        )
    except AlreadyExists as error:
        raise name_taken(namespace, request.name) from error
    if stored.owner != owner:  # another person's request may have the same id
        raise name_taken(namespace, request.name)
    return stored


def check_name(name: str) -> None:
    """Raise UsageError for an invalid map name."""
    if not is_dns_label(name) or len(name) > RUN_NAME_MAX:
        raise UsageError(
            f"invalid map name {name!r}: use at most {RUN_NAME_MAX} of a-z, 0-9 and '-',"
            " beginning and ending with a letter or digit",
            code=ErrorCode.INVALID,
            field="name",
        )


def map_closed(namespace: str, name: str) -> Conflict:
    """The error for items that are added to a closed map."""
    return Conflict(
        f"cannot add items: the map {name!r} in namespace {namespace} is closed",
        hint="make maps that take more: moor map create --open",
        code=ErrorCode.CONFLICT,
    )


def name_taken(namespace: str, name: str) -> AlreadyExists:
    return AlreadyExists(
        f"the name {name!r} is taken: another map in namespace {namespace} has it",
        hint=f"look at it: moor map status {name}"
        f"   go on with its upload: moor map add {name} --resume -f FILE, with the same items"
        f"   remove it: moor map delete {name}",
        code=ErrorCode.EXISTS,
        field="name",
    )


async def list_maps(
    queue: Queue, namespace: str | None, since: Callable[[Collection[str]], Awaitable[Mapping[str, float]]]
) -> list[Map]:
    """The maps of a namespace (None: all), without those older than `since` of their namespace.

    `since` returns milliseconds since 1970.
    """
    stored = await queue.read(lambda store: store.list_maps(namespace))
    oldest = await since({each.namespace for each in stored})
    return [await show_map(queue, each) for each in stored if each.created_at >= oldest[each.namespace]]


async def get_map(queue: Queue, namespace: str, name: str, *, since: float = 0) -> Stored:
    """A map. Raises NotFound, also if it was created before `since`, in milliseconds since 1970."""
    stored = await queue.read(lambda store: store.find_map(namespace, name))
    if stored is None or stored.created_at < since:
        raise NotFound(
            f"map {name!r} not found in namespace {namespace}",
            hint="list the maps: moor map list",
            code=ErrorCode.NOT_FOUND,
        )
    return stored


async def show_map(queue: Queue, stored: Stored) -> Map:
    """The map with its rate."""
    return map_of(stored, rate=await queue.rate_of(stored))


async def change_map(queue: Queue, stored: Stored, change: MapChange) -> Stored:
    """Pause, resume, cancel, close or reopen a map, set its priority or rate."""
    return await queue.change_map(
        stored.map.id,
        state=change.state,
        closed=change.closed,
        priority=change.priority,
        rate=change.rate,
    )


async def retry_map(queue: Queue, stored: Stored) -> int:
    """Make the failed items ready again and resume a paused or cancelled map; return the number of items."""
    retried = await queue.retry(stored.map.id)
    if stored.map.state is not MapState.RUNNING:
        await queue.change_map(stored.map.id, state=MapState.RUNNING)
    return retried


def map_of(stored: Stored, *, rate: float | None) -> Map:
    """Convert a stored map to an answer."""
    stored_map, counts = stored.map, stored.map.counts
    if stored_map.state is MapState.CANCELLED:
        rate = None  # all work has ended, so the remaining time is 0
    mean = leasing.mean_ms(counts)
    return Map(
        namespace=stored.namespace,
        name=stored.name,
        uid=stored.uid,
        owner=stored.owner,
        created_at=datetime.fromtimestamp(stored.created_at // 1000, UTC),
        state=FINISHED if leasing.is_finished(stored_map, counts) else stored_map.state.value,
        closed=stored_map.closed,
        priority=stored_map.priority,
        policy=MapPolicy(**{name: getattr(stored_map.policy, name) for name in MapPolicy.__struct_fields__}),
        limits=dict(stored_map.policy.limits),
        counts=MapCounts(**{name: getattr(counts, name) for name in MapCounts.__struct_fields__}),
        spent_seconds=counts.spent_ms / 1000,
        hinted_seconds=counts.hinted_ms / 1000,
        mean_seconds=None if mean is None else mean / 1000,
        items_per_second=rate,
        seconds_left=leasing.expected_seconds(remaining=counts.total - counts.done - counts.dead, per_second=rate),
    )


# -- items


async def add_items(
    queue: Queue,
    stored: Stored,
    lines: AsyncIterator[tuple[int, bytes]],
    *,
    first: int | None = None,
    request: str | None = None,
    close: bool = False,
) -> ItemsAdded:
    """Add numbered lines, some at a time; with `close` these are the last.

    With `first` (the number of the first line) or `request` (an id of the lines), adding again adds nothing twice.
    Raises UsageError for a line that is no item; those before it are added. Raises Conflict for a closed map.
    """
    added, start, part = 0, first, 0
    items: list[NewItem] = []

    async def flush() -> None:
        nonlocal added, start, part
        tag = None if request is None else f"{request}/{part}"
        try:
            begin, fresh = await queue.add_items(stored.map.id, items, first=start, request=tag)
        except Conflict as error:
            raise map_closed(stored.namespace, stored.name) from error
        added, part = added + fresh, part + 1
        start = None if first is None else begin + len(items)
        items.clear()

    async for number, line in lines:
        items.append(_parse_item(line, f"line {number}", added))
        if len(items) >= ADD_AT_ONCE:
            await flush()
    if items:
        await flush()
    if close:
        await queue.change_map(stored.map.id, closed=True)
    now = await get_map(queue, stored.namespace, stored.name)
    return ItemsAdded(added=added, total=now.map.counts.total)


def _parse_item(line: bytes, where: str, added: int) -> NewItem:
    """Raises UsageError."""
    try:
        item = _LINE.decode(line)
        check_nesting(bytes(item.value))
    except (msgspec.DecodeError, DocumentError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{where} is not an item: {error}; {added} items before it are added",
            hint='send lines like {"value": "2019-10-03"}',
            code=ErrorCode.INVALID,
            field=where,
        ) from error
    if len(item.value) > leasing.VALUE_BYTES:
        raise UsageError(
            f"the value in {where} has {len(item.value)} bytes; at most {leasing.VALUE_BYTES}",
            hint="put it into a file and send the path",
            code=ErrorCode.TOO_LARGE,
            field=where,
        )
    return item


async def list_items(
    queue: Queue, stored: Stored, *, states: Iterable[str], after: int | None, limit: int | None
) -> ItemList:
    """A page of items in order. Raises UsageError for an unknown state."""
    wanted = parse_states(states)
    most = min(limit or PAGE_ROWS, PAGE_ROWS)
    page = await queue.read(
        lambda store: store.list_items(
            stored.map.id, states=wanted, after=-1 if after is None else after, limit=most
        )
    )
    return ItemList(items=tuple(page), next=page[-1].item if len(page) == most else None)


def parse_states(states: Iterable[str]) -> list[State]:
    """Parse names of item states. Raises UsageError for an unknown state."""
    wanted: list[State] = []
    for text in states:
        if text not in STATES:
            known = ", ".join(dict.fromkeys(WORDS.get(name, name) for name in STATES))
            raise UsageError(f"invalid state {text!r}: use {known}", code=ErrorCode.BAD_REQUEST, field="state")
        wanted += STATES[text]
    return wanted


async def get_item(queue: Queue, stored: Stored, item: int) -> ItemOutput:
    """Raises NotFound."""
    row = await queue.read(lambda store: store.get_item(stored.map.id, item))
    if row is None:
        raise NotFound(
            f"the map {stored.name!r} in namespace {stored.namespace} has no item {item}",
            hint=f"list its items: moor map items {stored.name}",
            code=ErrorCode.NOT_FOUND,
        )
    return ItemOutput(item=row[0], output=row[1])


async def results(
    queue: Queue, stored: Stored, *, after: int | None = None, inputs: bool = False
) -> AsyncIterator[list[MapResult]]:
    """All results so far, page by page, in the order of the items. `inputs`: with the values of the items."""
    at = -1 if after is None else after
    while page := await queue.read(partial(Store.results, of=stored.map.id, after=at, inputs=inputs)):
        yield page
        at = page[-1].item


async def output(
    queue: Queue, outputs: Outputs, stored: Stored, *, item: int | None, after: int, follow: bool
) -> AsyncIterator[list[OutputPart]]:
    """The output of items so far, a page at a time; with `follow` until the map has ended."""
    last = not follow
    while True:
        page = await outputs.page(stored.map.id, item=item, after=after)
        if page:
            yield [
                OutputPart(
                    id=part.id, at_ms=part.at, pod=part.pod, item=part.item, lease=part.lease, output=part.output
                )
                for part in page
            ]
            after = page[-1].id
            continue
        if last:
            return
        try:
            async with asyncio.timeout(END_LOOK_SECONDS):
                await outputs.news(stored.map.id, after=after)
        except TimeoutError:
            last = await _has_ended(queue, stored)


async def _has_ended(queue: Queue, stored: Stored) -> bool:
    """Whether all output has arrived: workers send their output before they leave."""
    now = await queue.read(lambda store: store.find_uid(stored.uid))
    if now is None:
        return True
    has_ended = now.map.state is MapState.CANCELLED or leasing.is_finished(now.map, now.map.counts)
    return has_ended and not now.map.counts.workers


# -- limits


async def list_limits(queue: Queue) -> list[Limit]:
    """Named limits: their numbers of tokens, and of tokens in use."""
    limits = await queue.read(lambda store: store.limits())
    return [Limit(name=limit.name, capacity=limit.capacity, held=limit.held) for limit in limits]


async def set_limit(queue: Queue, name: str, capacity: int) -> None:
    """Set the capacity of a limit. Leases that hold more tokens keep them until they end."""
    await queue.set_limit(name, capacity)
