"""One run of a workflow: told what happened, it says what is to be done next.

The graph is written as coroutines that wait for each other (`.coroutines`), so a decision costs as much as what
has changed, whatever the size of the graph. A run that is made anew from its records walks the same way again:
nodes whose records are final are passed at once. Nothing here reads a clock: every call brings the moment.

What Argo does, in its own words: https://argo-workflows.readthedocs.io/en/latest/walk-through/
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from moorage.apimachinery.moments import moment, span_of
from moorage.decide.workflows.collection import with_collection
from moorage.decide.workflows.graph.coroutines import Channel, Future, Scheduler, Slots
from moorage.decide.workflows.graph.events import (
    ConfigMapValue,
    Controls,
    CreatePod,
    Decision,
    EndPod,
    Locks,
    PodSeen,
    Question,
    Recall,
    Refusal,
    Remember,
)
from moorage.decide.workflows.graph.frames import Awaited, Call, Cut, Frame
from moorage.decide.workflows.graph.inputs import Inputs, artifact_of, resolve_inputs
from moorage.decide.workflows.graph.loops import has_loop, item_scope, items_of
from moorage.decide.workflows.graph.measures import resources_below, scope_of, uses_resources, uses_result
from moorage.decide.workflows.graph.naming import item_text, node_id, pod_name
from moorage.decide.workflows.graph.outcomes import Ended, Ready, members_of, members_seen, outcome_of
from moorage.decide.workflows.graph.places import places_held
from moorage.decide.workflows.graph.retries import Again, last_retry, next_attempt
from moorage.decide.workflows.graph.scopes import (
    Seen,
    aggregated,
    all_parameters,
    failures_of,
    globals_of,
    outputs_paths,
)
from moorage.decide.workflows.graph.tasks import (
    Limits,
    Scope,
    ancestors,
    asked_for,
    condition_of,
    continues,
    ends_of,
    in_order,
    is_meant,
    is_true,
    leaves,
    limits_of,
    locks_of,
    output_value,
    positive,
    resolve_step,
    results_used,
    stamp,
    visible_to,
    waiting_for,
    whole_number,
    with_fixed_values,
    without_absent,
    without_artifacts,
    words_of,
)
from moorage.decide.workflows.graph.validity import violations
from moorage.decide.workflows.metrics import points_of
from moorage.decide.workflows.repository import REPOSITORY, with_location
from moorage.decide.workflows.templates import Library, Resolved, TemplateMissing
from moorage.decide.workflows.text.depends import Depends
from moorage.decide.workflows.text.durations import parse_duration
from moorage.decide.workflows.text.errors import TextError
from moorage.decide.workflows.text.expressions import evaluate
from moorage.decide.workflows.text.tags import substitute, substitute_text
from moorage.decide.workflows.text.when import holds
from moorage.model.workflow import (
    RECURSION_MAX,
    Artifact,
    MetricPoint,
    NodePhase,
    NodeRecord,
    NodeType,
    Outputs,
    Resume,
    WorkflowRecord,
    is_strict,
)

LOST_PODS_MAX = (
    3  # pods of one attempt that nodes may take away before it fails; Argo's maxRestarts has this default
)
_TIME_IS_OVER = Resume()  # the duration of a suspended node
METRICS_ERROR_MAX = 500  # characters
CLOCKS_DIFFER = timedelta(seconds=5)  # those of nodes and ours; the times of pods are whole seconds besides
LATE = "Step exceeded its deadline"  # Argo's words, as those for a shutdown
LEFT_OVER = "the workflow ended before this node"
LOST_PODS_ANNOTATION = "moorage.dev/infrastructure-retries"  # on a Workflow: another number; "0": none


class Run:
    """A machine for one workflow. It is told of pods and answers by its methods; `decide` says what is to be done.

    `nodes` are the records that are stored; `pods` those that exist now, which must be all of this workflow.
    """

    def __init__(
        self,
        workflow: WorkflowRecord,
        *,
        nodes: Iterable[NodeRecord] = (),
        pods: Iterable[PodSeen] = (),
        now: datetime,
    ) -> None:
        self.workflow = workflow
        self._spec: Mapping[str, Any] = workflow.document.get("spec") or {}
        self._library = Library.of_stored(workflow.document)
        self._now = now
        self._scheduler = Scheduler()
        self.records: dict[str, NodeRecord] = {node.id: node for node in nodes}
        self._by_pod = {node.pod_name: node for node in self.records.values() if node.pod_name}
        self._globals = globals_of(workflow)
        # what nodes have exported, also those that stand in others that have ended and are not walked again
        self._global_artifacts = {f"workflow.outputs.artifacts.{row.name}": row for row in workflow.artifacts}
        self._parameters = dict(workflow.parameters)
        self._globals |= {f"workflow.outputs.parameters.{name}": value for name, value in self._parameters.items()}
        self._pods: dict[str, PodSeen] = {pod.name: pod for pod in pods}
        self._awaited: dict[str, Awaited] = {}  # by the pod's name
        self._refused: set[str] = set()  # names of pods that the API server does not take for now
        self._cut_pods: dict[str, str] = {}  # pods that are being ended, and the message of their nodes
        self._timers: list[tuple[datetime, int, Future[None]]] = []
        self._timer_number = 0
        self._answers: dict[Question, Future[Any]] = {}
        self._suspended: dict[str, tuple[NodeRecord, bool, Future[Resume]]] = {}  # by node id; the bool: is_exit
        self._resumed: dict[str, list[Resume]] = {}  # by node id: asked for before the node waited
        self._go_on: list[Future[None]] = []
        self._backoffs: list[Future[None]] = []  # waits that a shutdown ends
        self._watched: dict[str, Callable[[NodeRecord], None]] = {}  # by node id
        self._workflow_hooks: dict[str, Future[None]] = {}
        self._controls = Controls()
        self._limits = Limits()
        self._deadline: datetime | None = None
        self._is_late = False
        self._is_exiting = False
        self._pod_slots = Slots(self._scheduler, None)
        self._places = places_held(self.records)  # of nodes that began before this machine was made
        self._dirty: dict[str, NodeRecord] = {}
        self._create: list[CreatePod] = []
        self._end: dict[str, EndPod] = {}
        self._release: list[str] = []
        self._remember: list[Remember] = []
        self._points: list[MetricPoint] = []
        self._daemon_metrics: dict[str, Callable[[NodeRecord], None]] = {}  # by the pod's name
        self._locked: set[str] = set()
        self._unlock: list[str] = []
        self._questions: list[Question] = []
        self._saved_workflow = workflow
        self._pods_done = 0
        self._pods_total = 0
        for node in self.records.values():
            self._count(None, node)
        self._end_what_goes_on()
        self._is_begun = False

    # --- what it is told

    def pod_seen(self, pod: PodSeen) -> None:
        self._refused.discard(pod.name)
        self._pods[pod.name] = pod
        self._look_at(pod.name)

    def pod_gone(self, name: str) -> None:
        """The pod does not exist any more."""
        before = self._pods.pop(name, None)
        waiting = self._awaited.get(name)
        if waiting is None:
            return
        seen = before or PodSeen(name=name)
        ended = PodSeen(
            name=name,
            is_ended=True,
            failure="",
            broken="pod deleted" if not seen.is_ended else seen.broken,
            exit_code=seen.exit_code,
            report=seen.report,
            host=seen.host,
            started_at=seen.started_at,
        )
        self._pods[name] = ended
        self._look_at(name)

    def pod_refused(self, name: str, message: str, *, for_now: bool) -> None:
        """The API server did not take a pod. `for_now`: it may take it later (a quota)."""
        waiting = self._awaited.get(name)
        if waiting is None:
            return
        if for_now:
            self._refused.add(name)
            self._save(msgspec.structs.replace(self.records[waiting.node], message=message))
            return
        del self._awaited[name]
        waiting.future.set(Ended(phase=NodePhase.ERROR, message=message))

    def answer(self, question: Question, value: Any) -> None:
        future = self._answers.pop(question, None)
        if future is not None:
            future.set(value)

    def lock_waits(self, asked: Locks, reason: str) -> None:
        """Why a lock cannot be had by anybody for now; empty: others have it."""
        message = waiting_for(asked.locks, reason)
        record = self.records.get(asked.node)
        if record is None:  # the workflow's own lock comes before its first node, which has the same id
            self.workflow = msgspec.structs.replace(self.workflow, message=message if reason else "")
        elif not record.pod_name:
            self._save(msgspec.structs.replace(record, message=message))

    def metrics_refused(self, problems: Sequence[str]) -> None:
        """Values of metrics were not taken: the run goes on, and says why."""
        if problems:
            self.workflow = msgspec.structs.replace(self.workflow, metrics_error=problems[-1][:METRICS_ERROR_MAX])

    def resume(self, asked: Resume) -> None:
        """Let suspended nodes go on that are meant."""
        for record, _, future in list(self._suspended.values()):
            if is_meant(record, asked.selector):
                future.set(asked)
        for record in self.records.values():  # a run that was made anew has not come to them yet
            waits = record.type is NodeType.SUSPEND and record.phase is NodePhase.RUNNING
            if waits and record.id not in self._suspended and is_meant(record, asked.selector):
                self._resumed.setdefault(record.id, []).append(asked)

    def control(self, controls: Controls) -> None:
        """What the object says now of shutdown and suspension."""
        before, self._controls = self._controls, controls
        if controls.shutdown and controls.shutdown != before.shutdown:
            self._cut()
        if not controls.is_suspended:
            waiting, self._go_on = self._go_on, []
            for future in waiting:
                future.set(None)

    @functools.cached_property
    def document(self) -> Mapping[str, Any]:
        """The workflow with the values of the tags of its spec, but for those in templates."""
        plain = {key: value for key, value in self._spec.items() if key != "templates"}
        try:
            plain = substitute(plain, dict(self._globals))
        except TextError:
            pass  # what cannot be read stays as it is: the pod says so
        return {**self.workflow.document, "spec": {**self._spec, **plain}}

    def waits_for(self, name: str) -> bool:
        """Whether a node waits for the pod of this name."""
        return name in self._awaited

    @property
    def nodes_by_pod(self) -> Mapping[str, NodeRecord]:
        """The nodes that have pods, by the pods' names."""
        return self._by_pod

    def node_of_pod(self, name: str) -> NodeRecord | None:
        """The node whose pod this is; None: it is of no node any more."""
        return self._by_pod.get(name)

    @property
    def is_done(self) -> bool:
        return self.workflow.phase in ("Succeeded", "Failed", "Error")

    def validate(self) -> None:
        """Raises AssertionError where the records contradict each other; for tests, after every case."""
        faults = violations(self.workflow, self.records.values())
        assert not faults, "; ".join(faults)

    def close(self) -> None:
        """Nobody asks this machine any more; what it had begun to say is forgotten."""
        self._scheduler.close()

    def decide(self, now: datetime) -> Decision:
        """What is to be done at this moment. What was said once is not said again."""
        self._now = max(now, self._now)
        if not self._is_begun:
            self._is_begun = True
            self._scheduler.start(self._run())
        while True:
            self._scheduler.run()
            if not self._fire_timers():
                break
        self._note_progress()
        nodes, self._dirty = tuple(self._dirty.values()), {}
        create, self._create = tuple(self._create), []
        end, self._end = tuple(self._end.values()), {}
        release, self._release = tuple(self._release), []
        remember, self._remember = tuple(self._remember), []
        points, self._points = tuple(self._points), []
        unlock, self._unlock = tuple(self._unlock), []
        questions, self._questions = tuple(self._questions), []
        changed = self.workflow != self._saved_workflow
        self._saved_workflow = self.workflow
        return Decision(
            nodes=nodes,
            workflow=self.workflow if changed else None,
            create=tuple(order for order in create if order.record.pod_name in self._awaited),
            end=end,
            release=release,
            remember=remember,
            metrics=points,
            unlock=unlock,
            questions=questions,
            look_again_in=max(self._timers[0][0] - self._now, timedelta(0)) if self._timers else None,
        )

    # --- the whole

    async def _run(self) -> None:
        workflow = self.workflow
        if not workflow.started_at:
            workflow = msgspec.structs.replace(workflow, phase="Running", started_at=stamp(self._now))
            self.workflow = workflow
        try:
            self._limits = limits_of(self._spec, self._globals)
            locks = locks_of(self._spec.get("synchronization"), self._globals)
        except TextError as error:
            await self._finish("Error", f"invalid spec: {error.message}")
            return
        self._pod_slots = Slots(self._scheduler, self._limits.parallelism, held=self._places.get("", 0))
        self._set_deadline()
        self._measure_run(None, since=self.workflow.started_at)
        self._start_workflow_hooks("Running")
        entry: dict[str, Any] = {
            "template": self._spec.get("entrypoint"),
            "arguments": self._spec.get("arguments"),
        }
        try:
            artifacts = self._given_artifacts(self._spec.get("arguments") or {})
            if locks:
                if not workflow.locks:
                    self._check_cut(is_exit=False)
                if refused := await self._lock(workflow.name, locks):
                    await self._finish("Failed", f"the workflow's locks cannot be had: {refused}")
                    return
            root = await self._execute(
                Call(
                    name=workflow.name, display_name=workflow.name, step=entry, artifacts=artifacts,
                    wants_result=False,
                )
            )  # fmt: skip
        except TextError as error:
            phase, message = await self._exit("Error", error.message)
            await self._finish(phase, message)
            return
        except Cut as cut:
            phase, message = await self._exit("Failed", cut.message)
            await self._finish(phase, message)
            return
        is_well = root.phase in (NodePhase.SUCCEEDED, NodePhase.SKIPPED, NodePhase.OMITTED)
        phase, message = ("Succeeded", "") if is_well else (str(root.phase), root.message)
        phase, message = await self._exit(phase, message)
        if locks:
            self._release_locks(workflow.name)
        await self._finish(phase, message)

    async def _exit(self, phase: str, message: str) -> tuple[str, str]:
        """Run the exit handler, and wait for the other hooks; the phase and message after them."""
        self._is_exiting = True
        self._globals["workflow.status"] = phase
        self._globals["workflow.failures"] = failures_of(self.records.values())
        self._globals["workflow.duration"] = f"{self._seconds():.6f}"
        self._start_workflow_hooks(phase)
        hooks = self._spec.get("hooks") or {}
        step: dict[str, Any] | None = None
        if self._spec.get("onExit"):
            step = {"template": self._spec["onExit"], "arguments": self._spec.get("arguments")}
        elif hooks.get("exit"):
            step = dict(hooks["exit"])
            step.setdefault("arguments", self._spec.get("arguments"))
        name = f"{self.workflow.name}.onExit"
        if step is not None and (self._controls.shutdown != "Terminate" or self._has_begun(name)):
            try:
                step = substitute(step, self._globals)
                handler = await self._execute(
                    Call(
                        name=name,
                        display_name=name,
                        step=step,
                        artifacts=self._given_artifacts(step.get("arguments") or {}),
                        is_exit=True,
                    )
                )
                outcome, reason = handler.phase, handler.message
            except TextError as error:
                outcome, reason = NodePhase.ERROR, error.message
            except Cut as cut:
                outcome, reason = NodePhase.FAILED, cut.message
            if phase == "Succeeded" and outcome in (NodePhase.FAILED, NodePhase.ERROR):
                phase, message = str(outcome), reason
        for future in self._workflow_hooks.values():
            await future
        return phase, message

    async def _finish(self, phase: str, message: str) -> None:
        for node in [node for node in self.records.values() if not node.phase.is_fulfilled]:
            # none is known to be left here; if one is, nobody will look at it again
            self._forget_pod(node)
            self._end_node(node, NodePhase.ERROR, LEFT_OVER)
        self.workflow = msgspec.structs.replace(
            self.workflow, phase=phase, message=message, finished_at=stamp(self._now), locks=()
        )
        self._globals["workflow.status"] = phase
        self._measure_run(self.records.get(node_id(self.workflow.name, self.workflow.name)))

    # --- metrics

    def _measure_run(self, root: NodeRecord | None, *, since: str = "") -> None:
        """Note the values of the workflow's own metrics, at its beginning (`since`) and at its end."""
        metrics = self._spec.get("metrics")
        if not metrics:
            return
        scope = {
            "workflow.status": "Running",
            **self._globals,
            **scope_of(root, {}, now=self._now, retries=None),
            "workflow.duration": f"{self._seconds():.6f}",
        }
        if uses_resources(metrics):
            scope |= resources_below(None, self.records.values())
        self._note_points(*points_of(metrics, scope, node="", since=since))

    def _measure(
        self,
        template: Mapping[str, Any],
        record: NodeRecord,
        inputs: Inputs,
        *,
        retries: int | None = None,
        begins: bool = False,
    ) -> None:
        """Note the values that a node's beginning, or its end, gives to the metrics of its template."""
        metrics = template.get("metrics")
        if not metrics or record.phase.is_fulfilled is begins:
            return
        scope = {
            "workflow.status": "Running",
            "workflow.duration": f"{self._seconds():.6f}",
            **self._globals,
            **scope_of(record, inputs.scope, now=self._now, retries=retries),
        }
        if uses_resources(metrics):
            scope |= resources_below(record, self.records.values())
        since = (record.started_at or stamp(self._now)) if begins else ""
        self._note_points(*points_of(metrics, scope, node=record.id, since=since))

    def _note_points(self, points: Sequence[MetricPoint], problems: Sequence[str]) -> None:
        self._points += points
        self.metrics_refused(problems)

    def _seconds(self) -> float:
        started = moment(self.workflow.started_at) or self._now
        return max((self._now - started).total_seconds(), 0.0)

    def _set_deadline(self) -> None:
        if self._limits.runs_for is None:
            return
        started = moment(self.workflow.started_at) or self._now
        self._deadline = started + self._limits.runs_for
        self._is_late = self._deadline <= self._now  # known before anything is looked at
        if not self._is_late:
            self._scheduler.start(self._watch_deadline(self._deadline))

    async def _watch_deadline(self, deadline: datetime) -> None:
        await self._until(deadline)
        if not self._is_exiting and not self.is_done:
            self._is_late = True
            self._cut()

    def _cut(self) -> None:
        """End every pod and every wait for which there is a reason to end now."""
        for name, waiting in list(self._awaited.items()):
            if reason := self._reason_to_end(is_exit=waiting.is_exit):
                self._end_pod(name, reason)
        for _, is_exit, future in list(self._suspended.values()):
            if reason := self._reason_to_end(is_exit=is_exit):
                future.set(Resume(is_failure=True, message=reason))
        goes_on, self._go_on = [*self._go_on, *self._backoffs], []
        self._backoffs = []
        for going in goes_on:
            going.set(None)
        for question in [question for question in self._answers if isinstance(question, Locks)]:
            self._answers.pop(question).set(Refusal("nothing may start any more"))

    def _end_pod(self, name: str, message: str) -> None:
        """Ask for a pod's end; its node fails with this message when it has ended."""
        self._cut_pods.setdefault(name, message)
        self._end[name] = EndPod(name)
        if name in self._pods:
            self._look_at(name)
            return
        # it was decided on and may not exist yet: it is not created any more, or ends when it is seen
        before = len(self._create)
        self._create = [order for order in self._create if order.record.pod_name != name]
        if len(self._create) < before or name in self._refused:
            self._refused.discard(name)
            self._end.pop(name, None)
            self._awaited.pop(name).future.set(Ended(phase=NodePhase.FAILED, message=message))

    def _end_what_goes_on(self) -> None:
        """Ask again for the end of pods whose nodes have ended: who saved that was killed before it could ask."""
        for pod in self._pods.values():
            node = self._by_pod.get(pod.name)
            goes_on = not pod.is_deleted and (not pod.is_ended or pod.is_stuck)
            if goes_on and node is not None and node.phase.is_fulfilled:
                self._end[pod.name] = EndPod(pod.name)

    def _forget_pod(self, node: NodeRecord) -> None:
        """Nobody waits for the node's pod any more: it ends."""
        if node.pod_name:
            self._awaited.pop(node.pod_name, None)
            self._end[node.pod_name] = EndPod(node.pod_name)
            self._release.append(node.pod_name)

    def _reason_to_end(self, *, is_exit: bool) -> str:
        """Why what goes on is to end, and nothing new may start. Empty: it may. `is_exit`: of an exit handler."""
        shutdown = self._controls.shutdown
        if shutdown == "Terminate" or (shutdown and not is_exit):
            return f"workflow shutdown with strategy: {shutdown}"
        return LATE if self._is_late and not is_exit else ""

    def _check_cut(self, *, is_exit: bool) -> None:
        """Raises Cut where nothing new may start. What has begun is followed to its end all the same."""
        if reason := self._reason_to_end(is_exit=is_exit):
            raise Cut(reason)

    def _has_begun(self, name: str) -> bool:
        """Whether there is a record of the node of this name: what led to it is not asked again."""
        return node_id(self.workflow.name, name) in self.records

    async def _while_suspended(self, *, is_exit: bool) -> None:
        while self._controls.is_suspended:
            self._check_cut(is_exit=is_exit)
            future: Future[None] = self._scheduler.future()
            self._go_on.append(future)
            await future

    # --- a node

    async def _execute(self, call: Call) -> NodeRecord:
        """Carry out a template as a node, with its retries; the node's final record. Raises Cut."""
        record = self.records.get(node_id(self.workflow.name, call.name))
        if record is not None and record.phase.is_fulfilled:
            return record
        try:
            resolved = self._library.find(call.step, call.scope)
            if call.depth > RECURSION_MAX:
                raise TextError(
                    f"template {resolved.name} is called {call.depth} levels deep;"
                    f" at most {RECURSION_MAX} are allowed"
                )
            template, inputs = await self._prepare(call, resolved, record)
            memo = self._memo_of(template)
            locks = locks_of(template.get("synchronization"), self._globals)
        except (TextError, TemplateMissing) as error:
            return self._fail(call, error.message)
        if memo is not None and record is None and (remembered := await self._ask(memo)) is not None:
            recalled = self._recalled(call, resolved, inputs, template, remembered)
            self._measure(template, recalled, inputs)
            return recalled
        if record is None:
            self._check_cut(is_exit=call.is_exit)
        if locks:
            kind = NodeType.RETRY if self._strategy_of(template) is not None else self._type_of(template)
            waiting = self._node(call, resolved, inputs, kind, NodePhase.PENDING)
            try:
                if not waiting.locks:
                    self._check_cut(is_exit=call.is_exit)
                    waiting = self._save(msgspec.structs.replace(waiting, message=waiting_for(locks)))
                if refused := await self._lock(waiting.id, locks):
                    return self._end_node(waiting, NodePhase.ERROR, f"its locks cannot be had: {refused}")
                if not waiting.locks:
                    self._check_cut(is_exit=call.is_exit)
            except Cut as cut:
                self._release_locks(waiting.id)
                self._end_node(waiting, NodePhase.FAILED, cut.message)
                raise
        try:
            strategy = self._strategy_of(template)
            if template.get("metrics"):
                kind = NodeType.RETRY if strategy is not None else self._type_of(template)
                beginning = self._node(call, resolved, inputs, kind, NodePhase.PENDING)
                self._measure(template, beginning, inputs, begins=True)
            if strategy is not None:
                final = await self._retried(call, resolved, template, inputs, strategy)
            else:
                final = await self._attempt(call, resolved, template, inputs, last_retry(None) | {"retries": "0"})
                self._measure_end(template, final, inputs)
        finally:
            if locks:
                self._release_locks(node_id(self.workflow.name, call.name))
        if memo is not None and final.phase is NodePhase.SUCCEEDED:
            self._remember.append(Remember(memo, final))
        return final

    def _measure_end(self, template: Mapping[str, Any], record: NodeRecord, inputs: Inputs) -> None:
        """The values of a node that has ended; those of a daemon come with its end."""
        if record.is_daemon and not record.phase.is_fulfilled:
            self._daemon_metrics[record.pod_name] = lambda final: self._measure(template, final, inputs)
        else:
            self._measure(template, record, inputs)

    async def _prepare(
        self, call: Call, resolved: Resolved, record: NodeRecord | None
    ) -> tuple[Mapping[str, Any], Inputs]:
        """The template with its inputs' values, and these. Raises TextError."""
        kept = (record.inputs.get("parameters") or {}) if record is not None else {}

        async def config_map(name: str, key: str) -> str:
            answer = await self._ask(ConfigMapValue(name, key))
            if isinstance(answer, Refusal):
                raise TextError(answer.message)
            return str(answer)

        inputs = await resolve_inputs(
            resolved.template,
            call.step.get("arguments") or {},
            given=call.artifacts,
            absent=call.absent,
            scope=self._globals,
            kept=kept,
            config_map=config_map,
        )
        scope = {**self._globals, **inputs.scope, **outputs_paths(resolved.template), **call.local}
        scope["node.name"] = call.name
        return substitute({**resolved.template, **inputs.document}, scope), inputs

    def _node(
        self,
        call: Call,
        resolved: Resolved | None,
        inputs: Inputs | None,
        kind: NodeType,
        phase: NodePhase,
        message: str = "",
    ) -> NodeRecord:
        """The record of a node as it begins, or as it is stored."""
        identity = node_id(self.workflow.name, call.name)
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
            started_at=stamp(self._now),
            finished_at=stamp(self._now) if phase.is_fulfilled else "",
            message=message,
            inputs=inputs.as_record() if inputs is not None else {},
        )

    def _fail(self, call: Call, message: str) -> NodeRecord:
        """A node that could not begin."""
        stored = self.records.get(node_id(self.workflow.name, call.name))
        if stored is not None:  # it began, and cannot go on
            if not stored.phase.is_fulfilled:
                self._forget_pod(stored)
            return self._end_node(stored, NodePhase.ERROR, message)
        record = self._node(call, None, None, NodeType.SKIPPED, NodePhase.ERROR, message)
        record = msgspec.structs.replace(
            record, phase=NodePhase.ERROR, message=message, finished_at=stamp(self._now)
        )
        return self._save(record)

    def _skip(self, call: Call, phase: NodePhase, message: str) -> NodeRecord:
        stored = self.records.get(node_id(self.workflow.name, call.name))
        if stored is not None and stored.phase.is_fulfilled:
            return stored
        return self._save(self._node(call, None, None, NodeType.SKIPPED, phase, message))

    def _save(self, record: NodeRecord) -> NodeRecord:
        before = self.records.get(record.id)
        if before == record:
            return record
        self._count(before, record)
        self.records[record.id] = record
        if record.pod_name:
            self._by_pod[record.pod_name] = record
        self._dirty[record.id] = record
        if (look := self._watched.get(record.id)) is not None:
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

    def _note_progress(self) -> None:
        workflow = self.workflow
        if (workflow.done, workflow.total) != (self._pods_done, self._pods_total):
            self.workflow = msgspec.structs.replace(workflow, done=self._pods_done, total=self._pods_total)
        artifacts = tuple(self._global_artifacts.values())
        if self.workflow.parameters != self._parameters or self.workflow.artifacts != artifacts:
            self.workflow = msgspec.structs.replace(
                self.workflow, parameters=dict(self._parameters), artifacts=artifacts
            )

    def _export_outputs(self, template: Mapping[str, Any], record: NodeRecord) -> None:
        """Note outputs that have a global name. The workflow's record keeps them from the save of the node on."""
        if record.outputs is None:
            return
        declared = template.get("outputs") or {}
        for parameter in declared.get("parameters") or ():
            name, value = parameter.get("globalName"), record.outputs.parameters.get(parameter.get("name"))
            if name and value is not None:
                self._parameters[name] = value
                self._globals[f"workflow.outputs.parameters.{name}"] = value
        left = {artifact.name: artifact for artifact in record.outputs.artifacts}
        for artifact in declared.get("artifacts") or ():
            name = artifact.get("globalName")
            if name and artifact.get("name") in left:
                exported = msgspec.structs.replace(left[artifact["name"]], name=name)
                self._global_artifacts[f"workflow.outputs.artifacts.{name}"] = exported

    def _strategy_of(self, template: Mapping[str, Any]) -> Mapping[str, Any] | None:
        own: Mapping[str, Any] | None = template.get("retryStrategy")
        if own is not None:
            return own
        whole: Mapping[str, Any] | None = self._spec.get("retryStrategy")
        return whole

    @staticmethod
    def _type_of(template: Mapping[str, Any]) -> NodeType:
        for key, kind in (
            ("steps", NodeType.STEPS),
            ("dag", NodeType.DAG),
            ("suspend", NodeType.SUSPEND),
            ("http", NodeType.HTTP),
        ):
            if template.get(key) is not None:
                return kind
        return NodeType.POD

    async def _retried(
        self,
        call: Call,
        resolved: Resolved,
        template: Mapping[str, Any],
        inputs: Inputs,
        strategy: Mapping[str, Any],
    ) -> NodeRecord:
        node = self._node(call, resolved, inputs, NodeType.RETRY, NodePhase.RUNNING)
        if node.type is NodeType.RETRY:
            node = self._save(msgspec.structs.replace(node, phase=NodePhase.RUNNING, message=""))
        attempts: list[NodeRecord] = []

        def end(phase: NodePhase, message: str, outputs: Outputs | None) -> NodeRecord:
            """The last attempt gives no values of its own: those of the node that they are of count."""
            final = self._end_node(node, phase, message, outputs)
            self._measure(template, final, inputs, retries=len(attempts) - 1)
            return final

        while True:
            number = len(attempts)
            local = last_retry(attempts[-1] if attempts else None) | {"retries": str(number)}
            attempt = dataclasses.replace(
                call,
                name=f"{call.name}({number})",
                display_name=f"{call.display_name}({number})",
                parents=(node.id,),
            )
            record = self.records.get(node_id(self.workflow.name, attempt.name))
            is_new = record is None or not record.phase.is_fulfilled
            if record is None or not record.phase.is_fulfilled:
                failed_hosts = tuple(row.host for row in attempts if row.host)
                excluded = (
                    failed_hosts if (strategy.get("affinity") or {}).get("nodeAntiAffinity") is not None else ()
                )
                try:
                    record = await self._attempt(
                        attempt, resolved, template, inputs, local, excluded=excluded, strategy=strategy,
                        first=attempts[0] if attempts else None,
                    )  # fmt: skip
                except Cut as cut:
                    if not attempts:
                        self._end_node(node, NodePhase.FAILED, cut.message)
                        raise
                    return end(attempts[-1].phase, cut.message, attempts[-1].outputs)
            attempts.append(record)
            if record.phase not in (NodePhase.FAILED, NodePhase.ERROR):
                final = end(record.phase, record.message, record.outputs)
                self._export_outputs(template, final)
                return final
            if self._has_begun(f"{call.name}({len(attempts)})"):
                continue  # whatever the time is now
            try:
                self._check_cut(is_exit=call.is_exit)
                follows = next_attempt(
                    strategy, attempts, now=self._now, may=lambda text: self._may_retry(text, attempts),
                    is_strict=is_strict(self.workflow.document),
                )  # fmt: skip
            except Cut as cut:
                return end(record.phase, cut.message, record.outputs)
            except TextError as error:
                return end(NodePhase.ERROR, error.message, record.outputs)
            if not isinstance(follows, Again):
                if follows.at is not None and follows.at > self._now:
                    await self._back_off(node, follows.at)
                return end(record.phase, follows.message, record.outputs)
            if is_new:
                self._measure(template, record, inputs, retries=number)
            if follows.at > self._now:
                await self._back_off(node, follows.at)

    async def _back_off(self, node: NodeRecord, at: datetime) -> None:
        self._save(msgspec.structs.replace(self.records[node.id], message=f"Backoff until {stamp(at)}"))
        waiting: Future[None] = self._at(at)
        self._backoffs.append(waiting)
        await waiting

    def _may_retry(self, expression: str, attempts: Sequence[NodeRecord]) -> bool:
        scope = self._globals | last_retry(attempts[-1]) | {"retries": str(len(attempts) - 1)}
        answer = evaluate(substitute_text(expression, scope), scope)
        if not isinstance(answer, bool):
            raise TextError(f"retryStrategy.expression must be true or false, and is {answer!r}")
        return answer

    def _end_node(
        self, node: NodeRecord, phase: NodePhase, message: str = "", outputs: Outputs | None = None
    ) -> NodeRecord:
        current = self.records.get(node.id, node)
        if current.phase.is_fulfilled:
            return current
        return self._save(
            msgspec.structs.replace(
                current,
                phase=phase,
                message=message,
                finished_at=stamp(self._now) if phase.is_fulfilled else "",  # a daemon's goes on
                outputs=outputs,
            )
        )

    async def _attempt(
        self,
        call: Call,
        resolved: Resolved,
        template: Mapping[str, Any],
        inputs: Inputs,
        local: Mapping[str, str],
        *,
        excluded: tuple[str, ...] = (),
        strategy: Mapping[str, Any] | None = None,
        first: NodeRecord | None = None,
    ) -> NodeRecord:
        kind = self._type_of(template)
        if kind.has_pod:
            record = await self._pod(
                call, resolved, template, inputs, local, excluded=excluded, strategy=strategy, first=first
            )
        elif kind is NodeType.SUSPEND:
            record = await self._suspend(call, resolved, template, inputs)
        else:
            try:
                template = substitute(template, dict(local))
                at_once = positive(template.get("parallelism"), f"parallelism of template {resolved.name}")
            except TextError as error:
                return self._fail(call, error.message)
            places = self._places.get(node_id(self.workflow.name, call.name), 0)
            slots = Slots(self._scheduler, at_once, held=places)
            record = await self._inner(call, resolved, template, inputs, kind, slots)
        self._export_outputs(template, record)
        return record

    # --- pods

    async def _pod(
        self,
        call: Call,
        resolved: Resolved,
        template: Mapping[str, Any],
        inputs: Inputs,
        local: Mapping[str, str],
        *,
        excluded: tuple[str, ...],
        strategy: Mapping[str, Any] | None,
        first: NodeRecord | None,
    ) -> NodeRecord:
        node = self._node(call, resolved, inputs, self._type_of(template), NodePhase.PENDING)
        if not (has_begun := bool(node.pod_name)):
            await self._while_suspended(is_exit=call.is_exit)
            self._check_cut(is_exit=call.is_exit)
            await self._pod_slots.take()
        try:
            if not has_begun:
                self._check_cut(is_exit=call.is_exit)
            timeout = parse_duration(str(template["timeout"])) if template.get("timeout") else None
            patience = parse_duration(str(template["pendingTimeout"])) if template.get("pendingTimeout") else None
            seconds = whole_number(template.get("activeDeadlineSeconds"), "activeDeadlineSeconds")
            if not node.pod_name:
                node = msgspec.structs.replace(node, started_at=stamp(self._now), message="")
            while True:
                name = pod_name(
                    self.workflow.name,
                    call.name,
                    resolved.name,
                    retries=self.workflow.retries,
                    lost=node.infrastructure_retries,
                )
                node = self._save(msgspec.structs.replace(node, pod_name=name))
                known = {**local, "pod.name": name}
                final = substitute(template, known)
                if (repository := self.workflow.document.get(REPOSITORY)) is not None:
                    whole = {**self._globals, **inputs.scope, **known}
                    final = with_location(final, substitute(repository, whole), self._spec)
                order = CreatePod(
                    record=node,
                    template=final,
                    artifacts=inputs.artifacts,
                    wants_result=call.wants_result or uses_result(final),
                    longest=None if seconds is None else span_of(seconds),
                    ends_by=self._ends_by(strategy, first, node, timeout, is_exit=call.is_exit),
                    excluded_hosts=excluded,
                )
                members = self._members(node, final)
                ids = tuple(member.id for member in members)
                ended = await self._carry_out(order, timeout, patience, ids, is_exit=call.is_exit)
                node = self.records[node.id]
                if isinstance(ended, Ended) and ended.is_stuck:
                    self._end[name] = EndPod(name)
                if isinstance(ended, Ready):  # a daemon
                    if call.frame is not None:
                        call.frame.daemons.append(name)
                    return self._save(
                        msgspec.structs.replace(node, is_daemon=True, phase=NodePhase.RUNNING, host=ended.host)
                    )
                if (
                    ended.is_lost
                    and node.infrastructure_retries < self._lost_pods_max()
                    and name not in self._cut_pods
                ):
                    self._release.append(name)
                    self._check_cut(is_exit=call.is_exit)
                    node = msgspec.structs.replace(
                        node,
                        phase=NodePhase.PENDING,
                        infrastructure_retries=node.infrastructure_retries + 1,
                        message=f"started again: {ended.message}",
                    )
                    continue
                self._release.append(name)
                self._note_members(members, self._pods.get(name), ended)
                return self._save(
                    msgspec.structs.replace(
                        node,
                        phase=ended.phase,
                        message=ended.message,
                        outputs=with_collection(final, self._spec, with_fixed_values(final, ended.outputs)),
                        host=ended.host or node.host,
                        started_at=node.started_at,
                        finished_at=ended.finished_at or stamp(self._now),
                        resources_seconds=dict(ended.resources_seconds),
                    )
                )
        except TextError as error:
            return self._end_pod_node(self._save(node), template, NodePhase.ERROR, error.message)
        except Cut as cut:
            if node.id in self.records:
                return self._end_pod_node(node, template, NodePhase.FAILED, cut.message)
            raise
        finally:
            self._pod_slots.give()

    def _end_pod_node(
        self, node: NodeRecord, template: Mapping[str, Any], phase: NodePhase, message: str
    ) -> NodeRecord:
        """End the node of a pod that is not there, and those of its containers."""
        ids = [node_id(self.workflow.name, f"{node.name}.{name}") for name in members_of(template)]
        members = [self.records[member] for member in ids if member in self.records]
        self._note_members(members, None, Ended(phase=phase, message=message))
        return self._end_node(node, phase, message)

    def _members(self, node: NodeRecord, template: Mapping[str, Any]) -> list[NodeRecord]:
        """The nodes of the containers of a container set, as they begin or are stored; else none."""
        containers = (template.get("containerSet") or {}).get("containers") or ()
        ids = {row["name"]: node_id(self.workflow.name, f"{node.name}.{row['name']}") for row in containers}
        return [
            self._save(
                self.records.get(ids[row["name"]])
                or NodeRecord(
                    id=ids[row["name"]],
                    name=f"{node.name}.{row['name']}",
                    display_name=str(row["name"]),
                    type=NodeType.CONTAINER,
                    phase=NodePhase.PENDING,
                    template=node.template,
                    template_ref=node.template_ref,
                    boundary_id=node.id,
                    parents=tuple(ids[other] for other in row.get("dependencies") or ()) or (node.id,),
                    started_at=stamp(self._now),
                )
            )
            for row in containers
        ]

    def _note_members(self, members: Sequence[NodeRecord], pod: PodSeen | None, ended: Ended | None) -> None:
        """Save what became of the containers of a set."""
        current = [self.records[member.id] for member in members]
        open_nodes = [node for node in current if not node.phase.is_fulfilled]
        for node in members_seen(open_nodes, pod, ended, now=stamp(self._now)):
            self._save(node)

    async def _carry_out(
        self,
        order: CreatePod,
        timeout: timedelta | None,
        patience: timedelta | None,
        members: tuple[str, ...],
        *,
        is_exit: bool,
    ) -> Ended | Ready:
        """`timeout`: of the step as a whole. `patience`: how long it may wait for its pod to run."""
        record, name = order.record, order.record.pod_name
        seen = self._pods.get(name)
        if record.is_daemon:  # it was ready, and what comes after it may have begun
            return Ready(seen.host if seen else record.host, seen.address if seen else "")
        begun = moment(record.started_at) or self._now
        due = begun + timeout if timeout is not None else None
        pends_until = begun + patience if patience is not None and record.phase is NodePhase.PENDING else None
        reason = self._reason_to_end(is_exit=is_exit)
        late = [] if reason or self._deadline is None or is_exit else [self._deadline]
        late += [due] if due is not None else []
        late += [pends_until] if pends_until is not None and not (seen and seen.has_run) else []
        passed = [at for at in late if at <= self._now]
        reason = reason or (LATE if passed else "")
        if seen is None and record.phase is NodePhase.PENDING and reason:
            return Ended(phase=NodePhase.FAILED, message=reason)  # it is not there, and is not created any more
        future: Future[Ended | Ready] = self._scheduler.future()
        self._awaited[name] = Awaited(record.id, future, order.template.get("daemon") is True, is_exit, members)
        if due is not None and due > self._now:
            self._scheduler.start(self._time_out(name, future, due))
        if pends_until is not None and pends_until > self._now:
            self._scheduler.start(self._time_out(name, future, pends_until, while_pending=True))
        if seen is None and record.phase is NodePhase.RUNNING:
            self.pod_gone(name)  # it ran when it was last seen, and is not there
        elif seen is None:
            self._create.append(order)
        elif reason and not ended_by_itself(seen, min(passed, default=None)):
            self._end_pod(name, reason)  # or an operator ended it already, and could not note it
        else:
            self._look_at(name)
        return await future

    async def _time_out(
        self, name: str, future: Future[Ended | Ready], at: datetime, *, while_pending: bool = False
    ) -> None:
        await self._until(at)
        waiting = self._awaited.get(name)
        if future.is_done or waiting is None:
            return
        if while_pending and self.records[waiting.node].phase is not NodePhase.PENDING:
            return
        self._end_pod(name, LATE)

    def _look_at(self, name: str) -> None:
        """A pod has changed: note it, and end its wait where it has ended."""
        waiting, pod = self._awaited.get(name), self._pods.get(name)
        if waiting is None or pod is None:
            return
        record = self.records[waiting.node]
        members = [self.records[member] for member in waiting.members]
        result = outcome_of(
            pod,
            cut=self._cut_pods.get(name, ""),
            is_daemon=waiting.is_daemon,
            is_request=record.type is NodeType.HTTP,
            members=[member.display_name for member in members],
        )
        if result is not None:
            del self._awaited[name]
            waiting.future.set(result)
            return
        self._note_members(members, pod, None)
        message = "" if pod.is_running else pod.waiting or record.message
        phase = NodePhase.RUNNING if pod.is_running else record.phase
        self._save(msgspec.structs.replace(record, phase=phase, message=message, host=pod.host or record.host))

    def _lost_pods_max(self) -> int:
        annotations = (self.workflow.document.get("metadata") or {}).get("annotations") or {}
        text = str(annotations.get(LOST_PODS_ANNOTATION, ""))
        usual = 0 if is_strict(self.workflow.document) else LOST_PODS_MAX
        return int(text) if text.isdigit() else usual

    def _ends_by(
        self,
        strategy: Mapping[str, Any] | None,
        first: NodeRecord | None,
        node: NodeRecord,
        timeout: timedelta | None,
        *,
        is_exit: bool,
    ) -> datetime | None:
        """The first of the deadlines of a step: its own, its workflow's, and that of all its attempts."""
        moments: list[datetime] = []
        if timeout is not None:
            moments.append((moment(node.started_at) or self._now) + timeout)
        if self._deadline is not None and not is_exit:
            moments.append(self._deadline)
        longest = ((strategy or {}).get("backoff") or {}).get("maxDuration")
        if longest and first is not None:
            moments.append((moment(first.started_at) or self._now) + parse_duration(str(longest)))
        return min(moments, default=None)

    # --- suspend

    async def _suspend(
        self, call: Call, resolved: Resolved, template: Mapping[str, Any], inputs: Inputs
    ) -> NodeRecord:
        node = self._node(call, resolved, inputs, NodeType.SUSPEND, NodePhase.RUNNING)
        node = self._save(msgspec.structs.replace(node, phase=NodePhase.RUNNING))
        if reason := self._reason_to_end(is_exit=call.is_exit):
            return self._end_node(node, NodePhase.FAILED, reason)
        try:
            duration = (template.get("suspend") or {}).get("duration")
            wait = parse_duration(str(duration)) if duration not in (None, "") else None
        except TextError as error:
            return self._end_node(node, NodePhase.ERROR, error.message)
        declared = [
            parameter
            for parameter in (template.get("outputs") or {}).get("parameters") or ()
            if (parameter.get("valueFrom") or {}).get("supplied") is not None
        ]
        given = dict(node.outputs.parameters) if node.outputs is not None else {}
        if wait is not None:
            self._scheduler.start(self._resume_later(node.id, (moment(node.started_at) or self._now) + wait))
        while True:
            future: Future[Resume] = self._scheduler.future()
            self._suspended[node.id] = (node, call.is_exit, future)
            if self._resumed.get(node.id):
                future.set(self._resumed[node.id].pop(0))
            asked = await future
            is_over = asked is _TIME_IS_OVER
            del self._suspended[node.id]
            given |= {name: value for name, value in asked.parameters.items()}
            if asked.is_failure:
                return self._end_node(node, NodePhase.FAILED, asked.message or "stopped")
            for parameter in declared:
                default = parameter["valueFrom"].get("default")
                if default is not None:
                    given.setdefault(str(parameter["name"]), str(default))
            missing = [str(parameter["name"]) for parameter in declared if str(parameter["name"]) not in given]
            if missing and is_over:
                message = f"output parameters were not given within {duration}, and have no default: "
                return self._end_node(self.records[node.id], NodePhase.ERROR, message + ", ".join(missing))
            names = {str(parameter["name"]) for parameter in declared}
            values = {name: value for name, value in given.items() if name in names}
            outputs = Outputs(parameters=values) if values else None
            if missing:
                message = f"waits for output parameters: {', '.join(missing)}"
                node = self._save(msgspec.structs.replace(node, message=message, outputs=outputs))
                continue
            return self._end_node(self.records[node.id], NodePhase.SUCCEEDED, asked.message, outputs)

    async def _resume_later(self, identity: str, at: datetime) -> None:
        await self._until(at)
        if identity in self._suspended:
            self._suspended[identity][2].set(_TIME_IS_OVER)

    # --- steps and DAGs

    async def _inner(
        self,
        call: Call,
        resolved: Resolved,
        template: Mapping[str, Any],
        inputs: Inputs,
        kind: NodeType,
        slots: Slots,
    ) -> NodeRecord:
        node = self._node(call, resolved, inputs, kind, NodePhase.RUNNING)
        node = self._save(msgspec.structs.replace(node, phase=NodePhase.RUNNING, message=""))
        frame = Frame(
            record=node,
            template=template,
            scope=resolved.scope,
            depth=call.depth,
            prefix="steps" if kind is NodeType.STEPS else "tasks",
            inputs=inputs,
            slots=slots,
            is_exit=call.is_exit,
            used=results_used(template),
        )
        try:
            phase, message = await (self._steps(frame) if kind is NodeType.STEPS else self._dag(frame))
            outputs = self._outputs_of(frame) if phase is NodePhase.SUCCEEDED else None
        except TextError as error:
            phase, message, outputs = NodePhase.ERROR, error.message, None
        except Cut as cut:
            phase, message, outputs = NodePhase.FAILED, cut.message, None
        for name in frame.daemons:
            self._end_daemon(name)
        return self._end_node(node, phase, message, outputs)

    def _end_daemon(self, name: str) -> None:
        self._end[name] = EndPod(name)
        self._release.append(name)
        record = self._by_pod.get(name)
        if record is None or not record.is_daemon:
            return
        final = self._end_node(record, NodePhase.SUCCEEDED, record.message, record.outputs)
        for parent in final.parents:
            around = self.records.get(parent)
            if around is not None and around.type is NodeType.RETRY and final.name.startswith(f"{around.name}("):
                self._end_node(around, NodePhase.SUCCEEDED, around.message, around.outputs)
        if (measure := self._daemon_metrics.pop(name, None)) is not None:
            measure(final)

    async def _steps(self, frame: Frame) -> tuple[NodePhase, str]:
        before: tuple[str, ...] = (frame.record.id,)
        for number, group in enumerate(frame.template.get("steps") or ()):
            name = f"{frame.record.name}[{number}]"
            call = Call(
                name=name, display_name=f"[{number}]", step={}, artifacts={}, frame=frame, scope=frame.scope,
                parents=before,
            )  # fmt: skip
            node = self._save(self._node(call, None, None, NodeType.STEP_GROUP, NodePhase.RUNNING))
            phase, message, before = await self._group(frame, node, group)
            if not node.phase.is_fulfilled:
                self._end_node(node, phase, message)
            if phase in (NodePhase.FAILED, NodePhase.ERROR):
                return NodePhase.FAILED, message
            before = before or (node.id,)
        return NodePhase.SUCCEEDED, ""

    async def _group(
        self, frame: Frame, node: NodeRecord, group: Sequence[Mapping[str, Any]]
    ) -> tuple[NodePhase, str, tuple[str, ...]]:
        """One group of steps: its phase, why, and the nodes that come last in it."""
        try:
            scope = self._scope(frame, frame.seen)
            starts = [self._ways(frame, step, scope, node.name + ".", (node.id,)) for step in group]
        except TextError as error:
            return NodePhase.ERROR, error.message, ()
        works = [self._scheduler.start(start()) for start in starts]
        results = [await work for work in works]
        failed: tuple[NodePhase, str] | None = None
        for step, result in zip(group, results, strict=True):
            if isinstance(result, Cut):
                failed = failed or (NodePhase.FAILED, result.message)
                continue
            if isinstance(result, TextError):
                return NodePhase.ERROR, result.message, ()
            if result.is_loop:  # others see the group in the place of its loops
                result.values |= {"id": node.id, "status": str(NodePhase.SUCCEEDED)}
            frame.seen[str(step.get("name"))] = result
            for record in result.children or (result.record,):
                if record.phase is NodePhase.ERROR and record.type in (NodeType.SKIPPED, NodeType.SUSPEND):
                    # it could not be carried out: `continueOn` says nothing of that
                    return NodePhase.ERROR, f"child '{record.id}' could not be carried out: {record.message}", ()
                if record.phase in (NodePhase.FAILED, NodePhase.ERROR) and not continues(step, record.phase):
                    failed = failed or (NodePhase.FAILED, f"child '{record.id}' failed")
        last = tuple(record.id for result in results if isinstance(result, Seen) for record in ends_of(result))
        if failed is not None:
            return failed[0], failed[1], last
        return NodePhase.SUCCEEDED, "", last

    async def _dag(self, frame: Frame) -> tuple[NodePhase, str]:
        dag = frame.template.get("dag") or {}
        tasks = {str(task.get("name")): task for task in dag.get("tasks") or ()}
        conditions = {name: condition_of(task) for name, task in tasks.items()}
        for name, condition in conditions.items():
            unknown = [other for other in condition.tasks if other not in tasks]
            if unknown:
                raise TextError(f"task {name} depends on {', '.join(unknown)}, and the DAG has no such task")
        targets = str(dag.get("target") or "").split() or leaves(conditions)
        if missing := [name for name in targets if name not in tasks]:
            raise TextError(f"dag.target names {', '.join(missing)}, and the DAG has no such task")
        needed = ancestors(conditions, targets)
        open_parents = {name: len(set(conditions[name].tasks)) for name in tasks if name in needed}
        dependents: dict[str, list[str]] = {}
        for name in open_parents:
            for parent in set(conditions[name].tasks):
                dependents.setdefault(parent, []).append(name)
        channel: Channel[tuple[str, Seen | Cut]] = Channel(self._scheduler)
        pending, cut = len(open_parents), ""

        def start(name: str) -> None:
            self._scheduler.start(self._task(frame, tasks[name], conditions, channel))

        for name in (name for name in tasks if name in open_parents and not open_parents[name]):
            start(name)
        words: dict[str, frozenset[str]] = {}
        while pending:
            name, result = await channel.take()
            pending -= 1
            if isinstance(result, Seen):
                frame.seen[name] = result
                words[name] = words_of(tasks[name], result)
            else:
                cut = cut or result.message
                words[name] = frozenset()
            for dependent in dependents.get(name, ()):
                open_parents[dependent] -= 1
                if open_parents[dependent]:
                    continue
                if any(parent not in frame.seen for parent in conditions[dependent].tasks):
                    channel.put((dependent, Cut(cut)))  # a parent never started
                elif conditions[dependent].holds(words):
                    start(dependent)
                else:
                    call = self._child_call(
                        frame, tasks[dependent], f"{frame.record.name}.{dependent}", dependent, ()
                    )
                    call = dataclasses.replace(call, parents=self._parents(frame, conditions[dependent]))
                    record = self._skip(call, NodePhase.OMITTED, "omitted: depends condition not met")
                    channel.put((dependent, self._seen(frame, tasks[dependent], record)))
        if cut:
            return NodePhase.FAILED, cut
        return self._dag_phase(frame, tasks, conditions, targets)

    def _dag_phase(
        self,
        frame: Frame,
        tasks: Mapping[str, Mapping[str, Any]],
        conditions: Mapping[str, Depends],
        targets: Sequence[str],
    ) -> tuple[NodePhase, str]:
        """Of each target its own phase, or that of the branch where it was left out; a failure before success."""
        if frame.is_failing:
            return NodePhase.FAILED, "template has failed or errored children and failFast enabled"
        branch: dict[str, NodePhase] = {}
        for name in in_order(conditions, frame.seen):
            own = frame.seen[name].record.phase
            if own in (NodePhase.OMITTED, NodePhase.SKIPPED):
                parents = [branch[parent] for parent in conditions[name].tasks if parent in branch]
                own = next((phase for phase in parents if phase in (NodePhase.FAILED, NodePhase.ERROR)), own)
            branch[name] = own
        for name in targets:
            phase = branch.get(name, NodePhase.SUCCEEDED)
            if phase in (NodePhase.FAILED, NodePhase.ERROR) and not continues(tasks[name], phase):
                return phase, ""
        return NodePhase.SUCCEEDED, ""

    async def _task(
        self,
        frame: Frame,
        task: Mapping[str, Any],
        conditions: Mapping[str, Depends],
        channel: Channel[tuple[str, Seen | Cut]],
    ) -> None:
        name = str(task.get("name"))
        parents = self._parents(frame, conditions[name])
        prefix = f"{frame.record.name}."
        try:
            visible = visible_to(frame, task, conditions)
            work = self._ways(frame, task, self._scope(frame, visible), prefix, parents)
        except TextError as error:
            call = self._child_call(frame, task, prefix + name, name, parents)
            channel.put((name, self._seen(frame, task, self._fail(call, error.message))))
            return
        channel.put((name, await work()))

    def _parents(self, frame: Frame, condition: Depends) -> tuple[str, ...]:
        before = [frame.seen[name] for name in condition.tasks if name in frame.seen]
        ends = [record.id for seen in before for record in ends_of(seen)]
        return tuple(dict.fromkeys(ends)) or (frame.record.id,)

    def _scope(self, frame: Frame, visible: Mapping[str, Seen]) -> Scope:
        values = {**self._globals, **frame.inputs.scope}
        artifacts = dict(self._global_artifacts) | frame.inputs.artifact_scope
        absent: set[str] = set()
        missing = set(frame.inputs.missing)
        for name, seen in visible.items():
            prefix = f"{frame.prefix}.{name}"
            seen.add_to(values, prefix)
            for key, artifact in seen.artifacts.items():
                artifacts[f"{prefix}.{key}"] = artifact
            absent |= {f"{prefix}.{key}" for key in seen.absent}
            missing |= {f"{prefix}.{key}" for key in seen.missing_artifacts}
        return Scope(values, artifacts, frozenset(absent), frozenset(missing))

    def _ways(
        self,
        frame: Frame,
        step: Mapping[str, Any],
        scope: Scope,
        prefix: str,
        parents: tuple[str, ...],
    ) -> Callable[[], Any]:
        """How a step or task is carried out, once its tags are resolved. Raises TextError."""
        name = str(step.get("name"))
        call = self._child_call(frame, step, prefix + name, name, parents)
        stored = self.records.get(node_id(self.workflow.name, call.name))
        if stored is not None and stored.type is NodeType.SKIPPED and stored.phase.is_fulfilled:
            return lambda: self._known(frame, step, stored)
        strict = (f"{frame.prefix}.",)
        when = step.get("when")
        if when and not (
            "{{item" in str(when) or "{{ item" in str(when) or re.search(r"{{=.*\bitem\b", str(when))
        ):
            if stored is None:  # else it was true when the step began
                text = substitute_text(str(when), scope.with_absent, strict=strict)
                try:
                    is_due = holds(text)
                except TextError as error:
                    record = self._fail(call, error.message)
                    return lambda: self._known(frame, step, record)
                if not is_due:
                    record = self._skip(call, NodePhase.SKIPPED, f"when '{text}' evaluated false")
                    return lambda: self._known(frame, step, record)
            step = {key: value for key, value in step.items() if key != "when"}
        step, absent = without_absent(step, scope)
        if not has_loop(step):
            artifacts = self._given_artifacts(step.get("arguments") or {}, scope)
            resolved = resolve_step(step, scope.with_absent, strict)
            call = dataclasses.replace(call, step=resolved, artifacts=artifacts, absent=absent)
            return lambda: self._child(frame, resolved, call)
        loop = {key: step[key] for key in ("withItems", "withParam", "withSequence") if step.get(key) is not None}
        items = items_of(substitute(loop, scope.with_absent, allow_unresolved=False))
        if not items:
            record = self._skip(call, NodePhase.SKIPPED, "Skipped, empty params")
            return lambda: self._known(frame, step, record)
        body = {key: value for key, value in step.items() if key not in loop}
        return lambda: self._loop(frame, body, items, scope, call, absent)

    async def _known(self, frame: Frame, step: Mapping[str, Any], record: NodeRecord) -> Seen:
        return self._seen(frame, step, record)

    def _seen(self, frame: Frame, step: Mapping[str, Any], record: NodeRecord) -> Seen:
        try:
            template = self._library.find(step, frame.scope).template
        except (TextError, TemplateMissing):
            template = None
        pod = self._pods.get(record.pod_name) if record.is_daemon else None
        return Seen(
            record,
            template=template,
            attempt=self._last_attempt(record) if record.type is NodeType.RETRY else None,
            address=pod.address if pod is not None else "",
        )

    def _last_attempt(self, record: NodeRecord) -> NodeRecord | None:
        """The last attempt of a step that is tried again."""
        last, number = None, 0
        while (attempt := self.records.get(node_id(self.workflow.name, f"{record.name}({number})"))) is not None:
            last, number = attempt, number + 1
        return last

    def _child_call(
        self, frame: Frame, step: Mapping[str, Any], name: str, display: str, parents: tuple[str, ...]
    ) -> Call:
        return Call(
            name=name,
            display_name=display,
            step=step,
            artifacts={},
            frame=frame,
            scope=frame.scope,
            depth=frame.depth + 1,
            parents=parents,
            wants_result=frame.used is None or str(step.get("name")) in frame.used,
            is_exit=frame.is_exit,
            local={f"{frame.prefix}.name": str(step.get("name"))},
        )

    async def _loop(
        self,
        frame: Frame,
        step: Mapping[str, Any],
        items: Sequence[Any],
        scope: Scope,
        call: Call,
        absent: frozenset[str],
    ) -> Seen | TextError | Cut:
        """Every item of a loop; in a DAG under a node of its own, which ends in Error where the loop cannot go on.

        What is returned is there when every item has ended.
        """
        parents = call.parents
        if frame.prefix == "tasks":
            parents = (node_id(self.workflow.name, call.name),)
        ways = []
        try:
            for number, item in enumerate(items):
                child = dataclasses.replace(
                    call,
                    name=f"{call.name}({number}:{item_text(item)})",
                    display_name=f"{call.display_name}({number}:{item_text(item)})",
                    parents=parents,
                    absent=absent,
                )
                ways.append(self._item_way(frame, step, item, scope, child))
        except TextError as error:  # the loop has no items then
            return error if frame.prefix != "tasks" else self._seen(frame, step, self._fail(call, error.message))
        group: NodeRecord | None = None
        if frame.prefix == "tasks":
            group = self._save(
                msgspec.structs.replace(
                    self._node(call, None, None, NodeType.TASK_GROUP, NodePhase.RUNNING),
                    template=str(step.get("template") or ""),
                )
            )
        works: list[Future[Seen | TextError | Cut]] = [self._scheduler.start(way()) for way in ways]
        results = [await work for work in works]
        children = [result.record for result in results if isinstance(result, Seen)]
        fault = next((result for result in results if not isinstance(result, Seen)), None)
        outputs = Outputs()
        try:
            if fault is None:
                outputs = aggregated(children)
        except TextError as error:
            fault = error
        if isinstance(fault, Cut):
            if group is not None:
                self._end_node(group, NodePhase.FAILED, fault.message)
            return fault
        if fault is not None:
            if group is None:
                return fault
            return Seen(self._end_node(group, NodePhase.ERROR, fault.message), children=children, is_loop=True)
        phase = NodePhase.SUCCEEDED
        for record in children:
            if record.phase in (NodePhase.FAILED, NodePhase.ERROR):
                phase = record.phase
        if group is not None:
            summary = self._end_node(group, phase)
        else:
            summary = msgspec.structs.replace(self._node(call, None, None, NodeType.TASK_GROUP, phase), id="")
        seen = Seen(msgspec.structs.replace(summary, outputs=outputs), children=children, is_loop=True)
        seen.values["outputs.parameters"] = all_parameters(children)
        return seen

    def _item_way(
        self, frame: Frame, step: Mapping[str, Any], item: Any, scope: Scope, call: Call
    ) -> Callable[[], Any]:
        """How one item of a loop is carried out, once its tags are resolved. Raises TextError."""
        strict = (f"{frame.prefix}.", "item")
        own = dataclasses.replace(scope, values={**scope.values, **item_scope(item)})
        values = own.with_absent
        stored = self.records.get(node_id(self.workflow.name, call.name))
        if stored is not None and stored.type is NodeType.SKIPPED and stored.phase.is_fulfilled:
            return lambda: self._known(frame, step, stored)
        if (when := step.get("when")) and stored is None:  # else it was true when the item began
            text = substitute_text(str(when), values, strict=strict)
            try:
                is_due = holds(text)
            except TextError as error:
                message = error.message
                return lambda: self._not_done(frame, step, call, NodePhase.ERROR, message)
            if not is_due:
                message = f"when '{text}' evaluated false"
                return lambda: self._not_done(frame, step, call, NodePhase.SKIPPED, message)
        body = {key: value for key, value in step.items() if key != "when"}
        artifacts = self._given_artifacts(body.get("arguments") or {}, own)
        resolved = resolve_step(body, values, strict)
        return lambda: self._child(frame, resolved, dataclasses.replace(call, step=resolved, artifacts=artifacts))

    async def _not_done(
        self, frame: Frame, step: Mapping[str, Any], call: Call, phase: NodePhase, message: str
    ) -> Seen:
        """An item that is left out, or whose condition cannot be read."""
        is_skipped = phase is NodePhase.SKIPPED
        record = self._skip(call, phase, message) if is_skipped else self._fail(call, message)
        return self._seen(frame, step, record)

    async def _child(self, frame: Frame, step: Mapping[str, Any], call: Call) -> Seen | TextError | Cut:
        """One child with its hooks, when its template's parallelism lets it."""
        is_new = not self._has_begun(call.name)
        is_known = not is_new and self.records[node_id(self.workflow.name, call.name)].phase.is_fulfilled
        if is_new:
            await frame.slots.take()
        try:
            if is_new:
                if frame.is_failing:
                    return Cut("template has failed or errored children and failFast enabled")
                await self._while_suspended(is_exit=call.is_exit)
                self._check_cut(is_exit=call.is_exit)
            hooks = self._watch_hooks(frame, step, call)
            try:
                record = await self._execute(call)
            except (Cut, TextError):
                for future in hooks:
                    await future
                raise
            for future in hooks:
                await future
            if frame.template.get("failFast") is True and record.phase in (NodePhase.FAILED, NodePhase.ERROR):
                frame.is_failing = True
            await self._exit_hook(frame, step, call, record)
            return self._seen(frame, step, record)
        except Cut as cut:
            return cut
        finally:
            if not is_known:
                frame.slots.give()

    # --- hooks

    async def _exit_hook(self, frame: Frame, step: Mapping[str, Any], call: Call, record: NodeRecord) -> None:
        """`hooks.exit` (or the older `onExit`) of a step that has ended; its own failure changes nothing."""
        hook = (step.get("hooks") or {}).get("exit")
        if hook is None and step.get("onExit"):
            hook = {"template": step["onExit"]}
        name = f"{call.name}.onExit"
        has_begun = self._has_begun(name)
        is_allowed = record.phase.is_completed and self._controls.shutdown != "Terminate"
        if hook is None or not (is_allowed or has_begun):
            return
        seen = self._seen(frame, step, record)
        try:
            scope = self._scope(frame, frame.seen | {str(step.get("name")): seen})
            condition = hook.get("expression")
            if condition and not has_begun and not is_true(str(condition), scope.with_absent):
                return
            display = f"{call.display_name}.onExit"
            await self._hook_node(frame, hook, scope, name, display, record, is_exit=True)
        except (TextError, Cut):
            return

    async def _hook_node(
        self,
        frame: Frame | None,
        hook: Mapping[str, Any],
        scope: Scope,
        name: str,
        display: str,
        record: NodeRecord | None,
        *,
        is_exit: bool,
    ) -> NodeRecord:
        hook, absent = without_absent(hook, scope)
        artifacts = self._given_artifacts(hook.get("arguments") or {}, scope)
        resolved = substitute(without_artifacts(hook), scope.with_absent)
        return await self._execute(
            Call(
                name=name,
                display_name=display,
                step=resolved,
                artifacts=artifacts,
                absent=absent,
                frame=frame,
                scope=frame.scope if frame is not None else "",
                depth=frame.depth + 1 if frame is not None else 1,
                parents=(record.id,) if record is not None else (),
                is_exit=is_exit,
            )
        )

    def _watch_hooks(self, frame: Frame, step: Mapping[str, Any], call: Call) -> list[Future[None]]:
        """Start the hooks of a step that have a condition, when it comes true.

        What is returned grows: the ends of those that have started.
        """
        identity = node_id(self.workflow.name, call.name)
        started: dict[str, Future[None]] = {}
        futures: list[Future[None]] = []
        hooks = {name: hook for name, hook in (step.get("hooks") or {}).items() if name != "exit"}

        def look(record: NodeRecord) -> None:
            seen = self._seen(frame, step, record)
            scope = self._scope(frame, frame.seen | {str(step.get("name")): seen})
            for name, hook in hooks.items():
                full = f"{call.name}.hooks.{name}"
                if name not in started and (self._has_begun(full) or _is_due(hook, scope.with_absent)):
                    display = f"{call.display_name}.hooks.{name}"
                    work = functools.partial(
                        self._hook_node, frame, hook, scope, full, display, record, is_exit=call.is_exit
                    )
                    started[name] = self._scheduler.start(self._quiet(work))
                    futures.append(started[name])

        if hooks:
            self._watched[identity] = look
            if (stored := self.records.get(identity)) is not None:
                look(stored)
        return futures

    async def _quiet(self, work: Callable[[], Awaitable[NodeRecord]]) -> None:
        """A hook's failure ends nothing."""
        try:
            await work()
        except (TextError, Cut):
            return

    def _start_workflow_hooks(self, phase: str) -> None:
        """Hooks of the workflow whose expression holds at this phase; each starts once."""
        scope = self._globals | {"workflow.status": phase}
        for name, hook in (self._spec.get("hooks") or {}).items():
            if name == "exit" or name in self._workflow_hooks:
                continue
            full = f"{self.workflow.name}.hooks.{name}"
            if _is_due(hook, scope) or (self._is_exiting and self._has_begun(full)):
                values = Scope(scope, {}, frozenset())
                work = functools.partial(
                    self._hook_node, None, hook, values, full, full, None, is_exit=self._is_exiting
                )
                self._workflow_hooks[name] = self._scheduler.start(self._quiet(work))

    # --- outputs of steps and DAGs

    def _outputs_of(self, frame: Frame) -> Outputs | None:
        """Raises TextError."""
        declared = frame.template.get("outputs") or {}
        if not declared.get("parameters") and not declared.get("artifacts"):
            return None
        scope = self._scope(frame, frame.seen)
        parameters: dict[str, str] = {}
        for parameter in declared.get("parameters") or ():
            source = parameter.get("valueFrom") or {}
            name = str(parameter.get("name"))
            value = output_value(parameter, source, scope)
            if value is None:
                value = source.get("default")
            if value is None:
                raise TextError(f"output parameter {name} has no value: {asked_for(source)} was not made")
            parameters[name] = str(value)
        artifacts: list[Artifact] = []
        for artifact, left in _found(declared, scope):
            if left is not None:
                artifacts.append(left)
            elif not artifact.get("optional"):
                raise TextError(f"output artifact {artifact.get('name')} has no source")
        return Outputs(parameters=parameters, artifacts=tuple(artifacts))

    def _given_artifacts(self, arguments: Mapping[str, Any], scope: Scope | None = None) -> dict[str, Artifact]:
        """Artifacts of arguments: found by `from`, or where they say. Raises TextError."""
        known = scope or Scope(self._globals, self._global_artifacts, frozenset())
        return {value.name: value for _, value in _found(arguments, known) if value is not None}

    # --- memos, locks, questions, time

    def _memo_of(self, template: Mapping[str, Any]) -> Recall | None:
        memoize = template.get("memoize")
        if not memoize:
            return None
        cache = str(((memoize.get("cache") or {}).get("configMap") or {}).get("name") or "")
        if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_./:=]*", str(memoize.get("key") or "")):
            raise TextError(
                f"memoize.key must have letters, digits and -_./:= only, and is {str(memoize.get('key'))[:100]!r}"
            )
        age = parse_duration(str(memoize["maxAge"])) if memoize.get("maxAge") else None
        return Recall(cache, str(memoize["key"]), None if age is None else int(age.total_seconds()))

    def _recalled(
        self, call: Call, resolved: Resolved, inputs: Inputs, template: Mapping[str, Any], outputs: Outputs
    ) -> NodeRecord:
        node = self._node(call, resolved, inputs, self._type_of(template), NodePhase.SUCCEEDED)
        record = self._save(
            msgspec.structs.replace(
                node, phase=NodePhase.SUCCEEDED, outputs=outputs, is_memoized=True, finished_at=stamp(self._now)
            )
        )
        self._export_outputs(template, record)
        return record

    async def _ask(self, question: Question) -> Any:
        future = self._answers.get(question)
        if future is None:
            future = self._answers[question] = self._scheduler.future()
            self._questions.append(question)
        return await future

    async def _lock(self, identity: str, locks: tuple[str, ...]) -> str:
        """Wait for all of these locks; why they cannot be had, where the workflow is not to wait for that.

        Raises Cut where the wait ends without them.
        """
        asked = Locks(
            node=identity, priority=self._limits.priority, created_at=self.workflow.created_at, locks=locks
        )
        answer = await self._ask(asked)
        self._locked.add(identity)
        if isinstance(answer, Refusal):
            self._release_locks(identity)  # it waits no longer
            self._check_cut(is_exit=False)
            return answer.message
        if identity == self.workflow.name:
            self.workflow = msgspec.structs.replace(self.workflow, locks=locks, message="")
            if (record := self.records.get(identity)) is not None and not record.pod_name:
                self._save(msgspec.structs.replace(record, message=""))
        elif identity in self.records:
            record = self.records[identity]
            self._save(msgspec.structs.replace(record, locks=locks, message=""))
        return ""

    def _release_locks(self, identity: str) -> None:
        if identity in self._locked:
            self._locked.discard(identity)
            self._unlock.append(identity)

    async def _until(self, at: datetime) -> None:
        if at > self._now:
            await self._at(at)

    def _at(self, at: datetime) -> Future[None]:
        """What is done at this moment."""
        future: Future[None] = self._scheduler.future()
        self._timer_number += 1
        heapq.heappush(self._timers, (at, self._timer_number, future))
        return future

    def _fire_timers(self) -> bool:
        fired = False
        while self._timers and self._timers[0][0] <= self._now:
            heapq.heappop(self._timers)[2].set(None)
            fired = True
        return fired


