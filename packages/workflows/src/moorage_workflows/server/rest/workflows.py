"""/api/v1/workflows: submit, list, show, follow and change workflows, on the paths of Argo's server.

Everything is done as the calling user. https://argo-workflows.readthedocs.io/en/latest/swagger/
"""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec
from starlette.responses import Response, StreamingResponse

from moorage import __version__
from moorage.api.errors import ErrorCode
from moorage.api.workflows import (
    ArgoInfo,
    ArgoUser,
    ArgoVersion,
    Done,
    LintWorkflow,
    ListedByArgo,
    LogEntry,
    LogLine,
    LogsByArgo,
    Named,
    NewWorkflow,
    ResubmitWorkflow,
    ResumeWorkflow,
    RetryWorkflow,
    SetNode,
    StopWorkflow,
    SubmitOptions,
    SubmittedFrom,
    Workflow,
    WorkflowList,
    as_workflow,
)
from moorage.decide.timetext import moment_before
from moorage.model.argo import CRON_LABEL
from moorage.model.names import OWNER_ANNOTATION
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import User
from moorage.server.storedruns import RecordsForUser
from moorage_kube.api import PodApi
from moorage_kube.errors import UsageError
from moorage_kube.integers import integer_or
from moorage_kube.moments import rfc3339
from moorage_workflows.actions import workflows
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.actions.workflowlogs import StepLine, WorkflowLog
from moorage_workflows.actions.workflows import Choice, Records, Submitted
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.submission import Additions, pairs_of
from moorage_workflows.decide.workflows.views import ENDED, PENDING, RUNNING, WorkflowView
from moorage_workflows.model.workflow import Resume, Retry
from moorage_workflows.server.rest.workflowrecords import StoreRecords

EVERYWHERE = "/api/v1/workflows"
ALL = f"{EVERYWHERE}/{{namespace}}"
ONE = f"{ALL}/{{name}}"
BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's limit
NDJSON = "application/x-ndjson"
KINDS = ("WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")

_ENCODER = msgspec.json.Encoder()


# -- submitting


async def create_workflow(call: Call[NewWorkflow, None]) -> tuple[int, Workflow]:
    """Submit a workflow: a manifest, or a workflow from a template or a CronWorkflow.

    Argo's clients send only `workflow`. A repeat with the same `Idempotency-Key` creates nothing.
    """
    body = call.body
    if (body.workflow is None) == (body.source is None):
        raise UsageError(
            "a workflow is submitted from a manifest in `workflow`, or from a source in `from`: send one of them",
            code=ErrorCode.BAD_REQUEST,
            field="workflow",
        )
    dry_run = body.dry_run or body.server_dry_run or bool(body.create_options.get("dryRun"))
    additions = Additions(
        name=body.name,
        generate_name=body.generate_name,
        parameters=body.parameters,
        labels=body.labels,
        entrypoint=body.entrypoint,
        service_account=body.service_account,
        priority=body.priority,
        priority_class=body.priority_class,
        host_env=body.host_env,
    )
    document = body.workflow
    if document is None:
        document = await workflows.read_source(call.api, call.namespace, body.source or "")
    # clients of Argo leave out fields that are in the path
    document = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", **document}
    return await _submit(call, document, additions, dry_run=dry_run)


async def submit_from(call: Call[SubmittedFrom, None]) -> tuple[int, Workflow]:
    """Submit a workflow from a template or a CronWorkflow, in the format of Argo's clients."""
    body, options = call.body, call.body.submit_options
    if options.owner_reference is not None:
        raise UsageError(
            "ownerReference is not supported", code=ErrorCode.INVALID, field="submitOptions.ownerReference"
        )
    source = f"{body.resource_kind.lower()}/{body.resource_name}"
    document = await workflows.read_source(call.api, call.namespace, source)
    dry_run = options.dry_run or options.server_dry_run
    return await _submit(call, document, _additions_of(options), dry_run=dry_run)


def _additions_of(options: SubmitOptions) -> Additions:
    notes = options.annotations.split(",") if options.annotations else ()
    return Additions(
        name=options.name,
        generate_name=options.generate_name,
        parameters=options.parameters,
        labels=options.labels.split(",") if options.labels else (),
        annotations=dict(pairs_of(notes, "submitOptions.annotations", "annotation")),
        entrypoint=options.entry_point,
        service_account=options.service_account,
        priority=options.priority,
        priority_class=options.pod_priority_class_name,
    )


