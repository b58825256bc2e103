"""The web page of large workflows, and `moor workflow get`: time, size and lines of each.

    python benchmarks/workflow_page.py [--nodes 2000 10000] [--pictures FOLDER]

A local cluster in a temporary folder. The records of the workflows are written before it starts, by the machine
that decides on runs, with a cluster that is played. For each size: a DAG in which every task has four after it; a
loop in which every hundredth item failed; and items that go through three steps each, of which half have begun.

Printed: the size of the page; the median and the worst of some times to answer it, and its part that is asked for
again while the workflow runs; seconds, KiB and lines of `moor workflow get`. --pictures: photographs of the pages
as they are at first, and with boxes opened.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import msgspec

from moorage.cli.datafolder import DataFolder
from moorage_testing.browser import ARGS, chromium_path
from moorage_testing.workflowplayer import Ends, Player
from moorage_workflows.workflows.records import LocalRecords

SAMPLES = 7
STEP = {"name": "step", "container": {"image": "busybox", "command": ["true"]}}


def a_dag(number: int) -> list[dict[str, Any]]:
    tasks = [{"name": f"t{at}", "template": "step"} for at in range(number)]
    for at in range(1, number):
        tasks[at]["depends"] = f"t{(at - 1) // 4}"
    return [{"name": "main", "dag": {"tasks": tasks}}, STEP]


def a_loop(number: int) -> list[dict[str, Any]]:
    steps = [
        [{"name": "prepare", "template": "step"}],
        [
            {
                "name": "score",
                "template": "step",
                "withSequence": {"count": str(number)},
                "continueOn": {"failed": True},
            }
        ],
        [{"name": "report", "template": "step"}],
    ]
    return [{"name": "main", "steps": steps}, STEP]


def a_pipeline(number: int) -> list[dict[str, Any]]:
    each = {
        "name": "each",
        "steps": [[{"name": name, "template": "step"}] for name in ("fetch", "train", "upload")],
    }
    steps = [[{"name": "item", "template": "each", "withSequence": {"count": str(number // 4)}}]]
    return [{"name": "main", "steps": steps}, each, STEP]


def workflows(number: int) -> Iterator[tuple[str, Player]]:
    def made(name: str, templates: list[dict[str, Any]], **spec: Any) -> Player:
        manifest = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"entrypoint": "main", "templates": templates, **spec},
        }
        created = 0

        def table(_order: Any) -> Ends:
            nonlocal created
            created += 1
            return Ends(exit_code=1 if "loop" in name and created % 100 == 50 else 0)

        return Player(manifest, table, name=name)

    dag = made(f"dag-{number}", a_dag(number))
    play(dag)
    yield f"dag-{number}", dag
    loop = made(f"loop-{number}", a_loop(number))
    play(loop)
    yield f"loop-{number}", loop
    pipeline = made(f"pipeline-{number}", a_pipeline(number))
    play(pipeline, number // 3)
    yield f"pipeline-{number}", pipeline


def play(player: Player, number: int | None = None) -> None:
    """Play until so many pods have ended, 40 in a second; without a number to the end."""
    ended = 0
    player.decide()
    while not player.workflow.finished_at and (number is None or ended < number):
        pods = [name for name in player.ends if not player.pods[name].is_ended][:40]
        player.now += timedelta(seconds=1)
        for name in pods:
            player.end(name, player.ends[name][1])
        ended += len(pods)
        while player.decide() == timedelta(0):
            pass


async def keep(folder: Path, player: Player, name: str) -> int:
    records = LocalRecords(folder / "workflows.db")
    record = msgspec.structs.replace(player.workflow, uid=f"uid-{name}", owner="ada")
    await records.begin(record)
    await records.load(record.uid, "benchmark")
    await records.save(record.uid, "benchmark", tuple(player.nodes.values()), record)
    records.close()
    return len(player.nodes)


def timed(opener: urllib.request.OpenerDirector, address: str) -> tuple[list[float], int]:
    seconds, size = [], 0
    for _ in range(SAMPLES):
        began = time.monotonic()
        size = len(opener.open(address).read())
        seconds.append(time.monotonic() - began)
    return seconds, size


def words(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.0f} ms, at worst {max(seconds) * 1e3:.0f} ms"


def look_at(server: str, token: str, names: list[str], moor: list[str], data: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(f"{server}/?token={token}").read()
    for name in names:
        page = f"{server}/workflows/default/{name}"
        whole, size = timed(opener, page)
        live, _ = timed(opener, f"{page}/live")
        print(f"{name}: page {size / 1024:.0f} KiB in {words(whole)}; its live part in {words(live)}", flush=True)
        began = time.monotonic()
        done = subprocess.run([*moor, "workflow", "get", name], capture_output=True, text=True, check=True)
        took = time.monotonic() - began
        lines = done.stdout.count("\n")
        print(f"  moor workflow get: {took:.1f} s, {len(done.stdout) / 1024:.0f} KiB, {lines} lines", flush=True)
        (data / f"{name}.txt").write_text(done.stdout)


async def photograph(server: str, token: str, names: list[str], folder: Path) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium_path(), args=ARGS)
        for width, scheme in ((1280, "light"), (420, "dark")):
            context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = await context.new_page()
            await page.goto(f"{server}/?token={token}")
            for name in names:
                began = time.monotonic()
                await page.goto(f"{server}/workflows/default/{name}")
                print(f"  {name} drawn at {width} pixels after {time.monotonic() - began:.1f} s", flush=True)
                await page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
                for depth in (1, 2):
                    href = await page.locator('svg a[aria-label^="Open "]').last.get_attribute("href")
                    await page.goto(f"{server}{href}")
                    await page.screenshot(path=folder / f"{name}-{width}-open-{depth}.png", full_page=True)
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2000, 10_000])
    parser.add_argument("--pictures", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workflow-page-") as folder:
        data = Path(folder) / "data"
        moor = [sys.executable, "-m", "moorage.cli.main"]
        up = [*moor, "up", "--data", str(data), "--port", "0"]
        down = [*moor, "down", "--data", str(data)]
        quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
        subprocess.run(up, **quiet)
        subprocess.run(down, **quiet)
        names = []
        for number in chosen.nodes:
            for name, player in workflows(number):
                print(f"{name}: {asyncio.run(keep(data, player, name))} nodes", flush=True)
                names.append(name)
        subprocess.run(up, **quiet)
        try:
            made = DataFolder(data)
            config = made.load_config()
            assert config is not None
            server, token = f"http://127.0.0.1:{config.ports['server']}", made.tokens(config.user)["page"]
            kubeconfig = ["env", f"MOORAGE_KUBECONFIG={data / 'kubeconfig'}", f"MOORAGE_DATA={data}", *moor]
            look_at(server, token, names, kubeconfig, Path(chosen.pictures or folder))
            if chosen.pictures:
                chosen.pictures.mkdir(parents=True, exist_ok=True)
                asyncio.run(photograph(server, token, names, chosen.pictures))
        finally:
            subprocess.run(down, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
