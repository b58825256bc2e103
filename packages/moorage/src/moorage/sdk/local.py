"""Maps on this machine: a queue and its server in a thread of this process, workers as child processes.

A cluster or `moor up` is not needed. The queue is a file that is deleted when the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlencode, urlsplit

from moorage.client.connection import Connection, at_url
from moorage.client.maps import AT_ONCE, MapClient
from moorage.client.transport import Answer, Pairs
from moorage_kube.errors import MoorageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMESPACE = "local"
OWNER = "local"
BATCH_ITEMS = 200  # one worker takes them for all its slots
READY_SECONDS = 30.0
CLOSE_SECONDS = 2.0  # for open connections at the end of the program
FAST_FOLDER = Path("/dev/shm")  # memory: a map that ends with its process has no use for a disk

T = TypeVar("T")


class Loop:
    """An event loop in a separate thread, on which all of the SDK's I/O happens."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="moorage", daemon=True).start()
        atexit.register(self._close_sessions, os.getpid())

    def _close_sessions(self, process: int) -> None:
        """Close at exit the sessions that the program left open.

        Not in a forked child, where the thread is missing.
        """
        if os.getpid() == process:
            with suppress(TimeoutError):
                self.submit(self._loop.shutdown_asyncgens()).result(CLOSE_SECONDS)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop and wait for its result. An interrupt in the waiting thread cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_loops: dict[int, Loop] = {}
_sites: dict[int, LocalSite] = {}


def loop() -> Loop:
    """Return the event loop of this process; after a fork the child gets another loop."""
    return _loops.setdefault(os.getpid(), Loop()) if os.getpid() not in _loops else _loops[os.getpid()]


def site() -> LocalSite:
    """Return the queue and server of this process. The caller must `start` it."""
    current = _sites.get(os.getpid())
    if current is None:
        current = _sites[os.getpid()] = LocalSite()
        atexit.register(current.remove, os.getpid())
    return current


class LocalSite:
    """A queue, and its server for workers on 127.0.0.1. A worker must send the token of its map.

    This process itself calls the server without a network, by `client`.
    """

    def __init__(self) -> None:
        base = FAST_FOLDER if os.access(FAST_FOLDER, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="moorage-", dir=base))
        self._app: ASGIApp | None = None
        self._workers: dict[str, asyncio.Future[str]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._starting = asyncio.Lock()
        self._sock = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._sock.setblocking(False)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"

    def expect_worker(self, token: str) -> asyncio.Future[str]:
        """Let a worker with this token wait until the returned future gets the token of its map.

        So the worker can start before the server is ready.
        """
        return self._workers.setdefault(token, asyncio.get_running_loop().create_future())

    async def start(self) -> None:
        """Serve; once."""
        async with self._starting:
            if not self._tasks:
                await self._start()

    def forget_worker(self, token: str) -> None:
        self._workers.pop(token, None)

    async def _start(self) -> None:
        from moorage.queue.manager import Queue
        from moorage.queue.store import open_store
        from moorage_kube.serving import serve

        queue = Queue(lambda: open_store(self.folder / "queue.db"))
        await queue.start()
        self._app = _app(queue)
        gate = _gate(self._app, self._workers)
        self._tasks = [
            asyncio.create_task(queue.run()),
            asyncio.create_task(serve(gate, self._sock, stop=self._stop)),
        ]

    @property
    def app(self) -> ASGIApp:
        """The application that `client` calls, as the user that all maps here belong to. Must be started."""
        assert self._app is not None
        return self._app

    def client(self) -> MapClient:
        """Return a client for the maps of this process. It uses no network."""
        return MapClient(Connection(at_url(self.url), patience=AT_ONCE, transport=InProcess(self)))

    async def stop(self) -> None:
        """Stop the server, and delete the folder of the queue."""
        self._stop.set()
        await asyncio.wait({self._tasks[1]})
        self._tasks[0].cancel()
        await asyncio.wait({self._tasks[0]})
        self.remove(os.getpid())

    def remove(self, pid: int) -> None:
        """Delete the folder of the queue, but only in the process that created it, not in a fork."""
        if os.getpid() == pid:
            shutil.rmtree(self.folder, ignore_errors=True)


class LocalWorker:
    """A worker process that runs up to `slots` items at once."""

    def __init__(self, folder: Path, name: str, function: bytes, *, url: str, token: str, slots: int) -> None:
        packed = folder / f"{name}.zip"
        packed.write_bytes(function)
        self._log = folder / f"{name}.log"
        paths = [os.path.abspath(path) if path else os.getcwd() for path in sys.path]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "MOORAGE_SERVER": url,
            "MOORAGE_MAP_TOKEN": token,
            "MOORAGE_MAP": json.dumps({"function": str(packed), "slots": slots}),
            "MOORAGE_POD": name,
            "MOORAGE_MEMORY": "0",
            "MOORAGE_PARENT": str(os.getpid()),
            "MOORAGE_GRACE": "5",
        }
        with self._log.open("wb") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moorage.worker.mapworker"],
                env=env,
                stdin=subprocess.DEVNULL,
                stderr=log_file,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise MoorageError when the worker has ended by itself."""
        code = self._process.poll()
        if code:
            last_line = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise MoorageError(
                last_line.removeprefix("moorage worker: ") or f"the worker ended with exit code {code}"
            )

    def stop(self) -> None:
        """Stop the worker: terminate it, and kill it after 10 seconds. It is safe to call this again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class InProcess:
    """A `Transport` that calls the application in this process, as the owner of its maps."""

    def __init__(self, site: LocalSite) -> None:
        self._site = site

    async def request(
        self,
        method: str,
        url: str,
        *,
        params: Pairs,
        body: bytes | None,
        headers: Mapping[str, str],
        silence: float | None,  # noqa: ARG002  (nothing comes between)
    ) -> Answer:
        path = urlsplit(url).path
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(params).encode(),
            "headers": [(b"host", b"localhost"), *sent],
            "state": {"user": _owner()},
        }
        answer = _Called(self._site.app, scope, body or b"")
        await answer.begin()
        return answer

    async def close(self) -> None:
        return


