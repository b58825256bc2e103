"""The front page: the cluster at a glance. Its parts are drawn once for each language, for all viewers.

Tiles, sums and runs are drawn with every change of the cluster, and only the tiles of nodes that
changed. Slow parts (waiting work with reasons, sums over the history) are computed meanwhile, for at
most SLOW_SHARE of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.public import as_public
from moorage.decide.explain.schedulerqueue import turn
from moorage.decide.explain.snapshot import ParsedPod, pod_of_job, snapshot
from moorage.decide.explain.storage import Storage
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.forecast import History, Usual
from moorage.decide.runs.state import RunView, State, attempt_of
from moorage.decide.usage.gpus import NOBODY, GpuView, NodeGpus
from moorage.decide.usage.intervals import By, UsageRow
from moorage.model.names import MACHINE_GATE, RUN_LABEL
from moorage.present.explanation import explanation_view
from moorage.server.context import Context
from moorage.server.endpoint import bound
from moorage.server.explaining import explained
from moorage.server.gpuhours import gpu_hours
from moorage.server.identity.auth import User
from moorage.server.pages.board import (
    DENSE_FROM,
    QUEUE_SHOWN,
    USERS_SHOWN,
    TypeGroup,
    Waiting,
    groups,
    lay_out,
    legend,
    node_card,
    owner_hues,
    run_rows,
    shown_runs,
    spoken,
)
from moorage.server.pages.environment import make_environment
from moorage.server.pages.liveparts import LiveParts, RowNumbers
from moorage.server.pages.texts import language, speaking
from moorage.server.pages.usenow import UseNow, use_now
from moorage_kube.errors import StorageError
from moorage_kube.meta import labels_of
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate, parse_pod

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

USE_WINDOW = timedelta(days=7)
MEASURED_WITHIN = timedelta(minutes=3)  # a reading that is older says nothing of now
USE_SECONDS = 30.0  # between two sums over the history
NAMESPACES_READ = 10  # of which the claims are read for one page
REFRESH_SECONDS = 15.0  # forecasts and sums move on while nothing changes; a comment keeps connections open
SLOW_SHARE = 0.2  # of the time may be spent on slow parts
REDRAW_SECONDS = 60.0  # then a node's ages are rendered again for newly opened pages

Usuals = Mapping[tuple[str, str], Usual]


class _Line(Struct, frozen=True):
    """The queue with its explanations, and the usual time of running work."""

    waiting: tuple[Waiting, ...] = ()
    more: int = 0
    usuals: Usuals = field(default_factory=dict)


class _Slow(Struct, frozen=True):
    """The parts that are slow to compute, as of one moment."""

    number: int = 0
    line: _Line = field(default_factory=_Line)
    users: tuple[UsageRow, ...] = ()
    teams: tuple[UsageRow, ...] = ()
    use: UseNow = field(default_factory=lambda: UseNow({}))


class _Drawn(Struct):
    """A node's tiles as drawn, and the data that they were drawn from."""

    node: NodeGpus
    look: tuple[Any, ...]
    at: float  # monotonic seconds
    html: str


class _DrawnList(Struct, frozen=True):
    """A list as it is drawn: the parts around the rows, and the rows by their numbers."""

    parts: dict[str, str]
    rows: dict[int, str]


class _Speech:
    """The parts of the page in one language."""

    def __init__(self, epoch: str) -> None:
        self.live = LiveParts(epoch)
        self.nodes: dict[str, _Drawn] = {}
        self.numbers = {"queue": RowNumbers(), "runs": RowNumbers()}
        self.version = -1  # of the cluster, that the tiles show
        self.slow_number = -1


