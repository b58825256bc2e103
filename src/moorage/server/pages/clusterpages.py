"""The web page: read, lay out, render. Its live parts are rendered once for all who look at it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.moments import moment, rfc3339
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import has_gate, parse_pod
from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.line import turn
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import ParsedPod, pod_of_job, snapshot
from moorage.decide.explain.storage import Storage
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.forecast import History
from moorage.decide.runs.state import RunView, State, attempt_of
from moorage.decide.usage.gpus import NOBODY, GpuView
from moorage.decide.usage.intervals import By, UsageRow
from moorage.errors import StorageError
from moorage.model.names import MACHINE_GATE, RUN_LABEL
from moorage.present.explanation import explanation_view
from moorage.server.context import Context
from moorage.server.endpoint import bound
from moorage.server.identity.auth import User
from moorage.server.pages.board import QUEUE_SHOWN, BoardModel, Waiting, lay_out
from moorage.server.rest.explain import explained
from moorage.server.rest.top import use

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

USE_WINDOW = timedelta(hours=24)
NAMESPACES_READ = 10  # of which the claims are read for one page
FRESH_SECONDS = 10.0  # rendered parts serve everybody this long while nothing changes
PARTS = ("spoken", "summary", "gpus", "queue", "users", "runs")

Sections = dict[str, str]
"""Name of a part of the page → its HTML. Parts `node-…` and `type-…` are pieces of the part `gpus`."""

_PASSING = re.compile(r'(?<=>)[^<>]*(?=</time>)|value="\d+" aria-label="\d+ percent')


@dataclass(frozen=True, slots=True)
class _Rendered:
    version: int
    at: float  # monotonic seconds
    took: float  # seconds
    parts: Sections
    faces: Sections


class Board:
    """The page's parts at the cluster's newest version."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = asyncio.Lock()
        self._rendered: _Rendered | None = None

    async def sections(self) -> Sections:
        """Every part, rendered now or a moment ago."""
        return (await self.rendered()).parts

    async def changed(self, sent: Sections) -> tuple[Sections, Sections]:
        """The parts that differ from those whose faces were `sent`, and all faces now.

        A face is a part without what the browser moves on by itself: ages and times that are left. While the nodes
        are the same, only the pieces of `gpus` are sent; else only the whole part.
        """
        now = await self.rendered()
        same_nodes = bool(sent) and _pieces(sent) == _pieces(now.faces)
        different = {
            name: text
            for name, text in now.parts.items()
            if sent.get(name) != now.faces[name] and (name != "gpus" if same_nodes else not _is_piece(name))
        }
        return different, now.faces

    async def rendered(self) -> _Rendered:
        """All parts and their faces, made now or a moment ago.

        A cluster so large that rendering takes long is rendered less often: never more than a third of the time.
        """
        async with self._lock:
            version, at = self.context.cluster.version, self.context.clock.monotonic()
            known = self._rendered
            if known is not None:
                fresh = known.version == version and at - known.at < FRESH_SECONDS
                if fresh or at - known.at < 2 * known.took:
                    return known
            parts, faces = await self._render()
            done = self.context.clock.monotonic()
            self._rendered = _Rendered(version, done, done - at, parts, faces)
            return self._rendered

    async def page(self, request: Request) -> str:
        parts = await self.sections()
        now = rfc3339(self.context.now())
        return str(templates().get_template("page.html").render(parts=parts, **framed("/", request, now)))

    async def _render(self) -> tuple[Sections, Sections]:
        cluster, now = self.context.cluster, self.context.now()
        users = await self._users(now)
        past = await self.context.past.history()
        pods = cluster.pods.all()
        storages = {namespace: await cluster.storage(namespace) for namespace in _with_claims(pods)}
        machines = await cluster.machines() if any(_gated(pod) for pod in pods) else []
        return await asyncio.to_thread(
            _render_with_faces,
            nodes=cluster.nodes.all(),
            pods=cluster.pods.all(),
            jobs=cluster.jobs.all(),
            runs=cluster.runs(),
            view=cluster.gpus(),
            users=users,
            now=now,
            past=past,
            read=cluster.parsed,
            storages=storages,
            machines=machines,
        )

    async def _users(self, now: datetime) -> tuple[UsageRow, ...]:
        try:
            return await use(self.context, since=now - USE_WINDOW, until=now, by=By.USER)
        except StorageError as error:
            log.error("the page shows no use of GPUs", extra={"error": str(error)})
            return ()


