"""GET on resources."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import msgspec

from moorage_kube.errors import ApiError, Forbidden, NotFound
from moorage_kube.resources import Obj
from moorage_kube.tasks import next_task
from moorage_local.apiserver.http.target import Target
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.pipeline.calls import Call, Event, ListOptions
from moorage_local.apiserver.pipeline.refusals import not_allowed
from moorage_local.apiserver.wire.answers import (
    JSON,
    PIECE_BYTES,
    Answer,
    ListForm,
    Stream,
    formatted,
    pieces,
    wants_metadata,
    wants_table,
)
from moorage_local.apiserver.wire.requests import Request
from moorage_local.apiserver.wire.tables import Table, partial_object

BOOKMARK_SECONDS = 60.0  # between bookmarks of a watch that asked for them
WATCH_SECONDS = 1800.0  # a watch without timeoutSeconds ends after this, as the real server's 30 to 60 minutes
WATCH_SECONDS_MAX = 7 * 86400.0  # the largest timeoutSeconds


async def read(server: Operations, request: Request, call: Call, target: Target) -> Answer | Stream:
    """Answer GET: an object, a list, a watch, a log or a subresource."""
    kind, name = target.kind, target.name
    if name is None or target.watching:
        field_selector = request.query.get("fieldSelector") or None
        if name is not None:
            field_selector = ",".join(filter(None, (field_selector, f"metadata.name={name}")))
        if target.watching:
            return _watch(server, request, call, target, field_selector)
        return await _list(server, request, call, target, field_selector)
    if target.subresource == "log":
        return await _log(server, request, call, name, target.namespace)
    if target.subresource:
        return Answer(await server.get_subresource(call, kind, name, target.namespace, target.subresource))
    obj = await server.pipeline.get(call, kind, name, target.namespace)
    return formatted(request, server.clock, kind, obj, None)


async def _list(
    server: Operations, request: Request, call: Call, target: Target, field_selector: str | None
) -> Answer | Stream:
    selected = await server.pipeline.select(
        call,
        target.kind,
        target.namespace,
        ListOptions(
            label_selector=request.query.get("labelSelector") or None,
            field_selector=field_selector,
            limit=request.number("limit"),
            cont=request.query.get("continue") or None,
            resource_version=request.query.get("resourceVersion") or None,
            resource_version_match=request.query.get("resourceVersionMatch") or None,
        ),
    )
    meta: Obj = {"resourceVersion": selected.resource_version}
    if selected.cont:
        meta["continue"] = selected.cont
        if selected.remaining is not None:
            meta["remainingItemCount"] = selected.remaining
    kind, view = target.kind, server.pipeline.view
    objects = (view(kind, record) for record in selected.records)
    if request.method == "HEAD" or sum(len(record.value) for record in selected.records) <= PIECE_BYTES:
        return formatted(request, server.clock, kind, list(objects), meta)
    return Stream(pieces(ListForm(request, server.clock, kind, meta), objects), content_type=JSON)


async def node_stats(server: Operations, request: Request, call: Call, kind: Kind, name: str) -> Answer:
    """Return the kubelet's statistics of its pods' volumes; other paths of a kubelet are not proxied here.

    It takes the same right as at a kubelet: `nodes/stats`, or `nodes/proxy`, which includes all.
    """
    if request.method not in ("GET", "HEAD"):
        raise not_allowed()
    try:
        server.pipeline.authorise(call, "get", kind, None, name, "stats")
    except Forbidden:
        server.pipeline.authorise(call, "get", kind, None, name, "proxy")
    server.pipeline.read(kind, name, None)
    if server.stats_source is None:
        raise NotFound("the server could not find the requested resource", details={})
    return Answer(await server.stats_source(name))


async def _log(
    server: Operations, request: Request, call: Call, name: str, namespace: str | None
) -> Answer | Stream:
    query = request.query
    chunks = await server.logs(
        call,
        name,
        namespace,
        container=query.get("container") or None,
        follow=request.flag("follow"),
        tail_lines=request.number("tailLines"),
        since_seconds=request.number("sinceSeconds"),
        since_time=query.get("sinceTime") or None,
        timestamps=request.flag("timestamps"),
        previous=request.flag("previous"),
        limit_bytes=request.number("limitBytes"),
    )
    if chunks is None:
        return Answer(b"", 204, content_type=b"text/plain")
    return Stream(chunks, content_type=b"text/plain")


def _watch(server: Operations, request: Request, call: Call, target: Target, field_selector: str | None) -> Stream:
    kind = target.kind
    query = request.query
    bookmarks = request.flag("allowWatchBookmarks")
    initial = {"true": True, "false": False}.get(query.get("sendInitialEvents", ""))
    batches = server.pipeline.watch(
        call,
        kind,
        target.namespace,
        resource_version=query.get("resourceVersion") or None,
        label_selector=query.get("labelSelector") or None,
        field_selector=field_selector,
        bookmarks=bookmarks,
        initial_events=initial,
    )
    # the form of each event: the object, its metadata alone, or a row of a table
    table = wants_table(request)
    partial = wants_metadata(request)
    shape = Table(kind, server.clock, query.get("includeObject", "Metadata")) if table else None

    def encode(event: Event) -> bytes:
        obj = event.obj
        if shape is not None:
            obj = shape.of([obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}, event.type)
        elif partial and event.type != "BOOKMARK":
            obj = partial_object(obj)
        return msgspec.json.encode({"type": event.type, "object": obj}) + b"\n"

    # the events as they come, and bookmarks while none come
    async def lines() -> AsyncIterator[bytes]:
        pending: asyncio.Task[Sequence[Event] | None] | None = None
        try:
            while True:
                if pending is None:
                    pending = next_task(batches)
                if bookmarks:
                    done, _ = await asyncio.wait({pending}, timeout=BOOKMARK_SECONDS)
                    if not done:
                        yield encode(server.pipeline.bookmark(kind))
                        continue
                try:
                    batch = await pending
                except ApiError as error:
                    yield msgspec.json.encode({"type": "ERROR", "object": error.to_status()}) + b"\n"
                    return
                finally:
                    if pending.done():
                        pending = None
                if batch is None:
                    return
                yield b"".join(map(encode, batch))
        finally:
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, ApiError):
                    await pending
            await batches.aclose()

    stream = lines()
    seconds = min(float(request.number("timeoutSeconds") or WATCH_SECONDS), WATCH_SECONDS_MAX)
    return Stream(stream, content_type=JSON, seconds=max(0.0, seconds))
