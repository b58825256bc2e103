"""The files of a pod's folder, damaged in every way: they read as None, at once."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from moorage_local.nodeagent.plan import Body
from moorage_local.nodeagent.podfolder import Admission, PodFolder, write_json

NOON = "2026-11-21T12:00:00Z"
STATE: dict[str, Any] = {
    "version": 1,
    "seq": 3,
    "uid": "u1",
    "shimPid": 4,
    "pod": {"phase": "Running", "startedAt": NOON, "finishedAt": None},
    "containers": [
        {
            "name": "c",
            "attempt": 0,
            "containerID": "u1/c/0",
            "restartCount": 0,
            "pid": 7,
            "state": {"running": {"startedAt": NOON}},
            "lastState": {},
        }
    ],
}


def state_with(**container: Any) -> bytes:
    return json.dumps(STATE | {"containers": [STATE["containers"][0] | container]}).encode()


def ended(**more: Any) -> bytes:
    record = {"startedAt": NOON, "finishedAt": NOON, "exitCode": 0, "reason": "Completed"}
    return state_with(state={"terminated": record | more})


DAMAGED_STATES = {
    "nothing": b"",
    "half of it": json.dumps(STATE).encode()[:50],
    "a list": b"[]",
    "deeply nested": b"[" * 100_000,
    "deeply nested below": b'{"pod": ' * 100_000,
    "too long": b'{"uid": "' + b"x" * (4 << 20) + b'"}',
    "no JSON": b"\xff\xfe\x00",
    "another pod's": json.dumps(STATE | {"uid": "u2"}).encode(),
    "containers: a number": json.dumps(STATE | {"containers": 5}).encode(),
    "containers: numbers": json.dumps(STATE | {"containers": [5]}).encode(),
    "pod: a list": json.dumps(STATE | {"pod": []}).encode(),
    "phase: unknown": json.dumps(STATE | {"pod": {"phase": "Gone"}}).encode(),
    "outcome: an object": json.dumps(STATE | {"pod": {"phase": "Failed", "outcome": {}}}).encode(),
    "finished: never": json.dumps(STATE | {"pod": {"phase": "Failed", "finishedAt": "never"}}).encode(),
    "shim: a text": json.dumps(STATE | {"shimPid": "1"}).encode(),
    "shim: negative": json.dumps(STATE | {"shimPid": -1}).encode(),
    "pid: negative": state_with(pid=-1),
    "pid: beyond all processes": state_with(pid=2**40),
    "attempt: a text": state_with(attempt="first"),
    "runs without an attempt": state_with(attempt=-1, containerID=None),
    "memory: a text": state_with(peakMemoryBytes="much"),
    "memory: beyond a disk": state_with(peakMemoryBytes=2**70),
    "state: a list": state_with(state=[]),
    "started: no time": state_with(state={"running": {"startedAt": "today"}}),
    "started: no such day": state_with(state={"running": {"startedAt": "2026-02-31T00:00:00Z"}}),
    "waits without a reason": state_with(state={"waiting": {}}),
    "exit code: a text": ended(exitCode="one"),
    "exit code: too large": ended(exitCode=2**40),
    "message: an object": ended(message={}),
    "ended: no time": ended(finishedAt="0001-01-01T00:00:00+23:59"),
}
DAMAGED_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def folder(tmp_path: Path) -> PodFolder:
    made = PodFolder(tmp_path / "u1")
    made.write_admission(Admission(uid="u1", namespace="default", name="p", at=NOON))
    return made


def test_the_state_of_a_shim_is_read(folder: PodFolder) -> None:
    (folder.path / "state.json").write_text(json.dumps(STATE))
    assert folder.state() == STATE


@pytest.mark.parametrize("text", DAMAGED_STATES.values(), ids=DAMAGED_STATES)
def test_a_damaged_state_reads_as_none(folder: PodFolder, text: bytes) -> None:
    (folder.path / "state.json").write_bytes(text)
    assert (folder.state(), folder.has_state(), folder.body()) == (None, True, Body.LOST)


@pytest.mark.parametrize("make", DAMAGED_FILES.values(), ids=DAMAGED_FILES)
@pytest.mark.parametrize("name", ["state.json", "admission.json", "lost.json", "stop", "lock"])
def test_what_is_not_a_file_reads_as_none_and_nobody_waits_for_it(
    folder: PodFolder, name: str, make: Callable[[Path], object]
) -> None:
    (folder.path / name).unlink(missing_ok=True)
    make(folder.path / name)
    readers = {"state.json": folder.state, "admission.json": folder.admission, "lost.json": folder.lost_at}
    assert readers.get(name, lambda: None)() is None
    assert not folder.is_locked()
    assert isinstance(folder.body(), Body)


@pytest.mark.parametrize(
    "change",
    [
        {"uid": "u2"},
        {"at": "noon"},
        {"requests": {"cpu": "much"}},
        {"gpus": ["a"]},
        {"devices": []},
        {"graceSeconds": "long"},
        {"graceSeconds": -1},
        {"address": "example.net"},
        {"rejected": ["a"]},
        {"rejected": 5},
        {"pod": []},
    ],
    ids=str,
)
def test_a_damaged_admission_reads_as_none(folder: PodFolder, change: dict[str, Any]) -> None:
    path = folder.path / "admission.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert (folder.admission(), folder.recorded_pod()) == (None, None)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"x": 1}', "[" * 100_000, '{"graceSeconds": "1", "reason": "", "message": ""}', '{"graceSeconds": 9}'],
)
def test_a_damaged_order_to_stop_is_written_anew(folder: PodFolder, text: str) -> None:
    (folder.path / "stop").write_text(text)
    folder.request_stop(10.0, reason="r", message="m")
    assert json.loads((folder.path / "stop").read_text()) == {"graceSeconds": 10.0, "reason": "r", "message": "m"}


def test_what_is_written_does_not_go_where_a_pod_leads_it(folder: PodFolder, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("kept")
    (folder.path / "stop.new").symlink_to(tmp_path / "others")
    os.mkfifo(folder.path / "lost.json.new")
    folder.request_stop(1.0)
    folder.declare_lost(Admission(uid="u1", namespace="default", name="p", at=NOON), NOON)
    assert ((tmp_path / "others").read_text(), folder.lost_at()) == ("kept", NOON)
    assert not (folder.path / "stop").is_symlink()


def test_a_written_file_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    gc.disable()
    try:
        before = _functions_of_encoders()
        for _ in range(20):
            write_json(tmp_path / "state.json", STATE, durable=False)
        assert _functions_of_encoders() == before
    finally:
        gc.enable()
    assert json.loads((tmp_path / "state.json").read_text()) == STATE


def _functions_of_encoders() -> int:
    """Functions that `json.dump` makes for each call. Whole collections count what other tests left, too."""
    return sum(isinstance(each, FunctionType) and each.__module__ == "json.encoder" for each in gc.get_objects())
