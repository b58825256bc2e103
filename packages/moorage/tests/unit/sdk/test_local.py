"""`moorage.map` on this machine: real workers, a real queue, no cluster."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import moorage
from moorage.sdk.maps import Options
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.testing.waiting import wait_until
from moorage_testing.killing import is_alive

pytest.importorskip("cloudpickle")

HERE: dict[str, Any] = {"where": "local", "parallelism": 2, "progress": False}


def square(x: int) -> tuple[int, int]:
    return x, x * x


@pytest.mark.processes
def test_results_come_in_the_order_of_the_items():
    assert list(moorage.map(square, range(300), **HERE)) == [square(x) for x in range(300)]


@pytest.mark.processes
def test_results_come_as_they_are_done_when_order_is_not_asked_for(tmp_path):
    flag = tmp_path / "flag"

    def wait_if_first(x: int) -> int:
        while not x and not flag.exists():
            pass
        return x

    results = moorage.map(wait_if_first, [0, 1], ordered=False, **HERE)
    assert next(results) == 1
    flag.touch()
    assert list(results) == [0]


@pytest.mark.processes
@pytest.mark.parametrize(
    "value",
    [
        pytest.param((1, [2, {3: "x"}]), id="tuples and keys that are no text"),
        pytest.param({"a": [1, 2.5, None, True, "ü"]}, id="what JSON knows"),
        pytest.param({"$pickle": "mine"}, id="a dict that looks like ours"),
        pytest.param(2**80, id="a large number"),
        pytest.param(math.inf, id="an infinite one"),
        pytest.param(b"\x00\xff", id="bytes"),
        pytest.param("\ud800", id="half a character"),
    ],
)
def test_values_go_there_and_back_as_they_are(value):
    (result,) = moorage.map(lambda x: x, [value], **HERE)
    assert result == value
    assert type(result) is type(value)


def fails_at_three(x: int) -> int:
    print("looking at", x)
    if x == 3:
        raise ValueError(f"no {x}")
    return x


@pytest.mark.processes
def test_a_failed_item_raises_with_its_value_and_output_after_the_results_before_it():
    results = moorage.map(fails_at_three, range(6), **HERE)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(moorage.ItemError) as caught:
        next(results)
    error = caught.value
    assert (error.item, error.value, error.cause, error.reason) == (3, 3, "error", "ValueError: no 3")
    assert error.output.startswith("looking at 3\nTraceback")


@pytest.mark.processes
def test_errors_are_among_the_results_when_asked_for():
    results = list(moorage.map(fails_at_three, range(6), on_error="return", **HERE))
    assert [result if isinstance(result, int) else (result.item, result.reason) for result in results] == [
        0, 1, 2, (3, "ValueError: no 3"), 4, 5,
    ]  # fmt: skip


@pytest.mark.processes
def test_a_worker_that_dies_hurts_only_its_item():
    def dies_at_one(x: int) -> int:
        if x == 1:
            os.kill(os.getpid(), 9)
        return x

    results = list(moorage.map(dies_at_one, range(4), on_error="return", **HERE))
    assert [result for result in results if isinstance(result, int)] == [0, 2, 3]
    assert "SIGKILL" in results[1].reason


@pytest.mark.processes
def test_an_iterator_that_is_left_ends_its_map():
    results = moorage.map(square, range(5000), **HERE)
    assert next(results) == (0, 0)
    results.close()
    with pytest.raises(StopIteration):
        next(results)


def test_no_items_give_no_results():
    assert list(moorage.map(square, [], **HERE)) == []


@pytest.mark.processes
def test_items_that_fail_are_run_again_by_a_handle(tmp_path):
    mark = tmp_path / "there"

    def wants(x: int) -> int:
        if x == 2 and not mark.exists():
            raise FileNotFoundError(str(mark))
        return x

    with moorage.Map.start(wants, range(4), **HERE) as handle:
        status = handle.wait()
        assert (status.state, status.done, status.failed, status.total) == ("finished", 3, 1, 4)
        assert [failure.item for failure in handle.failures()] == [2]
        handle.delete()


def test_a_map_that_is_cancelled_says_what_is_missing():
    def endless(x: int) -> int:
        while True:
            pass

    with moorage.Map.start(endless, range(3), **HERE) as handle:
        handle.cancel()
        assert handle.wait().state == "cancelled"
        with pytest.raises(MoorageError, match="was cancelled with 3 results missing"):
            list(handle.results())


@pytest.mark.processes
@pytest.mark.anyio
async def test_async_code_maps_without_being_held_up():
    assert [result async for result in moorage.amap(square, range(20), **HERE)] == [square(x) for x in range(20)]


@pytest.mark.processes
def test_a_decorated_function_is_called_as_it_is_and_mapped():
    @moorage.mapped(**HERE)
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert (double(4), double.__doc__) == (8, "Twice.")
    assert list(double.map([1, 2])) == [2, 4]
    assert list(double.map(["a"], ordered=False)) == ["aa"]
    with double.start([5]) as handle:
        assert list(handle.pairs()) == [(0, 10)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "mine_of_sdk.py").write_text("def times_three(x):\n    return 3 * x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_of_sdk

    yield mine_of_sdk
    with contextlib.suppress(KeyError):
        del sys.modules["mine_of_sdk"]


@pytest.mark.processes
def test_a_function_is_named_as_module_and_name(module):
    assert list(moorage.map("mine_of_sdk:times_three", [1, 2], **HERE)) == [3, 6]


@pytest.mark.processes
def test_without_cloudpickle_an_importable_function_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert list(moorage.map(module.times_three, [1, 2], **HERE)) == [3, 6]
    with pytest.raises(UsageError, match="can only be sent with cloudpickle"):
        moorage.map(lambda x: x, [1], **HERE)


@pytest.mark.processes
def test_a_function_that_does_not_load_ends_the_map_with_the_reason():
    with pytest.raises(MoorageError, match="the function does not load: ModuleNotFoundError"):
        list(moorage.map("no_such_module:f", [1], **HERE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"paralelism": 2}, "unknown map option 'paralelism'", id="a slip of the pen"),
        pytest.param({"where": "moon"}, "invalid where 'moon': use 'cluster' or 'local'", id="nowhere"),
        pytest.param(
            HERE | {"image": "x"}, "option 'image' cannot be used with where='local'", id="an image here"
        ),
    ],
)
def test_wrong_options_are_refused_at_once(options, message):
    with pytest.raises(UsageError, match=message):
        moorage.map(square, [1], **options)


def test_items_that_are_too_long_are_refused_at_once():
    with pytest.raises(UsageError, match="item 2 of items has .* bytes"):
        moorage.map(len, ["short", "x" * 100_000], **HERE)


def test_a_function_that_cannot_be_pickled_is_refused_with_a_hint():
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to workers"):
        moorage.map(lambda x: lock, [1], **HERE)


ENDLESS = """
import os, moorage

