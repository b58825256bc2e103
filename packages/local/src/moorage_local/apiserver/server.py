"""The complete API server: storage, kinds, pipeline, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import AlreadyExists
from moorage_kube.resources import NAMESPACES, PRIORITYCLASSES, SERVICES, Obj, Resource
from moorage_local.apiserver.admission.limits import LimitRanger
from moorage_local.apiserver.admission.podsecurity import PodSecurity
from moorage_local.apiserver.admission.quota import QuotaAdmission
from moorage_local.apiserver.admission.webhooks import Webhooks
from moorage_local.apiserver.auth.rbac import NoEscalation
from moorage_local.apiserver.auth.rbacdefaults import default_objects
from moorage_local.apiserver.auth.users import Tokens, User, service_user
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.customresources import CustomResources
from moorage_local.apiserver.http.app import HttpApp
from moorage_local.apiserver.operations import Operations
from moorage_local.storage import Storage

BOOT_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITIES = {
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to"
        " another node if necessary.",
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}
KUBERNETES_SERVICE: Obj = {
    "metadata": {
        "name": "kubernetes",
        "namespace": "default",
        "labels": {"component": "apiserver", "provider": "kubernetes"},
    },
    "spec": {
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
    },
}


class ApiServer(Operations):
    """An API server with any `Storage`; for clients it acts like a kube-apiserver.

    `app` is the ASGI application; `client` returns the same API in process. Use it only in the event loop
    that called `start`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        tokens: Mapping[str, Mapping[str, Any]] | None = None,
        signing_key: bytes | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Create a server. `tokens`: bearer token → {"user": name, "groups": [...]}.

        Without `signing_key`, service account tokens become invalid when the process ends.
        """
        super().__init__(storage, Tokens(tokens or {}, signing_key or secrets.token_bytes(32)), clock)
        self.custom = CustomResources(self.pipeline)
        self.webhooks = Webhooks(self.pipeline)
        self.limits = LimitRanger(self.pipeline)
        self.quotas = QuotaAdmission(self.pipeline)
        self.pipeline.admitters += [
            self.admission,
            self.limits,
            self.webhooks,
            NoEscalation(self.authorizer),
            PodSecurity(self.pipeline),
            self.quotas,
        ]
        self.pipeline.on_stored += [
            self.custom.stored,
            self.webhooks.stored,
            self.authorizer.stored,
            self.limits.stored,
            self.quotas.stored,
        ]
        self.app = HttpApp(self)

    async def start(self) -> None:
        """Open the store, serve the stored custom kinds, create the objects that every cluster has.

        Raises StorageError.
        """
        await self.storage.start()
        self.custom.load()
        self.webhooks.load()
        self.limits.load()
        self.quotas.load()
        self.authorizer.load(self.pipeline)
        api = self.client("system:apiserver")
        boot: list[tuple[Resource, Obj]] = [(NAMESPACES, {"metadata": {"name": name}}) for name in BOOT_NAMESPACES]
        boot += [
            (PRIORITYCLASSES, {"metadata": {"name": name}, "value": value, "description": description})
            for name, (value, description) in SYSTEM_PRIORITIES.items()
        ]
        boot.append((SERVICES, KUBERNETES_SERVICE))
        await self._ensure(api, boot[0:1])
        await self._ensure(api, [*boot[1:], *default_objects()])
        self.ready = True

    async def _ensure(self, api: InProcessClient, objects: list[tuple[Resource, Obj]]) -> None:
        async def ensure(resource: Resource, obj: Obj) -> None:
            key = self.kind_of(resource).key(obj["metadata"]["name"], obj["metadata"].get("namespace"))
            if self.storage.get(key) is None:
                with contextlib.suppress(AlreadyExists):
                    await api.create(resource, obj)

        await asyncio.gather(*(ensure(resource, obj) for resource, obj in objects))

    async def stop(self) -> None:
        """End all watches, finish open writes and close the store."""
        self.ready = False
        await self.custom.stop()
        await self.webhooks.stop()
        await self.storage.stop()

    def client(self, user: str | User = "system:kube-controller-manager") -> InProcessClient:
        """Return the in-process API for a user; a user given as a plain name may do everything."""
        return InProcessClient(self, user)


__all__ = ["ApiServer", "service_user"]
