"""Routes from a kubeconfig to the cluster's Moorage server, from the machine of the command.

In this order: the server that issued the kubeconfig's token, or that has a login of this user; the addresses
of the ConfigMap, `publicUrl` first; a port-forward through the API server. Addresses that do not answer are
skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from moorage.client.errors import LOOPBACK
from moorage.client.logins import Saved, issuer_of
from moorage.client.transport import HttpTransport
from moorage.model.info import Info, host_of, is_internal
from moorage.model.names import FORWARD_ROLE, INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import account_user
from moorage_kube.errors import ApiError, BadRequest, Forbidden, MoorageError, NotFound, NotReady
from moorage_kube.remote.ports import PodPort, SocketOpener, join_streams, open_port
from moorage_kube.resources import PODS

if TYPE_CHECKING:
    from moorage_kube.api import Api
    from moorage_kube.remote.config import Connection as KubeConnection

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0  # patience with an address that may be out of reach from here
SERVER_LABEL = "app.kubernetes.io/name=moorage-server"
PORT_NAME = "main"  # of the server's container
CONNECTIONS_MAX = 64  # at a time through one port-forward


class By(StrEnum):
    """How a server is reached, as text for `moor status`."""

    LOGIN = "the address of your login"
    PUBLIC = "publicUrl of the ConfigMap"
    INSIDE = "serverUrl of the ConfigMap"
    FORWARD = "a port-forward through the Kubernetes API"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An address of the server, with its certificate authority and the token to send."""

    by: By
    url: str
    ca: str = field(default="", repr=False)  # PEM; empty: the system's authorities
    token: str = field(default="", repr=False)  # of a session; empty: the kubeconfig's own credentials
    pod: str = ""  # behind a port-forward

    @property
    def text(self) -> str:
        return f"{self.by}, to pod {self.pod}" if self.pod else str(self.by)


def routes(
    info: Info, connection: KubeConnection, logins: Mapping[str, Saved], *, account: str = ""
) -> list[Route]:
    """Return the addresses to try, the best first.

    A kubeconfig's token is sent only to the server that issued it, and to servers that the cluster itself
    names. The claim of a server that it belongs to a cluster is not enough. `account`: the user that the API
    server sees; empty: not known.
    """
    candidates: list[Route] = []
    if issuer := issuer_of(connection):
        candidates.append(Route(by=By.LOGIN, url=issuer, ca=_ca(issuer, logins)))
    for saved in logins_of(connection, logins):
        if is_named(saved, info):
            candidates.append(Route(by=By.LOGIN, url=saved.url, ca=saved.ca))
        elif account == account_user(saved.name) and not connection.impersonate_user:
            candidates.append(Route(by=By.LOGIN, url=saved.url, ca=saved.ca, token=saved.token))
    public = [Route(by=By.PUBLIC, url=url, ca=_ca(url, logins)) for url in info.public_urls]
    inside = [Route(by=By.INSIDE, url=info.server_url)] if info.server_url else []
    if connection.in_pod:
        candidates += [*inside, *public]
    else:
        candidates += [*public, *(route for route in inside if not is_internal(route.url))]
    return list({route.url: route for route in reversed(candidates)}.values())[::-1]


def logins_of(connection: KubeConnection, logins: Mapping[str, Saved]) -> list[Saved]:
    """Return the logins with a server that reports the cluster of the kubeconfig as its own."""
    wanted = _place(connection.server)
    return [
        saved for saved in logins.values() if saved.token and _place(str(saved.cluster.get("server"))) == wanted
    ]


def is_named(saved: Saved, info: Info) -> bool:
    """Whether the cluster lists the server of a login among its addresses."""
    return saved.url in (info.server_url, *info.public_urls)


def needs_account(info: Info, connection: KubeConnection, logins: Mapping[str, Saved]) -> bool:
    """Whether `routes` needs the user that the API server sees."""
    return not issuer_of(connection) and any(not is_named(s, info) for s in logins_of(connection, logins))


