"""/api/v1/volumes: listed with real use, made, resized, deleted as the asker: cluster rights decide."""

from __future__ import annotations

import asyncio
from typing import Any

from moorage.actions import volumes
from moorage.api.fields import Force, Page
from moorage.api.volumes import NewVolume, Resize, StorageClassList, Volume, VolumeList
from moorage.apimachinery.resources import PVCS, Obj
from moorage.errors import ApiError
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.idempotency import create_once

ALL = "/api/v1/volumes"
ONE = f"{ALL}/{{namespace}}/{{name}}"
USED_SECONDS = 30.0  # what nodes reported of volumes is believed so long
NODE_SECONDS = 5.0  # patience with one node


async def list_volumes(call: Call[None, Page]) -> VolumeList:
    """Volumes with what they hold, where a node reported it; `limit` and `continue` page."""
    page = call.query
    rows, after = await volumes.list_volumes(
        call.api, page.namespace or None, await used_by_volumes(call.context), limit=page.limit, after=page.after
    )
    return VolumeList(volumes=tuple(rows), after=after)


async def create_volume(call: Call[NewVolume, None]) -> Volume:
    """Create a volume. `Idempotency-Key`: asking twice is as once."""
    claim = volumes.plan_volume(call.body, call.user.name)
    call.audit("create volume", f"{call.body.namespace}/{call.body.name}")
    stored = await create_once(call.api, PVCS, claim, call.body.namespace, call.mark)
    return volumes.volume_of(stored, {}, {})


async def resize_volume(call: Call[Resize, None]) -> Volume:
    """Make a volume larger. 409 for a smaller size, or a StorageClass that cannot expand volumes."""
    call.audit("resize volume", f"{call.namespace}/{call.name} to {call.body.size}")
    volume, _ = await volumes.resize_volume(call.api, call.namespace, call.name, call.body.size)
    return volume


async def delete_volume(call: Call[None, Force]) -> None:
    """Delete a volume. 409 while it is in use, unless `force=true`: then its pods end."""
    call.audit("delete volume", f"{call.namespace}/{call.name}")
    await volumes.delete_volume(call.api, call.namespace, call.name, force=call.query.force)


async def list_storage_classes(call: Call[None, None]) -> StorageClassList:
    """The StorageClasses, and what each can do. They are no secret: who may not list them gets them too."""
    try:
        classes = await volumes.list_storage_classes(call.api if call.user.account else call.context.api)
    except ApiError:
        classes = await volumes.list_storage_classes(call.context.api)
    return StorageClassList(storage_classes=tuple(classes))


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_volumes, query=Page, answer=VolumeList),
    Endpoint(method="POST", path=ALL, handler=create_volume, body=NewVolume, answer=Volume, status=201, once=True),
    Endpoint(method="PATCH", path=ONE, handler=resize_volume, body=Resize, answer=Volume),
    Endpoint(method="DELETE", path=ONE, handler=delete_volume, query=Force),
    Endpoint(method="GET", path="/api/v1/storageclasses", handler=list_storage_classes, answer=StorageClassList),
)


async def used_by_volumes(context: Context) -> dict[tuple[str, str], int]:
    """(namespace, claim) → bytes in use, as kubelets report; only of volumes that are mounted somewhere.

    https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
    """
    kubelets = context.kubelets
    if kubelets is None:
        return {}
    kept = context.memory.get("volumes used")
    now = context.clock.monotonic()
    if kept is not None and now - kept[0] < USED_SECONDS:
        known: dict[tuple[str, str], int] = kept[1]
        return known
    nodes = context.cluster.nodes.all()

    async def ask(node: Obj) -> dict[tuple[str, str], int]:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return used_of(await kubelets.summary(node))
        except (ApiError, ValueError, TimeoutError, OSError):
            return {}

    used: dict[tuple[str, str], int] = {}
    for first in range(0, len(nodes), 32):
        for report in await asyncio.gather(*(ask(node) for node in nodes[first : first + 32])):
            for key, size in report.items():
                used[key] = max(size, used.get(key, 0))
    context.memory["volumes used"] = (now, used)
    return used


def used_of(summary: Any) -> dict[tuple[str, str], int]:
    """The claims in a kubelet's summary. Parts of another shape are left out."""
    used: dict[tuple[str, str], int] = {}
    for pod in (summary.get("pods") or ()) if isinstance(summary, dict) else ():
        for volume in pod.get("volume") or ():
            ref, size = volume.get("pvcRef") or {}, volume.get("usedBytes")
            if ref.get("name") and isinstance(size, int) and size >= 0:
                used[str(ref.get("namespace") or ""), str(ref["name"])] = size
    return used
