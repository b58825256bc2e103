"""Choose the nodes that run again when an ended workflow is retried or resubmitted.

https://argo-workflows.readthedocs.io/en/latest/cli/argo_retry/
https://argo-workflows.readthedocs.io/en/latest/cli/argo_resubmit/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import datetime

import msgspec

from moorage_workflows.decide.workflows.graph.naming import Ids
from moorage_workflows.decide.workflows.graph.tasks import is_meant, stamp
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType, Outputs, Retry, WorkflowRecord

_COMPOSITE = (NodeType.STEPS, NodeType.STEP_GROUP, NodeType.DAG, NodeType.TASK_GROUP, NodeType.RETRY)
_WELL = (NodePhase.SUCCEEDED, NodePhase.SKIPPED)
_EXIT = ".onExit"


def nodes_to_forget(nodes: Iterable[NodeRecord], asked: Retry, *, also: Set[str] = frozenset()) -> set[str]:
    """The ids of the nodes that did not succeed, of the nodes around them, and of the exit handlers.

    An attempt that failed stays where a later one succeeded. The exit handler of a step stays with its step.
    With `restart_successful`, also of the nodes that the selector matches, and of all that came after them.
    `also`: ids of others that run again.
    """
    records = {node.id: node for node in nodes}
    settled = {node.name for node in records.values() if node.type is NodeType.RETRY and node.phase in _WELL}
    while True:
        forgotten = _forgotten(records, asked, settled, also)
        opened = {records[identity].name for identity in forgotten} & settled
        if not opened:
            return forgotten
        settled -= opened  # failures in them count again


def _forgotten(records: Mapping[str, NodeRecord], asked: Retry, settled: Set[str], also: Set[str]) -> set[str]:
    """Return the ids of the nodes to run again.

    `settled`: names of nodes with several attempts whose failures do not count; `also`: ids of more nodes to
    include.
    """
    forgotten = {
        node.id
        for node in records.values()
        if (node.phase not in _WELL and settled.isdisjoint(_names_around(node.name))) or node.id in also
    }
    if asked.restart_successful:
        begins = {identity for identity in forgotten if records[identity].type not in _COMPOSITE}
        if asked.selector:
            begins |= {node.id for node in records.values() if is_meant(node, asked.selector)}
        forgotten |= _all_after(records, begins)
    _forget_around(records, forgotten)
    # a handler runs again after its node; that of the workflow always does
    names = {records[identity].name for identity in forgotten}
    kept = {node.name for node in records.values() if node.boundary_id} - names
    exits = {node.id for node in records.values() if _EXIT in node.name}
    forgotten |= {identity for identity in exits if records[identity].name.partition(_EXIT)[0] not in kept}
    # a daemon ended with the template around it
    forgotten |= {node.id for node in records.values() if node.is_daemon and node.boundary_id in forgotten}
    _forget_around(records, forgotten)
    # a node that is tried again starts from its first attempt, so failed attempts are removed
    again = {node.name for node in records.values() if node.type is NodeType.RETRY and node.id in forgotten}
    forgotten |= {node.id for node in records.values() if _retry_of(node) in again}
    # the containers of a set run in the pod of their boundary
    forgotten |= {
        node.id for node in records.values() if node.type is NodeType.CONTAINER and node.boundary_id in forgotten
    }
    return forgotten


def _all_after(records: Mapping[str, NodeRecord], begins: Set[str]) -> set[str]:
    """These nodes, all inside them, and all that came after them or after the nodes around them."""
    children: dict[str, list[str]] = {}
    inside: dict[str, list[str]] = {}
    for node in records.values():
        for parent in node.parents:
            children.setdefault(parent, []).append(node.id)
        for name in _names_around(node.name):
            inside.setdefault(name, []).append(node.id)
    by_name = {node.name: node.id for node in records.values()}
    again: set[str] = set()
    passed: set[str] = set()  # the nodes around those that run again
    open_ids = list(begins)
    while open_ids:
        node = records[open_ids.pop()]
        if node.id in again:
            continue
        again.add(node.id)
        within = inside.get(node.name, ())
        open_ids += within
        around = {by_name[name] for name in _names_around(node.name) if name in by_name}
        around |= {node.boundary_id} & records.keys()
        for identity in ({node.id} | around) - passed:
            passed.add(identity)
            own = set(inside.get(records[identity].name, ()))
            open_ids += [child for child in children.get(identity, ()) if child not in own]
    return again


def _forget_around(records: Mapping[str, NodeRecord], forgotten: set[str]) -> None:
    """Add the nodes around forgotten ones: they are made again, and decide again on their children."""
    for identity in list(forgotten):
        boundary = records[identity].boundary_id
        while boundary and boundary in records and boundary not in forgotten:
            forgotten.add(boundary)
            boundary = records[boundary].boundary_id
    around = {name for identity in forgotten for name in _names_around(records[identity].name)}
    forgotten |= {node.id for node in records.values() if node.type in _COMPOSITE and node.name in around}


def _names_around(name: str) -> Iterator[str]:
    """The possible names of the nodes around a node of this name."""
    return (name[:at] for at, character in enumerate(name) if character in ".[(")


def _retry_of(node: NodeRecord) -> str:
    """Return the name of the node of which this node may be an attempt; "" if it is not an attempt."""
    name, bracket, number = node.name.rpartition("(")
    return name if bracket and number.endswith(")") and number[:-1].isdigit() else ""


def nodes_taken_over(
    nodes: Iterable[NodeRecord], *, earlier: str, name: str, now: datetime
) -> tuple[NodeRecord, ...]:
    """The first records of a new run that takes over the successful nodes of an earlier one.

    `earlier` and `name`: of the two workflows. The nodes have outputs and no pods. Their artifacts stay the
    earlier run's: this one never deletes them. Nodes with deleted artifacts run again, and so do hooks of
    the workflow. Skipped steps are decided again.
    """
    # run again: failed nodes, and those with deleted artifacts
    records = {node.id: node for node in nodes}
    lacking = {node.id for node in records.values() if node.type.has_pod and _lacks_artifacts(node.outputs)}
    forgotten = nodes_to_forget(records.values(), Retry(), also=lacking)
    # ids follow from names, so renamed nodes need new ids
    made = Ids(name)
    ids = {node.id: made.of(_renamed(node.name, earlier, name)) for node in records.values()}
    hooks = f"{earlier}.hooks."
    taken = []
    # copy the others as memoized nodes, without pods and locks
    for node in records.values():
        is_asked_again = node.type is NodeType.SKIPPED and (not node.boundary_id or node.boundary_id in forgotten)
        if (
            node.id in forgotten
            or is_asked_again
            or node.name.startswith(hooks)
            or not node.name.startswith(earlier)
        ):
            continue
        taken.append(
            msgspec.structs.replace(
                node,
                id=ids[node.id],
                name=_renamed(node.name, earlier, name),
                display_name=name if node.display_name == earlier else node.display_name,
                boundary_id=ids.get(node.boundary_id, ""),
                parents=tuple(ids[parent] for parent in node.parents if parent in ids),
                started_at=stamp(now),
                finished_at=stamp(now),
                message=f"taken over from {node.pod_name}" if node.pod_name else node.message,
                pod_name="",
                host="",
                outputs=_as_read(node.outputs),
                is_memoized=node.type.has_pod,
                locks=(),
                resources_seconds={},
                infrastructure_retries=0,
            )
        )
    return tuple(taken)


def with_exports_of(workflow: WorkflowRecord, earlier: WorkflowRecord) -> WorkflowRecord:
    """Return the new run's record with the global outputs of the earlier run.

    Steps that run again replace theirs.
    """
    artifacts = (_as_read(Outputs(artifacts=earlier.artifacts)) or Outputs()).artifacts
    kept = tuple(artifact for artifact in artifacts if not artifact.is_deleted)
    return msgspec.structs.replace(workflow, parameters=earlier.parameters, artifacts=kept)


def _renamed(node: str, earlier: str, name: str) -> str:
    return f"{name}{node.removeprefix(earlier)}"


def _lacks_artifacts(outputs: Outputs | None) -> bool:
    return outputs is not None and any(artifact.is_deleted for artifact in outputs.artifacts)


def _as_read(outputs: Outputs | None) -> Outputs | None:
    """Return outputs without the deletion strategies of their artifacts."""
    if outputs is None:
        return None
    artifacts = tuple(msgspec.structs.replace(artifact, collection={}) for artifact in outputs.artifacts)
    return msgspec.structs.replace(outputs, artifacts=artifacts)
