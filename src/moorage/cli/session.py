"""Which cluster a command talks to, as whom, and the connection to it."""

from __future__ import annotations

import asyncio
import functools
import getpass
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from moorage.apimachinery.api import Api, PodApi
from moorage.apimachinery.resources import Obj, Resource
from moorage.cli import console
from moorage.client.datafolder import default_folder, running_kubeconfig
from moorage.clock import SYSTEM, Clock
from moorage.errors import ApiError, MoorageError, NotFound, NotReady, api_error
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.settings import KUBECONFIG

if TYPE_CHECKING:
    from moorage.kube.config import Connection

SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
SERVER_SECONDS = 10.0  # patience with Moorage's own server

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The options that say which cluster, which namespace and as whom."""

    context: str | None = None
    kubeconfig: Path | None = None
    namespace: str | None = None
    as_user: str | None = None
    data: Path | None = None


class Server(Protocol):
    """Moorage's own REST API."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The JSON answer. Raises ApiError; NotReady when this cluster has no server."""
        ...

    async def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a JSON body. Raises as `get` does."""
        ...

    async def address(self) -> tuple[str, dict[str, str]]:
        """Its URL and the headers that say who asks. Raises NotReady when this cluster has no server."""
        ...


@dataclass(slots=True, kw_only=True)
class Session:
    """One command's view of a cluster."""

    api: PodApi
    namespace: str = "default"
    server: Server
    as_user: str | None = None
    clock: Clock = SYSTEM

    async def user(self) -> str:
        """Who the API server takes us for; where it cannot say, this machine's user."""
        try:
            answer = await self.api.create(
                SELF_SUBJECT_REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            )
            name = str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")
        except ApiError:
            name = ""
        return name or self.as_user or _login()


Opener = Callable[[Target], AbstractAsyncContextManager[Session]]


