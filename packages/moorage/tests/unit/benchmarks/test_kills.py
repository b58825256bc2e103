"""What `benchmarks/kills.py` would call lost, doubled or stuck: each fault made by hand, and seen."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[5] / "benchmarks"


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


def a_dag(mixed, *, without=(), more=()):
    """The lines of a workflow that ended well, without some of them and with more."""
    steps = [[word, "dag", str(step)] for step in range(mixed.STEPS) for word in ("start", "end")]
    content = ["content", "dag", *(str(step) for step in range(4, mixed.STEPS, mixed.CHAINS))]
    lines = [*steps, content, ["exit", "dag", "Succeeded"]]
    return [line for line in lines if " ".join(line[:3]) not in without] + [line.split() for line in more]


@pytest.mark.parametrize(
    ("phase", "changes", "lost", "doubled"),
    [
        pytest.param("Succeeded", {}, 0, 0, id="as it should be"),
        pytest.param("Failed", {}, 1, 0, id="failed"),
        pytest.param(None, {}, 1, 0, id="gone"),
        pytest.param("Succeeded", {"without": ["end dag 3"]}, 1, 0, id="a step did not end"),
        pytest.param("Succeeded", {"more": ["start dag 3"]}, 0, 1, id="a step began twice"),
        pytest.param("Succeeded", {"more": ["two dag 7"]}, 0, 1, id="two held the mutex"),
        pytest.param("Succeeded", {"without": ["exit dag Succeeded"]}, 1, 0, id="no exit handler"),
        pytest.param("Succeeded", {"more": ["exit dag Succeeded"]}, 0, 1, id="two exit handlers"),
        pytest.param("Succeeded", {"more": ["content dag 4 39"]}, 1, 0, id="an artifact is not whole"),
    ],
)
def test_a_workflow_that_is_lost_or_doubled_is_found(scene, outcome, phase, changes, lost, doubled):
    mixed = scene("mixed")
    phases = {"dag": phase} if phase else {}
    mixed.judge_workflows(outcome, ["dag"], phases, {"dag": ""}, a_dag(mixed, **changes))
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


@pytest.mark.parametrize(
    ("slots", "starts", "lost", "doubled"),
    [
        pytest.param({"a": 1, "b": 2}, "ab", 0, 0, id="as it should be"),
        pytest.param({"a": 1}, "a", 1, 0, id="a slot has no workflow"),
        pytest.param({"a": 1, "b": 2, "c": 2}, "abc", 0, 1, id="a slot has two workflows"),
        pytest.param({"a": 1, "b": 2}, "a", 1, 0, id="a workflow never began"),
        pytest.param({"a": 1, "b": 2}, "abb", 0, 1, id="a workflow began twice"),
    ],
)
def test_a_slot_that_is_lost_or_doubled_is_found(scene, outcome, slots, starts, lost, doubled):
    times = {name: f"2026-11-21T12:0{minute}:00Z" for name, minute in slots.items()}
    lines = [["start", name] for name in starts]
    since, until = (datetime(2026, 11, 21, 12, minute, 30, tzinfo=UTC) for minute in (0, 3))
    scene("mixed").judge_slots(outcome, times, dict.fromkeys(slots, "Succeeded"), lines, since, until)
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


@pytest.mark.parametrize(
    ("run", "lines", "killed", "lost", "doubled"),
    [
        pytest.param(a_run(), "start,step 0,step 1,end", (0, 0), 0, 0, id="as it should be"),
        pytest.param(None, "", (0, 0), 1, 0, id="gone"),
        pytest.param(a_run(state="Failed"), "start,step 0,step 1,end", (0, 0), 1, 0, id="failed"),
        pytest.param(a_run(), "start,step 1,end", (0, 0), 1, 0, id="a step is missing"),
        pytest.param(
            a_run(), "start,step 0,step 1,start,step 1,end", (0, 0), 0, 2, id="started again without a kill"
        ),
        pytest.param(a_run(), "start,step 0,start,step 0,step 1,end", (1, 0), 0, 0, id="its shim was killed"),
        pytest.param(
            a_run(), "start,step 0,step 1,end,start,end", (1, 1), 0, 0, id="its shim was killed after the end"
        ),
        pytest.param(a_run(), "start,step 0,start,step 1,end,start,end", (2, 0), 0, 1, id="ended twice"),
        pytest.param(a_run(), "start,step 0,step 1", (0, 0), 1, 0, id="did not end"),
    ],
)
def test_a_run_with_a_checkpoint_that_is_lost_or_doubled_is_found(
    scene, outcome, run, lines, killed, lost, doubled
):
    notes = [[*line.split(), "r", "42"] for line in lines.split(",") if line]
    runs = {"r": run} if run else {}
    shims, at_the_end = (Counter(r=count) for count in killed)
    scene("mixed").judge_runs(outcome, [("default", "r")], runs, notes, shims, at_the_end)
    assert (len(outcome.lost), len(outcome.doubled)) == (lost, doubled)


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
