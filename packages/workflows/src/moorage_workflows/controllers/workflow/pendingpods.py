"""Limit the pods of a run that wait for a node. Plain data.

The scheduler takes waiting pods by age, so a run with many of them delays all newer pods. So of one
template at most as many pods wait as have a node, and at least `LEAST`: enough to show the demand to an
autoscaler.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from msgspec import Struct, field

from moorage_workflows.decide.workflows.graph.events import CreatePod

LEAST = 100  # pods of a template that may wait for a node, however few have one


class _Kind(Struct):
    """The pods of one template, by name. `unplaced`: pods without a node that exist or are about to be created."""

    orders: dict[str, CreatePod] = field(default_factory=dict)
    unplaced: set[str] = field(default_factory=set)
    placed: set[str] = field(default_factory=set)

    @property
    def room(self) -> int:
        return max(LEAST, len(self.placed)) - len(self.unplaced)


class PendingPods:
    """The pods of one run that have not ended. Without `bounded`, all orders are due at once."""

    def __init__(self, *, bounded: bool = True) -> None:
        self._bounded = bounded
        self._kinds: dict[str, _Kind] = {}
        self._kind_of: dict[str, _Kind] = {}

    def order(self, orders: Iterable[CreatePod]) -> None:
        """Add pods at the end of the queue."""
        for order in orders:
            name = order.record.pod_name
            self.forget(name)
            self._in(name, order.record.template).orders[name] = order

    def take(self) -> list[CreatePod]:
        """Remove and return the due orders, the oldest of a template first: now their pods wait for a node."""
        taken: list[CreatePod] = []
        for kind in self._kinds.values():
            room = kind.room if self._bounded else len(kind.orders)
            for name in list(itertools.islice(kind.orders, max(room, 0))):
                taken.append(kind.orders.pop(name))
                kind.unplaced.add(name)
        return taken

    def has(self, name: str) -> bool:
        """Whether the pod is not due yet."""
        return name in self._kind_of and name in self._kind_of[name].orders

    def seen(self, name: str, template: str, *, has_node: bool) -> None:
        """Note that the pod exists and has not ended."""
        kind = self._in(name, template)
        kind.orders.pop(name, None)
        (kind.placed if has_node else kind.unplaced).add(name)
        (kind.unplaced if has_node else kind.placed).discard(name)

    def forget(self, name: str) -> bool:
        """Note that the pod has ended, or is not to be created; return whether it was not due yet."""
        kind = self._kind_of.pop(name, None)
        if kind is None:
            return False
        kind.unplaced.discard(name)
        kind.placed.discard(name)
        return kind.orders.pop(name, None) is not None

    def _in(self, name: str, template: str) -> _Kind:
        kind = self._kind_of.get(name)
        if kind is None:
            kind = self._kind_of[name] = self._kinds.setdefault(template, _Kind())
        return kind
