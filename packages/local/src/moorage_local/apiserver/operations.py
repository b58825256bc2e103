"""The operations of the API server: every verb on objects and on their subresources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from moorage_kube.api import PatchKind
from moorage_kube.clock import Clock
from moorage_kube.errors import BadRequest, NotFound
from moorage_kube.mergepatch import merge_patch
from moorage_kube.resources import PODS, Obj
from moorage_local.apiserver.admission.builtin import BuiltinAdmission
from moorage_local.apiserver.auth.users import Tokens, User
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.bodies import check_namespace, meta_of
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.pipeline.refusals import not_allowed
from moorage_local.apiserver.subresources import logs, tokens
from moorage_local.apiserver.subresources.binding import bind
from moorage_local.apiserver.subresources.eviction import evict
from moorage_local.apiserver.subresources.finalize import finalize
from moorage_local.apiserver.subresources.reviews import review
from moorage_local.apiserver.subresources.scale import scale_of, set_scale
from moorage_local.apiserver.wire import patch
from moorage_local.storage import Storage


class Operations(Core):
    """Sends each request to the pipeline, or to the handler of a subresource or review.

    `ready` is True while the server accepts requests.
    """

    def __init__(self, storage: Storage, tokens: Tokens, clock: Clock) -> None:
        super().__init__(storage, tokens, clock)
        self.admission = BuiltinAdmission(self.pipeline)
        self.ready = False

    def authenticate(self, token: str) -> User | None:
        return tokens.authenticate(self, token)

    async def create(self, call: Call, kind: Kind, obj: Any, namespace: str | None) -> Obj:
        """Create an object or answer a review; a Binding that is posted to `bindings` binds a pod."""
        if kind.resource.group == "" and kind.resource.plural == "bindings":
            self.pipeline.authorise(call, "create", kind, namespace, "")
            if not isinstance(obj, dict):
                raise BadRequest("not a Binding object")
            name = meta_of(obj).get("name") or ""
            self.admission.check_namespace(self.kind_of(PODS), namespace, name)
            return await bind(self, call, self.kind_of(PODS), name, namespace, obj)
        if kind.rules.virtual:
            return review(self, call, kind, self.pipeline.decode(call, kind, obj, namespace), namespace)
        return await self.pipeline.create(call, kind, obj, namespace)

    async def get_subresource(
        self, call: Call, kind: Kind, name: str, namespace: str | None, subresource: str
    ) -> Obj:
        """Return a subresource of an object. Raises MethodNotAllowed if the subresource cannot be read."""
        if "get" not in kind.subresources[subresource].verbs:
            raise not_allowed()
        self.pipeline.authorise(call, "get", kind, namespace, name, subresource)
        obj = self.pipeline.view(kind, self.pipeline.read(kind, name, namespace), own=True)
        return scale_of(kind, obj) if subresource == "scale" else obj

    async def update(
        self, call: Call, kind: Kind, obj: Any, name: str, namespace: str | None, subresource: str | None
    ) -> Obj:
        """Replace (PUT) an object or a subresource of it."""
        if subresource is None or subresource == "status":
            self._offers(kind, subresource, "update")
            return await self.pipeline.update(call, kind, obj, name, namespace, subresource=subresource)
        self._offers(kind, subresource, "update")
        self.pipeline.authorise(call, "update", kind, namespace, name, subresource)
        if isinstance(obj, dict):
            check_namespace(kind.resource, meta_of(obj), namespace)
        if subresource == "scale":
            return await set_scale(self, call, kind, name, namespace, obj)
        if subresource == "finalize":
            return await finalize(self, call, kind, name, obj)
        raise not_allowed()

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
        """Change (PATCH) an object or a subresource of it."""
        self._offers(kind, subresource, "patch")
        if subresource is None or subresource == "status":
            return await self.pipeline.patch(
                call, kind, name, namespace, body, patch_kind=patch_kind, subresource=subresource
            )
        if subresource != "scale":
            raise not_allowed()
        self.pipeline.authorise(call, "patch", kind, namespace, name, subresource)
        current = self.pipeline.view(kind, self.pipeline.read(kind, name, namespace), own=True)
        scale = scale_of(kind, current)
        wanted = patch.json_patch(scale, body) if patch_kind == "json" else merge_patch(scale, body)
        return await set_scale(self, call, kind, name, namespace, wanted)

    async def create_subresource(
        self, call: Call, kind: Kind, name: str, namespace: str | None, subresource: str, body: Any
    ) -> Obj:
        """Post to a subresource: binding, eviction, token."""
        self._offers(kind, subresource, "create")
        self.pipeline.authorise(call, "create", kind, namespace, name, subresource)
        if isinstance(body, dict):
            check_namespace(kind.resource, meta_of(body), namespace)
        self.admission.check_namespace(kind, namespace, name)
        match (kind.resource.plural, subresource):
            case ("pods", "binding"):
                return await bind(self, call, kind, name, namespace, body)
            case ("pods", "eviction"):
                return await evict(self, call, kind, name, namespace, body)
            case ("serviceaccounts", "token"):
                return await tokens.create_token(self, call, kind, name, namespace, body)
        raise not_allowed()

    async def logs(
        self, call: Call, name: str, namespace: str | None, **options: Any
    ) -> AsyncIterator[bytes] | None:
        """Return the log of a pod's container, like `subresources.logs.logs`."""
        return await logs.logs(self, call, name, namespace, **options)

    def _offers(self, kind: Kind, subresource: str | None, verb: str) -> None:
        if subresource is None:
            return
        offered = kind.subresources.get(subresource)
        if offered is None:
            raise NotFound("the server could not find the requested resource", details={})
        if verb not in offered.verbs:
            raise not_allowed()
