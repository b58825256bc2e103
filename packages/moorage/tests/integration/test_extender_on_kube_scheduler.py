"""The extender as a process of its own under a real kube-scheduler: bursts, kills, and an extender that hangs.

Needs etcd, kube-apiserver and kube-scheduler in KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from moorage.model.manifests import CLUSTERROLEBINDINGS, ROLEBINDINGS, ROLES
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.schedulerconfig import FIRST_KEY, HTTP_TIMEOUT, SECOND_KEY, scheduler_files
from moorage.model.secondscheduler import make_second_scheduler
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import EVENTS, LEASES, NAMESPACES, NODES, PODS, SERVICEACCOUNTS, Obj
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import ControlPlane, control_plane

ASSETS = os.environ.get("KUBEBUILDER_ASSETS")
GPU = "nvidia.com/gpu"
NODES_MADE, NODE_GPUS = 20, 8
PATIENCE_SECONDS = 180.0
GRANTING = (CLUSTERROLEBINDINGS, ROLES, ROLEBINDINGS)
SIZES = (1, 1, 2, 1, 1, 4, 1, 1)

pytestmark = [
    pytest.mark.skipif(
        not ASSETS or not (Path(ASSETS) / "kube-scheduler").exists(),
        reason="no real kube-scheduler: set KUBEBUILDER_ASSETS",
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with control_plane(Path(ASSETS or ""), tmp_path) as found:
        asyncio.run(make_nodes(found))
        yield found


async def make_nodes(plane: ControlPlane) -> None:
    offered = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(NODE_GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "Made", "lastTransitionTime": rfc3339(SYSTEM.now())}
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        for number in range(NODES_MADE):
            name = f"node-{number}"
            meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
            status = {"capacity": offered, "allocatable": offered, "conditions": [ready]}
            await api.patch(NODES, name, {"status": status}, subresource="status")
            await api.patch(NODES, name, {"spec": {"taints": None}})


async def make_pods(
    plane: ControlPlane, count: int, *, start: int = 0, sizes: tuple[int, ...] = SIZES, scheduler: str = ""
) -> None:
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:

        async def make(number: int) -> None:
            limits = {"cpu": "1", "memory": "1Gi", GPU: str(sizes[number % len(sizes)])}
            container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
            meta = {"name": f"pod-{number}", "namespace": "default"}
            spec = {"containers": [container]} | ({"schedulerName": scheduler} if scheduler else {})
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            await api.create(PODS, pod)

        await asyncio.gather(*(make(number) for number in range(start, start + count)))


def bound(plane: ControlPlane) -> list[Obj]:
    async def listed() -> list[Obj]:
        async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
            return (await api.list(PODS, "default")).items

    return [pod for pod in asyncio.run(listed()) if pod["spec"].get("nodeName")]


def all_bound(plane: ControlPlane, count: int) -> list[Obj]:
    """The pods, once `count` are bound."""
    return wait_until(
        "every pod is bound",
        lambda: pods if len(pods := bound(plane)) == count else None,
        patience=PATIENCE_SECONDS,
    )


def held(pods: list[Obj]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for pod in pods:
        found[pod["spec"]["nodeName"]] += int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
    return dict(found)


class Extender:
    """`moor extender`, which can be killed and started again at the same port."""

    def __init__(self, plane: ControlPlane, policy: str = "pack", token: str = "") -> None:
        self.url = f"http://127.0.0.1:{plane.ports['extender']}"
        self._argv = [sys.executable, "-m", "moorage.cli.main", "extender", "--kubeconfig", str(plane.kubeconfig)]
        self._argv += ["--host", "127.0.0.1", "--port", str(plane.ports["extender"]), "--policy", policy]
        if token:
            (token_file := plane.kubeconfig.with_name("extender-token")).write_text(token)
            self._argv += ["--token-file", str(token_file)]
        self._log = plane.kubeconfig.with_name("extender.log")
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=30) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self, pattern: str) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as answer:
            return {name: int(float(value)) for name, value in re.findall(pattern, answer.read().decode())}

    def outcomes(self) -> dict[str, int]:
        found = self.metrics(r'moorage_extender_assumptions_total{outcome="(\w+)"} (\S+)')
        return {name: count for name, count in found.items() if count}

    def used(self) -> dict[str, int]:
        found = self.metrics(r'moorage_node_gpus_used{node="([^"]+)",type="unknown"} (\S+)')
        return {node: count for node, count in found.items() if count}


@contextlib.contextmanager
def an_extender(plane: ControlPlane, policy: str = "pack", token: str = "") -> Iterator[Extender]:
    extender = Extender(plane, policy, token)
    try:
        wait_until("the extender", extender.is_ready)
        yield extender
    finally:
        extender.kill()


@pytest.mark.parametrize("policy", ["pack", "fragmentation", "spread"])
def test_a_burst_is_placed_as_predicted(plane: ControlPlane, policy: str) -> None:
    count = 80
    with an_extender(plane, policy) as extender:
        # spread starves large requests, by its nature
        asyncio.run(make_pods(plane, count, sizes=(1,) if policy == "spread" else SIZES))
        plane.start_scheduler(qps=5000)
        pods = all_bound(plane, count)
        wait_until("every binding is seen", lambda: sum(extender.outcomes().values()) == count)
        assert extender.outcomes() == {"right": count}
        assert extender.used() == held(pods)
    broken = [node for node, gpus in held(pods).items() if gpus < NODE_GPUS]
    if policy == "pack":  # 120 GPUs
        assert len(held(pods)) <= 16
        assert len(broken) <= 2
    elif policy == "spread":
        assert set(held(pods).values()) == {count // NODES_MADE}


def test_a_burst_goes_on_while_the_extender_is_killed_at_random(plane: ControlPlane) -> None:
    count, lots = 120, random.Random(7)
    with an_extender(plane) as extender:
        plane.start_scheduler(qps=5000)
        for batch in range(4):
            asyncio.run(make_pods(plane, 30, start=30 * batch, sizes=(1,)))  # whatever is broken, each fits
            wanted = 30 * batch + lots.randint(1, 30)
            wait_until("some are bound", lambda wanted=wanted: len(bound(plane)) >= wanted)
            extender.kill()
            extender.start()
        pods = all_bound(plane, count)
        wait_until("the extender", extender.is_ready)
        wait_until("its cache is right", lambda: extender.used() == held(pods))


def test_an_extender_that_hangs_costs_each_pod_its_time_out_and_no_more(plane: ControlPlane) -> None:
    assert HTTP_TIMEOUT == "500ms"
    waited: list[float] = []
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", plane.ports["extender"])) as listening:
        listening.settimeout(0.2)

        def hang() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    began = time.monotonic()
                    connection.settimeout(60)
                    while connection.recv(65536):  # until kube-scheduler gives up
                        pass
                    waited.append(time.monotonic() - began)

        thread = threading.Thread(target=hang)
        thread.start()
        try:
            asyncio.run(make_pods(plane, 6))
            plane.start_scheduler(qps=5000)
            all_bound(plane, 6)
        finally:
            stop.set()
            thread.join()
    assert len(waited) == 6  # asked once for each, and each was scheduled all the same
    assert max(waited) < 5  # kube-scheduler's own time-out, were ours not in force; ours is 0.5


TOKEN = "t" * 32


async def install_second_scheduler(plane: ControlPlane) -> Path:
    """Apply what deploy/scheduler has, but for the pods; returns a kubeconfig with the rights of its account."""
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        resources = {resource.kind: resource for resource in (SERVICEACCOUNTS, *GRANTING)}
        await api.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        )
        for obj in make_second_scheduler():
            if obj["kind"] in resources:
                await api.create(resources[obj["kind"]], obj, obj["metadata"].get("namespace"))
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        made = await api.create_subresource(
            SERVICEACCOUNTS, "moorage-scheduler", "token", asked, namespace=SYSTEM_NAMESPACE
        )
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": made["status"]["token"]}
    path = plane.kubeconfig.with_name("second-kubeconfig")
    path.write_text(yaml.safe_dump(config))
    return path


async def observed(plane: ControlPlane, components: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Which scheduler placed each pod, once these have; and who holds the leases of schedulers."""
    async with KubeClient.from_kubeconfig(plane.kubeconfig) as api:
        events = [event for event in (await api.list(EVENTS, "default")).items if event["reason"] == "Scheduled"]
        placed = {
            event["involvedObject"]["name"]: event.get("reportingComponent") or event["source"]["component"]
            for event in events
        }
        assert set(placed.values()) <= components
        leases = (await api.list(LEASES)).items
        held_by = {
            f"{lease['metadata']['namespace']}/{lease['metadata']['name']}": lease["spec"]["holderIdentity"]
            for lease in leases
            if lease["metadata"]["name"].endswith("scheduler")
        }
    return placed, held_by


