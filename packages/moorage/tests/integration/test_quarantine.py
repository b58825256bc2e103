"""A service whose event loop hangs in its work on an object is replaced; an object that does so twice waits."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_kube.testing.waiting import wait_until

SERVICE = '''
import argparse, asyncio, functools, json, os, pathlib, signal

from moorage_kube.controlloop import ControlLoop
from moorage_kube.hangs import HANG_RECORD, HangRecord
from moorage_kube.meta import Key
from moorage_kube.parent import answer_parent, end_with_parent
from moorage_kube.resources import CONFIGMAPS

class Objects:
    """The objects of a file, which the test changes."""

    resource = CONFIGMAPS

    def __init__(self, folder):
        self._file = folder / "objects.json"

    def names(self):
        return list(json.loads(self._file.read_text()))

    def get(self, name, namespace=""):
        data = json.loads(self._file.read_text()).get(name)
        meta = {"name": name, "namespace": namespace, "uid": name}
        return None if data is None else {"metadata": meta, "data": data}

async def set_aside(folder, resource, obj, message):
    with (folder / "told").open("a") as file:
        file.write(f"{obj['metadata']['name']}: {message}\\n")
    return obj

async def run(folder, fd):
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    least = float(os.environ["LEAST"])
    HANG_RECORD.set(HangRecord(folder / "run" / "test", functools.partial(set_aside, folder), least_seconds=least))
    objects = Objects(folder)

    async def reconcile(key):
        await asyncio.sleep(0)  # others begin meanwhile: the note must be of who runs, not of who began last
        if objects.get(key.name)["data"]["hangs"]:
            with (folder / "hangs").open("a") as file:
                file.write("hang\\n")
            sum(iter(int, 1))  # one call without end, which keeps the interpreter from all signals
        with (folder / "done").open("a") as file:
            file.write(key.name + "\\n")

    control = ControlLoop("test", reconcile, workers=4, of=objects)
    answer_parent(fd)
    for name in objects.names():
        control.queue.add(Key("lab", name))
    working = asyncio.create_task(control.run())
    looking = asyncio.create_task(look(control, objects))
    await stop.wait()
    for task in (working, looking):
        task.cancel()

async def look(control, objects):
    while True:
        await asyncio.sleep(0.1)
        for name in objects.names():
            control.queue.add(Key("lab", name))

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=pathlib.Path)
parser.add_argument("--fds")
parser.add_argument("--alive-fd", type=int)
options = parser.parse_args()
end_with_parent()
asyncio.run(run(options.data, options.alive_fd))
'''
LEAST = {"3": "2", "600": "300"}  # seconds without an answer, and of work, that make a hang
SUPERVISE = """
import pathlib, sys
from moorage.cli.supervisor import supervise
supervise(pathlib.Path(sys.argv[1]), {}, None, children={"service": "service"}, hang_seconds=float(sys.argv[2]))
"""


def write_objects(folder: Path, *, hangs: bool) -> None:
    scratch = folder / "objects.new"
    scratch.write_text(json.dumps({"a": {"hangs": False}, "b": {"hangs": hangs}, "c": {"hangs": False}}))
    scratch.replace(folder / "objects.json")


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of a supervised service; the parameter: seconds without an answer, after which it hangs."""
    (tmp_path / "service.py").write_text(SERVICE)
    for part in ("run", "log"):
        (tmp_path / part).mkdir()
    write_objects(tmp_path, hangs=True)
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(tmp_path), request.param],
        env={"PYTHONPATH": str(tmp_path), "LEAST": LEAST[request.param]},
        cwd="/",
    )
    yield tmp_path
    write_objects(tmp_path, hangs=False)
    kill_service(tmp_path)  # one that hangs would be waited for a minute
    process.terminate()
    process.wait()


def kill_service(folder: Path) -> None:
    subprocess.run(["kill", "-9", (folder / "run" / "service.pid").read_text().strip()], check=False)


def lines(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return []


@pytest.mark.parametrize("folder", ["3"], indirect=True)
def test_an_object_that_hangs_its_controller_twice_is_set_aside_until_it_changes(folder: Path) -> None:
    wait_until("the object to be set aside", lambda: lines(folder / "told"))
    before = len(lines(folder / "done"))
    wait_until("work on the others", lambda: {"a", "c"} <= set(lines(folder / "done")[before:]))
    assert lines(folder / "told") == [
        "b: the controller hung 2 times in its work on this object, which is skipped until its spec changes"
    ]
    assert lines(folder / "hangs") == ["hang"] * 2
    assert "b" not in lines(folder / "done")
    write_objects(folder, hangs=False)
    wait_until("work on what has changed", lambda: "b" in lines(folder / "done"))


@pytest.mark.parametrize("folder", ["600"], indirect=True)
def test_a_service_that_is_killed_at_its_work_blames_no_object(folder: Path) -> None:
    """kill -9 leaves the object in work too, and no stacks: nobody had waited for an answer."""
    for kill in (1, 2, 3):
        wait_until(f"hang {kill}", lambda kill=kill: len(lines(folder / "hangs")) >= kill)
        kill_service(folder)
    wait_until("another hang", lambda: len(lines(folder / "hangs")) >= 4)
    assert lines(folder / "told") == []


@pytest.mark.parametrize("folder", ["600"], indirect=True)
def test_a_service_that_is_asked_to_end_and_killed_just_then_blames_no_object(folder: Path) -> None:
    """As when the supervisor is killed, and the next `moor up` ends what it has left."""
    for kill in (1, 2, 3):
        wait_until(f"hang {kill}", lambda kill=kill: len(lines(folder / "hangs")) >= kill)
        pid = (folder / "run" / "service.pid").read_text().strip()
        subprocess.run(["sh", "-c", f"kill -TERM {pid}; kill -9 {pid}"], check=False)
    wait_until("another hang", lambda: len(lines(folder / "hangs")) >= 4)
    assert lines(folder / "told") == []
