"""The web pages of jobs: /jobs, and one per run with its attempts and its log.

Everybody who may look sees whose run it is and how it stands; its log sees who may read its pods' logs, for the
server reads it as the asker.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from html import escape
from typing import cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moorage.actions.runs import cancel_run
from moorage.apimachinery.api import PodApi
from moorage.apimachinery.resources import Obj
from moorage.decide.runs.state import PodView, RunView, view_run
from moorage.errors import ApiError, BadRequest, MoorageError, NotFound
from moorage.model.names import label_value
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages import peopleboard as board
from moorage.server.pages.board import owner_hues
from moorage.server.pages.clusterpages import templates
from moorage.server.pages.desk import Desk, Question, Tick, as_said, done, key_in, read_form
from moorage.server.problems import Problem, as_problem

HERE = "/jobs"
ONE = f"{HERE}/{{namespace}}/{{name}}"
LINES = 500  # of a log
LOG_BYTES = 256 * 1024
STOP_ASKING = 286  # htmx: this answer is the last


def routes(desk: Desk) -> list[Route]:
    context, guarded = desk.context, desk.guarded(HERE)

    async def listed(request: Request) -> tuple[str, str]:
        user: User = request.state.user
        whose = "all" if not user.account or request.query_params.get("whose") == "all" else "mine"
        runs = await desk.runs()
        if whose == "mine":
            runs = tuple(run for run in runs if run.owner in (user.name, label_value(user.name)))
        rows, more = board.job_rows(runs, context.now())
        template = templates().get_template("jobs_live.html")
        return str(template.render(rows=rows, more=more, whose=whose, may_act=bool(user.account))).strip(), whose

    async def shown(request: Request) -> Response:
        part, whose = await listed(request)
        return desk.page(request, "jobs.html", HERE, live_part=part, whose=whose)

    async def live(request: Request) -> Response:
        return HTMLResponse((await listed(request))[0])

    async def state(request: Request, run: RunView) -> str:
        row = board.job_row(run, owner_hues([run.owner])[run.owner], context.now())
        chosen = _chosen(run, request.query_params.get("pod"))
        template = templates().get_template("job_live.html")
        may_act = bool(request.state.user.account)
        return str(template.render(row=row, run=run, chosen=chosen, may_act=may_act)).strip()

    async def one(request: Request) -> Response:
        run, user = await _run(context, request), request.state.user
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
            live_part=await state(request, run),
            run=run,
            chosen=chosen,
            may_read=may_read,
            log=text,
            goes_on=not run.state.ended,
        )

    async def one_live(request: Request) -> Response:
        run = await _run(context, request)
        return HTMLResponse(await state(request, run), STOP_ASKING if run.state.ended else 200)

    async def log(request: Request) -> Response:
        run = await _run(context, request)
        chosen = _chosen(run, request.query_params.get("pod"))
        if chosen is None:
            return HTMLResponse("")
        text = await _log(context, request.state.user, run, chosen)
        return HTMLResponse(escape(text), STOP_ASKING if run.state.ended else 200)

    async def ask_cancel(request: Request, problem: Problem | None = None) -> Response:
        namespace, name = key_in(request)
        run = await _run(context, request)
        question = Question(
            title=f"{'Delete' if run.state.ended else 'Cancel'} run {name}?",
            lines=(
                f"It is {run.state.lower()} in namespace {namespace}.",
                "Its pods get their grace period, and no attempt follows. Checkpoints are kept."
                if not run.state.ended
                else "Its pods and logs go; checkpoints are kept, and the name is free again.",
            ),
            button="Delete the run" if run.state.ended else "Cancel the run",
            action=f"{HERE}/{namespace}/{name}/cancel",
            back=f"{HERE}/{namespace}/{name}",
            danger=True,
            ticks=() if run.state.ended else (Tick(name="delete", words="Also remove it with its pods and logs"),),
        )
        return desk.ask(request, HERE, question, problem)

    async def cancel(request: Request) -> Response:
        form = await read_form(request)
        namespace, name = key_in(request)
        run = await _run(context, request)
        delete = run.state.ended or bool(form.get("delete"))
        context.audit(request, "delete run" if delete else "cancel run", f"{namespace}/{name}")
        try:
            user: User = request.state.user
            await cancel_run(context.acting(user), namespace, name, by=user.name, now=context.now, delete=delete)
        except (Problem, MoorageError) as error:
            return await ask_cancel(request, as_said(error))
        if delete:
            return done(HERE, "deleted", f"{namespace}/{name}")
        return RedirectResponse(f"{HERE}/{namespace}/{name}?done=cancelled&what={namespace}/{name}", 303)

    return [
        Route(HERE, guarded(shown), methods=["GET"]),
        Route(f"{HERE}/live", live, methods=["GET"]),
        Route(ONE, guarded(one), methods=["GET"]),
        Route(f"{ONE}/live", one_live, methods=["GET"]),
        Route(f"{ONE}/log", log, methods=["GET"]),
        Route(f"{ONE}/cancel", guarded(ask_cancel), methods=["GET"]),
        Route(f"{ONE}/cancel", guarded(cancel), methods=["POST"]),
    ]


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
    said = b""
    try:
        lines = api.logs(pod.name, run.namespace, container=containers[0].get("name"), tail_lines=LINES)
        async with aclosing(cast(AsyncGenerator[bytes, None], lines)) as chunks:
            async for chunk in chunks:
                said = (said + chunk)[-LOG_BYTES:]
    except (BadRequest, NotFound):
        return ""  # its container has not begun, or nobody keeps the log any more
    except ApiError as error:
        raise as_problem(error) from error
    return said.decode(errors="replace")
