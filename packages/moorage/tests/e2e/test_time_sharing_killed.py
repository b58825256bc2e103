"""The operator is killed while two runs take turns on one GPU: no step is lost, and the turns go on."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from moorage.model.names import YIELDS_TO_ANNOTATION
from moorage.model.tenant import TENANTS
from moorage_kube.meta import annotations_of, is_condition_true
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, Obj
from moorage_kube.testing.examples import examples
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.plugin import short_folder
from moorage_testing.replicas import prepare, start_part
from tests.e2e.test_time_sharing_as_typed import RULE

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(900)]

KILLS = int(examples("4", full="12"))
NAMES = ("first", "second")
PATIENCE = 400
TRAIN = """\
import fcntl, os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"], "step")
here, name = pathlib.Path(sys.argv[1]), sys.argv[2]
lock = open(here / "gpu", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever runs has the GPU
except BlockingIOError:
    (here / "two-at-once").touch()
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
step = int(saved.read_text()) if saved.exists() else 0
with open(here / f"{name}.starts", "a") as starts:
    print(step, file=starts)
while not stopped and not (here / "enough").exists():
    time.sleep(0.1)
    with open(here / f"{name}.steps", "a") as steps:
        print(step, file=steps)
    step += 1
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").replace(saved)
sys.exit(143 if stopped else 0)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Site:
    """A local cluster whose operator is a process of its own."""

    def __init__(self, stack: contextlib.ExitStack, home: Path) -> None:
        folder, sockets = prepare(stack, home, "--nodes", "1", "--gpus", "1", "--gpu-type", "a100")
        fds = {name: sock.fileno() for name, sock in sockets.items()}
        self._stack, self._home = stack, home
        start_part(stack, home, "moorage_local", {"api": fds["api"]})
        self._fds = {name: fds[name] for name in ("extender", "webhook", "server")}
        start_part(stack, home, "moorage.cli.services", self._fds, "--parts", "webhook,extender,server")
        self.operator = self._start_operator()
        offers = frozenset({"api", "scheduler", "controllers", "kubelet"})
        self.cluster = Cluster(kind="local", offers=offers, kubeconfig=folder.kubeconfig, home=home)

    def _start_operator(self) -> Any:
        return start_part(self._stack, self._home, "moorage.cli.services", self._fds, "--parts", "operator")

    def kill_operator(self) -> None:
        self.operator.send_signal(signal.SIGKILL)
        self.operator.wait()
        self.operator = self._start_operator()

    def show(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.cluster.moor("show", name, "-n", "vision", "-o", "json").stdout))


async def test_an_operator_killed_again_and_again_loses_no_step_and_no_turn(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "train.py").write_text(TRAIN)
    async with contextlib.AsyncExitStack() as stack:
        site = Site(stack.enter_context(contextlib.ExitStack()), stack.enter_context(short_folder()) / "home")
        site.cluster.moor("tenant", "create", "vision", "--admin", "ada")
        api = await stack.enter_async_context(KubeClient.from_kubeconfig(site.cluster.kubeconfig))
        await api.patch(TENANTS, "vision", RULE)
        for name in NAMES:
            size = ("--gpus", "1", "--cpu", "1", "--memory", "256Mi", "--checkpoint", name, "--share")
            where = ("-n", "vision", "--name", name, "--restart-limit", "0")
            command = ("python3", "train.py", str(tmp_path), name)
            site.cluster.moor("run", *where, *size, "--", *command, cwd=tmp_path)

        async def steps_done(wanted: int) -> bool:
            return sum(len(numbers(tmp_path / f"{name}.steps")) for name in NAMES) >= wanted

        async def turns(wanted: int) -> bool:
            return sum(len(numbers(tmp_path / f"{name}.starts")) for name in NAMES) >= wanted

        async def asked() -> bool:
            jobs = (await api.list(JOBS, "vision")).items
            return any(YIELDS_TO_ANNOTATION in annotations_of(job) and not has_ended(job) for job in jobs)

        await until("the first turns", lambda: turns(2), patience=PATIENCE)
        for kill in range(KILLS):
            if kill % 2:
                await until("a run to be asked for its place", asked, patience=PATIENCE)
            else:
                done = sum(len(numbers(tmp_path / f"{name}.steps")) for name in NAMES)
                more = chance.randrange(1, 60)
                await until("more steps", lambda wanted=done + more: steps_done(wanted), patience=PATIENCE)
            site.kill_operator()
        begun = sum(len(numbers(tmp_path / f"{name}.starts")) for name in NAMES)
        await until("turns after the last kill", lambda: turns(begun + 2), patience=PATIENCE)
        (tmp_path / "enough").touch()

        async def ended() -> list[dict[str, Any]] | None:
            runs = [site.show(name) for name in NAMES]
            return runs if all(run["state"] not in ("Waiting", "Running", "Restarting") for run in runs) else None

        runs = await until("both runs to end", ended, patience=PATIENCE)
    assert not (tmp_path / "two-at-once").exists()
    for run in runs:
        starts, steps = numbers(tmp_path / f"{run['name']}.starts"), numbers(tmp_path / f"{run['name']}.steps")
        assert (run["state"], run["restarts"]) == ("Succeeded", 0)
        assert run["attempts"] >= len(starts)  # on a busy machine a turn may end before its Python has begun
        assert steps == list(range(len(steps)))  # each once, in order


def numbers(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def has_ended(job: Obj) -> bool:
    return is_condition_true(job, "Failed") or is_condition_true(job, "Complete")
