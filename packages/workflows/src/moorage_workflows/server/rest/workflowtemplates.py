"""/api/v1/workflow-templates and /api/v1/cluster-workflow-templates, on the paths of Argo's server."""

from __future__ import annotations

from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.workflows import Done, NewTemplate, WorkflowTemplate, WorkflowTemplateList, as_template
from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.errors import UsageError
from moorage_workflows.actions import workflowtemplates
from moorage_workflows.actions.workflowlints import checks_of

ALL = "/api/v1/workflow-templates"
CLUSTER = "/api/v1/cluster-workflow-templates"
BODY_BYTES = 3 * 1024 * 1024  # kube-apiserver's limit


async def list_templates(call: Call[None, None]) -> WorkflowTemplateList:
    """List the WorkflowTemplates of a namespace, or of all namespaces."""
    items = await workflowtemplates.list_templates(call.api, call.path.get("namespace"))
    return WorkflowTemplateList(items=tuple(as_template(item) for item in items))


async def list_cluster_templates(call: Call[None, None]) -> WorkflowTemplateList:
    """List the ClusterWorkflowTemplates."""
    items = await workflowtemplates.list_templates(call.api, None, cluster=True)
    return WorkflowTemplateList(
        items=tuple(as_template(item) for item in items), kind="ClusterWorkflowTemplateList"
    )


async def create_template(call: Call[NewTemplate, None]) -> tuple[int, WorkflowTemplate]:
    """Create a WorkflowTemplate, or a ClusterWorkflowTemplate."""
    dry_run = bool(call.body.create_options.get("dryRun"))
    return 200 if dry_run else 201, await _create(call, dry_run=dry_run)


async def lint_template(call: Call[NewTemplate, None]) -> WorkflowTemplate:
    """Run the checks of a create request on a template; nothing is created."""
    return await _create(call, dry_run=True)


async def replace_template(call: Call[NewTemplate, None]) -> WorkflowTemplate:
    """Replace the spec of a template. Running workflows continue with the spec that they started with."""
    document = _document(call)
    written = str((document.get("metadata") or {}).get("name") or "")
    if written != call.name:
        raise UsageError(
            f"the manifest is of {written!r}, the path of {call.name!r}", field="template.metadata.name"
        )
    await _get(call)
    check = checks_of(call.api, _namespace(call), evaluation=call.context.evaluation)
    changed, _ = await workflowtemplates.apply_template(call.api, _namespace(call), document, check=check)
    return as_template(changed)


async def show_template(call: Call[None, None]) -> WorkflowTemplate:
    """Show a template."""
    return as_template(await _get(call))


async def delete_template(call: Call[None, None]) -> Done:
    """Delete a template. Running workflows continue with the spec that they started with."""
    await workflowtemplates.delete_template(call.api, _namespace(call), call.name, cluster=_is_cluster(call))
    return Done()


async def _get(call: Call[Any, Any]) -> dict[str, Any]:
    return await workflowtemplates.get_template(call.api, _namespace(call), call.name, cluster=_is_cluster(call))


def _document(call: Call[NewTemplate, None]) -> dict[str, Any]:
    """The manifest; clients of Argo may leave out the fields that are in the path. Raises UsageError for
    another kind.
    """
    resource = CLUSTER_WORKFLOW_TEMPLATES if _is_cluster(call) else WORKFLOW_TEMPLATES
    document = {"apiVersion": resource.api_version, "kind": resource.kind, **call.body.template}
    if document["kind"] != resource.kind:
        raise UsageError(
            f"invalid kind {document['kind']!r}: use {resource.kind} here",
            code=ErrorCode.INVALID,
            field="template.kind",
        )
    return document


async def _create(call: Call[NewTemplate, None], *, dry_run: bool) -> WorkflowTemplate:
    made = await workflowtemplates.create_template(
        call.api,
        _namespace(call),
        _document(call),
        check=checks_of(call.api, _namespace(call), evaluation=call.context.evaluation),
        dry_run=dry_run,
    )
    return as_template(made)


def _namespace(call: Call[Any, Any]) -> str:
    return str(call.path.get("namespace") or "")


def _is_cluster(call: Call[Any, Any]) -> bool:
    return "namespace" not in call.path


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_templates, answer=WorkflowTemplateList),
    Endpoint(method="GET", path=f"{ALL}/{{namespace}}", handler=list_templates, answer=WorkflowTemplateList),
    Endpoint(method="GET", path=CLUSTER, handler=list_cluster_templates, answer=WorkflowTemplateList),
    *(
        endpoint
        for base in (f"{ALL}/{{namespace}}", CLUSTER)
        for endpoint in (
            Endpoint(
                method="POST",
                path=base,
                handler=create_template,
                body=NewTemplate,
                answer=WorkflowTemplate,
                status=201,
                body_bytes=BODY_BYTES,
            ),
            Endpoint(
                method="POST",
                path=f"{base}/lint",
                handler=lint_template,
                body=NewTemplate,
                answer=WorkflowTemplate,
                body_bytes=BODY_BYTES,
            ),
            Endpoint(method="GET", path=f"{base}/{{name}}", handler=show_template, answer=WorkflowTemplate),
            Endpoint(
                method="PUT",
                path=f"{base}/{{name}}",
                handler=replace_template,
                body=NewTemplate,
                answer=WorkflowTemplate,
                body_bytes=BODY_BYTES,
            ),
            Endpoint(method="DELETE", path=f"{base}/{{name}}", handler=delete_template, answer=Done),
        )
    ),
)
