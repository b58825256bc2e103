"""Two operators under load: the leader is held past its lease and wakes, or is killed. It writes no more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moorage.controllers.tenant.plan import OURS, QUOTAS
from moorage.model.crds import all_crds
from moorage.model.machine import MACHINES
from moorage.model.manifests import make_machine_objects, make_namespace
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.meta import labels_of
from moorage_kube.resources import CRDS, JOBS, LEASES, NAMESPACES, NODES, PODS, PRIORITYCLASSES, Obj, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.pausing import pause
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage.memory import MemoryStorage

pytestmark = [pytest.mark.anyio, pytest.mark.processes]

HOLDS = 2  # of the leader, each past its lease; then it is killed
LEASE = "moorage-operator"
NAMES = ("a", "b")
OPERATOR = """
import asyncio, mmap, sys
from moorage_kube.logs import set_up_logging
from moorage.controllers.manager import run_operator
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import Connection
from moorage_kube.remote.leader import Times

class Client(KubeClient):
    def guarded(self, guard):
        def marked():  # the write leaves in the step of the loop that checked
            mark[0] = 1
            asyncio.get_running_loop().call_soon(mark.__setitem__, 0, 0)
            guard()

        return super().guarded(marked)

async def main(server, name):
    async with Client(Connection(server=server, token=name)) as api:
        times = Times(lease=3, renew_deadline=1.2, retry=0.2)
        await run_operator(api, identity=name, leader_elect=True, times=times)

with open(sys.argv.pop(), "r+b") as file:
    mark = mmap.mmap(file.fileno(), 1)
set_up_logging()
asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changed something, in the order of arrival."""

    by: str
    method: str
    path: str
    name: str
    leader: str
    status: int


class Recorder:
    """An API server that notes who writes what, and who held the lease when it came."""

    def __init__(self, server: ApiServer) -> None:
        self._app, self._api = server.app, server.client("system:admin")
        self.writes: list[Write] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        name, status = "", 0

        async def hear() -> Any:
            nonlocal name
            message = await receive()
            with contextlib.suppress(ValueError, AttributeError):
                name = json.loads(message.get("body") or b"{}").get("metadata", {}).get("name", "")
            return message

        async def say(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        leader = await self.leader()
        await self._app(scope, hear, say)
        by = dict(scope["headers"])[b"authorization"].decode().removeprefix("Bearer ")
        self.writes.append(Write(by, scope["method"], scope["path"], name, leader, status))

    async def leader(self) -> str:
        with contextlib.suppress(Exception):
            lease = await self._api.get(LEASES, LEASE, SYSTEM_NAMESPACE)
            return str(lease["spec"]["holderIdentity"])
        return ""

    def of_work(self) -> list[Write]:
        """Those of controllers; leases are guarded by their version."""
        return [write for write in self.writes if "/leases" not in write.path]


class Site:
    """The API server, and two operators beside it."""

    def __init__(self, folder: Path, server: ApiServer, url: str, recorder: Recorder) -> None:
        self.api: InProcessClient = server.client("system:admin")
        self.recorder, self._folder, self._url = recorder, folder, url
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        self.mark(name).write_bytes(b"\0")
        argv = [sys.executable, "-c", OPERATOR, self._url, name, str(self.mark(name))]
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def mark(self, name: str) -> Path:
        """A file of one byte: 1 while the operator is between a check of the lease and the write after it."""
        return self._folder / f"{name}.mark"

    def hold(self, name: str) -> None:
        """Stop it at any moment but between check and write: no client can keep back a write then."""
        while True:
            self.send(name, signal.SIGSTOP)
            os.waitid(os.P_PID, self._running[name].pid, os.WSTOPPED)
            if self.mark(name).read_bytes() == b"\0":
                return
            self.send(name, signal.SIGCONT)

    def send(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    async def led_by_another_than(self, name: str) -> str:
        async def look() -> str:
            leader = await self.recorder.leader()
            return leader if leader != name else ""

        with self.telling():
            return str(await until(f"another leader than {name!r}", look))

    async def has_heard(self, name: str, text: str, times: int) -> None:
        async def look() -> bool:
            return self.log(name).read_text().count(text) >= times

        with self.telling():
            await until(f"{text!r} in the log of {name}", look)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Put the operators' states and logs, and the newest requests, into an AssertionError."""
        try:
            yield
        except AssertionError as error:
            ends = {name: process.poll() for name, process in self._running.items()}
            requests = [
                f"{write.by} {write.method} {write.path} {write.status}" for write in self.recorder.writes[-5:]
            ]
            logs = [self.log(name).read_text()[-3000:] for name in NAMES]
            raise AssertionError("\n".join([f"{error}; exit codes: {ends}", *requests, *logs])) from error

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    tokens = {name: {"user": name, "groups": ["system:masters"]} for name in NAMES}
    server = ApiServer(MemoryStorage(), tokens=tokens)
    await server.start()
    api = server.client("system:admin")
    await api.create(NAMESPACES, make_namespace())
    await api.create(NAMESPACES, {"metadata": {"name": "lab"}})
    for crd in all_crds():
        await api.create(CRDS, crd)
    for obj in make_machine_objects():
        if obj["kind"] == PRIORITYCLASSES.kind:
            await api.create(PRIORITYCLASSES, obj)
    recorder = Recorder(server)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        serving = asyncio.create_task(serve(recorder, sock))
        made = Site(tmp_path, server, f"http://127.0.0.1:{sock.getsockname()[1]}", recorder)
        try:
            yield made
        finally:
            made.stop()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await server.stop()


