"""GET /api/v1/gpus: every GPU of every node, free or whose; and whether pods here run as processes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.resources import Obj
from moorage.decide.gpus import gpu_view_json
from moorage.model.names import PROCESS_RUNTIME
from moorage.server.context import Context
from moorage.server.problems import Json


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


def routes(context: Context) -> list[Route]:
    async def gpus(_: Request) -> Response:
        """Every GPU of every node, free or whose; and whether pods here run as processes."""
        cluster = await context.ready()
        on_processes = any(_runtime(node).startswith(PROCESS_RUNTIME) for node in cluster.nodes.all())
        body = gpu_view_json(cluster.gpus(), now=context.now())
        return Json(body | {"processRuntime": on_processes})

    return [Route("/api/v1/gpus", gpus, methods=["GET"])]
