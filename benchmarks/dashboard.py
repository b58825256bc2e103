"""The front page of a large cluster: first paint, how soon a change is seen, what open pages cost.

    python benchmarks/dashboard.py [--nodes 200] [--gpus 8] [--pods 2000] [--pages 200] [--changes 5]

A server process of its own, with an API in its memory, SQLite files in a temporary folder and a history of a week.
Of its pods 1,400 run with a GPU each; the others wait. `--changes` pods start or end each second:
2,000 pods that live a quarter of an hour on average make 2.2 starts and 2.2 ends a second. Once a second a pod
appears whose name is its time: Chromium says when it has drawn it.

Pages beside Chromium are of `--people` people, who come by tokens of their own: every tenth may see all, each
other two of twelve teams. They are connections that read all they are sent, and that ask for the parts of their
viewer as often as a browser does; who opens a page asks for each at once. There are reservations, maps,
workflows, idle runs, budgets and prices. The server's own collector asks an exporter for every GPU each half
minute, and each time every GPU is at work differently.

CPU is that of the server's process, whole: the API in its memory, the exporter, the history, the pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.actions.maps import create_map
from moorage.api.maps import NewMap
from moorage.decide.idle.states import Record, State, write_record
from moorage.decide.rates import Rate
from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.nodelives import Begin, life_of
from moorage.decide.usage.readings import MEMORY_FREE, MEMORY_USED, POWER, UTILISATION
from moorage.model.argo import WORKFLOWS
from moorage.model.budget import BUDGETS
from moorage.model.names import IDLE_ANNOTATION, PRICES_CONFIGMAP, PRICES_KEY, RUN_LABEL, SYSTEM_NAMESPACE
from moorage.model.reservation import RESERVATIONS
from moorage.model.tenant import TENANTS
from moorage.server.service import ServerService
from moorage.server.usagesources import SourceSettings
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES, NODES, PODS, Obj
from moorage_kube.serving import serve
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.browser import ARGS, chromium_path

TOKEN, GPU = "a-page-token", "nvidia.com/gpu"
TYPES = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "Tesla-T4")
OWNERS = [f"person{number:02}" for number in range(40)]
TEAMS = [f"team-{number}" for number in range(12)]
OPENED_WITHIN = 20.0  # seconds, all pages
ASKED = {"/glance/work": 30.0, "/glance/history": 300.0, "/glance/cost": 1800.0}  # as page.html has it; seconds
PRICES = """
source: a benchmark
date: 2026-11-01
currency: USD
owned:
- {name: rack, nodes: ["gpu-*"], purchase: 60000000, years: 5}
"""
READY = [{"type": "Ready", "status": "True"}]


def a_node(number: int, gpus: int) -> Obj:
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", GPU: str(gpus)}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": READY}
    labels = {"nvidia.com/gpu.product": TYPES[number % len(TYPES)]}
    meta = {"name": f"gpu-{number:03}", "labels": labels, "creationTimestamp": rfc3339(SYSTEM.now())}
    return {"metadata": meta, "spec": {}, "status": status}


def a_pod(name: str, owner: str, *, gpus: int = 1, node: str = "", kind: str = "") -> Obj:
    created = rfc3339(SYSTEM.now())
    amounts = {"cpu": "4", "memory": "16Gi"} | ({GPU: str(gpus)} if gpus else {})
    container = {"name": "main", "image": "train:1", "resources": {"limits": amounts, "requests": amounts}}
    spec: dict[str, Any] = {"containers": [container]} | ({"nodeName": node} if node else {})
    if kind:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": kind}
    status: dict[str, Any] = {"phase": "Pending"}
    if node:
        state = {"name": "main", "ready": True, "state": {"running": {"startedAt": created}}}
        status = {"phase": "Running", "startTime": created, "containerStatuses": [state]}
    return {
        "metadata": {
            "name": name, "namespace": f"team-{OWNERS.index(owner) % 12}", "uid": f"uid-{name}",
            "creationTimestamp": created,
            "labels": {RUN_LABEL: name}, "annotations": {"moorage.dev/owner": owner},
        },
        "spec": spec,
        "status": status,
    }  # fmt: skip


def a_job(pod: Obj) -> Obj:
    meta = pod["metadata"]
    template = {"metadata": {"labels": meta["labels"], "annotations": meta["annotations"]}, "spec": pod["spec"]}
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations", "creationTimestamp")}
    return {"metadata": kept, "spec": {"template": template}, "status": {"active": 1}}


class Load:
    """Puts pods into the API, and changes some of them."""

    def __init__(self, api: FakeApi, *, nodes: int, gpus: int, pods: int) -> None:
        self.api, self.random = api, random.Random(14)
        self.nodes = [f"gpu-{number:03}" for number in range(nodes)]
        for number in range(nodes):
            api.put(NODES, a_node(number, gpus))
        self.free = [name for name in self.nodes for _ in range(gpus)]
        self.random.shuffle(self.free)
        self.running: list[tuple[Obj, str]] = []
        self.made = 0
        while self.made < pods and len(self.free) > nodes * gpus // 8:
            self.start()
        for number in range(pods - self.made):
            kind = TYPES[number % len(TYPES)]
            gpus_asked = 0 if number % 2 else 8
            self.put(a_pod(f"waits-{number}", self.random.choice(OWNERS), gpus=gpus_asked, kind=kind))

    def put(self, pod: Obj) -> None:
        job = a_job(pod)
        if self.random.random() < 0.02:
            idle = Record(state=State.WARNED, since=SYSTEM.now(), why="no GPU was used for 1h", gpus=1)
            job["metadata"]["annotations"] |= {IDLE_ANNOTATION: write_record(idle)}
        self.api.put(JOBS, job)
        self.api.put(PODS, pod)

    def start(self, name: str = "") -> None:
        node = self.free.pop()
        self.made += 1
        pod = a_pod(name or f"train-{self.made}", self.random.choice(OWNERS), node=node)
        self.put(pod)
        self.running.append((pod, node))

    def end(self) -> None:
        pod, node = self.running.pop(self.random.randrange(len(self.running)))
        meta = pod["metadata"]
        self.api.remove(PODS, meta["name"], meta["namespace"])
        self.api.remove(JOBS, meta["name"], meta["namespace"])
        self.free.insert(0, node)

    async def go_on(self, changes: float) -> None:
        number = 0
        while True:
            await asyncio.sleep(1 / changes)
            number += 1
            if number % max(1, round(changes)) == 0:
                self.start(f"probe-{time.time_ns() // 1_000_000}")  # the clock of the browser
            elif number % 2:
                self.end()
            else:
                self.start()


class PeopleApi(FakeApi):
    """The API as it answers the server for people: each sees the namespaces that they may read."""

    def __init__(self) -> None:
        super().__init__(users={token_of(owner): owner for owner in OWNERS})
        for number, owner in enumerate(OWNERS):
            namespaces = [None] if number % 10 == 0 else [TEAMS[number % 12], TEAMS[(number + 1) % 12]]
            self.readers |= {(owner, namespace) for namespace in namespaces}
        self._acting: dict[str, PeopleApi] = {}

    def with_token(self, token: str, _account: str = "") -> PeopleApi:
        if token not in self.users:
            raise PermissionError(token)
        return self  # the server asks for rights first, and lists by namespace where one may not list all


def token_of(owner: str) -> str:
    return f"token-of-{owner}"


def add_team_things(api: FakeApi) -> None:
    """Tenants, reservations, workflows, idle runs, budgets and prices: what viewers see apart from the GPUs."""
    now, day = SYSTEM.now(), timedelta(days=1)
    for number, team in enumerate(TEAMS):
        members = [owner for at, owner in enumerate(OWNERS) if number in (at % 12, (at + 1) % 12)]
        api.put(NAMESPACES, {"metadata": {"name": team}})
        spec: Obj = {"namespace": team, "members": {"users": members}}
        api.put(TENANTS, {"metadata": {"name": team}, "spec": spec})
        for at in range(3):
            spec = {"machineGroup": "gpu", "machineType": "large", "count": 2}
            spec |= {"from": rfc3339(now + (3 * at - 1) * day), "to": rfc3339(now + (3 * at + 1) * day)}
            meta = {"name": f"course-{at}", "namespace": team, "creationTimestamp": rfc3339(now)}
            api.put(RESERVATIONS, {"metadata": meta, "spec": spec})
        for at in range(10):
            meta = {"name": f"nightly-{at}", "namespace": team, "creationTimestamp": rfc3339(now - at * day)}
            status = {"phase": "Running" if at < 2 else "Succeeded", "progress": f"{at}/10"}
            api.put(WORKFLOWS, {"metadata": meta, "spec": {"templates": [], "entrypoint": "a"}, "status": status})
    for name, who in (("people", {"users": ["*"]}), ("teams", {"tenants": ["*"]})):
        uses = [
            {"name": each, "used": f"{10 * at}.00", "percent": 2 * at}
            for at, each in enumerate(OWNERS if name == "people" else TEAMS)
        ]
        moments = {"start": now - 10 * day, "end": now + 20 * day, "computedAt": now}
        status = {key: rfc3339(moment) for key, moment in moments.items()} | {"uses": uses}
        api.put(
            BUDGETS,
            {"metadata": {"name": name}, "spec": who | {"period": "month", "gpuHours": "500"}, "status": status},
        )
    meta = {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}
    api.put(CONFIGMAPS, {"metadata": meta, "data": {PRICES_KEY: PRICES}})


async def add_maps(service: ServerService) -> None:
    for number, team in enumerate(TEAMS):
        for at in range(2):
            await create_map(service.queue, team, NewMap(name=f"map-{at}", request=f"{team}-{at}"), OWNERS[number])


class Exporter:
    """Prometheus, as far as the collector asks it: each GPU that is held, each time at work differently."""

    def __init__(self, load: Load) -> None:
        self._load, self._random = load, random.Random(30)
        self.app = Starlette(routes=[Route("/api/v1/query", self.query)])

    async def query(self, _request: Request) -> Response:
        result = []
        for number, (pod, _) in enumerate(self._load.running):
            labels = {"UUID": f"GPU-{number}", "pod": pod["metadata"]["name"]}
            labels["namespace"] = pod["metadata"]["namespace"]
            values = {
                UTILISATION: self._random.randrange(101),
                MEMORY_USED: 30_000,
                MEMORY_FREE: 50_000,
                POWER: 300,
            }
            for name, value in values.items():
                result.append({"metric": {"__name__": name, **labels}, "value": [0, str(value)]})
        body = msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})
        return Response(body, media_type="application/json")


def remember(service: ServerService, pods: int, nodes: list[Obj]) -> None:
    """A week of use: each pod's place was held by seven others, one after another."""
    now = SYSTEM.now()
    day = timedelta(days=1)
    lives = [life for node in nodes if (life := life_of(node, now=now - 8 * day)) is not None]
    service.usage.apply_nodes([Begin(life) for life in lives], now=now - 8 * day)
    service.usage.apply(
        Open(
            Interval(
                pod_uid=f"past-{number}-{back}", namespace=f"team-{number % 12}", pod=f"past-{number}",
                run=f"past-{number}", attempt=1, owner=OWNERS[number % len(OWNERS)],
                node=f"gpu-{number % len(nodes):03}",
                gpu_type="a100", gpus=1, cpu_milli=4000,
                memory_bytes=2**34, started_at=now - back * day, ended_at=now - (back - 1) * day, last_seen_at=now,
            )
        )
        for number in range(pods)
        for back in range(1, 8)
    )  # fmt: skip


