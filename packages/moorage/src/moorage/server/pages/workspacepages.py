"""The web pages /workspaces: a list that updates itself, and forms. The pages work without scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from moorage.actions import workspaces
from moorage.api.workspaces import NewWorkspace
from moorage.decide.usage.gpus import gpu_type
from moorage.model.idle import WORKSPACE
from moorage.model.workspace import WORKSPACES
from moorage.server.idle.snoozing import put_off
from moorage.server.inputs import as_struct
from moorage.server.listings import visible_workspaces
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.formpages import may_make
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rows import WORKSPACE_STATES, WorkspaceRow, rows, type_rows, words_of, workspace_row
from moorage.server.pages.site import (
    Page,
    Question,
    Site,
    Tick,
    change,
    checked_name,
    done,
    key_in,
    problem_to_show,
    read_form,
)
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError, NumberError
from moorage_kube.integers import parse_integer
from moorage_kube.meta import labels_of

HERE = "/workspaces"
CONTROLS = ("switch workspace", "open workspace", "delete workspace")  # of each row
ONE = f"{HERE}/{{namespace}}/{{name}}"
INPUT_OF = {  # field of a problem → input of the form
    "metadata.name": "name",
    "spec.type": "kind",
    "spec.image": "image",
    "spec.resources.cpu": "cpu",
    "spec.resources.memory": "memory",
    "spec.resources.gpus": "gpus",
    "spec.resources.gpuType": "gpu_type",
    "spec.home.size": "home_size",
}


async def show_list(site: Site, request: Request) -> Response:
    """The web page of workspaces."""
    await site.context.ready()
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of workspaces that changes."""
    return HTMLResponse(await _list(site, request, await _listed(site, request)))


async def create(site: Site, request: Request) -> Response:
    """Create a workspace from the form of the page."""
    form = await read_form(request)
    try:
        body = workspace_request(form, on_processes=site.on_processes())
        obj = workspaces.plan_workspace(body, on_processes=site.on_processes())
        site.context.audit(request, "create workspace", f"{body.namespace}/{body.name}")
        api = site.context.acting(request.state.user)
        await workspaces.create_workspace(api, obj, templates=site.context.api)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error), form)
    return done(HERE, "created", f"{body.namespace}/{body.name}")


async def start(site: Site, request: Request) -> Response:
    """Start a workspace from its button."""
    return await _switch(site, request, running=True)


async def stop(site: Site, request: Request) -> Response:
    """Stop a workspace from its button."""
    return await _switch(site, request, running=False)


async def snooze(site: Site, request: Request) -> Response:
    """Put off the suspension of an idle workspace from its button."""
    await read_form(request)

    async def act(_api: Api, namespace: str, name: str) -> object:
        return await put_off(site.context, request.state.user, WORKSPACE, namespace, name)

    return await change(site, request, "snooze workspace", act, again=_list_page, back=HERE, outcome="snoozed")


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a workspace is deleted."""
    namespace, name = key_in(request)
    item = await workspaces.get_workspace(site.context.acting(request.state.user), namespace, name)
    home = item.home
    question = Question(
        title=say("Delete {what} {name}?", what=say("workspace"), name=name),
        lines=(
            say("It is in namespace {namespace}; data that is only in memory is lost.", namespace=namespace),
            say("Its home, volume {home}, stays unless you tick the box.", home=home)
            if home
            else "It has no home yet.",
        ),
        button="Delete",
        action=f"{HERE}/{namespace}/{name}/delete",
        back=HERE,
        danger=True,
        ticks=(
            Tick(
                name="deleteHome",
                words=say("Delete its home too, volume {home}, with all that is in it", home=home),
            ),
        )
        if home
        else (),
    )
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a workspace, after the page has asked."""
    form = await read_form(request)
    act = partial(workspaces.delete_workspace, delete_home=bool(form.get("deleteHome")))
    return await change(site, request, "delete workspace", act, again=ask_delete, back=HERE, outcome="deleted")


