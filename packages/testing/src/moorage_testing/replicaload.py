"""Load for two servers, by our own clients and by plain ones, and the check that all requests took effect.

Our clients are the SDK's, the workers of maps in their pods, and the transport below them. A plain client sends
each request once, on a new connection. At the same time pods are created, dry: each asks the webhook.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moorage.actions.people import create_account, set_password
from moorage.api.maps import MapChange, MapWorkers, NewMap
from moorage.attempts.logtable import LogTable
from moorage.attempts.store import open_attempts
from moorage.client.connection import Connection, Patience, at_url
from moorage.client.maps import MapClient
from moorage.client.transport import HttpTransport
from moorage.decide.usage.intervals import Interval
from moorage.model.names import OWNER_LABEL
from moorage.model.people import LOCAL
from moorage.model.retention import LOG_BYTES
from moorage.server.identity.sessions import open_sessions
from moorage.usage.store import UsageStore
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError
from moorage_kube.meta import labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import load_connection
from moorage_kube.resources import PODS, Obj

PERSON, PASSWORD = "load-visitor", "correct horse battery"
ITEMS = 30  # of a map
LINES = 20  # of a run
SETTLE_SECONDS = 240.0  # bounds a hang: until all that was begun has ended and is recorded


@dataclass(slots=True)
class Counts:
    """The results, by kind of request. `sent` counts the requests on the wire, with repetitions."""

    asked: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)

    def report(self, title: str) -> str:
        asked, sent, failed = (sum(count.values()) for count in (self.asked, self.sent, self.failed))
        lines = [f"{title}: {asked} requests, {failed} failed, {max(0, sent - asked)} sent again"]
        lines += [
            f"  {kind}: {number} requests, {self.failed[kind]} failed"
            for kind, number in sorted(self.asked.items())
        ]
        lines += [f"  {number}x {error}" for error, number in self.errors.most_common(5)]
        return "\n".join(lines)


class _Counting(HttpTransport):
    """Counts the requests on the wire."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    async def request(self, method: str, url: str, **sent: Any) -> Any:
        self._counts.sent[method] += 1
        return await super().request(method, url, **sent)