class Lab:
    """People who change tenants, maps, machines and runs; what became of it is in `wrong`."""

    def __init__(self, api: InProcessClient, chance: random.Random) -> None:
        self._api, self._chance = api, chance
        self._quota: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._places = 2
        self._runs = 0

    async def begin(self) -> None:
        allocatable = {"cpu": "400", "memory": "4Ti", "pods": "1100", "nvidia.com/gpu": "8"}
        ready = {"type": "Ready", "status": "True"}
        await self._api.create(NODES, {"metadata": {"name": "n"}, "spec": {}})
        status = {"capacity": allocatable, "allocatable": allocatable, "conditions": [ready]}
        await self._api.patch(NODES, "n", {"status": status}, subresource="status")
        for name in ("t0", "t1"):
            self._quota[name] = 1
            await self._create(TENANTS, name, {"namespace": name, "quota": {"pods": "1"}})
        for name in ("m0", "m1"):
            await self._make_map(name)
        await self._create(MACHINES, "pool", self._machine(), labels={"moorage.dev/machine-group": "pool"})

    async def live(self) -> None:
        while True:
            await self.step()
            await pause(self._chance, 0.0, 0.05)

    async def rest(self) -> None:
        """Maps get many workers: they are given at once, but taken away one by one."""
        for name in self._workers:
            self._workers[name] = 9
            await self._api.patch(MAPJOBS, name, {"spec": {"parallelism": 9}}, "lab")

    async def step(self) -> None:
        match self._chance.randrange(4):
            case 0:
                name = self._chance.choice(sorted(self._quota))
                self._quota[name] += 1
                await self._api.patch(TENANTS, name, {"spec": {"quota": {"pods": str(self._quota[name])}}})
            case 1:
                name = self._chance.choice(sorted(self._workers))
                self._workers[name] = self._chance.randrange(1, 9)
                await self._api.patch(MAPJOBS, name, {"spec": {"parallelism": self._workers[name]}}, "lab")
            case 2:
                self._places = self._chance.randrange(1, 5)
                await self._api.patch(MACHINES, "pool", {"spec": self._machine()})
            case 3 if self._runs < 30:
                await self._lose_a_run()

    def _machine(self) -> Obj:
        size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1}}
        return {
            "nodePool": [{"name": "n", "mode": "ready", "taint": False, "machineType": [{"name": "red"}]}],
            "machineTypes": [{"name": "red", "spec": size, "available": self._places}],
        }

    async def _make_map(self, name: str) -> None:
        """A map that the server has accepted, with more to do than workers can."""
        self._workers[name] = 1
        container = {"name": "w", "image": "python:3.12", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
        spec = {"parallelism": 1, "command": ["x", "{item}"], "template": {"spec": {"containers": [container]}}}
        await self._create(MAPJOBS, name, spec, namespace="lab")
        now = rfc3339(SYSTEM.now())
        accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "lastTransitionTime": now}
        queue = {"uid": "q", "url": "http://server", "secret": f"{name}-0", "heardAt": now, "progressAt": now}
        items = {"total": 1000, "ready": 1000}
        status = {"state": "running", "queue": queue, "items": items, "conditions": [accepted | {"message": ""}]}
        await self._api.patch(MAPJOBS, name, {"status": status}, "lab", subresource="status")

    async def _lose_a_run(self) -> None:
        """A run whose pod was on a node that was drained: it is to be tried again."""
        name = f"run-{self._runs}"
        self._runs += 1
        labels = {"moorage.dev/run": name, "moorage.dev/attempt": "1"}
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        await self._create(JOBS, name, {"backoffLimit": 0, "template": template}, namespace="lab", labels=labels)
        now, message = (
            rfc3339(SYSTEM.now()),
            f"Pod lab/{name}-x has condition DisruptionTarget matching FailJob rule",
        )
        failed = {"status": "True", "reason": "PodFailurePolicy", "message": f"{message} at index 0"}
        failed |= {"lastTransitionTime": now, "lastProbeTime": now}
        conditions = [{"type": kind, **failed} for kind in ("FailureTarget", "Failed")]
        status = {"status": {"conditions": conditions, "failed": 1, "startTime": now}}
        await self._api.patch(JOBS, name, status, "lab", subresource="status")

    async def _create(
        self, resource: Resource, name: str, spec: Obj, *, namespace: str = "", labels: Any = None
    ) -> None:
        meta: Obj = {"name": name, "labels": labels or {}} | ({"namespace": namespace} if namespace else {})
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": spec}
        await self._api.create(resource, obj)

    async def wrong(self) -> list[str]:
        """What is not as people asked for."""
        found = []
        for name, pods in self._quota.items():
            quotas = (await self._api.list(QUOTAS, name)).items
            hard = [quota["spec"]["hard"]["pods"] for quota in quotas if quota["metadata"]["name"] == OURS]
            if hard != [str(pods)]:
                found.append(f"tenant {name}: {hard}, not {pods}")
        jobs = (await self._api.list(JOBS, "lab")).items
        for name, workers in self._workers.items():
            mine = [job["spec"]["parallelism"] for job in jobs if labels_of(job).get("moorage.dev/map") == name]
            if mine != [workers]:
                found.append(f"map {name}: {mine} workers, not {workers}")
        for number in range(self._runs):
            mine = [
                job["metadata"]["name"] for job in jobs if labels_of(job).get("moorage.dev/run") == f"run-{number}"
            ]
            if len(mine) != 2:
                found.append(f"run-{number}: attempts {mine}")
        reserved = (await self._api.list(PODS, SYSTEM_NAMESPACE)).items
        if len(reserved) != self._places:
            found.append(f"pool: {len(reserved)} places, not {self._places}")
        return found

    async def settled(self, site: Site, when: str) -> None:
        """Wait until all is as people asked for."""
        wrong: list[str] = []

        async def look() -> bool:
            wrong[:] = await self.wrong()
            return not wrong

        with site.telling():
            try:
                await until(when, look)
            except AssertionError as error:
                raise AssertionError(f"{error}: {wrong}") from error


