"""The web pages /workspaces, /volumes and /datasets: lists that keep themselves current, and forms.

A form does what the REST API does, by the same functions and as the same user; pages need no script for it.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moorage.apimachinery.integers import parse_integer
from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.resources import PVCS, SECRETS, Resource
from moorage.decide.runs.job import PASSED_ON
from moorage.decide.usage.gpus import gpu_type
from moorage.errors import ApiError, MoorageError, NumberError
from moorage.model.dataset import DATASETS
from moorage.model.storageclass import RWO, RWX
from moorage.model.workspace import LOGIN, WORKSPACES, App, parse_workspace
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.pages import peopleboard as board
from moorage.server.pages.clusterpages import templates
from moorage.server.pages.desk import Desk, Question, Tick, as_said, checked_name, done, key_in, read_form
from moorage.server.problems import Problem, as_problem
from moorage.server.rest import datasets, volumes, workspaces

HOME, VOLUMES, SETS = "/workspaces", "/volumes", "/datasets"
ONE = "/{namespace}/{name}"
INPUT_OF = {  # field of a problem → input of a form
    "metadata.name": "name",
    "spec.type": "kind",
    "spec.image": "image",
    "spec.resources.cpu": "cpu",
    "spec.resources.memory": "memory",
    "spec.resources.gpus": "gpus",
    "spec.resources.gpuType": "gpu_type",
    "spec.home.size": "home_size",
    "spec.resources.requests.storage": "size",
}


def routes(desk: Desk) -> list[Route]:
    return [*_workspace_routes(desk), *_volume_routes(desk), *_dataset_routes(desk)]


def _fragment(template: str, **model: Any) -> str:
    return str(templates().get_template(template).render(**model)).strip()


def _wrong(problem: Problem | None) -> str:
    """The input at fault."""
    field = problem.field if problem is not None else None
    return INPUT_OF.get(field or "", field or "")


# --- workspaces


def _workspace_routes(desk: Desk) -> list[Route]:
    context, guarded = desk.context, desk.guarded(HOME)

    async def listed(request: Request) -> str:
        found = (await desk.inner(request, "GET", workspaces.ALL))["workspaces"]
        rows, more = board.rows(found, board.workspace_row, context.now())
        return _fragment("workspaces_live.html", rows=rows, more=more)

    async def page(
        request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
    ) -> Response:
        return desk.page(
            request,
            "workspaces.html",
            HOME,
            problem=problem,
            live_part=await listed(request),
            given=given or {},
            wrong=_wrong(problem),
            unfolded=given is not None or "new" in request.query_params,
            namespaces=await desk.places_to_make(request.state.user, WORKSPACES),
            kinds=sorted(_apps(context)),
            gpu_types=_gpu_types(context),
            on_processes=desk.on_processes(),
        )

    async def shown(request: Request) -> Response:
        await context.ready()
        return await page(request)

    async def live(request: Request) -> Response:
        return HTMLResponse(await listed(request))

    async def create(request: Request) -> Response:
        form = await read_form(request)
        try:
            body = workspace_body(form, on_processes=desk.on_processes())
            made = await desk.inner(request, "POST", workspaces.ALL, body=body)
        except (Problem, MoorageError) as error:
            return await page(request, as_said(error), form)
        return done(HOME, "made", f"{made['namespace']}/{made['name']}")

    def switch(verb: str) -> Any:
        async def switched(request: Request) -> Response:
            await read_form(request)
            namespace, name = key_in(request)
            try:
                await desk.inner(request, "POST", f"{workspaces.ALL}/{namespace}/{name}/{verb}")
            except (Problem, MoorageError) as error:
                return await page(request, as_said(error))
            return done(HOME, "starting" if verb == "start" else "stopping", f"{namespace}/{name}")

        return switched

    async def ask_delete(request: Request, problem: Problem | None = None) -> Response:
        namespace, name = key_in(request)
        told = await desk.inner(request, "GET", f"{workspaces.ALL}/{namespace}/{name}")
        home = told["home"]
        ticks = (
            (Tick(name="home", words=f"Delete its home too, volume {home}, with all that is in it"),)
            if home
            else ()
        )
        question = Question(
            title=f"Delete workspace {name}?",
            lines=(
                f"It is {told['phase'].lower()} in namespace {namespace}; what it has only in memory is lost.",
                f"Its home, volume {home}, stays unless you tick the box." if home else "It has no home yet.",
            ),
            button="Delete",
            action=f"{HOME}/{namespace}/{name}/delete",
            back=HOME,
            danger=True,
            ticks=ticks,
        )
        return desk.ask(request, HOME, question, problem)

    async def delete(request: Request) -> Response:
        form = await read_form(request)
        namespace, name = key_in(request)
        query = {"home": "delete"} if form.get("home") else {}
        try:
            await desk.inner(request, "DELETE", f"{workspaces.ALL}/{namespace}/{name}", query=query)
        except (Problem, MoorageError) as error:
            return await ask_delete(request, as_said(error))
        return done(HOME, "deleted", f"{namespace}/{name}")

    async def opened(request: Request) -> Response:
        return await _open(desk, request)

    return [
        Route(HOME, guarded(shown), methods=["GET"]),
        Route(HOME, guarded(create), methods=["POST"]),
        Route(f"{HOME}/live", live, methods=["GET"]),
        Route(f"{HOME}{ONE}/start", guarded(switch("start")), methods=["POST"]),
        Route(f"{HOME}{ONE}/stop", guarded(switch("stop")), methods=["POST"]),
        Route(f"{HOME}{ONE}/open", guarded(opened), methods=["GET"]),
        Route(f"{HOME}{ONE}/delete", guarded(ask_delete), methods=["GET"]),
        Route(f"{HOME}{ONE}/delete", guarded(delete), methods=["POST"]),
    ]


def workspace_body(form: Mapping[str, str], *, on_processes: bool) -> dict[str, Any]:
    """The REST API's body from a form's fields. Raises Problem 422.

    On a local cluster the application is found as this server's own programs are.
    """
    try:
        gpus = parse_integer(form.get("gpus") or "0", maximum=9999, name="GPUs")
    except NumberError as error:
        raise Problem(422, "invalid", error.message, field="gpus") from error
    asked = {"cpu": form.get("cpu"), "memory": form.get("memory")}
    resources: dict[str, Any] = {key: value for key, value in asked.items() if value}
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
        found = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        spec["env"] = [{"name": key, "value": value} for key, value in found.items()]
    body = {"name": checked_name(form), "namespace": form.get("namespace", ""), "spec": spec}
    return body | ({"hostEnv": True} if host_env else {})


def _apps(context: Context) -> Mapping[str, App]:
    return context.gateway.apps


def _gpu_types(context: Context) -> list[str]:
    found = {gpu_type(labels_of(node)) for node in context.cluster.nodes.all()}
    return sorted(one for one in found if one)


async def _open(desk: Desk, request: Request) -> Response:
    """To the workspace: by the platform's login, or by the token that the user may read."""
    namespace, name = key_in(request)
    api = desk.context.acting(request.state.user)
    view = parse_workspace(await api.get(WORKSPACES, name, namespace))
    status = view.status
    if not status.url:
        raise Problem(
            409, "no_address", f"the workspace {namespace}/{name} has no address yet",
            "it gets one where the platform has a domain for workspaces",
        )  # fmt: skip
    if status.access == LOGIN:
        return RedirectResponse(f"/open/{namespace}/{name}", 303)
    secret = await api.get(SECRETS, status.secret, namespace)
    token = base64.b64decode(secret["data"]["token"]).decode()
    app = view.spec.app or _apps(desk.context).get(view.spec.type)
    if app is not None and app.token is not None and app.token.query:
        mark = "&" if "?" in status.url else "?"
        return RedirectResponse(f"{status.url}{mark}{app.token.query}={quote(token)}", 303)
    question = Question(
        title=f"Open workspace {name}",
        lines=(f"It asks for a password of its own: {token}",),
        back=HOME,
        link=(status.url, "Open it"),
    )
    return desk.ask(request, HOME, question)