def render(
    *,
    nodes: list[Obj],
    pods: list[Obj],
    jobs: list[Obj],
    runs: tuple[RunView, ...],
    view: GpuView,
    users: tuple[UsageRow, ...],
    now: datetime,
    past: History,
    storages: Mapping[str, Storage],
    machines: Iterable[Obj],
    read: Callable[[Obj], ParsedPod],
) -> Sections:
    """From objects to HTML. Takes long in a large cluster, so it is called in a thread."""
    explainer = Explainer(snapshot(nodes, pods, history=past, machines=machines, read=read))
    line, more = waiting_line(explainer, runs, jobs, now, storages)
    usuals = {
        (pod.pod.namespace, pod.pod.name): usual
        for pod in explainer.lookup.snapshot.pods
        if pod.holder is not None and pod.pod.gpus and (usual := explainer.lookup.usual(pod, now)) is not None
    }
    model = lay_out(
        view=view,
        waiting=line,
        waiting_more=more,
        runs=runs,
        users=users,
        now=now,
        usuals=usuals,
    )
    return render_parts(model)


def waiting_line(
    explainer: Explainer,
    runs: tuple[RunView, ...],
    jobs: list[Obj],
    now: datetime,
    storages: Mapping[str, Storage],
) -> tuple[list[Waiting], int]:
    """The first QUEUE_SHOWN that wait for a place, in the scheduler's order, each explained; and how many more.

    They are unbound pods that ask for GPUs or belong to a run, and runs that have no pod at all (a quota).
    """
    queue = []
    there = set()
    for known in explainer.lookup.snapshot.pods:
        pod = known.pod
        if pod.finished:
            continue
        if RUN_LABEL in pod.labels:
            there.add((pod.namespace, pod.labels[RUN_LABEL]))
        if not pod.node and not pod.deleting and (pod.gpus or RUN_LABEL in pod.labels):
            queue.append((turn(pod), known.obj))
    podless = {(run.namespace, run.name) for run in runs if run.state is State.WAITING} - there
    newest: dict[tuple[str, str], Obj] = {}
    for job in sorted(jobs, key=attempt_of):
        key = (job["metadata"].get("namespace") or "default", labels_of(job).get(RUN_LABEL, ""))
        if key in podless:
            newest[key] = job
    for job in newest.values():
        obj = pod_of_job(job)
        queue.append((turn(parse_pod(obj)), obj))
    queue.sort(key=lambda waiting: waiting[0])
    shown = [obj for _, obj in queue[:QUEUE_SHOWN]]
    line = []
    for obj in shown:
        storage = storages.get(obj["metadata"].get("namespace") or "default")
        explanation = as_public(explainer.explain(obj, now=now, storage=storage, brief=True))
        line.append(Waiting(explanation, moment(obj["metadata"].get("creationTimestamp"))))
    return line, len(queue) - len(shown)


def _with_claims(pods: Iterable[Obj]) -> list[str]:
    """Namespaces of pods without a node that mount claims; the first few."""
    namespaces: dict[str, None] = {}
    for pod in pods:
        spec = pod.get("spec") or {}
        if not spec.get("nodeName") and any(
            volume.get("persistentVolumeClaim") for volume in spec.get("volumes") or ()
        ):
            namespaces[pod["metadata"].get("namespace") or "default"] = None
    return list(namespaces)[:NAMESPACES_READ]


