"""NVIDIA GPUs of this machine, as typed: found, given to runs, measured, reclaimed when idle, shared by time.

Skipped where NVML finds none, as in CI; `pytest packages/moorage/tests/e2e/test_real_gpu.py` on a machine
that has some. The last figures are in docs/explanation/use.md.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from moorage.model.idle import IDLE_POLICIES
from moorage.model.tenant import TENANTS
from moorage_kube.remote.client import KubeClient
from moorage_kube.testing import waiting
from moorage_local.nodeagent.gpuexporter import read_driver
from moorage_local.nodeagent.machine import find_real, this_machine
from moorage_testing.cluster import Cluster, local_cluster
from moorage_testing.plugin import short_folder

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("real-gpu"),
    pytest.mark.skipif(not find_real(), reason="no NVIDIA GPU on this machine"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

until = partial(waiting.read_until, patience=300.0)  # readings come every half minute
MIB = 2**20
SIZE = ("--cpu", "1", "--memory", "16Gi")  # CUDA's libraries alone are 1.5 GiB
TRAIN = """\
    import os, pathlib, signal, sys, torch
    steps = int(sys.argv[1])
    saved = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"], "state.pt")
    print("sees", torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid, flush=True)
    gpu = torch.device("cuda")
    torch.manual_seed(0)
    teacher = torch.nn.Linear(4096, 4096, device=gpu)
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device=gpu) for _ in range(4)])
    best = torch.optim.Adam(model.parameters(), lr=1e-5)
    step = 0
    if saved.exists():
        state = torch.load(saved)
        step = state["step"]
        model.load_state_dict(state["model"])
        best.load_state_dict(state["best"])
    def save():
        new = saved.with_suffix(".new")
        torch.save({"step": step, "model": model.state_dict(), "best": best.state_dict()}, new)
        new.replace(saved)
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
    print("began at", step, flush=True)
    while step < steps and not leaving:
        pictures = torch.randn(2048, 4096, device=gpu)
        loss = torch.nn.functional.mse_loss(model(pictures), teacher(pictures).detach())
        best.zero_grad()
        loss.backward()
        best.step()
        step += 1
        if step == 1 or step % 100 == 0:
            print("step", step, "loss", f"{loss.item():.6f}", flush=True)
        if step % 200 == 0:
            save()
    save()
    print("stopped at" if step < steps else "done at", step, "loss", f"{loss.item():.6f}", flush=True)
    sys.exit(143 if step < steps else 0)
    """
STALLS = """\
    import os, pathlib, time, torch
    saved = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"], "step ")
    held = torch.ones(4, 1024, 1024, 64, device="cuda")
    torch.cuda.synchronize()
    saved.write_text("1")
    print("holds", held.nbytes, flush=True)
    time.sleep(100000)
    """
BLIND = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
POLICY = {
    "warnAfter": "1m", "remindAfter": "5s", "suspendAfter": "10s", "idle": {"window": "30s"},
    "snooze": {"longest": "1h", "times": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def gpus() -> Iterator[Cluster]:
    """This machine as a cluster, as `moor up` makes it."""
    with short_folder() as folder, local_cluster(folder / "home", "--extender") as cluster:
        yield cluster


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "stalls.py").write_text(textwrap.dedent(STALLS))
    return tmp_path


def shown(cluster: Cluster, *command: str) -> Any:
    return json.loads(cluster.moor(*command, "-o", "json").stdout)


def use_of(cluster: Cluster, run: str) -> dict[str, Any]:
    """The run's last pod that was measured."""
    pods = (shown(cluster, "show", run).get("use") or {}).get("pods") or [{}]
    total: dict[str, Any] = pods[-1].get("total") or {}
    return total


def logged(cluster: Cluster, run: str, start: str, namespace: str = "default") -> list[list[str]]:
    """The words from `start` on, of each line of a run's log; lines of several pods begin with the pod's name."""
    lines = cluster.moor("logs", run, "-n", namespace).stdout.splitlines()
    return [line[line.index(start) :].split() for line in lines if start in line]


def metric(cluster: Cluster, line: str) -> float | None:
    """A value of the server's page of metrics."""
    server, _, token = shown(cluster, "status")["page"].partition("/?token=")
    asked = urllib.request.Request(f"{server}/metrics", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked) as answer:
        values = dict(each.rsplit(" ", 1) for each in answer.read().decode().splitlines() if each[:1] != "#")
    return float(values[line]) if line in values else None


