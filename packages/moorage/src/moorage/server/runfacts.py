"""The cluster facts for a plan, from the server's informers: nodes, the pods on them, tenants."""

from __future__ import annotations

from moorage.actions.runfacts import ClusterNodes
from moorage.decide.runs.request import RunRequest
from moorage.server.context import Context


async def nodes_of(context: Context, request: RunRequest) -> ClusterNodes:
    """Nodes, pods and tenants for the plan of this request, from the server's caches."""
    cluster = await context.ready()
    needs_pods = request.gpu_type is not None or request.checkpoint is not None
    return ClusterNodes(
        nodes=cluster.nodes.all(),
        pods=cluster.pods.all() if needs_pods else [],
        tenants=tuple(await context.tenants.all()),
    )
