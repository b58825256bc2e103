"""Empties namespaces that are being deleted, and creates the required objects of all others.

Contents are read from the API itself, not from a cache: an object that a cache misses would be left behind.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from moorage_kube.api import Api
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, MethodNotAllowed, NotFound
from moorage_kube.meta import Key, is_deleting, key_of
from moorage_kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, PODS, SERVICEACCOUNTS, Obj
from moorage_local.controllers.catalogue import Catalogue
from moorage_local.informers import InformerSet

FINALIZER = "kubernetes"  # in spec.finalizers
ROOT_CA = "kube-root-ca.crt"
LOOK_AGAIN = timedelta(milliseconds=500)
EMPTY = timedelta(seconds=1)  # before the name is free: a next namespace of it is created in a later second


class NamespaceController:
    """Removes the objects in a namespace, then the namespace's own finalizer."""

    def __init__(self, api: Api, informers: InformerSet, *, catalogue: Catalogue) -> None:
        self._api = api
        self._catalogue = catalogue
        self._namespaces = informers.of(NAMESPACES)
        self._emptied: set[str] = set()  # uids
        self.loop: ControlLoop[Key] = ControlLoop("namespaces", self.reconcile)
        self._namespaces.on_change(self._changed)

    def _changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None and is_deleting(after):
            self.loop.queue.add(key_of(after))

    async def reconcile(self, key: Key) -> timedelta | None:
        namespace = self._namespaces.get(key.name)
        if namespace is None or not is_deleting(namespace):
            return None
        left = 0
        for resource in self._catalogue.all():
            if not resource.namespaced:
                continue
            try:
                listed = await self._api.list(resource, key.name)
            except (NotFound, MethodNotAllowed):
                continue  # not served here
            for obj in listed.items:
                meta = obj["metadata"]
                if is_deleting(obj):
                    left += 1
                    continue
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(
                        resource, meta["name"], key.name, uid=meta["uid"], propagation="Background"
                    )
                if resource != EVENTS:
                    # objects without finalizers are deleted at once; the next list would show it
                    left += 1 if resource == PODS or meta.get("finalizers") else 0
        if left:
            return LOOK_AGAIN
        if not await self._is_empty(key.name):
            return LOOK_AGAIN
        uid = namespace["metadata"]["uid"]
        if uid not in self._emptied:
            self._emptied.add(uid)
            return EMPTY
        await self._finalize(key.name)
        self._emptied.discard(uid)
        return None

    async def _is_empty(self, name: str) -> bool:
        for resource in self._catalogue.all():
            if resource.namespaced and resource != EVENTS:
                with contextlib.suppress(NotFound, MethodNotAllowed):
                    if (await self._api.list(resource, name, limit=1)).items:
                        return False
        return True

    async def _finalize(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            now = await self._api.get(NAMESPACES, name)
            finalizers = (now.get("spec") or {}).get("finalizers") or []
            if FINALIZER not in finalizers:
                return
            left = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            spec = {**(now.get("spec") or {}), "finalizers": left}
            await self._api.update(NAMESPACES, {**now, "spec": spec}, subresource="finalize")


class NamespaceFurnisher:
    """Creates the service account `default` and the CA certificate in every namespace."""

    def __init__(self, api: Api, informers: InformerSet, *, ca_pem: str | None) -> None:
        self._api = api
        self._ca_pem = ca_pem
        self._namespaces = informers.of(NAMESPACES)
        self._accounts = informers.of(SERVICEACCOUNTS)
        self._configmaps = informers.of(CONFIGMAPS)
        self.loop: ControlLoop[Key] = ControlLoop("namespace furniture", self.reconcile)
        self._namespaces.on_change(self._namespace_changed)
        self._accounts.on_change(self._content_changed)
        self._configmaps.on_change(self._content_changed)

    def _namespace_changed(self, _before: Obj | None, after: Obj | None) -> None:
        if after is not None:
            self.loop.queue.add(key_of(after))

    def _content_changed(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None and obj["metadata"]["name"] in ("default", ROOT_CA) and before is not None:
            self.loop.queue.add(Key("", obj["metadata"].get("namespace") or ""))

    async def reconcile(self, key: Key) -> timedelta | None:
        namespace = self._namespaces.get(key.name)
        if namespace is None or is_deleting(namespace):
            return None
        with contextlib.suppress(NotFound, Forbidden):  # it is going
            if self._accounts.get("default", key.name) is None:
                await self._ensure_account(key.name)
            if self._ca_pem is not None:
                await self._ensure_ca(key.name, self._ca_pem)
        return None

    async def _ensure_account(self, namespace: str) -> None:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        with contextlib.suppress(AlreadyExists):
            await self._api.create(SERVICEACCOUNTS, account)

    async def _ensure_ca(self, namespace: str, pem: str) -> None:
        data = {"ca.crt": pem}
        known = self._configmaps.get(ROOT_CA, namespace)
        if known is not None:
            if known.get("data") != data:
                await self._api.update(CONFIGMAPS, {**known, "data": data})
            return
        note = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints."
        configmap = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": ROOT_CA,
                "namespace": namespace,
                "annotations": {"kubernetes.io/description": note},
            },
            "data": data,
        }
        with contextlib.suppress(AlreadyExists):
            await self._api.create(CONFIGMAPS, configmap)
