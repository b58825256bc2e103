"""DESIGN §5, on one machine: nothing is lost and nothing runs twice, whoever is killed, whenever."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.supervisor import CHILDREN
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster
from moorage_testing.killing import is_alive, send
from moorage_testing.replicas import prepare, start_part

SERVICES = ("operator", "webhook", "extender", "server")
STEPS = 60
JOB = textwrap.dedent(
    """
    import hashlib, os, pathlib, sys, time
    folder = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"])
    steps = folder / "steps"
    done = len(steps.read_text().split()) if steps.exists() else 0
    with open(folder / "starts", "a") as file:
        file.write(f"{os.getpid()}\\n")
    print("starting after step", done, flush=True)
    for step in range(done, int(sys.argv[1])):
        while "hold" in sys.argv and step == int(sys.argv[1]) - 1 and not (folder / "go").exists():
            time.sleep(0.02)  # so that it does not end before it is killed
        digest = b""
        for _ in range(60_000):  # real work, a few hundredths of a second
            digest = hashlib.sha256(digest).digest()
        with open(steps, "a") as file:
            file.write(f"{step}\\n")
            file.flush()
            os.fsync(file.fileno())
    sys.exit(int(sys.argv[2]))
    """
)


def submit(
    cluster: Cluster, tmp_path: Path, name: str, *, exit_code: int = 0, steps: int = STEPS, hold: bool = False
) -> Path:
    """Submit the counting job; return its checkpoint folder once it has begun.

    With `hold` its last step waits for a file `go` in that folder.
    """
    script = tmp_path / "count.py"
    script.write_text(JOB)
    cluster.moor(
        "run", "--name", name, "--gpus", "1", "--cpu", "1", "--memory", "256Mi", "--checkpoint", f"{name}-ckpt",
        "--", "python", str(script), str(steps), str(exit_code), *(["hold"] if hold else []), cwd=tmp_path,
    )  # fmt: skip
    return wait_until("the job's first step", lambda: find_checkpoint(cluster, done=1))


def find_checkpoint(cluster: Cluster, done: int) -> Path | None:
    for found in (cluster.home / "volumes").rglob("steps"):
        if len(found.read_text().split()) >= done:
            return found.parent
    return None


def show(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.moor("show", name, "-o", "json").stdout)
    return found


def control_plane(cluster: Cluster) -> dict[str, int]:
    found: dict[str, int] = json.loads(cluster.moor("status", "-o", "json").stdout)["processes"]
    return found


def kill_control_plane(cluster: Cluster, pids: dict[str, int] | None = None) -> None:
    """kill -9 of every process but the pods'; at once where their `pids` are known."""
    pids = pids or control_plane(cluster)
    for name in ("supervisor", "localcluster", "services"):
        send(pids[name], signal.SIGKILL)
    wait_until("the control plane to be gone", lambda: not any(is_alive(pid) for pid in pids.values()))


def pod_processes(cluster: Cluster) -> list[int]:
    """Shims and everything that runs below the data folder's pods."""
    mark = str(cluster.home / "nodes").encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in words or (str(cluster.home).encode() in words and b"count.py" in words):
                found.append(int(entry.name))
    return found


@pytest.mark.xdist_group("promises")
def test_a_killed_control_plane_adopts_the_running_job_which_finishes(own_cluster, tmp_path):
    folder = submit(own_cluster, tmp_path, "adopted")
    before = own_cluster.moor("jobs", "-o", "name").stdout
    kill_control_plane(own_cluster)
    own_cluster.restart()
    assert own_cluster.moor("jobs", "-o", "name").stdout == before
    wait_until("success", lambda: show(own_cluster, "adopted")["state"] == "Succeeded")
    assert (folder / "steps").read_text().split() == [str(step) for step in range(STEPS)]
    assert len((folder / "starts").read_text().split()) == 1, "the job was started a second time"
    assert show(own_cluster, "adopted")["restarts"] == 0


@pytest.mark.xdist_group("promises")
def test_processes_that_hang_are_replaced(own_cluster):
    folder = DataFolder(own_cluster.home)
    before = {name: folder.pid(name) for name in CHILDREN}
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)
    for name, pid in before.items():
        wait_until(f"another {name}", lambda name=name, pid=pid: folder.pid(name) not in (None, pid))
        assert not is_alive(pid)
    wait_until("an answer", lambda: own_cluster.moor("jobs", check=False).returncode == 0)


@pytest.mark.xdist_group("promises")
def test_an_exit_code_is_not_missed_while_nobody_watches(own_cluster, tmp_path):
    folder = submit(own_cluster, tmp_path, "missed", exit_code=7, steps=25)
    pid = int((folder / "starts").read_text().split()[0])
    kill_control_plane(own_cluster)
    wait_until("the job to end", lambda: not is_alive(pid))
    own_cluster.restart()
    wait_until("failure", lambda: show(own_cluster, "missed")["state"] == "Failed")
    found = show(own_cluster, "missed")
    assert (found["exitCode"], found["restarts"]) == (7, 0)


