"""The settings of this installation for pods of steps, read from the cluster."""

from __future__ import annotations

from moorage.cluster.serverurl import server_url
from moorage.controllers.dataset.filler import find_runtime
from moorage_kube.api import Api
from moorage_kube.resources import NODES
from moorage_workflows.decide.workflows.entrypoints import entrypoints_of
from moorage_workflows.decide.workflows.pods import StepRuntime


async def read_runtime(api: Api) -> StepRuntime:
    """Return the settings for pods of steps. Raises ApiError if they cannot be read."""
    runtime = await find_runtime(api)
    return StepRuntime(
        image=runtime.image,
        python=runtime.python,
        on_processes=runtime.on_processes,
        server_url=await server_url(api),
        entrypoints=entrypoints_of((await api.list(NODES)).items) if runtime.on_processes else {},
    )
