"""Authentication by a person's session, a Kubernetes token, the page token, or a cookie made from one of them.

`Gate` handles each request before its route: it refuses foreign Host headers (DNS rebinding) and changes that
other sites request (CSRF). It lets health, metrics, static files and login pages through, and identifies the
user of all other requests. It adds the security headers to every response, and every change to the audit log.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moorage.api.auditrecords import RECORDS_PATH
from moorage.api.workspaces import TUNNEL_PATH
from moorage.model.names import GROUP
from moorage.model.people import GROUP_PREFIX, account_user, is_account, is_disabled, person_in
from moorage.model.tenant import role_in
from moorage.server.identity.people import People, groups_of
from moorage.server.identity.proofs import PROOF_PREFIX
from moorage.server.identity.sessions import TOKEN_PREFIX, Session
from moorage.server.problems import Problem, problem_of
from moorage_kube.access import SERVICE_ACCOUNT, service_account_groups
from moorage_kube.addresses import PORTS, is_odd_path, parse_authority, parse_origin
from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.remote.reviews import reviewed_user, user_may
from moorage_kube.texts import header_text

if TYPE_CHECKING:
    from moorage.server.identity.audit import AuditLog
    from moorage.server.identity.logins import Logins
    from moorage.server.identity.pagesessions import PageSessions

log = logging.getLogger(__name__)

COOKIE = "moorage_session"  # of a session that began with the page's token
SECURE_COOKIE = "__Host-moorage_session"  # over https: no other host or port without TLS gets or sets it
LOGIN_COOKIE = "moorage_login"  # a person's session
SECURE_LOGIN_COOKIE = "__Host-moorage_login"  # over https: no other host of the domain can set or read it
COOKIE_SECONDS = 7 * 24 * 3600
REVIEW_SECONDS = 60.0  # how long a verified Kubernetes token is believed
PERSON_SECONDS = 10.0  # of a person: a disabled one must lose access within a minute
REFUSED_SECONDS = 5.0  # and a refused one is not asked about again
REVIEWS_KEPT = 1024
ACCESS_KEPT = 16_384  # answers of the API server; a page of a list asks some ten for each namespace
PAGE_USER = "page"
AUTHENTICATED = "system:authenticated"

OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # kubelets ask for these under the pod's address
METRICS_PATH = "/metrics"  # Prometheus asks with a token that may `get` this path
OPEN_PREFIX = "/static/"
WAY_IN = frozenset(  # open to users who are not logged in
    {
        "/login",
        "/login/oidc",
        "/login/callback",
        "/logout",
        "/api/v1/login",
        "/api/v1/login/exchange",
        "/api/v1/login/proof",
        "/look",  # stores only a language and colours, in cookies
    }
)
LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing
LOOKING_PATHS = frozenset({"/api/v1/explain", "/api/v1/cost", "/api/v1/cost/compare"})  # nor does a POST to these
OWN_AUTH_PATHS = frozenset({"/api/v1/work", "/api/v1/work/output"})  # check the map's own token
TUNNEL_SUFFIX = TUNNEL_PATH.rpartition("}")[2]
OPERATOR_PREFIX = "/api/v1/internal/"  # requests of the operator, hundreds in a second
STEPS_PREFIX = "/api/v1/steps/"  # checks the workflow's own token
OWN_AUTH_PREFIX, OWN_AUTH_SUFFIX = "/api/v1/runs/", "/checkpoint"  # that route checks the run's own token

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" a browser sends our own forms with `Origin: null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

RECHECK_SECONDS = 20.0  # between two checks of the user of a long request
CAREFUL = tuple((name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items())
NOSNIFF, NO_STORE = (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")


class Refuses(Protocol):
    """Answers a request with a problem, and adds the headers `sent`."""

    def __call__(self, scope: Scope, problem: Problem, sent: Mapping[str, str] | None = None, /) -> Response: ...


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request: a person, a name from the API server, or `PAGE_USER`."""

    name: str
    groups: tuple[str, ...] = ()  # a person's begin with GROUP_PREFIX
    is_page: bool = False  # by the page's token, which many may share and which names no person
    account: str = ""  # the Kubernetes user to act as; empty: may only look
    token: str = field(default="", repr=False)  # the Kubernetes token the request came with, to act by
    is_proved: bool = False  # by a certificate: the server knows the user, and cannot act as them
    borrowed: bool = False  # the token is of another user who may act as `account`
    session: Session | None = field(default=None, repr=False, compare=False)
    by_cookie: bool = field(default=False, compare=False)  # which a browser sends whoever made it ask

    @property
    def kube_groups(self) -> tuple[str, ...]:
        """The groups of `account` in RBAC."""
        return service_account_groups(self.account) if is_account(self.account) else self.groups

    def role_in(self, tenant: Mapping[str, Any]) -> str:
        """The highest role in a tenant; "" without one, and for users who may only look."""
        groups = [group.removeprefix(GROUP_PREFIX) for group in self.groups]
        return role_in(tenant, self.name, groups) if self.account else ""


