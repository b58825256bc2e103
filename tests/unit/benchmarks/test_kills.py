"""What `benchmarks/kills.py` would call lost, doubled or stuck: each fault made by hand, and seen."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"scenes.{name}")


@pytest.fixture
def outcome(scene):
    return scene("outcome").Outcome(scene="a scene", seed=7, things="things")


def a_configmap(name, number, revision):
    return {
        "metadata": {"name": name, "namespace": "kills", "resourceVersion": str(revision)},
        "data": {"number": str(number)},
    }


@pytest.fixture
def bench(scene, outcome):
    """Writes 1 (revision 11) and 2 (revision 12) of one object, then its deletion: all acknowledged."""
    apiserver = scene("apiserver")
    bench = apiserver.Bench(None, outcome)
    history = bench.histories["w0-k00"]
    for number, revision in ((1, 11), (2, 12)):
        history.writes.append(apiserver.Write(number))
        history.acknowledge(history.writes[-1], a_configmap("w0-k00", number, revision))
    history.writes.append(apiserver.Write(None))
    history.acknowledge(history.writes[-1], None)
    return bench


@pytest.fixture
def watcher(scene, bench):
    watcher = scene("apiserver").Watcher(bench, "a watcher", namespace="kills")
    watcher.bridged.append((0, 10))
    watcher.at = 10
    return watcher


ADDED, MODIFIED = ("ADDED", a_configmap("w0-k00", 1, 11)), ("MODIFIED", a_configmap("w0-k00", 2, 12))
DELETED = ("DELETED", a_configmap("w0-k00", 2, 13))
AGAIN = ("ADDED", a_configmap("w0-k00", 3, 14))


def test_a_watcher_that_hears_everything_once_and_in_order_finds_no_fault(watcher, outcome):
    for event in (ADDED, MODIFIED, DELETED, AGAIN):
        watcher.hear(*event)
    assert list(watcher.missed()) == []
    assert outcome.is_good


@pytest.mark.parametrize(
    ("events", "lost", "doubled"),
    [
        pytest.param((ADDED, DELETED), ["a watcher: no event of w0-k00 number 2 at 12"], 0, id="one is missing"),
        pytest.param((ADDED, MODIFIED, MODIFIED, DELETED), [], 1, id="one comes twice"),
        pytest.param(
            (ADDED, MODIFIED, AGAIN),
            ["a watcher: ADDED w0-k00 at 14, and before it stood number 2"],
            0,
            id="a deletion is missing",
        ),
    ],
)
def test_an_event_that_is_lost_or_doubled_is_found(watcher, outcome, events, lost, doubled):
    for event in events:
        watcher.hear(*event)
    outcome.lost += watcher.missed()
    assert outcome.lost == lost
    assert len(outcome.doubled) == doubled


def test_events_out_of_order_are_found(watcher, outcome):
    watcher.hear(*MODIFIED)
    watcher.hear(*ADDED)
    assert outcome.doubled == ["a watcher: ADDED w0-k00 at 11 after 12"]


@pytest.mark.parametrize(
    ("found", "revision", "lost", "doubled"),
    [
        pytest.param([], 13, 0, 0, id="as acknowledged"),
        pytest.param([a_configmap("w0-k00", 2, 12)], 13, 1, 0, id="the deletion is undone"),
        pytest.param([], 11, 0, 1, id="the revision goes back"),
    ],
)
def test_what_a_restart_lost_is_found(scene, bench, outcome, found, revision, lost, doubled):
    async def listed(*_):
        return SimpleNamespace(items=found, resource_version=str(revision))

    bench.api, bench.newest = SimpleNamespace(list=listed), 13
    asyncio.run(scene("apiserver").audit(bench))
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


def a_run(state="Succeeded", code=0, restarts=0, ended="2026-11-21T12:00:00Z"):
    return {"state": state, "reason": "", "exitCode": code, "restarts": restarts, "ended": ended}


@pytest.mark.parametrize(
    ("run", "notes", "want"),
    [
        pytest.param(a_run(), ["start", "end"], (0, 0, 0), id="as it should be"),
        pytest.param(None, [], (1, 0, 0), id="gone"),
        pytest.param(a_run(ended=None), ["start"], (0, 0, 1), id="does not end"),
        pytest.param(a_run(code=137, state="Failed"), ["start", "end"], (1, 0, 0), id="another exit code"),
        pytest.param(a_run(), [], (1, 0, 0), id="never started"),
        pytest.param(a_run(), ["start", "start", "end"], (0, 1, 0), id="started twice"),
        pytest.param(a_run(restarts=1), ["start", "end"], (0, 1, 0), id="started again"),
    ],
)
def test_a_run_that_is_lost_doubled_or_stuck_is_found(scene, outcome, run, notes, want):
    runs = scene("runs")
    name = runs.name_of(0)
    runs.judge(outcome, {name: run} if run else {}, [f"{word} {name} 42" for word in notes], 1)
    assert (len(outcome.lost), len(outcome.doubled), len(outcome.stuck)) == want
    assert outcome.is_good is (want == (0, 0, 0))


COUNTS = {"done": 2, "dead": 0, "granted": 3, "returned": 0, "lost": 1, "failed": 0}
ROWS = [{"item": item, "value": {"item": item, "square": item * item}} for item in range(2)]


@pytest.mark.parametrize(
    ("counts", "rows", "lost", "doubled"),
    [
        pytest.param({}, ROWS, 0, 0, id="as it should be"),
        pytest.param({}, ROWS[:1], 1, 0, id="no result"),
        pytest.param({}, [*ROWS, ROWS[1]], 0, 1, id="two results"),
        pytest.param({}, [ROWS[0], ROWS[1] | {"value": None}], 1, 0, id="a wrong result"),
        pytest.param({"done": 1, "dead": 1}, ROWS[:1], 2, 1, id="a failed item"),
        pytest.param({"granted": 4}, ROWS, 0, 1, id="a lease without a cause"),
    ],
)
def test_an_item_that_is_lost_or_doubled_is_found(scene, outcome, counts, rows, lost, doubled):
    scene("map").judge(SimpleNamespace(counts=COUNTS | counts, fell=0), outcome, rows, 2)
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


@pytest.mark.parametrize(
    ("notes", "lost", "doubled"),
    [
        pytest.param(["start a 1", "start b 2", "end a 3", "end b 4"], 0, 0, id="as it should be"),
        pytest.param(["start a 1", "end a 2", "start a 3", "end a 4", "start b 1", "end b 2"], 0, 1, id="twice"),
        pytest.param(["start a 1", "end a 2"], 1, 0, id="one never began"),
        pytest.param(
            [f"start {name} 1{at}" for at, name in enumerate("abcde")] + [f"end {name} 20" for name in "abcde"],
            0,
            1,
            id="five at a time",
        ),
    ],
)
def test_guests_beyond_the_places_are_found(scene, outcome, notes, lost, doubled):
    names = {line.split()[1] for line in notes} | {"a", "b"}
    scene("guests").judge(SimpleNamespace(made=names, succeeded=names), notes, outcome)
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


def test_the_line_tells_kills_objects_faults_time_and_seed(outcome):
    outcome.kills, outcome.objects, outcome.seconds = 3, 40, 12.4
    outcome.lost.append("a thing")
    assert outcome.line() == "a scene: 3 kills, 40 things, lost 1, doubled 0, stuck 0, 12 s, seed 7"
    assert not outcome.is_good


def test_growth_is_the_slope_of_the_straight_line(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    memory = importlib.import_module("memory")
    assert memory.slope([(0, 10), (10, 15), (20, 20)]) == 0.5
    assert memory.slope([(5, 1)]) == 0.0
