"""Writes the EndpointSlices and Endpoints of Services, from the Services and their pods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import AlreadyExists, Forbidden, NotFound
from moorage_kube.meta import Key, annotations_of, is_deleting, key_of, labels_of
from moorage_kube.resources import ENDPOINTS, ENDPOINTSLICES, NODES, PODS, SERVICES, Obj
from moorage_local.controllers.base import NOT_YET, Writer
from moorage_local.controllers.endpoints.plan import (
    MANAGED_BY,
    OVER_CAPACITY,
    SERVICE_NAME,
    SLICE_MANAGER,
    ZONE,
    Seen,
    endpoints_object,
    is_managed,
    plan_slices,
)
from moorage_local.controllers.events import EventRecorder
from moorage_local.informers import InformerSet

RETRY = timedelta(milliseconds=100)  # after another made the object or removed its namespace


class EndpointsController:
    """Two loops that use the same observation; a real cluster has two controllers."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._api = api
        self._services = informers.of(SERVICES, namespace=_by_namespace)
        self._pods = informers.of(PODS, namespace=_by_namespace)
        self._nodes = informers.of(NODES)
        self._slices = informers.of(ENDPOINTSLICES, service=_by_service)
        self._endpoints = informers.of(ENDPOINTS)
        self._writer = Writer(api, events, clock)
        self._endpoints_writer = Writer(api, events, clock)
        self.slices: ControlLoop[Key] = ControlLoop("endpointslices", self.reconcile_slices, of=self._services)
        self.endpoints: ControlLoop[Key] = ControlLoop("endpoints", self.reconcile_endpoints, of=self._services)
        self._services.on_change(self._service_changed)
        self._pods.on_change(self._pod_changed)
        self._nodes.on_change(self._node_changed)
        self._slices.on_change(self._slice_changed)
        self._endpoints.on_change(self._endpoints_changed)

    def _wake(self, key: Key) -> None:
        self.slices.queue.add(key)
        self.endpoints.queue.add(key)

    def _service_changed(self, before: Obj | None, after: Obj | None) -> None:
        self._wake(key_of(after or before or {}))

    def _pod_changed(self, before: Obj | None, after: Obj | None) -> None:
        seen = [pod for pod in (before, after) if pod is not None]
        if before is not None and after is not None and not _is_news(before, after):
            return
        for service in self._services.by_index("namespace", seen[0]["metadata"].get("namespace") or ""):
            if is_managed(service) and any(_selects(service, pod) for pod in seen):
                self._wake(key_of(service))

    def _node_changed(self, before: Obj | None, after: Obj | None) -> None:
        old, new = (labels_of(node).get(ZONE) if node else None for node in (before, after))
        if (before is None) == (after is None) and old == new:
            return
        for service in self._services.all():
            if is_managed(service):
                self._wake(key_of(service))

    def _slice_changed(self, before: Obj | None, after: Obj | None) -> None:
        for endpoint_slice in (before, after):
            if endpoint_slice is not None and (owner := labels_of(endpoint_slice).get(SERVICE_NAME)):
                self.slices.queue.add(Key(endpoint_slice["metadata"]["namespace"], owner))

    def _endpoints_changed(self, before: Obj | None, after: Obj | None) -> None:
        key = key_of(after or before or {})
        if self._services.get(key.name, key.namespace) is not None:  # without: made by hand, ahead of its Service
            self.endpoints.queue.add(key)

    def _observe(self, key: Key) -> Seen | None:
        service = self._services.get(key.name, key.namespace)
        if service is None or is_deleting(service) or not is_managed(service):
            return None
        return Seen(
            service=service,
            pods=[pod for pod in self._pods.by_index("namespace", key.namespace) if _selects(service, pod)],
            nodes={node["metadata"]["name"]: labels_of(node).get(ZONE) or "" for node in self._nodes.all()},
            slices=[
                endpoint_slice
                for endpoint_slice in self._slices.by_index("service", str(key))
                if labels_of(endpoint_slice).get(MANAGED_BY) == SLICE_MANAGER
            ],
        )

    async def reconcile_slices(self, key: Key) -> timedelta | None:
        """Update the slices of one Service; the slices of a deleted Service are deleted with their owner."""
        if not await self._writer.is_ready(key):
            return NOT_YET
        seen = self._observe(key)
        if seen is None:
            return None
        decided = plan_slices(seen)
        owner = {"apiVersion": "v1", "kind": "Service"} | seen.service
        for endpoint_slice in decided.create:
            await self._writer.create_child(key, self._slices, owner, endpoint_slice)
        for endpoint_slice in decided.update:
            self._writer.fresh.wrote(key, self._slices, await self._api.update(ENDPOINTSLICES, endpoint_slice))
        for endpoint_slice in decided.delete:
            await self._writer.delete_child(key, self._slices, owner, endpoint_slice)
        return None

    async def reconcile_endpoints(self, key: Key) -> timedelta | None:
        """Update the Endpoints of one Service; delete them with it."""
        if not await self._endpoints_writer.is_ready(key):
            return NOT_YET
        known = self._endpoints.get(key.name, key.namespace)
        seen = self._observe(key)
        if seen is None:
            if known is not None and self._services.get(key.name, key.namespace) is None:
                await self._endpoints_writer.delete_child(key, self._endpoints, known, known)
            return None
        wanted = endpoints_object(seen)
        if known is None:
            try:
                made = await self._api.create(ENDPOINTS, wanted)
            except (AlreadyExists, NotFound):
                return RETRY
            except Forbidden as error:
                if "being terminated" in error.message:
                    return None
                raise
            self._endpoints_writer.fresh.wrote(key, self._endpoints, made)
            return None
        annotations = {name: value for name, value in annotations_of(known).items() if name != OVER_CAPACITY}
        annotations |= annotations_of(wanted)
        same = (known.get("subsets") or []) == (wanted.get("subsets") or [])
        if same and labels_of(known) == labels_of(wanted) and annotations == annotations_of(known):
            return None
        meta = {**known["metadata"], "labels": dict(labels_of(wanted)), "annotations": annotations}
        new = {**wanted, "metadata": meta}
        self._endpoints_writer.fresh.wrote(key, self._endpoints, await self._api.update(ENDPOINTS, new))
        return None


def _by_namespace(obj: Obj) -> Sequence[str]:
    return (obj["metadata"].get("namespace") or "",)


def _by_service(obj: Obj) -> Sequence[str]:
    owner = labels_of(obj).get(SERVICE_NAME)
    return (str(Key(obj["metadata"].get("namespace") or "", owner)),) if owner else ()


def _selects(service: Obj, pod: Obj) -> bool:
    labels = labels_of(pod)
    return all(labels.get(name) == value for name, value in service["spec"]["selector"].items())


def _is_news(before: Obj, after: Obj) -> bool:
    """Whether a change affects endpoints; times of probes and annotations do not count."""

    def published(pod: Obj) -> tuple[object, ...]:
        status = pod.get("status") or {}
        ready = [
            condition.get("status")
            for condition in status.get("conditions") or ()
            if condition.get("type") == "Ready"
        ]
        return (
            labels_of(pod),
            is_deleting(pod),
            status.get("phase"),
            status.get("podIPs"),
            ready,
            pod["spec"].get("nodeName"),
        )

    return published(before) != published(after)
