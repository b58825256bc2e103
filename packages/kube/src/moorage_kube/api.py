"""The interface to the Kubernetes API that all our code uses.

Two classes implement `Api`: `moorage_kube.remote.client.KubeClient` over HTTPS, for any cluster, and
`moorage_local.apiserver.client.InProcessClient`, for the local cluster's own controllers. One contract suite
tests both (`packages/local/tests/contract/test_api.py`).
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
    """One change of an object. `type` is ADDED, MODIFIED, DELETED or BOOKMARK.

    A BOOKMARK only has a valid resourceVersion.
    """

    type: str
    object: Obj


@dataclass(frozen=True, slots=True)
class ObjList:
    """A list of objects and its resource version. `cont` is the token of the next page, if there is one."""

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
        """Return all objects, from every page unless `limit` is set. `namespace` None means all namespaces."""
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
        """Yield the changes after `resource_version`, with bookmarks, until the server ends the stream.

        Raises Expired if the version is too old: list again.
        """
        ...

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        """Create an object; `namespace` defaults to the namespace in the object. Raises AlreadyExists."""
        ...

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        """Replace an object. Raises Conflict if its resourceVersion is set and is not the newest."""
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
        """Send a POST to a subresource: `binding`, `eviction`, `token`."""
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
    """The verbs of the Kubernetes API, and the logs of pods."""
