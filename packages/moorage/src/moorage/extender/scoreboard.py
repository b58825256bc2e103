"""Cached points of every node for every kind of request. Only changed nodes are computed again.

A cluster sees few kinds of requests, and usually one node changes at a time, so most points come from the cache.
The extender and `moor simulate` both use it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from moorage.decide.packing.policies import Ask, Rooms
from moorage.extender.policies import Policy

T = TypeVar("T")

KINDS_KEPT = 256  # kinds of requests whose points are cached: at 5,000 nodes 40 KB each with points only


class _Table(Generic[T]):
    __slots__ = ("known", "seen", "values", "version")

    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        self.known: dict[tuple[tuple[str, object], ...], int] = {}  # points by rooms
        self.seen = 0  # changes that are in `values`
        self.version = -1


class Scoreboard(Generic[T]):
    """`render` turns a node's name and points into the values of tables (JSON for the extender)."""

    def __init__(self, policy: Policy, render: Callable[[str, int], T]) -> None:
        self.policy = policy
        self._render = render
        self._rooms: dict[str, Rooms] = {}
        self._changes: list[str] = []  # names of nodes, in order
        self._forgotten = 0  # changes dropped from the head of the list
        self._tables: OrderedDict[Ask, _Table[T]] = OrderedDict()

    def put(self, node: str, rooms: Rooms | None) -> None:
        """The node has these rooms now; None: it was deleted."""
        if rooms is None:
            if self._rooms.pop(node, None) is None:
                return
        elif self._rooms.get(node) == rooms:
            return
        else:
            self._rooms[node] = rooms
        self.policy.hold(node, rooms)
        self._changes.append(node)
        if len(self._changes) > 4 * len(self._rooms) + 1000:
            half = len(self._changes) // 2
            self._forgotten += half
            del self._changes[:half]

    def rooms(self, node: str) -> Rooms | None:
        return self._rooms.get(node)

    def table(self, ask: Ask) -> Mapping[str, T]:
        """The values of `render` for each node, by name. Do not store it: the next call changes it."""
        table = self._tables.get(ask)
        if table is None:
            table = self._tables[ask] = _Table()
            if len(self._tables) > KINDS_KEPT:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(ask)
        now = self._forgotten + len(self._changes)
        if table.version != self.policy.version or table.seen < self._forgotten:
            if table.version != self.policy.version:
                table.known.clear()
            table.values.clear()
            table.version = self.policy.version
            changed: set[str] = set(self._rooms)
        elif table.seen == now:
            return table.values
        else:
            changed = set(self._changes[table.seen - self._forgotten :])
        table.seen = now
        for name in changed:
            rooms = self._rooms.get(name)
            if rooms is None:
                table.values.pop(name, None)
                continue
            key = tuple(rooms.items())
            points = table.known.get(key)
            if points is None:
                if len(table.known) > 20_000:
                    table.known.clear()
                points = table.known[key] = self.policy.points(ask, rooms)
            table.values[name] = self._render(name, points)
        return table.values
