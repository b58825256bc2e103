"""Views of nodes, each computed again only when the node or a pod on it has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from moorage_kube.informer import Informer, index_by_node
from moorage_kube.resources import Obj

BY_NODE = "node"


View = TypeVar("View")


class NodeIndex(Generic[View]):
    """Reads informers that the caller runs. `make` gets a node and the pods bound to it; None: not shown."""

    def __init__(self, nodes: Informer, pods: Informer, make: Callable[[Obj, Sequence[Obj]], View | None]) -> None:
        self._nodes, self._pods, self._make = nodes, pods, make
        self._views: dict[str, View] = {}
        self._stale: set[str] = set()
        self._sorted: tuple[View, ...] = ()
        pods.add_index(BY_NODE, index_by_node)
        nodes.on_change(self._hear_node)
        pods.on_change(self._hear_pod)

    def all(self) -> tuple[View, ...]:
        """Every view, sorted by the name of its node. The same tuple as before if nothing has changed."""
        for name in self._stale:
            node = self._nodes.get(name)
            view = None if node is None else self._make(node, self._pods.by_index(BY_NODE, name))
            if view is not None:
                self._views[name] = view
            else:
                self._views.pop(name, None)
        if self._stale:
            self._sorted = tuple(self._views[name] for name in sorted(self._views))
            self._stale.clear()
        return self._sorted

    def _hear_node(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self._stale.add(obj["metadata"]["name"])

    def _hear_pod(self, before: Obj | None, after: Obj | None) -> None:
        for obj in (before, after):
            if obj is not None and (name := (obj.get("spec") or {}).get("nodeName")):
                self._stale.add(name)
