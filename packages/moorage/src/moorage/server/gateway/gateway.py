"""Access to workspaces by the platform's login: a request for a workspace's host is of a known user, or
leads to the login page.

A browser without our cookie is sent to the platform's page `/open/NAMESPACE/NAME`, where the person
signs in. From there it returns with a code, which is valid once, for this host, this browser and
half a minute, and gets a cookie limited to this host. The code, and half of the proof that it is
this browser's, are sent to one path only.

The cookie names the user. Whether RBAC lets them `open` the workspace, and whether the login is
still valid, is checked every minute, also during long connections. The application gets neither
cookie nor token of the platform: it gets its own token.

A workspace's scripts, and those of other workspaces, are not trusted here: their requests in a
person's name are refused by the origin that the browser sends.

A cluster without a domain for workspaces has tunnels instead: a person's own program carries the
connections of a browser here, under a host of the browser's own machine. The same checks hold. A
cookie is valid only in tunnels of the same person, at the same port.

The length has a reason: the checks of one passage are read in order, from the cookie to the bytes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import html
import logging
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Struct
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.decide.idle.evidence import Kernels
from moorage.model.names import GROUP, INFO_CONFIGMAP, SYSTEM_NAMESPACE, TEMPLATE_LABEL, WORKSPACE_LABEL
from moorage.model.people import is_account, is_disabled
from moorage.model.workspace import (
    ENTER,
    GATEWAY_SECRET,
    LOGIN,
    OPEN_VERB,
    OWN_PATHS,
    RUNNING,
    TUNNEL_DOMAIN,
    WORKSPACES,
    App,
    BadWorkspace,
    Platform,
    WorkspaceView,
    host_label,
    make_token,
    parse_platform,
    parse_workspace,
    put_in,
    templates_of,
)
from moorage.server.gateway.forward import (
    Destination,
    Forwarder,
    Headers,
    Unreachable,
    cookie_values,
    deny,
    headers_of,
    target_of,
)
from moorage.server.identity.audit import AuditLog
from moorage.server.identity.auth import Auth, User
from moorage.server.identity.people import People
from moorage.server.identity.sessions import Sessions
from moorage.server.idle.kernels import read_kernels
from moorage.server.idle.traffic import ACTION_BYTES, Traffic
from moorage.server.problems import Problem, answer
from moorage.server.starting import listed_once
from moorage_kube.addresses import is_odd_path, parse_authority, plain_path
from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, MoorageError, NotFound, ServerError
from moorage_kube.informers import Informers
from moorage_kube.meta import Key, key_of, labels_of
from moorage_kube.resources import CONFIGMAPS, ENDPOINTSLICES, SECRETS, Obj

log = logging.getLogger(__name__)

COOKIE, STATE_COOKIE = "moorage_workspace", "moorage_state"
ENTER_COOKIE = "moorage_enter"  # proves the state, at the path where codes are taken and nowhere else
LEAVE = f"{OWN_PATHS}leave"
COOKIE_SECONDS = 12 * 3600
STATE_SECONDS = 600
CODE_SECONDS = 30.0
LINK_SECONDS = 60.0  # of one that was made for a program, which hands it to a browser
CODE_BYTES, CODE_LENGTH = 32, 43  # random, and as base64url
LOGINS_KEPT = 10_000
RECHECK_SECONDS = 60.0  # connections that last
LOGIN_SECONDS = 30.0  # how long a login that held is believed to
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "PROPFIND", "PROPPATCH", "MKCOL",
                     "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"})  # fmt: skip
PAGE_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True):
    """The signed content of the cookie."""

    person: str
    account: str
    host: str
    uid: str  # of the Workspace
    until: int  # Unix time
    groups: tuple[str, ...] = ()
    session: str = ""  # session of the login that created the ticket; empty: it was created without a login
    tunnel_port: int = 0  # port at which the person's program listens; 0: not a cookie of a tunnel


class Tunnel(Struct, frozen=True, kw_only=True):
    """A connection that a person's program forwards to the server, and the only workspace that it can reach."""

    account: str
    namespace: str
    name: str
    address: str  # of the program


