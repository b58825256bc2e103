"""`Api` over HTTPS, for any Kubernetes cluster.

https://kubernetes.io/docs/reference/using-api/api-concepts/

The module has one class with all verbs and the retries that they share: it is long, but it is one idea.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec

from moorage_kube import __version__
from moorage_kube.api import CONTENT_TYPES, ObjList, PatchKind, WatchEvent
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.documents import parse_json, without_depth
from moorage_kube.errors import ApiError, BadRequest, DocumentError, Expired, ServerError, api_error
from moorage_kube.integers import integer_or, is_digits
from moorage_kube.remote.config import Connection, load_connection
from moorage_kube.remote.credentials import Credentials
from moorage_kube.resources import PODS, Obj, Resource

if TYPE_CHECKING:
    import ssl

    import aiohttp

    from moorage_kube.remote.exec import ExecProcess

log = logging.getLogger(__name__)

PAGE_SIZE = 500  # client-go's
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0  # the API server itself gives up on ordinary requests after this
WATCH_SECONDS = 300  # the server ends a watch after one to two times this, chosen at random
RETRIES = 4  # of calls that may be repeated, when the server is busy
RETRY_AFTER_MAX_SECONDS = 10.0
IDLE_SECONDS = 60  # less than servers keep an idle connection (the Kubernetes API 90 s)
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_EVERY_SECONDS, KEEPALIVE_TIMES = 15, 10, 3  # a silent peer is noticed in 45 s

Resources = list[Resource]

_WARNING = re.compile(r'299 \S+ "(?P<text>(?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

_REPEATABLE = frozenset({"GET", "PUT", "PATCH", "DELETE"})
_BUSY = frozenset({429, 503})
Writing = Callable[[str, str], None]
"""Called with the HTTP method and the path of the object, for a new one too."""
Guard = Callable[[], None]
"""Called right before the first byte of a write leaves, at each try; raises ApiError to keep it back."""

_JSON = "application/json"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class KubeClient:
    """One identity on one cluster. Use as `async with KubeClient(connection) as api`.

    Every method raises `ApiError` subclasses: the server's own, or ServerError with status 0 when no answer came.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock = SYSTEM,
        warned: Callable[[str], None] | None = None,
        field_manager: str = "",
    ) -> None:
        """`warned` is called with the warnings in answers to writes, such as those of admission.

        `field_manager`: the manager recorded for creations and changes; if empty, the API server uses the user
        agent.
        """
        self.connection = connection
        self._clock = clock
        self._warned = warned
        self._field_manager = field_manager
        self.writing: Writing | None = None  # hears of each write, just before it is sent
        self._credentials = Credentials(connection, clock)
        self._session: aiohttp.ClientSession | None = None
        self._borrowed = False  # the session is another client's, which closes it
        self._user = connection.impersonate_user
        self._groups = connection.impersonate_groups
        self._guard: Guard | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path | str | None = None, *, context: str | None = None) -> Self:
        """Return a client of the cluster that `kubectl` would use here.

        See `load_connection` for the errors raised.
        """
        return cls(load_connection(path, context=context))

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; open watches and log streams end with an error."""
        session, self._session = self._session, None
        if session is not None and not self._borrowed:
            await session.close()

    def as_user(self, user: str, groups: Sequence[str] = ()) -> KubeClient:
        """Return a client on the same connection that impersonates another user, if the caller has that right.

        Do not close the returned client.
        """
        other = self._another(self.connection)
        other._credentials = self._credentials
        other._user, other._groups = user, tuple(groups)
        return other

    def guarded(self, guard: Guard) -> KubeClient:
        """Return a client over the same connection that asks `guard` before each write. Do not close it."""
        other = self._another(self.connection)
        other._credentials = self._credentials
        other._user, other._groups = self._user, self._groups
        other._warned, other._field_manager = self._warned, self._field_manager
        other._guard = guard
        return other

    def _another(self, connection: Connection) -> KubeClient:
        other = KubeClient(connection, clock=self._clock)
        other._session, other._borrowed = self._session, True
        other._guard = self._guard
        return other

    def with_token(self, token: str, user: str = "") -> KubeClient:
        """Return a client of the same cluster with another token, as `user` if the token may impersonate.

        Do not close it.

        Raises ServerError if this connection uses a client certificate: the server would see us, not the token's
        user.
        """
        if self.connection.client_cert_pem or self.connection.exec_plugin is not None:
            raise ServerError("a connection with a client certificate cannot carry another's token", status=501)
        mine = replace(self.connection, token=token, token_file=None, exec_plugin=None, username="", password="")
        other = self._another(mine)
        other._user, other._groups = user, ()
        return other

    async def authorization(self) -> str:
        """Return the Authorization header that this connection sends; "" if it sends none."""
        return await self._credentials.authorization() or ""

    # --- Api

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        return await self._call("GET", resource.path(namespace=_required(resource, namespace), name=name))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int | None = None,
        cont: str | None = None,
    ) -> ObjList:
        path = resource.path(namespace=namespace)
        params = _selectors(label_selector, field_selector)
        if limit is not None or cont is not None:
            return await self._page(resource, path, params, limit, cont)
        first = await self._page(resource, path, params, PAGE_SIZE, None)
        items, version, token = first.items, first.resource_version, first.cont
        while token:
            try:
                page = await self._page(resource, path, params, PAGE_SIZE, token)
            except Expired:
                # the server compacted its history while we read: one answer without pages, as client-go does
                return await self._page(resource, path, params, None, None)
            items.extend(page.items)
            token = page.cont
        return ObjList(items, version)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> AsyncIterator[WatchEvent]:
        seconds = int(WATCH_SECONDS * (1 + random.random()))
        params = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        path = resource.path(namespace=namespace)
        async with self._request("GET", path, params=params, read_seconds=seconds + 30.0) as answer:
            async with contextlib.aclosing(_lines(self._chunks(answer))) as lines:
                async for line in lines:
                    yield _event(line)

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        namespace = namespace or (obj.get("metadata") or {}).get("namespace")
        path = resource.path(namespace=_required(resource, namespace))
        self._tell("POST", f"{path}/{(obj.get('metadata') or {}).get('name', '')}")
        params = self._managed() | ({"dryRun": "All"} if dry_run else {})
        return await self._call("POST", path, body=obj, params=params)

    async def update(self, resource: Resource, obj: Obj, *, subresource: str | None = None) -> Obj:
        meta = obj["metadata"]
        namespace = _required(resource, meta.get("namespace"))
        path = resource.path(namespace=namespace, name=meta["name"], subresource=subresource)
        self._tell("PUT", path)
        return await self._call("PUT", path, body=obj, params=self._managed())

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        params = self._managed()
        if field_manager or kind == "apply":
            params["fieldManager"] = field_manager or "moorage"
        if force:
            params["force"] = "true"
        path = resource.path(namespace=_required(resource, namespace), name=name, subresource=subresource)
        self._tell("PATCH", path)
        return await self._call("PATCH", path, body=patch, params=params, content_type=CONTENT_TYPES[kind])

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        path = resource.path(namespace=_required(resource, namespace), name=name)
        self._tell("DELETE", path)
        await self._read("DELETE", path, body=options)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        path = resource.path(namespace=_required(resource, namespace), name=name, subresource=subresource)
        self._tell("POST", path)
        return await self._call("POST", path, body=body)

    # --- beyond Api

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yield a container's output as it arrives, in pieces that may end within a line.

        With `follow`, the output continues until the container ends. `since_seconds` is at least 1.
        """
        params: dict[str, str] = {}
        if container:
            params["container"] = container
        if tail_lines is not None:
            params["tailLines"] = str(tail_lines)
        if since_seconds is not None:
            params["sinceSeconds"] = str(since_seconds)
        for name, wanted in (("follow", follow), ("timestamps", timestamps), ("previous", previous)):
            if wanted:
                params[name] = "true"
        path = PODS.path(namespace=namespace, name=pod, subresource="log")
        # a container may be silent for days: only the connection's own keep-alive ends a followed log
        async with self._request(
            "GET", path, params=params, read_seconds=None if follow else ANSWER_SECONDS
        ) as answer:
            async with contextlib.aclosing(self._chunks(answer)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> bytes:
        """Send a request to any path; a `body` that is not bytes is sent as JSON."""
        return await self._read(method, path, params=params, body=body, content_type=content_type, accept=accept)

    async def version(self) -> Obj:
        """`major`, `minor`, `gitVersion`, …: the server version that `kubectl version` prints."""
        return await self._call("GET", "/version")

    async def date(self) -> datetime:
        """Return the API server's time in whole seconds, from the header `Date` of an answer.

        Raises ServerError.
        """
        async with self._request("GET", "/version", read_seconds=ANSWER_SECONDS) as answer:
            text = answer.headers.get("Date", "")
        try:
            return parsedate_to_datetime(text).astimezone(UTC)
        except ValueError as error:
            raise ServerError("the API server sends no date", status=0) from error

    async def discover(self) -> Resources:
        """Return all resources of the server, in its preferred versions, without subresources.

        Sends one request per API root if the server supports aggregated discovery, else one per group.
        """
        resources: Resources = []
        for root in ("/api", "/apis"):
            document = _decode(await self._read("GET", root, accept=_DISCOVERY))
            if document.get("kind") == "APIGroupDiscoveryList":
                resources += _aggregated(document)
                continue
            if root == "/api":
                versions = [("", version) for version in document.get("versions") or ()]
            else:
                preferred = [group["preferredVersion"] for group in document.get("groups") or ()]
                versions = [tuple(group_version["groupVersion"].split("/")) for group_version in preferred]
            for group, version in versions:
                path = f"/apis/{group}/{version}" if group else f"/api/{version}"
                with contextlib.suppress(ServerError):  # an aggregated API whose server is away
                    resources += _listed(group, version, await self._call("GET", path))
        return resources

    # --- plumbing

    def _managed(self) -> dict[str, str]:
        return {"fieldManager": self._field_manager} if self._field_manager else {}

    def _tell(self, method: str, path: str) -> None:
        if self.writing is not None:
            self.writing(method, path)

    async def _page(
        self, resource: Resource, path: str, params: dict[str, str], limit: int | None, cont: str | None
    ) -> ObjList:
        if limit is not None:
            params = params | {"limit": str(limit)}
        if cont is not None:
            params = params | {"continue": cont}
        document = await self._call("GET", path, params=params)
        meta = document.get("metadata") or {}
        items: list[Obj] = document.get("items") or []
        for item in items:  # lists leave these out of their items
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return ObjList(items, meta.get("resourceVersion") or "", meta.get("continue") or None)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
    ) -> Obj:
        return _decode(await self._read(method, path, params=params, body=body, content_type=content_type))

    async def _read(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> bytes:
        request = self._request(
            method, path, params=params, body=body, content_type=content_type, accept=accept,
            read_seconds=ANSWER_SECONDS,
        )  # fmt: skip
        async with request as answer:
            return b"".join([chunk async for chunk in self._chunks(answer)])

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        read_seconds: float | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and return its 2xx answer, with the body not yet read.

        If the server is busy or a credential has expired, the request is sent again.
        """
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if data is not None else {})
        renewed, tries = False, 0
        while True:
            # the caller reads the body of a good answer; all other answers become errors
            answer = await self._send(method, path, params or {}, headers, data, read_seconds)
            try:
                if answer.status < 300:
                    if self._warned is not None and method != "GET":
                        for text in _warnings(answer.headers.getall("Warning", ())):
                            self._warned(text)
                    yield answer
                    return
                error = await self._error(method, path, answer)
            finally:
                answer.release()
            # a token may have expired meanwhile: renew it once
            if answer.status == 401 and self._credentials.renewable and not renewed:
                renewed = True
                self._credentials.forget()
                continue
            # a busy server says when to retry; writes that are not idempotent are not repeated
            wait = _retry_after(answer.headers.get("Retry-After"), self._clock)
            if answer.status not in _BUSY or wait is None or method not in _REPEATABLE or tries >= RETRIES:
                try:
                    raise error
                finally:
                    del error  # else it, its traceback, this frame and the answer hold each other
            tries += 1
            log.info("the API server is busy; trying again", extra={"path": path, "status": answer.status})
            await self._clock.sleep(min(wait, RETRY_AFTER_MAX_SECONDS))

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        headers: dict[str, str],
        data: bytes | None,
        read_seconds: float | None,
    ) -> aiohttp.ClientResponse:
        import aiohttp
        from yarl import URL

        session = self._session or await self._open()
        if (authorization := await self._credentials.authorization()) is not None:
            headers = headers | {"Authorization": authorization}
        pairs: list[tuple[str, str]] = list(headers.items())
        if self._user:
            pairs.append(("Impersonate-User", self._user))
            pairs += [("Impersonate-Group", group) for group in self._groups]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=read_seconds)
        url = URL(self.connection.server + path, encoded=True)
        try:
            return await session.request(
                method,
                url.extend_query(params) if params else url,
                headers=pairs,
                data=data,
                timeout=timeout,
                allow_redirects=False,
                server_hostname=self.connection.tls_server_name or None,
                proxy=self.connection.proxy_url or None,
                trace_request_ctx=self._guard if method != "GET" else None,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if isinstance(error.__cause__, ApiError):  # the guard's
                raise error.__cause__ from None
            raise self._no_answer(error) from error

    async def exec(
        self,
        pod: str,
        namespace: str,
        command: Sequence[str],
        *,
        container: str | None = None,
        stdin: bytes | bool | None = None,
        tty: bool = False,
    ) -> ExecProcess:
        """Start a command in a container; close the result (`async with`).

        Needs `get` and `create` of `pods/exec`.

        `stdin`: True if the caller writes it. Bytes are sent in full, and then the input ends (servers of
        1.30 and newer). With `tty`, all output is standard output. Raises ApiError.
        """
        from moorage_kube.remote.exec import PROTOCOLS, ExecProcess

        path = PODS.path(namespace=namespace, name=pod, subresource="exec")
        wants = {"stdin": stdin is not None and stdin is not False, "stdout": True, "stderr": not tty, "tty": tty}
        query = [("command", word) for word in command]
        query += [(name, "true") for name, wanted in wants.items() if wanted]
        query += [("container", container)] if container else []
        socket = await self.open_socket(path, query, protocols=PROTOCOLS, what=f"exec in pod {namespace}/{pod}")
        process = ExecProcess(socket, f"pod {namespace}/{pod}")
        if isinstance(stdin, bytes):
            process.feed(stdin)
        return process

    async def open_socket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocols: Sequence[str], what: str
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to the API server; the caller closes it. `what` is its name in errors.

        Raises ApiError.
        """
        import aiohttp
        from multidict import CIMultiDict
        from yarl import URL

        from moorage_kube.remote.exec import PING_SECONDS

        self._tell("CONNECT", path)
        session = self._session or await self._open()
        headers: list[tuple[str, str]] = []
        if (authorization := await self._credentials.authorization()) is not None:
            headers.append(("Authorization", authorization))
        if self._user:
            headers.append(("Impersonate-User", self._user))
            headers += [("Impersonate-Group", group) for group in self._groups]
        url = URL(self.connection.server + path, encoded=True).with_query(query)
        try:
            return await session.ws_connect(
                url,
                protocols=protocols,
                headers=CIMultiDict(headers),
                heartbeat=PING_SECONDS,
                max_msg_size=0,
                server_hostname=self.connection.tls_server_name or None,
                proxy=self.connection.proxy_url or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403, 404, 400, 500):
                await self._why_not(path, query)
            raise api_error(error.status, None, f"{what}: {error.message}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._no_answer(error) from error

    async def _why_not(self, path: str, query: Sequence[tuple[str, str]]) -> None:
        """Repeat the request without a WebSocket, to read the server's error: the library hides it otherwise.

        Raises ApiError, unless the server only says that an upgrade is required.
        """
        from yarl import URL

        try:
            await self._read("GET", str(URL(path, encoded=True).with_query(query)))
        except BadRequest as error:
            if "pgrade request required" not in error.message:
                raise

    async def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        tls: ssl.SSLContext | bool = await self._credentials.tls() or True
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=tls, limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_socket, ttl_dns_cache=60
            )
            tracing = aiohttp.TraceConfig()
            # "sent": both are called right before; of a request with a body the head is written with it
            tracing.on_request_headers_sent.append(_ask_guard)
            tracing.on_request_chunk_sent.append(_ask_guard)
            self._session = aiohttp.ClientSession(
                connector=connector,
                trace_configs=[tracing],
                headers={"User-Agent": f"moorage/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
            self._borrowed = False
        return self._session

    async def _chunks(self, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        import aiohttp

        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._no_answer(error) from error

    async def _error(self, method: str, path: str, answer: aiohttp.ClientResponse) -> ApiError:
        text = b"".join([chunk async for chunk in self._chunks(answer)])
        try:
            body = parse_json(text)
        except DocumentError:
            body = None
        if not isinstance(body, dict) or body.get("kind") != "Status":
            body = None
        message = text[:200].decode(errors="replace").strip()
        fallback = f"{method} {path} at {self.connection.server}: HTTP {answer.status}" + (
            f": {message}" if message else ""
        )
        return api_error(answer.status, body, fallback)

    def _no_answer(self, error: Exception) -> ServerError:
        import aiohttp

        server = self.connection.server
        context = f" (context {self.connection.context!r})" if self.connection.context else ""
        hint = "check that the cluster is up and that the kubeconfig names the right address"
        if (urlsplit(server).hostname or "") in ("127.0.0.1", "::1", "localhost"):
            hint = "if this is the cluster of `moor up`, run `moor status`, then `moor up`"
        why = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = f"its certificate is not trusted: {error.certificate_error}"
            hint = (
                "the kubeconfig holds the certificate authority of another cluster, or of an older one: renew it"
            )
        elif isinstance(error, TimeoutError):
            why = "no answer in time"
        elif isinstance(error, aiohttp.ClientConnectorDNSError):
            why = f"the name {urlsplit(server).hostname} is not known"
        elif isinstance(error, aiohttp.ClientConnectorError):
            why = error.os_error.strerror or str(error.os_error)
        return ServerError(
            f"the Kubernetes API at {server}{context} gave no answer: {why}",
            status=0,
            reason="NoAnswer",
            hint=hint,
        )


def _required(resource: Resource, namespace: str | None) -> str | None:
    if resource.namespaced and not namespace:
        raise BadRequest(f"{resource} are namespaced: give a namespace")
    return namespace


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    params = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in params.items() if value}


def _decode(text: bytes) -> Obj:
    """Decode an answer; levels that are nested too deep become null.

    A real API server stores objects of 10,000 levels: none of them may make a list unreadable.
    """
    try:
        try:
            document: Obj = msgspec.json.decode(text)
        except RecursionError:
            document = msgspec.json.decode(without_depth(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ServerError(f"the API's answer is not JSON: {text[:100]!r}", reason="BadAnswer") from error
    return document


def _event(line: bytes) -> WatchEvent:
    document = _decode(line)
    kind, obj = document.get("type"), document.get("object") or {}
    if kind == "ERROR":
        raise api_error(int(obj.get("code") or 500), obj, "the watch ended with an error")
    return WatchEvent(str(kind), obj)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield whole lines of any length.

    A last line without a line end is dropped: the connection broke within it.
    """
    kept: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        kept.append(first)
        for piece in rest:
            line = b"".join(kept)
            kept = [piece]
            if line.strip():
                yield line


def _warnings(headers: Iterable[str]) -> Iterator[str]:
    """Yield the warning messages of the headers `299 - "…"`; https://www.rfc-editor.org/rfc/rfc7234#section-5.5"""
    for header in headers:
        for match in _WARNING.finditer(header):
            yield _ESCAPED.sub(r"\1", match["text"])


DAY_SECONDS = 86400  # the longest wait that is accepted from a server


def _retry_after(header: str | None, clock: Clock) -> float | None:
    """Return the seconds to wait, from both forms of the header (RFC 9110 §10.2.3).

    None if it is missing or invalid.
    """
    if not header:
        return None
    if is_digits(header.strip()):
        return float(integer_or(header.strip(), DAY_SECONDS, maximum=DAY_SECONDS))
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - clock.now()).total_seconds())


async def _ask_guard(_session: aiohttp.ClientSession, context: Any, _request: Any) -> None:
    guard: Guard | None = context.trace_request_ctx
    if guard is not None:
        guard()


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = info[:3]
    sock = socket.socket(family=family, type=kind, proto=protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_TIMES),
    ):
        if hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _aggregated(document: Obj) -> Resources:
    resources = []
    for group in document.get("items") or ():
        versions = group.get("versions") or ()
        if not versions:
            continue
        first = versions[0]  # the preferred one
        for resource in first.get("resources") or ():
            resources.append(
                Resource(
                    (group.get("metadata") or {}).get("name") or "",
                    first["version"],
                    resource["resource"],
                    (resource.get("responseKind") or {}).get("kind") or "",
                    resource.get("scope") == "Namespaced",
                )
            )
    return resources


def _listed(group: str, version: str, document: Obj) -> Resources:
    return [
        Resource(group, version, resource["name"], resource["kind"], bool(resource["namespaced"]))
        for resource in document.get("resources") or ()
        if "/" not in resource["name"]
    ]
