"""The operator is killed at random moments of many workflows: they end as if nothing had happened.

Workflows, pods and records are real objects in a fake API and a real SQLite file; pods are ended by a kubelet that
counts how often it starts each. The operator is cancelled between any two of its steps, or in one, and made anew.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflowoperators import an_operator, operate, turns

from moorage.model.argo import NODE_NAME_ANNOTATION, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.errors import ApiError, Forbidden, Invalid, NotFound, QuotaExceeded
from moorage_kube.informer import Informer
from moorage_kube.resources import EVENTS, NODES, PDBS, PODS, PVCS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import background
from moorage_workflows.decide.workflows.graph.validity import violations
from moorage_workflows.model.workflow import (
    RESUME_ANNOTATION,
    RETRY_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    Memo,
    Outputs,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

KILLS = 300
EXPLORE = bool(os.environ.get("MOORAGE_TEST_EXPLORE"))
MANIFESTS = """
metadata: {name: fan}
spec:
  entrypoint: main
  parallelism: 3
  templates:
  - name: main
    steps:
    - - {name: make, template: print}
    - - {name: fan, template: say, withParam: "{{steps.make.outputs.result}}"}
    - - {name: last, template: say}
  - name: print
    script: {image: python, command: [python], source: "print([1, 2, 3, 4, 5, 6])"}
  - name: say
    container: {image: busybox, command: [echo]}
---
metadata: {name: graph}
spec:
  entrypoint: main
  onExit: say
  podDisruptionBudget: {minAvailable: 9999}
  metrics: {prometheus: [{name: runs, help: Runs, counter: {value: "1"}}]}
  templateDefaults:
    metrics:
      prometheus:
      - {name: ends, help: Ends, labels: [{key: status, value: "{{status}}"}], counter: {value: "1"}}
  templates:
  - name: main
    dag:
      tasks:
      - {name: a, template: say}
      - {name: b, template: say, depends: a}
      - {name: bad, template: again, depends: a}
      - {name: c, template: say, depends: "b && bad.Failed"}
      - {name: d, template: say, depends: bad}
  - name: again
    retryStrategy: {limit: 2}
    container: {image: busybox, command: [false]}
  - name: say
    container: {image: busybox, command: [echo]}
---
metadata: {name: locked}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: one, template: alone, withItems: [1, 2, 3]}]]
  - name: alone
    synchronization: {mutexes: [{name: m}]}
    container: {image: busybox, command: [echo]}
---
metadata: {name: whole-a}
spec:
  entrypoint: main
  synchronization: {mutexes: [{name: all, database: true}]}
  templates:
  - {name: main, steps: [[{name: a, template: say}, {name: b, template: say}], [{name: c, template: say}]]}
  - {name: say, container: {image: busybox, command: [echo]}}
---
metadata: {name: whole-b}
spec:
  entrypoint: main
  synchronization: {mutexes: [{name: all, database: true}]}
  templates:
  - {name: main, steps: [[{name: a, template: say}, {name: b, template: say}], [{name: c, template: say}]]}
  - {name: say, container: {image: busybox, command: [echo]}}
---
metadata: {name: retried}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: a, template: say}], [{name: once, template: say}], [{name: b, template: say}]]
  - name: say
    container: {image: busybox, command: [echo]}