def target_options(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that choose the cluster; it gets them as one `Target`, its first argument."""

    @click.option("-n", "--namespace", default=None, help="Namespace (default: the context's).")
    @click.option("--context", default=None, help="Context of the kubeconfig (default: the current one).")
    @click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help="Kubeconfig (default: $MOORAGE_KUBECONFIG, the running local cluster, or kubectl's).",
    )
    @click.option("--as", "as_user", default=None, metavar="USER", help="Act as this user, if you may.")
    @click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Data folder of the local cluster to talk to.",
    )
    @functools.wraps(command)
    def with_target(
        *args: Any,
        namespace: str | None,
        context: str | None,
        kubeconfig: Path | None,
        as_user: str | None,
        data: Path | None,
        **kwargs: Any,
    ) -> R:
        target = Target(context=context, kubeconfig=kubeconfig, namespace=namespace, as_user=as_user, data=data)
        return command(target, *args, **kwargs)

    return with_target


def in_session(target: Target, work: Callable[[Session], Awaitable[R]]) -> R:
    """Open the cluster, do the work, close it; the opener is the command line's, or a test's."""
    found = click.get_current_context(silent=True)
    opener: Opener = found.obj if found is not None and found.obj is not None else open_session

    logging.getLogger("moorage").addHandler(logging.NullHandler())  # what matters is said, not logged

    async def whole() -> R:
        async with opener(target) as session:
            return await work(session)

    return asyncio.run(whole())


def choose_kubeconfig(target: Target, env: Mapping[str, str]) -> Path | None:
    """The kubeconfig file to use; None means what kubectl would use.

    `--kubeconfig`, then `--data`, then $MOORAGE_KUBECONFIG; then, when neither a context nor $KUBECONFIG is
    set, the local cluster of the default data folder while it runs. Raises NotReady for a `--data` folder
    without a running cluster.
    """
    if target.kubeconfig is not None:
        return target.kubeconfig
    if target.data is not None:
        folder = target.data.absolute()
        kubeconfig = running_kubeconfig(folder)
        if kubeconfig is None:
            raise NotReady(f"no cluster is running in {folder}", hint=f"start it: moor up --data {target.data}")
        return kubeconfig
    if KUBECONFIG.read(env) or env.get("KUBECONFIG") or target.context is not None:
        return None
    return running_kubeconfig(default_folder())


@asynccontextmanager
async def open_session(target: Target) -> AsyncIterator[Session]:
    """Connect as the options say."""
    from moorage.kube.client import KubeClient
    from moorage.kube.config import load_connection

    connection = load_connection(choose_kubeconfig(target, os.environ), context=target.context)
    if target.as_user:
        connection = replace(connection, impersonate_user=target.as_user)
    heard: set[str] = set()

    def warned(text: str) -> None:
        if text not in heard:
            heard.add(text)
            console.say(f"warning: {text}")

    async with KubeClient(connection, warned=warned) as api:
        yield Session(
            api=api,
            namespace=target.namespace or connection.namespace or "default",
            server=HttpServer(api, connection),
            as_user=target.as_user,
        )


class HttpServer:
    """Asks the server that the cluster's ConfigMap names, with the kubeconfig's own bearer token."""

    def __init__(self, api: Api, connection: Connection) -> None:
        self._api = api
        self._connection = connection
        self._url: str | None = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, body: Any) -> Any:
        return await self._ask("POST", path, json=body)

    async def address(self) -> tuple[str, dict[str, str]]:
        if self._url is None:
            from moorage.kube.serverurl import server_url

            self._url = (await server_url(self._api)).rstrip("/")
        if not self._url:
            raise NotReady(
                "this cluster has no Moorage server, or you may not see its address",
                hint=f"it is named in the ConfigMap {INFO_CONFIGMAP} of namespace {SYSTEM_NAMESPACE}",
            )
        authorization = await self._authorization()
        headers = {"Authorization": authorization} if authorization else {}
        if self._connection.impersonate_user:
            headers["Impersonate-User"] = self._connection.impersonate_user
        return self._url, headers

    async def _authorization(self) -> str:
        ask = getattr(self._api, "authorization", None)  # a token may come from a file or a plugin
        if ask is None:
            return f"Bearer {self._connection.token}" if self._connection.token else ""
        header = str(await ask())
        return header if header.startswith("Bearer ") else ""

    async def _ask(self, method: str, path: str, **sent: Any) -> Any:
        import aiohttp

        from moorage.errors import ServerError

        url, headers = await self.address()
        timeout = aiohttp.ClientTimeout(total=SERVER_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.request(method, url + path, headers=headers, **sent) as answer,
            ):
                body = await answer.json(content_type=None) if answer.status != 204 else None
                if answer.status >= 400:
                    raise refusal(answer.status, body)
                return body
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ServerError(
                f"Moorage's server at {url} does not answer: {error or type(error).__name__}", status=0
            ) from error


async def get_named(session: Session, resource: Resource, kind: str, name: str) -> Obj:
    """The object of that name in the session's namespace. Raises NotFound, in the user's words for its kind."""
    try:
        return await session.api.get(resource, name, session.namespace)
    except NotFound as error:
        raise NotFound(
            f"there is no {kind} {name!r} in namespace {session.namespace}", hint=f"`moor {kind} list` shows them"
        ) from error


def refusal(status: int, body: Any) -> ApiError:
    """The error for an answer in our server's shape, `{code, message, hint?}`."""
    told = body if isinstance(body, dict) else {}
    error = api_error(status, {"message": str(told.get("message") or f"Moorage's server answered HTTP {status}")})
    error.hint = str(told["hint"]) if told.get("hint") else None
    return error


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


class Problems(MoorageError):
    """Several things wrong at once; each is said on its own line."""

    exit_code = 2

    def __init__(self, problems: list[tuple[str, str | None]]) -> None:
        super().__init__("; ".join(message for message, _ in problems))
        self.problems = problems