class Board:
    """The parts of the page at the newest version of the cluster."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = asyncio.Lock()  # held to draw
        self._drawer = ThreadPoolExecutor(1)  # its own pool: reads of a history wait for each other
        self._epoch = LiveParts().epoch
        self._speeches: dict[str, _Speech] = {}
        self._watchers: dict[str, int] = {}  # language → pages that are open
        self._pump: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._hues: dict[str, int] = {}
        self._slow = _Slow()
        self._finding: asyncio.Task[None] | None = None
        self._slow_version = -1
        self._slow_at = float("-inf")
        self._slow_took = 0.0
        self._used_at = float("-inf")

    async def parts(self) -> LiveParts:
        """Every part in the language of the request, as of now."""
        tag = language()
        if self._is_due():
            await asyncio.shield(self._find_out())
        async with self._lock:
            await self._draw(tag)
        return self._speeches[tag].live

    async def events(self, mark: str) -> AsyncIterator[bytes]:
        """Server-sent events with the parts that changed after a page's mark.

        An event is empty if all parts are unchanged for REFRESH_SECONDS.
        """
        tag = language()
        self._watchers[tag] = self._watchers.get(tag, 0) + 1
        sent_at = float("-inf")
        try:
            await self.parts()
            while not self.context.cluster.closed:
                if self._pump is None or self._pump.done():
                    if self._pump is not None and not self._pump.cancelled() and (error := self._pump.exception()):
                        self._pump = None
                        raise error
                    self._pump = asyncio.create_task(self._follow())
                moved, live, now = self._moved, self._speeches[tag].live, self.context.clock.monotonic()
                text, mark = live.since(mark), live.mark
                if text or now - sent_at >= REFRESH_SECONDS:
                    yield text
                    sent_at = now
                await moved.wait()
        finally:
            self._watchers[tag] -= 1

    async def page(self, request: Request) -> str:
        live = await self.parts()
        now = rfc3339(self.context.now())
        template = templates().get_template("page.html")
        return str(template.render(parts=live.parts, mark=live.mark, **framed("/", request, now)))

    async def _follow(self) -> None:
        """Draw changed parts while there are viewers."""
        cluster = self.context.cluster
        try:
            while not cluster.closed and any(self._watchers.values()):
                version = cluster.version
                async with self._lock:
                    for tag in [tag for tag, watchers in self._watchers.items() if watchers]:
                        await self._draw(tag)
                self._tell()
                if self._is_due():
                    self._find_out()
                await self._until_there_is_something_to_draw(version)
        finally:
            self._tell()

    async def _until_there_is_something_to_draw(self, version: int) -> None:
        """Wait until the cluster changes, the slow parts are ready, or it is time to compute them again."""
        cluster = self.context.cluster
        moved = asyncio.ensure_future(cluster.beyond(version))
        finding = self._finding if self._finding is not None and not self._finding.done() else None
        patience = REFRESH_SECONDS if finding is not None else min(self._pause(), REFRESH_SECONDS)
        waited = {moved} if finding is None else {moved, finding}
        try:
            await asyncio.wait(waited, timeout=max(0.05, patience), return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
        if finding is not None and finding.done():
            finding.result()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _is_due(self) -> bool:
        """Whether it is time to compute the slow parts again."""
        return self.context.clock.monotonic() - self._slow_at >= self._pause()

    def _pause(self) -> float:
        """Seconds between two computations of the slow parts; REFRESH_SECONDS where nothing has changed."""
        if self._slow_version == self.context.cluster.version:
            return REFRESH_SECONDS
        return self._slow_took / SLOW_SHARE

    def _find_out(self) -> asyncio.Task[None]:
        """Compute the slow parts, once for all callers meanwhile; changes are drawn at the same time."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._look_slowly())
        return self._finding

    async def _look_slowly(self) -> None:
        """Compute the slow parts: waiting work with reasons, and use by user and team."""
        cluster, now, began = self.context.cluster, self.context.now(), self.context.clock.monotonic()
        version = cluster.version
        users, teams = self._slow.users, self._slow.teams
        if began - self._used_at >= USE_SECONDS:
            users, teams = await self._hours(now, By.USER), await self._hours(now, By.NAMESPACE)
            self._used_at = began
        use_of = await self._measured(now)
        past = await self.context.past.history()
        pods = cluster.pods.all()
        storages = {namespace: await cluster.storage(namespace) for namespace in _with_claims(pods)}
        machines = await cluster.machines() if any(_gated(pod) for pod in pods) else []
        line = await asyncio.to_thread(
            find_line,
            nodes=cluster.nodes.all(),
            pods=pods,
            jobs=cluster.jobs.all(),
            runs=cluster.runs(),
            now=now,
            past=past,
            read=cluster.parsed,
            storages=storages,
            machines=machines,
        )
        self._slow = _Slow(self._slow.number + 1, line, users, teams, use_of)
        self._slow_version = version
        self._slow_at = self.context.clock.monotonic()
        self._slow_took = self._slow_at - began

    async def _hours(self, now: datetime, by: By) -> tuple[UsageRow, ...]:
        try:
            return await gpu_hours(self.context, since=now - USE_WINDOW, until=now, by=by)
        except StorageError as error:
            log.error("the page shows no use of GPUs", extra={"error": str(error)})
            return ()

    async def _measured(self, now: datetime) -> UseNow:
        try:
            readings = await asyncio.to_thread(self.context.samples.latest, since=now - MEASURED_WITHIN)
        except StorageError as error:
            log.error("the page shows no utilisation", extra={"error": str(error)})
            readings = {}
        cluster, by_pod = self.context.cluster, {}
        if readings:
            for pod in cluster.pods.all():
                reading = readings.get(str(pod["metadata"].get("uid")))
                if reading is not None:
                    by_pod[pod["metadata"].get("namespace") or "default", pod["metadata"]["name"]] = reading
        return use_now(cluster.gpus(), by_pod)

    async def _draw(self, tag: str) -> None:
        """Draw the parts in one language again if the cluster or the slow parts have changed."""
        speech = self._speeches.setdefault(tag, _Speech(self._epoch))
        cluster, slow = self.context.cluster, self._slow
        if speech.version == cluster.version and speech.slow_number == slow.number:
            return
        version = cluster.version
        view, runs = cluster.gpus(), cluster.runs()
        self._color(view, runs, slow)
        with speaking(tag):
            render = partial(copy_context().run, self._render, speech, view, runs, slow)
        put = await asyncio.get_running_loop().run_in_executor(self._drawer, render)
        put()  # not in the thread: pages read the parts meanwhile
        speech.version, speech.slow_number = version, slow.number

    def _color(self, view: GpuView, runs: Iterable[RunView], slow: _Slow) -> None:
        """Give each owner on the page a colour; colours of owners that left are free again."""
        owners = {
            *view.by_user,
            *(row.explanation.owner for row in slow.line.waiting),
            *(run.owner for run in shown_runs(tuple(runs))),
            *(row.name for row in slow.users[:USERS_SHOWN]),
        }
        self._hues = owner_hues(owners, self._hues)

    def _render(
        self, speech: _Speech, view: GpuView, runs: tuple[RunView, ...], slow: _Slow
    ) -> Callable[[], object]:
        """Draw tiles, sums, runs and the slow parts. Runs in a thread; the returned function puts them."""
        now, at = self.context.now(), self.context.clock.monotonic()
        is_dense = view.totals.total >= DENSE_FROM
        waiting = len(slow.line.waiting) + slow.line.more
        made = groups(view)
        gone = set(speech.nodes) - {node.name for node in view.nodes}
        for name in gone:
            del speech.nodes[name]
        parts = draw_nodes(speech.nodes, view, self._hues, slow.line.usuals, now, at, is_dense=is_dense)
        parts |= draw_sums(view, made, waiting, self._hues, slow.use)
        within = {name: "gpus" for name in parts if name.startswith(("node-", "type-"))}
        parts["gpus"] = fragment("gpus.html", groups=made, parts=parts, is_dense=is_dense)
        outside = {"gpus": _frame_of(made, is_dense=is_dense)}
        rows, more = run_rows(runs, self._hues, now)
        lists = {"runs": draw_list("runs", {(row.namespace, row.name): row for row in rows}, more, speech.numbers)}
        if speech.slow_number != slow.number:
            line = slow.line
            model = lay_out(
                waiting=line.waiting, waiting_more=line.more, users=slow.users, teams=slow.teams, now=now,
                hues=self._hues,
            )  # fmt: skip
            parts["users"] = fragment("users.html", board=model)
            queue = {(row.href, row.pod): row for row in model.queue}
            lists["queue"] = draw_list("queue", queue, model.queue_more, speech.numbers)
        for name, drawn in lists.items():
            parts |= drawn.parts
            outside[name] = str(bool(drawn.rows))
            within |= {f"rows-{name}": name, f"{name}-more": name}
        by_number = {f"rows-{name}": drawn.rows for name, drawn in lists.items()}
        names = {f"node-{name}" for name in gone}
        return partial(speech.live.put, parts, within=within, outside=outside, lists=by_number, gone=names)


