"""Workflows: submit, list, read, stop, resume, retry, resubmit and delete them.

A Workflow is an object of Kubernetes; it is created and changed as its user. The server stores its nodes:
`Records` returns them. Where Argo's controller runs, the nodes are in the object. docs/design/0017-workflows.md
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from moorage.actions.objects import create_once
from moorage.api.errors import ErrorCode
from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS, is_ours
from moorage.model.names import NAME_COMPARED, is_dns_label
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.clock import Clock
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    NotReady,
    Problems,
    SelectorError,
    UsageError,
)
from moorage_kube.meta import annotations_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import Obj, Resource
from moorage_kube.selectors import parse_label_selector
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.submission import (
    Additions,
    argo_limits,
    check_retry,
    declared_parameters,
    named_by_mark,
    resubmitted,
    source_of,
    with_additions,
    workflow_from,
)
from moorage_workflows.decide.workflows.views import (
    ENDED,
    PHASES,
    WorkflowView,
    as_gone,
    is_suspended_node,
    matching_nodes,
    view_workflow,
)
from moorage_workflows.model.workflow import (
    RESUME_ANNOTATION,
    RETRY_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    NodePhase,
    Resume,
    Retry,
)

LATEST = "@latest"  # in place of a name: the workflow that was created last
NEAR_NAMES = 3  # that an error offers
INSTALL = "install Moorage's definitions: moor manifests | kubectl apply -f -"
LOOK_SECONDS = (0.2, 2.0)  # first and longest pause between two looks


class Choice(Struct, frozen=True, kw_only=True):
    """The filters of a list of workflows. `phases` empty: all; `since`: created at that time or later."""

    phases: tuple[str, ...] = ()
    prefix: str = ""
    cron: str = ""
    since: datetime | None = None
    selector: str = ""
    limit: int | None = None


class Records(Protocol):
    """The server's records of workflows, as Workflow objects. Raises ApiError if the server refuses."""

    async def read(self, namespace: str, name: str, live: Obj | None) -> Obj | None:
        """The newest run of this name with its nodes, or that of the object `live`; None if none is on record."""
        ...

    async def listed(self, namespace: str | None, choice: Choice) -> Sequence[Obj]:
        """The runs on record, without their nodes; also runs whose objects exist."""
        ...


class NoRecords:
    """Records of workflows without a server: none."""

    async def read(self, namespace: str, name: str, live: Obj | None) -> Obj | None:  # noqa: ARG002
        return None

    async def listed(self, namespace: str | None, choice: Choice) -> Sequence[Obj]:  # noqa: ARG002
        return ()


Check = Callable[[Obj], Awaitable[Sequence[str]]]
"""Checks a Workflow before it is created: warnings. Raises Problems with all that is wrong."""


async def no_check(_document: Obj) -> Sequence[str]:
    return ()


class Submitted(Struct, frozen=True):
    """A Workflow as it was created. `notes`: warnings for its user."""

    workflow: Obj
    controller: Controller
    notes: tuple[str, ...] = ()


# -- submitting


async def submit_workflow(
    api: Api,
    namespace: str,
    document: Mapping[str, Any],
    additions: Additions,
    *,
    controller: Controller,
    check: Check = no_check,
    mark: str = "",
    dry_run: bool = False,
) -> Submitted:
    """Check a manifest, apply the user's additions, and create it as the caller.

    Where Argo runs workflows, the object has none of our marks and must fit the limits of Argo's definitions.
    `mark`: the same request again returns the same Workflow. Raises UsageError, Problems, AlreadyExists,
    NotReady where the cluster has no such kind, ApiError.
    """
    _check_kind(document)
    if controller is Controller.ARGO and TAKE_OVER_ANNOTATION in annotations_of(document):
        raise Conflict(
            "Argo runs workflows here: it cannot take over results from Moorage's records",
            hint="submit it without --memoized",
            code=ErrorCode.CONFLICT,
        )
    declared = declared_parameters(document.get("spec") or {})
    if reference := (document.get("spec") or {}).get("workflowTemplateRef"):
        declared = await _declared_by_template(api, namespace, reference) | declared
    made = with_additions(
        document, additions, namespace=namespace, ours=controller is Controller.MOORAGE, declared=declared
    )
    if controller is Controller.ARGO:
        _refuse_for_argo(argo_limits(made))
    notes = tuple(await check(made)) if controller is not Controller.ARGO else ()
    made = named_by_mark(made, mark)
    created = await _create(api, made, namespace, mark=mark, dry_run=dry_run)
    return Submitted(created, controller, notes)


