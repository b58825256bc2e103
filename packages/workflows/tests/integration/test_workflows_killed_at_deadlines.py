"""The operator is killed at random moments, and at each of its writes, while deadlines pass.

Workflows, pods and records are real objects in a fake API and a real SQLite file. Time is a clock that goes on
whether the operator is there or not; a kubelet ends pods that were deleted, and those whose own limit is over.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from tests.workflowoperators import an_operator, operate

from moorage.model.argo import NODE_NAME_ANNOTATION, POD_FINALIZER, WORKFLOW_LABEL, WORKFLOWS
from moorage_kube.clock import rfc3339
from moorage_kube.errors import NotFound
from moorage_kube.meta import is_deleting
from moorage_kube.resources import NODES, PDBS, PODS, PVCS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import background
from moorage_workflows.controllers.workflow.controller import WorkflowController
from moorage_workflows.decide.workflows.graph.validity import violations
from moorage_workflows.decide.workflows.graph.workflow import LEFT_OVER
from moorage_workflows.model.workflow import ENDED_PHASES, NodeRecord
from moorage_workflows.workflows.records import LocalRecords
from moorage_workflows.workflows.store import WorkflowStore, open_workflows

T = TypeVar("T")
pytestmark = pytest.mark.anyio

EXPLORE = bool(os.environ.get("MOORAGE_TEST_EXPLORE"))
KILLS = 300
TURNS_A_SECOND = 60  # of the event loop, while the clock goes on by one second
TEMPLATES = """
- {name: ok, container: {image: busybox, command: [echo]}}
- {name: gate, suspend: {duration: 20s}}
- {name: daemon, daemon: true, container: {image: busybox, command: [sleep]}}
- {name: short, timeout: 15s, container: {image: busybox, command: [sleep]}}
- {name: pends, pendingTimeout: 15s, container: {image: busybox, command: [sleep]}}
- {name: bounded, activeDeadlineSeconds: 10, container: {image: busybox, command: [sleep]}}
- name: alone
  synchronization: {mutexes: [{name: m}]}
  timeout: 30s
  container: {image: busybox, command: [sleep]}
- {name: set, timeout: 15s, containerSet: {containers: [{name: main, image: busybox, command: [sleep]}]}}
- name: again
  retryStrategy: {limit: 2, backoff: {duration: 2s}}
  container: {image: busybox, command: [false]}
- name: watched
  daemon: true
  retryStrategy: {limit: 1}
  container: {image: busybox, command: [sleep]}
"""
MANIFESTS = """
metadata: {name: late}
spec:
  activeDeadlineSeconds: 60
  entrypoint: main
  onExit: bounded
  podDisruptionBudget: {minAvailable: 9999}
  volumeClaimGC: {strategy: OnWorkflowCompletion}
  volumeClaimTemplates: [{metadata: {name: v}, spec: {resources: {requests: {storage: 1Gi}}}}]
  templates:
  - name: main
    dag:
      tasks:
      - {name: a, template: ok}
      - {name: long, template: forever, depends: a}
      - {name: never, template: forever, withItems: [1, 2]}
      - {name: retried, template: retried, depends: a}
      - {name: inner, template: inner, depends: a}
      - {name: after, template: ok, depends: long}
  - {name: forever, container: {image: busybox, command: [sleep]}}
  - {name: retried, retryStrategy: {limit: 9}, container: {image: busybox, command: [sleep]}}
  - {name: inner, steps: [[{name: daemon, template: daemon}], [{name: long, template: forever}]]}
---
metadata: {name: limits}
spec:
  entrypoint: main
  podGC: {strategy: OnWorkflowCompletion}
  templates:
  - name: main
    dag:
      failFast: false
      tasks:
      - {name: long, template: short}
      - {name: never, template: pends}
      - {name: set, template: set}
      - {name: gate, template: gate}
      - {name: again, template: again}
      - {name: bounded, template: bounded, hooks: {exit: {template: ok}, due: {template: ok, expression:
         tasks.bounded.status == "Failed"}}}
      - {name: after, template: ok, depends: "gate && long.Failed && never.Failed && again.Failed && set.Failed"}