class Load:
    """Clients of the server at `url`, which work while `running` is open. Afterwards a check finds lost work.

    `kubeconfig` has an administrator's token. Runs and maps are in `namespace`, with `image`, which may be
    empty on a local cluster.
    """

    def __init__(
        self, kubeconfig: Path, url: str, database: str, *, namespace: str = "default", image: str = ""
    ) -> None:
        self._url, self._database = url, database
        self._namespace, self._image = namespace, image
        self.ours, self.plain = Counts(), Counts()
        self._runs: list[str] = []
        self._maps: list[str] = []
        self._pods: dict[str, Obj] = {}  # by uid, as last seen: usage and attempts must have them
        self._stopping = asyncio.Event()
        self._api = KubeClient(load_connection(kubeconfig))
        self._token = str(load_connection(kubeconfig).token)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send requests until the block ends; then wait for those under way."""
        async with self._api:
            with contextlib.suppress(AlreadyExists):
                await create_account(self._api, PERSON, ("system:masters",), LOCAL)
            await set_password(self._api, PERSON, PASSWORD)
            watching = asyncio.create_task(self._watch_pods())
            tasks = [
                asyncio.create_task(work)
                for work in (
                    self._often("read", 0.2, self._read),
                    self._often("read", 0.2, self._read),
                    self._often("login", 2.0, self._login),
                    self._often("run", 8.0, self._run),
                    self._often("map", 15.0, self._map),
                    self._often("admission", 0.2, self._admission),
                    self._plain("read", 0.1, "GET", "/api/v1/jobs"),
                    self._plain("read", 0.1, "GET", f"/api/v1/maps/{self._namespace}"),
                    self._plain("login", 3.0, "POST", "/api/v1/login", username=PERSON, password=PASSWORD),
                )
            ]
            try:
                yield
                self._stopping.set()
                async with asyncio.timeout(SETTLE_SECONDS):
                    await asyncio.gather(*tasks)
                await self._check()
            finally:
                for task in (watching, *tasks):
                    task.cancel()
                await asyncio.gather(watching, *tasks, return_exceptions=True)

    # -- our clients

    def _connection(self) -> Connection:
        patience = Patience(answer_seconds=60.0, seconds=30.0)
        return Connection(at_url(self._url, self._token), patience=patience, transport=_Counting(self.ours))

    async def _often(self, kind: str, seconds: float, ask: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping.is_set():
            try:
                await ask()
            except (MoorageError, OSError) as error:
                self.ours.failed[kind] += 1
                self.ours.errors[f"{kind}: {type(error).__name__}: {str(error)[:160]}"] += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _ask(self, kind: str, connection: Connection, method: str, path: str, **sent: Any) -> Any:
        self.ours.asked[kind] += 1
        return (await connection.json(method, path, **sent))[0]

    async def _read(self) -> None:
        connection = self._connection()
        try:
            for path in ("/api/v1/jobs", "/api/v1/gpus", "/api/v1/top", "/api/v1/login"):
                await self._ask("read", connection, "GET", path)
        finally:
            await connection.close()

    async def _login(self) -> None:
        connection = self._connection()
        try:
            body = {"username": PERSON, "password": PASSWORD}
            session = await self._ask("login", connection, "POST", "/api/v1/login", body=body, repeat=True)
        finally:
            await connection.close()
        mine = Connection(at_url(self._url, session["token"]), transport=_Counting(self.ours))
        try:
            await self._ask("login", mine, "GET", "/api/v1/login")
        finally:
            await mine.close()

    async def _run(self) -> None:
        """Create a run that prints lines and ends."""
        name = f"run-{secrets.token_hex(4)}"
        script = f"import time\nfor at in range({LINES}):\n    print('line', at, flush=True); time.sleep(0.2)"
        body = {"name": name, "command": ["python3", "-c", script], "gpus": 1, "namespace": self._namespace}
        body |= {"image": self._image} if self._image else {}
        connection = self._connection()
        try:
            await self._ask("run", connection, "POST", "/api/v1/jobs", body=body, key=name)
        finally:
            await connection.close()
        self._runs.append(name)

    async def _map(self) -> None:
        """Run a map with workers in pods, and follow its output to the end."""
        name = f"map-{secrets.token_hex(4)}"
        connection = self._connection()
        client = MapClient(connection)
        try:
            self.ours.asked["map"] += 4
            command = ["sh", "-c", "sleep 0.3; echo item {item}"]
            workers = MapWorkers(command=command, parallelism=2, image=self._image or None)
            await client.create(self._namespace, NewMap(name=name, request=name, workers=workers))
            self._maps.append(name)
            lines = b"".join(b'{"value": %d}\n' % at for at in range(ITEMS))
            await client.add(self._namespace, name, lines, first=0)
            await client.change(self._namespace, name, MapChange(closed=True))
            printed: list[bytes] = []
            async with asyncio.timeout(SETTLE_SECONDS):
                async for part in client.output(self._namespace, name, follow=True):
                    printed.append(part.output)
            texts = b"".join(printed).decode().split("\n")
            for at in range(ITEMS):
                self.ours.checked["output of items"] += 1
                if f"item {at}" not in texts:
                    self.ours.lost.append(f"output of item {at} of {name}, of {len(texts)} lines")
        finally:
            await client.close()

    async def _admission(self) -> None:
        """Create a pod with dry-run; the webhook gives it an owner."""
        self.ours.asked["admission"] += 1
        self.ours.sent["POST"] += 1
        container = {
            "name": "main",
            "image": self._image or "moorage",
            "resources": {"limits": {"memory": "64Mi"}},
        }
        pod = {"metadata": {"generateName": "dry-"}, "spec": {"containers": [container]}}
        made = await self._api.create(PODS, pod, self._namespace, dry_run=True)
        if OWNER_LABEL not in labels_of(made):
            raise OSError("the webhook did not see the pod")

    # -- plain clients

    async def _plain(self, kind: str, seconds: float, method: str, path: str, **body: str) -> None:
        import aiohttp

        headers = {"Authorization": f"Bearer {self._token}"} if not body else {}
        connector = aiohttp.TCPConnector(force_close=True)  # on a reused one, aiohttp repeats a GET by itself
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            while not self._stopping.is_set():
                self.plain.asked[kind] += 1
                self.plain.sent[kind] += 1
                sent = {"json": body} if body else {}
                try:
                    async with session.request(method, self._url + path, **sent) as answer:  # type: ignore[arg-type]
                        await answer.read()
                        if answer.status >= 300:
                            raise OSError(f"status {answer.status}")
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self.plain.failed[kind] += 1
                    self.plain.errors[f"{kind}: {type(error).__name__}: {str(error)[:100]}"] += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), seconds)

    # -- the records that must exist at the end

    async def _watch_pods(self) -> None:
        """Record all pods that ran; the local cluster retains ended pods."""
        while True:
            with contextlib.suppress(ApiError):
                for pod in (await self._api.list(PODS, self._namespace)).items:
                    self._pods[pod["metadata"]["uid"]] = pod
            await asyncio.sleep(0.5)

    async def _check(self) -> None:
        """Wait until all started work is recorded; note missing and repeated records."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            lost, checked = await asyncio.to_thread(self._missing)
            lost += await self._items()
            if not lost or time.monotonic() > deadline:
                break
            await asyncio.sleep(1.0)
        self.ours.lost += lost
        self.ours.checked.update(checked)

    async def _items(self) -> list[str]:
        lost = []
        connection = self._connection()
        client = MapClient(connection)
        try:
            for name in self._maps:
                items = (await client.show(self._namespace, name)).counts
                if (items.total, items.done) != (ITEMS, ITEMS):
                    lost.append(f"items of {name}: {items.done} of {items.total} are done, {ITEMS} were sent")
        finally:
            await client.close()
        return lost

    def _missing(self) -> tuple[list[str], Counter[str]]:
        usage, attempts = UsageStore(self._database), open_attempts(self._database)
        logs = LogTable(self._database, keep_bytes=LOG_BYTES)
        sessions = open_sessions(self._database)
        try:
            lost, checked = self._missing_intervals(usage.everything())
            for name in self._runs:
                checked["runs: attempts"] += 1
                kept = attempts.run(self._namespace, name)
                if len(kept.attempts) != 1 or [pod.exit_code for pod in kept.pods] != [0]:
                    lost.append(
                        f"attempts of {name}: {len(kept.attempts)}, pods {[pod.phase for pod in kept.pods]}"
                    )
                    continue
                lines = [line.split(b" ", 1)[1] for line in logs.read(kept.pods[0].uid).data.splitlines()]
                checked["runs: lines of logs"] += LINES
                if lines != [b"line %d" % at for at in range(LINES)]:
                    lost.append(f"log of {name}: {len(lines)} lines of {LINES}")
            entries = Counter(_audited(sessions))
            for name in self._runs:
                checked["runs: audit"] += 1
                if not entries[name]:
                    lost.append(f"audit log: the creation of {name}")
            return lost, checked
        finally:
            for store in (usage, attempts, logs, sessions):
                store.close()

    def _missing_intervals(self, intervals: list[Interval]) -> tuple[list[str], Counter[str]]:
        known = {interval.pod_uid: interval for interval in intervals}
        lost: list[str] = []
        checked: Counter[str] = Counter()
        for uid, pod in self._pods.items():
            ended = _ended_at(pod)
            if "moorage.dev/run" not in (pod["metadata"].get("labels") or {}) or ended is None:
                continue
            checked["intervals"] += 1
            interval = known.get(uid)
            if (
                interval is None
                or interval.ended_at is None
                or abs((interval.ended_at - ended).total_seconds()) > 1
            ):
                lost.append(
                    f"interval of {pod['metadata']['name']}: {interval and interval.ended_at}, not {ended}"
                )
        return lost, checked


def _audited(sessions: Any) -> list[str]:
    """Return the words of the audit log, with the names of runs once for each entry that created one."""
    rows = sessions._db.rows("SELECT what, path FROM audit_log")
    return [word.strip("'\"") for what, path in rows for word in f"{what} {path}".replace("/", " ").split()]


def _ended_at(pod: Obj) -> datetime | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if ended := (status.get("state") or {}).get("terminated"):
            return datetime.fromisoformat(ended["finishedAt"]).astimezone(UTC)
    return None
