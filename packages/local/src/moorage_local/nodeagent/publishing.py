"""The agent's reports about a pod to the API: its status, its events, its peak memory; and its end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from moorage_kube.clock import rfc3339
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.meta import annotations_of, key_of
from moorage_kube.resources import PODS, Obj
from moorage_local.nodeagent.context import Context, uid_of
from moorage_local.nodeagent.podfolder import PodFolder
from moorage_local.nodeagent.probing import Probing
from moorage_local.nodeagent.status import TERMINAL, Local, peak_memory, pod_status, transitions

log = logging.getLogger(__name__)

PEAK_ANNOTATION = "localcluster.moorage.dev/peak-memory-bytes"
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # annotation: the container with the pod's log
PEAK_SECONDS = 30.0  # at most one annotation of a running pod's peak memory in this time


class Publishing:
    """Writes changes of a pod to the API."""

    def __init__(self, context: Context, probing: Probing) -> None:
        self._context = context
        self._probing = probing

    async def publish(self, pod: Obj, folder: PodFolder, *, is_over: bool = False) -> Obj:
        """Update annotation and status, if they changed. Return the newest object.

        `is_over`: no container of the pod ran, and none will.
        """
        # a damaged report must not undo a status that is right
        uid = uid_of(pod)
        admission = self._context.admission_of(uid)
        state = folder.state()
        if state is None and folder.has_state() and folder.lost_at() is None:
            log.warning("a pod's state is damaged: its status stays as it is", extra={"pod": str(key_of(pod))})
            return pod
        # probes follow the containers that run now
        self._probing.probe(pod, state)
        known = self._context.state_of(uid)
        local = Local(
            admitted_at=admission.at if admission else None,
            address=admission.address if admission else None,
            state=state,
            problems=known.problems,
            rejected=admission.rejected if admission else None,
            lost_at=folder.lost_at(),
            devices=admission.devices if admission else {},
            unready=frozenset(known.unready),
            unstarted=frozenset(known.unstarted),
            is_over=is_over,
        )
        self._report_hooks(pod, state)
        # write only changes; the API may store a status in its own form
        before = pod.get("status") or {}
        status = pod_status(pod, local, now=rfc3339(self._context.clock.now()))
        pod = await self._annotate_peak(pod, state, over=status["phase"] in TERMINAL or status != before)
        if status == before or known.sent == (status, before):
            return pod  # in the second case the API keeps it in its own words
        try:
            pod = await self._context.api.update(PODS, {**pod, "status": status}, subresource="status")
        except NotFound:
            return pod
        # events follow the write, so that they are not repeated after a failed one
        known.sent = (status, pod.get("status") or {})
        for kind, reason, message in transitions(before, status):
            self._context.event(pod, kind, reason, message)
        if state is not None and not before.get("podIP"):
            self._report_missing_namespaces(pod, state)
        return pod

    def _report_hooks(self, pod: Obj, state: Mapping[str, Any] | None) -> None:
        """Write one event for each failed lifecycle hook."""
        reported = self._context.state_of(uid_of(pod)).hooks_failed
        for report in (state or {}).get("containers") or ():
            if not report.get("hookFailed"):
                continue
            kind, _, why = str(report["hookFailed"]).partition(": ")
            key = f"{report['name']} {report.get('attempt')} {kind}"
            if key not in reported:
                reported.add(key)
                name = f"{kind[:1].upper()}{kind[1:]}Hook"
                self._context.event(
                    pod, "Warning", f"Failed{name}", f"{name} of container {report['name']}: {why}"
                )

    def _report_missing_namespaces(self, pod: Obj, state: Mapping[str, Any]) -> None:
        if state.get("mounts") == "translated":
            self._context.event(
                pod,
                "Warning",
                "MountsTranslated",
                "the kernel refused a mount namespace, so mount paths in command and environment were replaced by"
                f" paths of this machine ({state.get('mountsError') or 'not permitted'})",
            )
        if state.get("privateError"):
            self._context.event(
                pod,
                "Warning",
                "NotPrivate",
                "the pod writes into the files of this machine, because there can be no private root:"
                f" {state['privateError']}",
            )
        if state.get("fenceError"):
            self._context.event(
                pod,
                "Warning",
                "NotFenced",
                "the pod can read the folder of the cluster, the administrator's token too, because this machine"
                f" cannot hide it: {state['fenceError']}",
            )

    async def _annotate_peak(self, pod: Obj, state: Mapping[str, Any] | None, *, over: bool) -> Obj:
        """Write the peak memory to the pod.

        After a container's state changes, and every 30 s while the peak grows.
        """
        # helpers of the platform in the pod of a person's container do not count
        peak = peak_memory(state, annotations_of(pod).get(DEFAULT_CONTAINER, ""))
        if not peak or annotations_of(pod).get(PEAK_ANNOTATION) == str(peak):
            return pod
        now = self._context.clock.monotonic()
        uid = uid_of(pod)
        known = self._context.state_of(uid)
        ended = any(
            (container.get("state") or {}).get("terminated")
            or (container.get("lastState") or {}).get("terminated")
            for container in (state or {}).get("containers") or ()
        )
        is_recent = known.peak_written is not None and now - known.peak_written < PEAK_SECONDS
        if is_recent and not (over and ended):
            return pod
        known.peak_written = now
        meta = pod["metadata"]
        try:
            return await self._context.api.patch(
                PODS,
                meta["name"],
                {"metadata": {"uid": uid, "annotations": {PEAK_ANNOTATION: str(peak)}}},
                meta.get("namespace") or "default",
            )
        except NotFound:
            return pod

    async def delete(self, pod: Obj) -> None:
        meta = pod["metadata"]
        if meta.get("deletionGracePeriodSeconds") == 0 and meta.get("finalizers"):
            return  # it waits for others now
        with contextlib.suppress(NotFound, Conflict):
            await self._context.api.delete(
                PODS, meta["name"], meta.get("namespace") or "default", grace_period_seconds=0, uid=meta["uid"]
            )
