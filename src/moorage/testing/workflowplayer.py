"""Plays the cluster for a run of a workflow: every pod that is created ends as a table says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from moorage.decide.workflows.graph.events import ConfigMapValue, CreatePod, Locks, PodSeen, Recall, Refusal
from moorage.decide.workflows.graph.run import Run
from moorage.decide.workflows.normalise import normalise
from moorage.decide.workflows.templates import TemplateKey, stored
from moorage.model.workflow import Artifact, MetricPoint, NodeRecord, Outputs, StepReport, WorkflowRecord

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
UID = "0a1b"


@dataclass(frozen=True)
class Ends:
    """How a pod ends."""

    exit_code: int | None = 0
    result: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    disrupted: str = ""
    failure: str = ""
    error: str = ""
    after: timedelta = timedelta(seconds=1)


Table = Callable[[CreatePod], Ends]


def always(_order: CreatePod) -> Ends:
    """Every pod succeeds."""
    return Ends()


def by_node(**table: Ends) -> Table:
    """By the step's own name."""

    def look(order: CreatePod) -> Ends:
        name = order.record.display_name.split("(")[0]
        return table.get(name.replace("-", "_"), Ends())

    return look


class Player:
    """One run, its records and its pods, with a clock that only moves when nothing else can happen."""

    def __init__(
        self,
        manifest: str | Mapping[str, Any],
        table: Table = always,
        *,
        name: str = "wf",
        others: Mapping[TemplateKey, Mapping[str, Any]] | None = None,
        config_maps: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        document = yaml.safe_load(manifest) if isinstance(manifest, str) else dict(manifest)
        document = normalise(document)
        document.setdefault("metadata", {})["name"] = name
        self.table, self.config_maps = table, config_maps or {}
        self.workflow = WorkflowRecord(
            uid=UID,
            namespace="default",
            name=name,
            document=stored(document, others or {}),
            created_at="2026-03-01T12:00:00Z",
        )
        self.nodes: dict[str, NodeRecord] = {}
        self.pods: dict[str, PodSeen] = {}
        self.ends: dict[str, tuple[datetime, Ends]] = {}
        self.created: list[CreatePod] = []
        self.now = NOON
        self.memos: dict[tuple[str, str], Outputs] = {}
        self.locks_asked: list[Locks] = []
        self.has_locks = True  # who asks for one gets it
        self.most_at_once = 0
        self.unlocked: list[str] = []
        self.points: list[MetricPoint] = []  # as the store takes them
        self.run = Run(self.workflow, now=self.now)

    def restart(self) -> None:
        """The operator is gone, and another one begins with what is stored."""
        self.run = Run(self.workflow, nodes=self.nodes.values(), pods=self.pods.values(), now=self.now)

    def decide(self) -> timedelta | None:
        """One decision, carried out."""
        decision = self.run.decide(self.now)
        over = {node.id for node in self.nodes.values() if node.phase.is_fulfilled}
        over |= {""} if self.workflow.finished_at else set()
        self.points += [point for point in decision.metrics if point.node not in over]
        for record in decision.nodes:
            before = self.nodes.get(record.id)
            assert before is None or not before.phase.is_fulfilled, f"{record.name} was final"
            self.nodes[record.id] = record
        if decision.workflow is not None:
            self.workflow = decision.workflow
        for order in decision.create:
            name = order.record.pod_name
            assert self.nodes[order.record.id].pod_name == name, "saved before it is created"
            if name in self.pods:
                continue
            assert name not in self.ends, f"{name} is created twice"
            self.created.append(order)
            ends = self.table(order)
            self.ends[name] = (self.now + ends.after, ends)
            self.pods[name] = PodSeen(name=name, is_running=True, host="node-1")
            self.run.pod_seen(self.pods[name])
        active = [pod for pod in self.pods.values() if not pod.is_ended]
        self.most_at_once = max(self.most_at_once, len(active))
        for end in decision.end:
            if end.pod in self.pods:
                self.end(end.pod, Ends(exit_code=143))
        for remember in decision.remember:
            self.memos[(remember.memo.cache, remember.memo.key)] = remember.node.outputs or Outputs()
        for question in decision.questions:
            match question:
                case ConfigMapValue(name, key):
                    value = self.config_maps.get(name, {}).get(key)
                    self.run.answer(question, Refusal(f"no {name}/{key}") if value is None else value)
                case Recall(cache, key):
                    self.run.answer(question, self.memos.get((cache, key)))
                case Locks():
                    self.locks_asked.append(question)
                    if self.has_locks:
                        self.run.answer(question, None)
        self.unlocked += decision.unlock
        if (
            decision.create
            or decision.end
            or any(self.has_locks or not isinstance(question, Locks) for question in decision.questions)
        ):
            return timedelta(0)
        return decision.look_again_in

    def end(self, name: str, ends: Ends) -> None:
        self.ends[name] = (self.now, ends)
        outputs = Outputs(
            parameters=dict(ends.parameters),
            result=ends.result,
            artifacts=tuple(Artifact(name=each, key=f"{name}/{each}.tgz") for each in ends.artifacts),
        )
        report = None
        if outputs != Outputs() or ends.error:
            report = StepReport(pod=name, outputs=outputs, error=ends.error)
        self.pods[name] = PodSeen(
            name=name,
            is_ended=True,
            exit_code=ends.exit_code,
            disrupted=ends.disrupted,
            failure=ends.failure,
            host="node-1",
            report=report,
        )
        self.run.pod_seen(self.pods[name])

    def step(self) -> bool:
        """One thing happens; False when nothing can happen any more."""
        wait = self.decide()
        if wait == timedelta(0):
            return True
        due = sorted((at, name) for name, (at, _) in self.ends.items() if not self.pods[name].is_ended)
        moments = [at for at, _ in due[:1]] + ([self.now + wait] if wait is not None else [])
        if not moments or self.run.is_done:
            return False
        self.now = max(self.now, min(moments))
        if due and due[0][0] <= self.now:
            name = due[0][1]
            self.end(name, self.ends[name][1])
        return True

    def play(self, *, most: int = 10_000) -> Player:
        for _ in range(most):
            if not self.step():
                return self
        raise AssertionError("the run does not end")

    def phases(self) -> dict[str, str]:
        """Every node by its name, with WF for the workflow's."""
        name = self.workflow.name
        return {"WF" + node.name[len(name) :]: f"{node.type} {node.phase}" for node in self.nodes.values()}

    def node(self, name: str) -> NodeRecord:
        full = self.workflow.name + name.removeprefix("WF")
        return next(node for node in self.nodes.values() if node.name == full)
