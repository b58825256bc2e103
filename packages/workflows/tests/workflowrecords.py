"""Records of workflows and of their nodes, for tests of code that reads or stores them."""

from __future__ import annotations

from typing import Any

from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType, WorkflowRecord


def a_node_record(
    name: str = "wf", kind: NodeType = NodeType.POD, phase: NodePhase = NodePhase.PENDING, **fields: Any
) -> NodeRecord:
    """A node. Its id is its name, and the part of the name after the last dot is its display name."""
    texts = {"id": name, "name": name, "display_name": name.rpartition(".")[2]}
    return NodeRecord(**{**texts, "type": kind, "phase": phase, **fields})


def a_workflow_record(uid: str = "u1", name: str = "train", **fields: Any) -> WorkflowRecord:
    """Workflow lab/train with an empty document."""
    return WorkflowRecord(**{"uid": uid, "namespace": "lab", "name": name, "document": {}, **fields})
