"""Runs are submitted with `moor run` while all around them is killed: each is started once and ends as it must.

A run notes its start and its end in one file, and ends with an exit code of its own. A submission that fails is
typed again with the same name: that it is taken then means that it was made the first time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

from moorage_testing.cluster import Cluster
from moorage_testing.killing import EVERYTHING, LAUNCHER, Trouble, until_so
from scenes.outcome import Outcome

VICTIMS = ("localcluster",) * 3 + ("services",) * 3 + (EVERYTHING,) * 2 + ("supervisor", "ingress", LAUNCHER)
PAUSE_SECONDS = (0.0, 3.0)  # between a restart and the next kill
SUBMITTERS = 2
AHEAD = 6  # runs submitted before their share of the kills is due
PATIENCE_SECONDS = 240.0  # without any run's end; bounds a hang
EXIT_CODES = 4
RUN = """
import os, sys, time
log, name, seconds, code = sys.argv[1:]
def note(word):
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{word} {name} {os.getpid()}\\n".encode())
    os.close(fd)
note("start")
time.sleep(float(seconds))
note("end")
sys.exit(int(code))
"""


def name_of(number: int) -> str:
    return f"run-{number:04}"


def code_of(number: int) -> int:
    return number % EXIT_CODES


async def moor(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Exit code, output, errors of a command; it may fail at any moment here."""
    done = await asyncio.to_thread(cluster.moor, *words, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """So many runs under so many kills."""
    cluster = trouble.cluster
    folder = cluster.home.parent
    script, log = folder / "run.py", folder / "log"
    script.write_text(RUN)
    numbers = iter(range(objects))
    typed_again = submitted = 0

    async def submit() -> None:
        nonlocal typed_again, submitted
        for number in numbers:
            await until_so(lambda number=number: number <= AHEAD + trouble.total * objects // kills)
            seconds = trouble.chance.uniform(0.0, 6.0)
            words = ("--name", name_of(number), "--cpu", "50m", "--memory", "64Mi")
            what = (str(log), name_of(number), f"{seconds:.2f}", str(code_of(number)))
            ends = time.monotonic() + PATIENCE_SECONDS
            while True:
                code, _, errors = await moor(cluster, "run", *words, "--", sys.executable, str(script), *what)
                if code == 0 or f"the name '{name_of(number)}' is taken" in errors:
                    break
                typed_again += 1
                if time.monotonic() > ends:
                    outcome.stuck.append(f"{name_of(number)} could not be submitted: {errors.strip()}")
                    break
                await asyncio.sleep(0.2)
            submitted += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(SUBMITTERS):
            tasks.create_task(submit())
        await trouble.strike_again_and_again(
            kills, *VICTIMS, pause=PAUSE_SECONDS, seen=lambda: f"{submitted} runs submitted"
        )
    runs = await _ended(cluster, objects)
    judge(outcome, runs, log.read_text().split("\n")[:-1] if log.exists() else [], objects)
    outcome.objects = submitted
    outcome.notes["submissions typed again"] = typed_again


async def _ended(cluster: Cluster, objects: int) -> dict[str, dict[str, Any]]:
    """The runs by name, once all have ended, or none has for long."""
    wanted = {name_of(number) for number in range(objects)}
    runs: dict[str, dict[str, Any]] = {}
    ended, since = -1, time.monotonic()
    while ended < objects and time.monotonic() - since < PATIENCE_SECONDS:
        code, output, _ = await moor(cluster, "jobs", "-o", "json")
        if code == 0:
            runs = {run["name"]: run for run in json.loads(output) if run["name"] in wanted}
            now = sum(run["ended"] is not None for run in runs.values())
            if now != ended:
                ended, since = now, time.monotonic()
        await asyncio.sleep(1.0)
    return runs


def judge(outcome: Outcome, runs: dict[str, dict[str, Any]], notes: list[str], objects: int) -> None:
    counted = Counter(tuple(line.split()[:2]) for line in notes)
    for number in range(objects):
        name, code = name_of(number), code_of(number)
        run = runs.get(name)
        starts, ends = counted["start", name], counted["end", name]
        if run is None:
            outcome.lost.append(f"{name} is not there")
        elif run["ended"] is None:
            outcome.stuck.append(f"{name} is {run['state']}: {run['reason']}; {starts} starts, {ends} ends")
        elif (run["state"], run["exitCode"]) != ("Failed" if code else "Succeeded", code):
            outcome.lost.append(f"{name} is {run['state']} with {run['exitCode']}, should have ended with {code}")
        elif not starts or not ends:
            outcome.lost.append(f"{name}: {starts} starts, {ends} ends")
        if starts > 1 or (run is not None and run["restarts"]):
            outcome.doubled.append(f"{name}: {starts} starts, {run and run['restarts']} restarts")
