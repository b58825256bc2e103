"""Register the Node object and its Lease, then update them."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from moorage_kube.clock import rfc3339, rfc3339_micro
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from moorage_kube.resources import LEASES, NAMESPACES, NODES, Obj
from moorage_local.nodeagent.context import Context
from moorage_local.nodeagent.node import (
    IMAGES_ANNOTATION,
    LEASE_NAMESPACE,
    RENEW_SECONDS,
    is_doubted,
    labels,
    lease_object,
    node_object,
    node_status,
    own_annotations,
)

log = logging.getLogger(__name__)

STATUS_SECONDS = 300.0  # how often the Node's status is written without a change, as kubelets do


class Heartbeat:
    """Writes the status and the Lease of the Node. `woken` is set when the machine wakes from a sleep."""

    def __init__(self, context: Context, woken: asyncio.Event) -> None:
        self._context = context
        self._woken = woken
        self._uid = ""  # of the Node

    async def register(self) -> None:
        """Create the Node or update its labels, then write its status and Lease."""
        while True:
            try:
                await self.write(ready=True)
                await self._write_lease()
                return
            except (ApiError, OSError) as error:
                log.warning(
                    "node not registered yet", extra={"node": self._context.node.name, "error": str(error)}
                )
                await self._context.clock.sleep(0.5)

    async def write(self, *, ready: bool, why: str = "") -> None:
        node = await self._context.get(NODES, self._context.node.name)
        if node is None:
            try:
                node = await self._context.api.create(NODES, node_object(self._context.node))
            except AlreadyExists:
                node = await self._context.api.get(NODES, self._context.node.name)
        wanted = labels(self._context.node)
        have = node["metadata"].get("labels") or {}
        stale = [label for label in have if label.startswith("nvidia.com/gpu.") and label not in wanted]
        notes: dict[str, str | None] = {IMAGES_ANNOTATION: None, **own_annotations(self._context.node)}
        noted = node["metadata"].get("annotations") or {}
        change: Obj = {}
        if stale or any(have.get(name) != value for name, value in wanted.items()):
            change["labels"] = dict(wanted) | {label: None for label in stale}
        if any(noted.get(name) != value for name, value in notes.items()):
            change["annotations"] = notes
        if change:
            node = await self._context.api.patch(NODES, self._context.node.name, {"metadata": change})
        self._uid = node["metadata"]["uid"]
        status = node_status(
            self._context.node,
            node.get("status") or {},
            now=rfc3339(self._context.clock.now()),
            storage_bytes=self._context.storage_bytes(),
            pressure=self._context.is_disk_pressure(),
            ready=ready,
            why=why,
        )
        for _ in range(5):
            try:
                await self._context.api.update(NODES, {**node, "status": status}, subresource="status")
                return
            except Conflict:
                node = await self._context.api.get(NODES, self._context.node.name)

    async def _write_lease(self) -> None:
        now = rfc3339_micro(self._context.clock.now())
        try:
            await self._context.api.patch(
                LEASES,
                self._context.node.name,
                {"spec": {"renewTime": now, "holderIdentity": self._context.node.name}},
                LEASE_NAMESPACE,
            )
        except NotFound:
            lease = lease_object(self._context.node, self._uid, now=now)
            try:
                await self._context.api.create(LEASES, lease, LEASE_NAMESPACE)
            except NotFound:  # a server that does not make the namespace itself
                with contextlib.suppress(AlreadyExists):
                    await self._context.api.create(
                        NAMESPACES,
                        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}},
                    )
                await self._context.api.create(LEASES, lease, LEASE_NAMESPACE)

    async def renew(self) -> None:
        """Renew the Lease. Write the status if it is old, and at once if the API shows another status."""
        written = self._context.clock.monotonic()
        while True:
            await self._time_to_renew()
            try:
                await self._write_lease()
                node = await self._context.get(NODES, self._context.node.name)
                if self._context.is_shutting_down:
                    continue
                if (
                    is_doubted(node, pressure=self._context.is_disk_pressure())
                    or self._context.clock.monotonic() - written >= STATUS_SECONDS
                ):
                    await self.write(ready=True)
                    written = self._context.clock.monotonic()
            except (ApiError, OSError) as error:
                log.warning("heartbeat not written", extra={"node": self._context.node.name, "error": str(error)})

    async def _time_to_renew(self) -> None:
        """Wait RENEW_SECONDS, or until the machine wakes from a sleep."""
        self._woken.clear()
        waits = [
            asyncio.ensure_future(self._context.clock.sleep(RENEW_SECONDS)),
            asyncio.ensure_future(self._woken.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