def say(x):
    open("pid", "w").write(str(os.getppid()))
    while True:
        pass

next(moorage.map(say, [1], where="local", parallelism=1, progress=False))
"""


@pytest.mark.processes
def test_a_worker_leaves_when_the_process_that_started_it_is_gone(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(ENDLESS)
    parent = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path)
    pid = tmp_path / "pid"
    worker = int(wait_until("the item to begin", lambda: pid.exists() and pid.read_text()))
    parent.kill()
    parent.wait()
    wait_until("the worker to leave", lambda: not is_alive(worker))


def test_options_have_documented_defaults():
    assert (Options().where, Options().retries, Options().keep) == ("cluster", None, False)


SCRIPT = """
import dataclasses, enum
import moorage, points

@dataclasses.dataclass
class Point:
    x: int

class Color(enum.Enum):
    RED = 1

def twice(point):
    return Point(2 * point.x), Color.RED

options = {"where": "local", "parallelism": 1, "progress": False}
((point, color),) = moorage.map(twice, [Point(1)], **options)
assert (point, color is Color.RED) == (Point(2), True), (point, color)
assert list(moorage.map(points.twice, [points.Point(1)], **options)) == [points.Point(2)]
"""
MODULE = """
import dataclasses

@dataclasses.dataclass
class Point:
    x: int

def twice(point):
    return Point(2 * point.x)
"""


@pytest.mark.processes
def test_items_and_results_may_be_of_classes_of_the_script_and_of_modules_next_to_it(tmp_path):
    (tmp_path / "points.py").write_text(MODULE)
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("result", "why"),
    [
        pytest.param(lambda x: "x" * 300_000, "at most 262144 are allowed: write it to a file", id="too long"),
        pytest.param(lambda x: threading.Lock(), "cannot pickle '_thread.lock' object", id="cannot be sent"),
    ],
)
def test_a_result_that_cannot_be_sent_is_not_computed_again(result, why):
    (failed,) = moorage.map(result, [0], on_error="return", retries=3, **HERE)
    assert (failed.cause, why in failed.reason) == ("invalid", True), failed.reason
