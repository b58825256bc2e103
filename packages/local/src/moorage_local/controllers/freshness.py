"""Wait until a cache shows the last writes, before deciding again.

If a cache does not show our last write yet, a plan made from this cache would write again. So `Freshness` stores
the writes of each key. A write is removed when the informer has reached its resource version. A deletion is
removed when the cached object is missing or marked as deleted. Resource versions are integers that grow over the
whole store: KEP-5504.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from moorage_kube.informer import Informer
from moorage_kube.meta import Key, is_deleting, key_of

K = TypeVar("K", bound=Hashable)


class Freshness(Generic[K]):
    """The changes that each key waits to see."""

    def __init__(self) -> None:
        self._versions: dict[K, dict[Informer, int]] = {}
        self._deletions: dict[K, dict[str, tuple[Informer, Key]]] = {}
        self._outdated: dict[K, dict[str, tuple[Informer, Key, str]]] = {}

    def wrote(self, key: K, informer: Informer, obj: Mapping[str, Any]) -> None:
        """Expect at least the version of `obj`, the API's answer to a create, update or patch."""
        version = _number(obj["metadata"].get("resourceVersion"))
        if version is None:
            return
        wanted = self._versions.setdefault(key, {})
        wanted[informer] = max(version, wanted.get(informer, 0))

    def deleted(self, key: K, informer: Informer, obj: Mapping[str, Any]) -> None:
        """`obj` was deleted, with or without a grace period: expect it to be missing or marked as deleted."""
        self._deletions.setdefault(key, {})[obj["metadata"].get("uid") or ""] = (informer, key_of(obj))

    def outdated(self, key: K, informer: Informer, obj: Mapping[str, Any]) -> None:
        """Expect that this version of `obj` disappears from the cache: the object was changed or deleted."""
        meta = obj["metadata"]
        version = str(meta.get("resourceVersion"))
        self._outdated.setdefault(key, {})[meta.get("uid") or ""] = (informer, key_of(obj), version)

    def is_fresh(self, key: K) -> bool:
        """Whether the caches show all writes for `key`."""
        versions = self._versions.get(key)
        if versions is not None:
            for informer, wanted in list(versions.items()):
                seen = _number(informer.resource_version)
                if seen is None or seen >= wanted:
                    del versions[informer]
            if versions:
                return False
            del self._versions[key]
        deletions = self._deletions.get(key)
        if deletions is not None:
            for uid, (informer, where) in list(deletions.items()):
                obj = informer.get(where.name, where.namespace)
                if obj is None or obj["metadata"].get("uid") != uid or is_deleting(obj):
                    del deletions[uid]
            if deletions:
                return False
            del self._deletions[key]
        outdated = self._outdated.get(key)
        if outdated is not None:
            for uid, (informer, where, version) in list(outdated.items()):
                obj = informer.get(where.name, where.namespace)
                if obj is None or (obj["metadata"].get("uid"), obj["metadata"].get("resourceVersion")) != (
                    uid,
                    version,
                ):
                    del outdated[uid]
            if outdated:
                return False
            del self._outdated[key]
        return True

    def forget(self, key: K) -> None:
        self._versions.pop(key, None)
        self._deletions.pop(key, None)
        self._outdated.pop(key, None)


def _number(version: Any) -> int | None:
    try:
        return int(version)
    except (TypeError, ValueError):
        return None
