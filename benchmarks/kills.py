"""Everything is killed, again and again, and nothing may be lost, doubled or stuck.

    python benchmarks/kills.py [SCENE …] [--full] [--kills N] [--objects N] [--seed S] [--minutes M]

Each scene starts a local cluster of its own with `moor up` and kills its processes (-9) at moments drawn by the
seed, the supervisor among them, while somebody works on it:

apiserver   writers and watchers of ConfigMaps: no acknowledged write is missing after a restart, revisions never
            go back, and a watcher that resumes hears each event once and in order
runs        `moor run`: each run ends once, with its own exit code, and was started once
map         items under kills, stops (SIGSTOP, SIGCONT) and freezes longer than a lease: each item is done once
guests      guests of a Machine with four places: never more at a time, each served once
workspaces  workspaces stay the same process and are led to afterwards; those that are deleted go
datasets    the filler is killed (`benchmarks/dataset_fill.py`)
mixed       workflows, schedules, maps, runs, guests, an idle policy, time sharing and a budget, all at once

Without `--full` each is small, for a try. One line for each scene; exit code 1 when one does not hold, or does not
end within `--minutes`. The folder of such a scene is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenes import mixed
from scenes.outcome import Outcome, tell

from moorage_kube.errors import ApiError
from moorage_testing.cluster import local_cluster
from moorage_testing.killing import Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many kills of how many objects."""

    kills: int
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A scene's sizes, for a try and in full, what its objects are, and the options of its `moor up`."""

    things: str
    small: Size
    full: Size
    up: tuple[str, ...] = ("--nodes", "2")
    nodes: str = ""  # in place of `up`: the text of a node file


SCENES = {  # full: twice what outsiders did at commit 06d327b
    "apiserver": Scene(
        things="acknowledged writes", small=Size(kills=4, objects=200), full=Size(kills=140, objects=41_702)
    ),
    "runs": Scene(things="runs", small=Size(kills=5, objects=8), full=Size(kills=96, objects=120)),
    "map": Scene(
        things="items",
        small=Size(kills=8, objects=300),
        full=Size(kills=200, objects=10_000),
        up=("--nodes", "3"),
    ),
    "guests": Scene(
        things="guests",
        small=Size(kills=5, objects=12),
        full=Size(kills=220, objects=144),
        up=("--nodes", "2", "--gpus", "2", "--gpu-type", "a100"),
    ),
    "workspaces": Scene(things="workspaces", small=Size(kills=5, objects=4), full=Size(kills=48, objects=24)),
    "mixed": Scene(
        things="steps, items, runs, slots and guests",
        small=Size(kills=10, objects=1),
        full=Size(kills=335, objects=7),  # of five plays
        nodes=mixed.NODES,
    ),
    "datasets": Scene(things="files", small=Size(kills=2, objects=200), full=Size(kills=10, objects=2000)),
}


def run(name: str, size: Size, seed: int, minutes: float) -> Outcome:
    """Play one scene on a cluster of its own."""
    outcome = Outcome(scene=name, seed=seed, things=SCENES[name].things)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"kills-{name}-"))
    try:
        if name == "datasets":  # brings its own cluster
            from scenes import datasets

            work = datasets.play(outcome, folder, kills=size.kills, objects=size.objects)
            asyncio.run(_bounded(work, minutes))
        else:
            _play(outcome, folder, size, minutes)
    except* TimeoutError:
        outcome.stuck.append(f"the scene did not end within {minutes:g} minutes")
    except* (AssertionError, ApiError) as group:
        outcome.stuck += [str(error) for error in _leaves(group)]
    outcome.seconds = time.monotonic() - began
    if outcome.is_good:
        shutil.rmtree(folder)
    else:
        outcome.notes["kept in"] = folder
    return outcome


def _play(outcome: Outcome, folder: Path, size: Size, minutes: float) -> None:
    play, scene = importlib.import_module(f"scenes.{outcome.scene}").play, SCENES[outcome.scene]
    up = scene.up
    if scene.nodes:
        (folder / "nodes.yaml").write_text(scene.nodes)
        up = ("--node-file", str(folder / "nodes.yaml"))
    with local_cluster(folder / "data", *up) as cluster:
        trouble = Trouble(cluster, random.Random(outcome.seed))
        try:
            asyncio.run(_bounded(play(trouble, outcome, kills=size.kills, objects=size.objects), minutes))
        finally:
            outcome.kills = trouble.total
            outcome.notes |= {"struck": trouble.counts, "starts that failed": len(trouble.failed_starts)}


async def _bounded(work: Coroutine[Any, Any, None], minutes: float) -> None:
    async with asyncio.timeout(60 * minutes):
        await work


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for error in group.exceptions
        for leaf in (_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; all of them")
    parser.add_argument("--full", action="store_true", help="the sizes of the proof")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--objects", type=int)
    parser.add_argument("--seed", type=int, default=None, help="another one each time unless given")
    parser.add_argument("--minutes", type=float, default=30.0, help="the most that a scene may take")
    options = parser.parse_args()
    if unknown := sorted(set(options.scenes) - SCENES.keys()):
        parser.error(f"unknown scene {unknown[0]!r}; use {', '.join(SCENES)}")
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    logging.getLogger("moorage").setLevel(logging.ERROR)  # watches break all the time here
    is_good = True
    for name in options.scenes or SCENES:
        usual = SCENES[name].full if options.full else SCENES[name].small
        size = Size(kills=options.kills or usual.kills, objects=options.objects or usual.objects)
        tell(f"{name}: {size.kills} kills, {size.objects} {SCENES[name].things}, seed {seed}")
        outcome = run(name, size, seed, options.minutes)
        print(outcome.report(), flush=True)
        is_good = is_good and outcome.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
