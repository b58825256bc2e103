"""Deleted pods that were killed because of their memory use, remembered by an informer's handler."""

from __future__ import annotations

from collections.abc import Iterator

from moorage.decide.runs.memorykills import kill_of, owner_of
from moorage_kube.cache import BoundedCache
from moorage_kube.resources import Obj

REMEMBERED = 512  # pods, in each process


class DeletedPods:
    """Killed pods that were deleted: a StatefulSet deletes its failed pod before it makes the next.

    The last `REMEMBERED` of them, by owner.
    """

    def __init__(self) -> None:
        self._pods: BoundedCache[str, Obj] = BoundedCache(REMEMBERED)  # by uid

    def changed(self, before: Obj | None, after: Obj | None) -> None:
        """An informer's handler."""
        if before is None or after is not None or kill_of(before) is None:
            return
        self._pods.put(before["metadata"]["uid"], before)

    def of(self, owner_uid: str) -> Iterator[Obj]:
        for pod in self._pods.values():
            owner = owner_of(pod)
            if owner is not None and owner.uid == owner_uid:
                yield pod