def test_the_first_and_the_second_scheduler_work_side_by_side_and_both_ask(plane: ControlPlane) -> None:
    """The files are those of the Secret; only addresses and kubeconfigs are this machine's."""
    second_rights = asyncio.run(install_second_scheduler(plane))
    with an_extender(plane, token=TOKEN) as extender:
        files = scheduler_files(TOKEN, name_url=extender.url, address_url=extender.url, percentage=10)
        first, second = (json.loads(files[key]) for key in (FIRST_KEY, SECOND_KEY))
        first["clientConnection"]["kubeconfig"] = str(plane.kubeconfig)
        second["clientConnection"] = {"kubeconfig": str(second_rights)}  # a pod has its account instead
        asyncio.run(make_pods(plane, 20, sizes=(1,)))
        asyncio.run(make_pods(plane, 20, start=20, sizes=(1,), scheduler="moorage-scheduler"))
        plane.start_scheduler_with(json.dumps(first))
        plane.start_scheduler_with(json.dumps(second), port="second")
        pods = all_bound(plane, 40)
        wait_until("the extender has seen every binding", lambda: extender.used() == held(pods))
        assert set(
            extender.metrics(r'moorage_extender_requests_total\{code="(\d+)",verb="prioritize"\} (\S+)')
        ) == {"200"}
        assert sum(extender.outcomes().values()) == 40

        def is_told() -> tuple[dict[str, str], dict[str, str]] | None:
            placed, leases = asyncio.run(observed(plane, {"default-scheduler", "moorage-scheduler"}))
            return (placed, leases) if len(placed) == 40 else None

        placed, leases = wait_until("events of every pod", is_told)
    assert Counter(placed.values()) == {"default-scheduler": 20, "moorage-scheduler": 20}
    assert {name for name, scheduler in placed.items() if scheduler == "moorage-scheduler"} == {
        f"pod-{number}" for number in range(20, 40)
    }
    assert set(leases) == {"kube-system/kube-scheduler", "moorage-system/moorage-scheduler"}
    assert all(leases.values())