class Code(msgspec.Struct, frozen=True):
    """The value of a one-time code, in the database of users: every server accepts the codes of other servers."""

    ticket: Ticket
    state: str  # SHA-256 of the browser's state; empty: the code is for a program


class Gateway:
    """Workspaces by host, and the check of their users. `run` follows changes."""

    def __init__(
        self,
        api: Api,
        auth: Auth,
        *,
        people: People,
        sessions: Sessions,
        audit: AuditLog,
        clock: Clock = SYSTEM,
        informers: Informers | None = None,
    ) -> None:
        shared = informers or Informers()
        self._api, self._auth, self._clock = api, auth, clock
        self._people, self._sessions, self._audit = people, sessions, audit
        self.workspaces = shared.of(api, WORKSPACES, indexes={"host": _by_host})
        self._slices = shared.of(
            api, ENDPOINTSLICES, label_selector=WORKSPACE_LABEL, indexes={"service": _by_service}
        )
        self._templates = shared.of(api, CONFIGMAPS, SYSTEM_NAMESPACE, label_selector=TEMPLATE_LABEL)
        self.info = shared.of(api, CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={INFO_CONFIGMAP}")
        self.info.on_change(self._read_platform)
        self.platform = Platform()
        self._forwarder = Forwarder(clock=clock)
        self.traffic = Traffic(api, self.workspaces, clock=clock)
        self._key: bytes | None = None
        self._logins: BoundedCache[tuple[str, str], bool] = BoundedCache(
            LOGINS_KEPT, keep_seconds=LOGIN_SECONDS, clock=clock
        )

    async def run(self) -> None:
        """Follow workspaces and their endpoints, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in (self.workspaces, self._slices, self._templates, self.info):
                    tasks.create_task(informer.run(), name=f"informer {informer.resource}")
                tasks.create_task(self.traffic.run(), name="traffic")
        finally:
            await self._forwarder.close()

    async def synced(self) -> None:
        """Wait until workspaces and their endpoints were listed once. Raises Problem 503."""
        await listed_once(self.workspaces, self._slices, self._templates, self.info)

    def _read_platform(self, _: Obj | None, after: Obj | None) -> None:
        try:
            self.platform = parse_platform((after or {}).get("data") or {})
        except BadWorkspace as error:
            log.warning("workspaces have no addresses", extra={"error": error.message})
            self.platform = Platform()

    # --- for the platform's own routes

    async def link(
        self, user: User, namespace: str, name: str, *, path: str = "", state: str = "", tunnel_port: int = 0
    ) -> str:
        """An address that opens the workspace for this user, once, for a short time. Raises Problem.

        `state`: the SHA-256 of the browser's secret; without it the address works in any browser.
        `tunnel_port`: the port on which the user's program listens for the browser; 0: the address is the
        workspace's own host.
        """
        view = await self.judge(user, namespace, name, by_tunnel=bool(tunnel_port))
        platform = tunnelled(tunnel_port) if tunnel_port else self.platform
        host = platform.host(namespace, name)
        ticket = Ticket(
            person=user.name,
            account=user.account,
            host=host,
            uid=view.uid,
            until=int((self._clock.now() + timedelta(seconds=COOKIE_SECONDS)).timestamp()),
            groups=() if is_account(user.account) else user.groups,
            session=user.session.id if user.session is not None else "",
            tunnel_port=tunnel_port,
        )
        code = secrets.token_urlsafe(CODE_BYTES)
        life = CODE_SECONDS if state else LINK_SECONDS
        body, now = msgspec.json.encode(Code(ticket, state)), self._clock.now()
        expires = now + timedelta(seconds=life)
        await self._sessions.do(lambda store: store.add_code(f"open {code}", body, expires, now))
        asked = {"code": code, "path": path or self._first_path(view)}
        return platform.url(host, f"{ENTER}?{urlencode(asked)}")

    async def judge(self, user: User, namespace: str, name: str, *, by_tunnel: bool = False) -> WorkspaceView:
        """The workspace, if this user may open it by login, else raise Problem.

        Through a tunnel, every workspace is opened by login.
        """
        await self.synced()
        view = self._view(namespace, name)
        if view is None or not await self._may_open(user, namespace, name):
            raise Problem(
                404, "not_found", f"there is no workspace {namespace}/{name}, or you may not open it",
                "list yours: moor workspace list",
            )  # fmt: skip
        if not by_tunnel and (not self.platform.domain or view.access(self.platform) != LOGIN):
            raise Problem(
                409, "no_login", "this workspace is opened by its token", f"moor workspace open {name}", "access"
            )
        return view

    async def token_for(self, user: User, namespace: str, name: str) -> str | None:
        """The token that opens a workspace, for its owner; "" for other users.

        None if the workspace needs no token.

        Members may not read Secrets; the owner gets the token here, as long as they may open the workspace.
        """
        await self.synced()
        view = self._view(namespace, name)
        if view is None or view.access(self.platform) == LOGIN:
            return None
        if user.name != view.owner or not await self._may_open(user, namespace, name):
            return ""
        return make_token(await self._secret_key(), view.uid)

    # --- requests to workspaces' hosts

    def covers(self, host: str) -> bool:
        return self.platform.serves(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose Host belongs to a workspace."""
        await self._answer(scope, receive, send, self.platform, None)

    async def through(self, tunnel: Tunnel, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that came through a tunnel."""
        given = [value for name, value in headers_of(scope) if name == "host"]
        try:
            port = parse_authority(given[0]).port if len(given) == 1 else None
        except ValueError:
            port = None
        await self._answer(scope, receive, send, tunnelled(port or 80), tunnel)  # cookies never have port 80

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, platform: Platform, tunnel: Tunnel | None
    ) -> None:
        try:
            early = await self._serve(scope, receive, send, platform, tunnel)
        except Problem as problem:
            early = self._say(scope, problem, platform)
        except MoorageError as error:
            log.warning("the gateway cannot serve", extra={"error": error.message})
            unknown = Problem(503, "unavailable", "the platform cannot verify your login now")
            early = self._say(scope, unknown, platform)
        if early is None:
            return
        if scope["type"] == "websocket":
            await receive()
            await deny(scope, send, early.status_code)
            return
        await early(scope, receive, send)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, platform: Platform, tunnel: Tunnel | None
    ) -> Response | None:
        """Forward the request to the workspace (None), or return an answer of the platform."""
        # find the workspace of the host
        await self.synced()
        headers = headers_of(scope)
        given = _one(headers, "host")
        host = host_of(given)
        view = self._by_host(host, platform) if platform.serves(host) else None
        path = scope["path"]
        if view is None or view.deleting or not _leads_to(view, platform, tunnel):
            raise Problem(404, "not_found", f"there is no workspace at {host}", "list yours: moor workspace list")
        # our own paths never reach the application, in any spelling
        is_websocket = scope["type"] == "websocket"
        method = "GET" if is_websocket else scope["method"]
        if method not in METHODS:
            raise Problem(405, "method_not_allowed", f"{method} is not passed on to workspaces")
        sent = target_of(scope).partition("?")[0]
        if is_own_path(sent):
            if is_websocket or not path.startswith(OWN_PATHS) or is_odd_path(sent):
                raise Problem(404, "not_found", "this path is not served here")
            return await self._own(scope, view, host, headers, platform, tunnel)
        # the user, by the cookie of this host
        ticket = await self._ticket(headers, host, view, platform, tunnel)
        if ticket is None and tunnel is not None:
            raise Problem(
                401, "unauthorized", "this browser did not open the workspace, or the address was used already",
                f"open it again: moor workspace open {view.name} -n {view.namespace}",
            )  # fmt: skip
        if ticket is None:
            return await self._to_login(scope, view, headers, method, is_websocket=is_websocket)
        # the cookie alone does not prove that the user's own page asks
        if why := foreign_origin(headers, method, platform.scheme, is_websocket=is_websocket):
            raise Problem(403, "cross_site", why)
        if not await self._holds(ticket, view):
            raise Problem(
                403, "forbidden", f"{ticket.person} may not open the workspace {view.namespace}/{view.name}",
                "its owner, or an admin of the namespace, can let you in",
            )  # fmt: skip
        # the application, where its pod runs
        to = await self._destination(view, given, platform)
        if to is None:
            return self._not_running(scope, view, headers, platform)

        is_page = _one(headers, "sec-fetch-dest") == "document"
        self._note(view, acted=is_page or (not is_websocket and method not in SAFE))

        # long connections are checked again, and count as use of the workspace
        async def ends() -> None:
            while True:
                await self._clock.sleep(RECHECK_SECONDS)
                self._note(view, acted=False)
                now = self._by_host(host, platform)
                if now is None or now.uid != view.uid or not await self._still(ticket, now):
                    return

        def heard(size: int) -> None:
            self._note(view, acted=size > ACTION_BYTES)

        try:
            if is_websocket:
                await self._forwarder.websocket(scope, receive, send, to, ends, heard)
            else:
                await self._forwarder.http(scope, receive, send, to, ends)
        except Unreachable as error:
            log.info("a workspace does not answer", extra={"host": host, "error": str(error)})
            return self._not_running(scope, view, headers, platform)
        return None

    def _note(self, view: WorkspaceView, *, acted: bool) -> None:
        self.traffic.note(view.namespace, view.name, view.uid, acted=acted)

    async def kernels(self, namespace: str, name: str) -> Kernels | None:
        """The kernels of a workspace; None if its application is not a Jupyter server. Raises ServerError."""
        view = self._view(namespace, name)
        if view is None:
            raise ServerError(f"workspace {namespace}/{name} is unknown", status=503)
        try:
            to = await self._destination(view, self.platform.host(namespace, name) or "localhost", self.platform)
        except Problem as error:
            raise ServerError(error.message, status=503) from error
        if to is None:
            raise ServerError("it is not ready", status=503)
        return await read_kernels(to)

    # --- who it is

    async def _ticket(
        self, headers: Headers, host: str, view: WorkspaceView, platform: Platform, tunnel: Tunnel | None
    ) -> Ticket | None:
        """The content of a valid cookie; None without one."""
        key = await self._secret_key()
        for value in cookie_values(headers, _cookie_name(COOKIE, platform, tunnel)):
            ticket = unseal(key, value)
            if (
                ticket is not None
                and ticket.host == host
                and _is_of(ticket, platform, tunnel)
                and ticket.uid == view.uid
                and ticket.until > self._clock.now().timestamp()
            ):
                return ticket
        return None

    async def _still(self, ticket: Ticket, view: WorkspaceView) -> bool:
        """As `_holds`; while the API does not answer, the last result holds."""
        try:
            return ticket.until > self._clock.now().timestamp() and await self._holds(ticket, view)
        except MoorageError as error:
            log.warning("an open connection cannot be checked again", extra={"error": str(error)})
            return True

    async def _holds(self, ticket: Ticket, view: WorkspaceView) -> bool:
        """Whether the person's login is still valid and RBAC still lets them open it."""
        user = User(ticket.person, ticket.groups, account=ticket.account)
        return await self._login_holds(ticket) and await self._may_open(user, view.namespace, view.name)

    async def _may_open(self, user: User, namespace: str, name: str) -> bool:
        return await self._auth.may(
            user, OPEN_VERB, WORKSPACES.plural, group=GROUP, namespace=namespace, name=name
        )

    async def _login_holds(self, ticket: Ticket) -> bool:
        key = (ticket.account, ticket.session)
        known = self._logins.get(key)
        if known is not None:
            return known
        holds = True
        if is_account(ticket.account):
            account = await self._people.behind(ticket.account)
            holds = account is not None and not is_disabled(account)
        if holds and ticket.session:
            session = await self._sessions.do(lambda store: store.get(ticket.session))
            holds = session is not None and not session.is_over(self._clock.now())
        self._logins.put(key, holds)
        return holds

    async def _to_login(
        self, scope: Scope, view: WorkspaceView, headers: Headers, method: str, *, is_websocket: bool
    ) -> Response:
        """Redirect to the platform's page and back; programs, frames and scripts get 401 instead."""
        dest = _one(headers, "sec-fetch-dest")
        if (
            is_websocket
            or method not in ("GET", "HEAD")
            or (dest and dest != "document")
            or not self.platform.page
        ):
            return answer(Problem(401, "unauthorized", "sign in: open this address in a browser"))
        if not dest and "text/html" not in _one(headers, "accept"):
            return answer(Problem(401, "unauthorized", "sign in: open this address in a browser"))
        known = [value for value in cookie_values(headers, self._state_name) if len(value) == 43]
        state = known[0] if known else secrets.token_urlsafe(32)
        asked = urlencode({"state": _digest(state), "path": clean_path(target_of(scope))})
        where = f"{self.platform.page}/open/{quote(view.namespace)}/{quote(view.name)}?{asked}"
        response = RedirectResponse(where, 303, {"cache-control": "no-store"})
        self._set(response, self._state_name, state, STATE_SECONDS)
        self._set_proof(response, _proof(await self._secret_key(), state), STATE_SECONDS)
        return response

    async def _own(
        self,
        scope: Scope,
        view: WorkspaceView,
        host: str,
        headers: Headers,
        platform: Platform,
        tunnel: Tunnel | None,
    ) -> Response:
        path, method = scope["path"], scope["method"]
        if path == ENTER and method == "GET":
            return await self._enter(scope, view, host, headers, platform, tunnel)
        if path == LEAVE and method == "POST":
            if why := foreign_origin(headers, method, platform.scheme, is_websocket=False):
                raise Problem(403, "cross_site", why)
            response = RedirectResponse(f"{platform.page}/", 303) if platform.page else Response(status_code=204)
            self._set(response, _cookie_name(COOKIE, platform, tunnel), "", 0)
            return response
        raise Problem(404, "not_found", f"{path} is not served here")

    async def take(self, code: str) -> Code | None:
        """Return the value of a code and mark it as used; None for an unknown, used or expired code.

        Raises StorageError.
        """
        if len(code) != CODE_LENGTH:
            return None
        now = self._clock.now()
        body = await self._sessions.do(lambda store: store.take_code(f"open {code}", now))
        return msgspec.json.decode(body, type=Code) if body is not None else None

    async def _enter(
        self,
        scope: Scope,
        view: WorkspaceView,
        host: str,
        headers: Headers,
        platform: Platform,
        tunnel: Tunnel | None,
    ) -> Response:
        """Exchange a code for the workspace's cookie. A code is valid only once."""
        # a code is used up even if the rest fails
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        code = await self.take((asked.get("code") or [""])[-1])
        key = await self._secret_key()
        # both halves of the state must be this browser's
        proofs = cookie_values(headers, self._proof_name)
        states = [
            value
            for value in cookie_values(headers, self._state_name)
            if any(hmac.compare_digest(_proof(key, value).encode(), proof.encode()) for proof in proofs)
        ]
        good = code is not None and code.ticket.host == host and _is_of(code.ticket, platform, tunnel)
        if good and code is not None and code.state:
            good = any(hmac.compare_digest(_digest(state), code.state) for state in states)
        if not good or code is None or code.ticket.uid != view.uid:
            raise Problem(
                403, "bad_code", "this way in was used already, or is too old, or another browser's",
                "open the workspace again",
            )  # fmt: skip
        # the cookie replaces the code; the redirect stays on this host
        path = clean_path((asked.get("path") or [""])[-1]) or "/"
        response = RedirectResponse(path, 303, {"cache-control": "no-store"})
        self._set(response, _cookie_name(COOKIE, platform, tunnel), seal(key, code.ticket), COOKIE_SECONDS)
        if tunnel is None:
            self._set(response, self._state_name, "", 0)
            self._set_proof(response, "", 0)
        # each opening is an entry of the audit log
        client = scope.get("client")
        self._audit.note(
            person=code.ticket.person,
            method="OPEN",
            path=f"/open/{view.namespace}/{view.name}",
            what=f"open workspace {view.namespace}/{view.name}",
            address=str(client[0]) if client else "",
            status=303,
        )
        return response

    @property
    def _state_name(self) -> str:
        return _cookie_name(STATE_COOKIE, self.platform, None)

    @property
    def _proof_name(self) -> str:
        return f"__Secure-{ENTER_COOKIE}" if self.platform.scheme == "https" else ENTER_COOKIE

    def _set_proof(self, response: Response, value: str, seconds: int) -> None:
        """Set the other half of a state, for the path of codes only. Other paths of the host see the first
        half, and a neighbour could set this one: neither is enough to use a code.
        """
        response.set_cookie(
            self._proof_name,
            value,
            max_age=seconds,
            path=ENTER,
            httponly=True,
            samesite="lax",
            secure=self.platform.scheme == "https",
        )

    def _set(self, response: Response, name: str, value: str, seconds: int) -> None:
        """Set a cookie limited to this host: no Domain, and over TLS a name that a neighbour cannot set."""
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            httponly=True,
            samesite="lax",
            secure=name.startswith("__Host-"),
        )

    # --- its destination

    def _view(self, namespace: str, name: str) -> WorkspaceView | None:
        obj = self.workspaces.get(name, namespace)
        if obj is None:
            return None
        try:
            return parse_workspace(obj)
        except BadWorkspace:
            return None

    def _by_host(self, host: str, platform: Platform) -> WorkspaceView | None:
        label = host.removesuffix(f".{platform.domain}")
        workspaces = self.workspaces.by_index("host", label)
        if len(workspaces) != 1:
            return None
        key = key_of(workspaces[0])
        return self._view(key.namespace, key.name)

    @property
    def apps(self) -> Mapping[str, App]:
        """Every template by name."""
        return templates_of(self._templates.all())[0]

    def _app(self, view: WorkspaceView) -> App | None:
        if view.spec.app is not None:
            return view.spec.app
        return self.apps.get(view.spec.type)

    def _first_path(self, view: WorkspaceView) -> str:
        app = self._app(view)
        return (app.path if app is not None else "") or "/"

    async def _destination(self, view: WorkspaceView, host: str, platform: Platform) -> Destination | None:
        """The address of a ready pod behind the workspace's Service; None if there is none."""
        app = self._app(view)
        if app is None:
            return None
        for endpoint_slice in self._slices.by_index("service", f"{view.namespace}/{view.object_name}"):
            port = next((port.get("port") for port in endpoint_slice.get("ports") or ()), None)
            for endpoint in endpoint_slice.get("endpoints") or ():
                # only addresses of pods from Kubernetes: one written by hand could lead anywhere
                is_pod = (endpoint.get("targetRef") or {}).get("kind") == "Pod"
                if is_pod and port and (endpoint.get("conditions") or {}).get("ready") is not False:
                    shown, cookies = await self._shown(app, view)
                    return Destination(
                        address=str(endpoint["addresses"][0]),
                        port=int(port),
                        host=host,
                        scheme=platform.scheme,
                        headers=shown,
                        cookies=cookies,
                    )
        return None

    async def _shown(
        self, app: App, view: WorkspaceView
    ) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """Headers and cookies with the token that the application expects from the platform."""
        use = app.token
        if use is None:
            return (), ()
        value = put_in(use.value, make_token(await self._secret_key(), view.uid))
        return (
            ((use.header.lower(), value),) if use.header else (),
            ((use.cookie, value),) if use.cookie else (),
        )

    async def _secret_key(self) -> bytes:
        """The key for the tokens and cookies of workspaces. The operator creates it.

        Raises Problem 503 without it.
        """
        if self._key is None:
            try:
                secret = await self._api.get(SECRETS, GATEWAY_SECRET, SYSTEM_NAMESPACE)
            except NotFound as error:
                raise Problem(503, "starting", "the platform is starting", "try again in a moment") from error
            except ApiError as error:
                raise Problem(503, "unavailable", "the platform cannot read its key") from error
            self._key = base64.b64decode(secret["data"]["key"])
        return self._key

    # --- pages for people

    def _not_running(self, scope: Scope, view: WorkspaceView, headers: Headers, platform: Platform) -> Response:
        status = view.status
        if not view.spec.running:
            message, again = "This workspace is stopped. Its volumes stay.", False
        elif status.waiting_for is not None:
            message, again = f"{status.phase}: {status.waiting_for.message}", True
        elif status.phase == RUNNING:
            message, again = "It runs, and does not answer yet.", True
        else:
            message, again = "It is starting.", True
        problem = Problem(503, "not_running", message, f"moor workspace show {view.name} -n {view.namespace}")
        title = f"{view.namespace}/{view.name}"
        return self._say(scope, problem, platform, title=title, again=again, headers=headers)

    def _say(
        self,
        scope: Scope,
        problem: Problem,
        platform: Platform,
        *,
        title: str = "Moorage",
        again: bool = False,
        headers: Headers | None = None,
    ) -> Response:
        given = headers if headers is not None else headers_of(scope)
        more = {"retry-after": "2"} if again else {}
        if scope["type"] == "websocket" or "text/html" not in _one(given, "accept"):
            return answer(problem, more)
        refresh = '<meta http-equiv="refresh" content="2">' if again else ""
        page = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(title)}</title>{refresh}"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            "<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}"
            "</style>"
            f"</head><body><main><h1>{html.escape(title)}</h1><p>{html.escape(problem.message)}</p>"
        )
        if problem.hint:
            page += f"<p>{html.escape(problem.hint)}</p>"
        if platform.page:
            page += f'<p><a href="{html.escape(platform.page, quote=True)}/">Go to the platform</a></p>'
        page += "</main></body></html>"
        more |= {
            "content-security-policy": PAGE_CSP,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
        }
        return Response(page, problem.status, more, media_type="text/html")