"""


class Kubelet:
    """Starts every pod that appears, once, and ends it a little later."""

    def __init__(self, api: FakeApi, records: LocalRecords, chance: random.Random) -> None:
        self._api, self._records, self._chance = api, records, chance
        api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
        self.starts: collections.Counter[str] = collections.Counter()
        self.running: set[str] = set()
        self.most_alone = 0
        self.most_whole = 0  # workflows at once of those that hold one lock as a whole
        self._work: list[asyncio.Task[None]] = []
        self.pods = Informer(api, PODS)
        self.pods.on_change(self._see)

    def _see(self, before: Obj | None, after: Obj | None) -> None:
        if before is None and after is not None and not (after.get("status") or {}).get("phase"):
            self._work.append(asyncio.create_task(self._run(after)))

    async def _run(self, pod: Obj) -> None:
        meta = pod["metadata"]
        node = meta["annotations"][NODE_NAME_ANNOTATION]
        self.starts[meta["name"]] += 1
        self.running.add(node)
        self.most_whole = max(self.most_whole, len({name[:7] for name in self.running if name[:5] == "whole"}))
        self.most_alone = max(self.most_alone, sum(name.startswith("locked") for name in self.running))
        await self._status(pod, {"phase": "Running"})
        for _ in range(self._chance.randrange(40)):
            await asyncio.sleep(0)
        is_retry = meta["name"].endswith("-w1") or node.startswith("again")
        failed = ".bad" in node or (".once" in node and not is_retry)
        if any(container["name"] == "wait" for container in pod["spec"]["containers"]):
            report = StepReport(pod=meta["name"], outputs=Outputs(result="[1, 2, 3, 4, 5, 6]"))
            uid = meta["ownerReferences"][0]["uid"]
            await self._records.do(lambda store: store.report(uid, meta["name"], report))
        ended = {"exitCode": int(failed), "reason": "Error" if failed else "Completed"}
        status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
        self.running.discard(node)
        await self._status(pod, status | {"phase": "Failed" if failed else "Succeeded"})

    async def _status(self, pod: Obj, status: dict[str, Any]) -> None:
        meta = pod["metadata"]
        await self._api.patch(PODS, meta["name"], {"status": status}, meta["namespace"], subresource="status")


def a_document(manifest: str, **meta: Any) -> Obj:
    """The workflow of this name in MANIFESTS."""
    [document] = [each for each in yaml.safe_load_all(MANIFESTS) if each["metadata"]["name"] == manifest]
    return {**document, "metadata": {"name": manifest, "namespace": "default", **meta}}


async def phase_of(api: FakeApi, name: str = "retried") -> str:
    return str(((await api.get(WORKFLOWS, name, "default")).get("status") or {}).get("phase", ""))


async def until_phase(api: FakeApi, *phases: str, name: str = "retried") -> None:
    async def has_phase() -> bool:
        return await phase_of(api, name) in phases

    await until(f"the workflow {name} to be {' or '.join(phases)}", has_phase)


async def annotate(api: FakeApi, name: str = "retried", **annotations: str) -> None:
    """As a person asks for it."""
    await api.patch(WORKFLOWS, name, {"metadata": {"annotations": annotations}}, "default")


async def results(api: FakeApi, folder: Path, *, seed: int, kills: int) -> tuple[dict[str, Any], Kubelet]:
    """(phase of every workflow and of every node, the kubelet) after so many kills."""
    chance = random.Random(seed)
    records = LocalRecords(folder / f"workflows-{seed}-{kills}.db")
    kubelet = Kubelet(api, records, chance)
    for document in yaml.safe_load_all(MANIFESTS):
        document["metadata"]["namespace"] = "default"
        await api.create(WORKFLOWS, document)

    retried = False

    async def is_done() -> bool:
        nonlocal retried
        objects = (await api.list(WORKFLOWS)).items
        for obj in objects:
            if obj["metadata"]["name"] == "retried" and (obj.get("status") or {}).get("phase") == "Failed":
                if not retried:
                    await annotate(api, **{RETRY_ANNOTATION: "{}"})
                retried = True
                return False
        return retried and all(
            (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Error") for obj in objects
        )

    killed = 0
    async with background(kubelet.pods.run()):
        while killed < kills and not await is_done():
            async with background(operate(an_operator(api, records, number=killed))):
                await turns(chance.randrange(1500))
            killed += 1
        async with background(operate(an_operator(api, records, number=killed))):
            await until("every workflow to end", is_done)
    phases: dict[str, Any] = {}
    for obj in (await api.list(WORKFLOWS)).items:
        loaded = await records.load(obj["metadata"]["uid"], "reader")
        phases[f"workflow {obj['metadata']['name']}"] = obj["status"]["phase"]
        phases |= {node.name: (node.type, node.phase) for node in loaded.nodes}
        assert violations(loaded.workflow, loaded.nodes) == []
    values = {(series.name, *series.labels.values()): series.value for series in await records.metrics()}
    entered = {key[1]: value for key, value in values.items() if key[0] == "total_count"}
    # six workflows, of which one fails, is retried, and fails again
    assert entered == {"Pending": 6.0, "Running": 7.0, "Succeeded": 5.0, "Failed": 2.0}
    # a, b, c and the exit handler; three attempts of bad, and main
    own = {key: value for key, value in values.items() if key[0] != "total_count"}
    assert own == {("runs",): 1.0, ("ends", "Succeeded"): 4.0, ("ends", "Failed"): 4.0}
    assert (await api.list(PDBS)).items == []
    records.close()
    return phases, kubelet


@pytest.mark.parametrize("seed", [random.randrange(2**32) for _ in range(10)] if EXPLORE else [1])
async def test_killed_at_random_moments_every_step_runs_once(tmp_path: Path, seed: int) -> None:
    calm, undisturbed = await results(FakeApi(), tmp_path, seed=seed, kills=0)
    assert calm["workflow fan"] == calm["workflow locked"] == calm["workflow retried"] == "Succeeded"
    killed, kubelet = await results(FakeApi(), tmp_path, seed=seed, kills=KILLS)
    assert killed == calm
    assert kubelet.starts == undisturbed.starts
    assert set(kubelet.starts.values()) == {1}
    assert kubelet.most_alone == kubelet.most_whole == 1


class HaltingApi(FakeApi):
    """Halts for ever after so many writes to Workflows."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.halted = asyncio.Event()

    async def patch(self, resource: Resource, *args: Any, **more: Any) -> Obj:
        answer = await super().patch(resource, *args, **more)
        if resource is WORKFLOWS:
            self.left -= 1
            if self.left == 0:
                self.halted.set()
                await asyncio.Event().wait()
        return answer


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_retry_that_is_killed_between_two_writes_runs_once(tmp_path: Path, writes: int) -> None:
    api, records = HaltingApi(), LocalRecords(tmp_path / "workflows.db")
    kubelet = Kubelet(api, records, random.Random(1))
    await api.create(WORKFLOWS, a_document("retried"))

    async with background(kubelet.pods.run()):
        async with background(operate(an_operator(api, records))):
            await until_phase(api, "Failed", "Succeeded")
        await annotate(api, **{RETRY_ANNOTATION: "{}"})
        api.left = writes
        async with background(operate(an_operator(api, records, number=1))):
            await api.halted.wait()
        async with background(operate(an_operator(api, records, number=2))):
            await until_phase(api, "Succeeded")
    loaded = await records.load((await api.get(WORKFLOWS, "retried", "default"))["metadata"]["uid"], "reader")
    records.close()
    assert loaded.workflow.retries == 1
    assert set(kubelet.starts.values()) == {1}
    assert len(kubelet.starts) == 4  # a and once, then once and b