async def open_workspace(site: Site, request: Request) -> Response:
    """Redirect to the workspace: by the platform's login, or with the token that the user owns or may read."""
    namespace, name = key_in(request)
    user, gateway = request.state.user, site.context.gateway
    token = await gateway.token_for(user, namespace, name) or ""
    way = await workspaces.way_in(site.context.acting(user), namespace, name, gateway.apps, token=token)
    if way.by_login:
        return RedirectResponse(f"/open/{namespace}/{name}", 303)
    if not way.password:
        return RedirectResponse(way.url, 303)
    question = Question(
        title=say("Open workspace {name}", name=name),
        lines=(f"It asks for its own password: {way.password}",),
        back=HERE,
        link=(way.url, "Open it"),
    )
    return site.ask(request, HERE, question)


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="POST", path=HERE, handler=create),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="POST", path=f"{ONE}/start", handler=start),
    Page(method="POST", path=f"{ONE}/stop", handler=stop),
    Page(method="POST", path=f"{ONE}/snooze", handler=snooze),
    Page(method="GET", path=f"{ONE}/open", handler=open_workspace),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete workspace",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


def workspace_request(form: Mapping[str, str], *, on_processes: bool) -> NewWorkspace:
    """The request of a form. Raises Problem 422.

    On a local cluster the application is found as this server's own programs are.
    """
    try:
        gpus = parse_integer(form.get("gpus") or "0", maximum=9999, name="GPUs")
    except NumberError as error:
        raise Problem(422, "invalid", error.message, field="gpus") from error
    amounts = {"cpu": form.get("cpu"), "memory": form.get("memory")}
    resources: dict[str, Any] = {key: value for key, value in amounts.items() if value}
    if gpus:
        resources["gpus"] = gpus
        if kind := form.get("gpu_type"):
            resources["gpuType"] = kind
    spec: dict[str, Any] = {"type": form.get("kind", ""), "running": True}
    if resources:
        spec["resources"] = resources
    if image := form.get("image"):
        spec["image"] = image
    if size := form.get("home_size"):
        spec["home"] = {"size": size}
    host_env = on_processes and bool(form.get("host_env"))
    if on_processes and (host_env or not image):
        variables = workspaces.host_variables(os.environ)
        spec["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    body = {"name": checked_name(form), "namespace": form.get("namespace", ""), "spec": spec, "hostEnv": host_env}
    return as_struct(body, NewWorkspace)


async def _listed(site: Site, request: Request) -> Shown[WorkspaceRow]:
    listed, _ = await visible_workspaces(site.context, request.state.user, None)
    shown = rows(listed, workspace_row, site.context.now())
    wanted = wanted_of(request.query_params)
    return page_of(shown, wanted, HERE, words=words_of, state=lambda row: row.state, states=WORKSPACE_STATES)


async def _list(site: Site, request: Request, listed: Shown[WorkspaceRow]) -> str:
    rights = await site.allowed(request, CONTROLS, (row.namespace for row in listed.rows))
    can_make = await may_make(site, request.state.user, WORKSPACES)
    return fragment("workspaces_live.html", list=listed, rights=rights, can_make=can_make)


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    listed = await _listed(site, request)
    namespaces = await site.places_to_make(request.state.user, WORKSPACES)
    return site.page(
        request,
        "workspaces.html",
        HERE,
        problem=problem,
        live_part=await _list(site, request, listed),
        list=listed,
        given=given or {},
        inputs=INPUT_OF,
        unfolded=given is not None or "new" in request.query_params,
        namespaces=namespaces,
        kinds=type_rows(site.context.gateway.apps, on_processes=site.on_processes()),
        gpu_types=_gpu_types(site),
        on_processes=site.on_processes(),
    )


async def _switch(site: Site, request: Request, *, running: bool) -> Response:
    await read_form(request)
    what, outcome = ("start workspace", "starting") if running else ("stop workspace", "stopping")
    act = partial(workspaces.switch_workspace, running=running)
    return await change(site, request, what, act, again=_list_page, back=HERE, outcome=outcome)


def _gpu_types(site: Site) -> list[str]:
    types = {gpu_type(labels_of(node)) for node in site.context.cluster.nodes.all()}
    return sorted(name for name in types if name)
