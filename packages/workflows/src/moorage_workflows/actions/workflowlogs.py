"""The logs of a workflow: the output of the pods of its steps in one view, with stored logs of deleted pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime

from msgspec import Struct

from moorage.actions.storedrecords import StepRecords, lines_of
from moorage.api.errors import ErrorCode
from moorage.decide.runs.storedruns import shown_container
from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_LABEL, WORKFLOWS, is_step, step_path
from moorage_kube.api import PodApi
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, NotFound, ServerError
from moorage_kube.meta import annotations_of
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import format_bytes
from moorage_kube.remote.logs import STARTED, pod_lines
from moorage_kube.resources import PODS, Obj
from moorage_workflows.actions.workflows import Records, get_workflow
from moorage_workflows.decide.workflows.pods import MAIN
from moorage_workflows.decide.workflows.views import ENDED, WorkflowView, view_workflow

LOOK_SECONDS = 1.0  # between two looks for pods that have come, while a workflow is followed
GONE = "the pod was deleted"
AHEAD = 256  # lines that are read ahead of the reader


class StepLine(Struct, frozen=True):
    """A line of the log of a step's pod, without its line end."""

    step: str
    pod: str
    text: bytes


class StepUnread(Struct, frozen=True):
    """A message about the log of a step's pod: it cannot be read, or lines are missing."""

    step: str
    pod: str
    message: str


StepEvent = StepLine | StepUnread


class _Started(Struct, frozen=True):
    """A pod on record whose container has started."""

    uid: str
    name: str
    started: datetime