class GatewayLayer:
    """The ASGI layer before all others: requests for a workspace's host never reach our own routes."""

    def __init__(self, app: ASGIApp, *, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            host = host_of(given[0]) if len(given) == 1 else ""
            if host and self._gateway.covers(host):
                await self._gateway(scope, receive, send)
                return
            if scope["type"] == "http" and (bounce := bounced(scope)) is not None:
                await bounce(scope, receive, send)
                return
        await self._app(scope, receive, send)


def bounced(scope: Scope) -> Response | None:
    """A page that reloads `/open/…` once, for a browser that came without a cookie; None for other requests.

    Browsers do not send strict cookies when another site links here. They send them when our own page reloads.
    """
    if scope["method"] != "GET" or not scope["path"].startswith("/open/"):
        return None
    headers = headers_of(scope)
    query = scope["query_string"].decode("latin-1")
    if _one(headers, "cookie") or _one(headers, "authorization") or "token=" in query or "again=1" in query:
        return None
    if "text/html" not in _one(headers, "accept"):
        return None
    where = html.escape(quote(scope["path"], safe="/-._~") + f"?{query}&again=1", quote=True)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>One moment</title>'
        f'<meta http-equiv="refresh" content="0;url={where}"></head>'
        f'<body><p><a href="{where}">Go on</a></p></body></html>'
    )
    return Response(page, 200, {"content-security-policy": PAGE_CSP, "cache-control": "no-store"}, "text/html")


