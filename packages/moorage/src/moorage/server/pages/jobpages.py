"""The web pages of jobs: /jobs, and one per run with its facts, attempts, events and log.

All users who may read the pages see the owner and the state of a run. Users who may get its Job also
see its command, limits and messages. Its events and its log are read as the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from html import escape
from typing import cast

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.explain import pod_of_run
from moorage.actions.runlogs import Cut
from moorage.actions.runs import cancel_run, select_runs
from moorage.actions.storedrecords import lines_of
from moorage.decide.explain.explainer import explain
from moorage.decide.explain.public import as_public
from moorage.decide.runs.events import merge_events
from moorage.decide.runs.state import PodView, RunView, State, attempt_of
from moorage.decide.runs.storedruns import shown_container
from moorage.decide.timetext import moment_before
from moorage.present.ending import ending_headline, ending_lines
from moorage.present.explanation import explanation_view
from moorage.server.context import Context
from moorage.server.explaining import explained
from moorage.server.identity.auth import User
from moorage.server.pages.board import why_words
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.formpages import may_make
from moorage.server.pages.jobboard import JobModel, event_rows, job_model, running_words
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rows import JOB_STATES, JobRow, job_row, job_rows, words_of
from moorage.server.pages.site import Page, Question, Site, Tick, done, key_in, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.pages.usecharts import use_charts
from moorage.server.problems import Problem, as_problem
from moorage.server.runs import RunReader
from moorage.server.storedruns import RecordsForUser
from moorage_kube.api import PodApi
from moorage_kube.errors import ApiError, BadRequest, MoorageError, NotFound, ServerError
from moorage_kube.resources import JOBS, Obj

HERE = "/jobs"
ONE = f"{HERE}/{{namespace}}/{{name}}"
RUN_CONTROLS = ("create run", "cancel run", "delete run")  # of the page of one run
NO_JOB: Obj = {"metadata": {}}  # of a run that the server has not seen yet
LINES = 500  # of a log
LOG_BYTES = 256 * 1024
SEARCH_BYTES = 64 * 1024 * 1024  # so much of a log is searched
QUERY_MAX = 200  # characters
CHOICE_MAX = 300  # characters of a name that is chosen by
STOP_ASKING = 286  # htmx: this answer is the last


async def show_list(site: Site, request: Request) -> Response:
    """The web page of runs: the reader's own, all of them, or those of one user or one namespace."""
    listed = await _listed(site, request)
    part = await _list(site, request, listed)
    can_make = await may_make(site, request.state.user, JOBS)
    return site.page(
        request, "jobs.html", HERE, live_part=part, chosen=_choice(request), list=listed, can_make=can_make
    )


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of runs that changes."""
    return HTMLResponse(await _list(site, request, await _listed(site, request)))


async def show(site: Site, request: Request) -> Response:
    """The web page of one run: its state, the end of its log, its use, facts, attempts and events."""
    run = await _run(site.context, request)
    chosen = _chosen(run, request.query_params.get("pod"))
    part, problem = await _log_part(site, request, run, chosen)
    model = await _model(site, request, run)
    return site.page(
        request,
        "job.html",
        HERE,
        problem=problem,
        live=not run.state.ended,
        state=await _state(site, request, run, model),
        facts=await _facts(site, request, run, model),
        events=await _events(site, request, run),
        use=await _use(site, request, run),
        run=run,
        chosen=chosen,
        log_part=part,
        goes_on=not run.state.ended,
    )


async def live(site: Site, request: Request) -> Response:
    """The parts of a run's page that change: its state, and its facts for another place of the page."""
    run = await _run(site.context, request)
    model = await _model(site, request, run)
    facts = f'<div id="live-facts" hx-swap-oob="innerHTML">{await _facts(site, request, run, model)}</div>'
    return HTMLResponse(await _state(site, request, run, model) + facts, STOP_ASKING if run.state.ended else 200)


async def use(site: Site, request: Request) -> Response:
    """The resource use of a run over its life."""
    run = await _run(site.context, request)
    return HTMLResponse(await _use(site, request, run), STOP_ASKING if run.state.ended else 200)


async def events(site: Site, request: Request) -> Response:
    """The events of a run."""
    run = await _run(site.context, request)
    return HTMLResponse(await _events(site, request, run), STOP_ASKING if run.state.ended else 200)


