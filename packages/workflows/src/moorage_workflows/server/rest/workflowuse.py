"""The usage of the pods of a workflow's steps."""

from __future__ import annotations

from typing import Any

from moorage.api.use import Use, UseQuery
from moorage.model.argo import WORKFLOW_LABEL
from moorage.server.endpoint import Call, Endpoint
from moorage.server.rest.use import use_by_label
from moorage_workflows.actions.workflows import get_workflow
from moorage_workflows.server.rest.workflows import records_of


async def get_use_of_workflow(call: Call[None, UseQuery]) -> Use:
    """Show the usage of the existing pods of a workflow's steps."""
    await get_workflow(call.context.api, call.namespace, call.name, records_of(call.context, call.user))
    return await use_by_label(call, WORKFLOW_LABEL)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(
        method="GET",
        path="/api/v1/workflows/{namespace}/{name}/use",
        handler=get_use_of_workflow,
        query=UseQuery,
        answer=Use,
    ),
)
