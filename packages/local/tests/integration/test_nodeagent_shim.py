"""The shim with real processes, without any API."""

from __future__ import annotations

import json
import os
import pty
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_local.nodeagent import podshim
from moorage_local.nodeagent.leftovers import kill_leftovers, marked_processes, stop_all
from moorage_local.nodeagent.plan import Body
from moorage_local.nodeagent.podfolder import PodFolder
from moorage_local.nodeagent.shim import launching, processes
from moorage_local.nodeagent.shim.pod import Shim
from moorage_local.testing.builders import a_shim_container, a_shim_order

WAIT_SECONDS = 180.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOG = "x = bytearray({mib} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\n"


def wait_for(what: Callable[[], Any], why: str = "") -> Any:
    return wait_until(why or "a state of the shim", what)


@dataclass
class World:
    """One pod's folder; `python` starts the shim, as `user` when given."""

    root: Path
    python: str = sys.executable
    user: str | None = None
    uid: str = field(default_factory=lambda: f"u-{uuid.uuid4()}")  # its processes are found by it

    @property
    def folder(self) -> PodFolder:
        return PodFolder(self.root / "nodes" / "n1" / self.uid)

    def container(
        self, *argv: str, name: str = "c", env: dict[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        env = {"PATH": PATH, "HOME": str(home)} | (env or {})
        return a_shim_container(home, *argv, name=name, env=env, **more)

    def shell(self, script: str, **more: Any) -> dict[str, Any]:
        return self.container("sh", "-c", script, **more)

    def python_code(self, code: str, **more: Any) -> dict[str, Any]:
        return self.container(self.python, "-S", "-c", code, **more)

    def launch(self, *containers: dict[str, Any], **spec: Any) -> int:
        path = self.folder.path
        path.mkdir(parents=True, exist_ok=True)
        (path / "spec.json").write_text(json.dumps(a_shim_order(self.uid, *containers, **spec)))
        if self.user is not None:
            for one in (self.root, *self.root.rglob("*")):
                os.chown(one, pwd.getpwnam(self.user).pw_uid, -1, follow_symlinks=False)
        return self.launch_again()

    def launch_again(self) -> int:
        return subprocess.run(
            [self.python, "-S", "-E", "-s", podshim.__file__, str(self.folder.path)],
            env={"PATH": PATH},
            cwd="/",
            start_new_session=True,
            user=self.user,
            check=False,
        ).returncode

    def beside(
        self, script: str, *, pid: int | None = None, kind: str = "fenced"
    ) -> subprocess.CompletedProcess[str]:
        """Run a script beside the main process of the container, or beside another process."""
        words = ["--enter", str(self.folder.path), str(pid or self.report()["pid"]), kind, "sh", "-c", script]
        return subprocess.run(
            [self.python, "-S", "-E", "-s", podshim.__file__, *words],
            capture_output=True,
            text=True,
            user=self.user,
            check=False,
        )

    def state(self) -> dict[str, Any]:
        return self.folder.state() or {}

    def report(self, name: str = "c") -> dict[str, Any]:
        return next(one for one in self.state()["containers"] if one["name"] == name)

    def end(self) -> dict[str, Any]:
        """Wait for the outcome and for all processes."""
        wait_for(lambda: self.folder.body() is Body.ENDED, "the pod to end")
        wait_for(lambda: not self.folder.is_locked(), "the guard to end")
        return self.state()["pod"]

    def terminated(self, name: str = "c") -> dict[str, Any]:
        return self.report(name)["state"]["terminated"]

    def running(self, name: str = "c") -> bool:
        return bool(self.report(name)["state"].get("running"))

    def output(self, name: str = "c", attempt: int = 0) -> list[str]:
        path = self.folder.path / "logs" / name / f"{attempt}.log"
        return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]

    def wait_output(self, word: str, name: str = "c", attempt: int = 0) -> None:
        path = self.folder.path / "logs" / name / f"{attempt}.log"
        wait_for(lambda: path.exists() and any(word in line for line in self.output(name, attempt)), word)


@pytest.fixture
def world() -> Iterator[World]:
    root = Path(tempfile.mkdtemp(prefix="moor-shim-"))
    root.chmod(0o755)
    made = World(root)
    yield made
    if made.user is not None and made.folder.is_locked():  # its shim could not read our stop file
        made.folder.signal_shim(signal.SIGKILL)
    stop_all(root / "nodes", grace_seconds=0.0)
    kill_leftovers(made.uid)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(params=["as this user", "as an ordinary user"])
def any_user(request: pytest.FixtureRequest, world: World) -> World:
    """The same test as root and as nobody, where the suite runs as root."""
    if request.param == "as an ordinary user":
        if os.geteuid() != 0:
            pytest.skip("the suite runs as an ordinary user already")
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if python is None:
            pytest.skip("no Python that other users can read")
        reads = [python, "-c", "import sys; open(sys.argv[1])", podshim.__file__]
        if subprocess.run(reads, user="nobody", stderr=subprocess.DEVNULL, check=False).returncode != 0:
            pytest.skip("this checkout is in a folder that other users cannot read")
        world.python, world.user = python, "nobody"
    return world


def namespaces_allowed(world: World) -> bool:
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10020000))"
    return subprocess.run([world.python, "-S", "-c", code], user=world.user, check=False).returncode == 0


def test_exit_code_and_both_streams_are_written_down(world: World) -> None:
    assert world.launch(world.shell("echo out; echo err >&2; exit 3")) == launching.LAUNCHED
    pod = world.end()
    assert (pod["phase"], pod["outcome"]) == ("Failed", "Failed")
    ended = world.terminated()
    assert (ended["exitCode"], ended["reason"], ended["signal"]) == (3, "Error", 0)
    lines = (world.folder.path / "logs/c/0.log").read_text().splitlines()
    assert sorted(line.split(" ", 1)[1] for line in lines) == ["stderr F err", "stdout F out"]


@pytest.mark.parametrize(("more", "ready"), [({}, "[0]"), ({"stdin": True}, "[]")])
def test_standard_input_is_empty_or_open(world: World, more: dict[str, bool], ready: str) -> None:
    world.launch(world.python_code("import select; print(select.select([0], [], [], 0)[0])", **more))
    world.end()
    assert world.output() == [ready]


def test_success_is_completed(world: World) -> None:
    world.launch(world.container("true"), world.container("true", name="d"))
    assert world.end()["phase"] == "Succeeded"
    assert world.terminated("d")["reason"] == "Completed"


