"""/api/v1/cron-workflows: schedules on the paths of Argo's server, for Argo's clients.

Our own path is /api/v1/crons.
"""

from __future__ import annotations

from typing import Any

from moorage.actions.objects import get_object
from moorage.api.errors import ErrorCode
from moorage.api.workflows import CronWorkflow, CronWorkflowBody, CronWorkflowList, Done, Named, as_cron_workflow
from moorage.model.argo import CRON_WORKFLOWS
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.errors import UsageError
from moorage_workflows.actions import crons
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.server.rest.workflows import BODY_BYTES, controller_known

ALL = "/api/v1/cron-workflows/{namespace}"
ONE = f"{ALL}/{{name}}"


async def list_cron_workflows(call: Call[None, None]) -> CronWorkflowList:
    """List the CronWorkflows of a namespace, in Argo's format."""
    items = (await call.api.list(CRON_WORKFLOWS, call.namespace)).items
    return CronWorkflowList(items=tuple(as_cron_workflow(item) for item in items))


async def create_cron_workflow(call: Call[CronWorkflowBody, None]) -> tuple[int, CronWorkflow]:
    """Create a CronWorkflow."""
    dry_run = bool(call.body.create_options.get("dryRun"))
    return 200 if dry_run else 201, await _create(call, dry_run=dry_run)


async def lint_cron_workflow(call: Call[CronWorkflowBody, None]) -> CronWorkflow:
    """Check a CronWorkflow without creating it."""
    return await _create(call, dry_run=True)


async def _create(call: Call[CronWorkflowBody, None], *, dry_run: bool) -> CronWorkflow:
    planned = crons.plan_cron(_document(call), call.namespace, await controller_known(call.context))
    check = checks_of(call.api, call.namespace, evaluation=call.context.evaluation)
    made, _ = await crons.create_cron(call.api, planned, check=check, dry_run=dry_run)
    return as_cron_workflow(made)


async def show_cron_workflow(call: Call[None, None]) -> CronWorkflow:
    """Show a CronWorkflow."""
    return as_cron_workflow(await get_object(call.api, crons.CRON, call.namespace, call.name))


async def replace_cron_workflow(call: Call[CronWorkflowBody, None]) -> CronWorkflow:
    """Replace the spec of a CronWorkflow. Its status changes often, so versions are not compared."""
    document = _document(call)
    if (document.get("metadata") or {}).get("name") != call.name:
        raise UsageError(
            f"the manifest is not of {call.name!r}, as the path is",
            code=ErrorCode.INVALID,
            field="cronWorkflow.metadata.name",
        )
    planned = crons.plan_cron(document, call.namespace, await controller_known(call.context))
    changed, _ = await crons.replace_cron(
        call.api, planned, check=checks_of(call.api, call.namespace, evaluation=call.context.evaluation)
    )
    return as_cron_workflow(changed)


async def suspend_cron_workflow(call: Call[Named, None]) -> CronWorkflow:
    """Suspend a CronWorkflow: it starts no more runs."""
    await crons.suspend_cron(call.api, call.namespace, call.name, call.context.now(), is_suspended=True)
    return as_cron_workflow(await get_object(call.api, crons.CRON, call.namespace, call.name))


async def resume_cron_workflow(call: Call[Named, None]) -> CronWorkflow:
    """Resume a suspended CronWorkflow."""
    await crons.suspend_cron(call.api, call.namespace, call.name, call.context.now(), is_suspended=False)
    return as_cron_workflow(await get_object(call.api, crons.CRON, call.namespace, call.name))


async def delete_cron_workflow(call: Call[None, None]) -> Done:
    """Delete a CronWorkflow and its Workflows."""
    stored = await get_object(call.api, crons.CRON, call.namespace, call.name)
    await call.api.delete(
        CRON_WORKFLOWS, call.name, call.namespace, uid=stored["metadata"].get("uid"), propagation="Background"
    )
    return Done()


def _document(call: Call[CronWorkflowBody, None]) -> dict[str, Any]:
    """The manifest; clients of Argo may leave out the fields that are in the path."""
    return {"apiVersion": CRON_WORKFLOWS.api_version, "kind": CRON_WORKFLOWS.kind, **call.body.cron_workflow}


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_cron_workflows, answer=CronWorkflowList),
    Endpoint(
        method="POST",
        path=ALL,
        handler=create_cron_workflow,
        body=CronWorkflowBody,
        answer=CronWorkflow,
        status=201,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(
        method="POST",
        path=f"{ALL}/lint",
        handler=lint_cron_workflow,
        body=CronWorkflowBody,
        answer=CronWorkflow,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(method="GET", path=ONE, handler=show_cron_workflow, answer=CronWorkflow),
    Endpoint(
        method="PUT",
        path=ONE,
        handler=replace_cron_workflow,
        body=CronWorkflowBody,
        answer=CronWorkflow,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(method="PUT", path=f"{ONE}/suspend", handler=suspend_cron_workflow, body=Named, answer=CronWorkflow),
    Endpoint(method="PUT", path=f"{ONE}/resume", handler=resume_cron_workflow, body=Named, answer=CronWorkflow),
    Endpoint(method="DELETE", path=ONE, handler=delete_cron_workflow, answer=Done),
)