class HaltingRecords(LocalRecords):
    """Halts for ever before or after the next save."""

    halts = ""
    halted: asyncio.Event

    async def save(self, *args: Any, **more: Any) -> tuple[str, ...]:
        halts, self.halts = self.halts, ""
        saved = () if halts == "before" else await super().save(*args, **more)
        if halts:
            self.halted.set()
            await asyncio.Event().wait()
        return saved


class CountingRecords(LocalRecords):
    """Counts how often it is asked which runs have not ended."""

    asked = 0

    async def unfinished(self) -> tuple[str, ...]:
        self.asked += 1
        return await super().unfinished()


async def test_locks_are_restored_once_however_many_workflows_are_looked_at_first(tmp_path: Path) -> None:
    api, records = FakeApi(), CountingRecords(tmp_path / "workflows.db")
    kubelet = Kubelet(api, records, random.Random(1))
    for number in range(6):
        await api.create(WORKFLOWS, a_document("whole-a", name=f"whole-{number}"))

    async def are_done() -> bool:
        objects = (await api.list(WORKFLOWS)).items
        return all((obj.get("status") or {}).get("phase") == "Succeeded" for obj in objects)

    async with background(kubelet.pods.run(), operate(an_operator(api, records))):
        await until("every workflow to end", are_done)
    records.close()
    assert (records.asked, kubelet.most_whole) == (1, 1)


