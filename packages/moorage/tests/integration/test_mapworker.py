"""The map's worker as a real process against a real queue over HTTP: what it does with items of every kind."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import queue as queues
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from moorage.api.maps import MapItem
from moorage.controllers.mapjob.bundle import worker_zip
from moorage.decide.maps.leasing import Policy, State
from moorage.queue.manager import Queue
from moorage.queue.store import NewItem, Store
from moorage.server.service import ServerService
from moorage_kube.serving import serve
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import wait_until
from moorage_local.testing.fakeapi import FakeApi

MEBI = 1024 * 1024
PATIENCE_SECONDS = 180.0


class Site:
    """A server with its queue, on a loop and a thread of its own; it can go away and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.refused: dict[str, int] = {}  # paths that the server answers with 503, and how often it did
        (self.port,) = free_ports(1)  # also of the server that comes back
        self.queue: Queue
        self.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_SECONDS)

    def start(self) -> None:
        started: queues.SimpleQueue[int] = queues.SimpleQueue()

        async def work() -> None:
            api = FakeApi(users={"ada-token": "ada"})
            api.readers.add(("ada", "lab"))
            service = ServerService(api, usage_db=self.folder / "usage.db", page_token="page")
            self.queue = service.queue
            self._stop = asyncio.Event()
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("127.0.0.1", self.port))
                sock.listen(128)
                sock.setblocking(False)
                ticking = asyncio.create_task(service.queue.run())
                await service.queue.start()
                started.put(sock.getsockname()[1])
                await serve(self._gate(service.app), sock, stop=self._stop)
                ticking.cancel()
                await asyncio.wait({ticking})
                service.usage.close()

        self._serving = asyncio.run_coroutine_threadsafe(work(), self.loop)
        self.port = started.get(timeout=PATIENCE_SECONDS)

    def _gate(self, app: ASGIApp) -> ASGIApp:
        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            if scope.get("path") in self.refused:
                self.refused[scope["path"]] += 1
                return await Response(status_code=503)(scope, receive, send)
            return await app(scope, receive, send)

        return gate

    def go_away(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._serving.result(PATIENCE_SECONDS)

    def make(self, values: list[Any], *, name: str = "m", closed: bool = True, **policy: Any) -> int:
        async def work() -> int:
            found = await self.queue.create_map(
                namespace="lab", name=name, owner="ada", policy=Policy(**policy), request=name
            )
            items = [NewItem(value=msgspec.Raw(json.dumps(one).encode())) for one in values]
            await self.queue.add_items(found.map.id, items)
            await self.queue.change_map(found.map.id, closed=closed)
            self.token = self.queue.token_of(found.uid)
            return found.map.id

        return int(self.run(work()))

    def worker(self, orders: dict[str, Any], *, before: Sequence[str] = (), **env: str) -> subprocess.Popen[bytes]:
        """Start one; `before` is a command that starts it."""
        file = self.folder / "worker.pyz"
        file.write_bytes(worker_zip())
        told = {
            "MOORAGE_SERVER": f"http://127.0.0.1:{self.port}",
            "MOORAGE_MAP_TOKEN": self.token,
            "MOORAGE_MAP": json.dumps(orders),
            "MOORAGE_POD": f"pod-{len(self.workers)}",
        }
        made = subprocess.Popen(
            [*before, sys.executable, str(file)],
            env={**os.environ, **told, **env},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.workers.append(made)
        return made

    def ended(self, worker: subprocess.Popen[bytes]) -> tuple[int, str]:
        out, _ = worker.communicate(timeout=PATIENCE_SECONDS)
        return worker.returncode, out.decode("utf-8", "replace")

    def results(self, of: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        after = -1
        while page := self.run(self.queue.read(partial(Store.results, of=of, after=after))):
            found |= {one.item: one.path or msgspec.json.decode(one.value) for one in page}
            after = page[-1].item
        return found

    def items(self, of: int) -> list[MapItem]:
        return list(
            self.run(self.queue.read(lambda s: s.list_items(of, states=tuple(State), after=-1, limit=1000)))
        )

    def output(self, of: int, item: int) -> bytes:
        found = self.run(self.queue.read(lambda store: store.get_item(of, item)))
        return bytes(found[1])

    def counts(self, of: int) -> Any:
        return self.run(self.queue.read(lambda store: store.list_maps("lab")))[0].map.counts

    def until(self, said: Callable[[], bool]) -> None:
        wait_until("a state of the map", said)

    def close(self) -> None:
        for one in self.workers:
            if one.poll() is None:
                one.kill()
            if one.stdout is not None and not one.stdout.closed:
                one.communicate()
        if not self._serving.done():
            self.go_away()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def python(text: str) -> dict[str, Any]:
    """A command that is a few lines of Python; `value` is the item's."""
    head = "import json, os, sys\nvalue = json.loads(os.environ['MOORAGE_ITEM'])\n"
    tail = "\ndef result(x):\n    open(os.environ['MOORAGE_RESULT'], 'w').write(json.dumps(x))\n"
    return {"command": [sys.executable, "-c", head + tail + text]}


def function(site: Site, text: str, entry: str = "made:f", **about: Any) -> dict[str, Any]:
    path = site.folder / "function.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made.py", text)
        archive.writestr("map.json", json.dumps({"entry": entry, **about}))
    return {"function": str(path)}


def test_every_item_is_run_once_and_its_result_is_kept(site: Site) -> None:
    of = site.make(list(range(30)))
    worker = site.worker(python("result(value * value)") | {"slots": 3})
    assert site.ended(worker)[0] == 0
    assert site.results(of) == {at: at * at for at in range(30)}
    counts = site.counts(of)
    assert (counts.done, counts.granted - counts.returned, counts.refused, counts.workers) == (30, 30, 0, 0)


def test_a_function_stays_loaded_and_takes_many_items(site: Site) -> None:
    text = (
        "import os\ncalls = []\ndef f(x):\n    calls.append(x)\n    return {'pid': os.getpid(), 'sum': sum(calls)}"
    )
    of = site.make(list(range(50)))
    assert site.ended(site.worker(function(site, text)))[0] == 0
    found = site.results(of)
    assert len(found) == 50
    assert len({one["pid"] for one in found.values()}) == 1
    assert max(one["sum"] for one in found.values()) == sum(range(50))


def test_parts_of_an_item_are_put_into_the_command(site: Site) -> None:
    of = site.make([{"date": "2019-10-03", "races": [7, 8]}])
    code = "import os, sys\nopen(os.environ['MOORAGE_RESULT'], 'w').write(' '.join(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "{item.date}", "{item.races.1}", "n{index}", "{other}"]
    site.ended(site.worker({"command": command}))
    assert site.results(of) == {0: "2019-10-03 8 n0 {other}"}


def test_a_part_that_an_item_lacks_is_its_own_error(site: Site) -> None:
    of = site.make([{"a": 1}, {"b": 2}], retries=0)
    site.ended(site.worker({"command": ["true", "{item.a}"]}))
    assert [one.state for one in site.items(of)] == ["done", "dead"]
    failure = site.items(of)[1].failure
    assert failure is not None
    assert failure.message == "cannot be started: {item.a}: this item has the fields b"


POISON = {
    "segfault": "import ctypes; ctypes.string_at(0)",
    "exit": "print('the reason', file=sys.stderr); sys.exit(7)",
    "loop": "import time\nwhile True: time.sleep(1)",
    "much": "[os.write(1, b'y' * 65536) for _ in range(400)]; sys.exit(1)",
    "binary": "os.write(1, bytes(range(256)) * 8); sys.exit(1)",
    "memory": "x = bytearray(700 * 1024 * 1024)\nwhile True: pass",
    "daemon": "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1000')",
    "large": "result('x' * 300_000)",
    "nan": "open(os.environ['MOORAGE_RESULT'], 'w').write('NaN')",
    "half": "result(chr(0xd83d))",
    "fine": "result('fine')",
}
EXPECTED = {
    "segfault": ("error", "killed by signal 11 (SIGSEGV)"),
    "exit": ("error", "exit code 7: the reason"),
    "loop": ("timeout", "stopped after its time"),
    "much": ("error", "exit code 1"),
    "binary": ("error", "exit code 1"),
    "memory": ("oom", "killed: it used more than"),
    "large": ("invalid", "its result has more than 262144 bytes"),
}


def test_a_poison_item_hurts_only_itself(site: Site) -> None:
    of = site.make(list(POISON.values()), retries=0, time_seconds=20.0)  # ample for all but the loop
    worker = site.worker(python("exec(value)") | {"slots": 2}, MOORAGE_MEMORY=str(640 * MEBI))
    code, printed = site.ended(worker)
    assert code == 0
    items = dict(zip(POISON, site.items(of), strict=True))
    for name, (cause, message) in EXPECTED.items():
        failure = items[name].failure
        assert failure is not None, name
        assert failure.cause == cause, (name, failure)
        assert failure.message.startswith(message), (name, failure)
    found = site.results(of)
    at = {name: number for number, name in enumerate(POISON)}
    assert (found[at["fine"]], found[at["nan"]], found[at["daemon"]]) == ("fine", "NaN", None)
    assert found[at["half"]] == '"\\ud83d"'
    assert site.output(of, at["binary"]) == bytes(range(256)) * 8
    assert site.output(of, at["much"]) == b"y" * 16 * 1024
    assert len(printed) < 4 * MEBI
    assert (
        "sleep"
        not in subprocess.run(["ps", "-o", "args", "-g", str(worker.pid)], capture_output=True).stdout.decode()
    )


def test_a_gigabyte_of_output_is_cut_and_holds_nobody_up(site: Site) -> None:
    of = site.make([1024 * 1024 * 1024, *range(8)])
    done = site.folder / "done"
    code = (
        f"done = {str(done)!r}\nlast = b'z' * 65536\nfor _ in range(value // 65536): os.write(1, last)\n"
        "def ended(): return len(open(done).read().split()) if os.path.exists(done) else 0\n"
        "while value > 8 and ended() < 8: os.write(1, last)  # for as long as the others take\n"
        "if value > 8: result(ended())\n"
        "else: open(done, 'a').write('x '); result(value)"
    )
    worker = site.worker(python(code) | {"slots": 2})
    status, said = site.ended(worker)
    assert status == 0
    assert site.results(of) == {0: 8} | {n + 1: n for n in range(8)}
    assert len(said) < 2 * MEBI
    assert sum(len(output) for _, output in printed(site, "?item=0")) < 2 * MEBI


def test_a_poison_call_hurts_only_itself(site: Site) -> None:
    text = (
        "import os, sys\ndef f(text):\n    scope = {'os': os, 'sys': sys}\n    exec(text, scope)\n"
        "    return scope.get('r')\n"
    )
    calls = {
        "segfault": "import ctypes; ctypes.string_at(0)",
        "exit": "sys.exit('gone')",
        "raise": "print('before'); 1 / 0",
        "loop": "import time\nwhile True: time.sleep(1)",
        "hard": "os._exit(5)",
        "set": "r = {1, 2}",
        "nan": "r = float('nan')",
        "half": "r = chr(0xd83d)",
        "printed": "os.write(1, b'half a line')",
        "fine": "r = 'fine'",
    }
    of = site.make(list(calls.values()), retries=0, time_seconds=15.0)
    code, printed = site.ended(site.worker(function(site, text)))
    assert code == 0
    items = dict(zip(calls, site.items(of), strict=True))
    said = {
        name: (one.failure.cause, one.failure.message) for name, one in items.items() if one.failure is not None
    }
    assert said == {
        "segfault": ("error", "killed by signal 11 (SIGSEGV)"),
        "exit": ("error", "SystemExit: gone"),
        "raise": ("error", "ZeroDivisionError: division by zero"),
        "loop": ("timeout", "stopped after its time"),
        "hard": ("error", "exit code 5"),
        "set": ("invalid", "TypeError: Object of type set is not JSON serializable"),
        "nan": ("invalid", "ValueError: Out of range float values are not JSON compliant"),
        "half": ("invalid", said["half"][1]),
    }
    assert said["half"][1].endswith("surrogates not allowed")
    at = {name: number for number, name in enumerate(calls)}
    assert site.results(of) == {at["fine"]: "fine", at["printed"]: None}
    assert b"before\nTraceback" in site.output(of, at["raise"])
    assert f"[{at['printed']}] half a line" in printed


def test_short_calls_that_end_their_process_take_no_other_call_with_them(site: Site) -> None:
    text = (
        "import os, time\ndef f(n):\n    open('begun', 'a').write(f'{n}\\n')\n    if n % 7 == 3: os._exit(5)\n"
        "    while n == 20: time.sleep(1)\n    return n\n"
    )
    of = site.make(list(range(50)), retries=0, time_seconds=15.0, batch_items=25)
    assert site.ended(site.worker(function(site, text)))[0] == 0
    died = {at: one.failure.message for at, one in enumerate(site.items(of)) if one.failure is not None}
    assert died == {at: "exit code 5" for at in range(3, 50, 7)} | {20: "stopped after its time"}
    assert site.results(of) == {at: at for at in range(50) if at not in died}
    assert sorted(map(int, (site.folder / "begun").read_text().split())) == list(range(50))
    assert site.counts(of).lost == 0


def test_what_a_call_prints_is_kept_with_it_though_the_next_follows_at_once(site: Site) -> None:
    text = (
        "import os, subprocess, sys\ndef f(n):\n    print('one', n)\n    os.write(2, b'two %d\\n' % n)\n"
        "    subprocess.run(['echo', 'three', str(n)])\n    print('end', n, end='')\n"
    )
    of = site.make(list(range(40)), batch_items=40)
    assert site.ended(site.worker(function(site, text) | {"slots": 2}))[0] == 0
    assert site.counts(of).done == 40
    said: dict[int, bytes] = dict.fromkeys(range(40), b"")
    for item, output in printed(site):
        said[item] += output
    wanted = {n: sorted([f"one {n}", f"two {n}", f"three {n}", f"end {n}"]) for n in range(40)}
    assert {n: sorted(text.decode().splitlines()) for n, text in said.items()} == wanted


def test_told_to_stop_it_hands_back_the_call_that_waits_behind_another(site: Site) -> None:
    flag = site.folder / "go"
    text = (
        "import os, time\ndef f(n):\n    open('begun', 'a').write(f'{n}\\n')\n"
        f"    while n == 10 and not os.path.exists({str(flag)!r}): time.sleep(0.01)\n    return n\n"
    )
    of = site.make(list(range(40)), batch_items=40)
    worker = site.worker(function(site, text))
    begun = site.folder / "begun"
    site.until(lambda: begun.exists() and "10" in begun.read_text().split())
    worker.send_signal(signal.SIGTERM)
    flag.touch()
    assert site.ended(worker)[0] == 0
    counts, ran = site.counts(of), begun.read_text().split()
    assert len(ran) == counts.done
    assert (counts.done + counts.ready, counts.lost, counts.leases) == (40, 0, 0)


def test_the_call_that_waits_behind_a_long_one_goes_to_a_place_that_is_free(site: Site) -> None:
    text = (
        "import os, time\ndef f(n):\n    open('begun', 'a').write(f'{n}\\n')\n"
        "    while n == 10 and len(open('begun').read().split()) < 40: time.sleep(0.01)\n    return n\n"
    )
    of = site.make(list(range(40)), batch_items=40)
    assert site.ended(site.worker(function(site, text) | {"slots": 2}))[0] == 0
    assert site.results(of) == {n: n for n in range(40)}


def test_each_answer_is_that_of_its_own_item_however_places_exchange_them(site: Site) -> None:
    of = site.make(list(range(3000)), batch_items=30)
    orders = function(site, "def f(n):\n    return n\n") | {"slots": 4}
    assert site.ended(site.worker(orders))[0] == 0
    assert site.results(of) == {n: n for n in range(3000)}


def test_the_longest_values_reach_a_loaded_function(site: Site) -> None:
    values = ["\u20ac" * 21_000, [1e9] * 10_000, "\u0000" * 10_000]
    of = site.make(values)
    text = "def f(value):\n    return [len(value), value[0], value[-1]]\n"
    assert site.ended(site.worker(function(site, text)))[0] == 0
    assert site.results(of) == {at: [len(one), one[0], one[-1]] for at, one in enumerate(values)}


def printed(site: Site, query: str = "", name: str = "m") -> list[tuple[int, bytes]]:
    import urllib.request

    request = urllib.request.Request(
        f"http://127.0.0.1:{site.port}/api/v1/maps/lab/{name}/output{query}",
        headers={"Authorization": "Bearer ada-token"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        lines = [json.loads(line) for line in answer]
    return [(one["item"], base64.b64decode(one["output"])) for one in lines]


def test_what_items_print_is_there_when_the_worker_is_gone(site: Site) -> None:
    of = site.make(["eins", "zwei"])
    following: queues.SimpleQueue[list[tuple[int, bytes]]] = queues.SimpleQueue()
    follower = threading.Thread(target=lambda: following.put(printed(site, "?follow=true")))
    follower.start()
    site.ended(site.worker(python("print('this is', value); os.write(2, b'no line end')")))
    said = b"".join(one for item, one in printed(site, "?item=1") if item == 1)
    assert said in (b"no line endthis is zwei\n", b"this is zwei\nno line end\n")
    assert {item for item, _ in printed(site)} == {0, 1}
    assert sorted(following.get(timeout=PATIENCE_SECONDS)) == sorted(printed(site))
    follower.join()
    assert site.counts(of).done == 2


def test_who_follows_a_map_gets_what_its_workers_could_send_only_after_the_last_item(site: Site) -> None:
    site.refused["/api/v1/work/output"] = 0
    of = site.make(["eins", "zwei"])
    following: queues.SimpleQueue[list[tuple[int, bytes]]] = queues.SimpleQueue()
    follower = threading.Thread(target=lambda: following.put(printed(site, "?follow=true")))
    follower.start()
    worker = site.worker(python("print(value)"))
    site.until(lambda: site.counts(of).done == 2 and site.refused["/api/v1/work/output"] > 2)
    site.refused.clear()
    assert site.ended(worker)[0] == 0
    assert sorted(following.get(timeout=PATIENCE_SECONDS)) == [(0, b"eins\n"), (1, b"zwei\n")]
    follower.join()


def test_told_to_stop_it_hands_back_what_it_has_not_begun(site: Site) -> None:
    of = site.make(list(range(20)), batch_items=10)
    flag, begun = site.folder / "go", site.folder / "begun"
    worker = site.worker(
        python(
            f"import time\nopen({str(begun)!r}, 'w').close()\n"
            f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)\nresult(1)"
        )
    )
    site.until(begun.exists)
    worker.send_signal(signal.SIGTERM)
    flag.touch()
    assert site.ended(worker)[0] == 0
    counts = site.counts(of)
    assert (counts.leased, counts.leases, counts.lost, counts.workers) == (0, 0, 0, 0)
    assert counts.done >= 1
    assert counts.done + counts.ready == 20


def test_what_does_not_end_within_the_grace_is_abandoned_free_of_charge(site: Site) -> None:
    of = site.make(["x"], retries=0)
    worker = site.worker(python("import time; print('on', flush=True); time.sleep(1000)"), MOORAGE_GRACE="6")
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"[0] on\n"
    worker.send_signal(signal.SIGTERM)
    assert site.ended(worker)[0] == 0
    counts = site.counts(of)
    assert (counts.ready, counts.dead, counts.lost, counts.failed) == (1, 0, 1, 0)


def test_a_server_that_is_away_costs_no_answer(site: Site) -> None:
    of = site.make(list(range(40)), batch_items=20, lease_seconds=30.0)
    flag = site.folder / "go"
    worker = site.worker(
        python(
            f"import time\nwhile value > 9 and not os.path.exists({str(flag)!r}): time.sleep(0.01)\nresult(value)"
        )
    )
    site.until(lambda: site.counts(of).done > 0)
    site.go_away()
    flag.touch()
    site.start()
    assert site.ended(worker)[0] == 0
    assert site.results(of) == {at: at for at in range(40)}
    counts = site.counts(of)
    assert counts.granted - counts.returned == 40 + counts.lost


def test_a_worker_killed_outright_loses_nothing(site: Site) -> None:
    of = site.make(list(range(60)), lease_seconds=2.0)
    orders = python("import time; time.sleep(0.05); result(value)") | {"slots": 2}
    first, second = site.worker(orders), site.worker(orders)
    site.until(lambda: site.counts(of).done > 5)
    first.kill()
    assert site.ended(second)[0] == 0
    assert site.results(of) == {at: at for at in range(60)}
    counts = site.counts(of)
    assert counts.granted - counts.returned == 60 + counts.lost


def test_a_paused_worker_that_comes_back_late_cannot_overwrite(site: Site) -> None:
    of = site.make(["x"], lease_seconds=2.0)
    flag = site.folder / "go"
    text = (
        f"import time\nprint('on', flush=True)\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        "result(os.environ['WHO'])"
    )
    late = site.worker(python(text), WHO="late")
    assert late.stdout is not None
    assert late.stdout.readline() == b"[0] on\n"
    late.send_signal(signal.SIGSTOP)
    flag.touch()
    assert site.ended(site.worker(python(text), WHO="second"))[0] == 0
    late.send_signal(signal.SIGCONT)
    assert site.ended(late)[0] == 0
    assert site.results(of) == {0: "second"}
    assert site.counts(of).granted >= 2  # more, where a busy machine let the second's lease run out, too


def test_a_straggler_runs_a_second_time_beside_the_first_and_its_late_answer_is_refused(site: Site) -> None:
    of = site.make(list(range(8)), idempotent=True, batch_items=1)
    flag = site.folder / "go"
    text = (
        "import time\nprint('on', value, flush=True)\n"
        "while value == 0 and os.environ['WHO'] == 'slow' "
        f"and not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        "result(os.environ['WHO'])"
    )
    slow = site.worker(python(text), WHO="slow")
    assert slow.stdout is not None
    assert slow.stdout.readline() == b"[0] on 0\n"
    other = site.worker(python(text), WHO="other")
    site.until(lambda: site.counts(of).done == 8)
    flag.touch()
    assert (site.ended(other)[0], site.ended(slow)[0]) == (0, 0)
    assert sorted(site.results(of)) == list(range(8))
    assert site.results(of)[0] == "other"
    assert site.counts(of).twinned >= 1


def test_a_rate_is_kept_by_real_workers_together(site: Site) -> None:
    made = time.monotonic()
    of = site.make(list(range(20)), rate=5.0)
    text = "import time\nresult(time.monotonic())"
    workers = [site.worker(python(text) | {"slots": 4}) for _ in range(2)]
    assert [site.ended(one)[0] for one in workers] == [0, 0]
    # a bucket of one second's worth: what exceeds it has waited its time
    assert max(site.results(of).values()) - made >= (20 - 5) / 5.0


def test_idle_workers_leave_when_the_last_item_is_done(site: Site) -> None:
    of = site.make(["x"])
    flag = site.folder / "go"
    text = f"import time\nprint('on', flush=True)\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)"
    busy = site.worker(python(text))
    assert busy.stdout is not None
    assert busy.stdout.readline() == b"[0] on\n"
    idle = site.worker(python(text))
    site.until(lambda: bool(site.queue._parked))
    assert idle.poll() is None
    flag.touch()
    assert (site.ended(busy)[0], site.ended(idle)[0]) == (0, 0)
    assert site.counts(of).done == 1


def test_a_cancelled_map_stops_its_workers_at_once(site: Site) -> None:
    from moorage.decide.maps.leasing import MapState

    of = site.make(list(range(5)), lease_seconds=3.0)
    worker = site.worker(python("import time; print('on', flush=True); time.sleep(1000)"))
    assert worker.stdout is not None
    worker.stdout.readline()
    site.run(site.queue.change_map(of, state=MapState.CANCELLED))
    assert site.ended(worker)[0] == 0
    assert site.counts(of).leased == 0


@pytest.mark.parametrize(
    ("orders", "env", "said"),
    [
        ({"command": ["true"], "preflight": {"read": ["/nope"]}}, {}, "input /nope cannot be read: No such file"),
        ({"command": ["true"], "preflight": {"write": ["/proc/x"]}}, {}, "output /proc/x cannot be written:"),
        ({}, {}, "MOORAGE_MAP needs one of command and function"),
        ({"command": ["true"]}, {"MOORAGE_MAP_TOKEN": "wrong"}, "the server refuses this map's token"),
        ({"function": "/nope.zip"}, {}, "the function does not load: FileNotFoundError"),
    ],
)
def test_a_worker_that_cannot_work_here_says_why(
    site: Site, orders: dict[str, Any], env: dict[str, str], said: str
) -> None:
    of = site.make(["x"])
    code, printed = site.ended(site.worker(orders, **env))
    assert code == 3
    assert f"moorage worker: {said}" in printed.splitlines()[-1]
    assert site.counts(of).dead == 0


def test_a_pickle_of_another_python_is_refused_with_what_to_do(site: Site) -> None:
    site.make(["x"])
    path = site.folder / "f.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("f.pkl", b"x")
        archive.writestr("map.json", json.dumps({"pickle": "f.pkl", "python": "3.1"}))
    code, printed = site.ended(site.worker({"function": str(path)}))
    assert code == 3
    assert "it was pickled by Python 3.1" in printed
    assert "use an image with Python 3.1" in printed


def test_a_pickled_function_takes_and_gives_any_object(site: Site) -> None:
    import pickle

    path = site.folder / "f.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("f.pkl", pickle.dumps(complex))
        python_version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        about = {"pickle": "f.pkl", "python": python_version, "codec": "pickle"}
        archive.writestr("map.json", json.dumps(about))
    of = site.make([base64.b64encode(pickle.dumps("1+2j")).decode()])
    assert site.ended(site.worker({"function": str(path)}))[0] == 0
    assert pickle.loads(base64.b64decode(site.results(of)[0])) == 1 + 2j


def test_the_worker_runs_on_the_oldest_python_it_promises(site: Site) -> None:
    import shutil

    old = next((one for one in ("python3.8", "python3.9") if _runs(shutil.which(one))), None)
    if old is None:
        pytest.skip("no Python 3.8 or 3.9 on this machine")
    of = site.make([1, 2, 3])
    text = "def f(x):\n    return x + 1\n"
    orders = function(site, text)
    (site.folder / "worker.pyz").write_bytes(worker_zip())
    told = {
        "MOORAGE_SERVER": f"http://127.0.0.1:{site.port}",
        "MOORAGE_MAP_TOKEN": site.token,
        "MOORAGE_MAP": json.dumps(orders),
    }
    subprocess.run([old, "worker.pyz"], cwd=site.folder, env={**os.environ, **told}, check=True, timeout=90)
    assert site.results(of) == {0: 2, 1: 3, 2: 4}


def _runs(path: str | None) -> bool:
    return path is not None and subprocess.run([path, "-c", "0"], capture_output=True, check=False).returncode == 0


FEW_FILES = ("sh", "-c", 'ulimit -n 24; exec "$@"', "sh")


@pytest.mark.parametrize("kind", ["command", "function"])
def test_a_worker_with_few_file_numbers_runs_fewer_items_at_once_and_fails_none(site: Site, kind: str) -> None:
    of = site.make(list(range(40)), retries=0)
    orders = (
        {"command": ["sh", "-c", "sleep 0.05; printf {item} > $MOORAGE_RESULT"]}
        if kind == "command"
        else function(site, "import time\ndef f(n):\n    time.sleep(0.01)\n    return n\n")
    )
    assert site.ended(site.worker(orders | {"slots": 16}, before=FEW_FILES))[0] == 0
    assert site.results(of) == {n: n for n in range(40)}


@pytest.mark.parametrize("batch", [1, 6])
def test_a_process_that_an_earlier_call_has_ended_takes_no_later_call_with_it(site: Site, batch: int) -> None:
    text = (
        "import os, socket\ndef f(n):\n    socket.socket.recv = lambda *_: os._exit(0)  # it takes no other item\n"
        "    return n\n"
    )
    of = site.make(list(range(12)), retries=0, batch_items=batch)
    assert site.ended(site.worker(function(site, text)))[0] == 0
    assert [one.failure for one in site.items(of)] == [None] * 12
    assert site.results(of) == {n: n for n in range(12)}


# what items may do with their output, their end and their result: each a command for `sh`, with what comes of it
KINDS: dict[str, str] = {
    "nothing": ":",
    "a line": "echo a line",
    "half a line": "printf 'no end'",
    "much": "head -c 300000 /dev/zero | tr '\\0' 'x'",
    "many lines": "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done",
    "binary": "printf '\\000\\377\\012\\200\\r\\n\\033[31m'; exit 4",
    "both": "echo out; echo err >&2; printf more; printf last >&2; exit 5",
    "closed": "exec >&- 2>&-; sleep 0.02; printf 7 > $MOORAGE_RESULT",
    "closed, failed": "exec >&- 2>&-; sleep 0.02; exit 6",
    "left behind": "sleep 60 & echo begun",
    "left behind, silent": "sleep 60 > /dev/null 2>&1 & :",
    "escaped": "setsid sleep 1 & echo begun",
    "escaped, failed": "setsid sleep 1 & echo begun; exit 8",
    "chatty, left behind": "(while :; do echo x; done) & sleep 0.02; printf 1 > $MOORAGE_RESULT",
    "result": "printf '{\"a\": [1, null]}' > $MOORAGE_RESULT; echo written",
    "text": "printf 'no json' > $MOORAGE_RESULT",
    "path": 'printf \'{"$path": "/data/x"}\' > $MOORAGE_RESULT',
    "result, failed": "printf 1 > $MOORAGE_RESULT; exit 9",
    "no result": "rm $MOORAGE_RESULT",
    "failed": "echo why >&2; exit 3",
    "killed": "printf half; kill -KILL $$",
    "ended": "kill -TERM $$",
    "hung up": "kill -HUP $$",
}


def outcomes(site: Site, of: int) -> list[Any]:
    """What became of each item: state, result, failure and its last output."""
    found = site.results(of)
    return [
        (
            one.state,
            found.get(at),
            one.failure and (one.failure.cause, one.failure.message),
            site.output(of, at) if one.failure is not None else None,
        )
        for at, one in enumerate(site.items(of))
    ]


# the same for a loaded function, which executes its item
CALLS: dict[str, str] = {
    "nothing": "",
    "a line": "print('a line')",
    "half a line": "os.write(2, b'no end')",
    "much": "os.write(1, b'y' * 200_000)",
    "result": "r = {'a': [1, None]}",
    "long result": "r = 'x' * 300_000",
    "closed": "os.close(1); os.close(2); time.sleep(0.02); r = 7",
    "closed streams": "sys.stdout.close(); sys.stderr.close(); r = 8",
    "no streams": "sys.stdout = sys.stderr = None",
    "other streams": "print('mine'); sys.stdout = sys.stderr = open(os.devnull, 'w')",
    "detached streams": "print('mine'); sys.stdout.detach(); sys.stderr.detach()",
    "failed": "print('before'); 1 / 0",
    "left behind": "subprocess.Popen(['sleep', '60']); r = 1",
    "left behind, failed": "subprocess.Popen(['sleep', '60']); sys.exit(3)",
    "left behind, died": "subprocess.Popen(['sleep', '60']); os._exit(4)",
    "escaped, died": "subprocess.Popen(['sleep', '1'], start_new_session=True); os._exit(4)",
    "died": "os.write(1, b'half'); os._exit(5)",
    "died silently": "os.closerange(1, 3); os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}
CALL = (
    "import os, signal, subprocess, sys, time, warnings\nwarnings.simplefilter('ignore')\n"
    "def f(text):\n    scope = globals() | {'r': None}\n    exec(text, scope)\n    return scope['r']\n"
)


@pytest.mark.parametrize("kind", ["other streams", "detached streams", "closed streams", "no streams"])
def test_a_call_that_changes_its_streams_takes_no_output_of_the_next(site: Site, kind: str) -> None:
    of = site.make([CALLS[kind], "print('out'); print('err', file=sys.stderr); 1 / 0"], retries=0)
    assert site.ended(site.worker(function(site, CALL)))[0] == 0
    output = site.output(of, 1)
    for text in (b"out\n", b"err\n", b"ZeroDivisionError"):
        assert text in output
    assert b"mine" not in output


few_long_examples = settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_same_with_one_slot(site: Site, orders: dict[str, Any], values: list[str], slots: int) -> None:
    ended = []
    for count in (slots, 1):
        of = site.make(values, name=f"m{len(site.workers)}", retries=0)
        assert site.ended(site.worker(orders | {"slots": count}))[0] == 0
        ended.append(outcomes(site, of))
    assert ended[0] == ended[1]


@few_long_examples
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=40, max_size=80), st.integers(2, 16))
@example([kind for kind in KINDS for _ in range(4)], 16)
@example(["closed", "a line", "nothing"] * 25, 4)
def test_commands_end_the_same_however_many_slots_a_worker_has(site: Site, kinds: list[str], slots: int) -> None:
    assert_same_with_one_slot(site, {"command": ["sh", "-c", "{item}"]}, [KINDS[kind] for kind in kinds], slots)


@few_long_examples
@given(st.lists(st.sampled_from(sorted(CALLS)), min_size=40, max_size=80), st.integers(2, 16))
@example([kind for kind in CALLS for _ in range(3)], 16)
def test_calls_end_the_same_however_many_slots_a_worker_has(site: Site, kinds: list[str], slots: int) -> None:
    assert_same_with_one_slot(site, function(site, CALL), [CALLS[kind] for kind in kinds], slots)
