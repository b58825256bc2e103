"""The loop: start shims for pods bound to this node, and report their states to the API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import assert_never

from moorage_kube.api import Api
from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339, rfc3339
from moorage_kube.databasefile import FULL
from moorage_kube.errors import Conflict, MoorageError
from moorage_kube.hangs import HANG_RECORD
from moorage_kube.informer import Informer
from moorage_kube.meta import is_deleting, key_of
from moorage_kube.moments import span_of
from moorage_kube.reserve import Reserve
from moorage_kube.resources import PODS, Obj
from moorage_kube.workqueue import WorkQueue
from moorage_local.nodeagent.access import Access
from moorage_local.nodeagent.addresses import Addresses
from moorage_local.nodeagent.admitting import Admitting
from moorage_local.nodeagent.context import Context, Recorder, grace_of, uid_of
from moorage_local.nodeagent.heartbeat import Heartbeat
from moorage_local.nodeagent.launcher import Launcher
from moorage_local.nodeagent.leftovers import kill_leftovers
from moorage_local.nodeagent.node import NodeSpec
from moorage_local.nodeagent.plan import (
    Admit,
    Body,
    DeclareLost,
    DeleteObject,
    Publish,
    RemoveFolder,
    Seen,
    Start,
    Stop,
    plan,
)
from moorage_local.nodeagent.podfolder import Admission, PodFolder
from moorage_local.nodeagent.podvolumes import REFRESH_SECONDS, PodVolumes
from moorage_local.nodeagent.probing import Probing
from moorage_local.nodeagent.problems import DEADLINE_MESSAGE, DEADLINE_REASON
from moorage_local.nodeagent.publishing import PEAK_ANNOTATION, Publishing
from moorage_local.nodeagent.starting import Starting, base_environment
from moorage_local.nodeagent.status import SHUTDOWN_MESSAGE, SHUTDOWN_REASON, TERMINAL

__all__ = ["PEAK_ANNOTATION", "NodeAgent", "NodeSpec", "Recorder"]

log = logging.getLogger(__name__)

WORKERS = 8  # pods worked on at once
POLL_SECONDS = 1.0  # how often the folders are looked at, should a shim's message be lost
SHUTDOWN_GRACE_SECONDS = 30.0


class NodeAgent:
    """The agent of one node. `pods_folder` has a folder per pod, named by its uid; only this agent may use it.

    `ready` is set after the Node is registered and the agent manages the existing pods. Pods get `server_url`
    as KUBERNETES_SERVICE_HOST and -PORT. The agents of one cluster share `addresses` and `launcher`. If the
    kernel allows it, pods do not see the folder `hidden`, except for their own part of it. On a full disk,
    orders to stop a pod use the space of the `reserve`.
    """

    def __init__(
        self,
        api: Api,
        node: NodeSpec,
        pods_folder: Path,
        *,
        clock: Clock = SYSTEM,
        recorder: Recorder | None = None,
        server_url: str | None = None,
        base_env: Mapping[str, str] | None = None,
        addresses: Addresses | None = None,
        launcher: Launcher | None = None,
        hidden: Path | None = None,
        reserve: Reserve | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.ready = asyncio.Event()
        # the parts share one context, and follow only the pods of this node
        self._context = context = Context(
            api=api,
            node=node,
            folder=pods_folder.resolve(),
            clock=clock,
            recorder=recorder,
            addresses=Addresses() if addresses is None else addresses,
            pods=Informer(
                api, PODS, field_selector=f"spec.nodeName={node.name}", indexes={"uid": lambda pod: (uid_of(pod),)}
            ),
            queue=WorkQueue(),
        )
        # leases and probes do not count the time in which the machine slept
        self._awake = AwakeTime(clock)
        self._reserve = reserve
        self._woken = asyncio.Event()
        self._awake.on_wake(self._on_wake)
        self._poll_seconds = poll_seconds
        # a given launcher is shared with other agents, and closed by its owner
        self._launcher = Launcher() if launcher is None else launcher
        self._owns_launcher = launcher is None
        # the steps of a pod
        self._heartbeat = Heartbeat(context, self._woken)
        self._volumes = PodVolumes(context)
        self._starting = Starting(
            context,
            self._volumes,
            self._launcher,
            base_env=base_environment(server_url) if base_env is None else dict(base_env),
            hidden=hidden,
        )
        self._publishing = Publishing(context, Probing(context, self._awake))
        self._admitting = Admitting(context, self._publishing.publish)
        self._access = Access(context)
        self.logs = self._access.logs
        self.execute = self._access.execute
        self.connect = self._access.connect

    async def run(self) -> None:
        """Register the node, adopt running pods, and manage its pods until cancelled. Pods live on."""
        self._context.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._keep_addresses()
        receiver = self._listen()
        loop = asyncio.get_running_loop()
        loop.add_reader(receiver, self._on_message, receiver)
        self._context.pods.on_change(self._on_pod)
        try:
            await self._heartbeat.register()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._context.pods.run())
                await self._context.pods.synced.wait()
                for uid in self._context.uids():
                    self._context.admission_of(uid)
                    self._context.queue.add(uid)
                for _ in range(WORKERS):
                    tasks.create_task(self._work())
                tasks.create_task(self._starting.try_fence())
                tasks.create_task(self._poll())
                tasks.create_task(self._heartbeat.renew())
                tasks.create_task(self._awake.run())
                self.ready.set()
        finally:
            loop.remove_reader(receiver)
            receiver.close()
            for state in self._context.states.values():
                state.stop_probing()
            self._context.queue.close()
            if self._owns_launcher:
                self._launcher.close()

    async def shutdown(self, stop_pods: bool, *, grace_seconds: float = SHUTDOWN_GRACE_SECONDS) -> None:
        """With `stop_pods`, end every pod of this node as a kubelet does before its machine shuts down.

        Each gets its own grace period, at most `grace_seconds`; it becomes Failed with the reason Terminated and
        the condition DisruptionTarget. Returns when all have ended and the API knows. `run` must still be running.
        """
        if not stop_pods:
            return
        self._context.is_shutting_down = True
        with contextlib.suppress(MoorageError):
            await self._heartbeat.write(ready=False, why="node is shutting down")
        alive = [uid for uid in self._context.uids() if self._context.pod_folder(uid).body() is Body.ALIVE]
        for uid in alive:
            folder = self._context.pod_folder(uid)
            admission = folder.admission()
            grace = min(grace_seconds, admission.grace_seconds if admission else grace_seconds)
            folder.request_stop(grace, reason=SHUTDOWN_REASON, message=SHUTDOWN_MESSAGE)
        deadline = self._context.clock.monotonic() + grace_seconds + 15.0
        while self._context.clock.monotonic() < deadline:
            waiting = [uid for uid in alive if not self._is_published(uid)]
            if not waiting:
                return
            for uid in waiting:
                self._context.queue.add(uid)
            await self._context.clock.sleep(0.05)
        log.warning("pods did not end in time for the shutdown", extra={"node": self._context.node.name})

    @property
    def spec(self) -> NodeSpec:
        return self._context.node

    def running(self) -> list[Admission]:
        """Return the pods whose processes this agent manages now."""
        alive = [uid for uid, state in self._context.states.items() if state.mark is not None]
        admissions = [self._context.admission_of(uid) for uid in alive]
        return [admission for admission in admissions if admission is not None and admission.rejected is None]

    def _is_published(self, uid: str) -> bool:
        pods = self._context.pods.by_index("uid", uid)
        return not pods or (pods[0].get("status") or {}).get("phase") in TERMINAL

    def _listen(self) -> socket.socket:
        """Open the socket for reports from shims; its path may be longer than the limit for socket addresses."""
        path = self._context.folder / "agent.sock"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        folder = os.open(self._context.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            receiver.bind(f"/proc/self/fd/{folder}/agent.sock")
        finally:
            os.close(folder)
        return receiver

    def _on_message(self, receiver: socket.socket) -> None:
        for _ in range(256):
            try:
                uid = receiver.recv(256).decode("utf-8", "replace")
            except BlockingIOError:
                return
            state = self._context.states.get(uid)
            if state is not None and state.is_watched:
                self._context.queue.add(uid)

    def _on_pod(self, before: Obj | None, after: Obj | None) -> None:
        for obj in (before, after):
            if obj is not None:
                self._context.queue.add(uid_of(obj))

    def _on_wake(self) -> None:
        """After the machine slept, check deadlines by the wall clock and renew the node's heartbeat."""
        self._context.queue.fire_all()
        self._woken.set()

    async def _poll(self) -> None:
        while True:
            await self._context.clock.sleep(self._poll_seconds)
            now = self._context.clock.monotonic()
            for uid, state in list(self._context.states.items()):
                if state.mark is None:
                    continue
                folder = self._context.pod_folder(uid)
                is_stale = state.refreshed is not None and state.refreshed + REFRESH_SECONDS < now
                if is_stale or folder.state_mark() != state.mark or not folder.is_locked():
                    self._context.queue.add(uid)

    async def _work(self) -> None:
        while True:
            uid = await self._context.queue.get()
            try:
                await self._pass(uid)
                self._context.queue.forget(uid)
            except Conflict:
                self._context.queue.retry(uid)  # another writer changed the pod: its event is on the way
            except (MoorageError, OSError) as error:
                delay = self._context.queue.retry(uid)
                log.warning(
                    "a pod could not be brought forward",
                    extra={
                        "uid": uid,
                        "node": self._context.node.name,
                        "error": str(error),
                        "retry_seconds": delay,
                    },
                )
            except Exception:  # a defect in one pod must not stop the others
                delay = self._context.queue.retry(uid)
                log.exception(
                    "a pod could not be brought forward",
                    extra={"uid": uid, "node": self._context.node.name, "retry_seconds": delay},
                )
            finally:
                self._context.queue.done(uid)

    async def _pass(self, uid: str) -> None:
        """Reconcile a pod, unless the agent hung on it before; record the pod while its pass runs."""
        hang_record, work = HANG_RECORD.get(), f"kubelet {uid}"
        pods = self._context.pods.by_index("uid", uid)
        if hang_record is None:
            await self._reconcile(uid)
        elif not await hang_record.skips(work, PODS, pods[0] if pods else None):
            await hang_record.noting(work, self._reconcile(uid))

    async def _reconcile(self, uid: str) -> None:
        """See, decide, act."""
        # the object, its folder and the processes in it
        pods = self._context.pods.by_index("uid", uid)
        pod = pods[0] if pods else None
        folder = self._context.pod_folder(uid)
        mark = folder.state_mark()
        body = folder.body()
        if body is Body.ALIVE:
            self._context.state_of(uid).mark = mark
        elif uid in self._context.states:
            self._context.states[uid].mark = None
        if body in (Body.ENDED, Body.LOST, Body.REFUSED):
            self._context.addresses.give_back(uid)
        status = (pod or {}).get("status") or {}
        if pod is None and body is Body.NONE:
            self._context.forget(uid)  # it was deleted before a write, or its folder was removed
            return
        # decide the steps, and execute them
        decided = plan(
            Seen(
                body=body,
                phase=None if pod is None else status.get("phase") or "Pending",
                deleting=pod is not None and is_deleting(pod),
                grace_seconds=grace_of(pod),
                shutting_down=self._context.is_shutting_down,
            )
        )
        for action in decided:
            match action:
                case Admit():
                    assert pod is not None
                    if not await self._admitting.admit(pod, folder):
                        return
                case Start():
                    assert pod is not None
                    await self._starting.start(pod, folder)
                case Stop(grace):
                    self._stop(uid, pod, folder, grace)
                case DeclareLost():
                    await self._declare_lost(uid, pod, folder)
                case Publish(is_over):
                    assert pod is not None
                    pod = await self._publishing.publish(pod, folder, is_over=is_over)
                case DeleteObject():
                    assert pod is not None
                    await self._publishing.delete(pod)
                case RemoveFolder():
                    await self._remove(uid, folder)
                case _:
                    assert_never(action)
        # while it runs its volumes follow their sources
        if body is Body.ALIVE and pod is not None:
            self._keep_deadline(pod, folder)
            await self._volumes.refresh(pod, folder)

    def _keep_deadline(self, pod: Obj, folder: PodFolder) -> None:
        """Apply a deadline that was set or shortened while the pod runs.

        The shim only knows the first deadline.
        """
        admission = self._context.admission_of(uid_of(pod))
        active = pod["spec"].get("activeDeadlineSeconds")
        if admission is None or active is None or is_deleting(pod):
            return
        left = parse_rfc3339(admission.at) + span_of(active) - self._context.clock.now()
        if left > timedelta(0):
            self._context.queue.add_after(uid_of(pod), left.total_seconds())
        else:
            folder.request_stop(grace_of(pod), reason=DEADLINE_REASON, message=DEADLINE_MESSAGE)

    def _stop(self, uid: str, pod: Obj | None, folder: PodFolder, grace: float) -> None:
        first = not os.path.lexists(folder.path / "stop")
        try:
            folder.request_stop(grace)
        except OSError as error:
            if error.errno not in FULL or self._reserve is None or not self._reserve.take():
                raise
            folder.request_stop(grace)
        if first and pod is not None:
            for container in pod["spec"]["containers"]:
                self._context.event(pod, "Normal", "Killing", f"Stopping container {container['name']}")
        self._context.queue.add_after(uid, grace + 2.0)

    async def _declare_lost(self, uid: str, pod: Obj | None, folder: PodFolder) -> None:
        if folder.lost_at() is not None:
            return
        await asyncio.to_thread(kill_leftovers, uid)
        now = rfc3339(self._context.clock.now())
        meta = (pod or {}).get("metadata") or {}
        admission = Admission(
            uid=uid, namespace=meta.get("namespace") or "default", name=meta.get("name") or "", at=now
        )
        folder.declare_lost(folder.admission() or admission, now)
        log.warning("a pod's processes were lost", extra={"uid": uid, "pod": str(key_of(pod)) if pod else ""})

    async def _remove(self, uid: str, folder: PodFolder) -> None:
        if (known := self._context.states.get(uid)) is not None:
            known.stop_probing()
        state = folder.state()
        if folder.has_state() and not (state is not None and state["pod"].get("finishedAt")):
            await asyncio.to_thread(kill_leftovers, uid)
        await asyncio.to_thread(folder.remove)
        self._context.forget(uid)

    def _keep_addresses(self) -> None:
        """Keep the addresses of pods that run on this node.

        This runs before any await, so other nodes cannot use them first.
        """
        for uid in self._context.uids():
            folder = self._context.pod_folder(uid)
            admission = folder.admission()
            if admission is not None and folder.body() in (Body.ADMITTED, Body.ALIVE):
                self._context.addresses.keep(uid, admission.address)
