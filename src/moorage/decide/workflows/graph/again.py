"""A workflow that has ended and is retried: which of its nodes run again.

https://argo-workflows.readthedocs.io/en/latest/cli/argo_retry/
"""

from __future__ import annotations

from collections.abc import Iterable

from moorage.decide.workflows.graph.tasks import is_meant
from moorage.model.workflow import NodePhase, NodeRecord, NodeType, Retry

_COMPOSITE = (NodeType.STEPS, NodeType.STEP_GROUP, NodeType.DAG, NodeType.TASK_GROUP, NodeType.RETRY)


def nodes_to_forget(nodes: Iterable[NodeRecord], asked: Retry) -> set[str]:
    """The ids of the nodes that did not succeed, of what stands around them, and of the exit handlers.

    With `restart_successful`, also of those that the selector means, and of all that came after them.
    """
    records = {node.id: node for node in nodes}
    by_name = {node.name: node for node in records.values()}
    forgotten = {
        node.id
        for node in records.values()
        if node.phase not in (NodePhase.SUCCEEDED, NodePhase.SKIPPED) or ".onExit" in node.name
    }
    if asked.restart_successful and asked.selector:
        forgotten |= {node.id for node in records.values() if is_meant(node, asked.selector)}
    children: dict[str, list[str]] = {}
    for node in records.values():
        for parent in node.parents:
            children.setdefault(parent, []).append(node.id)
    if asked.restart_successful:
        open_ids = [identity for identity in forgotten if records[identity].type not in _COMPOSITE]
        while open_ids:
            for child in children.get(open_ids.pop(), ()):
                if child not in forgotten:
                    forgotten.add(child)
                    open_ids.append(child)
    # what a node stands in is made again, so that it asks anew what is to be done
    for identity in list(forgotten):
        boundary = records[identity].boundary_id
        while boundary and boundary in records and boundary not in forgotten:
            forgotten.add(boundary)
            boundary = records[boundary].boundary_id
    for node in records.values():
        if node.type in _COMPOSITE and any(_is_within(records[other], node) for other in forgotten):
            forgotten.add(node.id)
    # an attempt that failed stands in a retry that starts from its first attempt again
    for node in by_name.values():
        if node.type is NodeType.RETRY and node.id in forgotten:
            forgotten |= {other.id for other in records.values() if _is_attempt_of(other, node)}
    # the containers of a set run in the pod of their boundary
    forgotten |= {
        node.id for node in records.values() if node.type is NodeType.CONTAINER and node.boundary_id in forgotten
    }
    return forgotten


def _is_within(node: NodeRecord, around: NodeRecord) -> bool:
    return node.name != around.name and node.name.startswith(around.name) and node.name[len(around.name)] in ".[("


def _is_attempt_of(node: NodeRecord, retry: NodeRecord) -> bool:
    return (
        node.name.startswith(f"{retry.name}(")
        and node.name.endswith(")")
        and node.name.count("(") == (retry.name.count("(") + 1)
    )