def test_one_failed_container_of_two_fails_the_pod(world: World) -> None:
    world.launch(world.container("true"), world.container("false", name="d"))
    assert world.end()["phase"] == "Failed"


def test_death_by_signal_is_128_plus_its_number(world: World) -> None:
    world.launch(world.shell("kill -KILL $$"))
    world.end()
    ended = world.terminated()
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")


@pytest.mark.parametrize(
    ("argv", "more", "message"),
    [
        (["nosuchprogram"], {}, 'exec: "nosuchprogram": executable file not found in $PATH'),
        (["/no/such"], {}, 'exec: "/no/such": stat /no/such: no such file or directory'),
        (["/etc/passwd"], {}, 'exec: "/etc/passwd": permission denied'),
        (
            ["true"],
            {"workingDir": "/no/such"},
            'chdir to cwd ("/no/such") set in config.json failed: no such file or directory',
        ),
    ],
)
def test_what_cannot_be_started_says_why_as_containerd_does(
    world: World, argv: list[str], more: dict[str, Any], message: str
) -> None:
    world.launch(world.container(*argv, **more))
    assert world.end()["phase"] == "Failed"
    ended = world.terminated()
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", message)


def test_file_that_is_no_program_is_a_start_error(world: World) -> None:
    program = world.root / "garbage"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    world.launch(world.container(str(program)))
    world.end()
    assert world.terminated()["message"] == f"exec {program}: exec format error"


def test_init_containers_run_in_order_before_the_others(world: World) -> None:
    trace = world.root / "trace"
    world.launch(
        world.shell(f"echo main >> {trace}"),
        initContainers=[
            world.shell(f"sleep 0.1; echo one >> {trace}", name="i1"),
            world.shell(f"echo two >> {trace}", name="i2"),
        ],
    )
    world.end()
    assert trace.read_text().split() == ["one", "two", "main"]


def test_shim_sleeps_while_an_init_container_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked round without a pause as long as the pod's other containers had not started."""

    class Counting(Shim):
        def __init__(self) -> None:
            super().__init__(str(tmp_path), lock=-1, tell=-1)
            self.waits: list[int] = []
            self._poll: Any = SimpleNamespace(poll=lambda pause: self.waits.append(pause) or [])

        def _spawn(self, container: Any) -> None:
            container.pid = os.getpid()

    row = {"argv": ["true"], "env": {}, "workingDir": "/"}
    spec = {"uid": "u", "initContainers": [row | {"name": "i"}], "containers": [row | {"name": "c"}]}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    monkeypatch.chdir(tmp_path)
    shim = Counting()
    assert not shim._step()
    shim._inits[0].watch.due = time.monotonic() + WAIT_SECONDS
    shim._wait()
    assert shim.waits[0] > 0


def test_failed_init_container_fails_a_pod_that_never_restarts(world: World) -> None:
    world.launch(world.shell("echo main"), initContainers=[world.shell("exit 4", name="i")])
    assert world.end()["phase"] == "Failed"
    assert world.terminated("i")["exitCode"] == 4
    assert world.report()["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_sidecar_starts_first_and_is_ended_after_the_others(world: World) -> None:
    side = world.shell(
        "trap 'echo down; exit 0' TERM; echo up; touch up; while :; do sleep 0.05; done",
        name="s",
        restartPolicy="Always",
    )
    world.launch(world.shell("until test -e up; do sleep 0.05; done"), initContainers=[side])
    assert world.end()["phase"] == "Succeeded"
    assert world.output("s") == ["up", "down"]


def test_failures_are_repeated_until_success_with_growing_waits(world: World) -> None:
    script = "echo x >> count; test $(wc -l < count) -ge 4"
    world.launch(world.shell(script), restartPolicy="OnFailure", backoffSeconds=0.1)
    assert world.end()["phase"] == "Succeeded"
    report = world.report()
    assert report["restartCount"] == 3
    assert report["lastState"]["terminated"]["exitCode"] == 1
    assert report["state"]["terminated"]["exitCode"] == 0
    assert sorted(os.listdir(world.folder.path / "logs/c")) == ["0.log", "1.log", "2.log", "3.log"]


def test_second_failure_waits_in_crash_loop_back_off(world: World) -> None:
    world.launch(world.container("false"), restartPolicy="Always")

    def in_back_off() -> dict[str, Any]:
        report = world.report()
        return report if report["lastState"] and report["state"].get("waiting") else {}

    report = wait_for(in_back_off, "back-off")
    assert report["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": f"back-off 10s restarting failed container=c pod=pod_lab({world.uid})",
    }
    assert report["restartCount"] == 1
    world.folder.request_stop(0)
    world.end()
    assert world.terminated()["exitCode"] == 1


def test_container_over_its_memory_limit_is_killed_alone_with_its_peak_recorded(world: World) -> None:
    limit = 64 << 20
    hog = world.python_code(HOG.format(mib=400) + "import time; time.sleep(60)", memoryLimitBytes=limit)
    world.launch(hog, world.shell("sleep 1; exit 0", name="d"))
    world.end()
    ended = world.terminated()
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    assert limit < ended["peakMemoryBytes"] < 500 << 20  # on a busy machine it has all before anybody looks
    assert ended["message"].startswith("memory limit 64Mi exceeded; peak ")
    assert world.terminated("d")["exitCode"] == 0


def test_memory_of_the_whole_tree_counts_also_of_daemons(world: World) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        " + HOG.format(mib=300).replace("\n", "\n        ") + "\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "time.sleep(60)\n"
    )
    world.launch(world.python_code(code, memoryLimitBytes=100 << 20))
    world.end()
    assert world.terminated()["reason"] == "OOMKilled"
    assert marked_processes(frozenset({world.uid})) == {}


def test_memory_is_watched_inside_namespaces_too(any_user: World) -> None:
    code = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        " + HOG.format(mib=60).replace("\n", "\n        ") + "\n"
        "        time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    mounts = [{"mountPath": "/moor-data", "hostPath": str(any_user.root), "readOnly": False}]
    any_user.launch(any_user.python_code(code, memoryLimitBytes=120 << 20, mounts=mounts))
    any_user.end()
    ended = any_user.terminated()
    assert ended["reason"] == "OOMKilled"
    assert 120 << 20 < ended["peakMemoryBytes"] < 260 << 20


