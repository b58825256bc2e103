"""Resource use of pods: /api/v1/use now, and over the life of a run or a workspace.

All users who may read the server may see the owner and the utilisation of every GPU.
"""

from __future__ import annotations

from typing import Any

from moorage.actions.workspaces import get_workspace
from moorage.api.use import Use, UseNow, UseQuery
from moorage.model.names import WORKSPACE_LABEL
from moorage.server.endpoint import Call, Endpoint
from moorage.server.poduse import names_of, use_now, use_of_pods
from moorage.server.runs import RunReader, pods_of
from moorage_kube.meta import key_of, labels_of


async def get_use(call: Call[None, None]) -> UseNow:
    """Show the current use of every pod of a user: GPUs, their utilisation and memory, CPU and memory."""
    return await use_now(call.context)


async def get_use_of_job(call: Call[None, UseQuery]) -> Use:
    """Show the resource use of a run over its life, attempt after attempt."""
    run = await RunReader(call.context, call.user).show(call.namespace, call.name)
    return await use_of_pods(call.context, pods_of(run), most=call.query.points)


async def get_use_of_workspace(call: Call[None, UseQuery]) -> Use:
    """Show the resource use of a workspace's pod since it started."""
    await get_workspace(call.context.api, call.namespace, call.name)
    return await use_by_label(call, WORKSPACE_LABEL)


async def use_by_label(call: Call[None, UseQuery], label: str) -> Use:
    """Resource use of the existing pods that have this label with the name in the path."""
    cluster = await call.context.ready()
    pods = [
        pod
        for pod in cluster.pods.all()
        if key_of(pod).namespace == call.namespace and labels_of(pod).get(label) == call.name
    ]
    return await use_of_pods(call.context, names_of(pods), most=call.query.points)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/use", handler=get_use, answer=UseNow),
    Endpoint(
        method="GET",
        path="/api/v1/jobs/{namespace}/{name}/use",
        handler=get_use_of_job,
        query=UseQuery,
        answer=Use,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/workspaces/{namespace}/{name}/use",
        handler=get_use_of_workspace,
        query=UseQuery,
        answer=Use,
    ),
)