def _place(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return url, "", None, ""
    return parts.scheme.lower(), parts.hostname or "", port, parts.path.rstrip("/")


def _ca(url: str, logins: Mapping[str, Saved]) -> str:
    saved = logins.get(url)
    return saved.ca if saved is not None else ""


def needs_probe(route: Route, connection: KubeConnection) -> bool:
    """Whether an address may be unreachable.

    False for localhost, and inside a pod for the address of the Service.
    """
    if route.token:
        return True
    return host_of(route.url) not in LOOPBACK and not (route.by is By.INSIDE and connection.in_pod)


async def choose_route(
    api: Api, connection: KubeConnection, candidates: Sequence[Route], stack: AsyncExitStack
) -> Route:
    """Return the first address that works. A port-forward is closed with the stack.

    Raises NotReady with the addresses tried and their faults.
    """
    tried: list[str] = []
    for route in candidates:
        if not needs_probe(route, connection):
            return route
        fault = await _fault_of(route)
        if not fault:
            return route
        log.debug("an address of the server does not answer", extra={"url": route.url, "fault": fault})
        tried.append(f"{route.url} ({route.by}): {fault}")
    if not hasattr(api, "open_socket"):
        tried.append("this connection to the Kubernetes API has no port-forward")
    else:
        try:
            return await stack.enter_async_context(forwarded(api))
        except MoorageError as error:
            tried.append(_fault_of_forward(error))
    raise NotReady(
        "the Moorage server of this cluster is out of reach from here: " + "; ".join(tried),
        hint=f"ask an administrator to set publicUrl in the ConfigMap {INFO_CONFIGMAP} of namespace "
        f"{SYSTEM_NAMESPACE} to an address that you reach, or to let you port-forward: "
        f"kubectl -n {SYSTEM_NAMESPACE} create rolebinding {FORWARD_ROLE}-NAME --role {FORWARD_ROLE} --user USER",
    )


async def _fault_of(route: Route) -> str:
    """Return the reason why an address does not work; "" if a server answers there."""
    transport = HttpTransport(route.ca)
    path, headers = "/healthz", {}
    if route.token:  # a session that has ended uses the next address
        path, headers = "/api/v1/login", {"Authorization": f"Bearer {route.token}"}
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            answer = await transport.request(
                "GET", route.url + path, params=(), body=None, headers=headers, silence=PROBE_SECONDS
            )
            answer.close()
        return "" if answer.status == 200 else f"it answers HTTP {answer.status}"
    except ApiError as error:
        return error.message.rpartition("does not answer: ")[2]
    except TimeoutError:
        return f"no answer within {PROBE_SECONDS:g} s"
    finally:
        await transport.close()


def _fault_of_forward(error: MoorageError) -> str:
    if isinstance(error, Forbidden):
        from moorage.present.forbidden import refusal_of

        refusal = refusal_of(error.message)
        return f"no right to port-forward to it: {refusal.sentence('') if refusal else error.message}"
    return f"no port-forward: {error.message}"


# --- the port-forward


@asynccontextmanager
async def forwarded(api: Api) -> AsyncIterator[Route]:
    """Forward a free port of this machine to the server, until the block ends. Raises MoorageError.

    Other users of this machine can connect to the port too; the server asks them to log in, as everywhere.
    """
    forward = _Forward(api)
    await forward.begin()
    server = await asyncio.start_server(forward.carry, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Route(by=By.FORWARD, url=f"http://127.0.0.1:{port}", pod=f"{SYSTEM_NAMESPACE}/{forward.pod}")
    finally:
        server.close()
        await forward.close()


class _Forward:
    """Connections to a ready pod of the server; when that pod is deleted, to another one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.pod = ""
        self._port = 0
        self._first: PodPort | None = None
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        """Open the first connection, and reserve it for the first client. Raises MoorageError."""
        await self._choose()
        self._first = await self._open()

    async def close(self) -> None:
        first, self._first = self._first, None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if first is not None:
            await first.__aexit__()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with self._room, self._connection() as port:
                await join_streams(port, reader, writer)
        except asyncio.CancelledError:
            pass  # only by `close`; asyncio would log a traceback
        except (MoorageError, ConnectionError, TimeoutError) as error:
            log.debug("a forwarded connection failed", extra={"error": str(error)})
        finally:
            self._tasks.discard(task)
            writer.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[PodPort]:
        first, self._first = self._first, None
        if first is None:
            try:
                first = await self._open()
            except (NotFound, BadRequest):  # the pod was deleted, or has ended
                await self._choose()
                first = await self._open()
        async with first as port:
            yield port

    async def _open(self) -> PodPort:
        return await open_port(cast(SocketOpener, self._api), self.pod, SYSTEM_NAMESPACE, self._port)

    async def _choose(self) -> None:
        pods = (await self._api.list(PODS, SYSTEM_NAMESPACE, label_selector=SERVER_LABEL)).items
        self.pod, self._port = choose_pod(pods)


def choose_pod(pods: Iterable[Mapping[str, Any]]) -> tuple[str, int]:
    """Return the first ready pod of the server by name, and its port. Raises NotReady if none is ready."""
    ready = {}
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status") or {}
        conditions = {entry.get("type"): entry.get("status") for entry in status.get("conditions") or ()}
        if conditions.get("Ready") == "True" and not meta.get("deletionTimestamp"):
            ports = [port for each in pod["spec"]["containers"] for port in each.get("ports") or ()]
            named = [port for port in ports if port.get("name") == PORT_NAME] or ports
            if named:
                ready[str(meta["name"])] = int(named[0]["containerPort"])
    if not ready:
        raise NotReady(f"the server has no ready pod in namespace {SYSTEM_NAMESPACE}")
    return min(ready.items())
