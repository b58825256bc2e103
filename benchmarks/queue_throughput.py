"""The map queue alone: 150,000 items, 3,600 simulated workers over HTTP on this machine, at most 10 items a claim.

    python benchmarks/queue_throughput.py [--peers PYTHON]

The server is the real one, in a process of its own; the workers are connections of one client process, which
shares the machine, and their items take no time. Stated for SQLite and PostgreSQL: seconds from the first claim
until all are recorded, requests' p50 and p99, the server's peak memory, items lost; and the rate when each item is
claimed and finished in a request of its own. Bars: SQLite 20 s, PostgreSQL 30 s, singly (SQLite) 2,500 items/s,
memory 300 MB, 0 lost. Exit code 1 when one is missed.

With --peers (a Python that has them: `uv venv peers`, `uv pip install --python peers/bin/python pgqueuer
procrastinate 'psycopg[binary,pool]'`) pgqueuer and procrastinate run jobs that do nothing on the same PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ITEMS, WORKERS, BATCH = 150_000, 3_600, 10
SINGLE_ITEMS, SINGLE_WORKERS = 20_000, 64
BARS_SECONDS = {"sqlite": 20.0, "postgres": 30.0}
SINGLE_BAR = 2500.0
MEMORY_BAR_MB = 300
USER = "benchmark"  # and its token
CONNECT_AT_ONCE = 400


def peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def serve_queue(sock: socket.socket, folder: str, database: str, pipe: Connection) -> None:
    """One process: the server as it is, on a fake API, with the service's settings of the garbage collector."""
    from moorage.server.service import ServerService
    from moorage_kube.serving import serve
    from moorage_local.testing.fakeapi import FakeApi

    async def main() -> None:
        gc.set_threshold(10_000, 50, 100)
        api = FakeApi(users={USER: USER})
        api.readers.add((USER, "lab"))
        service = ServerService(api, usage_db=Path(folder) / "usage.db", queue_db=database, page_token="")
        stop = asyncio.Event()
        running = asyncio.create_task(service.run())
        serving = asyncio.create_task(serve(service.app, sock, stop=stop))
        gc.collect()
        gc.freeze()
        pipe.send("up")
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        pipe.send((peak_mb(), time.process_time()))
        stop.set()
        await serving
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())


@contextmanager
def server(database: str, folder: str) -> Iterator[tuple[int, Connection]]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(4096)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=serve_queue, args=(sock, folder, database, theirs)
    )
    process.start()
    ours.recv()
    try:
        yield sock.getsockname()[1], ours
    finally:
        process.terminate()
        process.join()
        sock.close()


