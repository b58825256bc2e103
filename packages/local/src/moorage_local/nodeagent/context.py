"""The shared parts of one node's agent: its API, its folder, its queue and the states of its pods."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import NotFound
from moorage_kube.informer import Informer
from moorage_kube.resources import Obj, Resource
from moorage_kube.workqueue import WorkQueue
from moorage_local.nodeagent.addresses import HOST_IP, Addresses
from moorage_local.nodeagent.node import NodeSpec, capacity, is_disk_pressure
from moorage_local.nodeagent.podfolder import Admission, PodFolder
from moorage_local.nodeagent.podstate import PodState, Problems

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)  # between tries to start a pod that cannot start yet


class Recorder(Protocol):
    """Records events about objects. It never waits and never raises."""

    def event(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Context:
    """One node and the objects that all parts of its agent share.

    `folder` has a folder per pod, named by its uid.
    """

    api: Api
    node: NodeSpec
    folder: Path
    clock: Clock
    recorder: Recorder | None
    addresses: Addresses
    pods: Informer  # of this node, indexed by "uid"
    queue: WorkQueue[str]  # uids of pods to look at
    states: dict[str, PodState] = field(default_factory=dict)
    is_shutting_down: bool = False
    _has_disk_pressure: bool = False

    def state_of(self, uid: str) -> PodState:
        """Return the state of a pod; a new state if there is none."""
        return self.states.setdefault(uid, PodState())

    def pod_folder(self, uid: str) -> PodFolder:
        return PodFolder(self.folder / uid)

    def uids(self) -> list[str]:
        """Return the uids of all pods that have a folder here."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def admission_of(self, uid: str) -> Admission | None:
        """Return the admission from the pod's folder, which is read only once."""
        state = self.states.get(uid)
        if state is not None and state.admission is not None:
            return state.admission
        admission = self.pod_folder(uid).admission()
        if admission is not None:
            self.state_of(uid).admission = admission
        return admission

    def address_of(self, uid: str) -> str:
        admission = self.admission_of(uid)
        return admission.address if admission else HOST_IP

    def forget(self, uid: str) -> None:
        """Remove the state of a pod whose object and folder are both deleted."""
        self.addresses.give_back(uid)
        state = self.states.pop(uid, None)
        if state is not None:
            state.stop_probing()

    def retry_later(self, uid: str, problems: Problems) -> None:
        """Record why the pod could not start, and try again after a delay that grows with each attempt."""
        state = self.state_of(uid)
        state.problems = problems
        delay = RETRY_SECONDS[min(state.tries, len(RETRY_SECONDS) - 1)]
        state.tries += 1
        self.queue.add_after(uid, delay)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self.api.get(resource, name, namespace)
        except NotFound:
            return None

    def event(self, pod: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        if self.recorder is not None:
            self.recorder.event({"apiVersion": "v1", "kind": "Pod"} | dict(pod), kind, reason, message)

    def offers(self) -> dict[str, str]:
        """The resources of the node, as quantities."""
        return capacity(self.node, storage_bytes=self.storage_bytes())

    def storage_bytes(self) -> int:
        """Return the size of the disk with the pods' folders in bytes; 0 if it cannot be read."""
        try:
            return shutil.disk_usage(self.folder).total
        except OSError:
            return 0

    def is_disk_pressure(self) -> bool:
        """Measure the disk with the pods' folders; a disk that cannot be read is not under pressure."""
        try:
            disk = shutil.disk_usage(self.folder)
        except OSError:
            return False
        self._has_disk_pressure = is_disk_pressure(
            free_bytes=disk.free, total_bytes=disk.total, before=self._has_disk_pressure
        )
        return self._has_disk_pressure


def uid_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def grace_of(pod: Obj | None) -> float:
    """Return the grace period of a stop in seconds: that of the deletion, else that of the pod; at least one."""
    if pod is None:
        return 1.0
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds")
    return max(1.0, 30.0 if given is None else float(given))
