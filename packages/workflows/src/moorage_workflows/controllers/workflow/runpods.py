"""Pods of runs: observe, create, release and delete them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from moorage.controllers.base import Shared
from moorage.controllers.run.plan import is_lost
from moorage.model.argo import POD_FINALIZER
from moorage_kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from moorage_kube.informer import Informer
from moorage_kube.meta import Key, is_deleting
from moorage_kube.resources import NODES, PODS, Obj
from moorage_workflows.controllers.workflow.imagecommands import Asked, ImageCommands, architectures_of, names_of
from moorage_workflows.controllers.workflow.live import Live
from moorage_workflows.controllers.workflow.objects import RunObjects, is_quota, secret_name
from moorage_workflows.controllers.workflow.observe import has_executor, is_of, keep_pod, pod_seen
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.summary import pod_delete_at
from moorage_workflows.decide.workflows.graph.events import CreatePod, PodSeen
from moorage_workflows.decide.workflows.pods import CommandMissing, PodError, PodRequest, StepRuntime, make_pod

QUOTA_EVERY = timedelta(seconds=5)  # between two tries to create a pod that a quota refused
GOING_EVERY = timedelta(seconds=10)  # between two looks at a pod whose node has not confirmed its deletion
RUNTIME_EVERY = timedelta(minutes=1)  # between two looks at the installation's settings for pods
AT_ONCE = 16  # writes to the API server


class RunPods:
    """The pods of all runs of one operator.

    `pods`, `nodes`: followed by the controller, pods indexed by their workflow. `find_runtime`: the settings
    of this installation for pods; called when the first pod is made. `commands`: commands of images for
    steps without one; None: only `find_runtime` has them. `wake`: called with a run's key when a command
    that it waits for is known.
    """

    def __init__(
        self,
        shared: Shared,
        records: RecordStore,
        objects: RunObjects,
        *,
        pods: Informer,
        nodes: Informer,
        find_runtime: Callable[[], Awaitable[StepRuntime]],
        commands: ImageCommands | None,
        wake: Callable[[Key], None],
    ) -> None:
        self._api, self._clock, self._evaluation = shared.api, shared.clock, shared.evaluation
        self._lost_after = shared.lost_after
        self._records, self._objects = records, objects
        self._pods, self._nodes = pods, nodes
        self._find_runtime, self._commands, self._wake = find_runtime, commands, wake
        self._runtime: StepRuntime | None = None
        self._runtime_read_at = 0.0

    def of(self, key: Key) -> list[Obj]:
        return [
            pod
            for pod in self._pods.by_index("workflow", key.name)
            if pod["metadata"]["namespace"] == key.namespace
        ]

    async def forgotten(self, key: Key, live: Live) -> set[str]:
        """Return the names of the run's pods, and of awaited pods that do not exist any more."""
        names = {pod["metadata"]["name"] for pod in self.of(key)}
        for name in live.run.awaited_pods - names - live.held.keys():
            if live.pending.has(name):
                continue
            try:  # our copy may be older than the pod
                await self._api.get(PODS, name, key.namespace)
            except NotFound:
                names.add(name)
        return names

    async def tell(self, key: Key, live: Live, names: set[str]) -> timedelta | None:
        """Pass the state of these pods to the run; return when to look again at pods that are being deleted.

        Their node may have stopped reporting, which changes no pod.
        """
        pods = []
        for name in sorted(names):
            pod = self._pods.get(name, key.namespace)
            if pod is None:
                live.pending.forget(name)
                live.run.pod_gone(name)
            elif is_of(pod, live.uid):
                pods.append(pod)
        all_seen = await self.see(live.uid, pods)
        for seen in all_seen:
            note_place(live, seen)
            live.run.pod_seen(seen)
        going = {
            seen.name for seen, pod in zip(all_seen, pods, strict=True) if not seen.is_ended and is_deleting(pod)
        }
        live.changed |= going
        return GOING_EVERY if going else None

    async def see(self, uid: str, pods: Sequence[Obj]) -> list[PodSeen]:
        """The pods, with the reports of the executors of ended ones."""
        lost, now = await self._lost_nodes(pods), self._clock.now()
        seen = [pod_seen(pod, now=now, lost_nodes=lost, lost_after=self._lost_after) for pod in pods]
        names = [row.name for row, pod in zip(seen, pods, strict=True) if row.is_ended and has_executor(pod)]
        reports = {report.pod: report for report in await self._records.reports(uid, names)} if names else {}
        return [
            pod_seen(pod, now=now, lost_nodes=lost, lost_after=self._lost_after, report=reports.get(row.name))
            if row.name in reports
            else row
            for row, pod in zip(seen, pods, strict=True)
        ]

    async def _lost_nodes(self, pods: Iterable[Obj]) -> dict[str, datetime | None]:
        """Nodes of pods that are being deleted: deleted (None), or silent since a moment."""
        lost: dict[str, datetime | None] = {}
        hosts = {str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods if is_deleting(pod)}
        for host in sorted(hosts - {""}):
            node = self._nodes.get(host)
            if node is None:  # our copy may be older than the node: then its pod would run twice
                with contextlib.suppress(NotFound):
                    node = await self._api.get(NODES, host)
            if node is None:
                lost[host] = None
            elif (state := is_lost(node))[0]:
                lost[host] = state[1]
        return lost

    async def create(self, key: Key, live: Live, order: CreatePod, runtime: StepRuntime) -> bool:
        """Create one pod; return whether the run got news about it."""
        name = order.record.pod_name
        # the run may have ended the node since the decision
        if not live.run.waits_for(name):
            live.pending.forget(name)
            return False
        # the request has the values of this moment, such as the remaining deadline
        claims = await self._objects.claim_templates(key, live.run.workflow)
        request = PodRequest(
            record=order.record,
            workflow=await self._evaluation.think(key.namespace, f"Workflow {key}", live.run.written),
            template=order.template,
            secret=secret_name(key.name, live.run.workflow.token_digest),
            artifacts=order.artifacts,
            wants_result=order.wants_result,
            deadline_seconds=order.deadline_seconds(self._clock.now()),
            excluded_hosts=order.excluded_hosts,
            volumes={claim: f"{key.name}-{claim}" for claim in claims},
            retries=live.run.workflow.retries,
        )
        # an invalid template ends the node; a missing image command delays the pod
        try:
            pod = self._pod(key, request, runtime)
        except PodError as error:
            live.pending.forget(name)
            live.run.pod_refused(name, error.message, for_now=False)
            return True
        if isinstance(pod, str):
            live.run.pod_refused(name, pod, for_now=True)
            self._hold(live, order)
            return True
        # an earlier operator may have created the pod before it was killed
        try:
            await self._api.create(PODS, pod, key.namespace)
        except AlreadyExists:
            there = await self._api.get(PODS, name, key.namespace)
            if not is_of(there, live.uid):
                live.run.pod_refused(name, f"another pod has the name {name}: delete it", for_now=True)
                self._hold(live, order)
                return True
            for seen in await self.see(live.uid, [keep_pod(there)]):
                note_place(live, seen)
                live.run.pod_seen(seen)
            return True
        # a quota is tried again; another refusal is final
        except (Invalid, BadRequest, Forbidden) as error:
            for_now = is_quota(error)
            live.run.pod_refused(name, error.message, for_now=for_now)
            if for_now:
                self._hold(live, order)
            else:
                live.pending.forget(name)
            return True
        live.held.pop(name, None)
        return False

    def _pod(self, key: Key, request: PodRequest, runtime: StepRuntime) -> Obj | str:
        """Return the pod, or a string with the reason to create it later: its image's command is not known yet.

        Raises PodError.
        """
        while True:
            try:
                return make_pod(request, runtime)
            except CommandMissing as error:
                if self._commands is None or runtime.on_processes or error.image in runtime.entrypoints:
                    raise
                spec = request.workflow.get("spec") or {}
                account = request.template.get("serviceAccountName") or spec.get("serviceAccountName") or "default"
                secrets_of_pod = names_of(spec.get("imagePullSecrets") or ())
                selector = request.template.get("nodeSelector") or spec.get("nodeSelector") or {}
                architectures = architectures_of(self._nodes.all(), selector)
                asked = Asked(key.namespace, error.image, secrets_of_pod, str(account), architectures)
                answer = self._commands.ask(asked, partial(self._wake, key))
                if answer is None:
                    return f"the command of the image {error.image} is looked up in its registry"
                if isinstance(answer, str):
                    raise PodError(f"{error.message} (the registry was asked: {answer})") from error
                known = {**runtime.entrypoints, error.image: (answer.entrypoint, answer.cmd)}
                runtime = replace(runtime, entrypoints=known)

    def _hold(self, live: Live, order: CreatePod) -> None:
        live.held[order.record.pod_name] = order
        live.held_until = self._clock.monotonic() + QUOTA_EVERY.total_seconds()

    async def create_held(self, key: Key, live: Live) -> timedelta | None:
        """Try again to create pods that a quota refused; return when to try the next time."""
        if not live.held:
            return None
        left = live.held_until - self._clock.monotonic()
        if left > 0:
            return timedelta(seconds=left)
        runtime = await self.runtime()
        held, live.held = live.held, {}
        for order in held.values():
            await self.create(key, live, order, runtime)
        return QUOTA_EVERY if live.held else timedelta(0)

    async def delete(self, name: str, namespace: str) -> None:
        with contextlib.suppress(NotFound):
            await self._api.delete(PODS, name, namespace)

    async def let_go(self, name: str, key: Key, live: Live) -> None:
        """Release a pod whose end is recorded, and note when `podGC` deletes it."""
        await self.release(name, key.namespace)
        node = live.run.node_of_pod(name)
        at = pod_delete_at(live.run.workflow, node, self._pods.get(name, key.namespace))
        if at is not None:
            live.deletions[name] = at

    async def delete_due(self, key: Key, deletions: dict[str, datetime]) -> timedelta | None:
        """Delete the pods that are due. Returns when to look again."""
        now = self._clock.now()
        due = [name for name, at in deletions.items() if at <= now]
        await at_once([partial(self.delete, name, key.namespace) for name in due])
        for name in due:
            del deletions[name]
        return min((at - now for at in deletions.values()), default=None)

    async def release(self, name: str, namespace: str) -> None:
        """Remove our finalizer from a pod."""
        pod = self._pods.get(name, namespace)
        finalizers = list((pod or {}).get("metadata", {}).get("finalizers") or (POD_FINALIZER,))
        patch: Any
        if finalizers == [POD_FINALIZER]:
            patch = {"metadata": {"finalizers": None}}
        else:
            patch = {"metadata": {"finalizers": [each for each in finalizers if each != POD_FINALIZER]}}
        with contextlib.suppress(NotFound):
            await self._api.patch(PODS, name, patch, namespace)

    async def runtime(self) -> StepRuntime:
        now = self._clock.monotonic()
        if self._runtime is None or now - self._runtime_read_at >= RUNTIME_EVERY.total_seconds():
            self._runtime, self._runtime_read_at = await self._find_runtime(), now
        return self._runtime


def note_place(live: Live, pod: PodSeen) -> None:
    """Record whether the pod still waits for a node."""
    if pod.is_ended:
        live.pending.forget(pod.name)
        return
    node = live.run.node_of_pod(pod.name)
    template = node.template if node is not None else ""
    live.pending.seen(pod.name, template, has_node=bool(pod.host) or pod.is_running)


async def at_once(work: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run all work, some at a time. When all has ended, raises the first error."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded(each: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await each()

    if len(work) == 1:
        return [await work[0]()]
    results = await asyncio.gather(*(guarded(each) for each in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