def ask(port: int, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Any:
    """One request as a user."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    sent = raw if raw is not None else (None if body is None else json.dumps(body))
    connection.request(method, path, sent, {"authorization": f"Bearer {USER}", "content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status} {text.decode()}")
    return text if path.endswith("/results") else json.loads(text)


@dataclass
class Tally:
    token: str
    want: int
    expected: int
    finished: asyncio.Event
    claim: list[float] = field(default_factory=list)  # seconds of requests that only claim
    both: list[float] = field(default_factory=list)  # that finish and claim
    recorded: int = 0
    refused: int = 0
    ended: float = 0.0


class Worker(asyncio.Protocol):
    """One worker: a connection, and the next request as soon as the last was answered."""

    __slots__ = ("_buffer", "_held", "_name", "_number", "_sent", "_tally", "_transport")

    def __init__(self, name: str, tally: Tally) -> None:
        self._name, self._tally = name, tally
        self._number, self._held, self._buffer, self._sent = 0, [], b"", 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self) -> None:
        self._number += 1
        reports = ",".join(
            f'{{"item":{item},"lease":{lease},"outcome":"done","seconds":0.001,"value":{{"date":"{value}","x":0.5}}}}'
            for item, lease, value in self._held
        )
        body = (
            f'{{"session":"{self._name}","request":{self._number},"held":[],"want":{self._tally.want},"wait":20,'
            f'"reports":[{reports}]}}'
        ).encode()
        head = (
            f"POST /api/v1/work HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._tally.token}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._sent = time.perf_counter()
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.index(b"content-length:")
        length = int(head[at + 15 : (head + b"\r").index(b"\r", at)])
        if len(self._buffer) < end + 4 + length:
            return
        body = self._buffer[end + 4 : end + 4 + length]
        self._buffer = b""
        now = time.perf_counter()
        tally = self._tally
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(body.decode())
        reply = json.loads(body)
        tally.refused += len(reply.get("refused", ()))
        (tally.both if self._held else tally.claim).append(now - self._sent)
        tally.recorded += len(self._held)
        self._held = reply.get("items", ())
        if tally.recorded >= tally.expected and not tally.ended:
            tally.ended = now
            tally.finished.set()
        if self._held or reply["state"] == "running":
            self.ask()
        else:
            self._transport.close()


async def drain(port: int, token: str, *, items: int, workers: int, want: int) -> tuple[float, Tally]:
    loop = asyncio.get_running_loop()
    tally = Tally(token=token, want=want, expected=items, finished=asyncio.Event())
    made: list[Worker] = []
    for start in range(0, workers, CONNECT_AT_ONCE):
        group = range(start, min(workers, start + CONNECT_AT_ONCE))
        connected = await asyncio.gather(
            *(loop.create_connection(lambda at=at: Worker(f"w{at}", tally), "127.0.0.1", port) for at in group)
        )
        made += [worker for _, worker in connected]
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    for worker in made:
        worker.ask()
    async with asyncio.timeout(300):
        await tally.finished.wait()
    for worker in made:
        worker._transport.abort()
    return tally.ended - began, tally


def make_map(port: int, name: str, items: int, batch: int) -> tuple[str, float]:
    ask(port, "POST", "/api/v1/maps/lab", {"name": name, "request": name, "policy": {"batchItems": batch}})
    lines = "".join(f'{{"value":"2019-{at:06}"}}\n' for at in range(items)).encode()
    began = time.perf_counter()
    ask(port, "POST", f"/api/v1/maps/lab/{name}/items?first=0&close=true", raw=lines)
    took = time.perf_counter() - began
    return ask(port, "POST", f"/api/v1/maps/lab/{name}/token")["token"], took


def check(port: int, name: str, items: int) -> int:
    """Items that have no result, or not the one that belongs to them."""
    lines = ask(port, "GET", f"/api/v1/maps/lab/{name}/results").splitlines()
    right = {one["item"] for one in map(json.loads, lines) if one["value"]["date"] == f"2019-{one['item']:06}"}
    counts = ask(port, "GET", f"/api/v1/maps/lab/{name}")["counts"]
    if counts["done"] != items or len(lines) != items:
        print(f"  counts differ: {counts}, {len(lines)} results")
    return items - len(right)


def share(times: list[float], part: float) -> str:
    if not times:
        return "-"
    return f"{1000 * sorted(times)[min(len(times) - 1, int(part * len(times)))]:.0f}"


def measure(kind: str, database: str, args: argparse.Namespace) -> bool:
    good = True
    with tempfile.TemporaryDirectory() as folder:
        with server(database or f"{folder}/queue.db", folder) as (port, pipe):
            token, added = make_map(port, "batched", args.items, BATCH)
            began = time.process_time()
            took, tally = asyncio.run(drain(port, token, items=args.items, workers=args.workers, want=BATCH))
            client = time.process_time() - began
            lost = check(port, "batched", args.items)
            requests = len(tally.claim) + len(tally.both)
            print(
                f"{kind}: {args.items} items added in {added:.1f} s; drained by {args.workers} workers"
                f" in {took:.1f} s ({args.items / took:.0f} items/s, {requests / took:.0f} requests/s),"
                f" {lost} lost, {tally.refused} refused, client's CPU {client:.1f} s"
            )
            print(
                f"  ms per request, p50/p99: claim {share(tally.claim, 0.5)}/{share(tally.claim, 0.99)},"
                f" finish and claim {share(tally.both, 0.5)}/{share(tally.both, 0.99)}"
            )
            good &= took <= BARS_SECONDS[kind] and lost == 0
            token, _ = make_map(port, "single", args.single, 1)
            alone, tally = asyncio.run(drain(port, token, items=args.single, workers=SINGLE_WORKERS, want=1))
            lost = check(port, "single", args.single)
            rate = args.single / alone
            print(
                f"  singly: {rate:.0f} items/s with {SINGLE_WORKERS} workers, {lost} lost;"
                f" ms p50/p99 {share(tally.both, 0.5)}/{share(tally.both, 0.99)}"
            )
            pipe.send("stop")
            memory, cpu = pipe.recv()
            print(f"  server: {memory:.0f} MB at its peak, {cpu:.1f} s of CPU")
            good &= memory <= MEMORY_BAR_MB and lost == 0 and (kind != "sqlite" or rate >= SINGLE_BAR)
            args.took[kind] = took
    return good


def peers(python: str, url: str, args: argparse.Namespace) -> None:
    ours = args.items / args.took["postgres"]
    for name in ("pgqueuer", "procrastinate"):
        script = Path(__file__).with_name("queue_peers.py")
        done = subprocess.run(
            [python, str(script), name, url, str(args.peer_items)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(f"{name}: failed: {done.stderr.strip()[-300:]}")
            continue
        said = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name} ({said['settings']}, the best of {said['pilots']}): {said['rate']:.0f} jobs/s on the same"
            f" PostgreSQL, in its own process; ours {ours / said['rate']:.1f} times"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--single", type=int, default=SINGLE_ITEMS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--peer-items", type=int, default=20_000)
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--peers", metavar="PYTHON")
    args = parser.parse_args()
    args.took = {}
    good = True
    if args.store != "postgres":
        good &= measure("sqlite", "", args)
    if args.store != "sqlite":
        from moorage_testing.postgres import throwaway_postgres

        with throwaway_postgres() as postgres:
            good &= measure("postgres", postgres.url, args)
            if args.peers:
                peers(args.peers, postgres.url, args)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
