"""Maps on workers with 1, 4 and 16 slots that are killed at random moments: every item is done exactly once.

    python benchmarks/map_slots.py [--items 300] [--slots 1 4 16] [--kind command|function|both] [--rounds 1]
                                   [--workers 2] [--kills 3] [--seed 0]

The queue and its server are the real ones in a process of their own, the workers are the real program. A map has
no retries, so any failure of an item is final; a lease that is lost with its worker is not a failure and is
handed out again. Items print nothing, much, bytes that are not text, lines without an end; they close their output
early, leave processes behind, write to both streams. Every `--kills` seconds on average one worker, drawn by the
seed, is killed with -9 and another one starts in its place.

Stated for each map: seconds, items done, failed, lost (without the right result), twice (with two results),
workers killed, leases lost with them, items begun more than once. An item may begin again only when its lease was
lost. Exit code 1 when an item is not done exactly once, or has begun again without that.

The proof is `--items 10000 --rounds 3`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from queue_throughput import ask, server

LEASE_SECONDS = 4.0  # a killed worker's items are handed out again after that
PATIENCE_SECONDS = 3600.0
OUTPUTS = (  # what an item does beside its result: it begins with one of these, by its number
    ":",
    "echo a line",
    "printf 'no end'",
    "head -c 100000 /dev/zero | tr '\\0' x",
    "printf '\\000\\377\\200\\r\\n'",
    "echo out; echo err >&2; printf more",
    "exec >&- 2>&-; sleep 0.02",
    "sleep 5 & echo left",
)
COMMAND = (
    'echo $1 >> "$BEGUN"; case $(($1 % 8)) in '
    + " ".join(f"{at}) {text} ;;" for at, text in enumerate(OUTPUTS))
    + ' esac; printf %s "$1" > "$MOORAGE_RESULT"'
)
FUNCTION = f"""
import os
import subprocess

OUTPUTS = {OUTPUTS!r}


def f(number):
    with open(os.environ["BEGUN"], "a") as file:
        file.write(f"{{number}}\\n")
    subprocess.run(["sh", "-c", OUTPUTS[number % 8]], check=False)
    return number
