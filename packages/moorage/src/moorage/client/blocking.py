"""Requests to a server at a known address, without an event loop.

The import of asyncio and aiohttp takes longer than an answer of the server. A command that sends one request runs
here: its coroutines never wait. Other cases raise `NeedsLoop`, before the server has changed anything.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from moorage.client.addresses import Address, cached_address
from moorage.client.connection import QUICK, Connection, Site
from moorage.client.errors import LOOPBACK, no_answer
from moorage.client.logins import Known, issuer_of
from moorage.client.transport import CONNECT_SECONDS, Answer, Pairs
from moorage_kube.clock import SYSTEM, SystemClock
from moorage_kube.errors import ServerError

if TYPE_CHECKING:
    from moorage_kube.remote.config import Connection as KubeConnection

R = TypeVar("R")


class NeedsLoop(Exception):
    """The work must start again on an event loop."""


def run_at_once(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never waits for an event loop, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: R = done.value
        return result
    work.close()
    raise RuntimeError("the work waits for an event loop")


def known_server(connection: KubeConnection) -> Connection:
    """Return a connection to the cached server of a kubeconfig.

    Raises NeedsLoop without a usable cached address.
    """
    now = SYSTEM.now()
    address = cached_address(connection, now)
    authorization = "" if address is None else _authorization(connection, address, now)
    if address is None or not authorization or _has_proxy(address.url):
        raise NeedsLoop
    headers = {"Authorization": authorization}
    if connection.impersonate_user and not address.by_login:
        headers["Impersonate-User"] = connection.impersonate_user

    async def where() -> tuple[str, Mapping[str, str]]:
        return address.url, headers

    site = Site(address=where, ca=address.ca, forget=_begin_anew)
    return Connection((site, BlockingTransport(address.ca)), patience=QUICK, clock=_NoWaiting())


def _authorization(connection: KubeConnection, address: Address, now: datetime) -> str:
    """Return the Authorization header from the files of this machine; empty if they have no token."""
    token, issuer = "", issuer_of(connection)
    if address.by_login or issuer:
        login = Known.read().logins.get(address.url if address.by_login else issuer)
        if login is not None and address.by_login:
            token = login.token
        elif login is not None and login.has_fresh_token(now):
            token = login.kube_token
    elif connection.token_file is not None:
        token = connection.token_file.read_text().strip()
    elif connection.token:
        token = connection.token
    elif connection.client_cert_pem and not connection.username and connection.exec_plugin is None:
        from moorage.client.certificatelogin import cached_token

        token = cached_token(connection, address.url, now)
    return f"Bearer {token}" if token else ""


def _has_proxy(url: str) -> bool:
    """Whether a proxy may be in use. The client with an event loop knows the rules of proxies."""
    return urlsplit(url).hostname not in LOOPBACK and any(name.lower().endswith("_proxy") for name in os.environ)


def _begin_anew() -> bool:
    """Handle a refused token: a server that was installed again may have another address or other tokens."""
    raise NeedsLoop


class _NoWaiting(SystemClock):
    async def sleep(self, _seconds: float) -> None:
        raise NeedsLoop


class BlockingTransport:
    """HTTP by http.client, with a connection for each request.

    `ca`: PEM; "" means the authorities of the system.
    """

    def __init__(self, ca: str = "") -> None:
        self._ca = ca

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Pairs,
        body: bytes | None,
        headers: Mapping[str, str],
        silence: float | None,
    ) -> Answer:
        parts = urlsplit(url)
        query = f"?{urlencode(params)}" if params else ""
        http_ = self._connection(parts.scheme, parts.netloc)
        try:
            http_.connect()
        except OSError as error:
            raise NeedsLoop from error
        http_.sock.settimeout(silence)
        try:
            http_.request(method, f"{parts.path}{query}", body, dict(headers))
            return _BlockingAnswer(http_, http_.getresponse(), f"{method} {parts.path}")
        except (OSError, http.client.HTTPException) as error:
            http_.close()
            raise no_answer(f"{parts.scheme}://{parts.netloc}", error) from error

    async def close(self) -> None:
        pass

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, timeout=CONNECT_SECONDS)
        trust = ssl.create_default_context(cadata=self._ca or None)
        return http.client.HTTPSConnection(host, timeout=CONNECT_SECONDS, context=trust)


class _BlockingAnswer:
    def __init__(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, asked: str
    ) -> None:
        self._connection, self._answer, self._asked = connection, answer, asked
        self.status = answer.status
        self.headers = cast(Mapping[str, str], answer.headers)

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            while part := self._answer.read1(65536):
                yield part
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"the answer to {self._asked} was interrupted: {reason}", status=0) from error

    def close(self) -> None:
        self._answer.close()
        self._connection.close()
