"""GET /api/v1/gpus: every GPU of every node, free or whose; and whether pods here run as processes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.resources import JOBS, Obj
from moorage.model.names import PROCESS_RUNTIME, is_dns_label
from moorage.model.tenant import tenant_of
from moorage.present.gpusjson import gpu_view_json
from moorage.server.context import Context
from moorage.server.problems import Json


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def routes(context: Context) -> list[Route]:
    async def gpus(request: Request) -> Response:
        """Every GPU of every node, free or whose; whether pods run as processes; with `namespace`, for those
        who may make Jobs in it: what its tenant fills in."""
        cluster = await context.ready()
        on_processes = any(_runtime(node).startswith(PROCESS_RUNTIME) for node in cluster.nodes.all())
        body = gpu_view_json(cluster.gpus(), now=context.now())
        tenant = await _tenant(context, request)
        return Json(body | {"processRuntime": on_processes} | ({"tenant": tenant} if tenant else {}))

    return [Route("/api/v1/gpus", gpus, methods=["GET"])]


async def _tenant(context: Context, request: Request) -> Obj | None:
    """The part of a Tenant that decides over runs in its namespace."""
    namespace = request.query_params.get("namespace") or ""
    if not is_dns_label(namespace):
        return None
    user = request.state.user
    if not await context.auth.may(user, "create", JOBS.plural, group=JOBS.group, namespace=namespace):
        return None
    tenant = tenant_of(namespace, await context.tenants.all())
    if tenant is None:
        return None
    spec = {
        key: value for key, value in tenant["spec"].items() if key in ("namespace", "defaults", "restartLimit")
    }
    return {"metadata": {"name": tenant["metadata"]["name"]}, "spec": spec}