# --- volumes


def _volume_routes(desk: Desk) -> list[Route]:
    context, guarded = desk.context, desk.guarded(VOLUMES)

    async def listed(request: Request) -> str:
        found = await _everywhere(desk, request, volumes.ALL, "volumes", PVCS)
        rows, more = board.rows(found, board.volume_row, context.now())
        return _fragment("volumes_live.html", rows=rows, more=more)

    async def page(
        request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
    ) -> Response:
        return desk.page(
            request,
            "volumes.html",
            VOLUMES,
            problem=problem,
            live_part=await listed(request),
            given=given or {},
            wrong=_wrong(problem),
            unfolded=given is not None,
            namespaces=await desk.places_to_make(request.state.user, PVCS),
            classes=(await desk.inner(request, "GET", "/api/v1/storageclasses"))["storageClasses"],
            modes=((RWO, "One node at a time"), (RWX, "Many nodes at once")),
        )

    async def shown(request: Request) -> Response:
        return await page(request)

    async def live(request: Request) -> Response:
        return HTMLResponse(await listed(request))

    async def create(request: Request) -> Response:
        form = await read_form(request)
        try:
            body = {
                "name": checked_name(form),
                "namespace": form.get("namespace", ""),
                "size": form.get("size", ""),
                "mode": form.get("mode") or RWO,
                "storageClass": form.get("class", ""),
            }
            made = await desk.inner(request, "POST", volumes.ALL, body=body)
        except (Problem, MoorageError) as error:
            return await page(request, as_said(error), form)
        return done(VOLUMES, "made", f"{made['namespace']}/{made['name']}")

    async def one(request: Request) -> Mapping[str, Any]:
        namespace, name = key_in(request)
        found = await desk.inner(request, "GET", volumes.ALL, query={"namespace": namespace})
        for volume in found["volumes"]:
            if volume["name"] == name:
                return dict(volume)
        raise Problem(404, "not_found", f"there is no volume {namespace}/{name}")

    async def ask_size(
        request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
    ) -> Response:
        namespace, name = key_in(request)
        volume = await one(request)
        question = Question(
            title=f"Resize volume {name}",
            lines=(f"It has {volume['size']}. No volume becomes smaller.",),
            button="Resize",
            action=f"{VOLUMES}/{namespace}/{name}/resize",
            back=VOLUMES,
            entry=("size", "New size", (given or {}).get("size", volume["size"])),
        )
        return desk.ask(request, VOLUMES, question, problem)

    async def resize(request: Request) -> Response:
        form = await read_form(request)
        namespace, name = key_in(request)
        body = {"size": form.get("size", "")}
        try:
            await desk.inner(request, "PATCH", f"{volumes.ALL}/{namespace}/{name}", body=body)
        except (Problem, MoorageError) as error:
            return await ask_size(request, as_said(error), form)
        return done(VOLUMES, "resized", f"{namespace}/{name}")

    async def ask_delete(request: Request, problem: Problem | None = None) -> Response:
        namespace, name = key_in(request)
        volume = await one(request)
        question = _deletion("volume", namespace, name, VOLUMES, "All that is on it is lost.", volume["usedBy"])
        return desk.ask(request, VOLUMES, question, problem)

    async def delete(request: Request) -> Response:
        form = await read_form(request)
        namespace, name = key_in(request)
        try:
            await desk.inner(request, "DELETE", f"{volumes.ALL}/{namespace}/{name}", query=_force(form))
        except (Problem, MoorageError) as error:
            return await ask_delete(request, as_said(error))
        return done(VOLUMES, "deleted", f"{namespace}/{name}")

    return [
        Route(VOLUMES, guarded(shown), methods=["GET"]),
        Route(VOLUMES, guarded(create), methods=["POST"]),
        Route(f"{VOLUMES}/live", live, methods=["GET"]),
        Route(f"{VOLUMES}{ONE}/resize", guarded(ask_size), methods=["GET"]),
        Route(f"{VOLUMES}{ONE}/resize", guarded(resize), methods=["POST"]),
        Route(f"{VOLUMES}{ONE}/delete", guarded(ask_delete), methods=["GET"]),
        Route(f"{VOLUMES}{ONE}/delete", guarded(delete), methods=["POST"]),
    ]