async def serve_load(options: argparse.Namespace, folder: Path) -> None:
    api = PeopleApi()
    load = Load(api, nodes=options.nodes, gpus=options.gpus, pods=options.pods)
    add_team_things(api)
    with socket.socket() as sock, socket.socket() as readings:
        for each in (sock, readings):
            each.bind(("127.0.0.1", 0))
            each.listen()
        service = ServerService(
            api, usage_db=folder / "usage.db", page_token=TOKEN, rate=Rate(per_second=0),
            sources=SourceSettings(prometheus=f"http://127.0.0.1:{readings.getsockname()[1]}"),
        )  # fmt: skip
        remember(service, options.pods, (await api.list(NODES)).items)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run())
            tasks.create_task(serve(Exporter(load).app, readings))
            tasks.create_task(serve(service.app, sock))
            await add_maps(service)
            while not service.collector.counts.readings:  # noqa: ASYNC110 - the collector says it to nobody
                await asyncio.sleep(0.1)
            print(sock.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.readline)  # until the pages are open
            tasks.create_task(load.go_on(options.changes))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Viewer:
    """A page of somebody: what a browser asks for, and all it is sent."""

    def __init__(self, session: Any, base: str, owner: str, delay: float) -> None:
        self._session, self._base, self._delay = session, base, delay
        self._headers = {"authorization": f"Bearer {token_of(owner)}"}
        self.bytes: Counter[str] = Counter()  # by event; what is asked for by its path
        self.node_sizes: list[int] = []
        self.asked_seconds: list[float] = []

    async def run(self) -> None:
        await asyncio.sleep(self._delay)
        text = (await self._ask("/")).decode()
        mark = re.search(r"seen=([0-9a-f]+-\d+)", text)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(mark[1] if mark else ""))
            for path, every in ASKED.items():
                tasks.create_task(self._ask_again(path, every))

    async def _ask(self, path: str) -> bytes:
        began = time.monotonic()
        async with self._session.get(self._base + path, headers=self._headers) as answer:
            body = await answer.read()
            assert answer.status == 200, (path, answer.status, body[:500])
        self.asked_seconds.append(time.monotonic() - began)
        self.bytes[path] += len(body)
        return body

    async def _ask_again(self, path: str, every: float) -> None:
        while True:
            await self._ask(path)
            await asyncio.sleep(every)

    async def _listen(self, mark: str) -> None:
        url = f"{self._base}/events/page?seen={mark}"
        async with self._session.get(url, headers=self._headers, timeout=None) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *events, rest = (rest + chunk).split(b"\n\n")
                for each in events:
                    name = each.partition(b"\n")[0].removeprefix(b"event: ").decode()
                    if name.startswith("node-"):
                        self.node_sizes.append(len(each) + 2)
                    self.bytes[re.sub(r"^(node|type)-.*", r"\1", name)] += len(each) + 2