@pytest.mark.xdist_group("promises")
def test_with_the_pods_killed_too_the_job_resumes_from_its_checkpoint(own_cluster, tmp_path, seed):
    folder = submit(own_cluster, tmp_path, "resumed", hold=True)
    at = random.Random(seed).randrange(2, STEPS // 2)
    processes = control_plane(own_cluster)
    wait_until(f"step {at}", lambda: find_checkpoint(own_cluster, done=at))
    pids = pod_processes(own_cluster)
    for pid in (*(processes[name] for name in ("supervisor", "localcluster", "services")), *pids):
        send(pid, signal.SIGKILL)
    kill_control_plane(own_cluster, processes)
    wait_until("the pods to be gone", lambda: not any(is_alive(pid) for pid in pids))
    (folder / "go").touch()
    own_cluster.restart()
    wait_until("success", lambda: show(own_cluster, "resumed")["state"] == "Succeeded")
    steps = [int(step) for step in (folder / "steps").read_text().split()]
    assert sorted(set(steps)) == list(range(STEPS))
    assert len(steps) <= STEPS + 1, f"more than the step after the last checkpoint was repeated: {steps}"
    assert len((folder / "starts").read_text().split()) == 2
    assert show(own_cluster, "resumed")["restarts"] == 1


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[tuple[Cluster, Callable[[str], None]]]:
    """A local cluster whose services are a process each, and what restarts one of them as an upgrade does."""
    home = tmp_path / "home"
    with contextlib.ExitStack() as stack:
        folder, sockets = prepare(stack, home, "--nodes", "2", "--gpus", "2", "--gpu-type", "a100")
        fds = {name: sock.fileno() for name, sock in sockets.items()}
        start_part(stack, home, "moorage_local", {"api": fds["api"]})
        running = {part: stack.enter_context(contextlib.ExitStack()) for part in SERVICES}
        own = {name: fds[name] for name in ("extender", "webhook", "server")}

        def start(part: str) -> None:
            start_part(running[part], home, "moorage.cli.services", own, "--parts", part)

        def restart(part: str) -> None:
            running[part].close()  # SIGTERM, and its end
            start(part)

        for part in SERVICES:
            start(part)
        offers = frozenset({"api", "scheduler", "controllers", "kubelet"})
        yield Cluster(kind="local", offers=offers, kubeconfig=folder.kubeconfig, home=home), restart


@pytest.mark.xdist_group("promises")
def test_services_restarted_in_turns_disturb_neither_a_run_nor_a_map(
    parts: tuple[Cluster, Callable[[str], None]], tmp_path: Path, seed: int
) -> None:
    cluster, restart = parts
    chance = random.Random(seed)
    folder = submit(cluster, tmp_path, "long", hold=True)
    items, go = 12, tmp_path / "go"
    script = f"echo x >> {tmp_path}/$0; while [ $0 -ge 4 ] && [ ! -e {go} ]; do sleep 0.1; done"
    command = ("--cpu", "100m", "--memory", "64Mi", "--", "sh", "-c", script, "{item}")
    cluster.moor("map", "create", "m", "--range", f"0:{items}", "--parallelism", "2", *command)
    wait_until("the map's first items", lambda: len(list(tmp_path.glob("[0-9]*"))) > 4)
    order = chance.sample(SERVICES, len(SERVICES))
    for number, part in enumerate(order):
        restart(part)
        # nothing is refused that is allowed, right after each: admission, placement, the server
        cluster.moor("run", "--name", f"short-{number}", "--cpu", "100m", "--memory", "64Mi", "--", "true")
    assert show(cluster, "long")["state"] == "Running"
    (folder / "go").touch()
    go.touch()
    for name in ("long", *(f"short-{number}" for number in range(len(order)))):
        wait_until(f"the end of {name}", lambda name=name: show(cluster, name)["state"] == "Succeeded")
        assert (name, show(cluster, name)["restarts"]) == (name, 0)
    assert (folder / "steps").read_text().split() == [str(step) for step in range(STEPS)]
    assert len((folder / "starts").read_text().split()) == 1
    status = ("map", "status", "m", "-o", "json")
    wait_until("the map", lambda: json.loads(cluster.moor(*status).stdout)["state"] == "finished")
    rows = [json.loads(line) for line in cluster.moor("map", "results", "m").stdout.splitlines()]
    assert sorted(row["item"] for row in rows) == list(range(items))
    starts = {path.name: len(path.read_text().split()) for path in tmp_path.glob("[0-9]*")}
    assert starts == {str(item): 1 for item in range(items)}
    assert "starting after step 0" in cluster.moor("logs", "long").stdout


@pytest.mark.xdist_group("promises")
def test_kills_at_random_moments_lose_no_job(own_cluster, tmp_path):
    """Jobs are submitted while the control plane is killed again and again; each runs once, to its own end."""
    script = tmp_path / "once.py"
    starts = tmp_path / "starts"
    starts.mkdir()
    script.write_text(
        "import pathlib, sys, uuid\n"
        f"pathlib.Path({str(starts)!r}, f'{{sys.argv[1]}}-{{uuid.uuid4().hex}}').touch()\n"
        "sys.exit(int(sys.argv[1]) % 2)\n"
    )
    rng = random.Random(os.environ.get("MOORAGE_SEED") or 20261121)
    submitted = 0
    for _round in range(3):
        for _ in range(4):
            own_cluster.moor(
                "run", "--name", f"once-{submitted}", "--cpu", "100m", "--memory", "64Mi",
                "--", "python", str(script), str(submitted), cwd=tmp_path,
            )  # fmt: skip
            submitted += 1
        reached = rng.randrange(0, 4)
        wait_until(f"{reached} more starts", lambda n=submitted - 4 + reached: len(list(starts.iterdir())) >= n)
        kill_control_plane(own_cluster)
        own_cluster.restart()
    wanted = {f"once-{number}": "Failed" if number % 2 else "Succeeded" for number in range(submitted)}

    def ended() -> dict[str, str] | None:
        listed = json.loads(own_cluster.moor("jobs", "-o", "json").stdout)
        states = {run["name"]: run["state"] for run in listed if run["name"] in wanted}
        return states if set(states.values()) <= {"Failed", "Succeeded"} else None

    assert wait_until("every job's end", ended) == wanted
    counts = {number: len(list(starts.glob(f"{number}-*"))) for number in range(submitted)}
    assert counts == dict.fromkeys(range(submitted), 1)