# --- pure


def tunnelled(port: int) -> Platform:
    """The platform's address for a browser that uses a tunnel from this port of its machine."""
    return Platform(scheme="http", domain=TUNNEL_DOMAIN, port=port)


def _leads_to(view: WorkspaceView, platform: Platform, tunnel: Tunnel | None) -> bool:
    if tunnel is None:
        return view.access(platform) == LOGIN
    return (view.namespace, view.name) == (tunnel.namespace, tunnel.name)


def _is_of(ticket: Ticket, platform: Platform, tunnel: Tunnel | None) -> bool:
    """Whether a ticket is valid for this connection. A ticket of a tunnel is invalid in another person's
    tunnel.
    """
    if tunnel is None:
        return not ticket.tunnel_port
    return (ticket.tunnel_port, ticket.account) == (platform.port, tunnel.account)


def _cookie_name(name: str, platform: Platform, tunnel: Tunnel | None) -> str:
    """The name of a cookie, different for each tunnel, since cookies do not depend on the port."""
    if tunnel is not None:
        return f"{name}_{platform.port}"
    return f"__Host-{name}" if platform.scheme == "https" else name


def seal(key: bytes, ticket: Ticket) -> str:
    """Encode and sign a ticket as a cookie value."""
    body = base64.urlsafe_b64encode(msgspec.json.encode(ticket)).decode().rstrip("=")
    return f"{body}.{_signature(key, body)}"


