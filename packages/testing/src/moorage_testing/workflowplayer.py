"""Acts as the cluster for a run of a workflow: each created pod ends as a table defines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from msgspec.structs import replace

from moorage_workflows.decide.workflows.graph.events import (
    ConfigMapValue,
    Controls,
    CreatePod,
    Decision,
    Locks,
    PodSeen,
    Recall,
    Refusal,
)
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.decide.workflows.graph.tasks import stamp
from moorage_workflows.decide.workflows.graph.validity import violations
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.templates import TemplateKey, stored
from moorage_workflows.model.workflow import (
    Artifact,
    MetricPoint,
    NodePhase,
    NodeRecord,
    Outputs,
    StepReport,
    WorkflowRecord,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
UID = "0a1b"
GRACE = timedelta(seconds=1)  # from a pod's deletion to its end
STARTS_AFTER = timedelta(milliseconds=100)  # its `activeDeadlineSeconds` are counted from then
TOO_LONG = "DeadlineExceeded: Pod was active on the node longer than the specified deadline"


@dataclass(frozen=True)
class Ends:
    """The end of a pod.

    `after`: the time from its start to its end; None if all nodes refuse it, so it never starts.
    """

    exit_code: int | None = 0
    result: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    disrupted: str = ""
    failure: str = ""
    error: str = ""
    after: timedelta | None = timedelta(seconds=1)


Table = Callable[[CreatePod], Ends]


def always(_order: CreatePod) -> Ends:
    """Every pod succeeds."""
    return Ends()


def by_node(**table: Ends) -> Table:
    """Return a table by the step's own name."""

    def look(order: CreatePod) -> Ends:
        name = order.record.display_name.split("(")[0]
        return table.get(name.replace("-", "_"), Ends())

    return look


