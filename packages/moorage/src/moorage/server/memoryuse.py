"""Memory use of pods of users from kubelets: asked once a round for all consumers.

For pods of runs and of workflows' steps the highest use of memory is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moorage.decide.runs.state import view_pod
from moorage.decide.runs.storedruns import is_recorded, uid_of
from moorage.server.cluster import Cluster
from moorage.server.summaries import Summaries, ask_nodes
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import Clock
from moorage_kube.resources import Obj

SAMPLE_SECONDS = 30.0  # between two rounds; kubelets themselves measure every 10 to 20 s
RETRY = DoublingDelay(SAMPLE_SECONDS, 600.0)  # seconds before a node that did not answer is asked again


class MemoryUse:
    """Asks the nodes of such pods. `note` takes bytes by the uid of a pod.

    Pods that report their peak themselves are left out, such as those of the local cluster. Nodes are
    asked too if they run only pods for which `also` is true.
    """

    def __init__(
        self,
        cluster: Cluster,
        kubelets: Summaries,
        note: Callable[[Mapping[str, int]], None],
        *,
        clock: Clock,
        also: Callable[[Obj], bool] = lambda _: False,
    ) -> None:
        self._cluster, self._kubelets, self._note, self._clock = cluster, kubelets, note, clock
        self._also = also
        self.failures = 0  # of nodes that did not answer, ever
        self._silent: dict[str, tuple[int, float]] = {}  # node → failures in a row, and when to ask it again

    async def summaries(self) -> list[Any]:
        """Ask each such node once; return the summaries. A node that does not answer is skipped for some time."""
        running: dict[str, list[Obj]] = {}  # by node
        for pod in self._cluster.pods.all():
            is_noted = is_recorded(pod) and _is_measured(pod)
            if is_noted or self._also(pod):
                on_node = running.setdefault(pod["spec"]["nodeName"], [])
                if is_noted:
                    on_node.append(pod)
        now = self._clock.monotonic()
        self._silent = {name: known for name, known in self._silent.items() if name in running}
        resting = {name for name, (_, again) in self._silent.items() if now < again}
        wanted = running.keys() - resting
        nodes = [node for node in self._cluster.nodes.all() if node["metadata"]["name"] in wanted]
        used: dict[str, int] = {}
        summaries = []
        silent = {node["metadata"]["name"] for node in nodes}
        async for name, summary in ask_nodes(self._kubelets, nodes):
            silent.remove(name)
            self._silent.pop(name, None)
            used |= memory_of(summary, running[name])
            summaries.append(summary)
        for name in silent:
            failures = self._silent.get(name, (0, now))[0] + 1
            self.failures += 1
            self._silent[name] = (failures, now + RETRY.after(failures))
        if used:
            self._note(used)
        return summaries


def memory_of(summary: Any, pods: Iterable[Obj]) -> dict[str, int]:
    """Uid of a pod → bytes in use by its first container, which is the user's. Invalid parts are left out.

    The working set, which counts against the limit: without file pages that the kernel reclaims first.
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