def unseal(key: bytes, text: str) -> Ticket | None:
    """The ticket in a cookie value; None if the signature is invalid."""
    body, _, signature = text.rpartition(".")
    if not body or not hmac.compare_digest(signature.encode(), _signature(key, body).encode()):
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Ticket)
    except (ValueError, msgspec.DecodeError):
        return None


def _proof(key: bytes, state: str) -> str:
    """The proof of a state, which only the platform can compute."""
    return hmac.new(key, b"state " + state.encode(), hashlib.sha256).hexdigest()


def _signature(key: bytes, body: str) -> str:
    made = hmac.new(key, b"ticket " + body.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def host_of(given: str) -> str:
    """The name in a Host header, in lower case, without port; "" if the header is not a plain name."""
    try:
        host = parse_authority(given).host
    except ValueError:
        return ""
    return "" if host.startswith("[") else host


def is_own_path(sent: str) -> bool:
    """Whether any parser could take a path, as it was sent, for one of OWN_PATHS."""
    try:
        return (plain_path(sent) + "/").startswith(OWN_PATHS)
    except ValueError:
        return True  # unclear: the application does not get it


def clean_path(text: str) -> str:
    """A path and query of this host; empty for a text that could lead elsewhere."""
    if not text.startswith("/") or text.startswith(("//", "/\\", OWN_PATHS)):
        return ""
    if len(text) > 4096 or any(
        ord(character) < 0x21 or character == "\\" or ord(character) > 0x7E for character in text
    ):
        return ""
    return text


def foreign_origin(headers: Headers, method: str, scheme: str, *, is_websocket: bool) -> str:
    """Why a request is refused as cross-site; "" if it comes from this host, or from a followed link.

    https://developer.mozilla.org/en-US/docs/Web/HTTP/Headers/Sec-Fetch-Site
    """
    message = "another site asked for this in your name"
    origin, host = _one(headers, "origin"), _one(headers, "host").lower()
    site, mode = _one(headers, "sec-fetch-site"), _one(headers, "sec-fetch-mode")
    if origin:
        parts = urlsplit(origin.lower())
        if parts.scheme != scheme or parts.netloc != host:
            return message
    if is_websocket:
        return "" if origin else "a WebSocket that does not say where it comes from"
    if site in ("", "same-origin", "none"):
        return "" if method in SAFE or origin or site else "a change that does not say where it comes from"
    if method == "GET" and mode == "navigate" and _one(headers, "sec-fetch-dest") == "document":
        return ""
    return message


def _one(headers: Headers, name: str) -> str:
    return next((value for key, value in headers if key.lower() == name), "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _by_host(obj: Mapping[str, Any]) -> list[str]:
    key: Key = key_of(obj)
    return [host_label(key.namespace, key.name)]


def _by_service(obj: Mapping[str, Any]) -> list[str]:
    name = labels_of(obj).get("kubernetes.io/service-name")
    return [f"{obj['metadata'].get('namespace')}/{name}"] if name else []