---
metadata: {name: daemons}
spec:
  entrypoint: main
  volumeClaimTemplates: [{metadata: {name: v}, spec: {resources: {requests: {storage: 1Gi}}}}]
  templates:
  - name: main
    steps:
    - - {name: daemon, template: daemon}
      - {name: watched, template: watched}
    - - {name: gate, template: gate}
    - - {name: ok, template: ok}
---
metadata: {name: first}
spec: {entrypoint: main, templates: [{name: main, steps: [[{name: long, template: alone}]]}]}
---
metadata: {name: second}
spec: {entrypoint: main, templates: [{name: main, steps: [[{name: long, template: alone}]]}]}
---
metadata: {name: stopped}
spec:
  entrypoint: main
  onExit: ok
  templates:
  - name: main
    steps:
    - - {name: long, template: forever}
      - {name: never, template: forever}
      - {name: gate, template: endless}
    - - {name: after, template: ok}
  - {name: endless, suspend: {}}
  - {name: forever, container: {image: busybox, command: [sleep]}}
---
metadata: {name: terminated}
spec:
  entrypoint: main
  onExit: ok
  synchronization: {mutexes: [{name: whole}]}
  templates:
  - name: main
    steps:
    - - {name: daemon, template: daemon}
    - - {name: long, template: forever}
  - {name: forever, container: {image: busybox, command: [sleep]}}
"""
SHUTDOWNS = {"stopped": "Stop", "terminated": "Terminate"}
DOCUMENTS = {row["metadata"]["name"]: row for row in yaml.safe_load_all(MANIFESTS)}


@dataclass
class Kubelet:
    """Starts the pods that a node takes, once, and ends them: on their own, at their limit, when deleted."""

    api: FakeApi
    clock: FakeClock
    starts: collections.Counter[str] = field(default_factory=collections.Counter)
    running: dict[str, tuple[datetime, Obj]] = field(default_factory=dict)  # by the pod's name; since when
    most_alone: int = 0

    async def turn(self) -> None:
        pods = (await self.api.list(PODS)).items
        for gone in self.running.keys() - {pod["metadata"]["name"] for pod in pods}:
            del self.running[gone]  # deleted, and nothing held it: this fake does not wait for its end
        for pod in pods:
            name, node = pod["metadata"]["name"], pod["metadata"]["annotations"][NODE_NAME_ANNOTATION]
            phase = (pod.get("status") or {}).get("phase")
            if phase is None and ".never" not in node and not is_deleting(pod):
                self.starts[name] += 1
                self.running[name] = (self.clock.now(), pod)
                await self._status(pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
            elif phase == "Running":
                await self._end(pod, name)
        alone = [pod for _, pod in self.running.values() if "alone" in pod["metadata"]["name"]]
        self.most_alone = max(self.most_alone, len(alone))

    async def _end(self, pod: Obj, name: str) -> None:
        since = self.running[name][0]
        template = name.removeprefix(f"{pod['metadata']['labels'][WORKFLOW_LABEL]}-").rpartition("-")[0]
        limit = pod["spec"].get("activeDeadlineSeconds")
        if is_deleting(pod):
            await self._status(pod, self._ended(pod, "Failed", 143))
        elif limit is not None and self.clock.now() >= since + timedelta(seconds=limit):
            await self._status(pod, {**self._ended(pod, "Failed", 137), "reason": "DeadlineExceeded"})
        elif template in ("ok", "again"):
            code = int(template == "again")
            await self._status(pod, self._ended(pod, "Failed" if code else "Succeeded", code))
        else:
            return  # it goes on until somebody ends it
        del self.running[name]

    def _ended(self, pod: Obj, phase: str, code: int) -> dict[str, Any]:
        times = {"startedAt": rfc3339(self.clock.now()), "finishedAt": rfc3339(self.clock.now())}
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", **times}}
        return {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}

    async def _status(self, pod: Obj, status: dict[str, Any]) -> None:
        meta = pod["metadata"]
        if ".never" not in meta["annotations"][NODE_NAME_ANNOTATION] and not pod["spec"].get("nodeName"):
            await self.api.patch(PODS, meta["name"], {"spec": {"nodeName": "n"}}, meta["namespace"])
        with contextlib.suppress(NotFound):
            await self.api.patch(PODS, meta["name"], {"status": status}, meta["namespace"], subresource="status")


class Killer:
    """Counts the writes of an operator; after one of them it never answers again."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.writes, self.has_killed = at, 0, asyncio.Event()

    async def write(self, work: Callable[[], Awaitable[Any]]) -> Any:
        answer = await work()
        self.writes += 1
        if self.writes == self.at:
            self.has_killed.set()
            await asyncio.Event().wait()
        return answer


