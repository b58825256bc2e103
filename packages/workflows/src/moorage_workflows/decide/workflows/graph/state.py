"""The state of one run of a workflow: its nodes' records, its pods, its waits, and the next decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from moorage.decide.evaluation import Budget
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.coroutines import Future, Scheduler, Slots
from moorage_workflows.decide.workflows.graph.events import (
    Controls,
    CreatePod,
    EndPod,
    PodSeen,
    Query,
    Remember,
)
from moorage_workflows.decide.workflows.graph.frames import Awaited, Call
from moorage_workflows.decide.workflows.graph.inputs import Inputs
from moorage_workflows.decide.workflows.graph.locks import locks_held
from moorage_workflows.decide.workflows.graph.naming import Ids
from moorage_workflows.decide.workflows.graph.parallelism import places_held
from moorage_workflows.decide.workflows.graph.scopes import globals_of
from moorage_workflows.decide.workflows.graph.tasks import Limits, stamp
from moorage_workflows.decide.workflows.graph.timers import Timers
from moorage_workflows.decide.workflows.templates import Library, Resolved
from moorage_workflows.model.workflow import (
    NODE_MOVES,
    MetricPoint,
    NodePhase,
    NodeRecord,
    NodeType,
    Outputs,
    Resume,
    WorkflowRecord,
)


class Draft(Struct):
    """The decisions since the last one was returned."""

    remember: list[Remember] = field(default_factory=list)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)  # by id
    metrics: list[MetricPoint] = field(default_factory=list)
    create: list[CreatePod] = field(default_factory=list)
    end: dict[str, EndPod] = field(default_factory=dict)  # by the pod's name
    release: list[str] = field(default_factory=list)
    unlock: list[str] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)


class Pods(Struct):
    """The pods of a run, by name."""

    seen: dict[str, PodSeen]
    slots: Slots
    awaited: dict[str, Awaited] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # that the API server does not take for now
    cut: dict[str, str] = field(default_factory=dict)  # that are being ended, and the message of their nodes
    daemon_metrics: dict[str, Callable[[NodeRecord], None]] = field(default_factory=dict)


class Waits(Struct):
    """The waits of nodes other than those for pods and times."""

    answers: dict[Query, Future[Any]] = field(default_factory=dict)
    # by node id; the bool: is_exit
    suspended: dict[str, tuple[NodeRecord, bool, Future[Resume]]] = field(default_factory=dict)
    resumed: dict[str, list[Resume]] = field(default_factory=dict)  # by node id: asked for before the node waited
    go_on: list[Future[None]] = field(default_factory=list)  # while the workflow is suspended
    backoffs: list[Future[None]] = field(default_factory=list)  # waits that a shutdown ends


class State:
    """The state of one run, and its next decision. Every change of a node uses `save`.

    `execute`: carries out a call as a node. Templates call templates, so the maker of the state passes it
    in.
    """

    def __init__(
        self,
        workflow: WorkflowRecord,
        *,
        nodes: Iterable[NodeRecord],
        pods: Iterable[PodSeen],
        now: datetime,
        execute: Callable[[State, Call], Awaitable[NodeRecord]],
    ) -> None:
        self.workflow = workflow
        self.spec: Mapping[str, Any] = workflow.document.get("spec") or {}
        self.library = Library.of_stored(workflow.document)
        self.now = now
        self.scheduler = Scheduler()
        self.timers = Timers(self.scheduler)
        self.records: dict[str, NodeRecord] = {node.id: node for node in nodes}
        self.ids = Ids(workflow.name, self.records.values())
        self.by_pod = {node.pod_name: node for node in self.records.values() if node.pod_name}
        self.globals = globals_of(workflow)
        # exports of nodes, also of nodes within ended ones, which do not run again
        self.global_artifacts = {f"workflow.outputs.artifacts.{row.name}": row for row in workflow.artifacts}
        self.parameters = dict(workflow.parameters)
        self.globals |= {f"workflow.outputs.parameters.{name}": value for name, value in self.parameters.items()}
        self.pods = Pods({pod.name: pod for pod in pods}, Slots(self.scheduler, None))
        self.waits = Waits()
        self.watched: dict[str, Callable[[NodeRecord], None]] = {}  # by node id
        self.workflow_hooks: dict[str, Future[None]] = {}
        self.controls = Controls()
        self.limits = Limits()
        self.deadline: datetime | None = None
        self.is_late = False
        self.is_exiting = False
        self.places = places_held(self.records)  # of nodes that began before this run was made
        self.locked = {holder for holder, _ in locks_held(workflow, self.records.values())}  # ids of nodes
        self.draft = Draft()
        self.budget = Budget(nodes=len(self.records))
        self._execute = execute
        self._pods_done = 0
        self._pods_total = 0
        for node in self.records.values():
            self._count(None, node)

    @property
    def is_done(self) -> bool:
        return self.workflow.phase in ("Succeeded", "Failed", "Error")

    def execute(self, call: Call) -> Awaitable[NodeRecord]:
        """Run a template as a node. Returns the final record of the node. Raises Cut."""
        return self._execute(self, call)

    # --- nodes

    def has_begun(self, name: str) -> bool:
        """Whether there is a record of the node of this name: its conditions are not evaluated again."""
        return self.ids.of(name) in self.records

    def node(
        self,
        call: Call,
        resolved: Resolved | None,
        inputs: Inputs | None,
        kind: NodeType,
        phase: NodePhase,
        message: str = "",
    ) -> NodeRecord:
        """Return the stored record of a node, or a new record if there is none."""
        identity = self.ids.of(call.name)
        stored = self.records.get(identity)
        if stored is not None and stored.type is kind:
            return stored
        return NodeRecord(
            id=identity,
            name=call.name,
            display_name=call.display_name,
            type=kind,
            phase=phase,
            template=resolved.name if resolved is not None else str(call.step.get("template") or ""),
            template_ref=resolved.scope if resolved is not None else call.scope,
            boundary_id=call.frame.record.id if call.frame is not None else "",
            parents=call.parents,
            started_at=stamp(self.now),
            finished_at=stamp(self.now) if phase.is_fulfilled else "",
            message=message,
            inputs=inputs.as_record() if inputs is not None else {},
        )

    def save(self, record: NodeRecord) -> NodeRecord:
        """Put a record into the run's records. If it is new or has changed, it is also marked to be stored."""
        before = self.records.get(record.id)
        if before == record:
            return record
        if before is None or before.phase is not record.phase:
            NODE_MOVES.check(before.phase if before else None, record.phase, (before,) if before else ())
        self._count(before, record)
        self.records[record.id] = record
        if record.pod_name:
            self.by_pod[record.pod_name] = record
        self.draft.nodes[record.id] = record
        if (look := self.watched.get(record.id)) is not None:
            look(record)
        return record

    def _count(self, before: NodeRecord | None, record: NodeRecord) -> None:
        if not record.type.has_pod:
            return
        if before is None or not before.type.has_pod:
            self._pods_total += 1
            self._pods_done += record.phase.is_fulfilled
        elif not before.phase.is_fulfilled and record.phase.is_fulfilled:
            self._pods_done += 1

    def end_node(
        self, node: NodeRecord, phase: NodePhase, message: str = "", outputs: Outputs | None = None
    ) -> NodeRecord:
        """Set the last phase of a node, unless the node has ended."""
        current = self.records.get(node.id, node)
        if current.phase.is_fulfilled:
            return current
        return self.save(
            msgspec.structs.replace(
                current,
                phase=phase,
                message=message,
                finished_at=stamp(self.now) if phase.is_fulfilled else "",  # a daemon's pod runs on
                outputs=outputs,
            )
        )

    def fail(self, call: Call, message: str) -> NodeRecord:
        """Save a node that could not start, or that cannot continue, with the phase Error."""
        stored = self.records.get(self.ids.of(call.name))
        if stored is not None:  # it began, and cannot go on
            if not stored.phase.is_fulfilled:
                self.forget_pod(stored)
            return self.end_node(stored, NodePhase.ERROR, message)
        record = self.node(call, None, None, NodeType.SKIPPED, NodePhase.ERROR, message)
        record = msgspec.structs.replace(
            record, phase=NodePhase.ERROR, message=message, finished_at=stamp(self.now)
        )
        return self.save(record)

    def skip(self, call: Call, phase: NodePhase, message: str) -> NodeRecord:
        """Save a node that does not run."""
        stored = self.records.get(self.ids.of(call.name))
        if stored is not None and stored.phase.is_fulfilled:
            return stored
        return self.save(self.node(call, None, None, NodeType.SKIPPED, phase, message))

    def forget_pod(self, node: NodeRecord) -> None:
        """End the node's pod, without waiting for it any more."""
        if node.pod_name:
            self.pods.awaited.pop(node.pod_name, None)
            self.draft.end[node.pod_name] = EndPod(node.pod_name)
            self.draft.release.append(node.pod_name)

    # --- the workflow

    def note_progress(self) -> None:
        """Update the workflow's record from its nodes."""
        workflow = self.workflow
        if (workflow.done, workflow.total) != (self._pods_done, self._pods_total):
            self.workflow = msgspec.structs.replace(workflow, done=self._pods_done, total=self._pods_total)
        artifacts = tuple(self.global_artifacts.values())
        if self.workflow.parameters != self.parameters or self.workflow.artifacts != artifacts:
            self.workflow = msgspec.structs.replace(
                self.workflow, parameters=dict(self.parameters), artifacts=artifacts
            )

    # --- time

    def seconds(self) -> float:
        """Return the current run time of the workflow in seconds."""
        started = moment(self.workflow.started_at) or self.now
        return max((self.now - started).total_seconds(), 0.0)

    async def until(self, at: datetime) -> None:
        """Wait until this time. Returns at once if it has passed."""
        if at > self.now:
            await self.timers.at(at)