@pytest.mark.parametrize("halts", ["before", "after"])
async def test_a_run_that_is_killed_takes_over_what_succeeded(tmp_path: Path, halts: str) -> None:
    api, records = FakeApi(), HaltingRecords(tmp_path / "workflows.db")
    records.halted = asyncio.Event()
    kubelet = Kubelet(api, records, random.Random(1))
    uid = (await api.create(WORKFLOWS, a_document("retried")))["metadata"]["uid"]

    async with background(kubelet.pods.run()):
        async with background(operate(an_operator(api, records))):
            await until_phase(api, "Failed")
        records.halts = halts
        document = a_document("retried", name="again", annotations={TAKE_OVER_ANNOTATION: uid})
        again = (await api.create(WORKFLOWS, document))["metadata"]["uid"]
        async with background(operate(an_operator(api, records, number=1))):
            await records.halted.wait()
        async with background(operate(an_operator(api, records, number=2))):
            await until_phase(api, "Succeeded", name="again")
    nodes = {node.name: node for node in (await records.load(again, "reader")).nodes}
    records.close()
    assert set(kubelet.starts.values()) == {1}
    assert len(kubelet.starts) == 4  # a and once of the first, once and b of the second
    taken = nodes["again[0].a"]
    assert (taken.phase, taken.is_memoized, taken.pod_name) == ("Succeeded", True, "")


@pytest.mark.parametrize("namespace", ["other", None])
async def test_nothing_is_taken_over_from_another_namespace_or_from_what_is_not_kept(tmp_path, namespace) -> None:
    api, records = FakeApi(), LocalRecords(tmp_path / "workflows.db")
    api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
    if namespace:
        await records.begin(WorkflowRecord(uid="u", namespace=namespace, name="x", document={}, phase="Failed"))
    await api.create(WORKFLOWS, a_document("retried", annotations={TAKE_OVER_ANNOTATION: "u"}))
    async with background(operate(an_operator(api, records))):
        await until_phase(api, "Failed")
    records.close()
    status = (await api.get(WORKFLOWS, "retried", "default"))["status"]
    assert "(uid u) has no record here" in status["message"]
    assert (await api.list(PODS)).items == []


class MeddlingApi(FakeApi):
    """A person writes `annotations`, just before the operator takes off one that it has carried out; once."""

    def __init__(self) -> None:
        super().__init__()
        self.annotations: dict[str, str] = {}
        self.left: list[dict[str, str]] = []  # the annotations after each time that it tried

    async def patch(self, resource: Resource, name: str, *args: Any, **more: Any) -> Obj:
        if resource is not WORKFLOWS or more.get("kind") != "json":
            return await super().patch(resource, name, *args, **more)
        if self.annotations:
            await super().patch(resource, name, {"metadata": {"annotations": self.annotations}}, "default")
            self.annotations = {}
        try:
            return await super().patch(resource, name, *args, **more)
        finally:
            self.left.append(dict((await self.get(resource, name, "default"))["metadata"]["annotations"]))


GATES = """
metadata: {name: gates, namespace: default}
spec:
  entrypoint: main
  templates:
  - {name: main, steps: [[{name: first, template: gate}, {name: second, template: gate}]]}
  - {name: gate, suspend: {}}
"""


async def test_a_resume_that_is_asked_for_while_another_is_carried_out_is_not_lost(tmp_path: Path) -> None:
    api, records = MeddlingApi(), LocalRecords(tmp_path / "workflows.db")
    obj = await api.create(WORKFLOWS, yaml.safe_load(GATES))

    async def waiting() -> bool:
        try:
            loaded = await records.load(obj["metadata"]["uid"], "operator-0")
        except NotFound:
            return False
        return sum(node.type == "Suspend" and node.phase == "Running" for node in loaded.nodes) == 2

    gates = [{"selector": f"displayName={name}"} for name in ("first", "second")]
    first, both = json.dumps(gates[:1]), json.dumps(gates)
    async with background(operate(an_operator(api, records))):
        await until("both gates to wait", waiting)
        api.annotations = {RESUME_ANNOTATION: both}
        await annotate(api, "gates", **{RESUME_ANNOTATION: first})
        await until_phase(api, "Succeeded", name="gates")
    records.close()
    assert [left.get(RESUME_ANNOTATION) for left in api.left] == [both, None]


