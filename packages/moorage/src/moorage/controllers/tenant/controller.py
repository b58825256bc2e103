"""The controller of Tenants: the reads and writes around the plan."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, assert_never

from moorage.controllers.base import Controller, Shared
from moorage.controllers.tenant.plan import (
    OURS,
    POLICIES,
    QUOTAS,
    Action,
    Create,
    Observed,
    Patch,
    Plan,
    Remove,
    Replace,
    clean_nodes,
    plan,
)
from moorage.model.manifests import ROLEBINDINGS, TENANT_ROLES
from moorage.model.names import TENANT_LABEL
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage_kube.errors import AlreadyExists, NotFound
from moorage_kube.meta import Key, labels_of, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import NAMESPACES, NODES, SERVICEACCOUNTS, Obj

log = logging.getLogger(__name__)

NAMES = {ROLEBINDINGS: tuple(TENANT_ROLES.values()), QUOTAS: (OURS,), POLICIES: (OURS,)}


class TenantController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "tenant")
        self._tenants = self._follow(TENANTS)
        self._namespaces = self._follow(NAMESPACES)
        self._nodes = self._follow(NODES)
        self._people = self._follow(SERVICEACCOUNTS, PEOPLE_NAMESPACE)
        self._held = {
            resource: self._follow(resource, label_selector=TENANT_LABEL)
            for resource in (ROLEBINDINGS, QUOTAS, POLICIES)
        }
        self.loop.hear(self._tenants, self._all)  # of two with one namespace the other may take over
        self.loop.hear(self._namespaces, self._of_namespace)
        self.loop.hear(self._people, self._all)
        self.loop.hear(self._nodes, self._of_node)
        for informer in self._held.values():
            self.loop.hear(informer, lambda obj: self._by_name(labels_of(obj).get(TENANT_LABEL)))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Make one tenant's namespace and nodes match its spec."""
        tenant = self._tenants.get(key.name)
        if tenant is None:  # deleted: so are its role bindings, by their owner; its nodes become shared again
            for action in clean_nodes(key.name, self._nodes.all()):
                await self._act(action)
            return None
        await self._leave_others(key.name, str((tenant.get("spec") or {}).get("namespace") or ""))
        decided = plan(self._observe(tenant))
        for action in decided.actions:
            await self._act(action)
        await self._report(tenant, decided)
        return None

    def _observe(self, tenant: Obj) -> Observed:
        namespace = str((tenant.get("spec") or {}).get("namespace") or "")
        held = {
            (resource.kind, name): obj
            for resource, informer in self._held.items()
            for name in NAMES[resource]
            if (obj := informer.get(name, namespace)) is not None
        }
        return Observed(
            tenant=tenant,
            others=[other for other in self._tenants.all() if other is not tenant],
            namespace=self._namespaces.get(namespace),
            held=held,
            accounts=self._people.all(),
            nodes=self._nodes.all(),
        )

    async def _leave_others(self, tenant: str, namespace: str) -> None:
        """Delete our RoleBindings in namespaces that the tenant used before."""
        for obj in self._held[ROLEBINDINGS].all():
            meta = obj["metadata"]
            mine = labels_of(obj).get(TENANT_LABEL) == tenant and meta["name"] in NAMES[ROLEBINDINGS]
            if mine and meta["namespace"] != namespace:
                await self._act(Remove(ROLEBINDINGS, meta["name"], meta["namespace"]))

    async def _act(self, action: Action) -> None:
        match action:
            case Create(resource, obj):
                try:
                    await self._api.create(resource, obj)
                except AlreadyExists:
                    if resource != NAMESPACES:  # of that name, without our label: it becomes ours
                        await self._api.update(resource, obj)
            case Replace(resource, obj):
                await self._api.update(resource, obj)
            case Remove(resource, name, namespace):
                with contextlib.suppress(NotFound):
                    await self._api.delete(resource, name, namespace)
            case Patch(resource, name, patch):
                with contextlib.suppress(NotFound):
                    await self._api.patch(resource, name, patch)
            case _:
                assert_never(action)

    async def _report(self, tenant: Obj, decided: Plan) -> None:
        status = tenant.get("status") or {}
        conditions = with_condition(
            status.get("conditions") or [],
            "Ready",
            "True" if decided.ready else "False",
            now=rfc3339(self._clock.now()),
            reason=decided.reason,
            message=decided.message,
        )
        wanted: dict[str, Any] = {"conditions": conditions, "people": decided.people, "nodes": decided.nodes}
        if generation := tenant["metadata"].get("generation"):
            wanted["observedGeneration"] = generation
        if {name: status.get(name) for name in wanted} != wanted:
            with contextlib.suppress(NotFound):
                name = str(tenant["metadata"]["name"])
                await self._api.patch(TENANTS, name, {"status": wanted}, subresource="status")

    def _all(self, obj: Obj) -> Iterable[Key]:
        itself = [Key("", obj["metadata"]["name"])] if obj.get("kind") == TENANTS.kind else []
        return {*itself, *(Key("", tenant["metadata"]["name"]) for tenant in self._tenants.all())}

    def _of_namespace(self, namespace: Obj) -> Iterable[Key]:
        name = namespace["metadata"]["name"]
        return [
            Key("", tenant["metadata"]["name"])
            for tenant in self._tenants.all()
            if (tenant.get("spec") or {}).get("namespace") == name
        ]

    def _of_node(self, node: Obj) -> Iterable[Key]:
        tainted = [
            Key("", str(taint.get("value")))
            for taint in (node.get("spec") or {}).get("taints") or ()
            if taint.get("key") == TENANT_LABEL and taint.get("value")
        ]
        choosing = [
            Key("", tenant["metadata"]["name"])
            for tenant in self._tenants.all()
            if (tenant.get("spec") or {}).get("cpuNodes")
        ]
        return {*tainted, *choosing}

    @staticmethod
    def _by_name(name: str | None) -> Iterable[Key]:
        return [Key("", name)] if name else []
