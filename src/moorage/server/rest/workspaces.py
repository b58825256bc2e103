"""/api/v1/workspaces: made, listed, started, stopped, opened, deleted as the asker: cluster rights decide."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.api.fields import PAGE_MOST, Name
from moorage.apimachinery.meta import key_of
from moorage.apimachinery.resources import PVCS, Obj
from moorage.errors import ApiError, Forbidden, NotFound
from moorage.model.names import GROUP, HOST_ENV_ANNOTATION
from moorage.model.workspace import WORKSPACES, check_workspace, parse_workspace, workspace_json
from moorage.server.context import Context
from moorage.server.gateway.gateway import clean_path
from moorage.server.idempotency import create_once, request_mark
from moorage.server.identity.auth import User
from moorage.server.identity.loginroutes import read_json
from moorage.server.inputs import whole_number
from moorage.server.problems import Json, Problem, as_problem, refuse

ALL = "/api/v1/workspaces"
ONE = f"{ALL}/{{namespace}}/{{name}}"


class NewWorkspace(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a POST; `spec` as in the kind Workspace."""

    name: Name
    namespace: Name
    spec: dict[str, Any]
    host_env: bool = False  # on a local cluster: run the image's command in this machine's environment
    dry_run: bool = False


class Opening(msgspec.Struct, forbid_unknown_fields=True):
    """Where in it to begin."""

    path: Annotated[str, msgspec.Meta(max_length=4096)] = ""


def routes(context: Context) -> list[Route]:
    async def listed(request: Request) -> Response:
        """Workspaces of a namespace, or of all in which the asker may list them; `limit` and `continue` page."""
        user: User = request.state.user
        namespace = request.query_params.get("namespace") or None
        api = context.acting(user)
        limit, cont = page_of(request)
        after = None
        try:
            page = await api.list(WORKSPACES, namespace, limit=limit, cont=cont)
            found, after = page.items, page.cont
        except Forbidden as error:
            if namespace is not None:
                raise as_problem(error) from error
            found = await _where_allowed(context, user)
        except ApiError as error:
            raise as_problem(error) from error
        shown = sorted((workspace_json(one) for one in found), key=lambda one: (one["namespace"], one["name"]))
        return Json({"workspaces": shown, "continue": after})

    async def create(request: Request) -> Response:
        """Make a workspace: `{name, namespace, spec}`, the spec as in the kind; `dryRun`: only tried.

        `Idempotency-Key`: asking twice is as once.
        """
        asked = await read_json(request, NewWorkspace)
        mark = request_mark(request, asked)
        made: Obj = {
            "apiVersion": WORKSPACES.api_version,
            "kind": WORKSPACES.kind,
            "metadata": {"name": asked.name, "namespace": asked.namespace},
            "spec": asked.spec,
        }
        if asked.host_env:
            made["metadata"]["annotations"] = {HOST_ENV_ANNOTATION: "true"}
        refuse(check_workspace(made))
        context.audit(request, "create workspace", f"{asked.namespace}/{asked.name}")
        try:
            api = context.acting(request.state.user)
            stored = await create_once(api, WORKSPACES, made, asked.namespace, mark, dry_run=asked.dry_run)
        except ApiError as error:
            raise as_problem(error) from error
        return Json(workspace_json(stored), 200 if asked.dry_run else 201)

    async def show(request: Request) -> Response:
        """How a workspace stands, where it is, and what it waits for."""
        return Json(workspace_json(await _get(context, request)))

    async def delete(request: Request) -> Response:
        """Delete a workspace; its home stays, but with `home=delete`."""
        namespace, name = _key(request)
        found = await _get(context, request)
        context.audit(request, "delete workspace", f"{namespace}/{name}")
        api = context.acting(request.state.user)
        try:
            await api.delete(WORKSPACES, name, namespace, uid=found["metadata"]["uid"], propagation="Background")
            if request.query_params.get("home") == "delete":
                await api.delete(PVCS, parse_workspace(found).home_claim, namespace)
        except NotFound:
            pass
        except ApiError as error:
            raise as_problem(error) from error
        return Response(status_code=204)

    def switched(running: bool) -> Any:
        async def switch(request: Request) -> Response:
            namespace, name = _key(request)
            context.audit(request, f"{'start' if running else 'stop'} workspace", f"{namespace}/{name}")
            try:
                patched = await context.acting(request.state.user).patch(
                    WORKSPACES, name, {"spec": {"running": running}}, namespace
                )
            except ApiError as error:
                raise as_problem(error) from error
            return Json(workspace_json(patched))

        switch.__doc__ = (
            "Start a workspace that is stopped."
            if running
            else "Stop a workspace: what is on its volumes is kept, what is in memory is lost."
        )
        return switch

    async def opened(request: Request) -> Response:
        """An address that lets a browser in, good once and for a minute."""
        namespace, name = _key(request)
        if context.gateway is None:
            raise Problem(501, "no_gateway", "this server has no gateway to workspaces")
        asked = await read_json(request, Opening) if "content-type" in request.headers else Opening()
        if asked.path and not clean_path(asked.path):
            raise Problem(422, "invalid", "path must begin with one /, without blanks", field="path")
        context.audit(request, "open workspace", f"{namespace}/{name}")
        return Json({"url": await context.gateway.link(request.state.user, namespace, name, path=asked.path)})

    return [
        Route(ALL, listed, methods=["GET"]),
        Route(ALL, create, methods=["POST"]),
        Route(ONE, show, methods=["GET"]),
        Route(ONE, delete, methods=["DELETE"]),
        Route(f"{ONE}/start", switched(True), methods=["POST"]),
        Route(f"{ONE}/stop", switched(False), methods=["POST"]),
        Route(f"{ONE}/open", opened, methods=["POST"]),
    ]


def page_of(request: Request) -> tuple[int | None, str | None]:
    """`limit` and `continue` of a listing. Raises Problem 400."""
    limit = whole_number(request, "limit", minimum=1, maximum=PAGE_MOST)
    return limit, request.query_params.get("continue") or None


async def _where_allowed(context: Context, user: User) -> list[Obj]:
    """Workspaces of the namespaces in which the user may list them."""
    if context.gateway is None:
        return []
    found, may = [], {}
    for one in context.gateway.workspaces.all():
        namespace = key_of(one).namespace
        if namespace not in may:
            may[namespace] = await context.auth.may(
                user, "list", WORKSPACES.plural, group=GROUP, namespace=namespace
            )
        if may[namespace]:
            found.append(one)
    return found


async def _get(context: Context, request: Request) -> Obj:
    namespace, name = _key(request)
    try:
        return await context.acting(request.state.user).get(WORKSPACES, name, namespace)
    except ApiError as error:
        raise as_problem(error) from error


def _key(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["name"]
