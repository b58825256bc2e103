"""GET /api/v1/gpus: every GPU of every node, free or whose."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.decide.gpus import gpu_view_json
from moorage.server.context import Context
from moorage.server.problems import Json


def routes(context: Context) -> list[Route]:
    async def gpus(_: Request) -> Response:
        cluster = await context.ready()
        return Json(gpu_view_json(cluster.gpus(), now=context.now()))

    return [Route("/api/v1/gpus", gpus, methods=["GET"])]