async def log(site: Site, request: Request) -> Response:
    """The end of a pod's log, or the last lines that contain the search text."""
    run = await _run(site.context, request)
    chosen = _chosen(run, request.query_params.get("pod"))
    if chosen is None:
        return HTMLResponse("")
    text = await _log(site.context, request.state.user, run, chosen, _query(request))
    return HTMLResponse(text, STOP_ASKING if run.state.ended else 200)


async def ask_cancel(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a run is cancelled, or deleted when it has ended."""
    namespace, name = key_in(request)
    run = await _run(site.context, request)
    has_ended = run.state.ended
    question = Question(
        title=f"{'Delete' if has_ended else 'Cancel'} run {name}?",
        lines=(
            say(
                "Its state is {state}, its namespace {namespace}.", state=say(str(run.state)), namespace=namespace
            ),
            "Its pods are deleted. Checkpoints and the end of its logs stay, and the name is free again."
            if has_ended
            else "Its pods get their grace period, and no attempt follows. Checkpoints stay.",
        ),
        button="Delete the run" if has_ended else "Cancel the run",
        action=f"{HERE}/{namespace}/{name}/cancel",
        back=f"{HERE}/{namespace}/{name}",
        danger=True,
        ticks=() if has_ended else (Tick(name="delete", words="Also remove it with its pods"),),
    )
    return site.ask(request, HERE, question, problem)


async def cancel(site: Site, request: Request) -> Response:
    """Cancel a run, or delete a run that has ended, after the page has asked."""
    form = await read_form(request)
    namespace, name = key_in(request)
    context, user = site.context, request.state.user
    run = await _run(context, request)
    delete = run.state.ended or bool(form.get("delete"))
    context.audit(request, "delete run" if delete else "cancel run", f"{namespace}/{name}")
    try:
        await cancel_run(context.acting(user), namespace, name, by=user.name, delete=delete)
    except (Problem, MoorageError) as error:
        return await ask_cancel(site, request, problem_to_show(error))
    if delete:
        return done(HERE, "deleted", f"{namespace}/{name}")
    return done(f"{HERE}/{namespace}/{name}", "cancelled", f"{namespace}/{name}")


async def log_part(site: Site, request: Request) -> Response:
    """The log section, for a page that was opened before the run had a pod."""
    run = await _run(site.context, request)
    part, problem = await _log_part(site, request, run, _chosen(run, request.query_params.get("pod")))
    if problem is not None:
        raise problem
    return HTMLResponse(part)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="GET", path=f"{ONE}/events", handler=events, live=True),
    Page(method="GET", path=f"{ONE}/use", handler=use, live=True),
    Page(method="GET", path=f"{ONE}/log", handler=log, live=True),
    Page(method="GET", path=f"{ONE}/log/part", handler=log_part, live=True),
    Page(method="GET", path=f"{ONE}/cancel", handler=ask_cancel, controls=("cancel run", "delete run")),
    Page(method="POST", path=f"{ONE}/cancel", handler=cancel),
)


class Choice(Struct, frozen=True, kw_only=True):
    """The runs that a list shows: the user's own, or all that match the other fields ("" matches all)."""

    is_mine: bool
    owner: str = ""
    namespace: str = ""
    since: str = ""  # as the address has it, such as 24h; empty: from the start

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The choice as query parameters; an empty value stands for the default."""
        whose = "" if self.is_mine or self.owner or self.namespace else "all"
        return [("whose", whose), ("owner", self.owner), ("namespace", self.namespace), ("since", self.since)]

    @property
    def words(self) -> str:
        """The choice of runs, for a heading; empty for the two lists that have their own link."""
        parts = [f"of {self.owner}"] if self.owner else []
        parts += [f"in namespace {self.namespace}"] if self.namespace else []
        if self.since:
            parts.append(f"since {self.since}" if "-" in self.since else f"of the last {self.since}")
        return " ".join(parts)


def _choice(request: Request) -> Choice:
    user: User = request.state.user
    asked = request.query_params
    owner, namespace, since = (asked.get(name, "")[:CHOICE_MAX] for name in ("owner", "namespace", "since"))
    is_all = bool(owner or namespace) or not user.account or asked.get("whose") == "all"
    return Choice(is_mine=not is_all, owner=owner, namespace=namespace, since=since)


async def _listed(site: Site, request: Request) -> Shown[JobRow]:
    user, chosen = request.state.user, _choice(request)
    now = site.context.now()
    runs = select_runs(
        await site.runs(),
        owner=user.name if chosen.is_mine else chosen.owner or None,
        namespace=chosen.namespace or None,
        since=moment_before(chosen.since, now, "since") if chosen.since else None,
    )
    rows, _ = job_rows(runs, now, most=None)
    wanted = wanted_of(request.query_params, more=chosen.fields)
    shown = page_of(rows, wanted, HERE, words=words_of, state=lambda row: row.state, states=JOB_STATES)
    known = {(run.namespace, run.name): run for run in runs}
    reader = RunReader(site.context, user)
    views = await reader.complete([known[row.namespace, row.name] for row in shown.rows])
    full = tuple(job_row(run, row.hue, now) for row, run in zip(shown.rows, views, strict=True))
    return replace(shown, rows=full)


async def _list(site: Site, request: Request, listed: Shown[JobRow]) -> str:
    namespaces = (row.namespace for row in listed.rows)
    rights = await site.allowed(request, ("cancel run", "delete run"), namespaces)
    can_make = await may_make(site, request.state.user, JOBS)
    return fragment("jobs_live.html", list=listed, chosen=_choice(request), rights=rights, can_make=can_make)


class Said(Struct, frozen=True, kw_only=True):
    """The state of a run in a sentence, and lines that explain it."""

    headline: str
    lines: tuple[str, ...] = ()
    waits: bool = False


async def _state(site: Site, request: Request, run: RunView, model: JobModel) -> str:
    rights = await site.allowed(request, RUN_CONTROLS, [run.namespace])
    return fragment("job_live.html", job=model, rights=rights, said=await _said(site, request, run))


async def _facts(site: Site, request: Request, run: RunView, model: JobModel) -> str:
    is_shown = model.private or run.owner == request.state.user.name
    advice = await RunReader(site.context, request.state.user).advice(run) if is_shown else ()
    return fragment("job_facts.html", job=model, advice=advice)


async def _model(site: Site, request: Request, run: RunView) -> JobModel:
    context = site.context
    chosen = _chosen(run, request.query_params.get("pod"))
    newest = max(context.cluster.jobs_of_run(run.namespace, run.name), key=attempt_of, default=NO_JOB)
    private = await RunReader(context, request.state.user).may_read(run.namespace)
    name = chosen.name if chosen is not None else ""
    return job_model(run, newest, context.now(), private=private, chosen=name)


async def _said(site: Site, request: Request, run: RunView) -> Said:
    """The state as `moor explain` says it; for a run with its pod running, by its times only."""
    context, user = site.context, request.state.user
    now = context.now()
    if run.state is State.WAITING and not run.is_retrying:
        try:
            explanation = await explained(context, run.namespace, run.name, user)
        except (Problem, MoorageError):  # the cluster gives no answer: the rest of the page is of use
            return Said(headline=why_words(run) or str(run.state))
        view = explanation_view(explanation)
        lines = (line for section in view.sections if not section.heading for line in section.lines)
        return Said(headline=view.headline, lines=(*view.advice, *lines), waits=True)
    if run.state in (State.RUNNING, State.SUSPENDED):
        return Said(headline=running_words(run, now))
    explanation = explain(pod_of_run(run), nodes=(), pods=(), now=now, run=run)
    if not await context.auth.may_read_pods(user, run.namespace):
        explanation = as_public(explanation)
    ended = explanation.ended or run
    return Said(headline=ending_headline(ended, now), lines=tuple(ending_lines(ended, public=True)))


async def _events(site: Site, request: Request, run: RunView) -> str:
    listed = await RunReader(site.context, request.state.user).events(run)
    return fragment("job_events.html", events=event_rows(merge_events(listed), site.context.now()))


async def _use(site: Site, request: Request, run: RunView) -> str:
    """Charts of the run's resource use over its life; empty where that is not known, or cannot be read."""
    used = await RunReader(site.context, request.state.user).use(run)
    charts = use_charts(used) if used is not None else ()
    return fragment("use.html", charts=charts) if charts else ""


async def _run(context: Context, request: Request) -> RunView:
    """Raises NotFound."""
    return await RunReader(context, request.state.user).show(*key_in(request))


def _chosen(run: RunView, asked: str | None) -> PodView | None:
    """The pod whose log is shown: the requested pod, else the newest."""
    for pod in run.pods:
        if pod.name == asked:
            return pod
    return run.pods[-1] if run.pods else None


def _query(request: Request) -> str:
    """The text to search for in the log; empty: all of it is shown."""
    return request.query_params.get("q", "").strip()[:QUERY_MAX]


async def _log_part(
    site: Site, request: Request, run: RunView, chosen: PodView | None
) -> tuple[str, Problem | None]:
    """The section with the log of a pod, or the reason why the log cannot be read."""
    context, user, query = site.context, request.state.user, _query(request)
    may_read = await context.auth.may_read_pods(user, run.namespace)
    text, problem = "", None
    if may_read and chosen is not None:
        try:
            text = await _log(context, user, run, chosen, query)
        except Problem as error:
            problem = error
    part = fragment(
        "job_log.html",
        run=run,
        chosen=chosen,
        may_read=may_read,
        problem=problem,
        log=text,
        query=query,
        goes_on=not run.state.ended,
    )
    return part, problem


async def _log(context: Context, user: User, run: RunView, pod: PodView, query: str) -> str:
    """The end of a pod's log, or the end of its lines that contain `query` in any case, as HTML.

    Read as the user; for a pod that was deleted, or is on a node that is down, the stored log. Raises
    Problem.
    """
    if pod.gone:
        return await _stored_log(context, user, run, pod, query)
    api = cast(PodApi, context.acting(user))
    container = shown_container(context.cluster.pods.get(pod.name, run.namespace) or {})
    try:
        tail = await read_tail(api, pod.name, run.namespace, container, query)
    except NotFound:
        return await _stored_log(context, user, run, pod, query)
    except BadRequest:
        return ""  # its container has not begun
    except ServerError as error:
        if kept := await _stored_log(context, user, run, pod, query):
            return kept
        raise as_problem(error) from error
    except ApiError as error:
        raise as_problem(error) from error
    return escape(tail.text())


async def read_tail(api: PodApi, pod: str, namespace: str, container: str | None, query: str = "") -> Tail:
    """The last lines of a pod's log, or the last lines that contain `query`. Raises ApiError."""
    tail = Tail(query)
    lines = api.logs(pod, namespace, container=container, tail_lines=None if query else LINES)
    async with aclosing(cast(AsyncGenerator[bytes, None], lines)) as chunks:
        async for chunk in chunks:
            tail.add(chunk)
            if tail.size > SEARCH_BYTES:
                break
    return tail


class Tail:
    """The last LOG_BYTES of the added text, or of its lines that contain a text."""

    def __init__(self, query: str = "") -> None:
        self.size = 0
        self._query = query.casefold()
        self._kept = b""
        self._open = b""  # a line whose end has not come

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if not self._query:
            self._keep(chunk)
            return
        *lines, self._open = (self._open + chunk).split(b"\n")
        self._open = self._open[:LOG_BYTES]
        self._keep(b"".join(line + b"\n" for line in lines if self._matches(line)))

    def text(self) -> str:
        if self._open and self._matches(self._open):
            self._keep(self._open)
            self._open = b""
        return self._kept.decode(errors="replace")

    def _keep(self, part: bytes) -> None:
        self._kept = (self._kept + part)[-LOG_BYTES:]

    def _matches(self, line: bytes) -> bool:
        return self._query in line.decode(errors="replace").casefold()


async def _stored_log(context: Context, user: User, run: RunView, pod: PodView, query: str) -> str:
    """The stored end of a log, or of its lines that contain `query`; empty where there is none. Raises
    Problem.

    Where earlier lines are not stored, a line above says so.
    """
    try:
        kept = await RecordsForUser(context, user).log(run.namespace, run.name, pod.uid)
    except NotFound:
        return ""
    except ApiError as error:
        raise as_problem(error) from error
    lines, is_cut = lines_of(kept, now=context.now(), tail=None if query else LINES)
    tail = Tail(query)
    for line in lines:
        tail.add(line + b"\n")
    mark = f'<span class="cut">{escape(Cut(pod.name, kept.most_bytes).text)}</span>\n' if is_cut else ""
    return mark + escape(tail.text())
