"""The runs of a cluster as views, each computed again only when one of its objects has changed.

A list of runs is asked for often, and few runs change between two lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moorage.decide.runs.state import PodView, RunView, newest_first, view_run
from moorage.decide.usage.gpus import gpu_type
from moorage.model.names import RUN_LABEL
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, labels_of
from moorage_kube.resources import Obj


class RunIndex:
    """Reads informers that the caller runs; `jobs` and `pods` have the index `by_run` of the run's label."""

    def __init__(self, *, nodes: Informer, jobs: Informer, pods: Informer, by_run: str) -> None:
        self._jobs, self._pods, self._by_run = jobs, pods, by_run
        self._types: dict[str, str] = {}  # node → GPU type
        self._views: dict[Key, RunView] = {}
        self._stale: set[Key] = set()
        self._sorted: tuple[RunView, ...] = ()
        nodes.on_change(self._hear_node)
        jobs.on_change(self._hear)
        pods.on_change(self._hear)

    def all(self) -> tuple[RunView, ...]:
        """Every run, newest first."""
        for key in self._stale:
            jobs = self.jobs_of(key.namespace, key.name)
            if jobs:
                self._views[key] = self.view(key.namespace, key.name, jobs)
            else:
                self._views.pop(key, None)
        if self._stale:
            self._sorted = newest_first(self._views.values())
            self._stale.clear()
        return self._sorted

    def view(self, namespace: str, run: str, jobs: Sequence[Obj], kept: Sequence[PodView] = ()) -> RunView:
        """A run from its Jobs and the stored records of its pods."""
        return view_run(jobs, self.pods_of(namespace, run), node_types=self._types, kept=kept)

    def jobs_of(self, namespace: str, run: str) -> list[Obj]:
        return _of(namespace, self._jobs.by_index(self._by_run, run))

    def pods_of(self, namespace: str, run: str) -> list[Obj]:
        return _of(namespace, self._pods.by_index(self._by_run, run))

    def _hear(self, before: Obj | None, after: Obj | None) -> None:
        for obj in (before, after):
            if obj is not None and (name := labels_of(obj).get(RUN_LABEL)):
                key = Key(obj["metadata"].get("namespace") or "default", name)
                if key in self._views or self.jobs_of(*key):
                    self._stale.add(key)
                else:  # deleted before it was read
                    self._stale.discard(key)

    def _hear_node(self, before: Obj | None, after: Obj | None) -> None:
        name = (after or before or {})["metadata"]["name"]
        kind = None if after is None else gpu_type(labels_of(after))
        if self._types.get(name) == kind:
            return
        if kind is None:
            del self._types[name]
        else:
            self._types[name] = kind
        self._stale.update(self._views)  # nodes seldom come, go or change their type


def _of(namespace: str, objects: Iterable[Obj]) -> list[Obj]:
    return [obj for obj in objects if (obj["metadata"].get("namespace") or "default") == namespace]
