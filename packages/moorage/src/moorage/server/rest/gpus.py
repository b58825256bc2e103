"""/api/v1/gpus: every GPU of every node and its user; and whether pods here run as processes."""

from __future__ import annotations

from typing import Any

from moorage.api.gpus import GpuQuery, Gpus
from moorage.model.names import is_dns_label
from moorage.model.tenant import tenant_of
from moorage.present.gpusanswer import make_gpus
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.resources import JOBS, Obj

TENANT_FIELDS = ("namespace", "defaults", "restartLimit")  # that decide about runs


async def list_gpus(call: Call[None, GpuQuery]) -> Gpus:
    """Every GPU of every node, with its user; whether pods run as processes. With `namespace`: also the
    defaults of its tenant, for users who may create Jobs in it.
    """
    cluster = await call.context.ready()
    return make_gpus(
        cluster.gpus(), now=call.context.now(), process_runtime=cluster.on_processes(), tenant=await _tenant(call)
    )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/gpus", handler=list_gpus, query=GpuQuery, answer=Gpus),
)


async def _tenant(call: Call[None, GpuQuery]) -> Obj | None:
    """The fields of the namespace's Tenant that decide about runs.

    None without a Tenant or the right to create Jobs.
    """
    namespace, context = call.query.namespace, call.context
    if not is_dns_label(namespace):
        return None
    if not await context.auth.may(call.user, "create", JOBS.plural, group=JOBS.group, namespace=namespace):
        return None
    tenant = tenant_of(namespace, await context.tenants.all())
    if tenant is None:
        return None
    spec = {field: value for field, value in tenant["spec"].items() if field in TENANT_FIELDS}
    return {"metadata": {"name": tenant["metadata"]["name"]}, "spec": spec}
