"""The page on the platform's own host that opens a workspace."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from moorage.server.endpoint import bound
from moorage.server.gateway.gateway import Gateway, clean_path
from moorage.server.identity.auth import User

OPEN_PATH = "/open/{namespace}/{name}"  # on the platform's own page


async def open_workspace(gateway: Gateway, request: Request) -> Response:
    """Redirect a browser to a workspace, signed in."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    state, path = request.query_params.get("state", ""), clean_path(request.query_params.get("path", ""))
    user: User = request.state.user
    if len(state) == 64:
        url = await gateway.link(user, namespace, name, path=path, state=state)
    else:  # the browser has no state yet: the workspace's host gives it one, and sends it back
        await gateway.judge(user, namespace, name)
        url = gateway.platform.url(gateway.platform.host(namespace, name), path or "/")
    return RedirectResponse(url, 303)


def routes(gateway: Gateway) -> list[Route]:
    """The route of the page that opens workspaces."""
    return [Route(OPEN_PATH, bound(open_workspace, gateway), methods=["GET"])]
