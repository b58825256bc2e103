"""Carry out a template as a node: its inputs, memo and locks, its attempts, and its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.coroutines import Future, Slots
from moorage_workflows.decide.workflows.graph.dags import run_dag
from moorage_workflows.decide.workflows.graph.events import ConfigMapValue, Refusal, Remember
from moorage_workflows.decide.workflows.graph.frames import Attempt, Call, Cut, Frame
from moorage_workflows.decide.workflows.graph.inputs import Inputs, resolve_inputs
from moorage_workflows.decide.workflows.graph.measures import measure_end, measure_node
from moorage_workflows.decide.workflows.graph.outputs import export_outputs, outputs_of
from moorage_workflows.decide.workflows.graph.podnodes import run_pod
from moorage_workflows.decide.workflows.graph.podwaits import end_daemon
from moorage_workflows.decide.workflows.graph.queries import ask, memo_of, release_locks, take_locks
from moorage_workflows.decide.workflows.graph.retries import Again, last_retry, next_attempt
from moorage_workflows.decide.workflows.graph.scopes import outputs_paths
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.steps import run_steps
from moorage_workflows.decide.workflows.graph.stops import check_cut
from moorage_workflows.decide.workflows.graph.suspensions import wait_suspended
from moorage_workflows.decide.workflows.graph.tasks import (
    locks_of,
    positive,
    results_used,
    stamp,
    type_of,
    waiting_for,
)
from moorage_workflows.decide.workflows.templates import Resolved, TemplateMissing
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.tags import substitute, substitute_text
from moorage_workflows.model.workflow import RECURSION_MAX, NodePhase, NodeRecord, NodeType, Outputs, is_strict


async def run_node(state: State, call: Call) -> NodeRecord:
    """Run a template as a node, with its retries. Returns the final record of the node. Raises Cut."""
    # a final node is not walked again
    record = state.records.get(state.ids.of(call.name))
    if record is not None and record.phase.is_fulfilled:
        return record
    # find and prepare the template; an error ends the node
    try:
        resolved = state.library.find(call.step, call.scope)
        if call.depth > RECURSION_MAX:
            raise TextError(
                f"template {resolved.name} is called {call.depth} levels deep; at most {RECURSION_MAX} are allowed"
            )
        template, inputs = await _prepare(state, call, resolved, record)
        memo = memo_of(template)
        locks = locks_of(template.get("synchronization"), state.globals)
    except (TextError, TemplateMissing) as error:
        return state.fail(call, error.message)
    # memoized outputs replace the node, unless it has begun
    if memo is not None and record is None and (remembered := await ask(state, memo)) is not None:
        recalled = _recalled_node(state, call, resolved, inputs, template, remembered)
        measure_node(state, template, recalled, inputs)
        return recalled
    # nothing new starts after a shutdown
    if record is None:
        check_cut(state, is_exit=call.is_exit)
    # locks are taken once; a node that holds them by its record has waited before
    if locks and not (record is not None and record.locks):
        kind = NodeType.RETRY if _strategy_of(state, template) is not None else type_of(template)
        waiting = state.node(call, resolved, inputs, kind, NodePhase.PENDING)
        try:
            check_cut(state, is_exit=call.is_exit)
            waiting = state.save(msgspec.structs.replace(waiting, message=waiting_for(locks)))
            if refused := await take_locks(state, waiting.id, locks, is_exit=call.is_exit):
                return state.end_node(waiting, NodePhase.ERROR, f"its locks are not available: {refused}")
            check_cut(state, is_exit=call.is_exit)
        except Cut as cut:
            release_locks(state, waiting.id)
            state.end_node(waiting, NodePhase.FAILED, cut.message)
            raise
        state.save(msgspec.structs.replace(state.records[waiting.id], locks=locks, message=""))
    # carry it out, once or with retries
    try:
        strategy = _strategy_of(state, template)
        if template.get("metrics"):
            kind = NodeType.RETRY if strategy is not None else type_of(template)
            beginning = state.node(call, resolved, inputs, kind, NodePhase.PENDING)
            measure_node(state, template, beginning, inputs, begins=True)
        if strategy is not None:
            final = await _run_attempts(state, call, resolved, template, inputs, strategy)
        else:
            only = Attempt(local=last_retry(None) | {"retries": "0"})
            final = await _run_attempt(state, call, resolved, template, inputs, only)
            measure_end(state, template, final, inputs)
    finally:
        if locks:
            release_locks(state, state.ids.of(call.name))
    # outputs of a success are stored under the memo's key
    if memo is not None and final.phase is NodePhase.SUCCEEDED:
        state.draft.remember.append(Remember(memo, final))
    return final


async def _prepare(
    state: State, call: Call, resolved: Resolved, record: NodeRecord | None
) -> tuple[Mapping[str, Any], Inputs]:
    """Return the template with the values of its inputs, and the inputs. Raises TextError."""
    kept = (record.inputs.get("parameters") or {}) if record is not None else {}

    async def config_map(name: str, key: str) -> str:
        answer = await ask(state, ConfigMapValue(name, key))
        if isinstance(answer, Refusal):
            raise TextError(answer.message)
        return str(answer)

    inputs = await resolve_inputs(
        resolved.template,
        call.step.get("arguments") or {},
        given=call.artifacts,
        absent=call.absent,
        scope=state.globals,
        kept=kept,
        config_map=config_map,
    )
    scope = {**state.globals, **inputs.scope, **outputs_paths(resolved.template), **call.local}
    scope["node.name"] = call.name
    return substitute({**resolved.template, **inputs.document}, scope), inputs


def _recalled_node(
    state: State, call: Call, resolved: Resolved, inputs: Inputs, template: Mapping[str, Any], outputs: Outputs
) -> NodeRecord:
    """Save a successful node that did not run: its outputs come from the cache (memoization)."""
    node = state.node(call, resolved, inputs, type_of(template), NodePhase.SUCCEEDED)
    record = state.save(
        msgspec.structs.replace(
            node, phase=NodePhase.SUCCEEDED, outputs=outputs, is_memoized=True, finished_at=stamp(state.now)
        )
    )
    export_outputs(state, template, record)
    return record


async def _run_attempt(
    state: State,
    call: Call,
    resolved: Resolved,
    template: Mapping[str, Any],
    inputs: Inputs,
    attempt: Attempt,
) -> NodeRecord:
    """Carry out a template of any type once. Raises Cut."""
    kind = type_of(template)
    if kind.has_pod:
        record = await run_pod(state, call, resolved, template, inputs, attempt)
    elif kind is NodeType.SUSPEND:
        record = await wait_suspended(state, call, resolved, template, inputs)
    else:
        try:
            template = substitute(template, dict(attempt.local))
            at_once = positive(template.get("parallelism"), f"parallelism of template {resolved.name}")
        except TextError as error:
            return state.fail(call, error.message)
        places = state.places.get(state.ids.of(call.name), 0)
        slots = Slots(state.scheduler, at_once, held=places)
        record = await _run_children(state, call, resolved, template, inputs, kind, slots)
    export_outputs(state, template, record)
    return record


async def _run_attempts(
    state: State,
    call: Call,
    resolved: Resolved,
    template: Mapping[str, Any],
    inputs: Inputs,
    strategy: Mapping[str, Any],
) -> NodeRecord:
    """Run a template until it succeeds or its retry strategy gives up. Raises Cut."""
    # the node of the attempts is above them
    node = state.node(call, resolved, inputs, NodeType.RETRY, NodePhase.RUNNING)
    if node.type is NodeType.RETRY:
        node = state.save(msgspec.structs.replace(node, phase=NodePhase.RUNNING, message=""))
    attempts: list[NodeRecord] = []

    def end(phase: NodePhase, message: str, outputs: Outputs | None) -> NodeRecord:
        """End the node of the attempts. Metrics get its values only, not those of the last attempt."""
        final = state.end_node(node, phase, message, outputs)
        measure_node(state, template, final, inputs, retries=len(attempts) - 1)
        return final

    # each attempt is a child with its number
    while True:
        number = len(attempts)
        local = last_retry(attempts[-1] if attempts else None) | {"retries": str(number)}
        again = msgspec.structs.replace(
            call,
            name=f"{call.name}({number})",
            display_name=f"{call.display_name}({number})",
            parents=(node.id,),
        )
        record = state.records.get(state.ids.of(again.name))
        # an attempt without a final record runs now
        is_new = record is None or not record.phase.is_fulfilled
        if record is None or not record.phase.is_fulfilled:
            failed_hosts = tuple(row.host for row in attempts if row.host)
            excluded = failed_hosts if (strategy.get("affinity") or {}).get("nodeAntiAffinity") is not None else ()
            first = attempts[0] if attempts else None
            attempt = Attempt(local=local, excluded=excluded, strategy=strategy, first=first)
            try:
                record = await _run_attempt(state, again, resolved, template, inputs, attempt)
            except Cut as cut:
                if not attempts:
                    state.end_node(node, NodePhase.FAILED, cut.message)
                    raise
                return end(attempts[-1].phase, cut.message, attempts[-1].outputs)
        # a success ends the loop; outputs become visible as those of the node
        attempts.append(record)
        if record.phase not in (NodePhase.FAILED, NodePhase.ERROR):
            final = end(record.phase, record.message, record.outputs)
            export_outputs(state, template, final)
            return final
        # a stored next attempt proves that the decision to retry was made
        if state.has_begun(f"{call.name}({len(attempts)})"):
            continue  # at any time: the decision is stored
        # decide on the next attempt; a shutdown or an unreadable expression ends the node
        try:
            check_cut(state, is_exit=call.is_exit)
            follows = next_attempt(
                strategy, attempts, now=state.now, may=lambda text: _may_retry(state, text, attempts),
                is_strict=is_strict(state.workflow.document),
            )  # fmt: skip
        except Cut as cut:
            return end(record.phase, cut.message, record.outputs)
        except TextError as error:
            return end(NodePhase.ERROR, error.message, record.outputs)
        # give up, with Argo's wait before the end
        if not isinstance(follows, Again):
            if follows.at is not None and follows.at > state.now:
                await _back_off(state, node, follows.at)
            return end(record.phase, follows.message, record.outputs)
        # metrics count an attempt once, not when the run is loaded again
        if is_new:
            measure_node(state, template, record, inputs, retries=number)
        if follows.at > state.now:
            await _back_off(state, node, follows.at)


async def _back_off(state: State, node: NodeRecord, at: datetime) -> None:
    state.save(msgspec.structs.replace(state.records[node.id], message=f"Backoff until {stamp(at)}"))
    waiting: Future[None] = state.timers.at(at)
    state.waits.backoffs.append(waiting)
    await waiting


def _may_retry(state: State, expression: str, attempts: Sequence[NodeRecord]) -> bool:
    scope = state.globals | last_retry(attempts[-1]) | {"retries": str(len(attempts) - 1)}
    answer = evaluate(substitute_text(expression, scope), scope)
    if not isinstance(answer, bool):
        raise TextError(f"retryStrategy.expression must be true or false, and is {answer!r}")
    return answer


async def _run_children(
    state: State,
    call: Call,
    resolved: Resolved,
    template: Mapping[str, Any],
    inputs: Inputs,
    kind: NodeType,
    slots: Slots,
) -> NodeRecord:
    """Run a steps or DAG template. At its end its daemons end too."""
    node = state.node(call, resolved, inputs, kind, NodePhase.RUNNING)
    node = state.save(msgspec.structs.replace(node, phase=NodePhase.RUNNING, message=""))
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
        phase, message = await (run_steps(state, frame) if kind is NodeType.STEPS else run_dag(state, frame))
        outputs = outputs_of(state, frame) if phase is NodePhase.SUCCEEDED else None
    except TextError as error:
        phase, message, outputs = NodePhase.ERROR, error.message, None
    except Cut as cut:
        phase, message, outputs = NodePhase.FAILED, cut.message, None
    for name in frame.daemons:
        end_daemon(state, name)
    return state.end_node(node, phase, message, outputs)


def _strategy_of(state: State, template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the `retryStrategy` of the template, else that of the workflow; None if neither has one."""
    own: Mapping[str, Any] | None = template.get("retryStrategy")
    if own is not None:
        return own
    whole: Mapping[str, Any] | None = state.spec.get("retryStrategy")
    return whole
