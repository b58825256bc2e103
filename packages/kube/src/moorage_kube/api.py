"""The verbs of the Kubernetes API, as everything here calls them.

Two things implement `Api`: `moorage_kube.remote.client.KubeClient` over HTTPS, for any cluster, and
`moorage_local.apiserver.client.InProcessClient`, for the local cluster's own
controllers. One contract suite holds both (`packages/local/tests/contract/test_api.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from moorage_kube.resources import Obj, Resource

PatchKind = Literal["merge", "json", "strategic", "apply"]

CONTENT_TYPES: dict[PatchKind, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change. `type` is ADDED, MODIFIED, DELETED or BOOKMARK (then only its resourceVersion counts)."""

    type: str
    object: Obj


@dataclass(frozen=True, slots=True)
class ObjList:
    """A list and the resource version it was read at; `cont` is the token of the next page, if any."""

    items: list[Obj]
    resource_version: str
    cont: str | None = None


class Api(Protocol):
    """The Kubernetes API: one object at a time, or a collection.

    Every method raises `moorage_kube.errors.ApiError` subclasses. Objects passed in are neither changed nor
    retained. Objects returned belong to the caller, **except** those of `list` and `watch` of an in-process
    client: they are shared and must not be changed, so copy before you edit.
    """

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj: ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
        cont: str | None = None,
    ) -> ObjList:
        """All objects (every page is followed unless `limit` is given); `namespace` None means all."""
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, bookmarks too, until the server ends the stream.

        Raises Expired when the version is too old: list again.
        """
        ...

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        """`namespace` defaults to the object's own. Raises AlreadyExists."""
        ...

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        """Replace; with a resourceVersion in the object, Conflict when it is no longer the newest."""
        ...

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
    ) -> Obj: ...

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
        """Delete; `uid` is a precondition (Conflict when another object has the name now). Raises NotFound."""
        ...

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        """POST to a subresource: `binding`, `eviction`, `token`."""
        ...


class LogApi(Protocol):
    """A source of pods' logs, such as `KubeClient`."""

    def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]: ...


class PodApi(Api, LogApi, Protocol):
    """The verbs, and pods' logs."""