class Watched:
    """An API, or records, of which the writes are counted."""

    def __init__(self, inner: Any, killer: Killer, names: tuple[str, ...]) -> None:
        self._inner, self._killer, self._names = inner, killer, names

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._names:
            return method

        async def write(*args: Any, **more: Any) -> Any:
            return await self._killer.write(lambda: method(*args, **more))

        return write


class InlineRecords(LocalRecords):
    """Records without a thread: what happens depends on the turns of the event loop alone."""

    def __init__(self, where: Path) -> None:
        self._store = open_workflows(where)

    def close(self) -> None:
        self._store.close()

    async def do(self, work: Callable[[WorkflowStore], T]) -> T:
        await asyncio.sleep(0)
        return work(self._store)


@dataclass
class World:
    """A cluster with a clock, and one operator after the other."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    number: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.api = FakeApi(clock=self.clock)
        self.folder.mkdir(exist_ok=True)
        self.records = InlineRecords(self.folder / "workflows.db")
        self.kubelet = Kubelet(self.api, self.clock)
        self.uids: dict[str, str] = {}
        self.turns = 0
        self.controller: WorkflowController | None = None

    async def submit(self, *names: str) -> None:
        self.api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
        for name in names:
            document = {"apiVersion": WORKFLOWS.api_version, "kind": "Workflow", **DOCUMENTS[name]}
            spec = document["spec"]
            document["spec"] = {**spec, "templates": [*spec["templates"], *yaml.safe_load(TEMPLATES)]}
            document["metadata"] = {"name": name, "namespace": "default"}
            self.uids[name] = (await self.api.create(WORKFLOWS, document))["metadata"]["uid"]

    async def operate(self, killer: Killer) -> None:
        api = Watched(self.api, killer, ("create", "patch", "update", "delete"))
        records = Watched(self.records, killer, ("begin", "save", "remember", "forget_nodes", "gone"))
        self.controller = an_operator(api, records, number=next(self.number), clock=self.clock)
        await operate(self.controller)

    async def go_on(self, turns: int, killer: Killer | None = None) -> None:
        """Let so many turns of the event loop pass, and time with them."""
        for _ in range(turns):
            await asyncio.sleep(0)
            self.turns += 1
            if self.turns % 20 == 0:
                await self.kubelet.turn()
            if self.turns % TURNS_A_SECOND == 0:
                self.clock.advance(1)
                if self.controller is not None:  # its timers are those of the event loop
                    self.controller.loop.queue.fire_all()
                await self._shut_down()
            if killer is not None and killer.has_killed.is_set():
                return

    async def _shut_down(self) -> None:
        """As a person does, once what is to be stopped has a pod that runs."""
        for name, strategy in SHUTDOWNS.items():
            if name in self.uids and any(pod.startswith(f"{name}-forever") for pod in self.kubelet.running):
                patch = {"spec": {"shutdown": strategy}}
                await self.api.patch(WORKFLOWS, name, patch, "default")

    async def live(self, turns: int, killer: Killer | None = None) -> None:
        """One operator, which is killed at the end."""
        async with background(self.operate(killer or Killer())):
            await self.go_on(turns, killer)

    async def is_done(self) -> bool:
        objects = (await self.api.list(WORKFLOWS)).items
        return all((obj.get("status") or {}).get("phase") in ENDED_PHASES for obj in objects)

    async def pods_of(self, name: str) -> list[str]:
        pods = (await self.api.list(PODS)).items
        return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]

    async def nodes(self, name: str) -> list[NodeRecord]:
        """The rows of one run, which hold together at every moment."""
        run = await self.records.run(self.uids[name])
        if run is None:
            return []
        rows = await self.records.nodes(self.uids[name])
        assert violations(run, rows.nodes) == []
        return list(rows.nodes)

    async def finish(self) -> dict[str, Any]:
        """Let an operator end it all; the phases of every workflow and node."""
        async with background(self.operate(Killer())):
            for _ in range(400):
                await self.go_on(TURNS_A_SECOND)
                if await self.is_done() and not self.kubelet.running and not await self.pods_of("limits"):
                    break
            await self.go_on(TURNS_A_SECOND)
        phases: dict[str, Any] = {}
        for obj in (await self.api.list(WORKFLOWS)).items:
            name = obj["metadata"]["name"]
            phases[f"workflow {name}"] = (obj.get("status") or {}).get("phase")
            nodes = await self.nodes(name)
            phases |= {node.name: (node.type, node.phase) for node in nodes}
            assert LEFT_OVER not in {node.message for node in nodes}
        metas = [pod["metadata"] for pod in (await self.api.list(PODS)).items]
        assert self.kubelet.running == {}, "every pod has ended"
        assert [meta["name"] for meta in metas if POD_FINALIZER in meta.get("finalizers", ())] == []
        assert await self.pods_of("limits") == [], "its podGC deletes them"
        assert (await self.api.list(PDBS)).items == (await self.api.list(PVCS)).items == []
        assert set(self.kubelet.starts.values()) <= {1}
        assert self.kubelet.most_alone <= 1
        return phases


async def undisturbed(folder: Path, *names: str) -> tuple[dict[str, Any], collections.Counter[str]]:
    world = World(folder)
    await world.submit(*names)
    phases = await world.finish()
    world.records.close()
    return phases, world.kubelet.starts


async def test_undisturbed_every_deadline_holds(tmp_path: Path) -> None:
    phases, _ = await undisturbed(tmp_path / "calm", *DOCUMENTS)
    assert {name: phases[f"workflow {name}"] for name in DOCUMENTS} == {
        "late": "Failed",
        "limits": "Failed",
        "daemons": "Succeeded",
        "first": "Failed",
        "second": "Failed",
        "stopped": "Failed",
        "terminated": "Failed",
    }
    assert phases["limits.after"] == ("Pod", "Succeeded")
    assert phases["late.onExit"] == ("Pod", "Failed")
    assert phases["stopped.onExit"] == ("Pod", "Succeeded")
    assert "terminated.onExit" not in phases


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(10)] if EXPLORE else [1])
async def test_killed_at_random_moments_every_deadline_holds(tmp_path: Path, seed: int) -> None:
    calm, starts = await undisturbed(tmp_path / "calm", *DOCUMENTS)
    chance = random.Random(seed)
    world = World(tmp_path)
    await world.submit(*DOCUMENTS)
    for _ in range(KILLS):
        await world.live(chance.randrange(60))
        if chance.random() < 0.02:  # nobody for a while
            await world.go_on(chance.randrange(8) * TURNS_A_SECOND)
        for name in DOCUMENTS:
            await world.nodes(name)
    phases = await world.finish()
    world.records.close()
    assert phases == calm
    assert world.kubelet.starts == starts


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_killed_after_any_of_its_writes_it_leaves_nothing_open(tmp_path: Path, name: str) -> None:
    calm, starts = await undisturbed(tmp_path / "calm", name)
    for at in itertools.count(1):
        world, killer = World(tmp_path / str(at)), Killer(at)
        await world.submit(name)
        await world.live(120 * TURNS_A_SECOND, killer)
        await world.nodes(name)
        phases = await world.finish()
        world.records.close()
        assert (at, phases) == (at, calm)
        assert world.kubelet.starts == starts
        if not killer.has_killed.is_set():
            assert at > 10, "it wrote, and was killed after each"
            return
