"""Admission of pods on this node: check the free resources and assign GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from moorage_kube.clock import rfc3339
from moorage_kube.quantity import amount
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, parse_pod, shortages
from moorage_local.nodeagent import gpus as gpu
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.context import Context, grace_of, uid_of
from moorage_local.nodeagent.plan import Body
from moorage_local.nodeagent.podfields import ignored_fields
from moorage_local.nodeagent.podfolder import Admission, PodFolder
from moorage_local.nodeagent.podstate import PodState
from moorage_local.nodeagent.problems import not_written
from moorage_local.nodeagent.shimspec import container_gpus


class Admitting:
    """Admits one pod at a time. `publish` updates the status of a pod in the API."""

    def __init__(self, context: Context, publish: Callable[[Obj, PodFolder], Awaitable[Obj]]) -> None:
        self._context = context
        self._publish = publish
        self._admitting = asyncio.Lock()

    async def admit(self, pod: Obj, folder: PodFolder) -> bool:
        """Choose GPUs and write the admission. Return False if the resources are about to be freed: try again."""
        uid = uid_of(pod)
        info = parse_pod(pod)
        asked = info.requests.get(gpu.RESOURCE, 0)
        async with self._admitting:
            # the resources of the other admitted pods
            held = [
                state.admission
                for other, state in self._context.states.items()
                if other != uid and state.admission is not None and self._holds(other, state.admission, state)
            ]
            used: dict[str, int] = {}
            for admission in held:
                for name, count in admission.requests.items():
                    used[name] = used.get(name, 0) + count
            taken = [index for admission in held for index in admission.gpus]
            # GPUs for this pod, and the missing resources
            indices = gpu.assign(self._context.node.gpus, taken, asked)
            offers = {name: amount(name, text) for name, text in self._context.offers().items()}
            short = shortages(info, NodeInfo(name=self._context.node.name, allocatable=offers), used)
            if short and any(not self._context.pods.by_index("uid", holder.uid) for holder in held):
                self._context.queue.add_after(uid, 0.1)  # deleted by force, still ending
                return False
            # the admission, or the reason against it, written before anything is started
            rejected = _rejection(
                asked,
                free=self._context.node.gpus - len(taken),
                indices=indices,
                short=short,
                used=used,
                offers=offers,
            )
            divided = container_gpus(pod["spec"], indices or ())
            real = self._context.node.real_gpu_uuids
            admission = Admission(
                uid=uid,
                namespace=info.namespace,
                name=info.name,
                at=rfc3339(self._context.clock.now()),
                requests=info.requests,
                gpus=indices or (),
                devices={
                    name: gpu.device_ids(self._context.node.name, real, which)
                    for name, which in divided.items()
                    if which
                },
                grace_seconds=grace_of(pod),
                address=HOST_IP
                if rejected or pod["spec"].get("hostNetwork")
                else self._context.addresses.take(uid),
                rejected=rejected,
            )
            try:
                await asyncio.to_thread(folder.write_admission, admission, pod)
            except OSError as error:
                self._context.retry_later(uid, not_written(pod, error))
                await self._publish(pod, folder)
                return False
            self._context.state_of(uid).admission = admission
        if rejected:
            self._context.event(pod, "Warning", rejected[0], rejected[1])
        elif ignored := ignored_fields(pod["spec"]):
            text = f"the local cluster ignores {', '.join(ignored)}: see docs/reference/pod-fields.md"
            self._context.event(pod, "Warning", "FieldsIgnored", text)
        return True

    def _holds(self, uid: str, admission: Admission, state: PodState) -> bool:
        """Whether an admitted pod still uses its resources."""
        if admission.rejected or state.has_ended:
            return False
        if self._context.pod_folder(uid).body() in (Body.ADMITTED, Body.ALIVE):
            return True
        state.has_ended = True
        return False


def _rejection(
    asked: int,
    *,
    free: int,
    indices: Sequence[int] | None,
    short: Mapping[str, tuple[int, int]],
    used: Mapping[str, int],
    offers: Mapping[str, int],
) -> tuple[str, str] | None:
    """Return the kubelet's reason and message for a pod that does not fit; None if it fits."""
    if indices is None:
        return (
            "UnexpectedAdmissionError",
            f"Allocate failed due to requested number of devices unavailable for {gpu.RESOURCE}."
            f" Requested: {asked}, Available: {free}, which is unexpected",
        )
    if short:
        name = min(short)
        return (
            f"OutOf{name}",
            f"Pod was rejected: Node didn't have enough resource: {name}, requested: {short[name][0]},"
            f" used: {used.get(name, 0)}, capacity: {offers.get(name, 0)}",
        )
    return None
