"""/login, /logout and /api/v1/login: how people come in by browser, password or command line, and go out again."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.texts import visible
from moorage.model.people import SOURCE_ANNOTATION, groups_in
from moorage.server.context import Context
from moorage.server.identity.auth import (
    COOKIE,
    LOGIN_COOKIE,
    SECURE_COOKIE,
    SECURE_LOGIN_COOKIE,
    SECURITY_HEADERS,
    User,
    cookie_of,
)
from moorage.server.identity.logins import DEVICE_SECONDS, TOKEN_SECONDS, Logins
from moorage.server.identity.sessions import LIFETIME, Session
from moorage.server.inputs import check_json, number, read_as, read_bytes
from moorage.server.pages.clusterpages import templates
from moorage.server.problems import Json, Problem

BODY_BYTES = 16 * 1024
FLOW_COOKIE = "moorage_flow"  # ties the way back from the provider to the browser that went there
DEVICE_COOKIE = "moorage_device"  # tells a browser that a person logged in on before; lets nobody in
FLOW_PATH = "/login"
FLOW_SECONDS = 600
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
CLI_STATE = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LOCAL_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")

T = TypeVar("T")
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class ByPassword(msgspec.Struct, forbid_unknown_fields=True):
    username: Text
    password: Text
    client: Text = ""


class ByCode(msgspec.Struct, forbid_unknown_fields=True):
    code: Text
    verifier: Text
    client: Text = ""


class TokenWish(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600)] = TOKEN_SECONDS


class NewPassword(msgspec.Struct, forbid_unknown_fields=True):
    old: Text
    new: Text


def routes(context: Context) -> list[Route]:
    def logins() -> Logins:
        return context.logins

    # --- pages

    async def page(request: Request) -> Response:
        """The page to sign in on: with the provider, with a name and a password, or both."""
        if request.method == "HEAD":
            return HTMLResponse("")
        return _page(logins(), then=_local(request.query_params.get("next")), user=request.state.user)

    async def by_form(request: Request) -> Response:
        """Sign in with a name and a password; a cookie holds the session."""
        form = await _form(request)
        name, then = form.get("username", "").strip(), _local(form.get("next"))
        request.state.audit_person = visible(name)
        try:
            token, session = await logins().by_password(
                name,
                form.get("password", ""),
                address=request.state.address,
                client="browser",
                device=cookie_of(request.headers.get("cookie", ""), DEVICE_COOKIE),
            )
        except Problem as problem:
            return _page(logins(), then=then, name=name, problem=problem)
        response = _signed_in(logins(), request, token, then)
        if mark := await logins().device_mark(session.person):
            response.set_cookie(
                DEVICE_COOKIE, mark, max_age=DEVICE_SECONDS, path=FLOW_PATH, httponly=True, samesite="strict",
                secure=_is_secure(logins(), request),
            )  # fmt: skip
        return response

    async def to_provider(request: Request) -> Response:
        """Send the browser to the OIDC provider."""
        url, binding = await logins().start_oidc(
            redirect=f"{_base(logins(), request)}/login/callback", then=_local(request.query_params.get("next"))
        )
        response = RedirectResponse(url, 303)
        # Lax: the way back is a navigation from the provider's site
        response.set_cookie(
            FLOW_COOKIE, binding, max_age=FLOW_SECONDS, path=FLOW_PATH, httponly=True, samesite="lax",
            secure=_is_secure(logins(), request),
        )  # fmt: skip
        return response

    async def from_provider(request: Request) -> Response:
        """Where the provider sends the browser back to."""
        query = request.query_params
        binding = cookie_of(request.headers.get("cookie", ""), FLOW_COOKIE)
        try:
            if error := query.get("error"):
                said = query.get("error_description") or error
                raise Problem(403, "login_refused", f"the provider refused the login: {said[:200]}")
            token, session, then = await logins().finish_oidc(
                binding=binding,
                state=query.get("state", ""),
                code=query.get("code", ""),
                address=request.state.address,
                client="browser",
            )
        except Problem as problem:
            response: Response = _page(logins(), then="/", problem=problem)
        else:
            request.state.audit_person = session.person
            response = _signed_in(logins(), request, token, then)
        _forget(response, FLOW_COOKIE, FLOW_PATH, _is_secure(logins(), request))
        return response

    async def logout(request: Request) -> Response:
        """End the session of the cookie."""
        await _form(request)
        user: User | None = request.state.user
        if user is not None and user.session is not None:
            await logins().end(user.session, "logged out")
        if (pages := context.auth.page_sessions) is not None:
            for name in (COOKIE, SECURE_COOKIE):
                await pages.end(cookie_of(request.headers.get("cookie", ""), name))
        response = RedirectResponse("/login", 303)
        for name in (LOGIN_COOKIE, SECURE_LOGIN_COOKIE, COOKIE, SECURE_COOKIE):
            _forget(response, name, "/", name.startswith("__Host-") or _is_secure(logins(), request))
        return response

    async def ask_for_cli(request: Request) -> Response:
        """A page on which a person lets a command line act as them."""
        challenge, port, state = _cli_wish(dict(request.query_params))
        if request.state.user.session is None:
            return RedirectResponse("/login?" + urlencode({"next": _asked(request)}), 303)
        html = (
            templates()
            .get_template("login_cli.html")
            .render(person=request.state.user.name, challenge=challenge, port=port or "", state=state, code="")
        )
        return HTMLResponse(html, headers=_csp(port))

    async def grant_to_cli(request: Request) -> Response:
        """Give a command line a code for a session of its own."""
        challenge, port, state = _cli_wish(await _form(request))
        session = _session(request)
        context.audit(request, "grant", "a session to a command line")
        code = await logins().grant(session, challenge)
        if port:
            return RedirectResponse(f"http://127.0.0.1:{port}/?{urlencode({'code': code, 'state': state})}", 303)
        html = (
            templates()
            .get_template("login_cli.html")
            .render(person=session.person, challenge="", port="", state="", code=code)
        )
        return HTMLResponse(html)

    # --- programs

    async def log_in(request: Request) -> Response:
        """A session for a name and a password. 429 after too many wrong ones."""
        asked = await read_json(request, ByPassword)
        request.state.audit_person = visible(asked.username)
        token, session = await logins().by_password(
            asked.username, asked.password, address=request.state.address, client=asked.client or "program"
        )
        return Json(_told(session) | {"token": token}, 201)

    async def exchange(request: Request) -> Response:
        """A session for a code of /login/cli and its PKCE verifier."""
        asked = await read_json(request, ByCode)
        token, session = await logins().redeem(
            asked.code, asked.verifier, address=request.state.address, client=asked.client or "program"
        )
        request.state.audit_person = session.person
        return Json(_told(session) | {"token": token}, 201)

    async def who(request: Request) -> Response:
        """Who asks: name, groups, and until when the session lasts."""
        user: User | None = request.state.user
        if user is None:
            raise Problem(401, "unauthorized", "nobody is logged in here", "moor login URL")
        told: dict[str, Any] = {"name": user.name, "account": user.account, "groups": list(user.groups)}
        if user.session is not None:
            account = await logins().account_of(user.session) or {"metadata": {}}
            source = annotations_of(account).get(SOURCE_ANNOTATION, "")
            told |= {"groups": list(groups_in(account)), "source": source} | _told(user.session)
        return Json(told)

    async def log_out(request: Request) -> Response:
        """End the session, and every token that it gave."""
        await logins().end(_session(request), "logged out")
        return Response(status_code=204)

    async def cluster_token(request: Request) -> Response:
        """A token for the Kubernetes API, for `seconds` (600 to a week). It ends with the session."""
        asked = await read_json(request, TokenWish)
        context.audit(request, "take", "a token for the cluster")
        made = await logins().cluster_token(_session(request), asked.seconds)
        return Json({"token": made.token, "expires": rfc3339(made.expires)}, 201)

    async def password(request: Request) -> Response:
        """Set one's own password; one's other sessions end."""
        asked = await read_json(request, NewPassword)
        await logins().change_password(_session(request), asked.old, asked.new)
        return Response(status_code=204)

    async def cluster(_: Request) -> Response:
        """Where the Kubernetes API is, for a kubeconfig."""
        return Json(dict(logins().settings.cluster))

    async def sessions(request: Request) -> Response:
        """One's sessions: on which devices, from where, last used when."""
        mine = _session(request)
        found = await logins().sessions(mine.person)
        return Json({"sessions": [_told(one) | {"current": one.id == mine.id} for one in found]})

    async def end_session(request: Request) -> Response:
        """End one of one's sessions."""
        mine, wanted = _session(request), request.path_params["session"]
        for one in await logins().sessions(mine.person):
            if one.id == wanted:
                await logins().end(one, "ended by its person")
                return Response(status_code=204)
        raise Problem(404, "not_found", f"you have no session {wanted}", None, "session")

    return [
        Route("/login", page, methods=["GET"]),
        Route("/login", by_form, methods=["POST"]),
        Route("/login/oidc", to_provider, methods=["GET"]),
        Route("/login/callback", from_provider, methods=["GET"]),
        Route("/login/cli", ask_for_cli, methods=["GET"]),
        Route("/login/cli", grant_to_cli, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
        Route("/api/v1/login", who, methods=["GET"]),
        Route("/api/v1/login", log_in, methods=["POST"]),
        Route("/api/v1/login", log_out, methods=["DELETE"]),
        Route("/api/v1/login/exchange", exchange, methods=["POST"]),
        Route("/api/v1/login/token", cluster_token, methods=["POST"]),
        Route("/api/v1/login/password", password, methods=["POST"]),
        Route("/api/v1/login/cluster", cluster, methods=["GET"]),
        Route("/api/v1/login/sessions", sessions, methods=["GET"]),
        Route("/api/v1/login/sessions/{session}", end_session, methods=["DELETE"]),
    ]


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


def _session(request: Request) -> Session:
    user: User | None = request.state.user
    if user is None or user.session is None:
        raise Problem(403, "no_session", "this takes a session, and no other token", "moor login URL")
    return user.session


def _told(session: Session) -> dict[str, Any]:
    return {
        "name": session.person,
        "session": session.id,
        "client": session.client,
        "address": session.address,
        "created": rfc3339(session.created),
        "used": rfc3339(session.used),
        "expires": rfc3339(session.expires),
    }


def _local(path: str | None) -> str:
    """Where to go after the login: a path of this server, and nowhere else."""
    return path if path and len(path) <= 2000 and _LOCAL_PATH.fullmatch(path) else "/"


def _asked(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _base(logins: Logins, request: Request) -> str:
    return logins.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.headers['host']}"


def _is_secure(logins: Logins, request: Request) -> bool:
    return _base(logins, request).startswith("https://")


def _cli_wish(given: dict[str, str]) -> tuple[str, int, str]:
    """Challenge, port (0: the person carries the code over) and state. Raises Problem 400."""
    challenge, port, state = given.get("challenge", ""), given.get("port", "") or "0", given.get("state", "")
    if not CHALLENGE.fullmatch(challenge):
        raise Problem(400, "bad_request", "this is no S256 challenge", "start with `moor login URL`", "challenge")
    chosen = 0 if port == "0" else number(port, "port", minimum=1024, maximum=65535)
    if chosen and not CLI_STATE.fullmatch(state):
        raise Problem(400, "bad_request", "state is missing, or holds odd characters", None, "state")
    return challenge, chosen, state


def _csp(port: int) -> dict[str, str]:
    """The page's form leads to the command line that waits on this machine."""
    policy = SECURITY_HEADERS["content-security-policy"]
    if port:
        policy = policy.replace("form-action 'self'", f"form-action 'self' http://127.0.0.1:{port}")
    return {"content-security-policy": policy}


async def _form(request: Request) -> dict[str, str]:
    """A form's fields; of several of one name the last."""
    try:
        text = (await read_bytes(request, BODY_BYTES)).decode()
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise Problem(400, "bad_request", f"the form cannot be read: {error}") from error
    return {name: values[-1] for name, values in fields.items()}


async def read_json(request: Request, kind: type[T]) -> T:
    check_json(request)
    return await read_as(request, kind, BODY_BYTES)
