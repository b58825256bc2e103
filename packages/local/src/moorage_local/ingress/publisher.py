"""Writes the table of routes for the proxy, and the address of the proxy into the status of each Ingress."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path

from moorage_kube.api import Api
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, is_deleting, key_of, labels_of
from moorage_kube.resources import ENDPOINTSLICES, INGRESSCLASSES, INGRESSES, SERVICES, Obj
from moorage_local.informers import InformerSet
from moorage_local.ingress.table import SERVICE_NAME, Observed, is_ours, make_table, services_of, slices_by_service

ADDRESS = "127.0.0.1"
TABLE_KEY = Key("", "table")


class IngressPublisher:
    """Follows Ingresses and their backends. `path` is the table's file, `port` the proxy's.

    The caller runs the `informers`.
    """

    def __init__(self, api: Api, informers: InformerSet, path: Path, port: int) -> None:
        self._api = api
        self._path = path
        self._port = port
        self._ingresses = informers.of(INGRESSES)
        self._classes = informers.of(INGRESSCLASSES)
        self._services = informers.of(SERVICES)
        self._slices = informers.of(ENDPOINTSLICES)
        self._written = ""
        self._led_to: set[str] = set()  # "namespace/service" of all Ingresses: others' changes are no news
        self._tables: ControlLoop[Key] = ControlLoop("ingress table", self._write_table, workers=1)
        self._statuses: ControlLoop[Key] = ControlLoop("ingress status", self._write_status)
        self._ingresses.on_change(self._ingress_changed)
        self._classes.on_change(self._class_changed)
        self._services.on_change(self._service_changed)
        self._slices.on_change(self._slice_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._ingresses, self._classes, self._services, self._slices):
            await informer.synced.wait()
        self._tables.queue.add(TABLE_KEY)
        async with asyncio.TaskGroup() as group:
            for loop in (self._tables, self._statuses):
                group.create_task(loop.run(), name=loop.name)

    def _ingress_changed(self, before: Obj | None, after: Obj | None) -> None:
        for ingress in (before, after):
            if ingress is not None:
                self._led_to |= {f"{key_of(ingress).namespace}/{name}" for name in services_of(ingress)}
        self._tables.queue.add(TABLE_KEY)
        if after is not None:
            self._statuses.queue.add(key_of(after))

    def _class_changed(self, _before: Obj | None, _after: Obj | None) -> None:
        self._tables.queue.add(TABLE_KEY)
        for ingress in self._ingresses.all():
            self._statuses.queue.add(key_of(ingress))

    def _service_changed(self, before: Obj | None, after: Obj | None) -> None:
        if str(key_of(after or before or {})) in self._led_to:
            self._tables.queue.add(TABLE_KEY)

    def _slice_changed(self, before: Obj | None, after: Obj | None) -> None:
        for endpoint_slice in (before, after):
            if (
                endpoint_slice is not None
                and f"{key_of(endpoint_slice).namespace}/{labels_of(endpoint_slice).get(SERVICE_NAME)}"
                in self._led_to
            ):
                self._tables.queue.add(TABLE_KEY)

    async def _write_table(self, _: Key) -> timedelta | None:
        ingresses = self._ingresses.all()
        self._led_to = {
            f"{key_of(ingress).namespace}/{name}" for ingress in ingresses for name in services_of(ingress)
        }
        services = {str(key_of(service)): service for service in self._services.all()}
        table = make_table(
            Observed(
                ingresses=ingresses,
                classes=self._classes.all(),
                services=services,
                slices=slices_by_service(self._slices.all()),
            )
        )
        text = json.dumps(table)
        if text != self._written:
            scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            scratch.write_text(text)
            scratch.replace(self._path)
            self._written = text
        return None

    async def _write_status(self, key: Key) -> timedelta | None:
        ingress = self._ingresses.get(key.name, key.namespace)
        if ingress is None or is_deleting(ingress):
            return None
        wanted: list[Obj] = []
        if is_ours(ingress, self._classes.all()):
            wanted = [{"ip": ADDRESS, "ports": [{"port": self._port, "protocol": "TCP"}]}]
        known = ((ingress.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
        mine = [point for point in known if point.get("ip") == ADDRESS]
        if known == wanted or (not wanted and not mine):
            return None  # another controller's Ingress is its own business
        new = {**ingress, "status": {"loadBalancer": {"ingress": wanted} if wanted else {}}}
        try:
            await self._api.update(INGRESSES, new, subresource="status")
        except NotFound:
            return None
        return None
