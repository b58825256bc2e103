"""Read the results and failures of a map while it runs: in order, each once."""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

from moorage.worker.mapworker.child import decode
from moorage_kube.errors import MoorageError

R = TypeVar("R")


class ItemError(MoorageError):
    """An item failed for good. `item`: its number; `value`: the item; `output`: the end of its output."""

    def __init__(self, *, item: int, value: Any, cause: str, message: str, output: str, map_name: str) -> None:
        super().__init__(f"item {item} of {map_name} failed: {message}")
        self.item = item
        self.value = value
        self.cause = cause
        self.reason = message
        self.output = output

    def __str__(self) -> str:
        return f"{self.message}\n{self.output}" if self.output else self.message


def is_good(pair: tuple[int, Any]) -> bool:
    return not isinstance(pair[1], ItemError)


class Reader(Generic[R]):
    """Sorts results by item number and yields each once. `after`: all items up to this number have a result."""

    def __init__(self, *, ordered: bool) -> None:
        self.after: int | None = None
        self.given = 0
        self.failed = 0
        self.cost = 0.0
        self._ordered = ordered
        self._next = 0  # the first item that is not known
        self._beyond: set[int] = set()
        self._waiting: dict[int, R | ItemError] = {}

    @property
    def known(self) -> int:
        return self._next + len(self._beyond)

    def add(self, line: bytes) -> None:
        document = json.loads(line)
        item = document["item"]
        if not self._is_new(item):
            return
        value = document["path"] if "path" in document else decode(document.get("value"), "auto")
        self._waiting[item] = value

    def add_failure(self, failure: ItemError) -> None:
        if self._is_new(failure.item):
            self.failed += 1
            self._waiting[failure.item] = failure

    def knows(self, item: int) -> bool:
        return item < self._next or item in self._beyond

    def _is_new(self, item: int) -> bool:
        if self.knows(item):
            return False
        self._beyond.add(item)
        while self._next in self._beyond:
            self._beyond.discard(self._next)
            self._next += 1
        self.after = self._next - 1 if self._next else None
        return True

    def take(self) -> list[tuple[int, R | ItemError]]:
        """The results that are ready to be returned."""
        if not self._ordered:
            news = list(self._waiting.items())
            self._waiting.clear()
        else:
            news = []
            while self.given + len(news) in self._waiting:
                at = self.given + len(news)
                news.append((at, self._waiting.pop(at)))
        self.given += len(news)
        return news