async def read_source(api: Api, namespace: str, text: str) -> Obj:
    """Return the Workflow that KIND/NAME starts, before additions. Raises UsageError, NotFound, ApiError."""
    resource, name = source_of(text)
    where = namespace if resource.namespaced else None
    try:
        source = await api.get(resource, name, where)
    except NotFound as error:
        raise await missing(api, resource, namespace, name) from error
    return workflow_from(resource, source)


async def _declared_by_template(api: Api, namespace: str, reference: Any) -> dict[str, Mapping[str, Any]]:
    """The parameters of the template that a Workflow refers to; empty if it is unreadable, which lint reports."""
    if not isinstance(reference, Mapping) or not isinstance(reference.get("name"), str):
        return {}
    cluster = reference.get("clusterScope") is True
    try:
        if cluster:
            template = await api.get(CLUSTER_WORKFLOW_TEMPLATES, reference["name"])
        else:
            template = await api.get(WORKFLOW_TEMPLATES, reference["name"], namespace)
    except ApiError:
        return {}
    return declared_parameters(template.get("spec") or {})


def _check_kind(document: Mapping[str, Any]) -> None:
    kind, version = document.get("kind"), str(document.get("apiVersion") or "")
    if kind == WORKFLOWS.kind and version == WORKFLOWS.api_version:
        return
    hints = {
        "CronWorkflow": "create a schedule: moor cron create FILE; or run it once: moor workflow submit"
        " --from cronworkflow/NAME",
        "WorkflowTemplate": "create it: moor workflow template create FILE",
        "ClusterWorkflowTemplate": "create it: moor workflow template create FILE --cluster",
    }
    raise UsageError(
        f"cannot submit {version or 'no apiVersion'}/{kind or 'no kind'}: use a {WORKFLOWS.kind} of"
        f" {WORKFLOWS.api_version}",
        hint=hints.get(str(kind)),
        code=ErrorCode.INVALID,
        field="kind",
    )


def _refuse_for_argo(limits: Sequence[str]) -> None:
    if limits:
        raise Problems(
            [(f"Argo, which runs workflows here, refuses this one: {text}", None) for text in limits],
            code=ErrorCode.INVALID,
            field=limits[0].partition(":")[0],
        )


async def _create(api: Api, made: Obj, namespace: str, *, mark: str, dry_run: bool) -> Obj:
    name = made["metadata"].get("name")
    try:
        if name is None:
            return await api.create(WORKFLOWS, made, namespace, dry_run=dry_run)
        return await create_once(api, WORKFLOWS, made, namespace, mark, dry_run=dry_run)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"the name {name!r} is taken: another workflow in namespace {namespace} has it",
            hint=f"show it: moor workflow get {name}; or choose a prefix: --generate-name {name}-",
            code=ErrorCode.EXISTS,
            field="metadata.name",
        ) from error
    except NotFound as error:
        raise _unknown_kind(error, WORKFLOWS) from error


def _unknown_kind(error: NotFound, resource: Resource) -> ApiError | NotReady:
    if "namespaces" in error.message:
        return error
    return NotReady(f"this cluster has no kind {resource.kind}", hint=INSTALL)


# -- reading


async def list_workflows(
    api: Api, namespace: str | None, choice: Choice, records: Records | None = None
) -> tuple[WorkflowView, ...]:
    """The workflows of a namespace (None: of all), newest first, with deleted ones on record.

    If the records cannot be read, the list has the existing objects. Raises UsageError, NotReady, ApiError.
    """
    _check_choice(choice)
    records_kept = await _kept(
        records, namespace, choice
    )  # first: a workflow that is created meanwhile is not taken for deleted
    try:
        objects = (await api.list(WORKFLOWS, namespace, label_selector=choice.selector or None)).items
    except NotFound as error:
        raise _unknown_kind(error, WORKFLOWS) from error
    by_uid = {str(obj["metadata"].get("uid")): obj for obj in objects}
    for kept in records_kept:
        uid = str(kept["metadata"].get("uid"))
        # the record is written before the object: it knows more of the same run
        by_uid[uid] = as_gone(kept) if uid not in by_uid else _newer(by_uid[uid], kept)
    views = [view_workflow(_without_nodes(obj)) for obj in by_uid.values()]
    chosen = [view for view in views if _is_chosen(view, choice)]
    chosen.sort(key=lambda view: (view.created is not None, view.created, view.name), reverse=True)
    return tuple(chosen[: choice.limit])


