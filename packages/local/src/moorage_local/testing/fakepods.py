"""`FakeApi` with an API server's handling of pods: it binds them, and lets them end in their own time."""

from __future__ import annotations

from typing import Any, Literal

from moorage_kube.api import PatchKind
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import ApiError, Conflict
from moorage_kube.meta import with_condition
from moorage_kube.resources import PODS, Obj, Resource
from moorage_local.testing.fakeapi import FakeApi


class FakePodApi(FakeApi):
    """A fake API with pods that end like on a real node.

    A deleted pod with a node gets a deletionTimestamp and stays until `remove`, as if a kubelet ended it.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self._clock = clock
        self.refuse_binding: ApiError | None = None  # raised by every binding while set

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        if resource == PODS and kind == "strategic" and subresource == "status":
            known = await self.get(PODS, name, namespace)
            if patch.get("metadata", {}).get("uid") not in (None, known["metadata"]["uid"]):
                raise Conflict("the name belongs to another pod now")
            status = dict(patch["status"])
            conditions = (known.get("status") or {}).get("conditions") or []
            for condition in status.pop("conditions", ()):
                rest = {key: value for key, value in condition.items() if key not in ("type", "status")}
                now = rest.pop("lastTransitionTime", rfc3339(self._clock.now()))
                conditions = with_condition(conditions, condition["type"], condition["status"], now=now, **rest)
            patch, kind = {"status": {**status, "conditions": conditions}}, "merge"
        return await super().patch(
            resource,
            name,
            patch,
            namespace,
            kind=kind,
            subresource=subresource,
            field_manager=field_manager,
            force=force,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        if resource == PODS and grace_period_seconds != 0:
            known = await self.get(PODS, name, namespace)
            if uid in (None, known["metadata"]["uid"]) and known["spec"].get("nodeName"):
                known["metadata"].setdefault("deletionTimestamp", rfc3339(self._clock.now()))
                self.put(PODS, known)
                return
        await super().delete(resource, name, namespace, uid=uid, propagation=propagation)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        if resource != PODS or subresource != "binding":
            return await super().create_subresource(resource, name, subresource, body, namespace)
        self._called("create binding", resource, name, namespace, body)
        if self.refuse_binding is not None:
            raise self.refuse_binding
        pod = await self.get(PODS, name, namespace)
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            raise Conflict(f"pod {name} is assigned to a node, or being deleted")
        if body["metadata"].get("uid") not in (None, pod["metadata"]["uid"]):
            raise Conflict("the name belongs to another pod now")
        pod["spec"]["nodeName"] = body["target"]["name"]
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        status["conditions"] = with_condition(
            status.get("conditions") or [], "PodScheduled", "True", now=rfc3339(self._clock.now())
        )
        self.put(PODS, pod)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
