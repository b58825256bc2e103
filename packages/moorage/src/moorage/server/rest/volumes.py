"""/api/v1/volumes: list volumes with measured use, create, resize and delete them as the caller.

Cluster rights decide.
"""

from __future__ import annotations

from typing import Any

from moorage.actions import volumes
from moorage.api.fields import Force, Page
from moorage.api.volumes import Helper, NewVolume, Resize, StorageClassList, Volume, VolumeList
from moorage.controllers.dataset.filler import find_runtime
from moorage.server.endpoint import Call, Endpoint
from moorage.server.listings import visible_storage_classes

ALL = "/api/v1/volumes"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_volumes(call: Call[None, Page]) -> VolumeList:
    """List volumes, with the used bytes where a node reported them."""
    page = call.query
    rows, after = await volumes.list_volumes(
        call.api, page.namespace or None, await call.context.volume_use.used(), limit=page.limit, after=page.after
    )
    return VolumeList(volumes=tuple(rows), after=after)


async def create_volume(call: Call[NewVolume, None]) -> Volume:
    """Create a volume. With `Idempotency-Key` a repeat creates nothing."""
    claim = volumes.plan_volume(call.body, call.user.name)
    call.audit("create volume", f"{call.body.namespace}/{call.body.name}")
    return await volumes.create_volume(call.api, claim, mark=call.mark)


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
    """List the StorageClasses and their abilities. Every user may see them."""
    return StorageClassList(storage_classes=tuple(await visible_storage_classes(call.context, call.user)))


async def get_helper(call: Call[None, None]) -> Helper:
    """Show the image and the Python of the helper pod that copies files to and from a volume. Every user may
    see it.
    """
    runtime = await find_runtime(call.context.api)
    return Helper(image=runtime.image, python=runtime.python)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_volumes, query=Page, answer=VolumeList),
    Endpoint(method="POST", path=ALL, handler=create_volume, body=NewVolume, answer=Volume, status=201, once=True),
    Endpoint(method="PATCH", path=ONE, handler=resize_volume, body=Resize, answer=Volume),
    Endpoint(method="DELETE", path=ONE, handler=delete_volume, query=Force),
    Endpoint(method="GET", path="/api/v1/storageclasses", handler=list_storage_classes, answer=StorageClassList),
    Endpoint(method="GET", path="/api/v1/helper", handler=get_helper, answer=Helper),
)
