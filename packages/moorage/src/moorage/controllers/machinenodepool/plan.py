"""Labels, annotations and taints of the nodes of a MachineNodePool, and their removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.model.machine import MAINTENANCE, NOT_READY, READY
from moorage.model.names import (
    MACHINE_GROUP_LABEL,
    MACHINE_MODE_LABEL,
    MACHINE_POOL_ANNOTATION,
    MACHINE_TYPE_PREFIX,
    PLACE_PREFIX,
)
from moorage_kube.meta import annotations_of, is_condition_true, is_deleting, labels_of
from moorage_kube.resources import Obj

FAMILY_LABEL = "nvidia.com/gpu.family"  # set by NVIDIA's GPU feature discovery: ampere, hopper, …
_PREFIXES = (MACHINE_TYPE_PREFIX, PLACE_PREFIX)
_LABELS = (MACHINE_GROUP_LABEL, MACHINE_MODE_LABEL)


class PatchNode(Struct, frozen=True):
    """A merge patch for one node. With a resourceVersion if it replaces the list of taints."""

    node: str
    patch: Obj


class Plan(Struct, frozen=True, kw_only=True):
    """Patches, the status of each node of the pool, and whether all nodes are marked."""

    patches: tuple[PatchNode, ...] = ()
    nodes: tuple[Obj, ...] = ()  # status.nodePool
    ready: bool = True
    reason: str = "Ready"
    message: str = "Every node of the pool is marked"


def plan(pool: Mapping[str, Any], nodes: Sequence[Obj], pools: Sequence[str], families: Mapping[str, str]) -> Plan:
    """The patches that mark the pool's nodes and clean the nodes that left it. Empty if all nodes are correct.

    `pools`: the names of the existing MachineNodePools; a node that another of them marked is not changed.
    `families`: GPU generations by machine type. A pool that is being deleted cleans all its nodes.
    """
    name, spec = str(pool["metadata"]["name"]), pool.get("spec") or {}
    # a pool that is being deleted wants no nodes, so all are cleaned
    wanted = {} if is_deleting(pool) else {entry["name"]: entry for entry in spec.get("nodePool") or ()}
    patches, status, wrong = [], [], []
    present = {str(node["metadata"]["name"]): node for node in nodes}
    for node_name, node in sorted(present.items()):
        marked_by = annotations_of(node).get(MACHINE_POOL_ANNOTATION)
        entry = wanted.get(node_name)
        # the node left the pool
        if entry is None:
            if marked_by == name and (patch := unmark(node)):
                patches.append(PatchNode(node_name, patch))
            continue
        # the first pool that marked a node has it
        if marked_by not in (None, name) and marked_by in pools:
            status.append(_status(node_name, "Unhealthy", f"the node is marked by MachineNodePool {marked_by}"))
            wrong.append(node_name)
            continue
        # types that do not match the node's GPUs are not offered
        mode = mode_of(entry, node)
        odd = [
            kind["name"]
            for kind in entry.get("machineType") or ()
            if _is_odd(node, families.get(kind["name"], ""))
        ]
        if patch := mark(name, str(spec["machineGroupName"]), entry, node, mode, odd):
            patches.append(PatchNode(node_name, patch))
        message = f"its GPUs are not of the family of {', '.join(odd)}" if odd else ""
        if mode == NOT_READY:
            message = message or ("set not-ready" if entry["mode"] == NOT_READY else "the node is not Ready")
        word = {READY: "Healthy", MAINTENANCE: "Maintenance", NOT_READY: "Unhealthy"}[mode]
        status.append(_status(node_name, word, message))
    # nodes of the spec that do not exist
    missing = sorted(set(wanted) - set(present))
    status += [_status(name, "Unhealthy", "there is no such node") for name in missing]
    status.sort(key=lambda row: str(row["name"]))
    if wrong:
        return _not_ready(patches, status, "NodeTaken", f"Marked by another pool: {', '.join(wrong)}")
    if missing:
        return _not_ready(patches, status, "NodeMissing", f"No such node: {', '.join(missing)}")
    return Plan(patches=tuple(patches), nodes=tuple(status))


def mode_of(entry: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """The mode of a node: the admin's setting, or not-ready while the node itself is not Ready."""
    mode = str(entry["mode"])
    return NOT_READY if mode == READY and not is_condition_true(node, "Ready") else mode


def mark(
    pool: str, group: str, entry: Mapping[str, Any], node: Mapping[str, Any], mode: str, odd: Sequence[str] = ()
) -> Obj:
    """The patch that gives a node the labels and taints of its entry; empty if there is nothing to change."""
    types = [kind["name"] for kind in entry.get("machineType") or () if kind["name"] not in odd]
    labels: dict[str, str] = {MACHINE_GROUP_LABEL: group, MACHINE_MODE_LABEL: mode}
    if mode == READY:
        labels |= {MACHINE_TYPE_PREFIX + name: group for name in types}
    taints: list[Obj] = []
    if entry.get("taint"):
        taints.append({"key": MACHINE_GROUP_LABEL, "value": group, "effect": "NoSchedule"})
    if mode != READY:
        taints.append({"key": MACHINE_MODE_LABEL, "value": mode, "effect": "NoSchedule"})
    return _patch(node, labels, {MACHINE_POOL_ANNOTATION: pool}, taints, keep=PLACE_PREFIX)


def unmark(node: Mapping[str, Any]) -> Obj:
    """The patch that removes all our marks from a node; empty if it has none."""
    return _patch(node, {}, {}, [], keep=None)


def _patch(
    node: Mapping[str, Any],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    taints: Sequence[Obj],
    *,
    keep: str | None,
) -> Obj:
    had = labels_of(node)
    ours = {
        key for key in had if key in _LABELS or (key.startswith(_PREFIXES) and not (keep and key.startswith(keep)))
    }
    changed: dict[str, str | None] = {key: value for key, value in labels.items() if had.get(key) != value}
    changed |= {key: None for key in ours if key not in labels}
    noted: dict[str, str | None] = {
        key: value for key, value in annotations.items() if annotations_of(node).get(key) != value
    }
    if not annotations and MACHINE_POOL_ANNOTATION in annotations_of(node):
        noted[MACHINE_POOL_ANNOTATION] = None
    stand = list((node.get("spec") or {}).get("taints") or ())
    bare = [
        {key: taint.get(key) for key in ("key", "value", "effect")} for taint in stand if taint["key"] in _LABELS
    ]
    meta: Obj = {}
    if changed:
        meta["labels"] = changed
    if noted:
        meta["annotations"] = noted
    patch: Obj = {"metadata": meta} if meta else {}
    if sorted(bare, key=str) != sorted(
        ({k: taint[k] for k in ("key", "value", "effect")} for taint in taints), key=str
    ):
        others = [taint for taint in stand if taint["key"] not in _LABELS]
        patch["spec"] = {"taints": [*others, *taints]}
        patch.setdefault("metadata", {})["resourceVersion"] = node["metadata"]["resourceVersion"]
    return patch


def _is_odd(node: Mapping[str, Any], family: str) -> bool:
    label = labels_of(node).get(FAMILY_LABEL)
    return bool(family) and label is not None and label.lower() != family.lower()


def _status(name: str, word: str, message: str) -> Obj:
    return {"name": name, "condition": word, "message": message}


def _not_ready(patches: Sequence[PatchNode], status: Sequence[Obj], reason: str, message: str) -> Plan:
    return Plan(patches=tuple(patches), nodes=tuple(status), ready=False, reason=reason, message=message)
