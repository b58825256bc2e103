"""Shims started by one server: as those started alone, whatever becomes of the server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from moorage.localcluster.nodeagent import podshim, shim
from moorage.localcluster.nodeagent.launcher import Launcher
from moorage.localcluster.nodeagent.leftovers import stop_all
from moorage.localcluster.nodeagent.plan import Body
from moorage.localcluster.nodeagent.podfolder import LaunchError, PodFolder, is_shim_of, write_json

pytestmark = pytest.mark.anyio
WAIT_SECONDS = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moor-launcher-") as name:
        yield Path(name)
        stop_all(Path(name), grace_seconds=0.0)


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


def a_folder(root: Path, name: str, *command: str) -> PodFolder:
    folder = PodFolder(root / "n1" / name)
    work = folder.path / "work" / "c"
    work.mkdir(parents=True)
    container = {
        "name": "c", "argv": list(command), "env": {"PATH": os.environ["PATH"]}, "workingDir": str(work),
        "memoryLimitBytes": None, "mounts": [], "messageFromLogs": False, "oomScoreAdj": 0, "gpuIndices": [],
    }  # fmt: skip
    order = {
        "uid": name, "name": name, "namespace": "default", "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1, "deadlineEpoch": None, "notifySocket": "", "gpuIndices": [],
        "initContainers": [], "containers": [container],
    }  # fmt: skip
    write_json(folder.path / "spec.json", order)
    return folder


async def ended(folder: PodFolder) -> str:
    until = time.monotonic() + WAIT_SECONDS
    while folder.body() is not Body.ENDED:
        assert time.monotonic() < until, folder.state()
        await asyncio.sleep(0.01)
    return str((folder.state() or {})["pod"]["outcome"])


async def test_shims_of_one_server_are_known_by_their_folders_and_outlive_it(root, launcher):
    folders = [a_folder(root, f"pod-{number}", "sleep", "1000") for number in range(3)]
    await asyncio.gather(*(launcher.launch(one.path) for one in folders))
    server = launcher.server_pid
    launcher.close()
    assert server is not None
    for one in folders:
        pid = (one.state() or {})["shimPid"]
        assert [is_shim_of(pid, other.path) for other in folders] == [other is one for other in folders]
        one.request_stop(0.0)
        assert await ended(one) == "Failed"


async def test_a_server_is_started_once_and_again_when_it_was_killed(root, launcher):
    pids = []
    for number in range(3):
        folder = a_folder(root, f"pod-{number}", "true")
        await launcher.launch(folder.path)
        assert await ended(folder) == "Succeeded"
        pids.append(launcher.server_pid)
    assert pids[0] == pids[1] == pids[2] is not None
    os.kill(pids[0], signal.SIGKILL)
    folder = a_folder(root, "pod-after", "true")
    await launcher.launch(folder.path)
    assert await ended(folder) == "Succeeded"


async def test_launches_that_a_dead_server_left_are_done_without_it_and_not_twice(root, launcher):
    await launcher.launch(a_folder(root, "pod-first", "true").path)
    os.kill(launcher.server_pid, signal.SIGSTOP)
    folder = a_folder(root, "pod-held", "sh", "-c", "echo x >> starts")
    launching = asyncio.ensure_future(launcher.launch(folder.path))
    await asyncio.sleep(0)
    os.kill(launcher.server_pid, signal.SIGKILL)
    await launching
    await launcher.launch(folder.path)
    assert await ended(folder) == "Succeeded"
    assert (folder.path / "work/c/starts").read_text() == "x\n"


async def test_a_launch_that_fails_says_why(root, launcher):
    folder = a_folder(root, "pod-broken", "true")
    (folder.path / "spec.json").write_text("no JSON")
    with pytest.raises(LaunchError, match="(?s)exit code 5.*JSONDecodeError"):
        await launcher.launch(folder.path)
    with pytest.raises(LaunchError, match="exit code 5"):
        await launcher.launch(root / "n1" / "missing")


def test_an_interpreter_that_loads_the_shim_imports_nothing_of_ours():
    words = [sys.executable, "-S", "-E", "-s", podshim.__file__, "/nowhere"]
    failed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "No such file or directory: '/nowhere'" in failed.stderr


def test_whether_there_are_children_is_known_without_a_look_at_others():
    script = """if True:
        import os, sys, time
        sys.path.insert(0, sys.argv[1])
        import shim
        seen = [shim.may_have_children()]
        child = os.fork()
        if not child:
            time.sleep(1000)
        seen += [shim.may_have_children(), shim.may_have_children(besides={child})]
        os.kill(child, 9)
        os.waitpid(child, 0)
        seen.append(shim.may_have_children())
        if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            assert seen == [True] * 4  # a kernel that does not tell
            seen = [False, True, False, False]
        print(seen)
    """
    words = [sys.executable, "-c", script, str(Path(shim.__file__).parent)]
    assert (
        subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[False, True, False, False]\n"
    )
