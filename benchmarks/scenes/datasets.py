"""A dataset whose filler is killed: `benchmarks/dataset_fill.py`, which checks every file on every node itself."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from scenes.outcome import Outcome

SCRIPT = Path(__file__).parents[1] / "dataset_fill.py"
BYTES_PER_FILE = 200_000


async def play(outcome: Outcome, folder: Path, *, kills: int, objects: int) -> None:
    """So many files under so many kills of the filler."""
    size = ("--files", str(objects), "--bytes", str(objects * BYTES_PER_FILE), "--kills", str(kills))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), *size, "--pods", "6", "--nodes", "3", "--work", str(folder)),
        *("--seed", str(outcome.seed)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    killed = re.search(r"filler killed (\d+) times", output)
    outcome.kills = int(killed[1]) if killed else 0
    outcome.objects = objects
    if process.returncode:
        outcome.lost.append(f"{SCRIPT.name} ended with {process.returncode}: {output.strip()}")
