"""The whole API server: storage, kinds, pipeline, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from moorage.apimachinery.api import PatchKind
from moorage.apimachinery.resources import NAMESPACES, PODS, PRIORITYCLASSES, SERVICES, Obj, Resource
from moorage.clock import SYSTEM, Clock
from moorage.errors import AlreadyExists, BadRequest, MethodNotAllowed, NotFound
from moorage.localcluster.apiserver import patch, subresources
from moorage.localcluster.apiserver.admission import BuiltinAdmission
from moorage.localcluster.apiserver.auth import Tokens, User, service_user
from moorage.localcluster.apiserver.builtin import builtin_kinds
from moorage.localcluster.apiserver.client import InProcessClient
from moorage.localcluster.apiserver.crd import CustomResources
from moorage.localcluster.apiserver.kinds import Kind, Kinds
from moorage.localcluster.apiserver.limits import LimitRanger
from moorage.localcluster.apiserver.pipeline import Call, Pipeline, check_namespace, meta_of
from moorage.localcluster.apiserver.podsecurity import PodSecurity
from moorage.localcluster.apiserver.quota import QuotaAdmission
from moorage.localcluster.apiserver.rbac import NoEscalation, RbacAuthorizer
from moorage.localcluster.apiserver.rbacdefaults import default_objects
from moorage.localcluster.apiserver.streams import ExecSource, PortSource
from moorage.localcluster.apiserver.webhooks import Webhooks
from moorage.localcluster.storage import Storage

LogSource = Callable[..., AsyncIterator[bytes]]
"""Called as source(pod, container, follow=, tail_lines=, since_seconds=, timestamps=, previous=, limit_bytes=).