async def test_a_leader_that_was_held_past_its_lease_writes_nothing_when_it_wakes(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    lab = Lab(site.api, chance)
    await lab.begin()
    for name in NAMES:
        site.start(name)
    leader = await site.led_by_another_than("")
    await lab.settled(site, "the first state")
    living = asyncio.create_task(lab.live())
    lost: Counter[str] = Counter()
    for _ in range(HOLDS):
        await pause(chance, 0.0, 0.5)
        site.hold(leader)
        held, leader = leader, await site.led_by_another_than(leader)
        begun = len(site.recorder.of_work())

        async def works(begun: int = begun) -> bool:
            return len(site.recorder.of_work()) > begun + 10

        await until(f"work of {leader}", works)
        site.send(held, signal.SIGCONT)
        lost[held] += 1
        await site.has_heard(held, "lost the lease", lost[held])
    site.send(leader, signal.SIGKILL)
    await site.led_by_another_than(leader)
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    await lab.rest()
    await lab.settled(site, "the state after all")
    work = site.recorder.of_work()
    assert [write for write in work if write.by != write.leader] == []
    made = Counter((write.path, write.name) for write in work if write.method == "POST" and write.status == 201)
    jobs = {key: number for key, number in made.items() if key[0].endswith("/jobs")}
    assert jobs == dict.fromkeys(jobs, 1)
