"""Language and colours of the pages: by the browser's preferences, or by the user's cookies."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.server.identity.auth import cookie_of
from moorage.server.pages.texts import LANGUAGES, preferred, speaking

LANGUAGE_COOKIE, THEME_COOKIE = "moorage_language", "moorage_theme"
THEMES = ("light", "dark")
COOKIE_SECONDS = 365 * 24 * 3600
LOOK = "/look"
_LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")


class Preferences:
    """The ASGI layer around all others: it sets the language and colours of the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookies = headers.get("cookie", "")
        theme = cookie_of(cookies, THEME_COOKIE)
        scope.setdefault("state", {})["theme"] = theme if theme in THEMES else ""
        with speaking(preferred(headers.get("accept-language", ""), cookie_of(cookies, LANGUAGE_COOKIE))):
            await self._app(scope, receive, send)


async def choose(request: Request) -> Response:
    """Store the language and the colours that a user chose at the foot of a page, and redirect to that
    page.
    """
    response = RedirectResponse(back_to(request.headers.get("referer", ""), request.headers.get("host", "")), 303)
    for name, cookie, known in (("language", LANGUAGE_COOKIE, tuple(LANGUAGES)), ("theme", THEME_COOKIE, THEMES)):
        value = request.query_params.get(name)
        if value in known:
            response.set_cookie(cookie, value, max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="lax")
        elif value == "":
            response.delete_cookie(cookie, path="/", httponly=True, samesite="lax")
    return response


def back_to(referer: str, host: str) -> str:
    """The page that the request comes from, if it is one of ours; else the front page."""
    try:
        address = urlsplit(referer)
    except ValueError:
        return "/"
    path = f"{address.path}?{address.query}" if address.query else address.path
    return path if address.netloc == host and host and _LOCAL_PATH.fullmatch(path) else "/"


def routes() -> list[Route]:
    return [Route(LOOK, choose, methods=["GET"])]
