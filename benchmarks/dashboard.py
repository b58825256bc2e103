"""The front page of a large cluster: first paint, how soon a change is seen, what open pages cost.

    python benchmarks/dashboard.py [--nodes 200] [--gpus 8] [--pods 2000] [--pages 200] [--changes 5]

A server process of its own, with an API in its memory, SQLite files in a temporary folder and a history of a week.
Of its pods 1,400 run with a GPU each; the others wait. `--changes` pods start or end each second:
2,000 pods that live a quarter of an hour on average make 2.2 starts and 2.2 ends a second. Once a second a pod
appears whose name is its time: Chromium says when it has drawn it. Pages beside Chromium are connections that read
all they are sent. CPU is that of the server's process, whole: the API in its memory, the history, the pages.
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
from datetime import timedelta
from pathlib import Path
from typing import Any

from moorage.apimachinery.resources import JOBS, NODES, PODS, Obj
from moorage.apimachinery.serving import serve
from moorage.clock import SYSTEM, rfc3339
from moorage.decide.rates import Rate
from moorage.decide.usage.intervals import Interval, Open
from moorage.model.names import RUN_LABEL
from moorage.server.service import ServerService
from moorage.testing.browser import ARGS, chromium_path
from moorage.testing.fakeapi import FakeApi

TOKEN, GPU = "a-page-token", "nvidia.com/gpu"
TYPES = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "Tesla-T4")
OWNERS = [f"person{number:02}" for number in range(40)]
READY = [{"type": "Ready", "status": "True"}]


def a_node(number: int, gpus: int) -> Obj:
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", GPU: str(gpus)}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": READY}
    labels = {"nvidia.com/gpu.product": TYPES[number % len(TYPES)]}
    return {"metadata": {"name": f"gpu-{number:03}", "labels": labels}, "spec": {}, "status": status}


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
        self.api.put(JOBS, a_job(pod))
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


def remember(service: ServerService, pods: int) -> None:
    """A week of use: each pod's place was held by seven others, one after another."""
    now = SYSTEM.now()
    day = timedelta(days=1)
    service.usage.apply(
        Open(
            Interval(
                pod_uid=f"past-{number}-{back}", namespace=f"team-{number % 12}", pod=f"past-{number}",
                run=f"past-{number}", attempt=1, owner=OWNERS[number % len(OWNERS)], node="gpu-001",
                gpu_type="a100", gpus=1, cpu_milli=4000,
                memory_bytes=2**34, started_at=now - back * day, ended_at=now - (back - 1) * day, last_seen_at=now,
            )
        )
        for number in range(pods)
        for back in range(1, 8)
    )  # fmt: skip


async def serve_load(options: argparse.Namespace, folder: Path) -> None:
    api = FakeApi()
    load = Load(api, nodes=options.nodes, gpus=options.gpus, pods=options.pods)
    service = ServerService(api, usage_db=folder / "usage.db", page_token=TOKEN, rate=Rate(per_second=0))
    remember(service, options.pods)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.run())
            tasks.create_task(serve(service.app, sock))
            print(sock.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.readline)  # until the pages are open
            tasks.create_task(load.go_on(options.changes))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def listen(session: Any, url: str, count: dict[str, int], sizes: list[int] | None) -> None:
    async with session.get(url, timeout=None) as answer:
        rest = b""
        async for chunk in answer.content.iter_any():
            count["bytes"] += len(chunk)
            if sizes is None:
                continue
            *events, rest = (rest + chunk).split(b"\n\n")
            sizes += [len(one) + 2 for one in events if one.startswith(b"event: node-")]


WATCH = """() => { window.seen = []; const known = new Set();
  new MutationObserver(() => { for (const tile of document.querySelectorAll('[aria-label*="probe-"]')) {
    const at = Number(tile.getAttribute('aria-label').split('probe-')[1]);
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
    count, sizes = {"bytes": 0}, []
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), headers={"authorization": f"Bearer {TOKEN}"}
            ) as session,
            async_playwright() as playwright,
        ):
            async with session.get(f"{base}/") as answer:
                page_bytes = len(await answer.read())
            mark = "none"
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
            text = await page.content()
            found_mark = re.search(r"seen=([0-9a-f]+-\d+)", text)
            mark = found_mark[1] if found_mark else mark
            nodes, gpus = await page.locator(".node").count(), await page.locator(".cell, .tile").count()
            await page.evaluate(WATCH)
            url = f"{base}/events/page?seen={mark}"
            listeners = [
                asyncio.create_task(listen(session, url, count, sizes if number == 0 else None))
                for number in range(options.pages - 1)
            ]
            await asyncio.sleep(3)
            server.stdin.write(b"go\n")
            await asyncio.sleep(5)
            began, cpu, sent = time.monotonic(), cpu_seconds(server.pid), count["bytes"]
            await asyncio.sleep(options.seconds)
            cpu, took = cpu_seconds(server.pid) - cpu, time.monotonic() - began
            seen = sorted(await page.evaluate("() => window.seen"))
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)
            await browser.close()
    finally:
        server.kill()
        await server.wait()
    middle, most = (statistics.median(seen), seen[-1]) if seen else (float("nan"), float("nan"))
    share = seen[min(len(seen) - 1, int(len(seen) * 0.95))] if seen else float("nan")
    each = (count["bytes"] - sent) / took / max(1, options.pages - 1) / 1024
    print(f"{nodes} nodes, {gpus} GPUs, {options.pods} pods; the page is {page_bytes / 1024:.0f} KB")
    print(f"first paint: median {statistics.median(paints):.0f} ms, worst of {len(paints)} {max(paints):.0f} ms")
    print(f"page loaded: median {statistics.median(opened):.0f} ms, worst {max(opened):.0f} ms")
    print(f"a change is drawn after: median {middle:.0f} ms, 95 % {share:.0f} ms, worst of {len(seen)} {most} ms")
    print(f"{options.pages} pages, {options.changes:g} changes a second: {cpu / took:.0%} of a core")
    print(f"sent to each page: {each:.1f} KB/s")
    print(f"a changed node: median {statistics.median(sizes):.0f} bytes, at most {max(sizes)} ({len(sizes)} sent)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--pages", type=int, default=200)
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
