"""`moor port-forward`: forward ports of this machine to a run or a workspace."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import cast

import click
from msgspec import Struct

from moorage.actions.runpods import PodPlace, running_pod_of_run, running_pod_of_workspace
from moorage.cli import console, terminal
from moorage.cli.localports import pod_on_port
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.wait import views_of
from moorage_kube.errors import BadRequest, MoorageError, NotFound, NotReady, PortTaken, UsageError
from moorage_kube.integers import integer_or
from moorage_kube.remote.ports import PodPort, SocketOpener, join_streams, open_port
from moorage_kube.resources import PODS

PORT_MAX = 65535
CONNECTIONS_MAX = 500  # at once; more wait to be accepted


class Forward(Struct, frozen=True):
    """A local port (0: any free port) and the port of the pod to which it forwards."""

    local: int
    remote: int


def parse_forward(text: str) -> Forward:
    """Parse "8888", "9000:8888", "0:8888" or ":8888". Raises UsageError."""
    local, colon, remote = text.rpartition(":")
    ports = Forward(
        local=integer_or((local or "0") if colon else remote, -1, maximum=PORT_MAX, signed=False),
        remote=integer_or(remote, 0, maximum=PORT_MAX, signed=False),
    )
    if ports.local < 0 or ports.remote <= 0:
        raise UsageError(
            f"invalid port {text!r}: use [LOCAL:]REMOTE, numbers from 1 to {PORT_MAX}",
            hint="8888 is the same port here; 9000:8888 another one; :8888 any free one",
        )
    return ports


@console.command(
    "port-forward",
    examples={
        "moor port-forward train-7f3a 6006": "TensorBoard of a run on http://127.0.0.1:6006",
        "moor port-forward train-7f3a 9000:6006": "the same on port 9000 of this machine",
        "moor port-forward train-7f3a :5678": "a debugger, on any free port",
        "moor port-forward workspace/notes 8888": "a port of a workspace",
    },
)
@click.argument("name", metavar="NAME|workspace/NAME", shell_complete=complete("runs"))
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@click.option("--attempt", type=click.IntRange(1), default=None, help="Only this attempt (default: the newest).")
@click.option("--pod", default=None, help="A pod of the run (default: the newest that runs).")
@target_options
def port_forward(
    target: Target, name: str, ports: tuple[str, ...], address: str, attempt: int | None, pod: str | None
) -> int:
    """Forward ports of this machine to a run or a workspace, until Ctrl-C.

    A run that restarts keeps its ports here: new connections lead to its newest pod.
    """
    forwards = [parse_forward(text) for text in ports]
    kind, slash, rest = name.rpartition("/")
    if slash and kind not in ("run", "workspace", "ws"):
        raise UsageError(f"invalid name {name!r}: use the name of a run, or workspace/NAME")

    async def work(session: Session) -> int:
        async def find() -> PodPlace:
            if kind in ("workspace", "ws"):
                return await running_pod_of_workspace(session.api, session.namespace, rest)
            return await running_pod_of_run(session.api, session.namespace, rest, attempt=attempt, pod=pod)

        async def ended() -> None:
            await (_until_ended(session, rest) if kind not in ("workspace", "ws") else asyncio.Event().wait())

        return await _forward(session, find, ended, forwards, address)

    return in_session(target, work)


async def _until_ended(session: Session, name: str) -> None:
    """Wait for the end of a run. Raises NotReady when it ends, NotFound when it is deleted."""
    async with contextlib.aclosing(views_of(session, name)) as views:
        async for run in views:
            if run is None:
                raise NotFound(f"the run {name} was deleted")
            if run.state.ended:
                raise NotReady(f"run {name} has ended: {run.state}", hint=f"read its logs: moor logs {name}")


async def _forward(
    session: Session,
    find: Callable[[], Awaitable[PodPlace]],
    ended: Callable[[], Awaitable[None]],
    forwards: Sequence[Forward],
    address: str,
) -> int:
    """Listen until a signal arrives or the run ends. Raises MoorageError."""
    opener = _Opener(cast(SocketOpener, session.api), session.namespace, find)
    await opener.place()  # fails before a port is opened if there is no such pod
    # a signal, or a closed stdout, ends the command
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(terminal.on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop.set))
        await stack.enter_async_context(terminal.ending_with_reader())
        connections = await stack.enter_async_context(_connections(opener))
        for forward in forwards:
            shown = f"[{address}]" if ":" in address else address
            try:
                server = await _listen(address, forward, connections)
            # on a local cluster the pod itself may have the port: then forwarding is not needed
            except PortTaken as error:
                if not await _is_its_own(session, opener.pod, forward, error):
                    raise
                console.show(f"http://{shown}:{forward.local} is port {forward.remote} of pod {opener.pod} itself")
                console.note("the pod is a process of this machine and has its ports: nothing is forwarded")
                continue
            stack.callback(server.close)
            local = server.sockets[0].getsockname()[1]
            console.show(f"forwarding http://{shown}:{local} to port {forward.remote} of pod {opener.pod}")
        sys.stdout.flush()
        console.say("Ctrl-C stops it")
        # end with the signal, or with the run
        ends = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(ended())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if ends[1].done():
                ends[1].result()
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
    return 0


async def _is_its_own(session: Session, pod: str, forward: Forward, error: PortTaken) -> bool:
    """Whether the pod itself listens on the port in use, and this is the wanted port.

    Raises PortTaken if another pod of this machine uses the port, or the pod uses it for another port.
    """
    holder = pod_on_port(forward.local)
    if not holder:
        return False
    uid = str((await session.api.get(PODS, pod, session.namespace))["metadata"].get("uid"))
    if holder == uid and forward.local == forward.remote:
        return True
    who = f"pod {pod} itself" if holder == uid else "another pod that runs on this machine"
    raise PortTaken(f"{error.message} by {who}", hint=error.hint) from error


class _Opener:
    """Opens connections to the newest pod: after a restart, a run has another pod."""

    def __init__(self, api: SocketOpener, namespace: str, find: Callable[[], Awaitable[PodPlace]]) -> None:
        self._api, self._namespace, self._find = api, namespace, find
        self.pod = ""

    async def place(self) -> None:
        """Find the pod. Raises MoorageError."""
        pod = (await self._find()).pod
        if self.pod and pod != self.pod:
            console.say(f"new connections lead to pod {pod}")
        self.pod = pod

    async def open(self, port: int) -> PodPort:
        """Connect to a port of the newest pod. Raises MoorageError: NotReady if the run has ended or waits."""
        try:
            return await open_port(self._api, self.pod, self._namespace, port)
        except (NotFound, BadRequest):  # the pod was deleted, or has ended
            await self.place()
            return await open_port(self._api, self.pod, self._namespace, port)


Connected = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def _connections(opener: _Opener) -> AsyncGenerator[Connected]:
    """Yield the handler of a connection; open connections end with the block."""
    tasks: set[asyncio.Task[None]] = set()
    room = asyncio.Semaphore(CONNECTIONS_MAX)

    async def carry(remote: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            async with room, await opener.open(remote) as port:
                await join_streams(port, reader, writer)
        except MoorageError as error:
            console.say(f"a connection failed: {error.message}")
        except (ConnectionError, TimeoutError):
            pass  # the local client has disconnected
        except asyncio.CancelledError:
            pass  # at the end of the block; asyncio would log a traceback
        finally:
            tasks.discard(task)
            writer.close()

    try:
        yield carry
    finally:
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(address: str, forward: Forward, connected: Connected) -> asyncio.Server:
    """Listen on a local address. Raises PortTaken, and UsageError if this machine does not have the address."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connected(forward.remote, reader, writer)

    try:
        return await asyncio.start_server(accept, address, forward.local)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {forward.local} of {address} is taken",
                hint=f"use another one, such as {forward.local % PORT_MAX + 1}:{forward.remote}, "
                f"or :{forward.remote} for any free one",
            ) from error
        if error.errno == errno.EACCES:
            raise PortTaken(
                f"port {forward.local} needs the rights of root",
                hint=f"use one above 1023, such as {8000 + forward.local}:{forward.remote}",
            ) from error
        raise UsageError(
            f"cannot listen on {address!r}: {error.strerror or error}",
            hint="use an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them",
        ) from error
