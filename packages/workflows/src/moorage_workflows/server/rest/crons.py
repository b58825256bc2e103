"""/api/v1/crons: create, read, suspend, run and backfill schedules of workflows as the caller."""

from __future__ import annotations

from typing import Any

from moorage.api.crons import (
    BackfillAnswer,
    BackfillRequest,
    Cron,
    CronHistory,
    CronList,
    CronRun,
    CronStart,
    NewCron,
)
from moorage.api.errors import ErrorCode
from moorage.api.fields import Page
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.errors import UsageError
from moorage_workflows.actions import crons
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.actions.workflows import no_check
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.views import view_workflow
from moorage_workflows.server.rest.workflows import checks_for, records_of

ALL = "/api/v1/crons"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_crons(call: Call[None, Page]) -> CronList:
    """List schedules, with the next slot and the newest run of each."""
    page = call.query
    rows, after = await crons.list_crons(
        call.api, page.namespace or None, call.context.now(), limit=page.limit, after=page.after
    )
    return CronList(crons=tuple(rows), after=after)


async def create_cron(call: Call[NewCron, None]) -> Cron:
    """Create a schedule. A repeat with the same `Idempotency-Key` creates nothing."""
    controller = await controller_of(call.context.api, call.context.now())
    made = crons.plan_cron(call.body.manifest, call.body.namespace, controller)
    call.audit("create cron", f"{call.body.namespace}/{made['metadata']['name']}")
    check = (
        no_check
        if controller is Controller.ARGO
        else checks_of(call.api, call.body.namespace, evaluation=call.context.evaluation)
    )
    created, _ = await crons.create_cron(call.api, made, check=check, mark=call.mark)
    return crons.cron_of(created, (), call.context.now())


async def replace_cron(call: Call[NewCron, None]) -> Cron:
    """Replace the spec of a schedule. Running workflows keep the old spec."""
    controller = await controller_of(call.context.api, call.context.now())
    made = crons.plan_cron(call.body.manifest, call.namespace, controller)
    if made["metadata"]["name"] != call.name or call.body.namespace != call.namespace:
        raise UsageError(
            f"the manifest is of {call.body.namespace}/{made['metadata']['name']}, the path of"
            f" {call.namespace}/{call.name}: use one of them",
            code=ErrorCode.INVALID,
            field="manifest.metadata.name",
        )
    call.audit("replace cron", f"{call.namespace}/{call.name}")
    check = (
        no_check
        if controller is Controller.ARGO
        else checks_of(call.api, call.namespace, evaluation=call.context.evaluation)
    )
    await crons.replace_cron(call.api, made, check=check)
    return await crons.get_cron(call.api, call.namespace, call.name, call.context.now())


async def show_cron(call: Call[None, None]) -> Cron:
    """Show a schedule: its next slot, its newest run, and why a slot did not run."""
    return await crons.get_cron(call.api, call.namespace, call.name, call.context.now())


async def suspend_cron(call: Call[None, None]) -> Cron:
    """Stop running slots. Active runs continue."""
    call.audit("suspend cron", f"{call.namespace}/{call.name}")
    return await crons.suspend_cron(call.api, call.namespace, call.name, call.context.now(), is_suspended=True)


async def resume_cron(call: Call[None, None]) -> Cron:
    """Resume a schedule, from now on. This also restarts a schedule that its stop strategy ended."""
    call.audit("resume cron", f"{call.namespace}/{call.name}")
    return await crons.suspend_cron(call.api, call.namespace, call.name, call.context.now(), is_suspended=False)


async def run_cron(call: Call[CronStart, None]) -> CronRun:
    """Start the workflow of a schedule now, outside of the schedule."""
    controller = await controller_of(call.context.api, call.context.now())
    call.audit("run cron", f"{call.namespace}/{call.name}")
    submitted = await crons.run_cron(
        call.api,
        call.namespace,
        call.name,
        call.body.parameters,
        controller=controller,
        check=checks_for(call),
        mark=call.mark,
    )
    return crons.run_of(view_workflow(submitted.workflow))


async def backfill_cron(call: Call[BackfillRequest, None]) -> BackfillAnswer:
    """Run the slots of a past period that did not run, oldest first.

    The operator starts them, `parallel` at a time. 409 while another backfill of this schedule runs.
    """
    call.audit("backfill cron", f"{call.namespace}/{call.name}")
    return await crons.backfill_cron(
        call.api,
        call.namespace,
        call.name,
        call.body.begin,
        call.body.end,
        now=call.context.now(),
        parallel=call.body.parallel,
        dry_run=call.body.dry_run,
        records=records_of(call.context, call.user),
    )


async def show_history(call: Call[None, None]) -> CronHistory:
    """List the runs of a schedule, newest first, also those with deleted objects."""
    runs = await crons.cron_history(call.api, call.namespace, call.name, records_of(call.context, call.user))
    return CronHistory(runs=tuple(runs))


async def delete_cron(call: Call[None, None]) -> None:
    """Delete a schedule and its workflows. The records of their runs stay."""
    call.audit("delete cron", f"{call.namespace}/{call.name}")
    await crons.delete_cron(call.api, call.namespace, call.name)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_crons, query=Page, answer=CronList),
    Endpoint(method="POST", path=ALL, handler=create_cron, body=NewCron, answer=Cron, status=201, once=True),
    Endpoint(method="GET", path=ONE, handler=show_cron, answer=Cron),
    Endpoint(method="PUT", path=ONE, handler=replace_cron, body=NewCron, answer=Cron),
    Endpoint(method="DELETE", path=ONE, handler=delete_cron),
    Endpoint(method="POST", path=f"{ONE}/suspend", handler=suspend_cron, answer=Cron),
    Endpoint(method="POST", path=f"{ONE}/resume", handler=resume_cron, answer=Cron),
    Endpoint(
        method="POST",
        path=f"{ONE}/run",
        handler=run_cron,
        body=CronStart,
        answer=CronRun,
        status=201,
        once=True,
        optional_body=True,
    ),
    Endpoint(
        method="POST", path=f"{ONE}/backfill", handler=backfill_cron, body=BackfillRequest, answer=BackfillAnswer
    ),
    Endpoint(method="GET", path=f"{ONE}/history", handler=show_history, answer=CronHistory),
)