"""


@dataclass
class Outcome:
    done: int = 0
    failed: int = 0
    lost: int = 0
    twice: int = 0
    killed: int = 0
    leases_lost: int = 0
    begun_again: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def is_exactly_once(self, items: int) -> bool:
        clean = (self.done, self.failed, self.lost, self.twice) == (items, 0, 0, 0)
        return clean and self.begun_again <= self.leases_lost


class Site:
    """A map and its workers."""

    def __init__(self, port: int, folder: Path, name: str, kind: str, slots: int) -> None:
        self.port, self.name = port, name
        self._begun = folder / f"{name}-begun"
        self._begun.touch()
        self._program = folder / "worker.pyz"
        self._orders = {"slots": slots} | (
            {"command": ["sh", "-c", COMMAND, "sh", "{index}"]}
            if kind == "command"
            else {"function": str(_packed(folder))}
        )
        self.workers: list[subprocess.Popen[bytes]] = []
        self._token = ""

    def make(self, items: int) -> None:
        policy = {"retries": 0, "leaseSeconds": LEASE_SECONDS, "lossLimit": 10_000}
        ask(self.port, "POST", "/api/v1/maps/lab", {"name": self.name, "request": self.name, "policy": policy})
        lines = "".join(f'{{"value":{at}}}\n' for at in range(items)).encode()
        ask(self.port, "POST", f"/api/v1/maps/lab/{self.name}/items?first=0&close=true", raw=lines)
        self._token = ask(self.port, "POST", f"/api/v1/maps/lab/{self.name}/token")["token"]

    def start_worker(self) -> None:
        settings = {
            "MOORAGE_SERVER": f"http://127.0.0.1:{self.port}",
            "MOORAGE_MAP_TOKEN": self._token,
            "MOORAGE_MAP": json.dumps(self._orders),
            "MOORAGE_POD": f"{self.name}-{len(self.workers)}",
            "BEGUN": str(self._begun),
        }
        self.workers.append(
            subprocess.Popen(
                [sys.executable, str(self._program)], env=os.environ | settings, stdout=subprocess.DEVNULL
            )
        )

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = ask(self.port, "GET", f"/api/v1/maps/lab/{self.name}")["counts"]
        return counts

    def judge(self, items: int) -> Outcome:
        counts = self.counts()
        lines = ask(self.port, "GET", f"/api/v1/maps/lab/{self.name}/results").splitlines()
        results = [(line["item"], line.get("value")) for line in map(json.loads, lines)]
        right = {item for item, value in results if item == value}
        begun = Counter(self._begun.read_text().split())
        outcome = Outcome(
            done=counts["done"],
            failed=counts.get("dead", 0),
            lost=items - len(right),
            twice=len(results) - len({item for item, _ in results}),
            leases_lost=counts.get("lost", 0),
            begun_again=begun.total() - len(begun),
        )
        if outcome.failed:
            page = ask(self.port, "GET", f"/api/v1/maps/lab/{self.name}/items?state=dead&limit=1000")["items"]
            messages = Counter((item.get("failure") or {}).get("message") for item in page)
            outcome.notes = [f"{number} × {message}" for message, number in messages.most_common(5)]
        return outcome


def _packed(folder: Path) -> Path:
    path = folder / "function.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("made.py", FUNCTION)
        archive.writestr("map.json", json.dumps({"entry": "made:f"}))
    return path


def run(args: argparse.Namespace, port: int, folder: Path, name: str, *, kind: str, slots: int) -> Outcome:
    """One map from its first item to its last."""
    generator = random.Random(f"{args.seed} {name}")
    site = Site(port, folder, name, kind, slots)
    site.make(args.items)
    began = time.monotonic()
    killed = 0
    next_kill = began + generator.expovariate(1 / args.kills)
    try:
        for _ in range(args.workers):
            site.start_worker()
        while True:
            counts = site.counts()
            if counts["done"] + counts.get("dead", 0) >= args.items:
                break
            if time.monotonic() > began + PATIENCE_SECONDS:
                print(f"  not done after {PATIENCE_SECONDS:.0f} s: {counts}")
                break
            running = [worker for worker in site.workers if worker.poll() is None]
            if running and time.monotonic() >= next_kill:
                generator.choice(running).send_signal(signal.SIGKILL)
                killed += 1
                next_kill = time.monotonic() + generator.expovariate(1 / args.kills)
            elif len(running) < args.workers:
                site.start_worker()
            time.sleep(0.05)
        seconds = time.monotonic() - began
        for worker in site.workers:
            worker.wait()
    finally:
        for worker in site.workers:
            worker.kill()
            worker.wait()
    outcome = site.judge(args.items)
    outcome.killed, outcome.seconds = killed, seconds
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--kind", choices=["command", "function", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--kills", type=float, default=1.0, metavar="SECONDS", help="between two kills, on average"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds = ["command", "function"] if args.kind == "both" else [args.kind]
    good = True
    from moorage.controllers.mapjob.bundle import worker_zip

    for number in range(1, args.rounds + 1):
        for kind in kinds:
            for slots in args.slots:
                with tempfile.TemporaryDirectory() as made:
                    folder = Path(made)
                    (folder / "worker.pyz").write_bytes(worker_zip())
                    with server(f"{folder}/queue.db", made) as (port, _):
                        name = f"{kind}-{slots}-{number}"
                        outcome = run(args, port, folder, name, kind=kind, slots=slots)
                fine = outcome.is_exactly_once(args.items)
                good &= fine
                print(
                    f"round {number}, {kind}, {slots:2} slots: {outcome.seconds:.1f} s, {outcome.done} done,"
                    f" {outcome.failed} failed, {outcome.lost} lost, {outcome.twice} twice;"
                    f" {outcome.killed} workers killed, {outcome.leases_lost} leases lost with them,"
                    f" {outcome.begun_again} items begun again: {'exactly once' if fine else 'NOT exactly once'}",
                    flush=True,
                )
                for note in outcome.notes:
                    print(f"  {note}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