def draw_list(
    name: str, rows: Mapping[tuple[str, str], object], more: int, numbers: Mapping[str, RowNumbers]
) -> _DrawnList:
    """A list of the page, its rows by their keys, each as a separate part."""
    template = templates().get_template(f"{name}_row.html")
    drawn = {
        number: str(template.render(row=row, number=number)).strip()
        for number, row in zip(numbers[name].of(rows), rows.values(), strict=True)
    }
    parts = {f"{name}-more": fragment(f"{name}_more.html", more=more)}
    parts[name] = fragment(f"{name}.html", rows="\n".join(drawn.values()), more=parts[f"{name}-more"])
    return _DrawnList(parts, drawn)


def draw_nodes(
    drawn: dict[str, _Drawn],
    view: GpuView,
    hues: Mapping[str, int],
    usuals: Usuals,
    now: datetime,
    at: float,
    *,
    is_dense: bool,
) -> dict[str, str]:
    """The part of each node. Nodes that changed, or were drawn long ago, are drawn again and remembered."""
    template = templates().get_template("node_dense.html" if is_dense else "node.html")
    parts = {}
    for node in view.nodes:
        holders = [gpu.holder for gpu in node.gpus if gpu.holder is not None]
        look = (
            is_dense,
            *(hues.get(holder.owner) for holder in holders),
            *(usuals.get((holder.namespace, holder.pod)) for holder in holders),
        )
        known = drawn.get(node.name)
        if known is None or known.node is not node or known.look != look or at - known.at >= REDRAW_SECONDS:
            html = str(template.render(node=node_card(node, hues, now, usuals))).strip()
            known = drawn[node.name] = _Drawn(node, look, at, html)
        parts[f"node-{node.name}"] = known.html
    return parts