async def test_what_is_asked_for_while_a_retry_is_carried_out_is_not_lost(tmp_path: Path) -> None:
    api, records = MeddlingApi(), LocalRecords(tmp_path / "workflows.db")
    kubelet = Kubelet(api, records, random.Random(1))
    await api.create(WORKFLOWS, a_document("retried"))

    async with background(kubelet.pods.run(), operate(an_operator(api, records))):
        await until_phase(api, "Failed")
        again, resume = '{"restartSuccessful": false}', '[{"selector": "displayName=gate"}]'
        api.annotations = {RETRY_ANNOTATION: again, RESUME_ANNOTATION: resume}
        await annotate(api, **{RETRY_ANNOTATION: "{}"})
        await until_phase(api, "Succeeded")
    records.close()
    asked = [(left.get(RETRY_ANNOTATION), left.get(RESUME_ANNOTATION)) for left in api.left]
    assert asked[:2] == [(again, resume), (None, resume)]
    assert set(kubelet.starts.values()) == {1}
    assert len(kubelet.starts) == 4  # the second wish found a run that goes on


CLAIM = """
metadata: {name: claims, namespace: default}
spec:
  entrypoint: main
  arguments: {parameters: [{name: size, value: 2Gi}]}
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: "{{workflow.parameters.size}}"}}}
  templates:
  - name: main
    container: {image: busybox, command: [echo], volumeMounts: [{name: work, mountPath: /work}]}
"""


class ClaimsRefused(FakeApi):
    """Refuses every claim of a volume."""

    def __init__(self, error: ApiError) -> None:
        super().__init__()
        self.error, self.refused = error, 0

    async def create(self, resource: Resource, obj: Obj, *args: Any, **more: Any) -> Obj:
        if resource is PVCS:
            self.refused += 1
            raise self.error
        return await super().create(resource, obj, *args, **more)


async def test_claims_take_the_parameters_of_the_workflow(tmp_path: Path) -> None:
    api, records = FakeApi(), LocalRecords(tmp_path / "workflows.db")
    await api.create(WORKFLOWS, yaml.safe_load(CLAIM))

    async def claims() -> list[Obj]:
        return list((await api.list(PVCS)).items)

    async with background(operate(an_operator(api, records))):
        await until("the claim", claims)
    records.close()
    [claim] = await claims()
    assert claim["metadata"]["name"] == "claims-work"
    assert claim["spec"]["resources"]["requests"] == {"storage": "2Gi"}


async def status_at_the_end(api: FakeApi, records: LocalRecords) -> Obj:
    """Have an operator carry out the workflow `claims` until it has a phase."""

    async def status() -> Obj:
        read: Obj = (await api.get(WORKFLOWS, "claims", "default")).get("status") or {}
        return read if "phase" in read else {}

    async with background(operate(an_operator(api, records))):
        ended: Obj = await until("the end", status)
    records.close()
    return ended


async def test_a_claim_that_can_never_be_made_ends_the_workflow(tmp_path: Path) -> None:
    api, records = ClaimsRefused(Invalid("storage: must be more than zero")), LocalRecords(tmp_path / "w.db")
    await api.create(WORKFLOWS, yaml.safe_load(CLAIM))

    status = await status_at_the_end(api, records)
    assert (status["phase"], status["message"]) == ("Error", "pvc create error: storage: must be more than zero")
    assert (await api.list(PODS)).items == []


async def test_a_workflow_whose_records_exceed_the_quota_fails_and_begins_when_it_is_retried(tmp_path) -> None:
    api, records = FakeApi(), LocalRecords(tmp_path / "workflows.db", quota=1)
    await api.create(WORKFLOWS, yaml.safe_load(CLAIM))

    status = await status_at_the_end(api, records)
    assert status["phase"] == "Failed"
    assert status["message"].startswith(
        "quota exceeded: the records of workflows in namespace default have 0 bytes; "
    )
    assert status["message"].endswith("an administrator sets MOORAGE_WORKFLOW_BYTES_PER_NAMESPACE")
    assert [*(await api.list(PODS)).items, *(await api.list(PVCS)).items] == []

    await annotate(api, "claims", **{RETRY_ANNOTATION: "{}"})
    records = LocalRecords(tmp_path / "workflows.db", quota=1_000_000)

    async def is_made() -> bool:
        return bool((await api.list(PODS)).items)

    async with background(operate(an_operator(api, records))):
        await until("its pod", is_made)
    records.close()


