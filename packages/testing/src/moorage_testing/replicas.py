"""Two servers on one PostgreSQL with a local cluster, behind a load balancer, to be ended and started again.

The control plane, the operator, the webhook and the extender run as in `moor up`. The servers are two processes of
`moor server`; the address that the cluster knows is the balancer's. It is as plain as kube-proxy: it hands new
connections in turns to the replicas that were ready at the last check, and does not read requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

from moorage.cli.datafolder import DataFolder, listening
from moorage_kube.errors import PortTaken
from moorage_kube.testing.ports import free_ports
from moorage_testing.cluster import Cluster, local_cluster
from moorage_testing.postgres import Postgres

LOOK_SECONDS = 0.5  # between two looks at who is ready; endpoints take a second or two to follow
DRAIN_SECONDS = 3.0
READY_SECONDS = 300.0  # bounds a hang


class Replica:
    """One process of `moor server`."""

    def __init__(self, folder: Path, number: int, kubeconfig: Path, database: str) -> None:
        self.name = f"server-{number}"
        self.log = folder / f"{self.name}.log"
        (self.port,) = free_ports(1)
        self._folder = folder
        self._kubeconfig, self._database = kubeconfig, database
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data = self._folder / self.name
        data.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "moorage.cli.main", "server", "--data", str(data), "--port", str(self.port)]
        argv += ["--host", "127.0.0.1", "--kubeconfig", str(self._kubeconfig), "--rate-limit", "0"]
        env = os.environ | {
            "MOORAGE_QUEUE_URL": self._database,
            "MOORAGE_PAGE_TOKEN": "a-token-of-the-page-of-tests",
            "MOORAGE_DRAIN_SECONDS": str(DRAIN_SECONDS),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        assert self._process is not None
        await asyncio.to_thread(self._process.wait, READY_SECONDS)

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Balancer:
    """Forwards connections. `refused`: those without a ready replica, or with one that had ended already."""

    def __init__(self, sock: socket.socket, replicas: list[Replica]) -> None:
        self._sock, self._replicas = sock, replicas
        self._ready: list[Replica] = []
        self._turn = itertools.count()
        self._open: set[asyncio.Task[None]] = set()
        self.refused = 0
        self.connections = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._accept, sock=self._sock)
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            server.close()
            tasks = [looking, *self._open]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until_ready(self, count: int) -> None:
        """Wait until this number of replicas receive connections."""
        deadline = time.monotonic() + READY_SECONDS
        while len(self._ready) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(self._ready)} of {count} servers are ready")
            await asyncio.sleep(LOOK_SECONDS / 5)

    async def _look(self) -> None:
        while True:
            states = await asyncio.gather(*(asyncio.to_thread(replica.is_ready) for replica in self._replicas))
            self._ready = [replica for replica, state in zip(self._replicas, states, strict=True) if state]
            await asyncio.sleep(LOOK_SECONDS)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # the streams of asyncio refer to each other weakly: without a reference a connection would be collected
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if not self._ready:
                raise ConnectionRefusedError("cannot find a ready replica")
            replica = self._ready[next(self._turn) % len(self._ready)]
            there, back = await asyncio.open_connection("127.0.0.1", replica.port)
        except OSError:
            self.refused += 1
            _reset(writer)
            return
        asking = asyncio.create_task(_pump(reader, back))
        try:
            await _pump(there, writer)  # a client that has sent all still waits for the answer
        finally:
            asking.cancel()
            for end in (writer, back):
                end.transport.abort() if end.transport.is_closing() else end.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes, the end of the stream, and a broken connection from one side to the other."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


class Site:
    """The cluster with its servers. `kubeconfig` is for an administrator; `url` is that of the load balancer."""

    def __init__(self, cluster: Cluster, replicas: list[Replica], sock: socket.socket) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.balancer = Balancer(sock, replicas)
        self.kills = 0
        self.restarts: Counter[str] = Counter()  # of the database, by how it was stopped
        self.longest_away = 0.0  # seconds of one such restart

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        for replica in self.replicas:
            replica.start()
        async with self.balancer.running():
            await self.balancer.until_ready(len(self.replicas))
            yield

    async def kill_in_turns(self, *, every: float, times: float = math.inf, seconds: float = math.inf) -> None:
        """End one replica after the other, by SIGTERM and SIGKILL in turns; return when all are ready again.

        A replica is ended only while all are ready, and at least `every` seconds after the previous one.
        There are at most `times` ends, and none after `seconds`.
        """
        end = time.monotonic() + seconds
        while self.kills < times and (began := time.monotonic()) < end:
            replica = self.replicas[self.kills // 2 % len(self.replicas)]
            replica.send(signal.SIGTERM if self.kills % 2 == 0 else signal.SIGKILL)
            self.kills += 1
            await replica.ended()
            replica.start()
            await asyncio.sleep(2 * LOOK_SECONDS)
            await self.balancer.until_ready(len(self.replicas))
            await asyncio.sleep(max(0.0, began + every - time.monotonic()))

    async def restart_database(
        self, postgres: Postgres, ways: Iterable[str], *, pause: Callable[[], float]
    ) -> None:
        """Restart PostgreSQL in each of these ways, each after a pause in seconds. Servers may end at any time."""
        for how in ways:
            await asyncio.sleep(pause())
            began = time.monotonic()
            await asyncio.to_thread(postgres.restart, how)
            self.restarts[how] += 1
            self.longest_away = max(self.longest_away, time.monotonic() - began)


@contextlib.contextmanager
def two_replicas(folder: Path, database: str, *, nodes: int = 1) -> Iterator[Site]:
    """Start everything except the servers, in an empty folder. `Site.running` starts the servers."""
    home = folder / "cluster"
    with contextlib.ExitStack() as stack:
        data, sockets = prepare(stack, home, "--nodes", str(nodes), "--gpus", "8", "--gpu-type", "a100")
        fds = {name: sock.fileno() for name, sock in sockets.items()}
        start_part(stack, home, "moorage_local", {"api": fds["api"]})
        own = {name: fds[name] for name in ("extender", "webhook", "server")}
        start_part(stack, home, "moorage.cli.services", own, "--parts", "operator,webhook,extender")
        cluster = Cluster(
            kind="local",
            offers=frozenset({"api", "scheduler", "controllers", "kubelet"}),
            kubeconfig=data.kubeconfig,
            home=home,
        )
        replicas = [Replica(folder, number, data.kubeconfig, database) for number in (1, 2)]
        sockets["server"].setblocking(False)
        site = Site(cluster, replicas, sockets["server"])
        for replica in replicas:
            stack.callback(replica.stop)
        yield site


def prepare(stack: contextlib.ExitStack, home: Path, *options: str) -> tuple[DataFolder, dict[str, socket.socket]]:
    """Return a data folder that `moor up` created with these options, and sockets on its ports.

    None of its parts run.
    """
    folder = DataFolder(home)
    while True:
        with local_cluster(home, *options):
            pass  # tokens, certificates, kubeconfig
        config = folder.load_config()
        assert config is not None
        with contextlib.suppress(PortTaken):  # taken by another program in the meantime
            return folder, stack.enter_context(listening(config.ports))


def start_part(
    stack: contextlib.ExitStack, home: Path, module: str, fds: dict[str, int], *options: str
) -> subprocess.Popen[bytes]:
    """Start a part of `moor up` and wait until it is ready; return its process."""
    read, write = os.pipe()
    argv = [sys.executable, "-m", module, "--data", str(home), "--fds", json.dumps(fds), "--ready-fd", str(write)]
    with (home / "log" / f"{module}.log").open("ab") as log:
        process = subprocess.Popen(
            [*argv, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(*fds.values(), write)
        )
    os.close(write)
    stack.callback(_end, process)
    message = b""
    while b"ready" not in message:
        if not (chunk := os.read(read, 4096)):
            raise AssertionError(
                f"{module} did not start:\n{(home / 'log' / f'{module}.log').read_text()[-3000:]}"
            )
        message += chunk
    os.close(read)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