def test_the_gpus_of_the_machine_are_offered_as_nvml_names_them(gpus: Cluster) -> None:
    node = this_machine()
    rows = shown(gpus, "gpus")
    assert [(row["node"], row["type"], row["state"]) for row in rows] == [
        (node.name, node.gpu_type, "free")
    ] * node.gpus
    assert node.real_gpu_uuids
    assert set(node.real_gpu_uuids) <= set(read_driver())


def test_a_training_has_its_gpu_alone_is_measured_and_goes_on_after_a_suspension(
    gpus: Cluster, folder: Path
) -> None:
    node = this_machine()
    count = str(node.gpus)
    typed = ("--gpus", count, "--gpu-type", node.gpu_type, *SIZE)
    gpus.moor(
        "run", "--name", "train", *typed, "--checkpoint", "train", "--", gpus.python, "train.py", "1000000000",
        cwd=folder,
    )  # fmt: skip
    gpus.moor("run", "--name", "blind", *SIZE, "--", gpus.python, "-c", BLIND)
    gpus.moor(
        "run", "--name", "next", *typed, "--checkpoint", "next", "--", gpus.python, "train.py", "200", cwd=folder
    )

    # parameters and Adam's two moments are on the GPU, and it computes
    at_least = 4 * 3 * 4096**2 * 4
    use = until(
        lambda: use_of(gpus, "train"), lambda use: use.get("gpuPercent") and use["gpuMemoryBytes"] > at_least
    )
    driver = [read_driver()[uuid] for uuid in node.real_gpu_uuids or ()]
    print("measured:", use, "\nthe driver now:", driver)
    assert 0 < use["gpuPercent"] <= use["gpuPeakPercent"] <= 100
    assert use["powerWatts"] > 50
    assert (
        metric(gpus, f'moorage_node_gpu_utilisation_ratio{{node="{node.name}",type="{node.gpu_type}"}}') or 0
    ) > 0
    assert metric(gpus, f'moorage_gpus{{node="{node.name}",state="used",type="{node.gpu_type}"}}') == node.gpus
    assert {row["run"] for row in shown(gpus, "gpus")} == {"train"}
    until(lambda: logged(gpus, "train", "step "), bool)  # from now on it saves its state before it leaves
    ((_, devices, uuid),) = logged(gpus, "train", "sees")
    assert devices == count
    assert uuid.removeprefix("GPU-") in {each.removeprefix("GPU-") for each in node.real_gpu_uuids or ()}
    blind = until(lambda: shown(gpus, "show", "blind"), lambda run: run["state"] == "Succeeded")
    assert not blind["gpus"]
    assert gpus.moor("logs", "blind").stdout.split() == ["False", "0"], "without --gpus a run sees none"
    assert shown(gpus, "show", "next")["state"] == "Waiting"

    gpus.moor("suspend", "train")
    until(
        lambda: shown(gpus, "show", "next"), lambda run: run["state"] == "Succeeded"
    )  # the GPUs were free for it
    gpus.moor("resume", "train")
    until(lambda: logged(gpus, "train", "began at"), lambda began: len(began) == 2)
    stopped, began = logged(gpus, "train", "stopped at"), logged(gpus, "train", "began at")
    assert began[1][2] == stopped[0][2]
    steps = until(lambda: logged(gpus, "train", "step "), lambda steps: int(steps[-1][1]) > int(stopped[0][2]))
    assert float(steps[-1][3]) < float(steps[0][3]), "it learns, over both attempts"
    print(
        "loss:", steps[0][3], "at step 1,", stopped[0][4], "when suspended,", steps[-1][3], "at step", steps[-1][1]
    )
    gpus.moor("cancel", "train")