class Player:
    """One run, its records and its pods, with a clock that only moves when nothing else can happen.

    Pods end as the table says, or when their `activeDeadlineSeconds` are over; an operator is not needed for that.
    """

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
            document=stored(document, others or {}, others),
            created_at="2026-03-01T12:00:00Z",
        )
        self.nodes: dict[str, NodeRecord] = {}
        self.moves: set[tuple[NodePhase | None, NodePhase]] = set()  # as stored
        self.pods: dict[str, PodSeen] = {}
        self.ends: dict[str, tuple[datetime, Ends]] = {}
        self.created: list[CreatePod] = []
        self.now = NOON
        self.memos: dict[tuple[str, str], Outputs] = {}
        self.locks_asked: list[Locks] = []
        self.has_locks = True  # every request gets one
        self.most_at_once = 0
        self.unlocked: list[str] = []
        self.points: list[MetricPoint] = []  # as the store takes them
        self.controls: Controls | None = None
        self.run = Run(self.workflow, now=self.now)

    def restart(self, *, away: timedelta = timedelta(0)) -> None:
        """Replace the operator, which starts from the stored objects, after some time."""
        until = self.now + away
        while (due := self._next_end()) is not None and due[0] <= until:
            self.now = max(self.now, due[0])
            self._pod_ends(due[1])
        self.now = until
        self.run.close()
        self.run = Run(self.workflow, nodes=self.nodes.values(), pods=self.pods.values(), now=self.now)
        if self.controls is not None:
            self.run.control(self.controls)

    def control(self, controls: Controls) -> None:
        """Change the object's controls, for this operator and for later ones."""
        self.controls = controls
        self.run.control(controls)

    def decide(self, *, writes: int | None = None) -> timedelta | None:
        """Carry out one decision. After `writes` writes the operator is killed, and another operator starts."""
        decision = self.run.decide(self.now)
        self.run.validate()
        for number, _ in enumerate(self._carry_out(decision)):
            if number == writes:
                self.restart()
                return timedelta(0)
        self.unlocked += decision.unlock
        if (
            decision.create
            or decision.end
            or any(self.has_locks or not isinstance(query, Locks) for query in decision.queries)
        ):
            return timedelta(0)
        return decision.look_again_in

    def _carry_out(self, decision: Decision) -> Iterator[None]:
        """Execute the decision in its order; stop before each write."""
        for remember in decision.remember:
            yield
            self.memos[(remember.memo.cache, remember.memo.key)] = remember.node.outputs or Outputs()
        yield
        over = {node.id for node in self.nodes.values() if node.phase.is_fulfilled}
        over |= {""} if self.workflow.finished_at else set()
        self.points += [point for point in decision.metrics if point.node not in over]
        for record in decision.nodes:
            before = self.nodes.get(record.id)
            assert before is None or not before.phase.is_fulfilled, f"{record.name} was final"
            self.nodes[record.id] = record
            self.moves.add((before.phase if before is not None else None, record.phase))
        if decision.workflow is not None:
            self.workflow = decision.workflow
        assert violations(self.workflow, self.nodes.values()) == []
        for order in decision.create:
            yield
            self._create(order)
        active = [pod for pod in self.pods.values() if not pod.is_ended]
        self.most_at_once = max(self.most_at_once, len(active))
        for end in decision.end:
            yield
            self._delete(end.pod)
        for query in decision.queries:
            yield
            match query:
                case ConfigMapValue(name, key):
                    value = self.config_maps.get(name, {}).get(key)
                    self.run.answer(query, Refusal(f"no {name}/{key}") if value is None else value)
                case Recall(cache, key):
                    self.run.answer(query, self.memos.get((cache, key)))
                case Locks():
                    self.locks_asked.append(query)
                    if self.has_locks:
                        self.run.answer(query, None)

    def _create(self, order: CreatePod) -> None:
        name = order.record.pod_name
        assert self.nodes[order.record.id].pod_name == name, "saved before it is created"
        if name in self.pods:
            return
        assert name not in self.ends, f"{name} is created twice"
        self.created.append(order)
        ends = self.table(order)
        if ends.after is not None:
            longest = timedelta(seconds=order.deadline_seconds(self.now) or 0)
            if longest and longest < ends.after:
                ends = Ends(exit_code=137, failure=TOO_LONG, after=longest + STARTS_AFTER)
            self.ends[name] = (self.now + (ends.after or GRACE), ends)
        has_started = ends.after is not None
        self.pods[name] = PodSeen(
            name=name, is_running=has_started, is_ready=has_started, host="node-1" if has_started else ""
        )
        self.run.pod_seen(self.pods[name])

    def _delete(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.is_ended or pod.is_deleted:
            return
        self.pods[name] = replace(pod, is_deleted=True, is_ended=not pod.host)  # it is on no node: it has ended
        if pod.host:
            at, _ = self.ends[name]
            if at > self.now + GRACE:
                self.ends[name] = (self.now + GRACE, Ends(exit_code=143))
        self.run.pod_seen(self.pods[name])

    def end(self, name: str, ends: Ends) -> None:
        """End a pod now; the operator sees it at once."""
        self.ends[name] = (self.now, ends)
        self._pod_ends(name)
        self.run.pod_seen(self.pods[name])

    def _pod_ends(self, name: str) -> None:
        ends = self.ends[name][1]
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
            is_deleted=self.pods[name].is_deleted,
            exit_code=ends.exit_code,
            disrupted=ends.disrupted,
            failure=ends.failure,
            host="node-1",
            finished_at=stamp(self.now),
            report=report,
        )

    def _ends_left(self) -> list[tuple[datetime, str]]:
        """Return (time, name) of the running pods that end by themselves."""
        return [(at, name) for name, (at, _) in self.ends.items() if not self.pods[name].is_ended]

    def _next_end(self) -> tuple[datetime, str] | None:
        """Return (time, name) of the pod that ends first; None if no running pod ends by itself."""
        return min(self._ends_left(), default=None)

    def step(self, *, writes: int | None = None, together: bool = False) -> bool:
        """Let one thing happen; return False if nothing can happen any more.

        The options are those of `decide` and `play`.
        """
        wait = self.decide(writes=writes)
        if wait == timedelta(0):
            return True
        due = self._next_end()
        moments = ([due[0]] if due is not None else []) + ([self.now + wait] if wait is not None else [])
        if not moments or self.run.is_done:
            return False
        self.now = max(self.now, min(moments))
        for at, name in self._ends_left() if together else filter(None, [due]):
            if at <= self.now:
                self.end(name, self.ends[name][1])
        return True

    def play(self, *, most: int = 10_000, together: bool = False) -> Player:
        """Play the run to its end.

        `together`: the operator sees all pods that end at the same time before it decides; else it sees them
        one by one.
        """
        for _ in range(most):
            if not self.step(together=together):
                return self
        raise AssertionError("the run does not end")

    def left_running(self) -> list[str]:
        """Pods that still run and were not deleted."""
        return [pod.name for pod in self.pods.values() if not pod.is_ended and not pod.is_deleted]

    def phases(self) -> dict[str, str]:
        """Return the type and phase of all nodes by name, with WF in place of the workflow's name."""
        name = self.workflow.name
        return {"WF" + node.name[len(name) :]: f"{node.type} {node.phase}" for node in self.nodes.values()}

    def node(self, name: str) -> NodeRecord:
        full = self.workflow.name + name.removeprefix("WF")
        return next(node for node in self.nodes.values() if node.name == full)
