"""Two runs on one GPU take turns, and both finish from their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moorage.model.tenant import TENANTS
from moorage_kube.remote.client import KubeClient
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import local_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.processes, pytest.mark.timeout(900)]

STEPS = 160  # of 0.2 s: several turns
TRAIN = f"""\
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until it has begun and can say where it stops
folder = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"])
saved = folder / "step"
step = int(saved.read_text()) if saved.exists() else 0
print("began at", step, flush=True)
def save():
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").replace(saved)
def stop(*_):
    save()
    print("stopped at", step, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
while step < {STEPS}:
    time.sleep(0.2)
    step += 1
    save()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a turn that ends now does not interrupt it
pathlib.Path(os.environ["MOORAGE_DONE_FILE"]).touch()
print("done at", step, flush=True)
"""
RULE = {"spec": {"timeSharing": {"guaranteedSeconds": 3}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_two_runs_on_one_gpu_take_turns(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with local_cluster(tmp_path / "up", "--nodes", "1", "--gpus", "1", "--gpu-type", "a100") as cluster:
        cluster.moor("tenant", "create", "vision", "--admin", "ada")
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.patch(TENANTS, "vision", RULE)

        def start(name: str) -> None:
            size = ("--gpus", "1", "--cpu", "1", "--memory", "256Mi", "--checkpoint", name, "--share")
            where = ("-n", "vision", "--name", name, "--restart-limit", "0")
            cluster.moor("run", *where, *size, "--", "python3", "train.py", cwd=tmp_path)

        def show(name: str) -> dict[str, object]:
            shown = cluster.moor("show", name, "-n", "vision", "-o", "json").stdout
            return dict(json.loads(shown))

        async def ended() -> list[dict[str, object]] | None:
            runs = [show("first"), show("second")]
            return runs if all(run["state"] not in ("Waiting", "Running", "Restarting") for run in runs) else None

        start("first")
        start("second")
        runs = await until("both runs to end", ended, patience=700)
        assert [(run["name"], run["state"], run["restarts"]) for run in runs] == [
            ("first", "Succeeded", 0),
            ("second", "Succeeded", 0),
        ]
        for run in runs:
            assert int(str(run["attempts"])) >= 2
            log = cluster.moor("logs", str(run["name"]), "-n", "vision").stdout
            began = [int(line.rpartition(" ")[2]) for line in log.splitlines() if "began at" in line]
            stopped = [int(line.rpartition(" ")[2]) for line in log.splitlines() if "stopped at" in line]
            assert began == [0, *stopped]  # each goes on where the one before was stopped
            assert f"done at {STEPS}" in log
