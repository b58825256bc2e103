"""`pods/log`: the node agent's stream of a container's log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from moorage.apimachinery.resources import NODES, PODS, Resource
from moorage.clock import parse_rfc3339
from moorage.errors import BadRequest
from moorage.localcluster.apiserver.core import Core
from moorage.localcluster.apiserver.pipeline.calls import Call
from moorage.localcluster.apiserver.pipeline.refusals import not_found
from moorage.localcluster.apiserver.types.fields import FieldErrors


async def logs(
    core: Core, call: Call, name: str, namespace: str | None, **options: Any
) -> AsyncIterator[bytes] | None:
    """The stream of `pods/log`; the node agent is asked through `core.log_source`. None: the pod has no node."""
    kind = core.kind_of(PODS)
    core.pipeline.authorise(call, "get", kind, namespace, name, "log")
    pod = core.pipeline.view(kind, core.pipeline.read(kind, name, namespace))
    containers = [container["name"] for container in pod["spec"].get("containers") or ()]
    every = [container["name"] for container in pod["spec"].get("initContainers") or ()] + containers
    container = options.get("container")
    if container is None:
        wanted = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
        if wanted in every:
            container = wanted
        elif len(containers) == 1:
            container = containers[0]
        else:
            raise BadRequest(
                f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
            )
    if container not in every:
        raise BadRequest(f"container {container} is not valid for pod {name}")
    node = pod["spec"].get("nodeName")
    if not node:
        return None
    if core.log_source is None or core.pipeline.peek(core.kind_of(NODES), node) is None:
        raise not_found(kind.resource, node)  # pods, as the real server says
    since = options.get("since_seconds")
    if since is None and options.get("since_time"):
        try:
            moment = parse_rfc3339(options["since_time"])
        except ValueError as error:
            raise BadRequest(str(error)) from None
        since = max(1, int((core.clock.now() - moment).total_seconds()) + 1)
    for key in ("tail_lines", "limit_bytes"):
        value = options.get(key)
        if value is not None and value < (1 if key == "limit_bytes" else 0):
            errors = FieldErrors()
            errors.invalid(_camel(key), value, "must be greater than or equal to 0")
            errors.raise_if_any(Resource("", "v1", "pods", "PodLogOptions"), name)
    source = core.log_source(
        pod,
        container,
        follow=options.get("follow", False),
        tail_lines=options.get("tail_lines"),
        since_seconds=since,
        timestamps=options.get("timestamps", False),
        previous=options.get("previous", False),
        limit_bytes=options.get("limit_bytes"),
    )
    return await _primed(source)


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


async def _primed(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Ask for the first piece, so that an error becomes an answer and not a broken stream.

    A source that has nothing yet is not waited for: only what it does before its first wait counts.
    """
    iterator = source.__aiter__()
    first = asyncio.ensure_future(anext(iterator))
    await asyncio.wait({first}, timeout=0.05)

    async def rest() -> AsyncIterator[bytes]:
        try:
            try:
                yield await first
            except StopAsyncIteration:
                return
            async for chunk in iterator:
                yield chunk
        finally:
            first.cancel()
            closing = getattr(iterator, "aclose", None)
            if closing is not None and first.done():
                await closing()

    if first.done() and (error := first.exception()) is not None and not isinstance(error, StopAsyncIteration):
        raise error
    return rest()