Numbers may be None. It yields bytes, and may raise ApiError before the first.
"""

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


class ApiServer:
    """Everything a kube-apiserver is to its clients, on any `Storage`.

    `app` is the ASGI application, `client` gives the same API in process. `log_source`, `exec_source`
    and `port_source` are set by who runs the node agents. One event loop, the one that called `start`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        tokens: Mapping[str, Mapping[str, Any]] | None = None,
        signing_key: bytes | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`tokens`: bearer token → {"user": name, "groups": [...]}. Without `signing_key` service account tokens
        do not outlive the process."""
        self.storage = storage
        self.clock = clock
        self.tokens = Tokens(tokens or {}, signing_key or secrets.token_bytes(32))
        self.kinds = Kinds()
        for kind in builtin_kinds():
            self.kinds.add(kind)
        self.authorizer = RbacAuthorizer()
        self.pipeline = Pipeline(storage, self.kinds, authorizer=self.authorizer, clock=clock)
        self.custom = CustomResources(self.pipeline)
        self.webhooks = Webhooks(self.pipeline)
        self.admission = BuiltinAdmission(self.pipeline)
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
        self.log_source: LogSource | None = None
        self.stats_source: Callable[[str], Awaitable[Obj]] | None = None  # by node: of its pods' volumes
        self.exec_source: ExecSource | None = None
        self.port_source: PortSource | None = None
        self.ready = False
        self._app: Any = None

    async def start(self) -> None:
        """Open the store, serve the stored custom kinds, make what every cluster has. Raises StorageError."""
        await self.storage.start()
        self.custom.load()
        self.webhooks.load()
        self.limits.load()
        self.quotas.load()
        self.authorizer.load(self.pipeline)
        api = self.client("system:apiserver")
        boot: list[tuple[Resource, Obj]] = [(NAMESPACES, {"metadata": {"name": name}}) for name in BOOT_NAMESPACES]
        boot += [
            (PRIORITYCLASSES, {"metadata": {"name": name}, "value": value, "description": said})
            for name, (value, said) in SYSTEM_PRIORITIES.items()
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
        """End all watches, finish writes, close the store."""
        self.ready = False
        await self.custom.stop()
        await self.webhooks.stop()
        await self.storage.stop()

    @property
    def app(self) -> Any:
        """The ASGI application."""
        if self._app is None:
            from moorage.localcluster.apiserver.http import HttpApp

            self._app = HttpApp(self)
        return self._app

    def client(self, user: str | User = "system:kube-controller-manager") -> InProcessClient:
        """The API in process, as a user; a mere name may do everything."""
        return InProcessClient(self, user)

    def kind_of(self, resource: Resource) -> Kind:
        """Raises NotFound for what is not served."""
        kind = self.kinds.of(resource)
        if kind is None:
            raise NotFound("the server could not find the requested resource", details={"kind": resource.plural})
        return kind

    def exists(self, kind: Kind, name: str, namespace: str | None) -> bool:
        return self.storage.get(kind.key(name, namespace)) is not None

    def authenticate(self, token: str) -> User | None:
        return subresources.authenticate(self, token)

    async def create(self, call: Call, kind: Kind, obj: Any, namespace: str | None) -> Obj:
        """Create an object, or answer a review; a Binding posted to `bindings` binds."""
        if kind.resource.group == "" and kind.resource.plural == "bindings":
            self.pipeline.authorise(call, "create", kind, namespace, "")
            if not isinstance(obj, dict):
                raise BadRequest("not a Binding object")
            name = meta_of(obj).get("name") or ""
            self.admission.check_namespace(self.kind_of(PODS), namespace, name)
            return await subresources.bind(self, call, self.kind_of(PODS), name, namespace, obj)
        if kind.rules.virtual:
            return subresources.review(
                self, call, kind, self.pipeline.decode(call, kind, obj, namespace), namespace
            )
        return await self.pipeline.create(call, kind, obj, namespace)

    async def get_subresource(
        self, call: Call, kind: Kind, name: str, namespace: str | None, subresource: str
    ) -> Obj:
        """Raises MethodNotAllowed for one that cannot be read."""
        if "get" not in kind.subresources[subresource].verbs:
            raise _not_allowed()
        self.pipeline.authorise(call, "get", kind, namespace, name, subresource)
        obj = self.pipeline.view(kind, self.pipeline.read(kind, name, namespace), own=True)
        return subresources.scale_of(kind, obj) if subresource == "scale" else obj

    async def update(
        self, call: Call, kind: Kind, obj: Any, name: str, namespace: str | None, subresource: str | None
    ) -> Obj:
        """PUT of an object or a subresource of it."""
        if subresource is None or subresource == "status":
            self._offers(kind, subresource, "update")
            return await self.pipeline.update(call, kind, obj, name, namespace, subresource=subresource)
        self._offers(kind, subresource, "update")
        self.pipeline.authorise(call, "update", kind, namespace, name, subresource)
        if isinstance(obj, dict):
            check_namespace(kind.resource, meta_of(obj), namespace)
        if subresource == "scale":
            return await subresources.set_scale(self, call, kind, name, namespace, obj)
        if subresource == "finalize":
            return await subresources.finalize(self, call, kind, name, obj)
        raise _not_allowed()

    async def patch(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        body: Any,
        *,
        patch_kind: PatchKind,
        subresource: str | None,
    ) -> Obj:
        """PATCH of an object or a subresource of it."""
        self._offers(kind, subresource, "patch")
        if subresource is None or subresource == "status":
            return await self.pipeline.patch(
                call, kind, name, namespace, body, patch_kind=patch_kind, subresource=subresource
            )
        if subresource != "scale":
            raise _not_allowed()
        self.pipeline.authorise(call, "patch", kind, namespace, name, subresource)
        current = self.pipeline.view(kind, self.pipeline.read(kind, name, namespace), own=True)
        scale = subresources.scale_of(kind, current)
        wanted = patch.json_patch(scale, body) if patch_kind == "json" else patch.merge_patch(scale, body)
        return await subresources.set_scale(self, call, kind, name, namespace, wanted)

    async def create_subresource(
        self, call: Call, kind: Kind, name: str, namespace: str | None, subresource: str, body: Any
    ) -> Obj:
        """POST to a subresource: binding, eviction, token."""
        self._offers(kind, subresource, "create")
        self.pipeline.authorise(call, "create", kind, namespace, name, subresource)
        if isinstance(body, dict):
            check_namespace(kind.resource, meta_of(body), namespace)
        self.admission.check_namespace(kind, namespace, name)
        match (kind.resource.plural, subresource):
            case ("pods", "binding"):
                return await subresources.bind(self, call, kind, name, namespace, body)
            case ("pods", "eviction"):
                return await subresources.evict(self, call, kind, name, namespace, body)
            case ("serviceaccounts", "token"):
                return await subresources.create_token(self, call, kind, name, namespace, body)
        raise _not_allowed()

    async def logs(
        self, call: Call, name: str, namespace: str | None, **options: Any
    ) -> AsyncIterator[bytes] | None:
        """The log of a pod's container, as `subresources.logs`."""
        return await subresources.logs(self, call, name, namespace, **options)

    def _offers(self, kind: Kind, subresource: str | None, verb: str) -> None:
        if subresource is None:
            return
        one = kind.subresources.get(subresource)
        if one is None:
            raise NotFound("the server could not find the requested resource", details={})
        if verb not in one.verbs:
            raise _not_allowed()


def _not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed("the server does not allow this method on the requested resource", details={})


__all__ = ["ApiServer", "LogSource", "service_user"]