# --- datasets


def _dataset_routes(desk: Desk) -> list[Route]:
    context, guarded = desk.context, desk.guarded(SETS)

    async def listed(request: Request) -> str:
        found = await _everywhere(desk, request, datasets.ALL, "datasets", DATASETS)
        rows, more = board.rows(found, board.dataset_row, context.now())
        return _fragment("datasets_live.html", rows=rows, more=more)

    async def shown(request: Request) -> Response:
        return desk.page(request, "datasets.html", SETS, live_part=await listed(request))

    async def live(request: Request) -> Response:
        return HTMLResponse(await listed(request))

    async def ask_delete(request: Request, problem: Problem | None = None) -> Response:
        namespace, name = key_in(request)
        told = await desk.inner(request, "GET", f"{datasets.ALL}/{namespace}/{name}")
        using = [f"{one['namespace']}/{one['name']}" for one in told["usedBy"] if one.get("active")]
        question = _deletion("dataset", namespace, name, SETS, "Its volume goes with it.", using)
        return desk.ask(request, SETS, question, problem)

    async def delete(request: Request) -> Response:
        form = await read_form(request)
        namespace, name = key_in(request)
        try:
            await desk.inner(request, "DELETE", f"{datasets.ALL}/{namespace}/{name}", query=_force(form))
        except (Problem, MoorageError) as error:
            return await ask_delete(request, as_said(error))
        return done(SETS, "deleted", f"{namespace}/{name}")

    return [
        Route(SETS, guarded(shown), methods=["GET"]),
        Route(f"{SETS}/live", live, methods=["GET"]),
        Route(f"{SETS}{ONE}/delete", guarded(ask_delete), methods=["GET"]),
        Route(f"{SETS}{ONE}/delete", guarded(delete), methods=["POST"]),
    ]


