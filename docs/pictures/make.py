"""Draw the pictures of the README from real output: `make pictures`.

Starts a local cluster in a folder of its own, types the commands of SCENES, and writes what they printed as an
animated SVG (`terminal.svg`). Then it photographs the web pages with Chromium (`page-gpus.png`, `page-jobs.png`);
without Chromium (MOORAGE_CHROMIUM, or `chromium` in PATH) the photographs are left as they are.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moorage.model.manifests import ROLEBINDINGS
from moorage.model.people import subjects_of
from moorage_kube.remote.client import KubeClient

HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "packages/moorage/src/moorage/cli/demo" / "files"
Scene = list[tuple[str, list[str]]]  # commands, each with the lines that it printed
UP = "moor up --nodes 2 --gpus 2 --gpu-type a100"
RUN = "moor run --name {name} --gpus {gpus} --time 1h --checkpoint {name} -- python train.py --epochs 9000"
SCENES = [  # commands whose output is shown together, one screen each
    [UP, RUN.format(name="digits", gpus=1)],
    ["moor jobs", "moor gpus"],
    ["moor drain {node}", "moor jobs"],
    ["moor explain wide"],
]
COLUMNS, ROWS = 112, 20
CHARACTER, LINE, PADDING = 8.4, 18, 16  # pixels, of a monospaced font of 14
TYPE_SECONDS, THINK_SECONDS, READ_SECONDS = 1.2, 0.5, 4.0
PATIENCE_SECONDS = 120.0
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace"


class Machine:
    """The local cluster of the recording."""

    def __init__(self, folder: Path) -> None:
        self.env = {
            key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "MOORAGE_DATA"))
        }
        self.env |= {"MOORAGE_DATA": str(folder), "MOORAGE_KUBECONFIG": str(folder / "kubeconfig")}
        self.env |= {
            "NO_COLOR": "1",
            "COLUMNS": str(COLUMNS),
            "OMP_NUM_THREADS": "1",
            "USER": "ada",
            "LOGNAME": "ada",
        }
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"

    def moor(self, command: str, *, extra: str = "", extra_first: str = "") -> str:
        """What a command prints; `extra` options stand at its end, `extra_first` after its second word."""
        words = command.split()
        done = subprocess.run(
            [*words[:2], *extra_first.split(), *words[2:], *extra.split()],
            cwd=DIGITS,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{command} failed with exit code {done.returncode}:\n{done.stdout}")
        return done.stdout

    def wait(self, name: str, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The run, once it has come so far."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            run: dict[str, Any] = json.loads(self.moor(f"moor show {name} -o json"))
            if is_reached(run):
                return run
            time.sleep(0.3)
        raise SystemExit(f"run {name} did not come so far within {PATIENCE_SECONDS:g} s")


def record(machine: Machine) -> list[Scene]:
    """Each scene as its commands with the lines that they printed."""
    node = ""
    scenes = []
    for number, commands in enumerate(SCENES):
        if number == 1:
            asyncio.run(let_in(Path(machine.env["MOORAGE_KUBECONFIG"]), "ada", "grace", "linus"))
            machine.moor(RUN.format(name="baseline", gpus=1), extra_first="--as linus --gpu-type a100")
            digits = machine.wait("digits", lambda run: bool(run.get("checkpointAt")))
            node = str(digits["node"])
        if number == 3:
            machine.moor(RUN.format(name="wide", gpus=2), extra_first="--as grace")
            machine.wait("wide", lambda run: run.get("reason") == "Unschedulable")
        scene = []
        for command in commands:
            if number == 2 and command == "moor jobs":
                machine.wait("digits", lambda run: run.get("restarts") == 1 and run["state"] == "Running")
            typed = command.format(node=node)
            ports = "--port 0 --api-port 0 --ingress-port 0" if command == UP else ""
            scene.append((typed, tidy(machine.moor(typed, extra=ports))))
        scenes.append(scene)
    machine.moor(f"moor uncordon {node}")  # for the photographs: all runs but the last have their GPUs
    machine.wait("wide", lambda run: run["state"] == "Running")
    machine.moor(RUN.format(name="late", gpus=1))
    machine.wait("late", lambda run: run.get("reason") == "Unschedulable")
    return scenes


async def let_in(kubeconfig: Path, *people: str) -> None:
    """What an administrator does once: these people may work in the namespace `default`."""
    binding = {
        "metadata": {"name": "team"},
        "subjects": [subject for person in people for subject in subjects_of(person)],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    }
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        await api.create(ROLEBINDINGS, binding, "default")


def tidy(text: str) -> list[str]:
    """Lines that fit the drawing, without what differs from machine to machine."""
    text = re.sub(r"(web page: +http://127\.0\.0\.1):\d+\S*", r"\1:8080/", text)
    text = re.sub(r"(127\.0\.0\.1|localhost):\d{5}", r"\1:8088", text)
    text = re.sub(r"/tmp/moor-pictures-\w+/data", "~/.local/share/moorage", text)
    lines = [line.rstrip() for line in text.splitlines()]
    return [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines]


def animated(scenes: list[Scene]) -> str:
    """The recording as one SVG: each scene is shown for its time, and the whole repeats."""
    total = sum(len(scene) * (TYPE_SECONDS + THINK_SECONDS) + READ_SECONDS for scene in scenes)
    width, height = COLUMNS * CHARACTER + 2 * PADDING, ROWS * LINE + 2 * PADDING
    styles, drawn, now, serial = [], [], 0.0, 0

    def shown(begin: float, end: float) -> str:
        """The class of what is visible from one moment to another."""
        nonlocal serial
        serial += 1
        b, e = 100 * begin / total, 100 * end / total
        styles.append(
            f"@keyframes k{serial}{{0%,{max(b - 0.01, 0):.2f}%{{opacity:0}}{b:.2f}%,{e - 0.02:.2f}%{{opacity:1}}"
            f"{e:.2f}%,100%{{opacity:0}}}}.k{serial}{{animation-name:k{serial}}}"
        )
        return f"a k{serial}"

    for scene in scenes:
        end = now + len(scene) * (TYPE_SECONDS + THINK_SECONDS) + READ_SECONDS
        row = 1
        for command, lines in scene:
            pieces = _pieces(command)
            for index, piece in enumerate(pieces):
                start = now + TYPE_SECONDS * index / len(pieces)
                before = "".join(pieces[:index])
                x, y = PADDING + CHARACTER * (2 + len(before)), PADDING + LINE * row
                drawn.append(_text(f"{shown(start, end)} c", x, y, piece))
            drawn.append(_text(f"{shown(now, end)} p", PADDING, PADDING + LINE * row, "$"))
            now += TYPE_SECONDS + THINK_SECONDS
            visible = shown(now - THINK_SECONDS / 2, end)
            for line in lines[: ROWS - row - 1]:
                row += 1
                drawn.append(_text(visible, PADDING, PADDING + LINE * row, line))
            row += 2
        now = end
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"'
        ' aria-label="A terminal: moor up, moor run, moor jobs, moor gpus, moor explain, moor drain">'
        f"<style>text{{font:14px {FONTS};fill:#d6deeb;white-space:pre}}"
        ".p{fill:#7fdbca}.c{fill:#fff;font-weight:600}"
        f".a{{animation-duration:{total:.1f}s;animation-iteration-count:infinite;animation-timing-function:step-end}}"
        f"{''.join(styles)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#0f1b2d"/>{"".join(drawn)}</svg>\n'
    )


def _text(kind: str, x: float, y: float, text: str) -> str:
    """One line, as wide as its characters, whatever font there is."""
    indent = len(text) - len(text.lstrip())
    text = text.strip()
    if not text:
        return ""
    x += CHARACTER * indent
    size = f'textLength="{CHARACTER * len(text):.1f}"'
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" {size}>{html.escape(text, quote=False)}</text>'


def _pieces(command: str) -> list[str]:
    """A command in the pieces in which it is typed; 112 columns hold it without a line break."""
    return re.findall(r"\S+\s*", command if len(command) < COLUMNS - 2 else command[: COLUMNS - 3] + "…")


def photograph(machine: Machine) -> None:
    """The pages of GPUs and of jobs."""
    chromium = os.environ.get("MOORAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium: the photographs of the pages stay as they are", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    page_address = str(json.loads(machine.moor("moor status -o json"))["page"])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 720})
        page.goto(page_address)
        for name, path, height in (("gpus", "/", 720), ("jobs", "/jobs?whose=all", 390)):
            page.set_viewport_size({"width": 1100, "height": height})
            page.goto(page_address.split("/?")[0].rstrip("/") + path)
            page.wait_for_timeout(1500)
            page.screenshot(path=HERE / f"page-{name}.png")
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-pictures-") as folder:
        machine = Machine(Path(folder) / "data")
        try:
            scenes = record(machine)
            (HERE / "terminal.svg").write_text(animated(scenes))
            photograph(machine)
        finally:
            machine.moor("moor down")


if __name__ == "__main__":
    main()
