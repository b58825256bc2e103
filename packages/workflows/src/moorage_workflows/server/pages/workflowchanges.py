"""The actions on a workflow's page: suspend, resume, stop, terminate, retry, resubmit and delete it.

A step that waits for a person is resumed, or failed, with the outputs of its form.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from moorage.api.workflows import ResubmitWorkflow
from moorage.server.idempotency import mark_of
from moorage.server.pages.site import Page, Question, Site, done, key_in, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError
from moorage_workflows.actions import workflows
from moorage_workflows.actions.argocontroller import controller_of
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.decide.workflows.submission import Additions
from moorage_workflows.model.workflow import Resume, Retry
from moorage_workflows.server.pages.workflowpages import HERE, ID_MAX, ONE, see
from moorage_workflows.server.rest.workflows import records_of

Act = Callable[[Api, str, str], Awaitable[object]]
SUPPLIED = "p-"  # before the name of an output parameter in a form


async def suspend(site: Site, request: Request) -> Response:
    """Suspend a workflow (button): no more steps start."""
    await read_form(request)
    return await _change(site, request, "suspend workflow", "suspended", workflows.suspend_workflow)


async def resume(site: Site, request: Request) -> Response:
    """Resume a suspended workflow (button). With `at`, resume a step that waits for a user."""
    form = await read_form(request)
    at = form.get("at", "")[:ID_MAX]
    wish = Resume(
        selector=f"id={at}" if at else "",
        parameters={key.removeprefix(SUPPLIED): text for key, text in form.items() if key.startswith(SUPPLIED)},
        message=form.get("message", ""),
        is_failure=form.get("verdict") == "fail",
    )
    context = site.context

    async def act(api: Api, namespace: str, name: str) -> object:
        return await workflows.resume_workflow(
            api, namespace, name, wish, now=context.now(), records=records_of(context, request.state.user)
        )

    what = "fail step of workflow" if wish.is_failure else "resume workflow"
    return await _change(site, request, what, "step-failed" if wish.is_failure else "resumed", act, at=at)


async def retry(site: Site, request: Request) -> Response:
    """Run failed steps again, from the button; with `at`, that step and all that came after it."""
    form = await read_form(request)
    at = form.get("at", "")[:ID_MAX]
    wish = Retry(selector=f"id={at}", restart_successful=True) if at else Retry()

    async def act(api: Api, namespace: str, name: str) -> object:
        records = records_of(site.context, request.state.user)
        return await workflows.retry_workflow(api, namespace, name, wish, records=records)

    return await _change(site, request, "retry workflow", "retried-workflow", act, at=at)


async def ask_stop(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for confirmation before it stops a workflow."""
    words = "Its running steps are ended and no other begins. Its exit handler runs."
    return await _ask(site, request, problem, "stop", "Stop", words)


async def stop(site: Site, request: Request) -> Response:
    """Stop a workflow, after confirmation."""
    await read_form(request)
    act = workflows.stop_workflow
    return await _change(site, request, "stop workflow", "stopped-workflow", act, again=ask_stop)