MEMOIZED = """
metadata: {name: claims, namespace: default}
spec:
  entrypoint: main
  templates:
  - name: main
    memoize: {key: a, cache: {configMap: {name: cache}}}
    container: {image: busybox, command: ["true"]}
"""


class NoRoom(LocalRecords):
    """A store in which a namespace has no room for memoized outputs."""

    async def remember(self, namespace: str, cache: str, key: str, memo: Memo) -> None:
        raise QuotaExceeded("the records of workflows have 9 bytes; 1 more exceed the limit of 9")


async def test_a_step_whose_outputs_cannot_be_memoized_succeeds_and_an_event_says_so(tmp_path: Path) -> None:
    api, records = FakeApi(), NoRoom(tmp_path / "workflows.db")
    kubelet = Kubelet(api, records, random.Random(1))
    await api.create(WORKFLOWS, yaml.safe_load(MEMOIZED))

    async with background(kubelet.pods.run(), operate(an_operator(api, records))):
        await until_phase(api, "Succeeded", name="claims")
    records.close()
    messages = {event["reason"]: event["message"] for event in (await api.list(EVENTS)).items}
    assert messages["MemoRefused"].endswith(
        "are not memoized: the records of workflows have 9 bytes; 1 more exceed the limit of 9"
    )


async def test_a_claim_whose_tags_cannot_be_read_ends_the_workflow(tmp_path: Path) -> None:
    api, records = FakeApi(), LocalRecords(tmp_path / "workflows.db")
    text = CLAIM.replace("{{workflow.parameters.size}}", "{{=1 / }}")
    manifest = text.replace(
        "entrypoint: main", "entrypoint: main\n  volumeClaimGC: {strategy: OnWorkflowCompletion}"
    )
    await api.create(WORKFLOWS, yaml.safe_load(manifest))

    status = await status_at_the_end(api, records)
    assert status["phase"] in ("Error", "Failed")
    assert (await api.list(PVCS)).items == []


async def test_a_claim_that_a_quota_refuses_is_tried_again(tmp_path: Path) -> None:
    api = ClaimsRefused(Forbidden("exceeded quota: volumes"))
    records = LocalRecords(tmp_path / "workflows.db")
    await api.create(WORKFLOWS, yaml.safe_load(CLAIM))

    async def is_tried_twice() -> bool:
        return api.refused > 1

    async with background(operate(an_operator(api, records))):
        await until("a second try", is_tried_twice)
    records.close()
    assert "phase" not in ((await api.get(WORKFLOWS, "claims", "default")).get("status") or {})


CHOSEN = """
metadata: {name: chooser, namespace: default}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: use, templateRef: {name: "{{item}}", template: say}, withItems: [hello, bye]}]]
"""


async def test_a_step_may_choose_its_workflow_template_by_a_tag(tmp_path: Path) -> None:
    api, records = FakeApi(), LocalRecords(tmp_path / "workflows.db")
    kubelet = Kubelet(api, records, random.Random(1))
    for name in ("hello", "bye", "other"):
        say = {"name": "say", "container": {"image": "busybox", "command": ["echo", name]}}
        document = {"metadata": {"name": name, "namespace": "default"}, "spec": {"templates": [say]}}
        await api.create(WORKFLOW_TEMPLATES, document)
    await api.create(WORKFLOWS, yaml.safe_load(CHOSEN))

    async def is_ended() -> bool:
        return "finishedAt" in ((await api.get(WORKFLOWS, "chooser", "default")).get("status") or {})

    async with background(kubelet.pods.run(), operate(an_operator(api, records))):
        await until("the end", is_ended)
    loaded = await records.load((await api.get(WORKFLOWS, "chooser", "default"))["metadata"]["uid"], "reader")
    records.close()
    pods = {node.name: (node.phase, node.template_ref) for node in loaded.nodes if node.type == "Pod"}
    assert pods == {
        "chooser[0].use(0:hello)": ("Succeeded", "hello"),
        "chooser[0].use(1:bye)": ("Succeeded", "bye"),
    }
