"""The web pages of jobs: /jobs, and one per run with its attempts and its log.

Everybody who may look sees the owner and the state of a run; its log sees who may read its pods' logs, for the
server reads it as the asker.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from html import escape
from typing import cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions.runs import cancel_run
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.resources import Obj
from moorage.decide.runs.state import PodView, RunView, view_run
from moorage.errors import ApiError, BadRequest, MoorageError, NotFound
from moorage.model.names import label_value
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages.board import owner_hues
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.desk import (
    Desk,
    Page,
    Question,
    Tick,
    done,
    key_in,
    problem_to_show,
    read_form,
)
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rows import JOB_STATES, JobRow, job_row, job_rows, words_of
from moorage.server.problems import Problem, as_problem

HERE = "/jobs"
ONE = f"{HERE}/{{namespace}}/{{name}}"
LINES = 500  # of a log
LOG_BYTES = 256 * 1024
STOP_ASKING = 286  # htmx: this answer is the last


async def show_list(desk: Desk, request: Request) -> Response:
    """The web page of runs."""
    listed = await _listed(desk, request)
    return desk.page(
        request, "jobs.html", HERE, live_part=_list(request, listed), whose=_whose(request), list=listed
    )


async def live_list(desk: Desk, request: Request) -> Response:
    """The part of the page of runs that changes."""
    return HTMLResponse(_list(request, await _listed(desk, request)))


async def show(desk: Desk, request: Request) -> Response:
    """The web page of one run: its attempts, its pods, the end of its log."""
    context, user = desk.context, request.state.user
    run = await _run(context, request)
    chosen = _chosen(run, request.query_params.get("pod"))
    may_read = await context.auth.may_read_pods(user, run.namespace)
    text, problem = "", None
    if may_read and chosen is not None:
        try:
            text = await _log(context, user, run, chosen)
        except Problem as error:
            problem, may_read = error, False
    return desk.page(
        request,
        "job.html",
        HERE,
        problem=problem,
        live=not run.state.ended,
        live_part=_state(desk, request, run),
        run=run,
        chosen=chosen,
        may_read=may_read,
        log=text,
        goes_on=not run.state.ended,
    )


async def live(desk: Desk, request: Request) -> Response:
    """The part of a run's page that changes."""
    run = await _run(desk.context, request)
    return HTMLResponse(_state(desk, request, run), STOP_ASKING if run.state.ended else 200)


async def log(desk: Desk, request: Request) -> Response:
    """The end of a pod's log."""
    run = await _run(desk.context, request)
    chosen = _chosen(run, request.query_params.get("pod"))
    if chosen is None:
        return HTMLResponse("")
    text = await _log(desk.context, request.state.user, run, chosen)
    return HTMLResponse(escape(text), STOP_ASKING if run.state.ended else 200)


async def ask_cancel(desk: Desk, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a run is cancelled, or deleted when it has ended."""
    namespace, name = key_in(request)
    run = await _run(desk.context, request)
    has_ended = run.state.ended
    question = Question(
        title=f"{'Delete' if has_ended else 'Cancel'} run {name}?",
        lines=(
            f"It is {run.state.lower()} in namespace {namespace}.",
            "Its pods and logs go; checkpoints are kept, and the name is free again."
            if has_ended
            else "Its pods get their grace period, and no attempt follows. Checkpoints are kept.",
        ),
        button="Delete the run" if has_ended else "Cancel the run",
        action=f"{HERE}/{namespace}/{name}/cancel",
        back=f"{HERE}/{namespace}/{name}",
        danger=True,
        ticks=() if has_ended else (Tick(name="delete", words="Also remove it with its pods and logs"),),
    )
    return desk.ask(request, HERE, question, problem)


async def cancel(desk: Desk, request: Request) -> Response:
    """Cancel a run, or delete a run that has ended, after the page has asked."""
    form = await read_form(request)
    namespace, name = key_in(request)
    context, user = desk.context, request.state.user
    run = await _run(context, request)
    delete = run.state.ended or bool(form.get("delete"))
    context.audit(request, "delete run" if delete else "cancel run", f"{namespace}/{name}")
    try:
        await cancel_run(context.acting(user), namespace, name, by=user.name, now=context.now, delete=delete)
    except (Problem, MoorageError) as error:
        return await ask_cancel(desk, request, problem_to_show(error))
    if delete:
        return done(HERE, "deleted", f"{namespace}/{name}")
    return done(f"{HERE}/{namespace}/{name}", "cancelled", f"{namespace}/{name}")


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="GET", path=f"{ONE}/log", handler=log, live=True),
    Page(method="GET", path=f"{ONE}/cancel", handler=ask_cancel),
    Page(method="POST", path=f"{ONE}/cancel", handler=cancel),
)


def _whose(request: Request) -> str:
    user: User = request.state.user
    return "all" if not user.account or request.query_params.get("whose") == "all" else "mine"


async def _listed(desk: Desk, request: Request) -> Shown[JobRow]:
    user, whose = request.state.user, _whose(request)
    runs = await desk.runs()
    if whose == "mine":
        runs = tuple(run for run in runs if run.owner in (user.name, label_value(user.name)))
    rows, _ = job_rows(runs, desk.context.now(), most=None)
    wanted = wanted_of(request.query_params, more=[("whose", whose if whose == "all" else "")])
    return page_of(rows, wanted, HERE, words=words_of, state=lambda row: row.state, states=JOB_STATES)


def _list(request: Request, listed: Shown[JobRow]) -> str:
    may_act = bool(request.state.user.account)
    return fragment("jobs_live.html", list=listed, whose=_whose(request), may_act=may_act)


def _state(desk: Desk, request: Request, run: RunView) -> str:
    row = job_row(run, owner_hues([run.owner])[run.owner], desk.context.now())
    chosen = _chosen(run, request.query_params.get("pod"))
    return fragment("job_live.html", row=row, run=run, chosen=chosen, may_act=bool(request.state.user.account))


async def _run(context: Context, request: Request) -> RunView:
    """Raises Problem 404."""
    namespace, name = key_in(request)
    cluster = await context.ready()
    jobs: list[Obj] = cluster.jobs_of_run(namespace, name)
    if not jobs:
        raise Problem(404, "not_found", f"there is no run {namespace}/{name}", "`moor jobs` lists them")
    return view_run(jobs, cluster.pods_of_run(namespace, name), now=context.now())


def _chosen(run: RunView, asked: str | None) -> PodView | None:
    """The pod of the run whose log is shown: the one asked for, else the newest."""
    for pod in run.pods:
        if pod.name == asked:
            return pod
    return run.pods[-1] if run.pods else None


async def _log(context: Context, user: User, run: RunView, pod: PodView) -> str:
    """The end of what a pod has printed, read as the user. Raises Problem."""
    api = cast(PodApi, context.acting(user))
    obj = context.cluster.pods.get(pod.name, run.namespace)
    containers = ((obj or {}).get("spec") or {}).get("containers") or [{}]
    tail = b""
    try:
        lines = api.logs(pod.name, run.namespace, container=containers[0].get("name"), tail_lines=LINES)
        async with aclosing(cast(AsyncGenerator[bytes, None], lines)) as chunks:
            async for chunk in chunks:
                tail = (tail + chunk)[-LOG_BYTES:]
    except (BadRequest, NotFound):
        return ""  # its container has not begun, or nobody keeps the log any more
    except ApiError as error:
        raise as_problem(error) from error
    return tail.decode(errors="replace")