def checks_for(call: Call[Any, Any]) -> workflows.Check:
    """The checks before a Workflow is created in the namespace of a call."""
    context = call.context
    nodes = context.cluster.nodes.all()
    return checks_of(call.api, call.namespace, evaluation=context.evaluation, nodes=nodes)


async def _submit(
    call: Call[Any, Any], document: Mapping[str, Any], additions: Additions, *, dry_run: bool
) -> tuple[int, Workflow]:
    call.audit("submit workflow", f"{call.namespace}/{additions.name}")
    submitted = await workflows.submit_workflow(
        call.api,
        call.namespace,
        document,
        additions,
        controller=await controller_known(call.context),
        check=checks_for(call),
        mark="" if dry_run else call.mark,
        dry_run=dry_run,
    )
    return _answer(call, submitted, dry_run=dry_run)


def _answer(call: Call[Any, Any], submitted: Submitted, *, dry_run: bool = False) -> tuple[int, Workflow]:
    made = as_workflow(submitted.workflow)
    call.audit("submit workflow", f"{call.namespace}/{made.name}")
    return 200 if dry_run else 201, made


async def lint_workflow(call: Call[LintWorkflow, None]) -> Workflow:
    """Check a workflow without creating it."""
    document = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", **call.body.workflow}
    checked = await workflows.submit_workflow(
        call.api,
        call.namespace,
        document,
        Additions(),
        controller=await controller_known(call.context),
        check=checks_for(call),
        dry_run=True,
    )
    return as_workflow(checked.workflow)


# -- reading


async def list_workflows(call: Call[None, ListedByArgo]) -> WorkflowList:
    """List workflows, newest first, also deleted ones that have a record; without their nodes."""
    query = call.query
    if query.watch or query.name_filter not in (None, "", "Contains"):
        raise UsageError(
            "watches and name filters are not supported: get the workflow again, or use `prefix`",
            code=ErrorCode.BAD_REQUEST,
            field="listOptions.watch" if query.watch else "nameFilter",
        )
    choice = choice_of(query, call.context)
    namespace = call.path.get("namespace")
    views = await workflows.list_workflows(call.api, namespace, choice, records_of(call.context, call.user))
    return WorkflowList(items=tuple(summary_of(view) for view in views))


def choice_of(query: ListedByArgo, context: Context) -> Choice:
    """The selection of a query. Raises UsageError for phases that exclude each other."""
    phases = set(query.status)
    if query.running and query.completed:
        raise UsageError(
            "running and completed exclude each other: set only one", code=ErrorCode.BAD_REQUEST, field="running"
        )
    if query.running or query.completed:
        wanted = (PENDING, RUNNING) if query.running else ENDED
        phases = phases & set(wanted) if phases else set(wanted)
        if not phases:
            phases = {""}  # chooses nothing
    limit = query.limit or integer_or(query.limit_by_argo, 0) or None
    return Choice(
        phases=tuple(sorted(phases)),
        prefix=query.prefix,
        cron=query.cron,
        since=None if query.since is None else moment_before(query.since, context.now(), "since"),
        selector=",".join(filter(None, (query.selector, query.label_selector))),
        limit=limit,
    )


def summary_of(view: WorkflowView) -> Workflow:
    """A row of the list as an object: the fields that users select by, without any that grow with the steps."""
    status: dict[str, Any] = {
        "phase": view.phase,
        "message": view.message,
        "startedAt": rfc3339(view.started) if view.started else "",
        "finishedAt": rfc3339(view.finished) if view.finished else "",
        "progress": view.progress,
        "gone": view.is_gone,
        "goneAt": view.gone_at,
    }
    notes = {OWNER_ANNOTATION: view.owner} if view.owner else {}
    labels = dict(view.labels) | ({CRON_LABEL: view.cron} if view.cron else {})
    meta: dict[str, Any] = {"namespace": view.namespace, "name": view.name, "uid": view.uid}
    if view.created:
        meta["creationTimestamp"] = rfc3339(view.created)
    meta |= {key: value for key, value in (("labels", labels), ("annotations", notes)) if value}
    spec: dict[str, Any] = {"suspend": True} if view.is_suspended else {}
    return Workflow(metadata=meta, spec=spec, status={key: value for key, value in status.items() if value})