async def ask_terminate(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for confirmation before it terminates a workflow."""
    words = "Its running steps are ended and no other begins. Its exit handler does not run."
    return await _ask(site, request, problem, "terminate", "Terminate", words)


async def terminate(site: Site, request: Request) -> Response:
    """Terminate a workflow, after confirmation."""
    await read_form(request)

    async def act(api: Api, namespace: str, name: str) -> object:
        return await workflows.stop_workflow(api, namespace, name, terminate=True)

    return await _change(site, request, "terminate workflow", "stopped-workflow", act, again=ask_terminate)


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for confirmation before it deletes a workflow."""
    words = "Its pods and their logs are deleted too. The server's records of its steps stay for a time."
    return await _ask(site, request, problem, "delete", "Delete", words)


async def delete(site: Site, request: Request) -> Response:
    """Delete a workflow, after confirmation."""
    await read_form(request)
    act = workflows.delete_workflow
    return await _change(site, request, "delete workflow", "deleted", act, again=ask_delete, back=HERE)


async def ask_resubmit(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a workflow is submitted again; with `memoized`, steps that succeeded do not
    run.
    """
    seen = await see(site, request)
    memoized = bool(request.query_params.get("memoized"))
    arguments = ", ".join(f"{name}={value[:80]}" for name, value in seen.view.arguments.items())
    question = Question(
        title=say("Submit {name} again?", name=seen.view.name),
        lines=(
            "A new workflow of the same spec takes over the successful steps, and runs the others."
            if memoized
            else "A new workflow of the same spec runs every step.",
            *((say("Its arguments are the same: {arguments}.", arguments=arguments),) if arguments else ()),
        ),
        button="Submit",
        action=f"{_page(request)}/resubmit{'?memoized=1' if memoized else ''}",
        back=_page(request),
        hidden=(("key", secrets.token_hex(8)),),
    )
    return site.ask(request, HERE, question, problem)


async def resubmit(site: Site, request: Request) -> Response:
    """Submit a workflow again, after confirmation. Redirects to the new workflow."""
    form = await read_form(request)
    context, user, key = site.context, request.state.user, form.get("key", "")[:ID_MAX]
    namespace, name = key_in(request)
    wish = ResubmitWorkflow(memoized=bool(request.query_params.get("memoized")))
    context.audit(request, "resubmit workflow", f"{namespace}/{name}")
    try:
        api = context.acting(user)
        submitted = await workflows.resubmit_workflow(
            api,
            namespace,
            name,
            Additions(),
            controller=await controller_of(context.api, context.now()),
            records=records_of(context, user),
            check=checks_of(api, namespace, evaluation=context.evaluation),
            mark=mark_of(user.name, f"workflow\0{namespace}/{name}\0{key}", wish) if key else "",
            memoized=wish.memoized,
        )
    except (Problem, MoorageError) as error:
        return await ask_resubmit(site, request, problem_to_show(error))
    made = str(submitted.workflow["metadata"]["name"])
    return done(f"{HERE}/{quote(namespace)}/{quote(made)}", "started", f"{namespace}/{made}")


PAGES = (
    Page(method="POST", path=f"{ONE}/suspend", handler=suspend),
    Page(method="POST", path=f"{ONE}/resume", handler=resume),
    Page(method="POST", path=f"{ONE}/retry", handler=retry),
    Page(method="GET", path=f"{ONE}/stop", handler=ask_stop, controls=("change workflow",)),
    Page(method="POST", path=f"{ONE}/stop", handler=stop),
    Page(method="GET", path=f"{ONE}/terminate", handler=ask_terminate, controls=("change workflow",)),
    Page(method="POST", path=f"{ONE}/terminate", handler=terminate),
    Page(method="GET", path=f"{ONE}/resubmit", handler=ask_resubmit, controls=("create workflow",)),
    Page(method="POST", path=f"{ONE}/resubmit", handler=resubmit),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete workflow",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


def _page(request: Request) -> str:
    namespace, name = key_in(request)
    return f"{HERE}/{quote(namespace)}/{quote(name)}"


async def _ask(
    site: Site, request: Request, problem: Problem | None, verb: str, button: str, words: str
) -> Response:
    view = (await see(site, request)).view
    question = Question(
        title=say(f"{button} workflow {{name}}?", name=view.name),
        lines=(say("It is in namespace {namespace}.", namespace=view.namespace) + " " + say(words),),
        button=button,
        action=f"{_page(request)}/{verb}",
        back=_page(request),
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def _change(
    site: Site,
    request: Request,
    what: str,
    outcome: str,
    act: Act,
    *,
    at: str = "",
    back: str = "",
    again: Callable[[Site, Request, Problem], Awaitable[Response]] | None = None,
) -> Response:
    """Change the workflow of the path as its user. Redirects to its page, with `at` to that step."""
    namespace, name = key_in(request)
    site.context.audit(request, what, f"{namespace}/{name}")
    try:
        await act(site.context.acting(request.state.user), namespace, name)
    except (Problem, MoorageError) as error:
        if again is None:
            raise
        return await again(site, request, problem_to_show(error))
    if not at:
        return done(back or _page(request), outcome, f"{namespace}/{name}")
    fields = {"done": outcome, "what": f"{namespace}/{name}", "at": at}
    return RedirectResponse(f"{_page(request)}?{urlencode(fields)}", 303)
