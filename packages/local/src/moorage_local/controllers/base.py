"""The API calls that all workload controllers share: write, and remember which changes to wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound, ServerError
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, controller_ref, is_deleting
from moorage_kube.resources import Obj, Resource
from moorage_kube.selectors import label_selector_of
from moorage_local.controllers.events import EventRecorder
from moorage_local.controllers.freshness import Freshness
from moorage_local.controllers.ownership import Claims, adoption, claims, release
from moorage_local.controllers.pods import suffix

NOT_YET = timedelta(seconds=1)  # caches lack the last write; the change that brings it queues the key earlier
TOGETHER_MAX = 16  # writes of one pass that are under way at once


async def take_together(steps: Sequence[Callable[[], Awaitable[object]]], *, first: int = TOGETHER_MAX) -> None:
    """Take steps that do not depend on each other: `first` at once, then twice as many, at most TOGETHER_MAX.

    After a failure further steps are not started; the first error is raised once all started steps have ended.
    With `first` 1, an error that would repeat (a quota that is used up) fails once, as in the controllers of
    Kubernetes: https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/controller/job/job_controller.go (slow
    start)
    """
    at, size = 0, first
    while at < len(steps):
        answers = await asyncio.gather(*(step() for step in steps[at : at + size]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        at, size = at + size, min(2 * size, TOGETHER_MAX)


class Writer:
    """Writes children of one kind for the keys of one controller.

    `fresh` records all writes, and the writer records creations without an answer. Before the next decision, the
    controller calls `is_ready(key)`.
    """

    def __init__(self, api: Api, events: EventRecorder, clock: Clock) -> None:
        self.api = api
        self.events = events
        self.clock = clock
        self.fresh: Freshness[Key] = Freshness()
        self._unsure: dict[Key, list[tuple[Informer, str, Obj]]] = {}  # with the uid of the owner

    async def is_ready(self, key: Key) -> bool:
        """Whether the caches show all writes for `key`, also creations without an answer.

        For each creation without an answer, it asks the API whether the child exists.
        """
        unsure = self._unsure.get(key, [])
        while unsure:
            informer, uid, child = unsure[-1]
            meta = child["metadata"]
            with contextlib.suppress(NotFound):
                there = await self.api.get(informer.resource, meta["name"], meta["namespace"])
                if (controller_ref(there) or {}).get("uid") == uid:
                    self.fresh.wrote(key, informer, there)
            unsure.pop()
        self._unsure.pop(key, None)
        return self.fresh.is_fresh(key)

    def forget(self, key: Key) -> None:
        """Remove the records of a deleted object."""
        self.fresh.forget(key)
        self._unsure.pop(key, None)

    async def create_child(
        self, key: Key, informer: Informer, owner: Mapping[str, Any], child: Obj, *, exact: bool = False
    ) -> None:
        """Create a child of `owner`.

        An existing child of the owner with this name is the result of an earlier attempt. If another object
        has the name, the child gets another name, or with `exact`, AlreadyExists is raised. Success and
        failure are reported as events.
        """
        kind = child["kind"]
        try:
            made = await self._create(informer.resource, owner, child, exact=exact)
        except NotFound:
            return  # the namespace was deleted
        except (ServerError, OSError) as error:
            self._unsure.setdefault(key, []).append((informer, owner["metadata"]["uid"], child))
            self.events.event(owner, "Warning", "FailedCreate", f"Error creating: {error}")
            raise
        except ApiError as error:
            if isinstance(error, Forbidden) and "being terminated" in error.message:
                return  # nothing is made in a namespace that is going
            self.events.event(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        if made is not None:
            self.fresh.wrote(key, informer, made)
            if kind == "Pod":
                self.events.event(owner, "Normal", "SuccessfulCreate", f"Created pod: {child_name(made)}")

    async def create_claim(self, key: Key, informer: Informer, owner: Mapping[str, Any], claim: Obj) -> None:
        """Create a claim without an owner; an existing claim is used as it is."""
        try:
            made = await self.api.create(informer.resource, claim)
        except AlreadyExists:
            return
        except ApiError as error:
            self.events.event(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        self.fresh.wrote(key, informer, made)
        self.events.event(owner, "Normal", "SuccessfulCreate", f"Created claim: {child_name(made)}")

    async def _create(
        self, resource: Resource, owner: Mapping[str, Any], child: Obj, *, exact: bool
    ) -> Obj | None:
        try:
            return await self.api.create(resource, child)
        except AlreadyExists:
            meta = child["metadata"]
            there = await self.api.get(resource, meta["name"], meta["namespace"])
            ref = controller_ref(there)
            if ref is not None and ref["uid"] == owner["metadata"]["uid"]:
                return there
            if exact:
                raise
            base, _, _ = meta["name"].rpartition("-")
            other = f"{base}-{suffix(meta['name'], there['metadata']['uid'])}"
            return await self.api.create(resource, {**child, "metadata": {**meta, "name": other}})

    async def delete_child(self, key: Key, informer: Informer, owner: Mapping[str, Any], child: Obj) -> None:
        """Delete exactly this child (by uid); a deleted child is not an error.

        Raises Conflict if another object has this name, or if the child was changed at the same moment; the cache
        shows at the next pass which of the two happened.
        """
        meta = child["metadata"]
        try:
            await self.api.delete(informer.resource, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            self.fresh.deleted(key, informer, child)
            return
        except Conflict:
            raise  # not worth an event
        except ApiError as error:
            self.events.event(owner, "Warning", "FailedDelete", f"Error deleting: {error.message}")
            raise
        self.fresh.deleted(key, informer, child)
        if informer.resource.kind == "Pod":
            self.events.event(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")

    async def patch_child(self, key: Key, informer: Informer, child: Obj, patch: Any) -> bool:
        """Merge-patch a child; False when it was deleted or changed meanwhile."""
        meta = child["metadata"]
        try:
            new = await self.api.patch(informer.resource, meta["name"], patch, meta.get("namespace"))
        except (NotFound, Conflict):
            return False
        self.fresh.wrote(key, informer, new)
        return True

    async def claim_children(self, key: Key, informer: Informer, owner: Obj, candidates: Iterable[Obj]) -> Claims:
        """Adopt the orphans that the owner's selector matches, release the children that it no longer matches."""
        sorted_out = claims(owner, label_selector_of(owner["spec"].get("selector") or {}), candidates)
        for child in sorted_out.adopt:
            await self.patch_child(key, informer, child, adoption(owner, child))
        for child in sorted_out.release:
            await self.patch_child(key, informer, child, release(owner, child))
        return sorted_out

    async def write_status(self, key: Key, informer: Informer, obj: Obj, status: Obj) -> Obj:
        """Replace the status of an object that was read. Raises Conflict if the object has changed since."""
        new = await self.api.update(informer.resource, {**obj, "status": status}, subresource="status")
        self.fresh.wrote(key, informer, new)
        return new

    async def remove_finalizer(self, key: Key, informer: Informer, obj: Obj, finalizer: str) -> bool:
        """Remove one finalizer, also after other changes; False when the object was deleted."""
        meta = obj["metadata"]
        left = [other for other in meta.get("finalizers") or () if other != finalizer]
        patch = {
            "metadata": {
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
                "finalizers": left or None,
            }
        }
        try:
            new = await self.api.patch(informer.resource, meta["name"], patch, meta.get("namespace"))
        except NotFound:
            return False
        except Conflict:
            return await self._remove_finalizer_again(key, informer, obj, finalizer)
        if left or not is_deleting(new):
            self.fresh.wrote(key, informer, new)
        else:
            self.fresh.outdated(key, informer, obj)  # it vanished with its last finalizer
        return True

    async def _remove_finalizer_again(self, key: Key, informer: Informer, obj: Obj, finalizer: str) -> bool:
        meta = obj["metadata"]
        try:
            now = await self.api.get(informer.resource, meta["name"], meta.get("namespace"))
        except NotFound:
            return False
        if now["metadata"]["uid"] != meta["uid"] or finalizer not in (now["metadata"].get("finalizers") or ()):
            return False
        if now["metadata"]["resourceVersion"] == meta["resourceVersion"]:
            raise Conflict(f"{informer.resource} {meta['name']} keeps changing")
        return await self.remove_finalizer(key, informer, now, finalizer)


def child_name(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"]["name"])
