"""Shims started by one server: as those started alone, whatever becomes of the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from moorage_kube.testing.waiting import PATIENCE_SECONDS, soon
from moorage_local.nodeagent import podshim
from moorage_local.nodeagent.launcher import Launcher
from moorage_local.nodeagent.leftovers import stop_all
from moorage_local.nodeagent.plan import Body
from moorage_local.nodeagent.podfolder import LaunchError, PodFolder, is_shim_of, write_json
from moorage_local.nodeagent.shim import processes
from moorage_local.testing.builders import a_shim_container, a_shim_order

pytestmark = pytest.mark.anyio


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


def servers() -> list[int]:
    """The processes of ours that fork shims and live."""
    pids = []
    for pid in processes.descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"--serve" in words and Path(f"/proc/{pid}/stat").read_text().split()[3] == str(os.getpid()):
                pids.append(pid)
    return pids


def a_folder(root: Path, name: str, *command: str) -> PodFolder:
    folder = PodFolder(root / "n1" / name)
    work = folder.path / "work" / "c"
    work.mkdir(parents=True)
    order = a_shim_order(name, a_shim_container(work, *command), terminationGracePeriodSeconds=1)
    write_json(folder.path / "spec.json", order)
    return folder


async def ended(folder: PodFolder) -> str:
    await soon(f"the end of {folder.path.name}", lambda: folder.body() is Body.ENDED)
    return str((folder.state() or {})["pod"]["outcome"])


async def test_shims_of_one_server_are_known_by_their_folders_and_outlive_it(root, launcher):
    folders = [a_folder(root, f"pod-{number}", "sleep", "1000") for number in range(3)]
    await asyncio.gather(*(launcher.launch(one.path) for one in folders))
    assert len(servers()) == 1
    launcher.close()
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
        pids.append(servers())
    assert pids == [pids[0]] * 3
    os.kill(pids[0][0], signal.SIGKILL)
    folder = a_folder(root, "pod-after", "true")
    await launcher.launch(folder.path)
    assert await ended(folder) == "Succeeded"


async def test_launches_that_a_dead_server_left_are_done_without_it_and_not_twice(root, launcher):
    await launcher.launch(a_folder(root, "pod-first", "true").path)
    [server] = servers()
    os.kill(server, signal.SIGSTOP)
    folder = a_folder(root, "pod-held", "sh", "-c", "echo x >> starts")
    launching = asyncio.ensure_future(launcher.launch(folder.path))
    await asyncio.sleep(0)
    os.kill(server, signal.SIGKILL)
    await launching
    await launcher.launch(folder.path)
    assert await ended(folder) == "Succeeded"
    assert (folder.path / "work/c/starts").read_text() == "x\n"


async def test_everybody_who_waits_for_a_stopped_server_goes_on_when_it_is_given_up(root):
    """Those too whose question did not fit into the channel any more, and who wait for the same folder as they."""
    launcher = Launcher(end_seconds=0.05)
    await launcher.launch(a_folder(root, "pod-first", "true").path)
    [server] = servers()
    os.kill(server, signal.SIGSTOP)
    folders = [root / "n1" / f"{number}" / "/".join(["x" * 250] * 12) for number in range(100)]
    asking = asyncio.gather(*(launcher.launch(one) for one in (*folders, folders[-1])), return_exceptions=True)
    for _ in range(10):
        await asyncio.sleep(0)
    launcher.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert {type(answer) for answer in await asking} == {FileNotFoundError}


async def test_a_server_that_does_not_end_is_killed_and_nobody_waits_for_it(root):
    launcher = Launcher(end_seconds=0.05)
    await launcher.launch(a_folder(root, "pod-first", "true").path)
    [server] = servers()
    os.kill(server, signal.SIGSTOP)
    launcher.close()
    await soon("the end of the server", lambda: not servers())


async def test_a_launcher_whose_server_cannot_be_started_starts_shims_alone_and_leaks_nothing(
    root, launcher, monkeypatch
):
    folders = [a_folder(root, f"pod-{number}", "true") for number in range(3)]
    monkeypatch.setenv("PATH", "x" * (4 << 20))  # longer than the kernel takes: no process can be started with it
    for _ in range(2):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Argument list too long"):
            await launcher.launch(folders[0].path)
        assert len(os.listdir("/proc/self/fd")) <= before
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    await launcher.launch(folders[0].path)
    assert await ended(folders[0]) == "Succeeded"


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
        from shim import processes
        seen = [processes.may_have_children()]
        child = os.fork()
        if not child:
            time.sleep(1000)
        seen += [processes.may_have_children(), processes.may_have_children(besides={child})]
        os.kill(child, 9)
        os.waitpid(child, 0)
        seen.append(processes.may_have_children())
        if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            assert seen == [True] * 4  # a kernel that does not tell
            seen = [False, True, False, False]
        print(seen)
    """
    words = [sys.executable, "-c", script, str(Path(podshim.__file__).parent)]
    assert (
        subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[False, True, False, False]\n"
    )
