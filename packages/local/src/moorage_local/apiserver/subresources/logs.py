"""The subresource `pods/log`: the log of a container, as a stream from the node agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from moorage_kube.clock import parse_rfc3339
from moorage_kube.errors import BadRequest
from moorage_kube.resources import NODES, PODS, Resource
from moorage_kube.tasks import next_task
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.pipeline.refusals import not_found
from moorage_local.apiserver.subresources.containers import container_of
from moorage_local.apiserver.types.fields import FieldErrors


async def logs(
    core: Core, call: Call, name: str, namespace: str | None, **options: Any
) -> AsyncIterator[bytes] | None:
    """Return the log stream of a container from the node agent (`core.log_source`).

    None if the pod has no node.
    """
    kind = core.kind_of(PODS)
    core.pipeline.authorise(call, "get", kind, namespace, name, "log")
    pod = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    since = _checked(name, **options)
    container = container_of(pod, options.get("container") or "")
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    if core.log_source is None or core.pipeline.peek(core.kind_of(NODES), node) is None:
        raise not_found(kind.resource, node)  # pods, as the real server says
    source = core.log_source(
        pod,
        container,
        follow=options.get("follow", False),
        tail_lines=options.get("tail_lines"),
        since_seconds=_seconds_since(since, core.clock.now()) if since else options.get("since_seconds"),
        timestamps=options.get("timestamps", False),
        previous=options.get("previous", False),
        limit_bytes=options.get("limit_bytes"),
    )
    return await _primed(source)


def _checked(name: str, **options: Any) -> datetime | None:
    """Check the options like the real server; return `since_time` as a datetime. Raises BadRequest, Invalid."""
    tail, most, seconds = options.get("tail_lines"), options.get("limit_bytes"), options.get("since_seconds")
    since = None
    if options.get("since_time"):
        try:
            since = parse_rfc3339(options["since_time"])
        except ValueError as error:
            raise BadRequest(str(error)) from None
    errors = FieldErrors()
    if tail is not None and tail < 0:
        errors.invalid("tailLines", tail, "must be greater than or equal to 0")
    if most is not None and most < 1:
        errors.invalid("limitBytes", most, "must be greater than 0")
    if since is not None and seconds is not None:
        errors.forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif seconds is not None and seconds < 1:
        errors.invalid("sinceSeconds", seconds, "must be greater than 0")
    errors.raise_if_any(Resource("", "v1", "pods", "PodLogOptions"), name)
    return since


def _seconds_since(moment: datetime, now: datetime) -> int:
    """Return the whole seconds since a moment, rounded up, for the node agent; at least 1."""
    return max(1, int((now - moment).total_seconds()) + 1)


async def _primed(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Ask for the first piece, so that an error becomes an answer and not a broken stream.

    Waits at most 50 ms: a source may have no data yet.
    """
    iterator = source.__aiter__()
    first = next_task(iterator)
    await asyncio.wait({first}, timeout=0.05)

    async def rest() -> AsyncIterator[bytes]:
        try:
            if (start := await first) is None:
                return
            yield start
            async for chunk in iterator:
                yield chunk
        finally:
            first.cancel()
            closing = getattr(iterator, "aclose", None)
            if closing is not None and first.done():
                await closing()

    if first.done() and (error := first.exception()) is not None:
        raise error
    return rest()