async def _kept(records: Records | None, namespace: str | None, choice: Choice) -> Sequence[Obj]:
    try:
        return await records.listed(namespace, choice) if records is not None else ()
    except (ApiError, NotReady):
        return ()


def _newer(live: Obj, kept: Obj) -> Obj:
    """Return the object with the status of its record, if the record has ended and the object has not."""
    phase, known = (live.get("status") or {}).get("phase"), (kept.get("status") or {}).get("phase")
    return live if phase in ENDED or known not in ENDED else {**live, "status": kept["status"]}


def _without_nodes(obj: Obj) -> Obj:
    status = {key: value for key, value in (obj.get("status") or {}).items() if not key.endswith("odes")}
    return {**obj, "status": status}


def _check_choice(choice: Choice) -> None:
    for phase in choice.phases:
        if phase not in PHASES:
            raise UsageError(
                f"invalid status {phase!r}: use {', '.join(PHASES)}", code=ErrorCode.BAD_REQUEST, field="status"
            )
    try:
        parse_label_selector(choice.selector)
    except SelectorError as error:
        raise UsageError(error.message, hint=error.hint, code=ErrorCode.BAD_REQUEST, field="selector") from error


def _is_chosen(view: WorkflowView, choice: Choice) -> bool:
    return (
        (not choice.phases or view.phase in choice.phases)
        and view.name.startswith(choice.prefix)
        and (not choice.cron or view.cron == choice.cron)
        and (choice.since is None or (view.created is not None and view.created >= choice.since))
        and parse_label_selector(choice.selector).matches(view.labels)
    )


async def get_workflow(api: Api, namespace: str, name: str, records: Records | None = None) -> Obj:
    """A Workflow with its nodes, also a deleted one on record. `name` may be `@latest`. Raises NotFound."""
    name = await resolve_name(api, namespace, name)
    live = await _live(api, namespace, name)
    kept = await records.read(namespace, name, live) if records is not None else None
    if kept is None and live is None:
        raise await missing(api, WORKFLOWS, namespace, name)
    if live is None:
        return as_gone(kept or {})
    if kept is None:
        return live
    is_argos = bool((live.get("status") or {}).get("nodes") or (live.get("status") or {}).get("compressedNodes"))
    return live if is_argos else kept


async def resolve_name(api: Api, namespace: str, name: str) -> str:
    """Return the name of a workflow; `@latest` is the workflow that was created last. Raises NotFound."""
    if name != LATEST:
        return name
    views = await list_workflows(api, namespace, Choice(limit=1))
    if not views:
        raise NotFound(
            f"no workflows in namespace {namespace}",
            hint="submit one: moor workflow submit FILE",
            code=ErrorCode.NOT_FOUND,
        )
    return views[0].name


async def _live(api: Api, namespace: str, name: str) -> Obj | None:
    if not is_dns_label(name):
        return None
    try:
        return await api.get(WORKFLOWS, name, namespace)
    except NotFound:
        return None


async def missing(api: Api, resource: Resource, namespace: str, name: str) -> NotFound:
    """Return the error for an object that does not exist. Its hint has similar names that the caller may list."""
    noun, command = {
        WORKFLOWS: ("workflow", "moor workflow list"),
        WORKFLOW_TEMPLATES: ("workflow template", "moor workflow template list"),
        CLUSTER_WORKFLOW_TEMPLATES: ("cluster workflow template", "moor workflow template list --cluster"),
    }.get(resource, ("cron workflow", "moor cron list"))
    where = f" in namespace {namespace}" if resource.namespaced else ""
    try:
        known = (await api.list(resource, namespace if resource.namespaced else None)).items
    except ApiError:
        known = []
    near = get_close_matches(name[:NAME_COMPARED], [obj["metadata"]["name"] for obj in known], n=NEAR_NAMES)
    return NotFound(
        f"{noun} {name!r} not found{where}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"list them: {command}",
        code=ErrorCode.NOT_FOUND,
    )


async def wait_workflow(
    api: Api,
    namespace: str,
    name: str,
    clock: Clock,
    *,
    records: Records | None = None,
    seen: Callable[[WorkflowView], None] = lambda _: None,
) -> WorkflowView:
    """Return the workflow once it has ended; `seen` gets it after each change. NotFound: it was deleted."""
    pause, before = LOOK_SECONDS[0], ("", -1, -1)
    while True:
        live = await _live(api, namespace, name)
        if live is None:
            return view_workflow(await get_workflow(api, namespace, name, records))
        view = view_workflow(_without_nodes(live))
        if (view.phase, view.done, view.total) != before:
            before = (view.phase, view.done, view.total)
            pause = LOOK_SECONDS[0]
            seen(view)
        if view.has_ended:
            return view
        await clock.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS[1])