class _Called:
    """The answer of a call to the application.

    Its status, then the parts of its body as the application sends them.
    """

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(4)
        self._began = asyncio.Event()
        self._requests = iter([{"type": "http.request", "body": body, "more_body": False}])
        self._calling = asyncio.create_task(self._call(app, scope))

    async def begin(self) -> None:
        """Wait until the application sends the status."""
        await self._began.wait()
        if not self.status:
            await self._calling  # it raised

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part
        await self._calling

    def close(self) -> None:
        self._calling.cancel()

    async def _call(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self._began.set()
            await self._parts.put(None)

    async def _receive(self) -> Message:
        for request in self._requests:
            return request
        await asyncio.get_running_loop().create_future()
        raise AssertionError("the caller stays until the answer is whole")

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            self._began.set()
        elif message["type"] == "http.response.body" and message.get("body"):
            await self._parts.put(message["body"])


def _owner() -> Any:
    from moorage.server.identity.auth import User

    return User(OWNER)


def _app(queue: Any) -> ASGIApp:
    """The server's routes for maps, without a cluster: all callers have all rights."""
    # imported here: only a local map needs a server
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    from moorage.server.context import Context
    from moorage.server.problems import Problem, on_error
    from moorage.server.queue import work
    from moorage.server.rest import maps
    from moorage_kube.clock import SYSTEM

    nothing = cast("Any", None)  # the routes of maps use only the queue
    # only the queue exists; all other parts are absent
    context = Context(
        api=nothing,
        place=nothing,
        cluster=nothing,
        usage=nothing,
        samples=nothing,
        collector=nothing,
        auth=cast("Any", _Everything()),
        clock=SYSTEM,
        queue=queue,
        outputs=nothing,
        logins=nothing,
        sessions=nothing,
        audit_log=nothing,
        changes=nothing,
        own_writes=nothing,
        gateway=nothing,
        limiter=nothing,
        volume_use=nothing,
        tenants=nothing,
        keeper=nothing,
        past=nothing,
        rightsizing=nothing,
        reports=nothing,
        times=nothing,
        records=nothing,
    )
    return Starlette(
        routes=[*work.routes(context), *(endpoint.route(context) for endpoint in maps.ENDPOINTS)],
        exception_handlers=dict.fromkeys((HTTPException, Problem, MoorageError, Exception), on_error),
    )


def _gate(app: ASGIApp, workers: dict[str, asyncio.Future[str]]) -> ASGIApp:
    """Allow workers the requests for their own map, with the map's token in place of the one that they sent."""
    from moorage.server.identity.auth import bearer_of
    from moorage.server.problems import Problem, answer
    from moorage.server.queue.work import WORK_PATH

    async def gate(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        if scope["path"] != WORK_PATH:
            problem = Problem(404, "not_found", "this server is for the workers of local maps only")
            await answer(problem)(scope, receive, send)
            return
        if (theirs := workers.get(bearer_of(headers))) is not None:
            headers["authorization"] = f"Bearer {await asyncio.shield(theirs)}"
            scope["headers"] = [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ]
        await app(scope, receive, send)

    return gate


class _Everything:
    async def may(self, *_: object, **__: object) -> bool:
        return True

    may_use_maps = may
