"""The web page: read, lay out, render. Its live parts are rendered once for all who look at it."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import parse_pod
from moorage.decide.explain import Explanation, Snapshot, explain_in, pod_of_job, turn
from moorage.decide.runstate import RunView, State, attempt_of
from moorage.decide.usage import By, UsageRow
from moorage.errors import StorageError
from moorage.model.names import RUN_LABEL
from moorage.server.board import QUEUE_SHOWN, BoardModel, lay_out
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.routes.top import use

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

USE_WINDOW = timedelta(hours=24)
FRESH_SECONDS = 10.0  # rendered parts serve everybody this long while nothing changes
PARTS = ("spoken", "summary", "gpus", "queue", "users", "runs")

Sections = dict[str, str]
"""Name of a part of the page → its HTML."""


class Board:
    """The page's parts at the cluster's newest version."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = asyncio.Lock()
        self._rendered: tuple[int, float, Sections] | None = None

    async def sections(self) -> Sections:
        """Every part, rendered now or a moment ago."""
        async with self._lock:
            version, at = self.context.cluster.version, self.context.clock.monotonic()
            known = self._rendered
            if known is None or known[0] != version or at - known[1] >= FRESH_SECONDS:
                known = (version, at, render_parts(await self._model()))
                self._rendered = known
            return known[2]

    async def page(self) -> str:
        parts = await self.sections()
        return str(templates().get_template("page.html").render(parts=parts))

    async def _model(self) -> BoardModel:
        cluster, now = self.context.cluster, self.context.now()
        users = await self._users(now)
        runs, seen = cluster.runs(), cluster.snapshot()
        line, more = waiting_line(cluster, seen, runs, now)
        return lay_out(view=cluster.gpus(), waiting=line, waiting_more=more, runs=runs, users=users, now=now)

    async def _users(self, now: datetime) -> tuple[UsageRow, ...]:
        try:
            return await use(self.context, since=now - USE_WINDOW, until=now, by=By.USER)
        except StorageError as error:
            log.error("the page shows no use of GPUs", extra={"error": str(error)})
            return ()


def waiting_line(
    cluster: Cluster, seen: Snapshot, runs: tuple[RunView, ...], now: datetime
) -> tuple[list[tuple[Obj, Explanation]], int]:
    """The first QUEUE_SHOWN that wait for a place, in the scheduler's order, each explained; and how many more.

    They are unbound pods that ask for GPUs or belong to a run, and runs that have no pod at all (a quota).
    """
    pods = [
        (pod, obj)
        for pod, obj in seen.pods
        if not pod.node and not pod.finished and not pod.deleting and (pod.gpus or RUN_LABEL in pod.labels)
    ]
    queue = [(turn(pod), obj) for pod, obj in pods]
    there = {
        (pod.namespace, pod.labels[RUN_LABEL])
        for pod, _ in seen.pods
        if RUN_LABEL in pod.labels and not pod.finished
    }
    for run in runs:
        if run.state is State.WAITING and (run.namespace, run.name) not in there:
            job = max(cluster.jobs_of_run(run.namespace, run.name), key=attempt_of)
            obj = pod_of_job(job)
            queue.append((turn(parse_pod(obj)), obj))
    queue.sort(key=lambda one: one[0])
    shown = [obj for _, obj in queue[:QUEUE_SHOWN]]
    return [(obj, explain_in(seen, obj, now=now)) for obj in shown], len(queue) - len(shown)


def render_parts(model: BoardModel) -> Sections:
    """Every live part of the page as HTML."""
    return {name: str(templates().get_template(f"{name}.html").render(board=model)).strip() for name in PARTS}


@cache
def templates() -> Environment:
    """The templates of the package. Jinja is imported here: it costs 90 ms that only the page needs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("moorage.server", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page_routes(board: Board) -> list[Route]:
    async def page(_: Request) -> Response:
        await board.context.ready()
        return HTMLResponse(await board.page())

    return [Route("/", page, methods=["GET"])]
