"""One run of a workflow: it takes events, and returns the actions to carry out next.

The graph is written as coroutines that wait for each other (`.coroutines`), so the cost of a decision
depends on the changes, not on the size of the graph. A run that is loaded again from its records takes
the same path again: nodes with final records are passed at once. Nothing here reads a clock: every call
has the time as an argument.

Argo's own description: https://argo-workflows.readthedocs.io/en/latest/walk-through/
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from moorage.decide.evaluation import TextError, shared
from moorage_workflows.decide.workflows.graph.events import Controls, Decision, Locks, PodSeen, Query
from moorage_workflows.decide.workflows.graph.measures import note_problems
from moorage_workflows.decide.workflows.graph.nodes import run_node
from moorage_workflows.decide.workflows.graph.podwaits import end_what_goes_on, pod_gone, pod_refused, pod_seen
from moorage_workflows.decide.workflows.graph.queries import note_lock_wait, set_answer
from moorage_workflows.decide.workflows.graph.state import Draft, State
from moorage_workflows.decide.workflows.graph.suspensions import resume
from moorage_workflows.decide.workflows.graph.validity import violations
from moorage_workflows.decide.workflows.graph.workflow import cut_short, run_workflow
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.workflow import NodeRecord, Resume, WorkflowRecord


class Run:
    """A machine for one workflow. It takes states of pods and answers by its methods; `decide` returns the
    actions.

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
        self._state = State(workflow, nodes=nodes, pods=pods, now=now, execute=run_node)
        self._saved_workflow = workflow
        self._is_begun = False
        end_what_goes_on(self._state)

    # --- events

    def pod_seen(self, pod: PodSeen) -> None:
        """Handle the current state of an existing pod."""
        pod_seen(self._state, pod)

    def pod_gone(self, name: str) -> None:
        """Handle a pod that does not exist any more."""
        pod_gone(self._state, name)

    def pod_refused(self, name: str, message: str, *, for_now: bool) -> None:
        """Handle a pod that the API server refused. `for_now`: it may accept the pod later (a quota)."""
        pod_refused(self._state, name, message, for_now=for_now)

    def answer(self, query: Query, value: Any) -> None:
        """The answer to a query of a decision."""
        set_answer(self._state, query, value)

    def lock_waits(self, asked: Locks, reason: str) -> None:
        """Save why a lock is not available at all for now; empty: others hold it."""
        note_lock_wait(self._state, asked, reason)

    def metrics_refused(self, problems: Sequence[str]) -> None:
        """Record why values of metrics were refused: the run continues."""
        note_problems(self._state, problems)

    def resume(self, asked: Resume) -> None:
        """Resume the suspended nodes that the request selects."""
        resume(self._state, asked)

    def control(self, controls: Controls) -> None:
        """Set shutdown and suspension as the object has them now."""
        state = self._state
        before, state.controls = state.controls, controls
        if controls.shutdown and controls.shutdown != before.shutdown:
            cut_short(state)
        if not controls.is_suspended:
            waiting, state.waits.go_on = state.waits.go_on, []
            for future in waiting:
                future.set(None)

    # --- state

    @property
    def workflow(self) -> WorkflowRecord:
        """The current record of the workflow."""
        return self._state.workflow

    @property
    def records(self) -> Mapping[str, NodeRecord]:
        """The records of the nodes, by id."""
        return self._state.records

    def written(self) -> Mapping[str, Any]:
        """Return the workflow with the tags of its spec replaced by values, except for tags in templates."""
        with shared(self._state.budget):
            return self.document

    @functools.cached_property
    def document(self) -> Mapping[str, Any]:
        """As `written`."""
        spec = self._state.spec
        plain = {key: value for key, value in spec.items() if key != "templates"}
        try:
            plain = substitute(plain, dict(self._state.globals))
        except TextError:
            pass  # an unreadable value stays as it is: the error of the pod names it
        return {**self.workflow.document, "spec": {**spec, **plain}}

    def waits_for(self, name: str) -> bool:
        """Whether a node waits for the pod of this name."""
        return name in self._state.pods.awaited

    @property
    def awaited_pods(self) -> Set[str]:
        """Names of the pods that nodes wait for."""
        return self._state.pods.awaited.keys()

    @property
    def nodes_by_pod(self) -> Mapping[str, NodeRecord]:
        """The nodes with pods, by pod name."""
        return self._state.by_pod

    def node_of_pod(self, name: str) -> NodeRecord | None:
        """Return the node of a pod; None if the pod belongs to no current node."""
        return self._state.by_pod.get(name)

    @property
    def is_done(self) -> bool:
        return self._state.is_done

    def validate(self) -> None:
        """Raise AssertionError if the records contradict each other. Tests call this after every case."""
        faults = violations(self.workflow, self.records.values())
        assert not faults, "; ".join(faults)

    def close(self) -> None:
        """Stop the machine; decisions that were not returned are dropped."""
        self._state.scheduler.close()

    # --- decisions

    @property
    def node_count(self) -> int:
        """The number of nodes of the run, including those that its loops are about to create."""
        return self._state.budget.nodes

    def decide(self, now: datetime, *, other_nodes: int = 0) -> Decision:
        """The actions to carry out at this moment; each is returned once.

        `other_nodes`: of all other workflows of the namespace that run now.
        """
        state = self._state
        state.now = max(now, state.now)
        state.budget.renew(others=other_nodes)
        with shared(state.budget):
            self._go_on()
        draft, state.draft = state.draft, Draft()
        changed = state.workflow != self._saved_workflow
        self._saved_workflow = state.workflow
        next_at = state.timers.next_at
        return Decision(
            nodes=tuple(draft.nodes.values()),
            workflow=state.workflow if changed else None,
            create=tuple(order for order in draft.create if order.record.pod_name in state.pods.awaited),
            end=tuple(draft.end.values()),
            release=tuple(draft.release),
            remember=tuple(draft.remember),
            metrics=tuple(draft.metrics),
            unlock=tuple(draft.unlock),
            queries=tuple(draft.queries),
            look_again_in=max(next_at - state.now, timedelta(0)) if next_at is not None else None,
        )

    def _go_on(self) -> None:
        """Run as far as possible at this moment."""
        state = self._state
        if not self._is_begun:
            self._is_begun = True
            state.scheduler.start(run_workflow(state))
        while True:
            state.scheduler.run()
            if not state.timers.fire(state.now):
                break
        state.note_progress()
