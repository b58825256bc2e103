"""The web pages of schedules: /crons and /crons/NAMESPACE/NAME. They act as the logged-in user."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.api.crons import Cron, CronStart
from moorage.model.argo import CRON_WORKFLOWS
from moorage.server.idempotency import mark_of
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.site import Page, Question, Site, done, key_in, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError
from moorage_workflows.actions import crons
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.server.pages.cronboard import STATES, CronRow, cron_row, run_rows, sorted_rows
from moorage_workflows.server.rest.workflows import records_of

HERE = "/crons"
ONE = f"{HERE}/{{namespace}}/{{name}}"
CONTROLS = ("change schedule", "run schedule", "delete schedule")
RUNS_SHOWN = 100
KEY_MAX = 100  # characters


async def show_list(site: Site, request: Request) -> Response:
    """The web page of schedules."""
    listed = await _listed(site, request)
    part = fragment("crons_live.html", list=listed)
    return site.page(request, "crons.html", HERE, live_part=part, list=listed)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of schedules that changes."""
    return HTMLResponse(fragment("crons_live.html", list=await _listed(site, request)))


async def show(site: Site, request: Request) -> Response:
    """The web page of one schedule with its runs."""
    namespace, name = key_in(request)
    part = await _schedule(site, request)
    return site.page(request, "cron.html", HERE, live_part=part, namespace=namespace, name=name)


async def live(site: Site, request: Request) -> Response:
    """The part of a schedule's page that changes."""
    return HTMLResponse(await _schedule(site, request))


async def suspend(site: Site, request: Request) -> Response:
    """Suspend a schedule (button)."""
    return await _switch(site, request, "suspend schedule", "suspended-cron", is_suspended=True)


async def resume(site: Site, request: Request) -> Response:
    """Resume a schedule (button)."""
    return await _switch(site, request, "resume schedule", "resumed-cron", is_suspended=False)


async def ask_run(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for confirmation before it starts a schedule's workflow now."""
    namespace, name = key_in(request)
    await _cron(site, request)
    question = Question(
        title=say("Run {name} now?", name=name),
        lines=(
            say("Its workflow is started in namespace {namespace}, outside of the schedule.", namespace=namespace),
        ),
        button="Run now",
        action=f"{_page(request)}/run",
        back=_page(request),
        hidden=(("key", secrets.token_hex(8)),),
    )
    return site.ask(request, HERE, question, problem)


async def run(site: Site, request: Request) -> Response:
    """Start a schedule's workflow now, after confirmation. Redirects to the workflow."""
    form = await read_form(request)
    context, user, key = site.context, request.state.user, form.get("key", "")[:KEY_MAX]
    namespace, name = key_in(request)
    context.audit(request, "run schedule", f"{namespace}/{name}")
    try:
        api = context.acting(user)
        submitted = await crons.run_cron(
            api,
            namespace,
            name,
            {},
            controller=await controller_of(context.api, context.now()),
            check=checks_of(api, namespace, evaluation=context.evaluation, nodes=context.cluster.nodes.all()),
            mark=mark_of(user.name, f"schedule\0{namespace}/{name}\0{key}", CronStart()) if key else "",
        )
    except (Problem, MoorageError) as error:
        return await ask_run(site, request, problem_to_show(error))
    made = str(submitted.workflow["metadata"]["name"])
    return done(f"/workflows/{quote(namespace)}/{quote(made)}", "started", f"{namespace}/{made}")


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for confirmation before it deletes a schedule."""
    namespace, name = key_in(request)
    cron = await _cron(site, request)
    going_on = f"Those that go on are ended: {', '.join(cron.active)}." if cron.active else ""
    question = Question(
        title=say("Delete {what} {name}?", what=say("schedule"), name=name),
        lines=(f"It is in namespace {namespace}. Its workflows go with it. {going_on}".strip(),),
        button="Delete",
        action=f"{_page(request)}/delete",
        back=_page(request),
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a schedule, after confirmation."""
    await read_form(request)
    return await _change(
        site, request, "delete schedule", "deleted", crons.delete_cron, back=HERE, again=ask_delete
    )


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="POST", path=f"{ONE}/suspend", handler=suspend),
    Page(method="POST", path=f"{ONE}/resume", handler=resume),
    Page(method="GET", path=f"{ONE}/run", handler=ask_run, controls=("run schedule",)),
    Page(method="POST", path=f"{ONE}/run", handler=run),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete schedule",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)

Act = Callable[[Api, str, str], Awaitable[object]]


def _page(request: Request) -> str:
    namespace, name = key_in(request)
    return f"{HERE}/{quote(namespace)}/{quote(name)}"


async def _listed(site: Site, request: Request) -> Shown[CronRow]:
    user, now = request.state.user, site.context.now()
    api = site.context.acting(user)

    async def in_namespace(namespace: str | None) -> list[Cron]:
        return (await crons.list_crons(api, namespace, now))[0]

    return page_of(
        sorted_rows(await site.everywhere(user, CRON_WORKFLOWS, in_namespace), now),
        wanted_of(request.query_params),
        HERE,
        words=lambda row: (f"{row.namespace}/{row.name}", *row.words, *row.written, row.zone),
        state=lambda row: row.state,
        states=STATES,
    )


async def _cron(site: Site, request: Request) -> Cron:
    """Raises NotFound."""
    namespace, name = key_in(request)
    return await crons.get_cron(site.context.acting(request.state.user), namespace, name, site.context.now())


async def _schedule(site: Site, request: Request) -> str:
    """The content of the page of a schedule, read as the user. Raises NotFound."""
    namespace, name = key_in(request)
    context = site.context
    user = request.state.user
    api, now = context.acting(user), context.now()
    cron = await _cron(site, request)
    runs = await crons.cron_history(api, namespace, name, records_of(context, user), limit=RUNS_SHOWN)
    rights = await site.allowed(request, CONTROLS, [namespace])
    return fragment(
        "cron_live.html",
        cron=cron_row(cron, now),
        runs=run_rows(runs, cron.time_zone, now),
        rights=rights,
        here=HERE,
    )


async def _switch(site: Site, request: Request, what: str, outcome: str, *, is_suspended: bool) -> Response:
    await read_form(request)
    now = site.context.now()

    async def act(api: Api, namespace: str, name: str) -> object:
        return await crons.suspend_cron(api, namespace, name, now, is_suspended=is_suspended)

    return await _change(site, request, what, outcome, act)


async def _change(
    site: Site,
    request: Request,
    what: str,
    outcome: str,
    act: Act,
    *,
    back: str = "",
    again: Callable[[Site, Request, Problem], Awaitable[Response]] | None = None,
) -> Response:
    """Change the schedule of the path as its user. Redirects to its page, or to `back`."""
    namespace, name = key_in(request)
    site.context.audit(request, what, f"{namespace}/{name}")
    try:
        await act(site.context.acting(request.state.user), namespace, name)
    except (Problem, MoorageError) as error:
        if again is None:
            raise
        return await again(site, request, problem_to_show(error))
    return done(back or _page(request), outcome, f"{namespace}/{name}")
