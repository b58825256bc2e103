"""Refusals in the shape that the caller reads: a page, a note on the open page (htmx), or JSON for
programs.

A browser asks for `text/html`, htmx sends `HX-Request`. All others get JSON, and so do all paths
below /api/.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from moorage.present.forbidden import plain
from moorage.server.identity.auth import SECURITY_HEADERS, Auth
from moorage.server.pages.clusterpages import fragment, framed, templates
from moorage.server.problems import Problem, answer, raised

TOAST = "#toast"  # where frame.html shows a refusal of htmx's request
TITLES = {
    400: "This request cannot be read",
    401: "You are not signed in",
    403: "You may not do this",
    404: "There is nothing here",
    405: "This page takes no such request",
    409: "This conflicts with the current state",
    413: "This is too large",
    422: "This is not valid",
    429: "Too many requests",
    500: "The server failed",
    503: "This does not work right now",
}
OTHER_TITLE = "This did not work"
NEEDS_TOKEN = "This page needs its token"
LISTS = {  # first part of a path → the words of the link back to its list
    "workspaces": "All workspaces",
    "jobs": "All jobs",
    "explain": "All jobs",
    "volumes": "All volumes",
    "datasets": "All datasets",
    "secrets": "All secrets",
    "maps": "All maps",
    "workflows": "All workflows",
    "crons": "All schedules",
    "open": "All workspaces",
    "admin/users": "All users",
    "admin/tenants": "All tenants",
    "admin/budgets": "All budgets",
    "admin/idle": "All idle rules",
    "admin/nodes": "All nodes",
    "admin/machines": "All machines",
    "admin/reservations": "All reservations",
    "admin/audit": "The whole audit log",
}
LIST_OF = {"explain": "/jobs", "open": "/workspaces"}  # where the list is not the first part itself
HOME = ("/", "All GPUs")
SIGN_IN = ("/login", "Sign in with an account")


class Refusal(Struct, frozen=True, kw_only=True):
    """The content of a page for a refused request. `links`: (address, words), the first one is the way
    back.
    """

    title: str
    message: str
    hint: str
    links: tuple[tuple[str, str], ...]


def refusal_of(problem: Problem, path: str, *, is_known: bool, has_login: bool = False) -> Refusal:
    """Title, sentences and links for a problem at a path.

    `is_known`: the server knows the user, so a link to a list does not end at the same refusal.
    `has_login`: people log in with accounts, not by the address that `moor up` printed.
    """
    if problem.status == 401 and not has_login:
        return Refusal(
            title=NEEDS_TOKEN,
            message=sentence(problem.message),
            hint="Open the address that moor up or moor status printed. It ends in ?token=…",
            links=(SIGN_IN, ("/", "Try again")),
        )
    links: tuple[tuple[str, str], ...] = ()
    if problem.status == 401 or not is_known:
        links = (SIGN_IN, ("/", "Try again"))
    else:
        part = path.split("/")[1] if path.startswith("/") else ""
        if part == "admin":
            part = "/".join(path.split("/")[1:3])
        is_closed = problem.status == 403 and part.startswith("admin/")  # the list would refuse them too
        back = ((LIST_OF.get(part, f"/{part}"), LISTS[part]),) if part in LISTS and not is_closed else ()
        links = (*back, HOME)
    return Refusal(
        title=TITLES.get(problem.status, OTHER_TITLE),
        message=sentence(plain(problem.message)),
        hint="" if problem.status == 401 else sentence(problem.hint or ""),
        links=links,
    )


def sentence(text: str) -> str:
    """A message as a sentence for a page: with a capital letter and a full stop, without backticks."""
    plain = text.replace("`", "").strip()
    if not plain:
        return ""
    return plain[:1].upper() + plain[1:] + ("" if plain.endswith((".", "!", "?", "…")) else ".")


def wants_page(headers: Mapping[str, str], path: str) -> bool:
    """Whether a person reads the refusal: a browser opens the path, or htmx requests a part of a page."""
    if path == "/api" or path.startswith("/api/"):
        return False
    return "text/html" in headers.get("accept", "") or is_htmx(headers)


def is_htmx(headers: Mapping[str, str]) -> bool:
    return headers.get("hx-request", "").lower() == "true"


class Refuse:
    """Creates the answers to refused requests, for all layers and routes."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def __call__(self, scope: Scope, problem: Problem, sent: Mapping[str, str] | None = None) -> Response:
        """The problem as a page, a page fragment or JSON, with its status. `sent`: additional headers."""
        asked, headers = Headers(scope=scope), dict(sent or {})
        if scope["type"] != "http" or not wants_page(asked, scope["path"]):
            return answer(problem, headers or None)
        request, has_login = Request(scope), self._auth.has_login_page
        is_known = getattr(request.state, "user", None) is not None
        refusal = refusal_of(problem, scope["path"], is_known=is_known, has_login=has_login)
        if is_htmx(asked):
            note = fragment("refused_note.html", refusal=refusal)
            return HTMLResponse(note, problem.status, headers | {"hx-retarget": TOAST, "hx-reswap": "innerHTML"})
        frame = framed("", request)
        html = templates().get_template("refused.html").render(refusal=refusal, **frame)
        return HTMLResponse(html, problem.status, headers)

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Starlette's handler for all errors of a route.

        Starlette answers unexpected errors outside of all layers, so the security headers are set here.
        """
        problem, headers = raised(request, error)
        if problem.status == 500:
            headers = SECURITY_HEADERS | {"cache-control": "no-store"} | headers
        return self(request.scope, problem, headers)