PAGE = User(PAGE_USER, is_page=True)


def same(secret: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that reveals nothing; an empty secret equals none."""
    return bool(secret) and bool(other) and hmac.compare_digest(secret.encode(), other.encode())


def bearer_of(headers: Mapping[str, str]) -> str:
    """The bearer token of an Authorization header; "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Auth:
    """Finds the user of a token. With an empty `page_token`, page tokens and their cookies are refused."""

    def __init__(
        self,
        api: Api,
        *,
        page_token: str,
        page_person: str = "",
        people: People,
        logins: Logins,
        page_sessions: PageSessions,
        clock: Clock = SYSTEM,
        reviews_kept: int = REVIEWS_KEPT,
    ) -> None:
        """`page_person`: the user of the page's token; empty: the token is read-only.

        `reviews_kept`: the number of Kubernetes tokens whose users are remembered.
        """
        self.recheck_seconds = RECHECK_SECONDS
        self.page_sessions = page_sessions
        self._api = api
        self._people = people
        self.logins = logins
        self._page = User(page_person, account=account_user(page_person)) if page_person else PAGE
        self._page_token = page_token
        self._reviews: BoundedCache[str, User | None] = BoundedCache(reviews_kept, clock=clock)
        self._access: BoundedCache[tuple[object, ...], bool] = BoundedCache(
            ACCESS_KEPT, keep_seconds=REVIEW_SECONDS, clock=clock
        )

    @property
    def has_login_page(self) -> bool:
        """Whether users log in at /login, instead of by the address that `moor up` printed."""
        return self.logins.is_set_up

    def is_page_token(self, token: str) -> bool:
        return same(token, self._page_token)

    async def identify(self, headers: Mapping[str, str]) -> User | None:
        """The user of a request; None if its token is missing or invalid.

        Raises ApiError from the token review.
        """
        if token := bearer_of(headers):
            if token.startswith(TOKEN_PREFIX):
                return await self._by_session(token)
            if token.startswith(PROOF_PREFIX):
                user = await self._by_proof(token)
            else:
                user = self._page if self.is_page_token(token) else await self.review(token)
            other = header_text(headers.get("impersonate-user", "").encode("latin-1"))
            return await self._impersonated(user, other) if other and user is not None else user
        cookies = headers.get("cookie", "")
        for name in (SECURE_LOGIN_COOKIE, LOGIN_COOKIE):
            if (token := cookie_of(cookies, name)) and (known := await self._by_session(token)) is not None:
                return replace(known, by_cookie=True)
        for name in (SECURE_COOKIE, COOKIE):
            if await self.page_sessions.holds(cookie_of(cookies, name)):
                return replace(self._page, by_cookie=True)
        return None

    async def _by_proof(self, token: str) -> User | None:
        identity = await self.logins.proofs.identity(token)
        if identity is None:
            return None
        return await self._as_person(User(identity.name, identity.groups, account=identity.name, is_proved=True))

    async def _by_session(self, token: str) -> User | None:
        session = await self.logins.session_of(token)
        account = await self._people.account(session.person) if session is not None else None
        if session is None or account is None:
            return None
        return User(session.person, groups_of(account), account=account_user(session.person), session=session)

    async def review(self, token: str) -> User | None:
        """Ask the API server for the user of a token; an answer is cached for REVIEW_SECONDS (a refusal: shorter).

        https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        if digest in self._reviews:
            return self._reviews.get(digest)
        known = await reviewed_user(self._api, token)
        user = User(*known, account=known[0], token=token) if known else None
        if user is not None:
            user = await self._as_person(user)
        believed = PERSON_SECONDS if user is not None and is_account(user.account) else REVIEW_SECONDS
        self._reviews.put(digest, user, keep_seconds=believed if user else REFUSED_SECONDS)
        return user

    async def _as_person(self, user: User) -> User | None:
        """The user under the person's name, if it is a person's account; None if that is disabled or deleted."""
        if not is_account(user.account):
            return user
        account = await self._people.behind(user.account)
        if account is None or is_disabled(account):
            return None
        person = person_in(account)
        return replace(user, name=person, groups=groups_of(account)) if person else user

    async def may_get_path(self, user: User, path: str) -> bool:
        """Whether RBAC lets a user `get` a path that is not a resource; True for the page's token.

        Raises ApiError.

        https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources (nonResourceURLs)
        """
        if user.is_page:
            return True
        return await self._review(user, {"nonResourceAttributes": {"verb": "get", "path": path}})

    async def may_read_pods(self, user: User, namespace: str) -> bool:
        """Whether the user may read the pods of a namespace. False if the API server does not answer."""
        try:
            return await self.may(user, "get", "pods", namespace=namespace)
        except ApiError:
            return False

    async def may_read_logs(self, user: User, namespace: str) -> bool:
        """Whether the user may read the logs of pods in a namespace. Raises ApiError."""
        return await self.may(user, "get", "pods", namespace=namespace, subresource="log")

    async def may_use_maps(self, user: User, verb: str, namespace: str = "") -> bool:
        """Whether RBAC lets a user do this with MapJobs of a namespace ("": all). False for the page's token."""
        return await self.may(user, verb, "mapjobs", group=GROUP, namespace=namespace)

    async def may(
        self,
        user: User,
        verb: str,
        resource: str,
        *,
        group: str = "",
        namespace: str = "",
        name: str = "",
        subresource: str = "",
    ) -> bool:
        """Whether RBAC lets a user do this; an answer is cached for REVIEW_SECONDS. Raises ApiError.

        https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
        """
        wanted = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        return await self._review(
            user, {"resourceAttributes": {key: value for key, value in wanted.items() if value}}
        )

    async def _review(self, user: User, wanted: dict[str, dict[str, str]]) -> bool:
        if not user.account:
            return False
        attributes = tuple((kind, *sorted(what.items())) for kind, what in wanted.items())
        key = (user.account, user.kube_groups, attributes)
        known = self._access.get(key)
        if known is not None:
            return known
        allowed = await user_may(self._api, user.account, user.kube_groups, wanted)
        self._access.put(key, allowed)
        return allowed

    async def _impersonated(self, user: User, name: str) -> User | None:
        """The impersonated user; None if RBAC does not let `user` impersonate them.

        The groups are the API server's.

        https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation
        """
        if name.startswith(SERVICE_ACCOUNT):
            namespace, _, account = name.removeprefix(SERVICE_ACCOUNT).partition(":")
            may = await self.may(user, "impersonate", "serviceaccounts", namespace=namespace, name=account)
            groups = service_account_groups(name)
        else:
            may, groups = await self.may(user, "impersonate", "users", name=name), (AUTHENTICATED,)
        if not may:
            return None
        return await self._as_person(User(name, groups, account=name, token=user.token, borrowed=bool(user.token)))


class Gate:
    """The ASGI layer in front of the routes: it identifies users and refuses requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Auth,
        audit: AuditLog,
        refuse: Refuses,
    ) -> None:
        self._app = app
        self._audit = audit
        self._refuse = refuse
        self._auth = auth
        self._addresses = auth.logins.addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        is_websocket = scope["type"] == "websocket"
        answered = {"status": 0}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered["status"] = message["status"]
                message["headers"] = hardened(message["headers"], scope["path"])
            elif message["type"] == "websocket.accept":
                answered["status"] = 101
            elif message["type"] == "websocket.http.response.start":
                answered["status"] = message["status"]
                message["headers"] = hardened(message["headers"], scope["path"])
            await send(message)

        state = scope.setdefault("state", {})
        state["address"] = self._address(scope)
        early = await self._judge(scope)
        try:
            if early is None:
                async with _Lasting(self._auth, scope):
                    await self._app(scope, receive, send_guarded)
            elif is_websocket:
                answered["status"] = early.status_code
                await send({"type": "websocket.close", "code": 1008})
            else:
                await early(scope, receive, send_guarded)
        finally:
            status = answered["status"] or state.get("answered") or 500
            self._note(scope, "CONNECT" if is_websocket else scope["method"], status)

    def _note(self, scope: Scope, method: str, status: int) -> None:
        """Add every change, and every try at one, to the audit log, except reports from workers."""
        path, state = scope["path"], scope["state"]
        if method in LOOKS or path in LOOKING_PATHS or has_own_auth(path):
            return
        if path == RECORDS_PATH and status < 400:
            return  # records are entries themselves
        if path.startswith(OPERATOR_PREFIX) and status not in (401, 403):
            return
        if path.endswith(TUNNEL_SUFFIX) and status == 101:
            return  # a browser opens dozens; that the person came in is an entry
        user = state.get("user")
        person = state.get("audit_person") or (user.name if user is not None else "")
        self._audit.note(
            person=person,
            method=method,
            path=path,
            what=state.get("audit", ""),
            address=state["address"],
            status=status,
            is_stranger=user is None and status >= 400,
        )

    def _address(self, scope: Scope) -> str:
        """The client's address: of the connection, or the one that our proxies forward."""
        return self._addresses.client_of(_client(scope), Headers(scope=scope).getlist("x-forwarded-for"))

    async def _judge(self, scope: Scope) -> Response | None:
        """Check a request; return the answer that refuses or redirects it, or None to pass it on."""
        headers = Headers(scope=scope)
        path: str = scope["path"]
        method = scope.get("method", "CONNECT")
        sent = (scope.get("raw_path") or path.encode()).partition(b"?")[0].decode("latin-1")
        # a path that routes and proxies may read differently could pass a check for another path
        if is_odd_path(sent) or is_odd_path(path):
            return self._refuse(
                scope,
                Problem(
                    400,
                    "odd_path",
                    f"ambiguous path {sent[:80]!r}",
                    "remove //, dot segments and backslashes, and their escapes",
                ),
            )
        # foreign names are a sign of DNS rebinding
        if path not in OPEN_PATHS and not self._addresses.is_ours(headers.get("host", "")):
            return self._refuse(
                scope,
                Problem(
                    400,
                    "foreign_host",
                    f"this server does not answer to the name {headers.get('host', '')!r}",
                    "use the address that `moor status` prints; an administrator adds others to publicUrl in the"
                    " ConfigMap moorage of namespace moorage-system",
                ),
            )
        # public paths, and those that check their own tokens
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or has_own_auth(path):
            return None
        # the page's token in an address becomes a cookie, and the address loses it
        if method in ("GET", "HEAD") and not path.startswith("/api/"):
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = [value for name, value in query if name == "token"]
            if given:
                if self._auth.is_page_token(given[-1]):
                    try:
                        value = await self._auth.page_sessions.open()
                    except MoorageError as error:
                        return self._refuse(scope, problem_of(error))
                    rest = [pair for pair in query if pair[0] != "token"]
                    secure = self._scheme(scope, headers) == "https"
                    return self._signed_in(path, rest, value, secure=secure)
                return self._refused(scope, headers, "the token in the address is not this server's")
        # the user of all other requests
        try:
            user = await self._auth.identify(headers)
        except (MoorageError, Problem) as error:
            return self._refuse(scope, problem_of(error))
        if user is None and path not in WAY_IN:
            return self._refused(scope, headers, "no valid token came with the request")
        scope["state"]["user"] = user
        # browsers send cookies with other sites' requests too, so changes must come from our pages
        from_a_form = user is None and path in ("/login", "/logout")
        changes = method not in LOOKS
        if (
            changes
            and (from_a_form or (user is not None and user.by_cookie))
            and not is_same_origin(headers, self._scheme(scope, headers))
        ):
            return self._refuse(
                scope,
                Problem(
                    403,
                    "cross_site",
                    "another site asked for this change, or the browser does not say which",
                    "programs send `Authorization: Bearer TOKEN` and no cookie",
                ),
            )
        return None

    def _scheme(self, scope: Scope, headers: Headers) -> str:
        """The scheme of our address in browsers: from our proxy, the public address, or the connection."""
        if self._addresses.believes(_client(scope)) and (forwarded := headers.getlist("x-forwarded-proto")):
            return forwarded[-1].rpartition(",")[2].strip().lower()
        if public := self._addresses.scheme_of(headers.get("host", "")):
            return public
        seen: str = scope["scheme"]
        return {"ws": "http", "wss": "https"}.get(seen, seen)

    def _signed_in(self, path: str, query: list[tuple[str, str]], value: str, *, secure: bool) -> Response:
        """Redirect to the address without the token, and set the cookie. `path` cannot lead to another host."""
        clean = "/" + path.lstrip("/\\") + (f"?{urlencode(query)}" if query else "")
        response = RedirectResponse(clean, 303)
        response.set_cookie(
            SECURE_COOKIE if secure else COOKIE,
            value,
            max_age=COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return response

    def _refused(self, scope: Scope, headers: Headers, message: str) -> Response:
        path = scope["path"]
        if (
            "text/html" in headers.get("accept", "")
            and not path.startswith("/api/")
            and self._auth.has_login_page
            and scope.get("method") == "GET"
        ):
            wanted = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse("/login?" + urlencode({"next": wanted}), 303)
        problem = Problem(
            401,
            "unauthorized",
            message,
            "send `Authorization: Bearer TOKEN` with the token of a session, of the page, or of Kubernetes",
        )
        return self._refuse(scope, problem, {"www-authenticate": "Bearer"})


def _client(scope: Scope) -> str:
    """The client address of the connection; "" if unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def hardened(headers: Iterable[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response, with the security headers that it does not set itself.

    Paths for workers get thousands of requests a second; their responses get only `x-content-type-options`.
    """
    sent = list(headers)
    if path in OWN_AUTH_PATHS:
        return [*sent, NOSNIFF]
    names = {name.lower() for name, _ in sent}
    added = CAREFUL if path.startswith(OPEN_PREFIX) else (*CAREFUL, NO_STORE)
    return sent + [header for header in added if header[0] not in names]


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """Whether the page that sent the request is from this server, by headers that scripts cannot set.

    `scheme`: the scheme of the server's address. A browser that sends `same-origin` has compared it itself; if a
    browser sends no Sec-Fetch-Site, the Origin header is compared.

    https://developer.mozilla.org/en-US/docs/Web/HTTP/Headers/Sec-Fetch-Site
    """
    sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
    if len(sites) > 1 or len(origins) > 1 or (sites and sites[0] != "same-origin"):
        return False
    if not origins:
        return bool(sites)
    try:
        from_scheme, host, port = parse_origin(origins[0])
        ours = parse_authority(headers.get("host", ""))
    except ValueError:
        return False
    if not sites and from_scheme != scheme:
        return False
    return (host, port) == (ours.host, ours.port or PORTS[from_scheme])


class _Lasting:
    """Wraps the handling of a request, and ends a long one when its user loses access meanwhile.

    Followed logs, terminals and live pages end within `Auth.recheck_seconds` after the person's tokens do; a
    shorter request costs one timer. While the user cannot be verified, running requests continue.
    """

    def __init__(self, auth: Auth, scope: Scope) -> None:
        self._auth, self._scope = auth, scope
        self._user: User | None = scope["state"].get("user")
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_out = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._user is not None and task is not None:
            self._task = task
            self._timer = asyncio.get_running_loop().call_later(self._auth.recheck_seconds, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if kind is asyncio.CancelledError and self._is_out:
            self._task.uncancel()
            return True  # the server closes the connection of an answer that has no end
        return False

    def _begin(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        if self._user is None or await self._holds(self._user):
            self._timer = asyncio.get_running_loop().call_later(self._auth.recheck_seconds, self._begin)
            return
        log.info("ended a request of a user without access", extra={"path": self._scope["path"]})
        self._is_out = True
        self._task.cancel()

    async def _holds(self, user: User) -> bool:
        try:
            current = await self._auth.identify(Headers(scope=self._scope))
        except (MoorageError, Problem):
            return True
        return current is not None and current.name == user.name


def has_own_auth(path: str) -> bool:
    if path in OWN_AUTH_PATHS or path.startswith(STEPS_PREFIX):
        return True
    return path.startswith(OWN_AUTH_PREFIX) and path.endswith(OWN_AUTH_SUFFIX)


def cookie_of(header: str, name: str) -> str:
    """The value of a cookie; "" if the cookie is absent."""
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
