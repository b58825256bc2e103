"""The cluster and user of a command, and the connection to the cluster."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import click
from msgspec import Struct

from moorage.cli import console
from moorage.cli.hints import remember
from moorage.cli.names import complete
from moorage.client.target import Target as Target
from moorage.model.names import RUN_LABEL
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import BadRequest, Forbidden, MoorageError, NotReady, ServerError, UsageError
from moorage_kube.errors import Problems as Problems

if TYPE_CHECKING:
    from moorage.client.maps import MapClient
    from moorage_kube.api import PodApi

R = TypeVar("R")
NOT_IN_PATHS = frozenset("/\\")


class Server(Protocol):
    """A client of Moorage's REST API."""

    async def ask(
        self,
        kind: type[R],
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        patience: float = 0.0,
    ) -> R:
        """Send a request; return the answer as a Struct of `moorage.api`.

        Raises ApiError, NotReady without a server.

        `patience`: the seconds for which a GET is repeated while the server does not answer.
        """
        ...

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        silence: float | None = None,
        data: bytes | None = None,
        content_type: str = "application/json",
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream the body of an answer. Raises the same errors as `ask`."""
        ...

    async def address(self) -> tuple[str, dict[str, str]]:
        """Return its URL and the headers with credentials. Raises NotReady when this cluster has no server."""
        ...


class Session(Struct, kw_only=True):
    """A command's connection to a cluster."""

    api: PodApi
    namespace: str = "default"
    server: Server
    as_user: str | None = None
    clock: Clock = SYSTEM

    async def user(self) -> str:
        """Return the user that the API server sees, as a person.

        Where it does not report one, this machine's user.
        """
        from moorage.client.cluster import user_of

        return await user_of(self.api, self.as_user, server=self.server)

    async def maps(self) -> MapClient:
        """A client for the server's maps, with the session's user.

        Raises NotReady if this cluster has no server.
        """
        from moorage.client.connection import Connection
        from moorage.client.maps import map_client

        await self.server.address()
        ca = (await self.server.site()).ca if isinstance(self.server, Connection) else ""
        return map_client(self.server.address, ca=ca, clock=self.clock)


async def ask_server(
    session: Session, kind: type[R], path: str, params: Mapping[str, object] | None = None, *, kubectl: str
) -> R:
    """Ask the server, which may still be starting. If it does not answer, the error names the kubectl command."""
    from moorage.client.connection import REPLICA_SECONDS
    from moorage.client.errors import CHECK_ADDRESS

    try:
        return await session.server.ask(kind, "GET", path, params=params, patience=REPLICA_SECONDS)
    except BadRequest as error:
        raise UsageError(error.message, hint=error.hint, code=error.code, field=error.field) from error
    except NotReady as error:
        raise NotReady(error.message, hint=f"without Moorage's server: {kubectl}") from error
    except ServerError as error:
        if error.status == 0 and error.hint in (None, CHECK_ADDRESS):
            error.hint = f"without Moorage's server: {kubectl}"
        raise


async def ask_about_run(
    session: Session, kind: type[R], path: str, name: str, params: Mapping[str, object] | None = None
) -> R:
    """Ask the server about a run. `path` contains {namespace} and {name}. Raises NotFound, Forbidden."""
    from urllib.parse import quote

    namespace = session.namespace
    if NOT_IN_PATHS & set(name) or name in ("", ".", ".."):
        from moorage.actions.runs import missing_run

        raise missing_run(namespace, name, everywhere=False)
    path = path.format(namespace=quote(namespace), name=quote(name))
    kubectl = f"kubectl describe jobs,pods -n {namespace} -l {RUN_LABEL}={name}"
    return await ask_server(session, kind, path, params, kubectl=kubectl)


Opener = Callable[[Target], AbstractAsyncContextManager[Session]]


