"""A server over an in-memory API with a lively cluster in it, and Chromium to look at it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from datetime import timedelta

import pytest

from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.resources import JOBS, NODES, PODS
from moorage_kube.serving import serve
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.browser import ARGS, LAUNCH_MS, chromium_path

TOKEN = "a-page-token"
GPU = "nvidia.com/gpu"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


def a_node(name, gpus, kind, *, ready=True, cordoned=False):
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": kind}},
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class Scene:
    """Puts runs into the API as Jobs with pods, as of now."""

    def __init__(self, api):
        self.api = api
        self.now = SYSTEM.now()

    def run(
        self,
        name,
        owner,
        gpus,
        kind="",
        *,
        node="",
        ago=1.0,
        time=None,
        devices=(),
        state="Running",
        checkpoint=None,
        attempt=1,
        namespace="vision",
    ):
        """`ago`, `time` and `checkpoint` in hours; without a node it waits."""
        created = rfc3339(self.now - ago * HOUR)
        labels = {"moorage.dev/run": name, "moorage.dev/attempt": str(attempt)}
        notes = {"moorage.dev/owner": owner}
        if time:
            notes["moorage.dev/expected-seconds"] = str(int(time * 3600))
        limits = {"cpu": "8", "memory": "32Gi"} | ({GPU: str(gpus)} if gpus else {})
        spec = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}
        if kind:
            spec["nodeSelector"] = {"nvidia.com/gpu.product": kind}
        first_notes = dict(notes)
        if checkpoint is not None:
            first_notes["moorage.dev/checkpoint"] = f"{name}-ckpt"
            first_notes["moorage.dev/checkpoint-at"] = rfc3339(self.now - checkpoint * HOUR)
        conditions = {
            "Succeeded": [{"type": "Complete", "status": "True"}],
            "Failed": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}],
        }.get(state, [])
        for number in range(1, attempt + 1):
            job_name = name if number == 1 else f"{name}-r{number}"
            last = number == attempt
            why = conditions if last else [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]
            self.api.put(
                JOBS,
                {
                    "metadata": {
                        "namespace": namespace,
                        "name": job_name,
                        "labels": labels | {"moorage.dev/attempt": str(number)},
                        "annotations": first_notes if number == 1 else notes,
                        "creationTimestamp": created,
                    },
                    "spec": {"template": {"metadata": {"labels": labels, "annotations": notes}, "spec": spec}},
                    "status": {"conditions": why},
                },
            )
        main = {"name": "main", "state": {"running": {"startedAt": created}}}
        if state != "Running":
            code = 0 if state == "Succeeded" else 137
            main["state"] = {
                "terminated": {
                    "exitCode": code,
                    "reason": "Completed" if code == 0 else "OOMKilled",
                    "startedAt": created,
                    "finishedAt": rfc3339(self.now - ago * HOUR / 2),
                }
            }
        if devices:
            ids = [{"resourceID": str(one)} for one in devices]
            main["allocatedResourcesStatus"] = [{"name": GPU, "resources": ids}]
        status = {"phase": state if node else "Pending"}
        if node:
            status |= {"startTime": created, "containerStatuses": [main]}
        owner_ref = {"controller": True, "uid": f"uid-jobs-{namespace}/{name}", "kind": "Job", "name": name}
        self.api.put(
            PODS,
            {
                "metadata": {
                    "namespace": namespace,
                    "name": f"{name}-x{attempt}",
                    "labels": labels,
                    "annotations": notes,
                    "creationTimestamp": created,
                    "ownerReferences": [owner_ref],
                },
                "spec": spec | ({"nodeName": node} if node else {}),
                "status": status,
            },
        )


def furnish(api):
    """A cluster of 22 GPUs on a busy afternoon."""
    scene = Scene(api)
    for at in (1, 2):
        api.put(NODES, a_node(f"gpu-a-0{at}", 8, "NVIDIA-A100-SXM4-80GB"))
    api.put(NODES, a_node("gpu-t-01", 4, "Tesla-T4"))
    api.put(NODES, a_node("gpu-t-02", 2, "Tesla-T4", cordoned=True))
    a100, t4 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4"
    scene.run(
        "llm-sft-7b",
        "ada.lovelace",
        4,
        a100,
        node="gpu-a-01",
        ago=5.2,
        time=8,
        devices=(0, 1, 2, 3),
        checkpoint=0.1,
        attempt=2,
    )
    scene.run("detector-yolo", "mika", 2, a100, node="gpu-a-01", ago=1.4, time=2, devices=(4, 5), checkpoint=0.05)
    scene.run("eval-suite", "jun", 1, a100, node="gpu-a-01", ago=0.3, devices=(6,))
    scene.run(
        "pretrain-vit", "sofia", 4, a100, node="gpu-a-02", ago=26, time=30, devices=(0, 1, 2, 3), checkpoint=0.9
    )
    scene.run(
        "diffusion-ablation-lr-3e-4",
        "ada.lovelace",
        1,
        a100,
        node="gpu-a-02",
        ago=3,
        devices=(4,),
        namespace="gen",
    )
    scene.run("whisper-ft", "omar", 2, t4, node="gpu-t-01", ago=0.7, time=1.5, devices=(0, 1), namespace="speech")
    scene.run("notebook-probe", "jun", 1, t4, node="gpu-t-02", ago=9, devices=(0,))
    scene.run("llm-sft-13b", "ada.lovelace", 8, a100, ago=0.6, time=12)
    scene.run("segmenter", "mika", 4, a100, ago=0.4, time=3)
    scene.run("rl-sweep", "omar", 3, "H100", ago=0.1, namespace="speech")
    scene.run("tokenizer", "sofia", 0, node="gpu-t-01", ago=0.2)
    scene.run("baseline", "jun", 1, t4, node="gpu-t-01", ago=7, state="Succeeded")
    scene.run("big-batch", "omar", 2, a100, node="gpu-a-02", ago=8, state="Failed", namespace="speech")
    return scene


def remember(store, now):
    """What was used in the last day."""
    rows = [
        ("ada.lovelace", 4, 5.2),
        ("sofia", 4, 24),
        ("mika", 2, 9.5),
        ("omar", 2, 3),
        ("jun", 1, 9),
        ("lena", 1, 2),
    ]
    store.apply(
        [
            Open(
                Interval(
                    pod_uid=f"past-{at}",
                    namespace="vision",
                    pod=f"past-{at}",
                    run=f"past-{at}",
                    attempt=1,
                    owner=owner,
                    node="gpu-a-01",
                    gpu_type="a100",
                    gpus=gpus,
                    cpu_milli=8000,
                    memory_bytes=2**35,
                    started_at=now - hours * HOUR,
                    ended_at=now,
                    last_seen_at=now,
                )
            )
            for at, (owner, gpus, hours) in enumerate(rows)
        ]
    )


def measure(api, store, now):
    """How busy the GPUs of the runs are now, but for one that nobody measures."""
    readings = []
    for at, pod in enumerate(api._objects[PODS].values()):
        gpus = int(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))
        if not gpus or not pod["spec"].get("nodeName") or pod["metadata"]["name"].startswith("eval-suite"):
            continue
        used = tuple(GpuReading(device=f"GPU-{at}-{n}", utilisation=(37 * (at + n)) % 101) for n in range(gpus))
        readings.append(Reading(pod_uid=pod["metadata"]["uid"], at=now, gpus=used, owner="x", namespace="vision"))
    store.add(readings)


class Site:
    """The server, running."""

    def __init__(self, api, service, base):
        self.api = api
        self.service = service
        self.base = base
        self.token = TOKEN


@contextlib.asynccontextmanager
async def serving(folder, *, api=None, port=0):
    api = api or FakeApi()
    service = ServerService(api, usage_db=folder / "usage.db", page_token=TOKEN)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()
        work = [asyncio.create_task(service.run()), asyncio.create_task(serve(service.app, sock))]
        try:
            yield Site(api, service, f"http://127.0.0.1:{sock.getsockname()[1]}")
        finally:
            service.cluster.close()
            for task in reversed(work):
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


@contextlib.asynccontextmanager
async def lively(folder, *, port=0):
    async with serving(folder, port=port) as running:
        furnish(running.api)
        remember(running.service.usage, SYSTEM.now())
        measure(running.api, running.service.samples, SYSTEM.now())
        yield running


@pytest.fixture
def start_site():
    return lively


@pytest.fixture
async def site(tmp_path, anyio_backend):
    async with lively(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
async def chromium(anyio_backend):
    path = chromium_path()
    playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGS, timeout=LAUNCH_MS)
        try:
            yield browser
        finally:
            await browser.close()
