"""Who reads what a pod prints now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Followers:
    """How many read what a pod prints, by the pod's uid."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def has(self, uid: str) -> bool:
        return uid in self._counts

    @contextmanager
    def following(self, uid: str) -> Iterator[None]:
        self._counts[uid] = self._counts.get(uid, 0) + 1
        try:
            yield
        finally:
            self._counts[uid] -= 1
            if not self._counts[uid]:
                del self._counts[uid]
