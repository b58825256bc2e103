"""/api/v1/maps and /api/v1/limits: maps, their items, results and output, for users. docs/design/0005-map.md"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moorage.actions import mapjobs, maps
from moorage.api.errors import ErrorCode
from moorage.api.maps import (
    AddItems,
    After,
    CreatedMap,
    Deleted,
    ItemList,
    ItemOutput,
    ItemPage,
    ItemsAdded,
    LimitChange,
    LimitList,
    LimitSet,
    Map,
    MapChange,
    MapList,
    MapWorkers,
    NewMap,
    OutputPage,
    Retried,
    WorkerToken,
)
from moorage.decide.maps import leasing
from moorage.decide.runs.request import Caller
from moorage.model.names import is_dns_label
from moorage.server.endpoint import Call, Endpoint
from moorage.server.idempotency import mark_of
from moorage.server.inputs import number
from moorage.server.namespaces import records_since
from moorage.server.problems import Problem
from moorage.server.queue.access import allow, map_of, oldest_maps, while_allowed
from moorage.server.runfacts import nodes_of
from moorage_kube.errors import UsageError

ALL = "/api/v1/maps"
ONE = f"{ALL}/{{namespace}}/{{name}}"
LIMITS = "/api/v1/limits"
BODY_BYTES = 256 * 1024  # of a request that is no list of items
LINE_BYTES = leasing.VALUE_BYTES + 4096
NDJSON = "application/x-ndjson"

_ENCODER = msgspec.json.Encoder()


async def create_map(call: Call[NewMap, None]) -> CreatedMap:
    """Create a map. With `workers`, also create its MapJob, as `moor map create` does."""
    await allow(call, "create", call.namespace)
    queue, body = call.context.queue, call.body
    if body.workers is None:
        since = await records_since(call.context.api, call.namespace)
        stored = await maps.create_map(queue, call.namespace, body, call.user.name, since=since)
        return CreatedMap(**msgspec.structs.asdict(await maps.show_map(queue, stored)))
    call.audit("create map", f"{call.namespace}/{body.name}")
    notes = await _create_workers(call, body.workers)
    stored = await maps.get_map(queue, call.namespace, body.name)
    return CreatedMap(**msgspec.structs.asdict(await maps.show_map(queue, stored)), notes=notes)


async def _create_workers(call: Call[NewMap, None], workers: MapWorkers) -> tuple[str, ...]:
    """Create the MapJob as the user, and wait until its map is in the queue; return the notes of the plan."""
    context, body, namespace, notes = call.context, call.body, call.namespace, list[str]()
    if context.api is None:
        raise UsageError(
            "this server has no cluster for the workers",
            hint="leave out workers",
            code=ErrorCode.BAD_REQUEST,
            field="workers",
        )
    if not is_dns_label(namespace):
        raise UsageError(
            f"invalid namespace {namespace!r}: use at most 63 of a-z, 0-9 and '-',"
            " with a letter or digit at both ends",
            code=ErrorCode.INVALID,
            field="namespace",
        )
    request = mapjobs.request_of(namespace, body, workers)
    caller = Caller(
        user=call.user.name,
        cwd="",
        program=workers.command[0] if workers.command else None,  # the node looks for it, in its own environment
    )
    mark = mark_of(call.user.name, f"map\0{namespace}\0{body.request}", body)
    async with context.turns.turn(mark):
        await mapjobs.submit_map(
            call.api,
            request,
            caller,
            cluster_nodes=lambda: nodes_of(context, request.run),
            clock=context.clock,
            note=notes.append,
            mark=mark,
        )
    return tuple(notes)


async def list_maps(call: Call[None, None]) -> MapList:
    """List the maps that the user may see, of all namespaces or of one."""

    async def since(namespaces: Collection[str]) -> Mapping[str, float]:
        may = [name for name in namespaces if await call.context.auth.may_use_maps(call.user, "list", name)]
        oldest = await oldest_maps(call.context, call.user, "list", may, gone=0)
        return dict.fromkeys(namespaces, math.inf) | oldest

    shown = await maps.list_maps(call.context.queue, call.path.get("namespace"), since)
    return MapList(maps=tuple(shown))


async def show_map(call: Call[None, None]) -> Map:
    """Show the counts, rate, expected end and policy of a map."""
    return await maps.show_map(call.context.queue, await map_of(call))


async def change_map(call: Call[MapChange, None]) -> Map:
    """Pause, resume, cancel, close or reopen a map, set its priority, its rate or the number of its workers."""
    queue, stored = call.context.queue, await map_of(call, "update")
    if call.body.parallelism is not None:
        if call.context.api is None:
            raise mapjobs.no_workers(stored.namespace, stored.name)
        await mapjobs.set_workers(call.api, stored.namespace, stored.name, call.body.parallelism)
    return await maps.show_map(queue, await maps.change_map(queue, stored, call.body))


async def delete_map(call: Call[None, None]) -> Deleted:
    """Delete a map with its items, its results and its workers."""
    queue, stored = call.context.queue, await map_of(call, "delete")
    if call.context.api is None:  # maps of one process have no cluster
        await queue.delete_map(stored.map.id)
    else:
        await mapjobs.delete_stored(call.api, queue, stored)
    return Deleted()


async def add_items(call: Call[None, AddItems]) -> ItemsAdded:
    """Add items, one JSON object per line. With the same `first`, a repeat adds nothing twice."""
    stored, query = await map_of(call, "update"), call.query
    return await maps.add_items(
        call.context.queue,
        stored,
        body_lines(call.request),
        first=query.first,
        request=query.request,
        close=query.close,
    )


async def list_items(call: Call[None, ItemPage]) -> ItemList:
    """List items in order, in pages."""
    stored, page = await map_of(call), call.query
    return await maps.list_items(call.context.queue, stored, states=page.state, after=page.after, limit=page.limit)


async def show_item(call: Call[None, None]) -> ItemOutput:
    """Show one item, with the last output of its last failure."""
    stored = await map_of(call)
    return await maps.get_item(call.context.queue, stored, number(str(call.path["item"]), "item"))


async def list_results(call: Call[None, After]) -> Response:
    """Show all results so far, one JSON object per line, in the order of the items."""
    stored = await map_of(call)
    pages = maps.results(call.context.queue, stored, after=call.query.after, inputs=call.query.inputs)
    return lasting(call, pages)


async def list_output(call: Call[None, OutputPage]) -> Response:
    """Show the output of items so far, one JSON object per line; with `follow=true` until the map ends."""
    stored, query, outputs = await map_of(call), call.query, call.context.outputs
    if outputs is None:  # a server that keeps none
        return StreamingResponse(iter(()), media_type=NDJSON)
    pages = maps.output(
        call.context.queue, outputs, stored, item=query.item, after=query.after, follow=query.follow
    )
    return lasting(call, pages)


async def retry_map(call: Call[None, None]) -> Retried:
    """Run the failed items again. A cancelled or paused map continues."""
    stored = await map_of(call, "update")
    return Retried(retried=await maps.retry_map(call.context.queue, stored))


async def worker_token(call: Call[None, None]) -> WorkerToken:
    """Show the token of the workers of a map."""
    stored = await map_of(call, "update")
    return WorkerToken(token=call.context.queue.token_of(stored.uid))


async def list_limits(call: Call[None, None]) -> LimitList:
    """List named limits: how many tokens exist, and how many are held."""
    return LimitList(limits=tuple(await maps.list_limits(call.context.queue)))


async def set_limit(call: Call[LimitChange, None]) -> LimitSet:
    """Set the number of tokens of a named limit. Leases that hold more keep them until they end."""
    await allow(call, "update", "")
    name = str(call.path["limit"])
    await maps.set_limit(call.context.queue, name, call.body.capacity)
    return LimitSet(name=name, capacity=call.body.capacity)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_maps, answer=MapList),
    Endpoint(method="GET", path=f"{ALL}/{{namespace}}", handler=list_maps, answer=MapList),
    Endpoint(
        method="POST",
        path=f"{ALL}/{{namespace}}",
        handler=create_map,
        body=NewMap,
        answer=CreatedMap,
        status=201,
        once=True,  # the body's `request` is its key; the header adds its turn
        body_bytes=BODY_BYTES,
    ),
    Endpoint(method="GET", path=ONE, handler=show_map, answer=Map),
    Endpoint(method="PATCH", path=ONE, handler=change_map, body=MapChange, answer=Map),
    Endpoint(method="DELETE", path=ONE, handler=delete_map, answer=Deleted),
    Endpoint(method="GET", path=f"{ONE}/items", handler=list_items, query=ItemPage, answer=ItemList),
    Endpoint(method="POST", path=f"{ONE}/items", handler=add_items, query=AddItems, answer=ItemsAdded),
    Endpoint(method="GET", path=f"{ONE}/items/{{item}}", handler=show_item, answer=ItemOutput),
    Endpoint(method="GET", path=f"{ONE}/results", handler=list_results, query=After, media_type=NDJSON),
    Endpoint(method="GET", path=f"{ONE}/output", handler=list_output, query=OutputPage, media_type=NDJSON),
    Endpoint(method="POST", path=f"{ONE}/retry", handler=retry_map, answer=Retried),
    Endpoint(method="POST", path=f"{ONE}/token", handler=worker_token, answer=WorkerToken),
    Endpoint(method="GET", path=LIMITS, handler=list_limits, answer=LimitList),
    Endpoint(method="PUT", path=f"{LIMITS}/{{limit}}", handler=set_limit, body=LimitChange, answer=LimitSet),
)


def lasting(call: Call[Any, Any], pages: AsyncIterator[list[Any]]) -> Response:
    """Stream pages as lines of JSON, as long as the caller may read them."""

    async def lines() -> AsyncIterator[bytes]:
        async for page in pages:
            yield b"".join(_ENCODER.encode(row) + b"\n" for row in page)

    return StreamingResponse(while_allowed(call, call.namespace, lines()), media_type=NDJSON)


async def body_lines(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """Read the lines of a body as they arrive, numbered from 1; skip empty lines. Raises Problem 413."""
    rest, count = b"", 0
    async for part in request.stream():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            count += 1
            if line.strip():
                yield count, line
        if len(rest) > LINE_BYTES:
            where = f"line {count + 1}"
            raise Problem(413, ErrorCode.TOO_LARGE, f"{where} has more than {LINE_BYTES} bytes", None, where)
    if rest.strip():
        yield count + 1, rest