def test_shared_pages_are_counted_once(world: World) -> None:
    code = (
        HOG.format(mib=60)
        + "import os, time\n"
        + "kids = []\n"
        + "for _ in range(5):\n"
        + "    pid = os.fork()\n"
        + "    if pid == 0:\n"
        + "        while not os.path.exists('seen'): time.sleep(0.05)\n"
        + "        time.sleep(1.0); os._exit(0)\n"
        + "    kids.append(pid)\n"
        + "for pid in kids: os.waitpid(pid, 0)\n"
    )
    world.launch(world.python_code(code, memoryLimitBytes=150 << 20))
    wait_for(lambda: world.report()["peakMemoryBytes"] > 60 << 20, "somebody to look")
    (world.root / "home/seen").touch()
    assert world.end()["phase"] == "Succeeded"
    assert 60 << 20 < world.report()["peakMemoryBytes"] < 150 << 20


def test_peak_memory_is_reported_while_running(world: World) -> None:
    world.launch(world.python_code(HOG.format(mib=50) + "import time; time.sleep(60)"))
    wait_for(lambda: world.report()["peakMemoryBytes"] > 50 << 20, "peak")
    assert world.report()["memoryBytes"] > 50 << 20


def test_stop_gives_the_main_process_its_chance(world: World) -> None:
    world.launch(world.shell("trap 'echo saving; exit 7' TERM; echo up; while :; do sleep 0.05; done"))
    world.wait_output("up")
    world.folder.request_stop(20)
    world.end()
    assert world.output() == ["up", "saving"]
    assert world.terminated()["exitCode"] == 7


def test_stop_sends_one_signal_to_a_process_that_runs(world: World) -> None:
    """Two at once may both go to another thread than the one that waits: a Python program would not hear them."""
    code = (
        "import signal, sys, time\n"
        "heard = []\n"
        "for number in (signal.SIGTERM, signal.SIGCONT):\n"
        "    signal.signal(number, lambda number, _: heard.append(number))\n"
        "print('up', flush=True)\n"
        "while signal.SIGTERM not in heard: time.sleep(0.05)\n"
        "while signal.sigtimedwait({signal.SIGCONT}, 0.2): heard.append(signal.SIGCONT)\n"
        "sys.exit(7 if heard == [signal.SIGTERM] else 8)\n"
    )
    world.launch(world.python_code(code))
    world.wait_output("up")
    world.folder.request_stop(20)
    world.end()
    assert (world.output(), world.terminated()["exitCode"]) == (["up"], 7)


def test_stop_wakes_a_process_that_is_stopped(world: World) -> None:
    world.launch(world.shell("trap 'echo saving; exit 7' TERM; echo up; while :; do sleep 0.05; done"))
    world.wait_output("up")
    main = world.report()["pid"]
    os.kill(main, signal.SIGSTOP)
    wait_for(lambda: (processes.read_stat(main) or "????")[3] == "T", "the process to be stopped")
    world.folder.request_stop(20)
    world.end()
    assert (world.output(), world.terminated()["exitCode"]) == (["up", "saving"], 7)


def test_stop_kills_all_when_the_grace_is_over(world: World) -> None:
    world.launch(world.shell("trap '' TERM; setsid sleep 1000 & echo up; while :; do sleep 0.05; done"))
    world.wait_output("up")
    world.folder.request_stop(0.2)
    world.end()
    assert world.terminated()["exitCode"] == 137
    assert marked_processes(frozenset({world.uid})) == {}


