"""Invariants of a run and its nodes, also after any kill. Tests check them after every case."""

from __future__ import annotations

from collections.abc import Iterable

from moorage_workflows.model.workflow import ENDED_PHASES, NodeRecord, WorkflowRecord


def violations(workflow: WorkflowRecord, nodes: Iterable[NodeRecord]) -> list[str]:
    """The errors in these records, each as one sentence; empty: they may be stored.

    If a run has ended, all its nodes have ended, and it holds no lock. A node that has ended has the time of
    its end, and all nodes within it have ended. Two nodes never have the same pod.
    """
    faults = []
    records = {node.id: node for node in nodes}
    has_ended = workflow.phase in ENDED_PHASES
    if has_ended and not workflow.finished_at:
        faults.append(f"workflow {workflow.name} is {workflow.phase}, and has no time of its end")
    if has_ended and workflow.locks:
        faults.append(f"workflow {workflow.name} is {workflow.phase}, and holds {', '.join(workflow.locks)}")
    by_pod: dict[str, str] = {}
    for node in records.values():
        if node.pod_name and by_pod.setdefault(node.pod_name, node.name) != node.name:
            faults.append(f"nodes {by_pod[node.pod_name]} and {node.name} both have the pod {node.pod_name}")
        if node.phase.is_fulfilled:
            if not node.finished_at:
                faults.append(f"node {node.name} is {node.phase}, and has no time of its end")
            continue
        around = records.get(node.boundary_id)
        if has_ended:
            faults.append(f"node {node.name} is {node.phase}, and its workflow is {workflow.phase}")
        elif around is not None and around.phase.is_fulfilled:
            faults.append(f"node {node.name} is {node.phase}, and {around.name}, around it, is {around.phase}")
    return faults
