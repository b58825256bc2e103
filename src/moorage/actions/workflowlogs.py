"""The logs of a workflow: what the pods of its steps print, in one view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from moorage.actions.runlogs import container_of
from moorage.actions.workflows import Records, get_workflow
from moorage.api.errors import ErrorCode
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.resources import PODS, Obj
from moorage.clock import Clock
from moorage.decide.workflows.views import ENDED, WorkflowView, is_step, step_path, view_workflow
from moorage.errors import ApiError, NotFound
from moorage.kube.logs import STARTED, pod_lines
from moorage.model.workflow import NODE_NAME_ANNOTATION, WORKFLOW_LABEL, WORKFLOWS

MAIN = "main"  # the container of a step that is the person's own
LOOK_SECONDS = 1.0  # between two looks for pods that have come, while a workflow is followed
AHEAD = 256  # lines that are read before somebody takes them


@dataclass(frozen=True, slots=True)
class StepLine:
    """A line without its end, of a step's pod."""

    step: str
    pod: str
    text: bytes


@dataclass(frozen=True, slots=True)
class StepUnread:
    """The log of a step's pod cannot be read, or went with the pod."""

    step: str
    pod: str
    message: str


StepEvent = StepLine | StepUnread


class WorkflowLog:
    """The logs of one workflow, read as the caller. `open` first, then `read` or `follow` once.

    `step`: as `is_step` reads it; empty: all. `tail` and `since_seconds`: of each pod.
    """

    def __init__(
        self,
        api: PodApi,
        namespace: str,
        name: str,
        *,
        clock: Clock,
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
        self._ended: set[str] = set()  # pods that are over
        self._is_over = False

    async def open(self) -> WorkflowView:
        """The workflow. Raises NotFound for one, or a step, that does not exist."""
        view = view_workflow(await get_workflow(self._api, self._namespace, self._name, self._records))
        self._name = view.name
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
        """What there is now, pod after pod, in the order of their start."""
        pods = sorted(await self._pods(), key=_start)
        for pod in pods:
            if not self._is_meant(pod) or (pod.get("status") or {}).get("phase") not in STARTED:
                continue
            self._ended.add(_name(pod))
            async with aclosing(self._lines(pod, follow=False)) as lines:
                async for line in lines:
                    yield line
        view = view_workflow(await get_workflow(self._api, self._namespace, self._name, self._records))
        for gone in self._gone(view, {_name(pod) for pod in pods}):
            yield gone

    async def follow(self) -> AsyncGenerator[StepEvent]:
        """Lines as they come, from all pods at once, until the workflow has ended."""
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
        """Begin to read each pod that starts; end when the workflow has, and all is read."""
        readers: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._is_over = await self._has_ended()
                pods = await self._pods()
                for pod in pods:
                    phase, name = (pod.get("status") or {}).get("phase"), _name(pod)
                    if phase in ("Succeeded", "Failed"):
                        self._ended.add(name)
                    if name not in readers and phase in STARTED and self._is_meant(pod):
                        readers[name] = asyncio.create_task(self._pass_on(pod, queue))
                self._ended |= readers.keys() - {_name(pod) for pod in pods}  # their pods are gone
                if self._is_over:
                    break
                await self._clock.sleep(LOOK_SECONDS)
            self._ended |= readers.keys()
            await asyncio.gather(*readers.values())
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

    async def _lines(self, pod: Obj, *, follow: bool) -> AsyncGenerator[StepEvent]:
        name, step = _name(pod), self._step_of(pod)
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
        try:
            async with aclosing(lines):
                async for line in lines:
                    yield StepLine(step, name, line)
        except ApiError as error:
            yield StepUnread(step, name, error.message)

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

    def _gone(self, view: WorkflowView, present: Collection[str]) -> list[StepUnread]:
        """Steps that ran, and whose pods are gone with their logs."""
        gone = []
        for node in view.nodes:
            path = step_path(node.name, view.name)
            is_meant = not self._step or is_step(path, self._step)
            ran = node.type.has_pod and node.phase.is_completed and node.pod_name and not node.is_memoized
            if ran and is_meant and node.pod_name not in present and self._pod in ("", node.pod_name):
                gone.append(StepUnread(path, node.pod_name, "the pod is gone, and its log with it"))
        return gone


def main_container(pod: Mapping[str, object]) -> str | None:
    """The container whose log is the step's."""
    spec = pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if isinstance(containers, list) and any(each.get("name") == MAIN for each in containers):
        return MAIN
    return container_of(dict(pod))


def _name(pod: Obj) -> str:
    return str(pod["metadata"]["name"])


def _start(pod: Obj) -> tuple[str, str]:
    """Pods of one second by their nodes' names, which have the numbers of groups of steps."""
    started = (pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp") or "~"
    return str(started), annotations_of(pod).get(NODE_NAME_ANNOTATION) or _name(pod)
