"""The API collection of a kind, or of a word such as `deploy`: from the discovery API of the server.

https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moorage_kube.resources import Resource
from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.resource.cluster import Refused

Read = Callable[[str], Mapping[str, Any]]  # a path → the document there


class Kinds:
    """`read`: GET, which retries after temporary errors."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        self._versions: list[str] | None = None

    def of_kind(self, api_version: str, kind: str) -> Resource:
        """Return the resource of a kind. Raises StepError if the cluster does not have the kind."""
        for row in self._of(api_version):
            if row.get("kind") == kind:
                return _resource(api_version, row)
        raise StepError(f"the cluster has no kind {kind!r} in version {api_version!r}")

    def of_word(self, word: str) -> Resource:
        """Return the resource for a word: `pod`, `po`, `pods`, `Pod`, `jobs.batch`, `jobs.v1.batch`.

        Raises StepError.
        """
        name, _, where = word.lower().partition(".")
        for api_version in self._every():
            group, _, version = api_version.rpartition("/")
            if where and where not in (group, f"{version}.{group}"):
                continue
            for row in self._of(api_version):
                names = (row.get("name"), row.get("singularName"), *(row.get("shortNames") or ()))
                if name in names or name == str(row.get("kind")).lower():
                    return _resource(api_version, row)
        raise StepError(f"flags: the cluster has no kind {word!r}")

    def _of(self, api_version: str) -> list[Mapping[str, Any]]:
        """Return the kinds of an API version; empty if the cluster does not have it."""
        if api_version not in self._rows:
            path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                rows = self._read(path).get("resources") or []
            except Refused as error:
                if error.status != 404:
                    raise
                rows = []
            self._rows[api_version] = [row for row in rows if "/" not in str(row.get("name"))]
        return self._rows[api_version]

    def _every(self) -> list[str]:
        """Return all API versions in the order of the API server.

        The preferred version of each group comes first.
        """
        if self._versions is None:
            self._versions = ["v1"]
            for group in self._read("/apis").get("groups") or ():
                preferred = str((group.get("preferredVersion") or {}).get("groupVersion") or "")
                others = [str(row.get("groupVersion")) for row in group.get("versions") or ()]
                self._versions += dict.fromkeys(filter(None, (preferred, *others)))
        return self._versions


def _resource(api_version: str, row: Mapping[str, Any]) -> Resource:
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, str(row["name"]), str(row["kind"]), bool(row.get("namespaced")))
