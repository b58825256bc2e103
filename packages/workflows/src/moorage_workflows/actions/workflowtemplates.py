"""WorkflowTemplates and ClusterWorkflowTemplates: create, apply, list, read and delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any

from moorage.api.errors import ErrorCode
from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES
from moorage.model.names import is_dns_label
from moorage_kube.api import Api
from moorage_kube.changes import write_as_read
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, NotReady, UsageError
from moorage_kube.resources import Obj, Resource
from moorage_workflows.actions.workflows import INSTALL, Check, missing, no_check

SERVERS_OWN = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
)  # metadata


class Applied(StrEnum):
    """The result of applying a template."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


def resource_of(*, cluster: bool) -> Resource:
    return CLUSTER_WORKFLOW_TEMPLATES if cluster else WORKFLOW_TEMPLATES


def template_of(document: Mapping[str, Any], namespace: str) -> tuple[Resource, Obj]:
    """Return the kind and the object to send for a template's manifest.

    Raises UsageError for another kind or name.
    """
    resource = {each.kind: each for each in (WORKFLOW_TEMPLATES, CLUSTER_WORKFLOW_TEMPLATES)}.get(
        str(document.get("kind"))
    )
    if resource is None or document.get("apiVersion") != resource.api_version:
        raise UsageError(
            f"this is not a template: {document.get('apiVersion') or 'no apiVersion'}/"
            f"{document.get('kind') or 'no kind'}; use a WorkflowTemplate or ClusterWorkflowTemplate of"
            f" {WORKFLOW_TEMPLATES.api_version}",
            code=ErrorCode.INVALID,
            field="kind",
        )
    meta = dict(document.get("metadata") or {})
    name = str(meta.get("name") or "")
    if not all(is_dns_label(part) for part in name.split(".")):
        raise UsageError(
            f"invalid template name {name!r}: use a-z, 0-9, '-' and '.', with a letter or digit at both ends",
            code=ErrorCode.INVALID,
            field="metadata.name",
        )
    written = str(meta.get("namespace") or "")
    if resource.namespaced and written not in ("", namespace):
        raise UsageError(
            f"the template is for namespace {written!r}, the command for {namespace!r}",
            hint=f"create it there: -n {written}; or remove metadata.namespace",
            code=ErrorCode.INVALID,
            field="metadata.namespace",
        )
    for field in SERVERS_OWN:
        meta.pop(field, None)
    if resource.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    return resource, {**document, "metadata": meta}


async def create_template(
    api: Api, namespace: str, document: Mapping[str, Any], *, check: Check = no_check, dry_run: bool = False
) -> Obj:
    """Create a template. Raises AlreadyExists, UsageError; NotReady if the cluster lacks the kind."""
    resource, made = template_of(document, namespace)
    await check(made)
    where = namespace if resource.namespaced else None
    try:
        return await api.create(resource, made, where, dry_run=dry_run)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"the name {made['metadata']['name']!r} is taken by another {resource.kind}",
            hint="replace it: moor workflow template create FILE --replace",
            code=ErrorCode.EXISTS,
            field="metadata.name",
        ) from error
    except NotFound as error:
        if "namespaces" in error.message:
            raise
        raise NotReady(f"this cluster has no kind {resource.kind}", hint=INSTALL) from error


async def apply_template(
    api: Api, namespace: str, document: Mapping[str, Any], *, check: Check = no_check
) -> tuple[Obj, Applied]:
    """Create a template, or replace its spec, labels and annotations.

    Running workflows continue with the templates that they started with. Raises Conflict if the template changed
    after the document was read.
    """
    try:
        return await create_template(api, namespace, document, check=check), Applied.CREATED
    except AlreadyExists:
        pass

    async def read() -> Callable[[], Awaitable[tuple[Obj, Applied]]]:
        resource, stored, wanted = await _replacement(api, namespace, document)

        async def write() -> tuple[Obj, Applied]:
            if wanted == stored:
                return stored, Applied.UNCHANGED
            return await api.update(resource, wanted), Applied.CHANGED

        return write

    return await write_as_read(read)


async def _replacement(api: Api, namespace: str, document: Mapping[str, Any]) -> tuple[Resource, Obj, Obj]:
    """The stored template and its replacement. Raises as `apply_template`."""
    resource, made = template_of(document, namespace)
    where = namespace if resource.namespaced else None
    stored = await api.get(resource, made["metadata"]["name"], where)
    version = (document.get("metadata") or {}).get("resourceVersion")
    if version and version != stored["metadata"].get("resourceVersion"):
        raise Conflict(
            f"the template {made['metadata']['name']!r} was changed since you read it",
            hint="read it again, and repeat your change",
            code=ErrorCode.CONFLICT,
        )
    wanted = {**stored, "spec": made.get("spec") or {}}
    wanted["metadata"] = {
        **stored["metadata"],
        **{
            key: {**(stored["metadata"].get(key) or {}), **made["metadata"][key]}
            for key in ("labels", "annotations")
            if made["metadata"].get(key)
        },
    }
    return resource, stored, wanted


async def list_templates(api: Api, namespace: str | None, *, cluster: bool = False) -> list[Obj]:
    """Return templates, sorted by name. Raises NotReady, ApiError."""
    resource = resource_of(cluster=cluster)
    try:
        items = (await api.list(resource, None if cluster else namespace)).items
    except NotFound as error:
        raise NotReady(f"this cluster has no kind {resource.kind}", hint=INSTALL) from error
    return sorted(items, key=lambda obj: (obj["metadata"].get("namespace") or "", obj["metadata"]["name"]))


async def get_template(api: Api, namespace: str, name: str, *, cluster: bool = False) -> Obj:
    """Raises NotFound."""
    resource = resource_of(cluster=cluster)
    try:
        return await api.get(resource, name, None if cluster else namespace)
    except NotFound as error:
        raise await missing(api, resource, namespace, name) from error


async def delete_template(api: Api, namespace: str, name: str, *, cluster: bool = False) -> None:
    """Delete a template. Running workflows continue with the spec that they started with. Raises NotFound."""
    resource = resource_of(cluster=cluster)
    stored = await get_template(api, namespace, name, cluster=cluster)
    await api.delete(resource, name, None if cluster else namespace, uid=stored["metadata"].get("uid"))