def _deletion(what: str, namespace: str, name: str, here: str, loss: str, using: list[str]) -> Question:
    ticks = (Tick(name="force", words="Delete it although it is in use"),) if using else ()
    lines = (loss, *((f"In use by {', '.join(using)}: they break.",) if using else ()))
    return Question(
        title=f"Delete {what} {name}?",
        lines=(f"It is in namespace {namespace}. {lines[0]}", *lines[1:]),
        button="Delete",
        action=f"{here}/{namespace}/{name}/delete",
        back=here,
        danger=True,
        ticks=ticks,
    )


def _force(form: Mapping[str, str]) -> dict[str, str]:
    return {"force": "true"} if form.get("force") else {}


async def _everywhere(
    desk: Desk, request: Request, path: str, key: str, resource: Resource
) -> list[dict[str, Any]]:
    """What a listing gives in all namespaces in which the user may ask for it."""
    user: User = request.state.user
    desk.context.acting(user)  # who may only look is told so
    try:
        places = await desk.places(user, "list", resource)
    except ApiError as error:
        raise as_problem(error) from error
    queries: list[dict[str, str]] = [{}] if places is None else [{"namespace": one} for one in places]
    told = await asyncio.gather(*(desk.inner(request, "GET", path, query=query) for query in queries))
    return [one for answer in told for one in answer[key]]
