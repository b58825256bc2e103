"""Nodes, for programs: `GET /api/v1/nodes`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from moorage.api import nodes as wire
from moorage.decide.usage.nodes import NodeView
from moorage_kube.moments import whole_seconds


def make_nodes(views: Iterable[NodeView], *, now: datetime) -> wire.Nodes:
    """Convert all nodes to an answer."""
    return wire.Nodes(now=whole_seconds(now), nodes=tuple(_node(view) for view in views))


def _node(view: NodeView) -> wire.Node:
    return wire.Node(
        name=view.name,
        state=str(view.state),
        reason=view.reason,
        cordoned=view.cordoned,
        created=whole_seconds(view.created) if view.created else None,
        instance_type=view.instance_type,
        region=view.region,
        market=view.market,
        gpu_type=view.gpu_type,
        gpus=view.gpus,
        gpus_used=view.gpus_used,
        cpu_millicores=view.cpu,
        cpu_used_millicores=view.cpu_used,
        memory_bytes=view.memory,
        memory_used_bytes=view.memory_used,
        pods=view.pods,
        runs=view.runs,
        taints=view.taints,
        version=view.version,
    )