# -- changing


async def stop_workflow(api: Api, namespace: str, name: str, *, terminate: bool = False) -> Obj:
    """Stop a workflow: running steps end, and no more steps start. Its exit handler runs, unless `terminate`.

    Raises Conflict if the workflow has ended.
    """
    live = await _unfinished(api, namespace, name)
    if str((live.get("spec") or {}).get("shutdown") or "") == "Terminate":
        return live
    patch: Obj = {"spec": {"shutdown": "Terminate" if terminate else "Stop"}}
    return await api.patch(WORKFLOWS, live["metadata"]["name"], patch, namespace)


async def suspend_workflow(api: Api, namespace: str, name: str) -> Obj:
    """Suspend a workflow: no more steps start, running steps continue. Raises Conflict if it has ended."""
    live = await _unfinished(api, namespace, name)
    return await api.patch(WORKFLOWS, live["metadata"]["name"], {"spec": {"suspend": True}}, namespace)


async def resume_workflow(
    api: Api,
    namespace: str,
    name: str,
    resume: Resume,
    *,
    now: datetime,
    records: Records | None = None,
) -> Obj:
    """Resume a workflow and its suspended nodes.

    With a selector, resume only the selected nodes, or let them fail.

    If the nodes are known and no selected node waits, raises Conflict. Raises UsageError.
    """

    async def read() -> tuple[Obj, Obj]:
        live = await _unfinished(api, namespace, name)
        view = view_workflow(await get_workflow(api, namespace, live["metadata"]["name"], records))
        chosen = [node for node in _matching(view, resume.selector) if is_suspended_node(node)]
        is_spec = view.is_suspended and not resume.selector
        if not chosen and not is_spec and (view.nodes or view.unreadable):
            what = f"matches {resume.selector!r} and waits" if resume.selector else "waits"
            raise Conflict(
                f"no node of workflow {view.name!r} {what} for a person",
                hint=f"show its nodes: moor workflow get {view.name}",
                code=ErrorCode.CONFLICT,
            )
        patch: Obj = {}
        if is_spec:
            patch["spec"] = {"suspend": None}
        if _is_argos(live):
            patch["status"] = _resumed_for_argo(live, view, [node.id for node in chosen], resume, now)
        elif chosen or not view.nodes:
            asked = [*_asked(live), msgspec.to_builtins(resume)]
            patch["metadata"] = {"annotations": {RESUME_ANNOTATION: json.dumps(asked)}}
        return live, patch

    return await change_as_read(api, WORKFLOWS, read)


def _matching(view: WorkflowView, selector: str) -> Iterable[Any]:
    try:
        return matching_nodes(view.nodes, selector)
    except SelectorError as error:
        raise UsageError(
            error.message, hint=error.hint, code=ErrorCode.BAD_REQUEST, field="nodeFieldSelector"
        ) from error


def _asked(live: Obj) -> list[Any]:
    """The resume requests that the operator has not carried out yet."""
    try:
        asked = json.loads(annotations_of(live).get(RESUME_ANNOTATION) or "[]")
    except ValueError:
        return []
    return asked if isinstance(asked, list) else []


def _is_argos(live: Obj) -> bool:
    """Whether Argo's controller runs the workflow. Only Argo's controller writes nodes into the object."""
    status = live.get("status") or {}
    return not is_ours(live) and any(
        status.get(key) for key in ("nodes", "compressedNodes", "offloadNodeStatusVersion")
    )


def _resumed_for_argo(live: Obj, view: WorkflowView, chosen: list[str], resume: Resume, now: datetime) -> Obj:
    """Return the nodes as Argo's own client changes them. Raises Conflict if they are compressed."""
    if chosen and not (live.get("status") or {}).get("nodes"):
        raise Conflict(
            f"the nodes of workflow {view.name!r} are packed, and Argo runs it: Moorage cannot change them",
            hint=f"use Argo's own command: argo resume {view.name}",
            code=ErrorCode.CONFLICT,
        )
    phase = NodePhase.FAILED if resume.is_failure else NodePhase.SUCCEEDED
    nodes: Obj = {}
    for identity in chosen:
        node = live["status"]["nodes"][identity]
        outputs = dict(node.get("outputs") or {})
        parameters = [dict(each) for each in outputs.get("parameters") or ()]
        unknown = sorted(resume.parameters.keys() - {str(each.get("name")) for each in parameters})
        if unknown:
            raise UsageError(
                f"the node {node.get('displayName')!r} supplies no output parameter {unknown[0]!r}",
                code=ErrorCode.INVALID,
                field="outputParameters",
            )
        for each in parameters:
            if each.get("name") in resume.parameters:
                each |= {"value": resume.parameters[each["name"]], "valueFrom": None}
        outputs["parameters"] = parameters
        nodes[identity] = {"phase": str(phase), "finishedAt": rfc3339(now)} | (
            {"outputs": outputs} if parameters else {}
        )
        if resume.message:
            nodes[identity]["message"] = resume.message
    return {"nodes": nodes} if nodes else {}