def test_a_run_that_holds_memory_and_computes_nothing_is_idle_and_loses_its_gpu(
    gpus: Cluster, folder: Path
) -> None:
    async def create() -> None:
        document = {"apiVersion": "moorage.dev/v1alpha1", "kind": "IdlePolicy", "metadata": {"name": "short"}}
        async with KubeClient.from_kubeconfig(gpus.kubeconfig) as api:
            await api.create(IDLE_POLICIES, document | {"spec": POLICY})

    gpus.moor(
        "run", "--name", "stalls", "--gpus", "1", *SIZE, "--checkpoint", "stalls", "--", gpus.python, "stalls.py",
        cwd=folder,
    )  # fmt: skip
    asyncio.run(create())
    run = until(lambda: shown(gpus, "show", "stalls"), lambda run: run["state"] == "Suspended")
    ((_, held),) = logged(gpus, "stalls", "holds")
    use = use_of(gpus, "stalls")
    print("idle:", run["reason"], use)
    assert run["reason"].startswith("suspended by the idle policy: idle: GPU below 5 %")
    assert use["gpuMemoryBytes"] > int(held), "the whole GPU is measured, with what CUDA itself takes"
    until(lambda: shown(gpus, "gpus"), lambda rows: all(row["state"] == "free" for row in rows))
    uuids = this_machine().real_gpu_uuids or ()
    until(read_driver, lambda uses: all(uses[uuid].memory_bytes < int(held) for uuid in uuids))
    gpus.moor("cancel", "stalls")


def test_two_trainings_take_turns_on_the_gpus(gpus: Cluster, folder: Path) -> None:
    async def rule() -> None:
        async with KubeClient.from_kubeconfig(gpus.kubeconfig) as api:
            await api.patch(TENANTS, "vision", {"spec": {"timeSharing": {"guaranteedSeconds": 5}}})

    gpus.moor("tenant", "create", "vision", "--admin", "ada")
    asyncio.run(rule())
    for name in ("first", "second"):
        size = ("--gpus", str(this_machine().gpus), *SIZE, "--checkpoint", name, "--share", "--restart-limit", "0")
        gpus.moor("run", "-n", "vision", "--name", name, *size, "--", gpus.python, "train.py", "1200", cwd=folder)
    over = ("Succeeded", "Failed", "Cancelled")
    for name in ("first", "second"):
        run = until(lambda name=name: shown(gpus, "show", name, "-n", "vision"), lambda run: run["state"] in over)
        began = [line[2] for line in logged(gpus, name, "began at", "vision")]
        stopped = [line[2] for line in logged(gpus, name, "stopped at", "vision")]
        print(name, run["state"], "began at", *began)
        assert (run["state"], run["restarts"]) == ("Succeeded", 0)
        assert began == ["0", *stopped], "each turn goes on where the one before was stopped"
        assert len(began) >= 2
        assert logged(gpus, name, "done at 1200", "vision")


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("torchvision", "cv2"))), reason="torchvision or OpenCV is not installed"
)
def test_a_worker_of_the_video_example_detects_on_the_gpu(gpus: Cluster, tmp_path: Path) -> None:
    """With random weights: the network's own are not in a package. What it finds means nothing."""
    import torch
    import torchvision

    with mock.patch.dict(os.environ):  # OpenCV puts its folder into LD_LIBRARY_PATH, which maps pass on
        import cv2

    example = Path(__file__).parents[4] / "examples/video-detection"
    network = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None
    )
    video = tmp_path / "v1"
    video.mkdir()
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    frames = 64
    for number in range(frames):
        picture = (torch.rand(360, 640, 3) * 255).to(torch.uint8).numpy()
        assert cv2.imwrite(str(video / f"{number:06}.jpg"), picture)
    gpus.moor("volume", "create", "video", "--size", "5Gi", "--access-mode", "rwx")
    gpus.moor("volume", "cp", "v1", "video:/v1", cwd=tmp_path)
    gpus.moor("volume", "cp", "weights.pt", "video:/", cwd=tmp_path)
    (tmp_path / "frames.jsonl").write_text(
        "".join(json.dumps({"video": "v1", "frame": number}) + "\n" for number in range(frames))
    )
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    gpus.moor(
        "map", "create", "detect", "--gpus", "1", *SIZE, "--volume", "video:/video", "--env", "DETECTOR=torch",
        "--env", "WEIGHTS=/video/weights.pt", "-f", str(tmp_path / "frames.jsonl"), "--function", "detect:find",
        cwd=example, env=env,
    )  # fmt: skip
    done = until(lambda: shown(gpus, "map", "status", "detect"), lambda status: status["state"] == "finished")
    assert done["counts"]["done"] == frames
    results = [json.loads(line) for line in gpus.moor("map", "results", "detect").stdout.splitlines()]
    print("detected:", done["counts"], results[-1])
    assert {result["value"]["detector"] for result in results} == {"torch on cuda"}
