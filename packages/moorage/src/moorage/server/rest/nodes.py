"""/api/v1/nodes: the resources of each node, and their use."""

from __future__ import annotations

from typing import Any

from moorage.api.fields import Query
from moorage.api.nodes import Nodes
from moorage.present.nodesanswer import make_nodes
from moorage.server.endpoint import Call, Endpoint


async def list_nodes(call: Call[None, Query]) -> Nodes:
    """Every node: its state, its GPUs, CPU and memory, their use, and the runs on it."""
    cluster = await call.context.ready()
    return make_nodes(cluster.node_views(), now=call.context.now())


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/nodes", handler=list_nodes, query=Query, answer=Nodes),
)