WATCH = """() => { window.seen = []; const known = new Set();
  new MutationObserver(() => { for (const tile of document.querySelectorAll('[aria-label*="probe-"]')) {
    const at = parseInt(tile.getAttribute('aria-label').split('probe-')[1]);  // a use may follow
    if (!known.has(at)) { known.add(at); requestAnimationFrame(() => window.seen.push(Date.now() - at)); } }
  }).observe(document.body, {childList: true, subtree: true}); }"""


async def measure(options: argparse.Namespace) -> None:
    import aiohttp
    from playwright.async_api import async_playwright

    command = [sys.executable, __file__, "--serve"] + [
        f"--{name}={getattr(options, name)}" for name in ("nodes", "gpus", "pods", "changes")
    ]
    server = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    assert server.stdin is not None
    base = f"http://127.0.0.1:{int(await server.stdout.readline())}"
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers={"authorization": f"Bearer {TOKEN}"}
            ) as session,
            async_playwright() as playwright,
        ):
            async with session.get(f"{base}/") as answer:
                page_bytes = len(await answer.read())
            browser = await playwright.chromium.launch(executable_path=chromium_path(), args=ARGS)
            paints, opened = [], []
            for _ in range(options.paints):
                context = await browser.new_context(viewport={"width": 1280, "height": 900})
                page = await context.new_page()
                await page.goto(f"{base}/login")
                await page.goto(f"{base}/?token={TOKEN}", wait_until="load")
                await page.goto("about:blank")
                await page.goto(f"{base}/", wait_until="load")
                await page.wait_for_selector("#live[data-state=live]")
                await page.wait_for_timeout(300)
                timing = await page.evaluate(
                    "() => [performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                    " performance.getEntriesByType('navigation')[0].loadEventEnd]"
                )
                paints.append(timing[0])
                opened.append(timing[1])
                if len(paints) < options.paints:
                    await context.close()
            nodes, gpus = await page.locator(".node").count(), await page.locator(".cell, .tile").count()
            await page.evaluate(WATCH)
            count = options.pages - 1
            viewers = [
                Viewer(session, base, OWNERS[number % options.people], OPENED_WITHIN * number / count)
                for number in range(count)
            ]
            began, cpu = time.monotonic(), cpu_seconds(server.pid)
            listeners = [asyncio.create_task(viewer.run()) for viewer in viewers]
            await asyncio.sleep(OPENED_WITHIN + 1)
            opening = (cpu_seconds(server.pid) - cpu) / (time.monotonic() - began)
            slowest_opening = max(seconds for viewer in viewers for seconds in viewer.asked_seconds)
            server.stdin.write(b"go\n")
            await asyncio.sleep(10)
            for viewer in viewers:
                viewer.bytes.clear()
                viewer.asked_seconds.clear()
            began, cpu = time.monotonic(), cpu_seconds(server.pid)
            await asyncio.sleep(options.seconds)
            cpu, took = cpu_seconds(server.pid) - cpu, time.monotonic() - began
            seen = sorted(await page.evaluate("() => window.seen"))
            measured = await page.locator(".measured").count()
            lost = [listener for listener in listeners if listener.done()]
            for listener in listeners:
                listener.cancel()
            for outcome in await asyncio.gather(*listeners, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
            await browser.close()
    finally:
        server.kill()
        await server.wait()
    middle, most = (statistics.median(seen), seen[-1]) if seen else (float("nan"), float("nan"))
    share = seen[min(len(seen) - 1, int(len(seen) * 0.95))] if seen else float("nan")
    kinds: Counter[str] = Counter()
    for viewer in viewers:
        kinds += viewer.bytes
    each = {name: size / took / len(viewers) / 1024 for name, size in kinds.most_common()}
    sizes = [size for viewer in viewers for size in viewer.node_sizes]
    asked = sorted(seconds for viewer in viewers for seconds in viewer.asked_seconds)
    per_part = ", ".join(f"{name} {rate:.2f}" for name, rate in each.items() if rate >= 0.01)
    print(
        f"{nodes} nodes, {gpus} GPUs ({measured} measured), {options.pods} pods; page: {page_bytes / 1024:.0f} KB"
    )
    print(f"first paint: median {statistics.median(paints):.0f} ms, worst of {len(paints)} {max(paints):.0f} ms")
    print(f"page loaded: median {statistics.median(opened):.0f} ms, worst {max(opened):.0f} ms")
    print(f"{count} pages opened in {OPENED_WITHIN:g} s: {opening:.0%} of a core, slowest {slowest_opening:.1f} s")
    print(f"a change is drawn after: median {middle:.0f} ms, 95 % {share:.0f} ms, worst of {len(seen)} {most} ms")
    load = f"{options.pages} pages, {options.people} people, {options.changes:g} changes/s"
    print(f"{load}: {cpu / took:.0%} of a core")
    print(f"{len(asked)} parts asked for: median {statistics.median(asked):.3f} s, slowest {asked[-1]:.3f} s")
    print(f"sent to each page: {sum(each.values()):.1f} KB/s: {per_part}")
    print(f"a changed node: median {statistics.median(sizes):.0f} bytes, at most {max(sizes)} ({len(sizes)} sent)")
    print(f"pages that were cut off: {len(lost)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--people", type=int, default=40)
    parser.add_argument("--changes", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--paints", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.serve:
        asyncio.run(measure(options))
        return
    with tempfile.TemporaryDirectory(prefix="moor-") as folder:
        asyncio.run(serve_load(options, Path(folder)))


if __name__ == "__main__":
    main()