def draw_sums(
    view: GpuView, made: Iterable[TypeGroup], waiting: int, hues: Mapping[str, int], use_of: UseNow
) -> dict[str, str]:
    """Draw the parts with sums: of the cluster, of each GPU type, of each owner."""
    rows, more = legend(view, hues)
    parts = {f"type-{group.key}": fragment("type.html", group=group) for group in made}
    parts["summary"] = fragment("summary.html", c=view.totals, waiting=waiting, use=use_of)
    parts["use"] = use_of.text
    parts["legend"] = fragment("legend.html", rows=rows, more=more, c=view.totals)
    parts["spoken"] = spoken(view.totals, waiting)
    return parts


def _frame_of(made: Iterable[TypeGroup], *, is_dense: bool) -> str:
    """The part `gpus` without its pieces: the names of the nodes, and how they are drawn."""
    return repr((is_dense, [(group.key, group.nodes) for group in made]))


def find_line(
    *,
    nodes: list[Obj],
    pods: list[Obj],
    jobs: list[Obj],
    runs: tuple[RunView, ...],
    now: datetime,
    past: History,
    storages: Mapping[str, Storage],
    machines: Iterable[Obj],
    read: Callable[[Obj], ParsedPod],
) -> _Line:
    """The queue with reasons, and the usual time of running work. In a thread: it takes long in a large
    cluster.
    """
    explainer = Explainer(snapshot(nodes, pods, history=past, machines=machines, read=read))
    waiting, more = waiting_line(explainer, runs, jobs, now, storages)
    usuals = {
        (pod.pod.namespace, pod.pod.name): usual
        for pod in explainer.lookup.snapshot.pods
        if pod.holder is not None and pod.pod.gpus and (usual := explainer.lookup.usual(pod, now)) is not None
    }
    return _Line(tuple(waiting), more, usuals)


def waiting_line(
    explainer: Explainer,
    runs: tuple[RunView, ...],
    jobs: list[Obj],
    now: datetime,
    storages: Mapping[str, Storage],
) -> tuple[list[Waiting], int]:
    """The first QUEUE_SHOWN waiting pods and runs, explained, in the scheduler's order; and the number of others.

    They are unbound pods that request GPUs or belong to a run, and runs without any pod (because of a quota).
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
    """Namespaces of unbound pods that mount claims; only the first few."""
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


def templates() -> Environment:
    """The templates in the language of the request. Jinja is imported by the first page."""
    return _templates(language())


@cache
def _templates(tag: str) -> Environment:
    return make_environment(tag)


def fragment(template: str, **model: Any) -> str:
    """Render a part of a page that changes while the page is open."""
    return str(templates().get_template(template).render(**model)).strip()


class Who(Struct, frozen=True, kw_only=True):
    """The viewer of a page, for its head."""

    name: str  # empty: not known
    can_leave: bool  # came by a cookie, which a button takes away
    may_act: bool
    admin_links: tuple[tuple[str, str], ...] = ()  # (address, name) of the admin pages that they may see


def framed(here: str, request: Request, now: str = "") -> dict[str, Any]:
    """The values of frame.html, without those of its blocks.

    For an unknown user there are no links to other pages. `now` (RFC 3339): set if the page is live.
    """
    looks = {"here": here, "now": now, "theme": getattr(request.state, "theme", "")}
    user: User | None = getattr(request.state, "user", None)
    if user is None:
        return looks | {"who": Who(name="", can_leave=False, may_act=False)}
    links = getattr(request.state, "admin_links", ())
    who = Who(
        name="only looking" if user.is_page else user.name,
        can_leave=user.by_cookie,
        may_act=bool(user.account),
        admin_links=links,
    )
    return looks | {"who": who}


async def show_explanation(board: Board, request: Request) -> Response:
    """The web page that says why a run or a pod waits."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    explanation = await explained(board.context, namespace, name, request.state.user)
    page = templates().get_template("explain.html")
    names = links_of(explanation)
    return HTMLResponse(page.render(view=explanation_view(explanation), names=names, **framed("", request)))


def links_of(explanation: Explanation) -> dict[str, str]:
    """The page of each node, user or run that the tables of an explanation name."""
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
    """The front page: an overview of the cluster."""
    await board.context.ready()
    return HTMLResponse(await board.page(request))


def page_routes(board: Board) -> list[Route]:
    return [
        Route("/", bound(show_cluster, board), methods=["GET"]),
        Route("/explain/{namespace}/{name}", bound(show_explanation, board), methods=["GET"]),
    ]