async def show_workflow(call: Call[None, None]) -> Workflow:
    """Show a workflow with its nodes, also a deleted one that has a record. `@latest` is the newest."""
    records = records_of(call.context, call.user)
    return as_workflow(await workflows.get_workflow(call.api, call.namespace, call.name, records))


async def workflow_logs(call: Call[None, LogsByArgo]) -> Response:
    """Show the logs of a workflow's steps, one JSON object per line; with `follow=true` until it has ended."""
    query, context = call.query, call.context
    log = WorkflowLog(
        cast(PodApi, call.api),
        call.namespace,
        call.name,
        clock=context.clock,
        step=query.step,
        pod=str(call.path.get("pod") or query.pod_name),
        container=query.container,
        tail=query.tail if query.tail is not None else query.tail_by_argo,
        since_seconds=query.since_seconds,
        records=records_of(context, call.user),
        pod_records=RecordsForUser(context, call.user),
    )
    await log.open()
    follow = query.follow or query.follow_by_argo

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(log.follow() if follow else log.read()) as events:
            async for event in events:
                if isinstance(event, StepLine):
                    text = event.text.decode(errors="replace")
                else:
                    text = f"--- {event.message}"
                entry = LogEntry(content=text, pod_name=event.pod, step=event.step)
                yield _ENCODER.encode(LogLine(result=entry)) + b"\n"

    headers = {"x-accel-buffering": "no", "cache-control": "no-store"}
    return StreamingResponse(lines(), media_type=NDJSON, headers=headers)


# -- changing


async def stop_workflow(call: Call[StopWorkflow, None]) -> Workflow:
    """Stop a workflow; its exit handler runs. With a selector, let the selected suspended nodes fail instead."""
    body = call.body
    if body.node_field_selector:
        resume = Resume(selector=body.node_field_selector, message=body.message, is_failure=True)
        return await _resume(call, resume)
    return as_workflow(await workflows.stop_workflow(call.api, call.namespace, call.name))


async def terminate_workflow(call: Call[Named, None]) -> Workflow:
    """Stop a workflow at once; its exit handler does not run."""
    return as_workflow(await workflows.stop_workflow(call.api, call.namespace, call.name, terminate=True))


async def suspend_workflow(call: Call[Named, None]) -> Workflow:
    """Suspend a workflow: no more steps start."""
    return as_workflow(await workflows.suspend_workflow(call.api, call.namespace, call.name))


async def resume_workflow(call: Call[ResumeWorkflow, None]) -> Workflow:
    """Resume a suspended workflow or its suspended nodes."""
    body = call.body
    return await _resume(call, Resume(selector=body.node_field_selector, message=body.message))


async def set_node(call: Call[SetNode, None]) -> Workflow:
    """Set the outputs of a suspended node, and let the node succeed or fail."""
    body = call.body
    if body.phase not in ("", "Succeeded", "Failed"):
        raise UsageError(
            f"invalid phase {body.phase!r}: use Succeeded or Failed", code=ErrorCode.INVALID, field="phase"
        )
    resume = Resume(
        selector=body.node_field_selector,
        parameters=_output_parameters(body.output_parameters),
        message=body.message,
        is_failure=body.phase == "Failed",
    )
    return await _resume(call, resume)