def _is_due(hook: Mapping[str, Any], scope: Mapping[str, str | None]) -> bool:
    """Whether a hook's condition is true; one that cannot be read is not."""
    try:
        return is_true(str(hook.get("expression") or "false"), scope)
    except TextError:
        return False


def ended_by_itself(pod: PodSeen, late_at: datetime | None) -> bool:
    """Whether a pod that has to end by now ended for another reason, which then counts, as with Argo.

    One that was deleted counts where it had ended before this moment; None: the moment is not known. One that
    failed shortly before it may have ended because of it.
    """
    finished = moment(pod.finished_at) if pod.finished_at else None
    slack = timedelta() if pod.exit_code == 0 else CLOCKS_DIFFER
    was_in_time = late_at is not None and finished is not None and finished + slack <= late_at
    return pod.is_ended and (was_in_time or not pod.is_deleted)


def _found(declared: Mapping[str, Any], scope: Scope) -> Iterator[tuple[Mapping[str, Any], Artifact | None]]:
    """Each declared artifact with what its source gives, under its name; None: nothing. Raises TextError.

    An optional one whose source cannot be read is left out.
    """
    for artifact in declared.get("artifacts") or ():
        try:
            value = artifact_of(artifact, scope.with_absent, scope.artifacts, scope.missing)
        except TextError:
            if artifact.get("optional"):
                continue
            raise
        name = str(artifact.get("name"))
        yield artifact, None if value is None else msgspec.structs.replace(value, name=name)
