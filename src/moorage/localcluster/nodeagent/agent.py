"""The loop: pods bound to this node → shims; what the shims report → the API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, assert_never
from urllib.parse import urlsplit

from moorage.apimachinery.api import Api
from moorage.apimachinery.awake import Awake
from moorage.apimachinery.informer import Informer
from moorage.apimachinery.meta import annotations_of, is_deleting, key_of
from moorage.apimachinery.moments import span_of
from moorage.apimachinery.quantity import amount
from moorage.apimachinery.resources import (
    CONFIGMAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PVCS,
    PVS,
    SECRETS,
    SERVICEACCOUNTS,
    Obj,
    Resource,
)
from moorage.apimachinery.scheduling import NodeInfo, parse_pod, shortages
from moorage.apimachinery.workqueue import WorkQueue
from moorage.clock import SYSTEM, Clock, parse_rfc3339, rfc3339, rfc3339_micro
from moorage.errors import AlreadyExists, ApiError, BadRequest, Conflict, MoorageError, NotFound
from moorage.localcluster.nodeagent import gpus as gpu
from moorage.localcluster.nodeagent import logs, probes, volumes
from moorage.localcluster.nodeagent.addresses import HOST_IP, Addresses
from moorage.localcluster.nodeagent.environment import ConfigError, Ref, all_containers
from moorage.localcluster.nodeagent.environment import references as env_references
from moorage.localcluster.nodeagent.execs import Beside, Command
from moorage.localcluster.nodeagent.launcher import Fence, Launcher
from moorage.localcluster.nodeagent.leftovers import kill_leftovers, listens
from moorage.localcluster.nodeagent.node import (
    LEASE_NAMESPACE,
    RENEW_SECONDS,
    NodeSpec,
    capacity,
    is_doubted,
    labels,
    lease_object,
    node_object,
    node_status,
)
from moorage.localcluster.nodeagent.order import (
    Place,
    container_gpus,
    is_privileged,
    make_order,
    unrunnable,
)
from moorage.localcluster.nodeagent.plan import (
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
from moorage.localcluster.nodeagent.podfolder import Admission, LaunchError, PodFolder
from moorage.localcluster.nodeagent.status import (
    SHUTDOWN_MESSAGE,
    SHUTDOWN_REASON,
    TERMINAL,
    Local,
    peak_memory,
    pod_status,
    transitions,
)

__all__ = ["NodeAgent", "NodeSpec", "Recorder"]

DEADLINE_REASON = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"

log = logging.getLogger(__name__)

PEAK_ANNOTATION = "localcluster.moorage.dev/peak-memory-bytes"
WORKERS = 8  # pods worked on at once
LAUNCHES = 4  # shims starting at once: each costs some 40 ms of a processor
POLL_SECONDS = 1.0  # how often the folders are looked at, should a shim's message be lost
REFRESH_SECONDS = 60.0  # how often volumes made of ConfigMaps, Secrets and tokens are brought up to date
TOKEN_REFRESH_PART = 0.8  # of a token's life, after which it is replaced
PEAK_SECONDS = 30.0  # at most one annotation of a running pod's peak memory in this time
STATUS_SECONDS = 300.0  # how often the Node's status is written without a change, as kubelets do
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)  # between tries to start a pod whose volumes are not there yet
SHUTDOWN_GRACE_SECONDS = 30.0

_BASE = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_RESOURCES: dict[str, Resource] = {"ConfigMap": CONFIGMAPS, "Secret": SECRETS, "PersistentVolumeClaim": PVCS}


class Recorder(Protocol):
    """Records events about objects; never waits, never raises."""

    def event(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> None: ...


class NodeAgent:
    """One node. `pods_folder` holds a folder per pod, named by its uid; it belongs to this agent alone.

    `ready` is set once the Node is registered and the pods found here are looked after. `server_url` is told to
    pods as KUBERNETES_SERVICE_HOST and -PORT. The agents of one cluster share `addresses` and `launcher`.
    Pods do not see the folder `hidden` where the kernel allows that, but for their own part of it.
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
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.ready = asyncio.Event()
        self._api = api
        self._node = node
        self._folder = pods_folder.resolve()
        self._clock = clock
        self._hidden = None if hidden is None else hidden.resolve()
        self._hidden_inode = _inode(self._hidden)
        self._awake = Awake(clock)
        self._woken = asyncio.Event()
        self._awake.on_wake(self._on_wake)
        self._recorder = recorder
        self._poll_seconds = poll_seconds
        self._addresses = Addresses() if addresses is None else addresses
        self._launcher = Launcher() if launcher is None else launcher
        self._owns_launcher = launcher is None
        self._base_env = _base_environment(server_url) if base_env is None else dict(base_env)
        self._pods = Informer(
            api, PODS, field_selector=f"spec.nodeName={node.name}", indexes={"uid": lambda pod: (_uid(pod),)}
        )
        self._queue: WorkQueue[str] = WorkQueue()
        self._marks: dict[str, tuple[int, int]] = {}  # uid → the state last queued, of pods that live
        self._admissions: dict[str, Admission] = {}  # what folders hold, until their pod has ended
        self._problems: dict[str, dict[str, tuple[str, str]]] = {}
        self._tries: dict[str, int] = {}
        self._told: dict[str, str] = {}  # uid → the volume problem last told in an event
        self._peaks: dict[str, tuple[int, float]] = {}  # uid → (bytes, when) last annotated
        self._tokens: dict[str, dict[volumes.TokenRequest, tuple[str, datetime]]] = {}
        self._refreshed: dict[str, float] = {}
        self._probing: dict[tuple[str, str], tuple[int, asyncio.Task[None]]] = {}
        self._unready: dict[str, set[str]] = {}
        self._unstarted: dict[str, set[str]] = {}
        self._over: set[str] = set()  # admitted pods that are known to have ended
        self._sent: dict[str, tuple[Obj, Obj]] = {}  # uid → the status last sent, and as the API gave it back
        self._launching = asyncio.Semaphore(LAUNCHES)
        self._admitting = asyncio.Lock()
        self._node_uid = ""
        self._shutting_down = False

    # -- running

    async def run(self) -> None:
        """Register the node, adopt what runs, and look after its pods until cancelled. Pods live on."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._keep_addresses()
        receiver = self._listen()
        loop = asyncio.get_running_loop()
        loop.add_reader(receiver, self._on_message, receiver)
        self._pods.on_change(self._on_pod)
        try:
            await self._register()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pods.run())
                await self._pods.synced.wait()
                for uid in self._found():
                    self._remember(uid)
                    self._queue.add(uid)
                for _ in range(WORKERS):
                    tasks.create_task(self._work())
                if self._hidden is not None:
                    tasks.create_task(self._try_fence(self._hidden))
                tasks.create_task(self._poll())
                tasks.create_task(self._renew())
                tasks.create_task(self._awake.run())
                self.ready.set()
        finally:
            loop.remove_reader(receiver)
            receiver.close()
            for _, task in self._probing.values():
                task.cancel()
            self._queue.close()
            if self._owns_launcher:
                self._launcher.close()

    async def shutdown(self, stop_pods: bool, *, grace_seconds: float = SHUTDOWN_GRACE_SECONDS) -> None:
        """With `stop_pods`, end every pod of this node as a kubelet does before its machine goes down.

        Each gets its own grace period, at most `grace_seconds`; it becomes Failed with the reason Terminated and
        the condition DisruptionTarget. Returns when all have ended and the API knows. `run` must still be running.
        """
        if not stop_pods:
            return
        self._shutting_down = True
        with contextlib.suppress(MoorageError):
            await self._write_node(ready=False, why="node is shutting down")
        alive = [uid for uid in self._found() if self._pod_folder(uid).body() is Body.ALIVE]
        for uid in alive:
            folder = self._pod_folder(uid)
            admission = folder.admission()
            grace = min(grace_seconds, admission.grace_seconds if admission else grace_seconds)
            folder.request_stop(grace, reason=SHUTDOWN_REASON, message=SHUTDOWN_MESSAGE)
        deadline = self._clock.monotonic() + grace_seconds + 15.0
        while self._clock.monotonic() < deadline:
            waiting = [uid for uid in alive if not self._is_published(uid)]
            if not waiting:
                return
            for uid in waiting:
                self._queue.add(uid)
            await self._clock.sleep(0.05)
        log.warning("pods did not end in time for the shutdown", extra={"node": self._node.name})

    async def _try_fence(self, hidden: Path) -> None:
        """Before the first pod needs to know. A failure is told when that pod starts, after another try."""
        with contextlib.suppress(LaunchError):
            await self._launcher.fence(hidden)

    def _is_published(self, uid: str) -> bool:
        pods = self._pods.by_index("uid", uid)
        return not pods or (pods[0].get("status") or {}).get("phase") in TERMINAL

    # -- what wakes it

    def _listen(self) -> socket.socket:
        """The socket at which shims tell of changes; its path may be longer than socket addresses can be."""
        path = self._folder / "agent.sock"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
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
            if uid in self._admissions or uid in self._marks:
                self._queue.add(uid)

    def _on_pod(self, before: Obj | None, after: Obj | None) -> None:
        for obj in (before, after):
            if obj is not None:
                self._queue.add(_uid(obj))

    def _on_wake(self) -> None:
        """After a sleep: deadlines may be over by the wall clock, and the node tells that it lives."""
        self._queue.fire_all()
        self._woken.set()

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._poll_seconds)
            for uid, mark in list(self._marks.items()):
                folder = self._pod_folder(uid)
                if (
                    folder.state_mark() != mark
                    or not folder.is_locked()
                    or self._refreshed.get(uid, self._clock.monotonic()) + REFRESH_SECONDS
                    < self._clock.monotonic()
                ):
                    self._queue.add(uid)

    async def _work(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                await self._reconcile(uid)
                self._queue.forget(uid)
            except Conflict:
                self._queue.retry(uid)  # somebody else changed the pod: its news is on the way
            except (MoorageError, OSError) as error:
                delay = self._queue.retry(uid)
                log.warning(
                    "a pod could not be brought forward",
                    extra={"uid": uid, "node": self._node.name, "error": str(error), "retry_seconds": delay},
                )
            except Exception:  # a defect in one pod must not stop the others
                delay = self._queue.retry(uid)
                log.exception(
                    "a pod could not be brought forward",
                    extra={"uid": uid, "node": self._node.name, "retry_seconds": delay},
                )
            finally:
                self._queue.done(uid)

    # -- one pod

    async def _reconcile(self, uid: str) -> None:
        """See, decide, act."""
        found = self._pods.by_index("uid", uid)
        pod = found[0] if found else None
        folder = self._pod_folder(uid)
        mark = folder.state_mark()
        body = folder.body()
        if body is Body.ALIVE:
            self._marks[uid] = mark
        else:
            self._marks.pop(uid, None)
        if body in (Body.ENDED, Body.LOST, Body.REFUSED):
            self._addresses.give_back(uid)
        status = (pod or {}).get("status") or {}
        if pod is None and body is Body.NONE:
            self._forget(uid)  # it went before anything was written, or its folder was taken away
            return
        decided = plan(
            Seen(
                body=body,
                phase=None if pod is None else status.get("phase") or "Pending",
                deleting=pod is not None and is_deleting(pod),
                grace_seconds=_grace(pod),
                shutting_down=self._shutting_down,
            )
        )
        for action in decided:
            match action:
                case Admit():
                    assert pod is not None
                    if not await self._admit(pod, folder):
                        return
                case Start():
                    assert pod is not None
                    await self._start(pod, folder)
                case Stop(grace):
                    self._stop(uid, pod, folder, grace)
                case DeclareLost():
                    await self._declare_lost(uid, pod, folder)
                case Publish():
                    assert pod is not None
                    pod = await self._publish(pod, folder)
                case DeleteObject():
                    assert pod is not None
                    await self._delete(pod)
                case RemoveFolder():
                    await self._remove(uid, folder)
                case _:
                    assert_never(action)
        if body is Body.ALIVE and pod is not None:
            self._mind_deadline(pod, folder)
            await self._refresh(pod, folder)

    def _mind_deadline(self, pod: Obj, folder: PodFolder) -> None:
        """A deadline that was set or brought forward while the pod runs; its shim knows the first one alone."""
        admission = self._remember(_uid(pod))
        active = pod["spec"].get("activeDeadlineSeconds")
        if admission is None or active is None or is_deleting(pod):
            return
        left = parse_rfc3339(admission.at) + span_of(active) - self._clock.now()
        if left > timedelta(0):
            self._queue.add_after(_uid(pod), left.total_seconds())
        else:
            folder.request_stop(_grace(pod), reason=DEADLINE_REASON, message=DEADLINE_MESSAGE)

    async def _admit(self, pod: Obj, folder: PodFolder) -> bool:
        """Choose GPUs and write the admission. False: what it needs is about to be freed; it is tried again."""
        uid = _uid(pod)
        info = parse_pod(pod)
        asked = info.requests.get(gpu.RESOURCE, 0)
        async with self._admitting:
            holders = {one: admission for one, admission in self._admissions.items() if one != uid}
            held = [admission for one, admission in holders.items() if self._holds(one, admission)]
            used: dict[str, int] = {}
            for admission in held:
                for name, count in admission.requests.items():
                    used[name] = used.get(name, 0) + count
            taken = [index for admission in held for index in admission.gpus]
            indices = gpu.assign(self._node.gpus, taken, asked)
            offers = {name: amount(name, text) for name, text in self._offers().items()}
            short = shortages(info, NodeInfo(name=self._node.name, allocatable=offers), used)
            if short and any(not self._pods.by_index("uid", one.uid) for one in held):
                self._queue.add_after(uid, 0.1)  # deleted by force, still ending
                return False
            rejected: tuple[str, str] | None = None
            if indices is None:
                free = self._node.gpus - len(taken)
                rejected = (
                    "UnexpectedAdmissionError",
                    f"Allocate failed due to requested number of devices unavailable for {gpu.RESOURCE}."
                    f" Requested: {asked}, Available: {free}, which is unexpected",
                )
            elif short:
                name = min(short)
                rejected = (
                    f"OutOf{name}",
                    f"Pod was rejected: Node didn't have enough resource: {name}, requested: {short[name][0]},"
                    f" used: {used.get(name, 0)}, capacity: {offers.get(name, 0)}",
                )
            divided = container_gpus(pod["spec"], indices or ())
            real = self._node.real_gpu_uuids
            admission = Admission(
                uid=uid,
                namespace=info.namespace,
                name=info.name,
                at=rfc3339(self._clock.now()),
                requests=info.requests,
                gpus=indices or (),
                devices={
                    name: gpu.device_ids(self._node.name, real, which) for name, which in divided.items() if which
                },
                grace_seconds=_grace(pod),
                address=HOST_IP if rejected or pod["spec"].get("hostNetwork") else self._addresses.take(uid),
                rejected=rejected,
            )
            try:
                await asyncio.to_thread(folder.write_admission, admission, pod)
            except OSError as error:
                self._retry_later(uid, _not_written(pod, error))
                await self._publish(pod, folder)
                return False
            self._admissions[uid] = admission
        if rejected:
            self._event(pod, "Warning", rejected[0], rejected[1])
        return True

    def _holds(self, uid: str, admission: Admission) -> bool:
        """Whether an admitted pod still holds its resources."""
        if admission.rejected or uid in self._over:
            return False
        if self._pod_folder(uid).body() in (Body.ADMITTED, Body.ALIVE):
            return True
        self._over.add(uid)  # an end is for ever
        return False

    async def _start(self, pod: Obj, folder: PodFolder) -> None:
        """Write the order and start the shim, or write down why that cannot be done yet."""
        uid = _uid(pod)
        admission = self._remember(uid)
        if admission is None or admission.rejected:
            return
        active = pod["spec"].get("activeDeadlineSeconds")
        if active is not None and self._clock.now() >= parse_rfc3339(admission.at) + timedelta(
            seconds=int(active)
        ):
            rejected = (DEADLINE_REASON, DEADLINE_MESSAGE)
            admission = _with_rejection(admission, rejected)
            folder.write_admission(admission)
            self._admissions[uid] = admission
            return
        problems = unrunnable(pod)
        failed = ""
        if not problems:
            try:
                lookup = await self._lookup(pod)
                where = await self._volumes(_with_address(pod, admission.address), folder, lookup)
                fence = Fence(hides=False, gap="")
                if self._hidden is not None:
                    fence = await self._launcher.fence(self._hidden)
                order = make_order(
                    _with_address(pod, admission.address),
                    place=self._place(folder, fence),
                    lookup=lookup,
                    volumes=where,
                    gpu_indices=admission.gpus,
                    admitted_at=admission.at,
                )
                folder.write_order(order)
                async with self._launching:
                    await self._launcher.launch(folder.path)
            except ConfigError as error:
                problems = {one["name"]: (error.reason, error.message) for one in all_containers(pod["spec"])}
            except volumes.VolumeError as error:
                failed = error.message
            except OSError as error:
                problems = _not_written(pod, error)
            except LaunchError as error:
                problems = {one["name"]: ("RunContainerError", error.message) for one in pod["spec"]["containers"]}
        if not problems and not failed:
            for table in (self._problems, self._tries, self._told):
                table.pop(uid, None)
            self._marks[uid] = folder.state_mark()
            self._refreshed[uid] = self._clock.monotonic()
            return
        if failed and self._told.get(uid) != failed:
            self._told[uid] = failed
            self._event(pod, "Warning", "FailedMount", failed)
        self._retry_later(uid, problems)

    def _retry_later(self, uid: str, problems: dict[str, tuple[str, str]]) -> None:
        self._problems[uid] = problems
        tried = self._tries.get(uid, 0)
        self._tries[uid] = tried + 1
        self._queue.add_after(uid, RETRY_SECONDS[min(tried, len(RETRY_SECONDS) - 1)])

    def _stop(self, uid: str, pod: Obj | None, folder: PodFolder, grace: float) -> None:
        first = not os.path.lexists(folder.path / "stop")
        folder.request_stop(grace)
        if first and pod is not None:
            for one in pod["spec"]["containers"]:
                self._event(pod, "Normal", "Killing", f"Stopping container {one['name']}")
        self._queue.add_after(uid, grace + 2.0)

    async def _declare_lost(self, uid: str, pod: Obj | None, folder: PodFolder) -> None:
        if folder.lost_at() is not None:
            return
        await asyncio.to_thread(kill_leftovers, uid)
        now = rfc3339(self._clock.now())
        meta = (pod or {}).get("metadata") or {}
        admission = Admission(
            uid=uid, namespace=meta.get("namespace") or "default", name=meta.get("name") or "", at=now
        )
        folder.declare_lost(folder.admission() or admission, now)
        log.warning("a pod's processes were lost", extra={"uid": uid, "pod": str(key_of(pod)) if pod else ""})

    async def _publish(self, pod: Obj, folder: PodFolder) -> Obj:
        """Bring annotation and status up to date; writes only what changed. Returns the newest object."""
        uid = _uid(pod)
        admission = self._remember(uid)
        state = folder.state()
        if state is None and folder.has_state() and folder.lost_at() is None:
            log.warning("a pod's state is damaged: its status stays as it is", extra={"pod": str(key_of(pod))})
            return pod
        self._probe(pod, state)
        local = Local(
            admitted_at=admission.at if admission else None,
            address=admission.address if admission else None,
            state=state,
            problems=self._problems.get(uid, {}),
            rejected=admission.rejected if admission else None,
            lost_at=folder.lost_at(),
            devices=admission.devices if admission else {},
            unready=frozenset(self._unready.get(uid, ())),
            unstarted=frozenset(self._unstarted.get(uid, ())),
        )
        before = pod.get("status") or {}
        status = pod_status(pod, local, now=rfc3339(self._clock.now()))
        pod = await self._annotate_peak(pod, state, over=status["phase"] in TERMINAL or status != before)
        if status == before or self._sent.get(uid) == (status, before):
            return pod  # in the second case the API keeps it in its own words
        changed = json.loads(json.dumps(pod))
        changed["status"] = status
        try:
            pod = await self._api.update(PODS, changed, subresource="status")
        except NotFound:
            return pod
        self._sent[uid] = (status, pod.get("status") or {})
        for kind, reason, message in transitions(before, status):
            self._event(pod, kind, reason, message)
        if state is not None and not before.get("podIP"):
            self._tell_of_missing_namespaces(pod, state)
        return pod

    def _tell_of_missing_namespaces(self, pod: Obj, state: Mapping[str, Any]) -> None:
        if state.get("mounts") == "translated":
            self._event(
                pod,
                "Warning",
                "MountsTranslated",
                "the kernel refused a mount namespace, so mount paths in command and environment were replaced by"
                f" paths of this machine ({state.get('mountsError') or 'not permitted'})",
            )
        if state.get("fenceError"):
            self._event(
                pod,
                "Warning",
                "NotFenced",
                "the pod can read the folder of the cluster, the administrator's token too, because this machine"
                f" cannot hide it: {state['fenceError']}",
            )

    async def _annotate_peak(self, pod: Obj, state: Mapping[str, Any] | None, *, over: bool) -> Obj:
        """Write the peak memory: when a container's state changed, and every 30 s while it grows."""
        peak = peak_memory(state)
        known = annotations_of(pod).get(PEAK_ANNOTATION)
        if not peak or known == str(peak):
            return pod
        now = self._clock.monotonic()
        uid = _uid(pod)
        _, when = self._peaks.get(uid, (0, -PEAK_SECONDS))
        ended = any(
            (one.get("state") or {}).get("terminated") or (one.get("lastState") or {}).get("terminated")
            for one in (state or {}).get("containers") or ()
        )
        if not (over and ended) and now - when < PEAK_SECONDS:
            return pod
        self._peaks[uid] = (peak, now)
        meta = pod["metadata"]
        try:
            return await self._api.patch(
                PODS,
                meta["name"],
                {"metadata": {"uid": uid, "annotations": {PEAK_ANNOTATION: str(peak)}}},
                meta.get("namespace") or "default",
            )
        except NotFound:
            return pod

    async def _delete(self, pod: Obj) -> None:
        meta = pod["metadata"]
        if meta.get("deletionGracePeriodSeconds") == 0 and meta.get("finalizers"):
            return  # it waits for others now
        with contextlib.suppress(NotFound, Conflict):
            await self._api.delete(
                PODS, meta["name"], meta.get("namespace") or "default", grace_period_seconds=0, uid=meta["uid"]
            )

    async def _remove(self, uid: str, folder: PodFolder) -> None:
        self._stop_probing(uid)
        state = folder.state()
        if folder.has_state() and not (state is not None and state["pod"].get("finishedAt")):
            await asyncio.to_thread(kill_leftovers, uid)
        await asyncio.to_thread(folder.remove)
        self._forget(uid)

    def _forget(self, uid: str) -> None:
        """Nothing of the pod is left: neither its object nor its folder."""
        self._stop_probing(uid)
        self._addresses.give_back(uid)
        for table in (
            self._admissions,
            self._marks,
            self._problems,
            self._tries,
            self._told,
            self._peaks,
            self._tokens,
            self._refreshed,
            self._unready,
            self._unstarted,
            self._sent,
        ):
            table.pop(uid, None)
        self._over.discard(uid)

    # -- volumes and environment

    async def _lookup(self, pod: Obj) -> dict[Ref, Obj | None]:
        """The objects the pod refers to; None for those that do not exist."""
        namespace = pod["metadata"].get("namespace") or "default"
        wanted = sorted(env_references(pod["spec"]) | volumes.references(pod["spec"]))
        return {ref: await self._get(_RESOURCES[ref.kind], ref.name, namespace) for ref in wanted}

    async def _get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj | None:
        try:
            return await self._api.get(resource, name, namespace)
        except NotFound:
            return None

    async def _volumes(
        self, pod: Obj, folder: PodFolder, lookup: Mapping[Ref, Obj | None]
    ) -> dict[str, tuple[str, bool]]:
        """Make every volume ready; name → (path on this machine, read-only). Raises VolumeError."""
        tokens = await self._service_tokens(pod)
        out: dict[str, tuple[str, bool]] = {}
        for volume in pod["spec"].get("volumes") or ():
            path = folder.path / "volumes" / volume["name"]
            files = volumes.render(volume, pod, lookup, tokens, self._offers())
            if files is not None:
                volumes.write_files(path, files)
                out[volume["name"]] = (str(path), True)
            elif volume.get("emptyDir") is not None:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
                out[volume["name"]] = (str(path), False)
            else:
                persistent: dict[str, Obj | None] = {}
                claim = volume.get("persistentVolumeClaim")
                found = lookup.get(Ref("PersistentVolumeClaim", claim["claimName"])) if claim else None
                if found is not None and (bound := (found.get("spec") or {}).get("volumeName")):
                    persistent[bound] = await self._get(PVS, bound)
                where, read_only = volumes.host_path(volume, lookup, persistent)
                volumes.make_ready(volume, where)
                out[volume["name"]] = (where, read_only)
        return out

    async def _service_tokens(self, pod: Obj) -> dict[volumes.TokenRequest, str]:
        """Tokens for projected volumes; asked for anew after four fifths of their life."""
        uid, meta, now = _uid(pod), pod["metadata"], self._clock.now()
        known = self._tokens.setdefault(uid, {})
        out = {}
        for request in volumes.token_requests(pod["spec"]):
            token, until = known.get(request, ("", now))
            if not token or now >= until:
                body: Obj = {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {
                        "audiences": [request.audience] if request.audience else [],
                        "expirationSeconds": request.seconds,
                        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid},
                    },
                }
                account = pod["spec"].get("serviceAccountName") or "default"
                namespace = meta.get("namespace") or "default"
                try:
                    answer = await self._api.create_subresource(SERVICEACCOUNTS, account, "token", body, namespace)
                except ApiError as error:
                    raise volumes.VolumeError(
                        f'MountVolume.SetUp failed for volume "{request.volume}" : failed to fetch token: {error}'
                    ) from error
                token = answer["status"]["token"]
                until = now + timedelta(seconds=TOKEN_REFRESH_PART * request.seconds)
                known[request] = (token, until)
            out[request] = token
        return out

    async def _refresh(self, pod: Obj, folder: PodFolder) -> None:
        """Once a minute, bring volumes made from the API up to date; a source that went away changes nothing."""
        uid, now = _uid(pod), self._clock.monotonic()
        if now - self._refreshed.setdefault(uid, now) < REFRESH_SECONDS or is_deleting(pod):
            return
        self._refreshed[uid] = now
        if not volumes.is_refreshed(pod["spec"]):
            return
        try:
            admission = self._remember(uid)
            told = _with_address(pod, admission.address) if admission else pod
            await self._volumes(told, folder, await self._lookup(pod))
        except MoorageError as error:
            log.warning("volumes not refreshed", extra={"pod": str(key_of(pod)), "error": str(error)})

    def _place(self, folder: PodFolder, fence: Fence) -> Place:
        return Place(
            node=self._node.name,
            folder=str(folder.path),
            socket=str(self._folder / "agent.sock"),
            base_env=self._base_env,
            allocatable=self._offers(),
            real_gpu_uuids=self._node.real_gpu_uuids,
            hidden=str(self._hidden) if fence.hides else "",
            hidden_inode=self._hidden_inode if fence.hides else None,
            fence_error=fence.gap,
        )

    # -- probes

    def _probe(self, pod: Obj, state: Mapping[str, Any] | None) -> None:
        """Probe each running attempt that has probes, and no other."""
        uid = _uid(pod)
        reports = {one["name"]: one for one in (state or {}).get("containers") or ()}
        for container in all_containers(pod["spec"]):
            name = container["name"]
            report = reports.get(name) or {}
            running = (report.get("state") or {}).get("running")
            wanted = int(report["attempt"]) if running and probes.probes_of(container) else None
            known = self._probing.get((uid, name))
            if known is not None and known[0] == wanted:
                continue
            if known is not None:
                known[1].cancel()
                del self._probing[(uid, name)]
            if wanted is None:
                self._unready.get(uid, set()).discard(name)
                self._unstarted.get(uid, set()).discard(name)
                continue
            published: Mapping[str, Any] = next(
                (
                    one
                    for one in (pod.get("status") or {}).get("containerStatuses") or ()
                    if one["name"] == name and (one.get("containerID") or "").endswith(report["containerID"])
                ),
                {},
            )
            kinds = {probe.kind for probe in probes.probes_of(container)}
            ready = "readinessProbe" not in kinds or bool(published.get("ready"))
            started = "startupProbe" not in kinds or bool(published.get("started"))
            self._set_probed(uid, name, ready=ready, started=started)
            task = asyncio.get_running_loop().create_task(
                self._watch_probes(pod, container, wanted, report, ready=ready, started=started)
            )
            self._probing[(uid, name)] = (wanted, task)

    async def _watch_probes(
        self, pod: Obj, container: Obj, attempt: int, report: Mapping[str, Any], *, ready: bool, started: bool
    ) -> None:
        uid, name = _uid(pod), container["name"]

        def changed(ready: bool, started: bool) -> None:
            self._set_probed(uid, name, ready=ready, started=started)
            self._queue.add(uid)

        def failed(said: str) -> None:
            message = f"Container {name} failed liveness probe, will be restarted"
            self._event(pod, "Normal", "Killing", message)
            self._pod_folder(uid).request_restart(name, attempt, _grace(pod), said)

        def unhealthy(kind: str, said: str) -> None:
            word = kind.removesuffix("Probe").capitalize()
            self._event(pod, "Warning", "Unhealthy", f"{word} probe failed: {said}")

        await probes.watch(
            container,
            main=Beside(self._pod_folder(uid).path, int(report["pid"]), is_privileged(container)),
            address=self._address(uid),
            started=parse_rfc3339(report["state"]["running"]["startedAt"]),
            clock=self._clock,
            slept_since=self._awake.slept_since,
            ready=ready,
            started_before=started,
            changed=changed,
            failed_liveness=failed,
            unhealthy=unhealthy,
        )

    def _set_probed(self, uid: str, name: str, *, ready: bool, started: bool) -> None:
        for table, good in ((self._unready, ready), (self._unstarted, started)):
            names = table.setdefault(uid, set())
            if good:
                names.discard(name)
            else:
                names.add(name)

    def _stop_probing(self, uid: str) -> None:
        for key in [key for key in self._probing if key[0] == uid]:
            self._probing.pop(key)[1].cancel()

    # -- the node

    async def _register(self) -> None:
        """Create the Node or bring its labels up to date, then its status and Lease."""
        while True:
            try:
                await self._write_node(ready=True)
                await self._write_lease()
                return
            except (ApiError, OSError) as error:
                log.warning("node not registered yet", extra={"node": self._node.name, "error": str(error)})
                await self._clock.sleep(0.5)

    async def _write_node(self, *, ready: bool, why: str = "") -> None:
        node = await self._get(NODES, self._node.name)
        if node is None:
            try:
                node = await self._api.create(NODES, node_object(self._node))
            except AlreadyExists:
                node = await self._api.get(NODES, self._node.name)
        wanted = labels(self._node)
        have = node["metadata"].get("labels") or {}
        stale = [one for one in have if one.startswith("nvidia.com/gpu.") and one not in wanted]
        if stale or any(have.get(name) != value for name, value in wanted.items()):
            change = dict(wanted) | {one: None for one in stale}
            node = await self._api.patch(NODES, self._node.name, {"metadata": {"labels": change}})
        self._node_uid = node["metadata"]["uid"]
        node = json.loads(json.dumps(node))
        node["status"] = node_status(
            self._node,
            node.get("status") or {},
            now=rfc3339(self._clock.now()),
            storage_bytes=self._storage_bytes(),
            ready=ready,
            why=why,
        )
        for _ in range(5):
            try:
                await self._api.update(NODES, node, subresource="status")
                return
            except Conflict:
                status = node["status"]
                node = json.loads(json.dumps(await self._api.get(NODES, self._node.name)))
                node["status"] = status

    async def _write_lease(self) -> None:
        now = rfc3339_micro(self._clock.now())
        try:
            await self._api.patch(
                LEASES,
                self._node.name,
                {"spec": {"renewTime": now, "holderIdentity": self._node.name}},
                LEASE_NAMESPACE,
            )
        except NotFound:
            lease = lease_object(self._node, self._node_uid, now=now)
            try:
                await self._api.create(LEASES, lease, LEASE_NAMESPACE)
            except NotFound:  # a server that does not make the namespace itself
                with contextlib.suppress(AlreadyExists):
                    await self._api.create(
                        NAMESPACES,
                        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}},
                    )
                await self._api.create(LEASES, lease, LEASE_NAMESPACE)

    async def _renew(self) -> None:
        """Renew the Lease; write the status when it is old, and at once when the API shows another than ours."""
        written = self._clock.monotonic()
        while True:
            await self._time_to_renew()
            try:
                await self._write_lease()
                node = await self._get(NODES, self._node.name)
                if self._shutting_down:
                    continue
                if is_doubted(node) or self._clock.monotonic() - written >= STATUS_SECONDS:
                    await self._write_node(ready=True)
                    written = self._clock.monotonic()
            except (ApiError, OSError) as error:
                log.warning("heartbeat not written", extra={"node": self._node.name, "error": str(error)})

    async def _time_to_renew(self) -> None:
        """Wait RENEW_SECONDS, or until the machine wakes from a sleep."""
        self._woken.clear()
        waits = [
            asyncio.ensure_future(self._clock.sleep(RENEW_SECONDS)),
            asyncio.ensure_future(self._woken.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    def _offers(self) -> dict[str, str]:
        return capacity(self._node, storage_bytes=self._storage_bytes())

    def _storage_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._folder).total
        except OSError:
            return 0

    # -- logs

    async def logs(
        self,
        pod: Obj,
        container: str | None = None,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: float | None = None,
        timestamps: bool = False,
        previous: bool = False,
        limit_bytes: int | None = None,
        since_time: str | None = None,
    ) -> AsyncIterator[bytes]:
        """The log of the newest attempt of a container (with `previous`, of the one before), as bytes.

        Raises BadRequest, in kubelet's words, when there is none. With `follow`, goes on until that attempt ended.
        """
        folder = self._pod_folder(_uid(pod))
        name = container or pod["spec"]["containers"][0]["name"]
        kept = logs.attempts(folder.path / "logs" / name)
        if previous:
            kept = kept[:-1]
        if not kept and previous:
            raise BadRequest(
                f'previous terminated container "{name}" in pod "{pod["metadata"]["name"]}" not found'
            )
        if not kept:
            reason = _waiting_reason(pod, name)
            raise BadRequest(
                f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: {reason}'
            )
        attempt = kept[-1]

        def is_over() -> bool:
            reports = {one["name"]: one for one in (folder.state() or {}).get("containers") or ()}
            report = reports.get(name) or {}
            running = report.get("attempt") == attempt and (report.get("state") or {}).get("running")
            return not running or not folder.is_locked()

        since = None
        if since_seconds is not None:
            since = self._clock.now() - span_of(since_seconds)
        elif since_time:
            since = parse_rfc3339(since_time)
        async for chunk in logs.read_log(
            folder.path / "logs" / name / f"{attempt}.log",
            clock=self._clock,
            is_over=is_over,
            follow=follow,
            tail_lines=tail_lines,
            since=since,
            timestamps=timestamps,
            limit_bytes=limit_bytes,
        ):
            yield chunk

    # -- commands

    async def execute(
        self, pod: Obj, container: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Command:
        """Start a command in a running container; the caller closes it. Raises NotFound, in kubelet's words."""
        folder = self._pod_folder(_uid(pod))
        reports = {one["name"]: one for one in (folder.state() or {}).get("containers") or ()}
        report = reports.get(container) or {}
        if not (report.get("state") or {}).get("running") or not report.get("pid"):
            raise NotFound(f'unable to upgrade connection: container not found ("{container}")')
        privileged = [one["name"] for one in all_containers(pod["spec"]) if is_privileged(one)]
        main = Beside(folder.path, int(report["pid"]), container in privileged)
        return await Command.start(main, command, stdin=stdin, tty=tty)

    async def connect(self, pod: Obj, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port of the pod: at its own address, else at 127.0.0.1 where the pod itself listens.

        Raises OSError. Other listeners of this machine are nobody's ports here.
        """
        address = self._address(_uid(pod))
        try:
            return await asyncio.open_connection(address, port)
        except ConnectionRefusedError:
            if address == HOST_IP or not await asyncio.to_thread(listens, port, _uid(pod)):
                raise
        return await asyncio.open_connection(HOST_IP, port)

    # -- small things

    def _pod_folder(self, uid: str) -> PodFolder:
        return PodFolder(self._folder / uid)

    def _found(self) -> list[str]:
        return sorted(one.name for one in self._folder.iterdir() if one.is_dir())

    def _keep_addresses(self) -> None:
        """Pods that live here keep their addresses. Before anything is awaited: no other node takes one first."""
        for uid in self._found():
            folder = self._pod_folder(uid)
            admission = folder.admission()
            if admission is not None and folder.body() in (Body.ADMITTED, Body.ALIVE):
                self._addresses.keep(uid, admission.address)

    def _address(self, uid: str) -> str:
        admission = self._remember(uid)
        return admission.address if admission else HOST_IP

    def _remember(self, uid: str) -> Admission | None:
        admission = self._admissions.get(uid)
        if admission is None:
            admission = self._pod_folder(uid).admission()
            if admission is not None:
                self._admissions[uid] = admission
        return admission

    def _event(self, pod: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.event({"apiVersion": "v1", "kind": "Pod"} | dict(pod), kind, reason, message)


def _inode(folder: Path | None) -> tuple[int, int] | None:
    """Device and number of a folder; None when it is not there."""
    try:
        status = None if folder is None else folder.stat()
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def _uid(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def _grace(pod: Obj | None) -> float:
    """Seconds a stop gives the pod: the deletion's own, else the pod's, at least one."""
    if pod is None:
        return 1.0
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds")
    return max(1.0, 30.0 if given is None else float(given))


def _waiting_reason(pod: Mapping[str, Any], container: str) -> str:
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting")
        if one["name"] == container and waiting:
            return str(waiting.get("message") or waiting.get("reason"))
    return "ContainerCreating"


def _with_address(pod: Obj, address: str) -> Obj:
    """The pod as it will be once it runs: what the downward API tells of its address."""
    return {**pod, "status": {**(pod.get("status") or {}), "podIP": address, "podIPs": [{"ip": address}]}}


def _not_written(pod: Obj, error: OSError) -> dict[str, tuple[str, str]]:
    """The problem of a pod whose folder cannot be written: a full disk, mostly."""
    message = f"the pod's folder cannot be written: {os.strerror(error.errno or 0).lower()}"
    return {one["name"]: ("CreateContainerError", message) for one in all_containers(pod["spec"])}


def _with_rejection(admission: Admission, rejected: tuple[str, str]) -> Admission:
    from dataclasses import replace

    return replace(admission, rejected=rejected)


def _base_environment(server_url: str | None) -> dict[str, str]:
    """The little of this process's environment that pods get, and where the API is."""
    env = {name: os.environ[name] for name in _BASE if name in os.environ}
    env.setdefault("PATH", os.defpath)
    if server_url:
        parts = urlsplit(server_url)
        port = str(parts.port or (443 if parts.scheme == "https" else 80))
        env |= {
            "KUBERNETES_SERVICE_HOST": parts.hostname or "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
    return env
