"""How much memory pods of runs use, as the kubelets of the cluster report; the highest is kept with the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.clock import Clock
from moorage.decide.runs.kept import is_of_run, uid_of
from moorage.decide.runs.state import view_pod
from moorage.server.cluster import Cluster
from moorage.server.summaries import Summaries, ask_nodes

SAMPLE_SECONDS = 30.0  # kubelets themselves measure every 10 to 20 s


class MemoryUse:
    """Asks the nodes where pods of runs run. `note` takes bytes by the uid of a pod.

    Pods that tell their peak themselves are left out, such as those of the local cluster.
    """

    def __init__(
        self, cluster: Cluster, kubelets: Summaries, note: Callable[[Mapping[str, int]], None], *, clock: Clock
    ) -> None:
        self._cluster, self._kubelets, self._note, self._clock = cluster, kubelets, note, clock

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self._clock.sleep(SAMPLE_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        """Ask each such node once. A node that does not answer is left out."""
        running: dict[str, list[Obj]] = {}  # by node
        for pod in self._cluster.pods.all():
            if is_of_run(pod) and _is_measured(pod):
                running.setdefault(pod["spec"]["nodeName"], []).append(pod)
        nodes = [node for node in self._cluster.nodes.all() if node["metadata"]["name"] in running]
        used: dict[str, int] = {}
        async for name, summary in ask_nodes(self._kubelets, nodes):
            used |= memory_of(summary, running[name])
        if used:
            self._note(used)


def memory_of(summary: Any, pods: Iterable[Obj]) -> dict[str, int]:
    """Uid of a pod → bytes in use by its first container, which is the run's. Parts of another shape are left out.

    The working set: what counts against the limit, without file pages that the kernel takes away first.
    """
    main = {uid_of(pod): str((pod["spec"].get("containers") or [{}])[0].get("name")) for pod in pods}
    used: dict[str, int] = {}
    for entry in _listed(summary, "pods"):
        uid = str(_mapping(entry, "podRef").get("uid") or "")
        for container in _listed(entry, "containers"):
            size = _mapping(container, "memory").get("workingSetBytes")
            if uid in main and container.get("name") == main[uid] and isinstance(size, int) and size > 0:
                used[uid] = size
    return used


def _is_measured(pod: Obj) -> bool:
    view = view_pod(pod)
    return view.phase == "Running" and bool(view.node) and view.peak_memory_bytes is None


def _mapping(part: Any, key: str) -> Mapping[str, Any]:
    value = part.get(key) if isinstance(part, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _listed(part: Any, key: str) -> list[Mapping[str, Any]]:
    value = part.get(key) if isinstance(part, Mapping) else None
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
