"""The MapJob controller before an API: what it makes, how few writes, killed at every one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import zipfile
from datetime import timedelta
from typing import Any

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.mapjob.controller import QUOTAS, MapJobController
from moorage.controllers.mapjob.objects import is_noteworthy, keep_pod, pod_seen, quota_of, template_hash
from moorage.model.kueue import WORKLOADS
from moorage.model.mapjob import MAPJOBS, parse_mapjob
from moorage_kube.errors import Invalid
from moorage_kube.meta import Key, condition, labels_of
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, EVENTS, JOBS, NODES, PODS, Obj
from moorage_kube.testing.builders import a_container_status
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import Killed, MortalApi, running, writes

pytestmark = pytest.mark.anyio

KEY = Key("lab", "features")
THEN = rfc3339(NOON - timedelta(minutes=5))


class Roomy(MortalApi):
    """A cluster with room for thousands."""

    def __init__(self, dies_at: int = 0, *, after: bool = False) -> None:
        super().__init__(dies_at, after=after)
        self.put(NODES, a_node("4000"))


def a_node(cpu: str) -> Obj:
    status: Obj = {"allocatable": {"cpu": cpu, "memory": "64Ti", "pods": "11000"}}
    status["conditions"] = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "n"}, "spec": {}, "status": status}


def a_mapjob(*, items: dict[str, Any] | None = None, queue: dict[str, Any] | None = None, **spec: Any) -> Obj:
    container = {"name": "w", "image": "python:3.12", "resources": {"limits": {"memory": "1Gi"}}}
    told = {"uid": "q", "url": "http://server", "secret": "features-map-0", "heardAt": THEN, "progressAt": THEN}
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "lastTransitionTime": THEN}
    return {
        "metadata": {
            "name": "features",
            "namespace": "lab",
            "generation": 1,
            "labels": {"moorage.dev/owner": "ada"},
            "annotations": {"moorage.dev/owner": "ada"},
        },
        "spec": {
            "parallelism": 40,
            "command": ["python3", "make.py", "{item}", "$(HOME)"],
            "template": {"spec": {"containers": [container]}},
        }
        | spec,
        "status": {
            "state": "running",
            "queue": told if queue is None else queue,
            "items": {"total": 1000, "ready": 1000} | (items or {}),
            "conditions": [accepted],
        },
    }


def a_controller(
    api: FakeApi, clock: FakeClock | None = None
) -> contextlib.AbstractAsyncContextManager[MapJobController]:
    return running(MapJobController(Shared(api=api, clock=clock or FakeClock())))


async def settle(api: FakeApi, clock: FakeClock | None = None) -> timedelta | None:
    """Fresh operators look until there is nothing more to write; returns when the last would look again."""
    for _ in range(8):
        async with a_controller(api, clock) as controller:
            before = len(writes(api))
            again = await controller.reconcile(KEY)
            if len(writes(api)) == before:
                return again
    raise AssertionError(f"never settled: {writes(api)}")


async def rounds(api: FakeApi) -> dict[str, int]:
    return {job["metadata"]["name"]: job["spec"]["parallelism"] for job in (await api.list(JOBS)).items}


async def status(api: FakeApi) -> Obj:
    found: Obj = (await api.get(MAPJOBS, "features", "lab"))["status"]
    return found


async def reason(api: FakeApi, kind: str) -> str:
    found = condition(await api.get(MAPJOBS, "features", "lab"), kind)
    return f"{found['status']} {found['reason']}" if found else ""


async def test_the_workers_of_a_map_on_a_machine_have_the_size_of_the_machine() -> None:
    """Filled in before the machine is known, a default may be more than the machine has."""
    api = Roomy()
    labels = {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "small"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "w", "image": "python:3.12"}]}}
    api.put(MAPJOBS, a_mapjob(template=template))
    await settle(api)
    job = await api.get(JOBS, "features", "lab")
    [worker] = job["spec"]["template"]["spec"]["containers"]
    assert worker["resources"] == {}
    [memory] = [entry for entry in worker["env"] if entry["name"] == "MOORAGE_MEMORY"]
    assert memory["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory"}}


async def told_by_the_job_controller(api: FakeApi, name: str = "features", **counts: int) -> None:
    job = await api.get(JOBS, name, "lab")
    api.put(JOBS, {**job, "status": counts})


async def test_a_map_becomes_one_guarded_job_with_its_worker() -> None:
    api = Roomy()
    mapjob = api.put(MAPJOBS, a_mapjob(preflight={"read": ["/data"]}))
    await settle(api)
    assert await rounds(api) == {"features": 40}
    job = await api.get(JOBS, "features", "lab")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert "completions" not in spec
    assert job["metadata"]["ownerReferences"][0]["uid"] == mapjob["metadata"]["uid"]
    assert labels_of(spec["template"]) == {"moorage.dev/map": "features", "moorage.dev/owner": "ada"}
    worker = pod["containers"][0]
    assert worker["resources"]["limits"] == worker["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}
    assert worker["command"] == ["python3", "/moorage/worker/worker.pyz"]
    env = {one["name"]: one.get("value") for one in worker["env"]}
    document = json.loads(env["MOORAGE_MAP"].replace("$$", "$"))
    assert document["command"] == ["python3", "make.py", "{item}", "$(HOME)"]
    assert document["preflight"] == {"read": ["/data"], "write": []}
    assert (env["MOORAGE_SERVER"], env["MOORAGE_MEMORY"], env["MOORAGE_GRACE"]) == (
        "http://server",
        str(2**30),
        "30",
    )
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
    configs = (await api.list(CONFIGMAPS)).items
    assert [config["metadata"]["name"] for config in configs] == [pod["volumes"][-1]["configMap"]["name"]]
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(configs[0]["binaryData"]["worker.pyz"])))
    assert "mapworker/engine.py" in archive.namelist()
    assert (await status(api))["workers"]["desired"] == 40
    assert await reason(api, "Working") == "True Parallelism"


async def test_a_function_is_mounted_and_spot_is_allowed() -> None:
    api = Roomy()
    api.put(MAPJOBS, a_mapjob(command=[], function={"configMap": "f", "key": "x.zip"}, spot=True, slots=2))
    await settle(api)
    pod = (await api.get(JOBS, "features", "lab"))["spec"]["template"]["spec"]
    function = next(volume for volume in pod["volumes"] if volume["name"] == "moorage-function")
    assert function["configMap"] == {"name": "f", "items": [{"key": "x.zip", "path": "function.zip"}]}
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert json.loads(env["MOORAGE_MAP"]) == {"slots": 2, "function": "/moorage/function/function.zip"}
    assert "cloud.google.com/gke-spot" in {toleration["key"] for toleration in pod["tolerations"]}
    assert {constraint["whenUnsatisfiable"] for constraint in pod["topologySpreadConstraints"]} == {
        "ScheduleAnyway"
    }


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
@pytest.mark.parametrize("dies_at", range(1, 7))
async def test_killed_at_any_write_the_next_operator_finishes(dies_at: int, after: bool) -> None:
    whole, api = Roomy(), Roomy(dies_at, after=after)
    for one in (whole, api):
        one.put(MAPJOBS, a_mapjob())
        for lost in (0, 2):
            if lost:
                await told_by_the_job_controller(one, active=40 - lost, ready=40 - lost, failed=lost)
            for _ in range(3):
                with contextlib.suppress(Killed):
                    await settle(one)
                    break
    assert api.writes > dies_at
    assert await rounds(api) == await rounds(whole) == {"features": 38, "features-r2": 2}
    mine, other = await status(api), await status(whole)
    assert mine["workers"] == other["workers"]
    assert mine["workers"]["lost"] == 2


async def test_a_thousand_pods_cost_a_handful_of_writes() -> None:
    api, clock = Roomy(), FakeClock()
    api.put(MAPJOBS, a_mapjob(parallelism=1000, items={"total": 10**6, "ready": 10**6}))
    async with a_controller(api, clock) as controller:
        await controller.reconcile(KEY)
        for number in range(1, 1001):
            # as its pods start, the Job controller says so in its status
            if number % 50 == 0:
                await told_by_the_job_controller(api, active=1000, ready=number)
                clock.advance(0.5)
            await asyncio.sleep(0)
            await controller.reconcile(KEY)
    assert await rounds(api) == {"features": 1000}
    made = writes(api)
    assert len([one for one in made if one.startswith("patch mapjobs")]) <= 1 + 10 / 2
    assert len(made) <= 9


async def test_a_job_the_api_will_never_take_fails_the_map_with_its_words() -> None:
    api = Roomy()
    api.refusals[JOBS] = Invalid("spec.template.spec.containers[0].image: Required value")
    api.put(MAPJOBS, a_mapjob())
    async with a_controller(api) as controller:
        await controller.reconcile(KEY)
    assert await reason(api, "Failed") == "True Refused"
    assert [event["reason"] for event in (await api.list(EVENTS)).items] == ["Refused"]


async def test_a_job_of_somebody_else_is_left_alone() -> None:
    api = Roomy()
    api.put(JOBS, {"metadata": {"name": "features", "namespace": "lab"}, "spec": {"parallelism": 7}})
    api.put(MAPJOBS, a_mapjob())
    async with a_controller(api) as controller:
        await controller.reconcile(KEY)
    assert await rounds(api) == {"features": 7}
    assert await reason(api, "Failed") == "True Refused"


async def test_workers_killed_for_memory_again_and_again_stop_the_map() -> None:
    api = Roomy()
    api.put(MAPJOBS, a_mapjob())
    await settle(api)
    ended = a_container_status(exit_code=137, reason="OOMKilled", finished=NOON)
    for number in range(3):
        status = {"phase": "Failed", "containerStatuses": [ended]}
        await a_worker(
            api, f"features-{number}", status=status, creationTimestamp=THEN, **PLAIN | {"finalizers": []}
        )
    await told_by_the_job_controller(api, active=37, failed=3)
    await settle(api)
    assert await reason(api, "Failed") == "True OutOfMemory"
    assert await rounds(api) == {"features": 0}


async def test_a_drained_worker_is_replaced_before_its_job_has_counted_it() -> None:
    # kube-controller-manager writes the failure down when it makes the next pod, ten seconds and more later
    api = Roomy()
    api.put(MAPJOBS, a_mapjob(parallelism=3))
    await settle(api)
    for number, leaving in enumerate(({}, {"deletionTimestamp": rfc3339(NOON)}, {})):
        await a_worker(api, f"features-{number}", status={"phase": "Running"}, **PLAIN | leaving)
    await told_by_the_job_controller(api, active=3, ready=3)
    await settle(api)
    assert await rounds(api) == {"features": 2, "features-r2": 1}
    assert (await status(api))["workers"]["lost"] == 1


PLAIN = {"labels": {"moorage.dev/map": "features"}, "finalizers": ["batch.kubernetes.io/job-tracking"]}
KUEUE_POD = {"moorage.dev/map": "features", "kueue.x-k8s.io/queue-name": "team-a"}


async def a_worker(
    api: FakeApi, name: str, *, status: Obj | None = None, spec: Obj | None = None, **meta: Any
) -> Obj:
    job = await api.get(JOBS, "features", "lab")
    owner = {"kind": "Job", "name": "features", "uid": job["metadata"]["uid"], "controller": True}
    finalizers = ["batch.kubernetes.io/job-tracking", "kueue.x-k8s.io/managed"]
    meta = {"labels": KUEUE_POD, "ownerReferences": [owner], "finalizers": finalizers} | meta
    meta |= {"name": name, "namespace": "lab"}
    return api.put(PODS, {"metadata": meta, "spec": spec or {}, "status": {"phase": "Pending"} | (status or {})})


async def test_workers_carry_the_queue_of_their_map_and_their_job_does_not() -> None:
    api = Roomy()
    mapjob = a_mapjob(parallelism=3)
    mapjob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    api.put(MAPJOBS, mapjob)
    await settle(api)
    job = await api.get(JOBS, "features", "lab")
    assert job["spec"]["template"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]


async def test_workers_keep_the_claims_of_their_template() -> None:
    api = Roomy()
    mapjob = a_mapjob(parallelism=1)
    pod = mapjob["spec"]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    pod["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    api.put(MAPJOBS, mapjob)
    await settle(api)
    made = (await api.get(JOBS, "features", "lab"))["spec"]["template"]["spec"]
    assert made["resourceClaims"] == pod["resourceClaims"]
    assert made["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


async def test_a_map_says_what_kueue_says_of_a_worker_that_waits() -> None:
    api = Roomy()
    api.put(MAPJOBS, a_mapjob(parallelism=3))
    await settle(api)
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    pod = await a_worker(api, "features-0", spec=gates, uid="w0")
    says = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for cpu"}
    labels = {"kueue.x-k8s.io/job-uid": pod["metadata"]["uid"]}
    api.put(
        WORKLOADS[0],
        {"metadata": {"name": "pod-w", "namespace": "lab", "labels": labels}, "status": {"conditions": [says]}},
    )
    await told_by_the_job_controller(api, active=3, ready=2)
    await settle(api)
    working = condition(await api.get(MAPJOBS, "features", "lab"), "Working") or {}
    assert working["message"] == "1 of 3 workers wait in Kueue's queue team-a: insufficient unused quota for cpu"


async def test_workers_that_kueue_takes_back_do_not_use_up_the_limit_of_restarts() -> None:
    api = Roomy()
    api.put(MAPJOBS, a_mapjob(parallelism=3, restartLimit=0))
    await settle(api)
    evicted = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted"}
    running = {"phase": "Running", "conditions": [evicted]}
    await a_worker(api, "features-0", status=running, deletionTimestamp=rfc3339(NOON))
    for name in ("features-1", "features-2"):
        await a_worker(api, name, status={"phase": "Running"})
    await told_by_the_job_controller(api, active=3, ready=3)
    await settle(api)
    workers = (await status(api))["workers"]
    assert (workers["lost"], workers["excused"]) == (0, 1)
    assert await rounds(api) == {"features": 2, "features-r2": 1}, "the third waits for its turn again"


async def test_quotas_and_nodes_bound_the_workers() -> None:
    api = Roomy()
    api.put(MAPJOBS, a_mapjob())
    api.put(QUOTAS, {"metadata": {"name": "q", "namespace": "lab"}, "status": {"hard": {"requests.cpu": "9"}}})
    api.put(NODES, a_node("16"))
    await settle(api)
    assert await rounds(api) == {"features": 9}
    assert await reason(api, "Working") == "True Quota"
    api.put(QUOTAS, {"metadata": {"name": "q", "namespace": "lab"}, "status": {"hard": {"requests.cpu": "90"}}})
    await settle(api)
    assert await rounds(api) == {"features": 26}, "16 on the node, and a few that an autoscaler may see"
    assert await reason(api, "Working") == "True Nodes"


async def test_a_deleted_map_stops_its_workers_at_once() -> None:
    api = Roomy()
    mapjob = api.put(MAPJOBS, a_mapjob())
    await settle(api)
    mapjob["metadata"] |= {"deletionTimestamp": rfc3339(NOON), "finalizers": ["moorage.dev/map"]}
    api.put(MAPJOBS, mapjob)
    await settle(api)
    assert await rounds(api) == {"features": 0}


def test_quotas_with_scopes_are_not_counted() -> None:
    view = parse_mapjob(a_mapjob())
    scoped = {"spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "1"}}}
    assert quota_of(view, [scoped]) is None
    memory = {"status": {"hard": {"limits.memory": "10Gi", "secrets": "1"}, "used": {"limits.memory": "3Gi"}}}
    assert quota_of(view, [scoped, memory]) == 7


def test_the_hash_of_a_template_is_not_that_of_the_number_of_workers() -> None:
    one, other = parse_mapjob(a_mapjob()), parse_mapjob(a_mapjob(parallelism=7, priority=3))
    assert template_hash(one) == template_hash(other) != template_hash(parse_mapjob(a_mapjob(slots=2)))


def test_a_pod_evicted_by_its_kubelet_is_no_disruption_and_one_preempted_is() -> None:
    def a_pod(reason: str) -> Obj:
        disrupted = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        return {"metadata": {"name": "p", "uid": "u"}, "status": {"phase": "Failed", "conditions": [disrupted]}}

    assert not pod_seen(keep_pod(a_pod("TerminationByKubelet"))).disrupted
    assert pod_seen(keep_pod(a_pod("PreemptionByScheduler"))).disrupted
    assert not is_noteworthy({"metadata": {}, "status": {"phase": "Running"}})