def test_a_second_stop_may_only_shorten_the_grace(world: World) -> None:
    world.launch(world.shell("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    world.wait_output("up")
    world.folder.request_stop(1000)
    world.folder.request_stop(2000)
    wait_for(lambda: world.state()["pod"].get("stopping"), "stopping")
    world.folder.request_stop(0.1)
    world.end()
    assert world.terminated()["exitCode"] == 137


def test_sigterm_to_the_shim_stops_the_pod(world: World) -> None:
    world.launch(world.shell("echo up; exec sleep 1000"))
    world.wait_output("up")
    os.kill(world.state()["shimPid"], signal.SIGTERM)
    world.end()
    assert world.terminated()["exitCode"] == 143


def test_stop_with_a_reason_fails_the_pod(world: World) -> None:
    world.launch(world.shell("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    world.wait_output("up")
    assert stop_all(world.root / "nodes") == 1
    pod = world.end()
    assert (pod["phase"], pod["reason"]) == ("Failed", "Terminated")


def test_pod_past_its_deadline_is_ended(world: World) -> None:
    world.launch(world.shell("exec sleep 1000"), deadlineEpoch=time.time() + 0.3)
    pod = world.end()
    assert (pod["phase"], pod["reason"]) == ("Failed", "DeadlineExceeded")
    ended = world.report()["state"].get("terminated")  # on a busy machine the deadline may come before the start
    assert ended is None or ended["exitCode"] == 143


def test_restart_order_ends_one_attempt_of_one_container(world: World) -> None:
    world.launch(world.shell("echo up; exec sleep 1000"), restartPolicy="Always")
    world.wait_output("up")
    world.folder.request_restart("c", 0, 5.0, "unhealthy")
    world.wait_output("up", attempt=1)
    wait_for(lambda: world.report()["restartCount"] == 1, "restart")
    assert world.report()["lastState"]["terminated"]["exitCode"] == 143


def test_what_a_container_leaves_behind_ends_with_it(world: World) -> None:
    world.launch(world.shell("setsid env -i sleep 1000 & sleep 0.2; echo done"))
    world.end()
    sleepers = subprocess.run(["pgrep", "-f", "^sleep 1000$"], capture_output=True, check=False).stdout
    mine = [pid for pid in sleepers.split() if Path(f"/proc/{int(pid)}/cwd").resolve() == world.root / "home"]
    assert mine == []


def test_second_shim_is_refused_while_one_runs_and_ever_after(world: World) -> None:
    world.launch(world.shell("echo x >> starts; exec sleep 1000"))
    wait_for((world.root / "home/starts").exists, "start")
    assert world.launch_again() == launching.LOCKED
    world.folder.request_stop(0)
    world.end()
    assert world.launch_again() == launching.STARTED_BEFORE
    assert (world.root / "home/starts").read_text() == "x\n"


def test_killed_shim_takes_its_processes_along(world: World) -> None:
    world.launch(
        world.shell("sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; echo up; wait")
    )
    world.wait_output("up")
    wait_for(lambda: len(marked_processes(frozenset({world.uid}))) >= 5, "all processes")
    os.kill(world.state()["shimPid"], signal.SIGKILL)
    wait_for(lambda: not world.folder.is_locked(), "the guard to have ended")
    assert marked_processes(frozenset({world.uid})) == {}
    assert world.folder.body() is Body.LOST


def test_leftovers_are_found_when_guard_and_shim_were_killed(world: World) -> None:
    world.launch(world.shell("setsid sleep 1000 & echo up; wait"))
    world.wait_output("up")
    pid = world.state()["shimPid"]
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not world.folder.is_locked(), "lock")
    kill_leftovers(world.uid)
    assert marked_processes(frozenset({world.uid})) == {}


def test_pod_whose_folder_was_removed_ends(world: World) -> None:
    world.launch(world.shell("echo up; exec sleep 1000"))
    world.wait_output("up")
    shim_pid = world.state()["shimPid"]
    world.folder.remove()
    wait_for(lambda: not Path(f"/proc/{shim_pid}").exists(), "the shim to end")
    assert marked_processes(frozenset({world.uid})) == {}


def test_log_is_rotated_by_size_and_keeps_five_files(world: World) -> None:
    code = "for i in range(3000): print('line', i, 'x' * 50)"
    world.launch(world.python_code(code), logMaxBytes=20_000)
    world.end()
    names = sorted(os.listdir(world.folder.path / "logs/c"))
    assert names == ["0.log", "0.log.1", "0.log.2", "0.log.3", "0.log.4"]
    last = (world.folder.path / "logs/c/0.log").read_text().splitlines()[-1]
    assert "line 2999" in last


def test_long_and_unfinished_lines_are_cut_in_parts(world: World) -> None:
    world.launch(world.python_code("import sys; sys.stdout.write('y' * 40000); sys.stdout.write('\\nend')"))
    world.end()
    lines = (world.folder.path / "logs/c/0.log").read_text().splitlines()
    parts = [line.split(" ", 3)[2:] for line in lines]
    assert [(kind, len(text)) for kind, text in parts] == [("P", 16384), ("P", 16384), ("F", 7232), ("F", 3)]


def test_unfinished_line_shows_while_the_container_runs(world: World) -> None:
    world.launch(world.shell("printf 'progress 10%%'; exec sleep 1000"))
    world.wait_output("progress 10%")


def test_a_full_disk_that_takes_neither_log_nor_complaint_ends_no_pod(world: World) -> None:
    logs = world.folder.path / "logs" / "c"
    logs.mkdir(parents=True)
    for path in (logs / "0.log", world.folder.path / "shim.log"):
        path.symlink_to("/dev/full")
    world.launch(world.shell("echo lost; exit 3"))
    assert world.end()["phase"] == "Failed"
    assert world.terminated()["exitCode"] == 3


def test_a_log_that_a_full_disk_cut_goes_on_with_a_line_of_its_own(tmp_path: Path) -> None:
    code = """
import resource, sys
from moorage_local.nodeagent.shim.logs import Log
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
log = Log(sys.argv[1], 10**6, 5)
log.feed(b"stdout", b"whole\\n" + b"x" * 300 + b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.feed(b"stdout", b"later\\n")
"""
    path = tmp_path / "c" / "0.log"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert [line.split(" ", 3)[3] for line in path.read_text().splitlines()] == ["whole", "later"]


def test_end_of_the_log_becomes_the_message_when_asked(world: World) -> None:
    world.launch(world.shell("echo first; echo last words >&2; exit 1", messageFromLogs=True))
    world.end()
    assert world.terminated()["message"].endswith("last words\n")


def test_agent_is_told_of_changes_by_its_socket(world: World) -> None:
    folder = world.root / ("long-name-" * 12)  # longer than a socket address may be
    folder.mkdir()
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(WAIT_SECONDS)
    fd = os.open(folder, os.O_PATH)
    receiver.bind(f"/proc/self/fd/{fd}/agent.sock")
    os.close(fd)
    world.launch(world.container("true"), notifySocket=str(folder / "agent.sock"))
    assert receiver.recv(100) == world.uid.encode()
    world.end()
    receiver.close()


def test_volume_is_mounted_over_an_existing_folder(any_user: World) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this machine allows no mount namespaces")
    volume = any_user.root / "vol"
    volume.mkdir()
    (volume / "a").write_text("inside")
    mounts = [{"mountPath": "/srv", "hostPath": str(volume), "readOnly": False}]
    any_user.launch(any_user.shell("cat /srv/a; echo new > /srv/b", mounts=mounts))
    assert any_user.end()["phase"] == "Succeeded", any_user.state()
    assert (any_user.output(), (volume / "b").read_text()) == (["inside"], "new\n")
    assert any_user.state()["mounts"] == "namespace"


def test_missing_mount_points_appear_for_the_container_only(any_user: World) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this machine allows no mount namespaces")
    volume, secret = any_user.root / "vol", any_user.root / "token"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub" / "a").write_text("inside")
    secret.write_text("s3cret")
    points = ["/moor-data", "/usr/share/moor-x/deep", "/var/run/secrets/kubernetes.io/serviceaccount"]
    mounts = [{"mountPath": point, "hostPath": str(volume / "sub"), "readOnly": True} for point in points]
    mounts.append({"mountPath": "/etc/moor-token", "hostPath": str(secret), "readOnly": True})
    script = (
        "set -e; for p in " + " ".join(points) + "; do cat $p/a; echo; ! touch $p/b 2>/dev/null; done;"
        f" cat /etc/moor-token; echo; {any_user.python} -c 'import json, ssl; print(1)';"
        " test -e /proc/self/stat; echo x > /dev/null; pwd; ls /usr/bin/env; id -u; touch /tmp/$$ && rm /tmp/$$"
    )
    any_user.launch(any_user.shell(script, mounts=mounts))
    assert any_user.end()["phase"] == "Succeeded", (any_user.state(), any_user.output())
    user = pwd.getpwnam(any_user.user).pw_uid if any_user.user else os.geteuid()
    assert any_user.output() == [
        *["inside"] * 3,
        "s3cret",
        "1",
        str(any_user.root / "home"),
        "/usr/bin/env",
        str(user),
    ]
    assert not any(os.path.lexists(point) for point in (*points, "/etc/moor-token", "/usr/share/moor-x"))
    assert list(volume.rglob("b")) == []


def test_mount_point_in_the_working_folder_keeps_that_folder_writable(any_user: World) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this machine allows no mount namespaces")
    volume = any_user.root / "vol"
    volume.mkdir()
    mounts = [{"mountPath": str(any_user.root / "home/data"), "hostPath": str(volume), "readOnly": False}]
    any_user.launch(any_user.shell("echo kept > result; echo there > data/x", mounts=mounts))
    assert any_user.end()["phase"] == "Succeeded", any_user.state()
    assert (any_user.root / "home/result").read_text() == "kept\n"
    assert (volume / "x").read_text() == "there\n"


def test_volume_whose_folder_is_gone_is_a_start_error(any_user: World) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this machine allows no mount namespaces")
    mounts = [{"mountPath": "/moor-data", "hostPath": "/no/such", "readOnly": False}]
    any_user.launch(any_user.shell("true", mounts=mounts))
    any_user.end()
    assert any_user.terminated()["message"] == 'mounting "/no/such" to "/moor-data": no such file or directory'


def test_killed_shim_takes_processes_in_namespaces_along(any_user: World) -> None:
    mounts = [{"mountPath": "/moor-data", "hostPath": str(any_user.root), "readOnly": False}]
    any_user.launch(any_user.shell("echo up; sleep 1000", mounts=mounts))
    any_user.wait_output("up")
    main = any_user.report()["pid"]
    os.kill(any_user.state()["shimPid"], signal.SIGKILL)
    wait_for(lambda: not any_user.folder.is_locked(), "lock")
    assert not Path(f"/proc/{main}").exists()


def test_in_a_private_root_nothing_of_the_machine_changes(any_user: World) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this kernel does not let this user make namespaces")
    world = any_user
    volume = world.root / "vol"
    volume.mkdir()
    token = world.uid
    script = f"""
        pwd
        ls -A /tmp
        for folder in /tmp /mnt /dev/shm / /{token}-new/deep /new/deep; do
            mkdir -p $folder && echo x > $folder/{token} || echo cannot write $folder
        done
        test -f /etc/passwd && test -c /dev/null && echo the machine is there
        grep -c " /new/deep " /proc/mounts
    """
    mounts = [{"mountPath": "/new/deep", "hostPath": str(volume)}]
    world.launch(world.shell(script, mounts=mounts, hasWorkingDir=False), privateRoot=True)
    assert world.end()["outcome"] == "Succeeded"
    assert world.state()["privateError"] == ""
    assert world.output() == ["/", "the machine is there", "1"]
    assert [place for place in ("/tmp", "/mnt", "/dev/shm", "/") if Path(place, token).exists()] == []
    assert (volume / token).read_text() == "x\n"


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that root alone may list, with a file system mounted in it, as /var/lib/docker has them."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is not carried into a private root
        inside = Path(name, "inside")
        inside.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(inside)]
        if subprocess.run(mounting, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            pytest.skip("no file system can be mounted here")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", str(inside)], check=True)


def test_a_private_root_has_folders_of_others_as_closed_as_they_are(any_user: World, closed_folder: Path) -> None:
    if not namespaces_allowed(any_user):
        pytest.skip("this kernel does not let this user make namespaces")
    any_user.launch(any_user.shell(f"stat -c %a {closed_folder}; echo written > /new"), privateRoot=True)
    assert any_user.end()["outcome"] == "Succeeded"
    assert any_user.state()["privateError"] == ""
    assert any_user.output() == ["700"]
    assert not Path("/new").exists()


def test_containers_of_private_roots_do_not_meet_and_restart_afresh(world: World) -> None:
    if not namespaces_allowed(world):
        pytest.skip("this kernel does not let this user make namespaces")
    count = "if test -e /tmp/mark; then echo met; exit 0; fi; touch /tmp/mark; echo alone; exit 1"
    world.launch(
        world.shell("touch /tmp/mark", name="first"),
        world.shell(count, name="second"),
        privateRoot=True,
        restartPolicy="OnFailure",
    )
    wait_for(lambda: world.report("second")["restartCount"] >= 1, "the second attempt")
    world.wait_output("alone", "second", 1)
    assert [world.output("second", attempt) for attempt in (0, 1)] == [["alone"], ["alone"]]
    world.folder.request_stop(0.0)


def test_where_the_kernel_allows_no_private_root_the_pod_runs_and_says_so(world: World) -> None:
    world.folder.path.mkdir(parents=True)
    (world.folder.path / "private").write_text("")  # in the place of the folder for what it writes
    world.launch(world.shell("pwd", hasWorkingDir=False), privateRoot=True)
    assert world.end()["outcome"] == "Succeeded"
    assert world.output() == [str(world.root / "home")]
    assert "private" in world.state()["privateError"]


def test_without_namespaces_paths_are_translated(world: World) -> None:
    volume = world.root / "vol"
    volume.mkdir()
    mounts = [{"mountPath": "/moor-data", "hostPath": str(volume), "readOnly": False}]
    container = world.shell(
        'echo a > /moor-data/x; echo b > "$OUT"; pwd; echo /moor-database',
        env={"OUT": "/moor-data/y"},
        mounts=mounts,
        workingDir="/moor-data",
    )
    world.launch(container, mountMode="translated")
    assert world.end()["phase"] == "Succeeded", world.output()
    assert world.state()["mounts"] == "translated"
    assert ((volume / "x").read_text(), (volume / "y").read_text()) == ("a\n", "b\n")
    assert world.output() == [str(volume), "/moor-database"]


def test_command_can_be_run_beside_a_container(any_user: World) -> None:
    mounts = [{"mountPath": "/moor-data", "hostPath": str(any_user.root), "readOnly": False}]
    if not namespaces_allowed(any_user):
        mounts = []
    any_user.launch(any_user.shell("echo up; sleep 1000", env={"WHO": "me"}, mounts=mounts))
    any_user.wait_output("up")
    answer = any_user.beside("echo $WHO; pwd; ls -d /moor-data; exit 5")
    assert answer.returncode in ((5,) if mounts else (5, 2)), answer
    assert answer.stdout.split()[:2] == ["me", str(any_user.root / "home")]
    if mounts:
        assert answer.stdout.split()[2] == "/moor-data"


@dataclass
class Platform:
    """A folder with a secret, around the pod's own; and a process of the same user that sees it as it is."""

    world: World
    process: subprocess.Popen[bytes]

    @property
    def folder(self) -> Path:
        return self.world.root / "nodes"

    def attack(self) -> str:
        """Prints whatever of the secret can be had, and what else a pod must be able to do."""
        secret, own = self.folder / "tokens.json", self.world.folder.path / "work/c/mine"
        outside = f"/proc/{self.process.pid}"
        return (
            f"exec 2>/dev/null; cat {secret}; cat {outside}/root{secret}; cat {outside}/environ | tr '\\0' '\\n' |"
            f" grep -o s3cret; umount {self.folder}; umount -l {self.folder}; cat {secret};"
            f" unshare -m sh -c 'umount {self.folder}; cat {secret}';"
            f" nsenter -t {self.process.pid} -m cat {secret};"
            f" touch {self.folder}/new && echo wrote beside; ls {self.folder};"
            f" cd {self.world.folder.path} && touch state.json && echo wrote the report; cat *.json; cd -;"
            f" echo kept > {own}; cat {own}"
        )

    def seen(self) -> list[str]:
        """What a fenced pod prints."""
        return ["n1", str(self.world.root / "home"), "kept"]


@pytest.fixture
def platform(any_user: World) -> Iterator[Platform]:
    (any_user.root / "nodes").mkdir()
    tried = subprocess.run(
        [any_user.python, "-S", "-E", "-s", podshim.__file__, "--try-fence", str(any_user.root / "nodes")],
        capture_output=True,
        text=True,
        user=any_user.user,
        check=True,
    )
    if tried.stdout.strip() != "fully":
        pytest.skip(f"this machine allows no fence: {tried.stdout.strip()}")
    (any_user.root / "nodes" / "tokens.json").write_text("s3cret\n")
    (any_user.folder.path / "work" / "c").mkdir(parents=True)
    command = ["sleep", "1000"]
    with subprocess.Popen(command, user=any_user.user, env={"PATH": PATH, "TOKEN": "s3cret"}) as process:
        yield Platform(any_user, process)
        process.kill()


@pytest.mark.parametrize("mounted", [False, True], ids=["without volumes", "with a volume where nothing was"])
def test_a_pod_does_not_see_the_folder_of_the_platform(platform: Platform, mounted: bool) -> None:
    world = platform.world
    volume = world.root / "nodes" / "volume"
    volume.mkdir()
    mounts = [{"mountPath": "/moor-data", "hostPath": str(volume), "readOnly": False}] if mounted else []
    world.launch(world.shell(platform.attack(), hidden=str(platform.folder), mounts=mounts))
    assert world.end()["phase"] == "Succeeded", world.state()
    assert (world.output(), world.state()["fenceError"]) == (platform.seen(), "")


@pytest.mark.parametrize("below", [".", "project"])
def test_a_working_directory_that_pods_do_not_see_is_a_start_error_that_says_so(
    platform: Platform, below: str
) -> None:
    world, folder = platform.world, platform.folder / below
    folder.mkdir(exist_ok=True)
    world.launch(world.container("true", workingDir=str(folder), hidden=str(platform.folder)))
    assert world.end()["phase"] == "Failed"
    assert (world.terminated()["reason"], world.terminated()["message"]) == (
        "StartError",
        f'the working directory "{folder}" lies in the data folder "{platform.folder}" of the cluster,'
        " which pods do not see: start the run from another folder",
    )


def test_a_fenced_pod_moves_and_links_files_between_folders(platform: Platform) -> None:
    world = platform.world
    volume = world.root / "nodes" / "volume"
    (volume / "a").mkdir(parents=True)
    (volume / "b").mkdir()
    (volume / "a" / "file").write_text("kept")
    mounts = [{"mountPath": "/moor-data", "hostPath": str(volume), "readOnly": False}]
    command = "cd /moor-data/b && mv ../a/file file && ln file ../a/link && cat ../a/link"
    world.launch(world.shell(command, hidden=str(platform.folder), mounts=mounts))
    assert world.end()["phase"] == "Succeeded", (world.state(), world.output())
    assert (world.output(), world.state()["fenceError"]) == (["kept"], "")


def test_a_pod_that_is_not_fenced_does(platform: Platform) -> None:
    platform.world.launch(platform.world.shell(platform.attack()))
    platform.world.end()
    assert platform.world.output().count("s3cret") >= 4


def test_a_command_beside_a_container_is_behind_the_same_fence(platform: Platform) -> None:
    world = platform.world
    world.launch(world.shell("echo up; sleep 1000", hidden=str(platform.folder)))
    world.wait_output("up")
    assert world.beside(platform.attack()).stdout.split() == platform.seen()


def test_a_command_beside_a_privileged_container_is_not_fenced_as_it_is_not(platform: Platform) -> None:
    world = platform.world
    volume = world.root / "volume"
    volume.mkdir()
    mounts = [{"mountPath": "/moor-data", "hostPath": str(volume)}]
    look = f"cat {platform.folder}/tokens.json; cat /proc/{platform.process.pid}/environ 2>&1 | grep -c s3cret"
    world.launch(world.shell(f"{look}; echo up; sleep 1000", mounts=mounts))
    world.wait_output("up")
    seen = world.beside(look, kind="privileged").stdout.split()
    assert (seen[0], seen) == ("s3cret", world.output()[:-1])


@pytest.mark.parametrize("which", ["shim", "guard", "a stranger", "a child of the main process", "nobody"])
def test_commands_run_beside_the_main_process_of_a_container_only(platform: Platform, which: str) -> None:
    """Whatever the pod's report says: a process that is not fenced must not be entered."""
    world = platform.world
    world.launch(world.shell("sleep 1000 & echo up; wait", hidden=str(platform.folder)))
    world.wait_output("up")
    shim_pid = world.state()["shimPid"]
    stat = processes.read_stat(shim_pid)
    assert stat is not None
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    pids = {
        "shim": shim_pid,
        "guard": stat[0],
        "a stranger": platform.process.pid,
        "a child of the main process": min(processes.descendants(world.report()["pid"])),
        "nobody": int(gone.stdout),
    }
    answer = world.beside("echo entered", pid=pids[which])
    assert (answer.returncode in (126, 127), answer.stdout) == (True, "")


MODULES = """
import importlib.util, sys
print(*sorted({spec.origin for name in sys.stdlib_module_names if (spec := importlib.util.find_spec(name))
    and str(spec.origin).endswith(".so")}), sep="\\n")
"""


def test_no_module_is_imported_from_the_mounts_of_a_pod(world: World) -> None:
    """A file of the pod over a module of the standard library would run before the fence is entered."""
    if not namespaces_allowed(world):
        pytest.skip("this machine allows no namespaces")
    words = [world.python, "-W", "ignore", "-S", "-E", "-s", "-c", MODULES]
    files = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    (world.root / "home").mkdir()
    fake = world.root / "home" / "fake.so"
    fake.write_text("not a module")
    mounts = [{"mountPath": file, "hostPath": str(fake)} for file in files]
    world.launch(world.shell("echo up; sleep 1000", mounts=mounts))
    world.wait_output("up")
    ours, theirs = pty.openpty()
    pid = str(world.report()["pid"])
    words = ["--exec", str(world.folder.path), pid, "fenced", "sh", "-c", "test -t 0 && echo entered"]
    answer = subprocess.run(
        [world.python, "-S", "-E", "-s", podshim.__file__, *words],
        stdin=theirs,
        capture_output=True,
        text=True,
        user=world.user,
        start_new_session=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert (answer.stdout, answer.stderr) == ("entered\n", "")


def test_a_container_whose_fence_fails_does_not_start(world: World) -> None:
    world.launch(world.shell("echo up", hidden=str(world.root / "missing")))
    assert world.end()["phase"] == "Failed"
    message = world.terminated()["message"]
    assert "missing" in message
    assert "start the cluster again" in message
    assert not (world.folder.path / "logs/c/0.log").read_text()


def test_a_fence_that_fails_for_one_container_is_there_for_the_others(platform: Platform) -> None:
    world = platform.world
    hidden = str(platform.folder)
    world.launch(
        world.shell("echo up", name="a", hidden=str(world.root / "missing")),
        world.shell(platform.attack(), name="c", hidden=hidden),
    )
    world.end()
    assert (world.report("a")["state"]["terminated"]["exitCode"], world.output()) == (128, platform.seen())


def test_a_volume_that_cannot_be_mounted_behind_the_fence_is_a_start_error(platform: Platform) -> None:
    """An ordinary user cannot list /root: no fence is given up for that."""
    world = platform.world
    volume = world.root / "nodes" / "volume"
    volume.mkdir()
    mounts = [{"mountPath": "/root/moor/x", "hostPath": str(volume)}]
    world.launch(world.shell(platform.attack(), hidden=str(platform.folder), mounts=mounts))
    phase = world.end()["phase"]
    if world.user is None:
        assert (phase, world.output()) == ("Succeeded", platform.seen())
        return
    assert (phase, world.state()["mounts"]) == ("Failed", "namespace")
    assert "/root" in world.terminated()["message"]
    assert not world.output()


def test_a_pod_that_moves_the_folder_away_does_not_have_another_one_hidden(platform: Platform) -> None:
    """A fenced pod cannot rename the folder itself, but one above it, and make a new one at the old path."""
    world = platform.world
    root, moved = world.root, world.root.with_name(f"{world.root.name}-moved")
    script = (
        f"cd /; if test -e {moved}; then cat {moved}/nodes/tokens.json > {moved}/home/evidence; sleep 1000; fi;"
        f" mv {root} {moved} && mkdir -p {platform.folder} {root}/home; exit 1"
    )
    inode = [platform.folder.stat().st_dev, platform.folder.stat().st_ino]
    world.launch(
        world.shell(script, hidden=str(platform.folder)),
        restartPolicy="OnFailure",
        backoffSeconds=0.05,
        hiddenInode=inode,
    )
    state = PodFolder(moved / world.folder.path.relative_to(root))

    def restarted() -> Any:
        report = ((state.state() or {}).get("containers") or [{}])[0]
        evidence = moved / "home/evidence"
        return report.get("restartCount", 0) >= 2 or (evidence.exists() and evidence.read_text())

    try:
        wait_for(restarted, "the second start")
        assert not (moved / "home/evidence").exists()
        report = (state.state() or {})["containers"][0]
        ended = report["state"].get("terminated") or report["lastState"]["terminated"]
        assert "another folder" in ended["message"]
    finally:
        if moved.exists():
            os.kill((state.state() or {})["shimPid"], signal.SIGKILL)
            wait_for(lambda: not state.is_locked(), "the guard to end")
            shutil.rmtree(root)
            moved.rename(root)


def test_where_the_kernel_allows_no_fence_the_pod_runs_and_says_so(world: World) -> None:
    world.launch(world.shell("echo up"), fenceError="unshare: Operation not permitted")
    assert world.end()["phase"] == "Succeeded"
    assert world.output() == ["up"]
    assert world.state()["fenceError"] == "unshare: Operation not permitted"


def test_a_shortage_is_not_taken_for_a_kernel_without_fences(world: World) -> None:
    """A pod can use up what its user may have; what is told apart is the setting of the machine."""
    if not namespaces_allowed(world):
        pytest.skip("this machine allows no namespaces")
    script = f"""if True:
        import ctypes, os, subprocess, sys
        assert ctypes.CDLL(None).unshare(0x10000000) == 0  # a user namespace, with limits of its own
        maps = ("uid_map", "0 {os.geteuid()} 1"), ("gid_map", "0 {os.getegid()} 1")
        for name, text in (("setgroups", "deny"), *maps):
            open(f"/proc/self/{{name}}", "w").write(text)
        for count in (0, 1):
            open("/proc/sys/user/max_mnt_namespaces", "w").write(str(count))
            held = subprocess.Popen(["unshare", "-m", "sleep", "100"]) if count else None
            while held and os.readlink(f"/proc/{{held.pid}}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                pass
            words = [sys.executable, "-S", "-E", "-s", {podshim.__file__!r}, "--try-fence", {str(world.root)!r}]
            print(subprocess.run(words, stdout=subprocess.DEVNULL).returncode, flush=True)
            if held:
                held.kill()
    """
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["0", "1"]


TREES = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from shim import processes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
tree = processes.Tree(os.getpid())
read, write = os.pipe()
main = os.fork()
if main == 0:
    os.setsid()
    script = "import threading, subprocess, time\\n" \
        "def more(): subprocess.Popen(['sleep', '600'])\\n" \
        "def work(): more(); time.sleep(600)\\n" \
        "[threading.Thread(target=work, daemon=True).start() for _ in range(3)]\\n" \
        "subprocess.run(['sh', '-c', '(setsid sleep 600 & sleep 600 &) ; sh -c \\"sleep 600; :\\" &'])\\n" \
        f"import os; os.write({write}, b'x'); time.sleep(600)"
    os.set_inheritable(write, True)
    os.execvp(sys.executable, [sys.executable, "-S", "-c", script])
os.read(read, 1)
mains = {main: "c"}
while len(processes.descendants(os.getpid())) < 8:
    pass
tree._listed = 0  # long ago: the next look is at all processes of the pod
tree.look(mains)
walked = dict(tree.owner)
tree.look(mains, force=True)
all_of_it = processes.descendants(os.getpid())
print(tree._has_lists, walked.keys() == tree.owner.keys() == all_of_it, walked[main])
orphans = {pid for pid in all_of_it - {main} if processes.read_stat(pid)[0] == os.getpid()}
for pid in orphans:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
tree._listed = 0
tree.look(mains)
print(len(orphans) >= 2, tree.owner.keys() == processes.descendants(os.getpid()))
for pid in processes.descendants(os.getpid()):
    os.kill(pid, 9)
"""


def test_the_lists_of_children_show_what_a_listing_of_all_processes_shows():
    """Threads' children, whole sessions of their own and orphans that fell to the shim."""
    words = [sys.executable, "-S", "-c", TREES, str(Path(podshim.__file__).parent)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS).stdout
    assert shown.splitlines() == ["True True c", "True True"]


# -- lifecycle hooks and termination messages


def test_hooks_run_in_the_container_around_its_program(world: World) -> None:
    """Case k09: postStart before the container counts as running, preStop before SIGTERM."""
    hooks = {
        "postStart": {"exec": ["sh", "-c", "echo $WHO >> notes"]},
        "preStop": {"exec": ["sh", "-c", "echo pre >> notes"]},
    }
    script = "trap 'echo term >> notes; exit 0' TERM; while :; do sleep 0.05; done"
    world.launch(world.shell(script, hooks=hooks, env={"WHO": "post"}))
    wait_for(world.running, "the container to run")
    assert (world.root / "home/notes").read_text() == "post\n"
    world.folder.request_stop(60)
    assert world.end()["phase"] == "Succeeded"
    assert (world.root / "home/notes").read_text() == "post\npre\nterm\n"


def test_a_failed_start_hook_ends_the_container_and_is_reported(world: World) -> None:
    world.launch(world.shell("sleep 300", hooks={"postStart": {"exec": ["sh", "-c", "exit 3"]}}))
    assert world.end()["phase"] == "Failed"
    assert world.report()["hookFailed"] == "postStart: exit code 3"
    assert world.terminated()["exitCode"] == 143


def test_a_stop_hook_takes_at_most_the_grace_period(world: World) -> None:
    script = "trap 'echo term >> notes; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    world.launch(world.shell(script, hooks={"preStop": {"sleep": 300}}))
    world.wait_output("up")
    world.folder.request_stop(0.3)
    world.end()
    assert (world.root / "home/notes").read_text() == "term\n"
    assert world.report()["hookFailed"] == "preStop: it did not end within the grace period"


def test_a_hook_ends_with_its_container(world: World) -> None:
    world.launch(world.shell("exit 4", hooks={"postStart": {"sleep": 300}}))
    assert world.end()["phase"] == "Failed"
    assert world.terminated()["exitCode"] == 4


def test_the_next_container_starts_after_the_hook_of_the_one_before(world: World) -> None:
    first = world.shell(
        "sleep 300", name="a", hooks={"postStart": {"exec": ["sh", "-c", "sleep 0.2; echo hooked > a"]}}
    )
    world.launch(first, world.shell("cat a", name="b"))
    world.wait_output("hooked", "b")


def test_a_hook_sends_a_request(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = {
            "host": "127.0.0.1",
            "port": server.getsockname()[1],
            "tls": False,
            "request": "GET /up HTTP/1.1\r\n\r\n",
        }
        world.launch(world.shell("sleep 300", hooks={"postStart": {"http": http}}))
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100).startswith(b"GET /up ")
            assert not world.running()
            connection.sendall(b"HTTP/1.1 500 No\r\n\r\n")
        wait_for(world.running, "the container to run")


@pytest.mark.parametrize(
    ("more", "script", "message"),
    [
        pytest.param({}, "echo bye > /dev/termination-log; exit 0", "bye\n", id="the default path"),
        pytest.param(
            {"messagePath": "/tmp/last-words"}, "echo bye > /tmp/last-words; exit 1", "bye\n", id="another path"
        ),
        pytest.param({"messageFromLogs": True}, "echo log; exit 1", "log\n", id="the log after an error"),
        pytest.param({"messageFromLogs": True}, "echo log; exit 0", "", id="no log after a success"),
        pytest.param(
            {"messageFromLogs": True},
            "echo log; echo bye > /dev/termination-log; exit 1",
            "bye\n",
            id="the file before the log",
        ),
        pytest.param(
            {}, "head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log", "x" * 4096, id="at most 4096 bytes"
        ),
        pytest.param({}, "echo log; exit 1", "", id="no message"),
    ],
)
def test_the_termination_message_is_the_file_that_the_program_writes(
    world: World, more: dict[str, Any], script: str, message: str
) -> None:
    world.launch(world.shell(script, **{"messagePath": "/dev/termination-log", **more}))
    world.end()
    assert world.terminated()["message"] == message
    assert not os.path.exists("/tmp/last-words")


def test_a_termination_message_may_lie_in_a_volume_and_leads_nowhere_else(world: World) -> None:
    volume = world.root / "volume"
    volume.mkdir(parents=True)
    (world.root / "secret").write_text("secret")
    mount = {"mountPath": "/data", "hostPath": str(volume), "subPath": "", "readOnly": False}
    for link, want in (("echo bye > /data/sub/words", "bye\n"), (f"ln -s {world.root} /data/out", "")):
        world.uid = f"u-{uuid.uuid4()}"
        path = "/data/out/secret" if "ln" in link else "/data/sub/words"
        world.launch(world.shell(f"mkdir -p /data/sub; {link}", mounts=[mount], messagePath=path))
        world.end()
        assert world.terminated()["message"] == want


def test_a_fenced_program_finds_the_file_in_dev(any_user: World) -> None:
    world = any_user
    if not namespaces_allowed(world):
        pytest.skip("this kernel allows no namespaces")
    code = (
        "open('/dev/' + 'termination-log', 'r+').write('bye')\n"
        "open('/dev/null', 'w').write('x')\n"
        "print(len(open('/dev/zero', 'rb').read(1)))"
    )
    hidden = str(world.root / "nodes")
    world.launch(world.python_code(code, hidden=hidden, messagePath="/dev/termination-log"))
    world.end()
    assert (world.terminated()["exitCode"], world.terminated()["message"]) == (0, "bye"), world.output()
