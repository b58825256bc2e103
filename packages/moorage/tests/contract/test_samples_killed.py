"""A process that adds readings to the history is killed (SIGKILL) at random and started again.

What it adds follows from the slot alone, and it prints each slot when the store has taken it, so it is known what
must be there. It kills itself after so many calls of functions: anywhere while it opens the store, adds, sums up a
window or an hour, or forgets.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from moorage.decide.usage.samples import Level, Reading, added, floor, tally_of
from moorage.usage.samples import Retention, SampleStore
from moorage_testing.readings import TEN, a_reading, at_slot

PODS = ("u1", "u2", "u3")
SLOTS = 800  # of half a minute
SUMMED = 3600 // 30 * 2 + 20  # slots after the last one, when all of them are in hours
SEED = 20261127
CALLS = 150_000  # of functions, at most, until it is killed
COLLECTOR = """
import os, signal, sys
folder, database, first, last, calls = sys.argv[1:]
sys.path.insert(0, folder)
from moorage_testing.readings import at_slot
from test_samples_killed import open_store, readings_of

def count(frame, event, argument, left=[int(calls)]):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

sys.setprofile(count)
store = open_store(database)
for slot in range(int(first), int(last)):
    store.add(readings_of(slot))
    print(slot, flush=True)
    if slot % 3 == 0:
        store.downsample(at_slot(slot))
sys.setprofile(None)
"""


def open_store(database: Path | str) -> SampleStore:
    """Each reading is kept, so that it can be said which the store has."""
    return SampleStore(database, retention=Retention(slots=timedelta(days=2)))


def readings_of(slot: int) -> list[Reading]:
    """Of all pods in a slot; no two slots have the same."""
    return [
        a_reading(uid, at=at_slot(slot), cpu=100 * slot + number, use=(slot % 100, number))
        for number, uid in enumerate(PODS)
    ]


def test_readings_of_a_process_killed_at_random_count_once_and_none_that_was_taken_is_lost(database):
    rng = random.Random(SEED)
    taken: set[int] = set()
    perhaps: set[int] = set()  # that the process was adding, or was about to, when it was killed
    first = kills = 0
    while first < SLOTS:
        arguments = [str(Path(__file__).parent), str(database), str(first), str(SLOTS), str(rng.randrange(CALLS))]
        collector = subprocess.run(
            [sys.executable, "-c", COLLECTOR, *arguments], stdout=subprocess.PIPE, text=True, check=False
        )
        assert collector.returncode in (0, -signal.SIGKILL)
        printed = {int(line) for line in collector.stdout.splitlines()}
        taken |= printed
        first = max(printed, default=first - 1) + 1
        if first < SLOTS:
            perhaps.add(first)
            kills += 1
            first += rng.choice([0, 0, 0, 1, 30, 200])  # while none runs, time may pass
    assert kills >= 15

    store = open_store(database)
    store.downsample(at_slot(SLOTS + SUMMED))
    end = at_slot(SLOTS)
    seen = {
        uid: {(point.start - TEN) // timedelta(seconds=30) for point in store.points(uid, TEN, end, Level.SLOT)}
        for uid in PODS
    }
    assert seen["u1"] == seen["u2"] == seen["u3"]
    assert taken <= seen["u1"] <= taken | perhaps
    slots = sorted(seen["u1"])
    for level in (Level.SLOT, Level.WINDOW, Level.HOUR):
        expected: dict[tuple[str, object], list[Reading]] = {}
        for slot in slots:
            for reading in readings_of(slot):
                expected.setdefault((reading.pod_uid, floor(reading.at, level)), []).append(reading)
        points = store.points(PODS, TEN, end, level)
        assert {(point.pod_uid, point.start): point.tally for point in points} == {
            key: added(map(tally_of, readings)) for key, readings in expected.items()
        }
        assert added(each.tally for each in store.sums(TEN, end, level)) == added(point.tally for point in points)
    store.close()