async def retry_workflow(
    api: Api,
    namespace: str,
    name: str,
    retry: Retry,
    *,
    records: Records | None = None,
) -> Obj:
    """Run the failed steps of an ended workflow again, and the steps after them.

    Steps that succeeded do not run again, except nodes selected with `restart_successful`. Raises Conflict for a
    workflow that has not ended or is deleted.
    """
    name = await resolve_name(api, namespace, name)

    async def read() -> tuple[Obj, Obj]:
        live = await _retryable(api, namespace, name, retry, records)
        return live, {
            "metadata": {"annotations": {RETRY_ANNOTATION: json.dumps(msgspec.to_builtins(retry))}},
            "spec": {"shutdown": None, "suspend": None},
        }

    return await change_as_read(api, WORKFLOWS, read)


async def _retryable(api: Api, namespace: str, name: str, retry: Retry, records: Records | None) -> Obj:
    """Return the object of a workflow that may be retried. Raises as `retry_workflow`."""
    live = await _live(api, namespace, name)
    if live is None:
        gone = view_workflow(await get_workflow(api, namespace, name, records))
        raise Conflict(
            f"workflow {gone.name!r} was deleted: only its record exists",
            hint=f"run it again: moor workflow resubmit {gone.name}",
            code=ErrorCode.CONFLICT,
        )
    view = view_workflow(await get_workflow(api, namespace, name, records))
    check_retry(view.phase, name, restart_successful=retry.restart_successful, selector=retry.selector)
    if retry.selector and view.nodes and not list(_matching(view, retry.selector)):
        raise UsageError(
            f"no node of workflow {name!r} matches {retry.selector!r}",
            hint=f"show its nodes: moor workflow get {name}",
            code=ErrorCode.INVALID,
            field="nodeFieldSelector",
        )
    if _is_argos(live):
        raise Conflict(
            f"Argo runs workflow {name!r}: Moorage cannot retry it",
            hint=f"use Argo's own command: argo retry {name}; or run it again: moor workflow resubmit {name}",
            code=ErrorCode.CONFLICT,
        )
    return live


async def resubmit_workflow(
    api: Api,
    namespace: str,
    name: str,
    additions: Additions,
    *,
    controller: Controller,
    records: Records | None = None,
    check: Check = no_check,
    mark: str = "",
    memoized: bool = False,
) -> Submitted:
    """Submit the spec of a workflow again, also of a deleted one on record. Raises as `submit_workflow`.

    `memoized`: steps that succeeded do not run again. Raises Conflict where that is not possible.
    """
    earlier = await get_workflow(api, namespace, name, records)
    document = resubmitted(earlier, memoized=memoized)
    return await submit_workflow(
        api, namespace, document, additions, controller=controller, check=check, mark=mark
    )


async def delete_workflow(api: Api, namespace: str, name: str) -> str:
    """Delete a workflow with its pods, and return its name. Its records on the server stay. Raises NotFound."""
    name = await resolve_name(api, namespace, name)
    live = await _live(api, namespace, name)
    if live is None:
        raise await missing(api, WORKFLOWS, namespace, name)
    await api.delete(WORKFLOWS, name, namespace, uid=live["metadata"].get("uid"), propagation="Background")
    return name


async def _unfinished(api: Api, namespace: str, name: str) -> Obj:
    """Return the object of a workflow that has not ended. Raises NotFound, Conflict."""
    name = await resolve_name(api, namespace, name)
    live = await _live(api, namespace, name)
    if live is None:
        raise await missing(api, WORKFLOWS, namespace, name)
    phase = str((live.get("status") or {}).get("phase") or "")
    if phase in ENDED:
        hint = f"moor workflow retry {name}" if phase != "Succeeded" else f"moor workflow resubmit {name}"
        raise Conflict(
            f"workflow {name!r} has ended: {phase}", hint=f"run it again: {hint}", code=ErrorCode.CONFLICT
        )
    return live
