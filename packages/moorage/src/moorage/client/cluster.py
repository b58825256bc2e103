"""The cluster and the user of a command or program, and its connections to the cluster and the Moorage server."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from moorage.client.addresses import Address, forget_address, keep_address
from moorage.client.connection import LOGIN, NAMESPACE, QUICK, Connection, Finder, Site
from moorage.client.logins import Known, Saved
from moorage.client.target import Target, chosen_connection
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import is_account
from moorage_kube.api import Api, PodApi
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import ApiError, Forbidden, MoorageError, NotFound, NotReady
from moorage_kube.resources import CONFIGMAPS, Resource

if TYPE_CHECKING:
    from moorage.client.discovery import Route
    from moorage_kube.remote.config import Connection as KubeConnection

log = logging.getLogger(__name__)
R = TypeVar("R")

SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)


class Cluster(Struct, frozen=True, kw_only=True):
    """A connected cluster: its Kubernetes API and its Moorage server."""

    api: PodApi
    namespace: str
    server: Connection


class Asked(Protocol):
    """A Moorage server that names the caller."""

    async def ask(self, kind: type[R], method: str, path: str) -> R: ...


async def user_of(api: Api, as_user: str | None = None, *, server: Asked | None = None) -> str:
    """Return the user that the API server sees; where it does not report one, `as_user` or this machine's user.

    The ServiceAccount of a person becomes the name of the person, as in admission. The name comes from a
    login on this machine, or from the server.
    """
    username = await _username(api)
    if is_account(username):
        return await _person_behind(username, server)
    return username or as_user or _login()


async def _username(api: Api) -> str:
    """Return the user that the API server sees; empty if it does not report one."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await api.create(SELF_SUBJECT_REVIEWS, review)
    except ApiError:
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")


async def _person_behind(username: str, server: Asked | None) -> str:
    with contextlib.suppress(NotReady):
        if person := Known.read().person_of(username):
            return person
    if server is not None:
        from moorage.api.logins import Person

        with contextlib.suppress(MoorageError):
            answer = await server.ask(Person, "GET", "/api/v1/login")
            if answer.account == username:
                return answer.name
    return username


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


FIELD_MANAGER = "moor"  # field manager of the command line's writes
OF_TEMPLATES = "would violate PodSecurity"  # how Kubernetes' warning of a pod template begins


def _log_warning(text: str) -> None:
    log.warning("warning of the API server", extra={"warning": text})


@asynccontextmanager
async def open_cluster(target: Target, *, warned: Callable[[str], None] = _log_warning) -> AsyncIterator[Cluster]:
    """Connect to the cluster that the options choose. `warned` gets each warning of the API server once.

    Warnings of Pod Security about templates are left out: admission completes the pods, or refuses them.
    """
    from moorage_kube.remote.client import KubeClient

    connection = chosen_connection(target)
    known: set[str] = set()

    def warn(text: str) -> None:
        if text not in known and not text.startswith(OF_TEMPLATES):
            known.add(text)
            warned(text)

    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(KubeClient(connection, warned=warn, field_manager=FIELD_MANAGER))
        server = server_of(api, connection)
        stack.push_async_callback(server.close)
        yield Cluster(api=api, namespace=target.namespace or connection.namespace or NAMESPACE, server=server)


def server_of(api: Api, connection: KubeConnection) -> Connection:
    """Return the Moorage server of a cluster, for requests as the user of the kubeconfig."""
    return Connection(find_in_cluster(api, connection), patience=QUICK)


def find_in_cluster(api: Api, connection: KubeConnection) -> Finder:
    """Return a finder for the server of a cluster, by the routes of `client.discovery`.

    It raises NotReady without one.
    """
    from moorage.client.certificatelogin import Prover

    # for kubeconfigs with a client certificate and no token
    prover = Prover(api, connection)
    failure: NotReady | None = None  # an unreachable server is searched for only once

    async def find(stack: AsyncExitStack) -> Site:
        nonlocal failure
        if failure is not None:
            raise failure
        # find the address, and store it unless it is a port-forward, which ends with this command
        try:
            route = await _find_route(api, connection, stack)
        except NotReady as error:
            failure = error
            forget_address(connection)
            raise
        if route.pod:
            forget_address(connection)
        else:
            now = SYSTEM.now()
            keep_address(connection, Address(url=route.url, ca=route.ca, by_login=bool(route.token), found_at=now))

        # credentials per request: tokens expire
        async def address() -> tuple[str, Mapping[str, str]]:
            if route.token:
                return route.url, {"Authorization": f"Bearer {route.token}"}
            authorization = await _authorization(api, connection)
            if not authorization and prover.is_of_use:
                authorization = f"Bearer {await prover.token(route.url, route.ca)}"
            headers = {"Authorization": authorization} if authorization else {}
            if connection.impersonate_user:
                headers["Impersonate-User"] = connection.impersonate_user
            return route.url, headers

        def forget() -> bool:
            return not route.token and prover.forget(route.url)

        source = LOGIN if route.token or connection.exec_plugin else f"the kubeconfig {connection.source}"
        return Site(address=address, ca=route.ca, route=route, forget=forget, source=source)

    return find


async def _find_route(api: Api, connection: KubeConnection, stack: AsyncExitStack) -> Route:
    from moorage.client.discovery import choose_route, needs_account, routes
    from moorage.cluster.serverurl import platform_info

    logins: Mapping[str, Saved] = {}
    with contextlib.suppress(NotReady):
        logins = Known.read().logins
    info = await platform_info(api)
    account = await _username(api) if needs_account(info, connection, logins) else ""
    candidates = routes(info, connection, logins, account=account)
    if not candidates and not info.server_url:
        with contextlib.suppress(Forbidden, NotFound):  # an API without an answer is the reason
            await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
        raise NotReady(
            "this cluster has no Moorage server, or you may not see its address",
            hint=f"the ConfigMap {INFO_CONFIGMAP} of namespace {SYSTEM_NAMESPACE} names it",
        )
    return await choose_route(api, connection, candidates, stack)


async def _authorization(api: Api, connection: KubeConnection) -> str:
    ask = getattr(api, "authorization", None)  # a token may come from a file or a plugin
    if ask is None:
        return f"Bearer {connection.token}" if connection.token else ""
    header = str(await ask())
    return header if header.startswith("Bearer ") else ""
