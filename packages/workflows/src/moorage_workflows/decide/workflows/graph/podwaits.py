"""Pods that nodes wait for: changes of the pods, and requests to end them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from moorage_workflows.decide.workflows.graph.events import EndPod, PodSeen
from moorage_workflows.decide.workflows.graph.outcomes import Ended, members_seen, outcome_of
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.tasks import stamp
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType


def pod_seen(state: State, pod: PodSeen) -> None:
    """Handle the current state of an existing pod."""
    state.pods.refused.discard(pod.name)
    state.pods.seen[pod.name] = pod
    look_at(state, pod.name)


def pod_gone(state: State, name: str) -> None:
    """Handle a pod that does not exist any more."""
    before = state.pods.seen.pop(name, None)
    waiting = state.pods.awaited.get(name)
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
    state.pods.seen[name] = ended
    look_at(state, name)


def pod_refused(state: State, name: str, message: str, *, for_now: bool) -> None:
    """Handle a pod that the API server refused. `for_now`: it may accept the pod later (a quota)."""
    waiting = state.pods.awaited.get(name)
    if waiting is None:
        return
    if for_now:
        state.pods.refused.add(name)
        state.save(msgspec.structs.replace(state.records[waiting.node], message=message))
        return
    del state.pods.awaited[name]
    waiting.future.set(Ended(phase=NodePhase.ERROR, message=message))


def look_at(state: State, name: str) -> None:
    """Handle a changed pod: update its node, and end the wait if the pod has ended."""
    waiting, pod = state.pods.awaited.get(name), state.pods.seen.get(name)
    if waiting is None or pod is None:
        return
    record = state.records[waiting.node]
    members = [state.records[member] for member in waiting.members]
    result = outcome_of(
        pod,
        cut=state.pods.cut.get(name, ""),
        is_daemon=waiting.is_daemon,
        is_request=record.type is NodeType.HTTP,
        members=[member.display_name for member in members],
    )
    if result is not None:
        del state.pods.awaited[name]
        waiting.future.set(result)
        return
    note_members(state, members, pod, None)
    message = "" if pod.is_running else pod.waiting or record.message
    phase = NodePhase.RUNNING if pod.is_running else record.phase
    state.save(msgspec.structs.replace(record, phase=phase, message=message, host=pod.host or record.host))


def note_members(state: State, members: Sequence[NodeRecord], pod: PodSeen | None, ended: Ended | None) -> None:
    """Save the states of the containers of a set."""
    current = [state.records[member.id] for member in members]
    open_nodes = [node for node in current if not node.phase.is_fulfilled]
    for node in members_seen(open_nodes, pod, ended, now=stamp(state.now)):
        state.save(node)


def end_pod(state: State, name: str, message: str) -> None:
    """Request the end of a pod. When the pod has ended, its node fails with this message."""
    state.pods.cut.setdefault(name, message)
    state.draft.end[name] = EndPod(name)
    if name in state.pods.seen:
        look_at(state, name)
        return
    # it was decided on and may not exist yet: it is not created any more, or ends when it is seen
    before = len(state.draft.create)
    state.draft.create = [order for order in state.draft.create if order.record.pod_name != name]
    if len(state.draft.create) < before or name in state.pods.refused:
        state.pods.refused.discard(name)
        state.draft.end.pop(name, None)
        state.pods.awaited.pop(name).future.set(Ended(phase=NodePhase.FAILED, message=message))


def end_what_goes_on(state: State) -> None:
    """Ask again for the end of pods whose nodes have ended: an operator may be killed between the save and the
    request.
    """
    for pod in state.pods.seen.values():
        node = state.by_pod.get(pod.name)
        goes_on = not pod.is_deleted and (not pod.is_ended or pod.is_stuck)
        if goes_on and node is not None and node.phase.is_fulfilled:
            state.draft.end[pod.name] = EndPod(pod.name)


def end_daemon(state: State, name: str) -> None:
    """End a daemon's pod and node: the steps that use it have ended."""
    state.draft.end[name] = EndPod(name)
    state.draft.release.append(name)
    record = state.by_pod.get(name)
    if record is None or not record.is_daemon:
        return
    final = state.end_node(record, NodePhase.SUCCEEDED, record.message, record.outputs)
    for parent in final.parents:
        around = state.records.get(parent)
        if around is not None and around.type is NodeType.RETRY and final.name.startswith(f"{around.name}("):
            state.end_node(around, NodePhase.SUCCEEDED, around.message, around.outputs)
    if (measure := state.pods.daemon_metrics.pop(name, None)) is not None:
        measure(final)
