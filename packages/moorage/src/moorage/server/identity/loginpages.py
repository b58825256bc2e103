"""The pages /login and /logout: users sign in with a browser, and let a command line act for them."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moorage.api.errors import ErrorCode
from moorage.server.context import Context
from moorage.server.endpoint import bound
from moorage.server.identity.auth import (
    COOKIE,
    LOGIN_COOKIE,
    SECURE_COOKIE,
    SECURE_LOGIN_COOKIE,
    SECURITY_HEADERS,
    User,
    cookie_of,
)
from moorage.server.identity.loginroutes import session_of
from moorage.server.identity.logins import DEVICE_SECONDS, Logins
from moorage.server.identity.sessions import LIFETIME
from moorage.server.inputs import number, read_bytes
from moorage.server.pages.clusterpages import templates
from moorage.server.problems import Problem
from moorage_kube.texts import visible

BODY_BYTES = 16 * 1024
FLOW_COOKIE = "moorage_flow"  # ties the provider's redirect to the browser that was sent there
DEVICE_COOKIE = "moorage_device"  # marks a browser on which a person logged in before; does not log in
FLOW_PATH = "/login"
FLOW_SECONDS = 600
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
CLI_STATE = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")


async def show_login(context: Context, request: Request) -> Response:
    """The login page: with the OIDC provider, with a name and a password, or both."""
    if request.method == "HEAD":
        return HTMLResponse("")
    then = _local(request.query_params.get("next"))
    return _page(context.logins, then=then, user=request.state.user)


async def by_form(context: Context, request: Request) -> Response:
    """Log in with a name and a password; set a cookie with the session."""
    logins, form = context.logins, await _form(request)
    name, then = form.get("username", "").strip(), _local(form.get("next"))
    request.state.audit_person = visible(name)
    try:
        token, session = await logins.by_password(
            name,
            form.get("password", ""),
            address=request.state.address,
            client="browser",
            device=cookie_of(request.headers.get("cookie", ""), DEVICE_COOKIE),
        )
    except Problem as problem:
        return _page(logins, then=then, name=name, problem=problem)
    response = _signed_in(logins, request, token, then)
    if mark := await logins.device_mark(session.person):
        response.set_cookie(
            DEVICE_COOKIE, mark, max_age=DEVICE_SECONDS, path=FLOW_PATH, httponly=True, samesite="strict",
            secure=_is_secure(logins, request),
        )  # fmt: skip
    return response


async def to_provider(context: Context, request: Request) -> Response:
    """Send the browser to the OIDC provider."""
    logins = context.logins
    url, binding = await logins.start_oidc(
        redirect=f"{_base(logins, request)}/login/callback", then=_local(request.query_params.get("next"))
    )
    response = RedirectResponse(url, 303)
    # Lax: the way back is a navigation from the provider's site
    response.set_cookie(
        FLOW_COOKIE, binding, max_age=FLOW_SECONDS, path=FLOW_PATH, httponly=True, samesite="lax",
        secure=_is_secure(logins, request),
    )  # fmt: skip
    return response


async def from_provider(context: Context, request: Request) -> Response:
    """Finish the login after the OIDC provider has redirected the browser back."""
    logins, query = context.logins, request.query_params
    binding = cookie_of(request.headers.get("cookie", ""), FLOW_COOKIE)
    try:
        if error := query.get("error"):
            reason = query.get("error_description") or error
            raise Problem(403, ErrorCode.LOGIN_REFUSED, f"the provider refused the login: {reason[:200]}")
        token, session, then = await logins.finish_oidc(
            binding=binding,
            state=query.get("state", ""),
            code=query.get("code", ""),
            address=request.state.address,
            client="browser",
        )
    except Problem as problem:
        response: Response = _page(logins, then="/", problem=problem)
    else:
        request.state.audit_person = session.person
        response = _signed_in(logins, request, token, then)
    _forget(response, FLOW_COOKIE, FLOW_PATH, _is_secure(logins, request))
    return response


async def log_out(context: Context, request: Request) -> Response:
    """End the session of the cookie."""
    await _form(request)
    user: User | None = request.state.user
    if user is not None and user.session is not None:
        await context.logins.end(user.session, "logged out")
    for name in (COOKIE, SECURE_COOKIE):
        await context.auth.page_sessions.end(cookie_of(request.headers.get("cookie", ""), name))
    response = RedirectResponse("/login", 303)
    for name in (LOGIN_COOKIE, SECURE_LOGIN_COOKIE, COOKIE, SECURE_COOKIE):
        _forget(response, name, "/", name.startswith("__Host-") or _is_secure(context.logins, request))
    return response


async def ask_for_cli(_context: Context, request: Request) -> Response:
    """The page on which a user lets a command line act for them."""
    challenge, port, state = _cli_request(dict(request.query_params))
    user: User = request.state.user
    if user.session is None:
        return RedirectResponse("/login?" + urlencode({"next": _asked(request)}), 303)
    html = _cli_page(user.name, challenge=challenge, port=str(port or ""), state=state)
    return HTMLResponse(html, headers=_csp(port))


async def grant_to_cli(context: Context, request: Request) -> Response:
    """Give a command line the code for its own session."""
    challenge, port, state = _cli_request(await _form(request))
    session = session_of(request.state.user)
    context.audit(request, "grant", "a session to a command line")
    code = await context.logins.grant(session, challenge)
    if port:
        return RedirectResponse(f"http://127.0.0.1:{port}/?{urlencode({'code': code, 'state': state})}", 303)
    return HTMLResponse(_cli_page(session.person, code=code))


def routes(context: Context) -> list[Route]:
    return [
        Route("/login", bound(show_login, context), methods=["GET"]),
        Route("/login", bound(by_form, context), methods=["POST"]),
        Route("/login/oidc", bound(to_provider, context), methods=["GET"]),
        Route("/login/callback", bound(from_provider, context), methods=["GET"]),
        Route("/login/cli", bound(ask_for_cli, context), methods=["GET"]),
        Route("/login/cli", bound(grant_to_cli, context), methods=["POST"]),
        Route("/logout", bound(log_out, context), methods=["POST"]),
    ]


def _cli_page(person: str, *, challenge: str = "", port: str = "", state: str = "", code: str = "") -> str:
    page = templates().get_template("login_cli.html")
    return str(page.render(person=person, challenge=challenge, port=port, state=state, code=code))


def _page(
    logins: Logins,
    *,
    then: str,
    name: str = "",
    problem: Problem | None = None,
    user: User | None = None,
) -> Response:
    provider = logins.provider
    html = (
        templates()
        .get_template("login.html")
        .render(
            then=then,
            oidc=f"/login/oidc?{urlencode({'next': then})}" if provider is not None else "",
            label=(provider.settings.label or "your organisation") if provider is not None else "",
            local=logins.settings.local,
            name=name,
            message=problem.message if problem else "",
            hint=(problem.hint or "") if problem else "",
            person=user.name if user is not None and user.session is not None else "",
        )
    )
    return HTMLResponse(html, problem.status if problem else 200, problem.headers if problem else None)


def _signed_in(logins: Logins, request: Request, token: str, then: str) -> Response:
    response = RedirectResponse(then, 303)
    secure = _is_secure(logins, request)
    response.set_cookie(
        SECURE_LOGIN_COOKIE if secure else LOGIN_COOKIE, token, max_age=int(LIFETIME.total_seconds()), path="/",
        httponly=True, samesite="lax", secure=secure,
    )  # fmt: skip
    return response


def _forget(response: Response, name: str, path: str, secure: bool) -> None:
    response.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="lax")


def _local(path: str | None) -> str:
    """The path to open after the login, limited to paths of this server."""
    return path if path and len(path) <= 2000 and _LOCAL_PATH.fullmatch(path) else "/"


def _asked(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _base(logins: Logins, request: Request) -> str:
    return logins.addresses.base(request.url.scheme, request.headers["host"])


def _is_secure(logins: Logins, request: Request) -> bool:
    return _base(logins, request).startswith("https://")


def _cli_request(given: dict[str, str]) -> tuple[str, int, str]:
    """Challenge, port and state of the command line's request. Raises Problem 400.

    Port 0: the user copies the code to the command line by hand.
    """
    challenge, port, state = given.get("challenge", ""), given.get("port", "") or "0", given.get("state", "")
    if not CHALLENGE.fullmatch(challenge):
        raise Problem(
            400,
            "bad_request",
            "invalid challenge: use 43 characters of base64url, as S256 gives",
            "start with `moor login URL`",
            "challenge",
        )
    chosen = 0 if port == "0" else number(port, "port", minimum=1024, maximum=65535)
    if chosen and not CLI_STATE.fullmatch(state):
        raise Problem(400, "bad_request", "state is missing, or holds odd characters", None, "state")
    return challenge, chosen, state


def _csp(port: int) -> dict[str, str]:
    """The CSP that lets the page's form lead to the command line's port on the user's machine."""
    policy = SECURITY_HEADERS["content-security-policy"]
    if port:
        policy = policy.replace("form-action 'self'", f"form-action 'self' http://127.0.0.1:{port}")
    return {"content-security-policy": policy}


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; if a name comes twice, the last value."""
    try:
        text = (await read_bytes(request, BODY_BYTES)).decode()
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise Problem(400, "bad_request", f"the form cannot be read: {error}") from error
    return {name: values[-1] for name, values in fields.items()}