def target_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the options that choose the cluster; its first argument is the `Target`."""

    # options of each command, not of `moor` itself, so that they can follow the command
    @click.option(
        "-n",
        "--namespace",
        default=None,
        help="Namespace (default: the context's).",
        shell_complete=complete("namespaces"),
    )
    @click.option(
        "--context",
        default=None,
        help="Context of the kubeconfig (default: the current one).",
        shell_complete=complete("contexts"),
    )
    @click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help="Kubeconfig (default: $MOORAGE_KUBECONFIG, the running local cluster, or kubectl's).",
    )
    @click.option("--as", "as_user", default=None, metavar="USER", help="Act as this user, if you are allowed to.")
    @click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Data folder of the local cluster to use.",
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
        # messages later repeat these options in the commands that they suggest
        remember(
            {"-n": namespace, "--context": context, "--kubeconfig": kubeconfig, "--as": as_user, "--data": data}
        )
        target = Target(context=context, kubeconfig=kubeconfig, namespace=namespace, as_user=as_user, data=data)
        return command(target, *args, **kwargs)

    return with_target


def in_session(target: Target, work: Callable[[Session], Awaitable[R]], *, asks_once: bool = False) -> R:
    """Open the cluster, do the work, close it; the opener is the command line's, or a test's.

    `asks_once`: the work sends requests only to the server, one after the other, and changes nothing before
    its last request. If the server's address is cached, it then needs no event loop.
    """
    current_context = click.get_current_context(silent=True)
    opener: Opener = (
        current_context.obj if current_context is not None and current_context.obj is not None else open_session
    )

    command = current_context.command_path.removeprefix("moor ") if current_context is not None else ""

    async def whole(opened: AbstractAsyncContextManager[Session]) -> R:
        async with opened as session:
            try:
                return await work(session)
            except Forbidden as error:
                raise await plain_refusal(session, error, command) from error
            except Problems as error:
                raise await _plain_problems(session, error, command) from error

    if asks_once and opener is open_session:
        from moorage.client.blocking import NeedsLoop, run_at_once

        with contextlib.suppress(NeedsLoop):
            return run_at_once(whole(_session_without_loop(target)))
    import asyncio
    import logging

    logging.getLogger("moorage").addHandler(logging.NullHandler())  # important messages are printed instead
    return asyncio.run(whole(opener(target)))


async def _plain_problems(session: Session, error: Problems, command: str) -> Problems:
    """Rewrite the RBAC errors among several problems as sentences."""
    problems: list[tuple[str, str | None]] = []
    for message, hint in error.problems:
        plain = await plain_refusal(session, Forbidden(message, hint=hint), command)
        problems.append((plain.message, plain.hint))
    answer = Problems(problems, code=error.code, field=error.field, fields=error.fields)
    answer.exit_code = error.exit_code  # type: ignore[misc]
    return answer


async def plain_refusal(session: Session, error: Forbidden, command: str = "") -> Forbidden:
    """Return a refusal by RBAC as a sentence, with how to get the right; return other refusals unchanged.

    `command`: the words that were typed after `moor`.
    """
    from moorage.api.logins import Person
    from moorage.model.tenant import Membership
    from moorage.present.forbidden import refusal_of, way_out

    refusal = refusal_of(error.message)
    if refusal is None:
        return error
    name, teams = "", []
    with contextlib.suppress(MoorageError):
        person = await session.server.ask(Person, "GET", "/api/v1/login")
        name = person.name
        teams = [
            Membership(tenant=team.name, namespace=team.namespace, role=team.role, admins=team.admins)
            for team in person.tenants
        ]
    return Forbidden(
        refusal.sentence(name, command=command),
        hint=way_out(refusal, name, teams, command=command),
        code=error.code,
        field=error.field,
    )


@asynccontextmanager
async def open_session(target: Target) -> AsyncIterator[Session]:
    """Connect to the cluster that the options choose."""
    from moorage.client.cluster import open_cluster

    def warned(text: str) -> None:
        console.say(f"warning: {text}")

    async with open_cluster(target, warned=warned) as cluster:
        yield Session(api=cluster.api, namespace=cluster.namespace, server=cluster.server, as_user=target.as_user)


@asynccontextmanager
async def _session_without_loop(target: Target) -> AsyncIterator[Session]:
    """Connect to the server at its last known address. Raises NeedsLoop if it is unknown."""
    from moorage.client.blocking import known_server
    from moorage.client.target import chosen_connection

    connection = chosen_connection(target)
    yield Session(
        api=cast("PodApi", _NoApi()),
        namespace=target.namespace or connection.namespace,
        server=known_server(connection),
        as_user=target.as_user,
    )


class _NoApi:
    """The Kubernetes API of a session without an event loop; it cannot be read."""

    def __getattr__(self, name: str) -> Any:
        from moorage.client.blocking import NeedsLoop

        raise NeedsLoop
