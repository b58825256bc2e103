"""The nodes that count for `parallelism` when a run is loaded again from its records."""

from __future__ import annotations

import collections
from collections.abc import Mapping

from moorage_workflows.model.workflow import NodeRecord, NodeType

_GROUPS = (NodeType.STEP_GROUP, NodeType.TASK_GROUP, NodeType.CONTAINER)


def places_held(records: Mapping[str, NodeRecord]) -> Mapping[str, int]:
    """How many nodes hold a place: pods in the whole workflow (""), others in the node of a template, by its
    id.

    Groups, hooks and single attempts of a step take none: only the step itself does.
    """
    held: collections.Counter[str] = collections.Counter()
    for node in records.values():
        if node.phase.is_fulfilled:
            continue
        if node.type.has_pod and node.pod_name:
            held[""] += 1
        around = records.get(node.boundary_id)
        if around is None or node.type in _GROUPS:
            continue
        own = node.name.removeprefix(around.name)
        if ".hooks." not in own and ".onExit" not in own and not _is_attempt(node, records):
            held[around.id] += 1
    return held


def _is_attempt(node: NodeRecord, records: Mapping[str, NodeRecord]) -> bool:
    parents = [records[parent] for parent in node.parents if parent in records]
    return any(parent.type is NodeType.RETRY and node.name.startswith(f"{parent.name}(") for parent in parents)