def _gated(pod: Obj) -> bool:
    return has_gate(pod.get("spec") or {}, MACHINE_GATE)


def render_parts(model: BoardModel) -> Sections:
    """Every live part of the page as HTML."""
    node_template, type_template = templates().get_template("node.html"), templates().get_template("type.html")
    parts = {}
    for at, group in enumerate(model.groups):
        parts[f"type-{at}"] = str(type_template.render(group=group)).strip()
        for node in group.nodes:
            parts[f"node-{node.name}"] = str(node_template.render(node=node)).strip()
    for name in PARTS:
        parts[name] = str(templates().get_template(f"{name}.html").render(board=model, parts=parts)).strip()
    return parts


def _render_with_faces(**read: Any) -> tuple[Sections, Sections]:
    parts = render(**read)
    return parts, {name: _PASSING.sub("", text) for name, text in parts.items()}


def _is_piece(name: str) -> bool:
    return name.startswith(("node-", "type-"))


def _pieces(parts: Sections) -> list[str]:
    return [name for name in parts if _is_piece(name)]


@cache
def templates() -> Environment:
    """The templates of the package. Jinja is imported here: it costs 90 ms that only the page needs."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("moorage.server.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def fragment(template: str, **model: Any) -> str:
    """A part of a page that changes while it is looked at."""
    return str(templates().get_template(template).render(**model)).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Who looks at a page, as its head says it."""

    name: str  # empty: nobody knows
    can_leave: bool  # came by a cookie, which a button takes away
    may_act: bool
    admin_links: tuple[tuple[str, str], ...] = ()  # (address, name) of the admin pages that they may see


def framed(here: str, request: Request, now: str = "") -> dict[str, Any]:
    """What frame.html is rendered with, beside what its blocks want.

    Where nobody knows who asks there is no way to other pages. `now` (RFC 3339) where the page is live.
    """
    user: User | None = getattr(request.state, "user", None)
    if user is None:
        return {"here": here, "who": Who(name="", can_leave=False, may_act=False), "now": now}
    name = "only looking" if user.is_page else user.name
    links = getattr(request.state, "admin_links", ())
    who = Who(name=name, can_leave=user.by_cookie, may_act=bool(user.account), admin_links=links)
    return {"here": here, "who": who, "now": now}


async def show_explanation(board: Board, request: Request) -> Response:
    """The web page that says why a run or a pod waits."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    explanation = await explained(board.context, namespace, name, request.state.user)
    page = templates().get_template("explain.html")
    names = links_of(explanation)
    return HTMLResponse(page.render(view=explanation_view(explanation), names=names, **framed("", request)))


def links_of(explanation: Explanation) -> dict[str, str]:
    """Name of a node, user or run in the tables of an explanation → its page."""
    links: dict[str, str] = {verdict.node: f"/nodes/{verdict.node}" for verdict in explanation.verdicts}
    links |= {held.node: f"/nodes/{held.node}" for held in explanation.held_by if held.node}
    pods = [(held.holder.owner, held.holder.namespace, held.holder.run) for held in explanation.held_by]
    pods += [(waiter.owner, waiter.namespace, waiter.run) for waiter in explanation.line]
    for owner, namespace, run in pods:
        if owner != NOBODY:
            links[owner] = f"/jobs?owner={quote(owner)}"
        if run:
            links[run] = f"/jobs/{namespace}/{run}"
    return links


async def show_cluster(board: Board, request: Request) -> Response:
    """The web page of GPUs, jobs and use."""
    await board.context.ready()
    return HTMLResponse(await board.page(request))


def page_routes(board: Board) -> list[Route]:
    return [
        Route("/", bound(show_cluster, board), methods=["GET"]),
        Route("/explain/{namespace}/{name}", bound(show_explanation, board), methods=["GET"]),
    ]