def _output_parameters(given: Mapping[str, str] | str) -> dict[str, str]:
    if not isinstance(given, str):
        return dict(given)
    try:
        values = json.loads(given or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise UsageError(
            f"invalid outputParameters {given!r}: use a JSON object of names and values",
            code=ErrorCode.INVALID,
            field="outputParameters",
        )
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


async def _resume(call: Call[Any, Any], resume: Resume) -> Workflow:
    return as_workflow(
        await workflows.resume_workflow(
            call.api,
            call.namespace,
            call.name,
            resume,
            now=call.context.now(),
            records=records_of(call.context, call.user),
        )
    )


async def retry_workflow(call: Call[RetryWorkflow, None]) -> Workflow:
    """Run the failed steps of an ended workflow again, and the steps after them."""
    body = call.body
    if body.parameters:
        raise UsageError(
            "a retry keeps the workflow's parameters",
            hint="use resubmit",
            code=ErrorCode.INVALID,
            field="parameters",
        )
    retry = Retry(selector=body.node_field_selector, restart_successful=body.restart_successful)
    return as_workflow(
        await workflows.retry_workflow(
            call.api, call.namespace, call.name, retry, records=records_of(call.context, call.user)
        )
    )


async def resubmit_workflow(call: Call[ResubmitWorkflow, None]) -> tuple[int, Workflow]:
    """Submit the spec of a workflow again, also of a deleted one that has a record."""
    submitted = await workflows.resubmit_workflow(
        call.api,
        call.namespace,
        call.name,
        Additions(parameters=call.body.parameters),
        controller=await controller_known(call.context),
        check=checks_for(call),
        records=records_of(call.context, call.user),
        mark=call.mark,
        memoized=call.body.memoized,
    )
    return _answer(call, submitted)


async def delete_workflow(call: Call[None, None]) -> Done:
    """Delete a workflow with its pods. The server retains its records for a time."""
    await workflows.delete_workflow(call.api, call.namespace, call.name)
    return Done()


# -- requests of Argo's clients


async def show_info(call: Call[None, None]) -> ArgoInfo:
    """Show which controller runs workflows on this cluster, in Argo's format."""
    return ArgoInfo(controller=str(await controller_known(call.context)))


async def show_version(_call: Call[None, None]) -> ArgoVersion:
    """Show the version of this server, in Argo's format."""
    return ArgoVersion(version=__version__, platform=f"{platform.system().lower()}/{platform.machine()}")


async def show_user(call: Call[None, None]) -> ArgoUser:
    """Show the calling user, in Argo's format."""
    return ArgoUser(name=call.user.name, subject=call.user.account, groups=tuple(call.user.groups))


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=EVERYWHERE, handler=list_workflows, query=ListedByArgo, answer=WorkflowList),
    Endpoint(method="GET", path=ALL, handler=list_workflows, query=ListedByArgo, answer=WorkflowList),
    Endpoint(
        method="POST",
        path=ALL,
        handler=create_workflow,
        body=NewWorkflow,
        answer=Workflow,
        status=201,
        once=True,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(
        method="POST",
        path=f"{ALL}/submit",
        handler=submit_from,
        body=SubmittedFrom,
        answer=Workflow,
        status=201,
        once=True,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(
        method="POST",
        path=f"{ALL}/lint",
        handler=lint_workflow,
        body=LintWorkflow,
        answer=Workflow,
        body_bytes=BODY_BYTES,
    ),
    Endpoint(method="GET", path=ONE, handler=show_workflow, answer=Workflow),
    Endpoint(method="DELETE", path=ONE, handler=delete_workflow, answer=Done),
    Endpoint(method="GET", path=f"{ONE}/log", handler=workflow_logs, query=LogsByArgo, media_type=NDJSON),
    Endpoint(method="GET", path=f"{ONE}/{{pod}}/log", handler=workflow_logs, query=LogsByArgo, media_type=NDJSON),
    Endpoint(method="PUT", path=f"{ONE}/stop", handler=stop_workflow, body=StopWorkflow, answer=Workflow),
    Endpoint(method="PUT", path=f"{ONE}/terminate", handler=terminate_workflow, body=Named, answer=Workflow),
    Endpoint(method="PUT", path=f"{ONE}/suspend", handler=suspend_workflow, body=Named, answer=Workflow),
    Endpoint(method="PUT", path=f"{ONE}/resume", handler=resume_workflow, body=ResumeWorkflow, answer=Workflow),
    Endpoint(method="PUT", path=f"{ONE}/set", handler=set_node, body=SetNode, answer=Workflow),
    Endpoint(method="PUT", path=f"{ONE}/retry", handler=retry_workflow, body=RetryWorkflow, answer=Workflow),
    Endpoint(
        method="PUT",
        path=f"{ONE}/resubmit",
        handler=resubmit_workflow,
        body=ResubmitWorkflow,
        answer=Workflow,
        status=201,
        once=True,
    ),
    Endpoint(method="GET", path="/api/v1/info", handler=show_info, answer=ArgoInfo),
    Endpoint(method="GET", path="/api/v1/version", handler=show_version, answer=ArgoVersion),
    Endpoint(method="GET", path="/api/v1/userinfo", handler=show_user, answer=ArgoUser),
)


def records_of(context: Context, user: User) -> Records:
    """The server's records of workflows, as the user may see them."""
    return StoreRecords(context, user)


async def controller_known(context: Context) -> Controller:
    """The controller that runs workflows, as far as the server may read."""
    return await controller_of(context.api, context.now())