class WorkflowLog:
    """The logs of one workflow, read as the caller. Call `open` first, then `read` or `follow` once.

    `step`: as `is_step` reads it; empty: all. `tail` and `since_seconds`: of each pod. `pod_records`: reads
    the stored logs of deleted pods.
    """

    def __init__(
        self,
        api: PodApi,
        namespace: str,
        name: str,
        *,
        clock: Clock,
        pod_records: StepRecords,
        step: str = "",
        pod: str = "",
        container: str = "",
        tail: int | None = None,
        since_seconds: int | None = None,
        records: Records | None = None,
    ) -> None:
        self._api, self._namespace, self._name, self._clock = api, namespace, name, clock
        self._step, self._pod, self._container = step, pod, container
        self._tail, self._since, self._records = tail, since_seconds, records
        self._pod_records = pod_records
        self._uid = ""
        self._ended: set[str] = set()  # pods that are over
        self._read: set[str] = set()  # uids of pods that were begun
        self._is_over = False

    async def open(self) -> WorkflowView:
        """Read the workflow and return its view. Raises NotFound if the workflow or a step does not exist."""
        view = view_workflow(await get_workflow(self._api, self._namespace, self._name, self._records))
        self._name, self._uid = view.name, view.uid
        steps = {step_path(node.name, view.name) for node in view.nodes if node.type.has_pod}
        pods = await self._pods()
        steps |= {self._step_of(pod) for pod in pods}
        if self._step and view.has_ended and not any(is_step(step, self._step) for step in steps):
            shown = sorted({step.partition("(")[0] for step in steps})[:10]
            raise NotFound(
                f"workflow {view.name!r} has no step {self._step!r} with a pod",
                hint=f"its steps: {', '.join(shown)}" if shown else f"look at it: moor workflow get {view.name}",
                code=ErrorCode.NOT_FOUND,
            )
        return view

    async def read(self) -> AsyncGenerator[StepEvent]:
        """The lines up to now, pod after pod, in the order of their start."""
        pods = {_uid(pod): pod for pod in await self._pods()}
        view = await self._view()
        gone = {pod.uid: pod for pod in await self._stored_pods() if pod.uid not in pods}
        nodes = _nodes(view)
        starts = [(_start(pod), uid) for uid, pod in pods.items()]
        starts += [(_stored_start(pod, nodes), uid) for uid, pod in gone.items()]
        for _, uid in sorted(starts):
            if uid in gone:
                for event in await self._gone_lines(gone[uid], nodes):
                    yield event
                continue
            pod = pods[uid]
            if not self._is_meant(pod) or (pod.get("status") or {}).get("phase") not in STARTED:
                continue
            self._ended.add(_name(pod))
            async with aclosing(self._lines(pod, follow=False)) as lines:
                async for line in lines:
                    yield line
        for event in self._lost(view, [_name(pod) for pod in pods.values()], [pod.name for pod in gone.values()]):
            yield event

    async def follow(self) -> AsyncGenerator[StepEvent]:
        """First the lines of deleted pods; then new lines of running pods, until the workflow has ended."""
        queue: asyncio.Queue[StepEvent | None] = asyncio.Queue(AHEAD)
        looking = asyncio.ensure_future(self._look(queue))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await looking
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self, queue: asyncio.Queue[StepEvent | None]) -> None:
        """Start to read the log of each pod that starts. End when the workflow has ended and all logs are read."""
        readers: dict[str, asyncio.Task[None]] = {}
        try:
            await self._pass_on_gone(queue)
            while True:
                self._is_over = await self._has_ended()
                pods = await self._pods()
                for pod in pods:
                    phase, name = (pod.get("status") or {}).get("phase"), _name(pod)
                    if phase in ("Succeeded", "Failed"):
                        self._ended.add(name)
                    if name not in readers and phase in STARTED and self._is_meant(pod):
                        readers[name] = asyncio.create_task(self._pass_on(pod, queue))
                self._ended |= readers.keys() - {_name(pod) for pod in pods}  # their pods are deleted
                if self._is_over:
                    break
                await self._clock.sleep(LOOK_SECONDS)
            self._ended |= readers.keys()
            await asyncio.gather(*readers.values())
            await self._pass_on_gone(queue)  # pods that started and were deleted between two looks
        finally:
            for reader in readers.values():
                reader.cancel()
            await asyncio.gather(*readers.values(), return_exceptions=True)
            if not (task := asyncio.current_task()) or not task.cancelling():
                await queue.put(None)

    async def _pass_on(self, pod: Obj, queue: asyncio.Queue[StepEvent | None]) -> None:
        async with aclosing(self._lines(pod, follow=True)) as lines:
            async for line in lines:
                await queue.put(line)

    async def _pass_on_gone(self, queue: asyncio.Queue[StepEvent | None]) -> None:
        present = {_uid(pod) for pod in await self._pods()}
        gone = [pod for pod in await self._stored_pods() if pod.uid not in present | self._read]
        if gone:
            nodes = _nodes(await self._view())
            for pod in sorted(gone, key=lambda pod: _stored_start(pod, nodes)):
                for event in await self._gone_lines(pod, nodes):
                    await queue.put(event)

    async def _lines(self, pod: Obj, *, follow: bool) -> AsyncGenerator[StepEvent]:
        name, step, uid = _name(pod), self._step_of(pod), _uid(pod)
        self._read.add(uid)
        lines = pod_lines(
            self._api,
            name,
            self._namespace,
            clock=self._clock,
            ended=lambda: name in self._ended,
            container=self._container or main_container(pod),
            follow=follow,
            tail=self._tail,
            since_seconds=self._since,
        )
        has_begun = False
        try:
            async with aclosing(lines):
                async for line in lines:
                    has_begun = True
                    yield StepLine(step, name, line)
        except (NotFound, ServerError) as error:  # the pod is deleted, or its node is unreachable
            for event in [] if has_begun else await self._stored_lines(step, name, uid, error.message):
                yield event
        except ApiError as error:
            yield StepUnread(step, name, error.message)

    async def _stored_pods(self) -> list[_Started]:
        """Pods on record that may have printed something."""
        pods = await self._pod_records.steps(self._namespace, self._name, self._uid, pod=self._pod)
        return [_Started(pod.uid, pod.name, pod.started) for pod in pods if pod.started is not None]

    async def _gone_lines(self, pod: _Started, nodes: Mapping[str, str]) -> list[StepEvent]:
        step = step_path(nodes[pod.name], self._name) if pod.name in nodes else pod.name
        if self._step and not is_step(step, self._step):
            return []
        return await self._stored_lines(step, pod.name, pod.uid, "")

    async def _stored_lines(self, step: str, name: str, uid: str, failure: str) -> list[StepEvent]:
        """The stored log of a pod, or of the requested container; `failure` as a message if none is stored."""
        self._read.add(uid)
        try:
            log = await self._pod_records.step_log(
                self._namespace, self._name, self._uid, uid, container=self._container
            )
        except NotFound as error:
            return [StepUnread(step, name, failure or error.message)]
        except ApiError as error:
            return [StepUnread(step, name, error.message)]
        lines, is_cut = lines_of(log, now=self._clock.now(), tail=self._tail, since_seconds=self._since)
        events: list[StepEvent] = [StepLine(step, name, line) for line in lines]
        if is_cut:
            words = (
                f"earlier lines of {name} were dropped: only the last {format_bytes(log.most_bytes)} are stored"
            )
            events.insert(0, StepUnread(step, name, words))
        if not events and not failure and self._container not in ("", MAIN):
            failure = f"{GONE}, and the log of {self._container} is not stored"
        return events or ([StepUnread(step, name, failure)] if failure else [])

    async def _view(self) -> WorkflowView:
        return view_workflow(await get_workflow(self._api, self._namespace, self._name, self._records))

    async def _pods(self) -> list[Obj]:
        selector = f"{WORKFLOW_LABEL}={self._name}"
        return (await self._api.list(PODS, self._namespace, label_selector=selector)).items

    async def _has_ended(self) -> bool:
        try:
            live = await self._api.get(WORKFLOWS, self._name, self._namespace)
        except NotFound:
            return True
        return (live.get("status") or {}).get("phase") in ENDED

    def _step_of(self, pod: Obj) -> str:
        return step_path(annotations_of(pod).get(NODE_NAME_ANNOTATION) or _name(pod), self._name)

    def _is_meant(self, pod: Obj) -> bool:
        if self._pod and _name(pod) != self._pod:
            return False
        return not self._step or is_step(self._step_of(pod), self._step)

    def _lost(self, view: WorkflowView, *known: Iterable[str]) -> list[StepUnread]:
        """Messages for steps that ran, if their pods are deleted and their logs are not stored."""
        names = {name for some in known for name in some}
        lost = []
        for node in view.nodes:
            path = step_path(node.name, view.name)
            is_meant = not self._step or is_step(path, self._step)
            ran = node.type.has_pod and node.phase.is_completed and node.pod_name and not node.is_memoized
            if ran and is_meant and node.pod_name not in names and self._pod in ("", node.pod_name):
                lost.append(StepUnread(path, node.pod_name, f"{GONE}, and its log is not stored"))
        return lost


def main_container(pod: Mapping[str, object]) -> str | None:
    """Return the name of the container whose log is the log of the step; None if it is unknown."""
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if isinstance(containers, list) and any(each.get("name") == MAIN for each in containers):
        return MAIN
    return shown_container(dict(pod))


def _nodes(view: WorkflowView) -> dict[str, str]:
    """Return the name of the node for each pod name."""
    return {node.pod_name: node.name for node in view.nodes if node.type.has_pod}


def _name(pod: Obj) -> str:
    return str(pod["metadata"]["name"])


def _uid(pod: Obj) -> str:
    return str(pod["metadata"].get("uid") or "")


def _stored_start(pod: _Started, nodes: Mapping[str, str]) -> tuple[str, str]:
    return rfc3339(pod.started), nodes.get(pod.name, pod.name)


def _start(pod: Obj) -> tuple[str, str]:
    """Return a sort key of a pod: its start time, then the name of its node.

    Names of nodes contain the numbers of groups of steps.
    """
    started = (pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp") or "~"
    return str(started), annotations_of(pod).get(NODE_NAME_ANNOTATION) or _name(pod)
