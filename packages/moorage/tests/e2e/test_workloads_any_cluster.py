"""StatefulSets, CronJobs and quotas do the same on whichever cluster the environment chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import ApiError, Forbidden, NotFound
from moorage_kube.meta import is_deleting, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, PODS, PVCS, STATEFULSETS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.hollow import HollowNodes, hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("scheduler", "controllers")]

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")


@pytest.fixture
async def nodes(api: KubeClient, namespace: str) -> AsyncIterator[HollowNodes]:
    names = [f"{namespace}-{n}" for n in range(3)]
    async with hollow_nodes(api, *names, gpus=0, labels={"hollow": namespace}) as made:
        yield made


def pod_template(namespace: str, image: str = "x:1", **spec: Any) -> Obj:
    container = {"name": "c", "image": image, "command": ["true"]}
    spec = {"nodeSelector": {"hollow": namespace}, "containers": [container]} | spec
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"terminationGracePeriodSeconds": 0} | spec}


def a_set(namespace: str, replicas: int = 2, image: str = "x:1", **spec: Any) -> Obj:
    selected = {"selector": {"matchLabels": {"app": "web"}}, "template": pod_template(namespace, image)}
    return {
        "metadata": {"name": "web"},
        "spec": {"replicas": replicas, "serviceName": "web"} | selected | spec,
    }


async def live_pods(api: KubeClient, namespace: str) -> list[Obj]:
    listed = (await api.list(PODS, namespace)).items
    return sorted((one for one in listed if not is_deleting(one)), key=lambda one: str(one["metadata"]["name"]))


async def names_of(api: KubeClient, namespace: str) -> list[str]:
    return [one["metadata"]["name"] for one in await live_pods(api, namespace)]


async def settled(api: KubeClient, namespace: str, **counts: int) -> Obj:
    async def read() -> Obj | None:
        found = await api.get(STATEFULSETS, "web", namespace)
        status = found.get("status") or {}
        seen = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if seen and all(status.get(name, 0) == value for name, value in counts.items()) else None

    found: Obj = await until(f"the StatefulSet to have {counts}", read)
    return found


async def images(api: KubeClient, namespace: str) -> list[str]:
    return [one["spec"]["containers"][0]["image"] for one in await live_pods(api, namespace)]


async def until_made_anew(api: KubeClient, namespace: str, name: str, before: str) -> None:
    """Wait for another pod of the name; `before`: the uid of the one that was there."""

    async def is_new() -> bool:
        try:
            return bool((await api.get(PODS, name, namespace))["metadata"]["uid"] != before)
        except NotFound:
            return False

    await until(f"another {name}", is_new)


async def test_a_stateful_set_makes_its_pods_in_order_and_each_under_its_own_name(api, namespace, nodes):
    await api.create(STATEFULSETS, a_set(namespace, 3), namespace)
    status = await settled(api, namespace, replicas=3, readyReplicas=3, availableReplicas=3, updatedReplicas=3)
    assert status["currentRevision"] == status["updateRevision"]
    pods = await live_pods(api, namespace)
    assert [one["metadata"]["name"] for one in pods] == ["web-0", "web-1", "web-2"]
    born = [one["metadata"]["creationTimestamp"] for one in pods]
    assert born == sorted(born)
    first = pods[0]
    assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("web-0", "web")
    labels = labels_of(first)
    assert labels["statefulset.kubernetes.io/pod-name"] == "web-0"
    assert labels["apps.kubernetes.io/pod-index"] == "0"
    assert labels["controller-revision-hash"] == status["updateRevision"]

    await api.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}}, namespace)
    await settled(api, namespace, replicas=1)
    assert await names_of(api, namespace) == ["web-0"]


async def test_a_failed_pod_of_a_stateful_set_is_made_anew_under_its_name(api, namespace, nodes):
    await api.create(STATEFULSETS, a_set(namespace, 2), namespace)
    await settled(api, namespace, readyReplicas=2)
    before = (await api.get(PODS, "web-0", namespace))["metadata"]["uid"]
    await nodes.evict(namespace, "web-0", used="3Gi")
    await until_made_anew(api, namespace, "web-0", before)
    await settled(api, namespace, readyReplicas=2, replicas=2)


async def test_a_new_template_reaches_the_pods_from_the_last_to_the_partition(api, namespace, nodes):
    await api.create(STATEFULSETS, a_set(namespace, 3, podManagementPolicy="Parallel"), namespace)
    before = await settled(api, namespace, readyReplicas=3, updatedReplicas=3)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    change = {"updateStrategy": strategy, "template": pod_template(namespace, "x:2")}
    await api.patch(STATEFULSETS, "web", {"spec": change}, namespace)
    status = await settled(api, namespace, readyReplicas=3, updatedReplicas=1, currentReplicas=2)
    assert status["currentRevision"] == before["currentRevision"] != status["updateRevision"]
    assert await images(api, namespace) == ["x:1", "x:1", "x:2"]

    first = (await api.get(PODS, "web-0", namespace))["metadata"]["uid"]
    await api.delete(PODS, "web-0", namespace)
    await until_made_anew(api, namespace, "web-0", first)
    await settled(api, namespace, readyReplicas=3, updatedReplicas=1, currentReplicas=2)
    assert await images(api, namespace) == ["x:1", "x:1", "x:2"]

    whole = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
    await api.patch(STATEFULSETS, "web", whole, namespace)
    status = await settled(api, namespace, readyReplicas=3, updatedReplicas=3, currentReplicas=3)
    assert status["currentRevision"] == status["updateRevision"]
    assert await images(api, namespace) == ["x:2", "x:2", "x:2"]

    back = {"spec": {"template": pod_template(namespace, "x:1")}}
    await api.patch(STATEFULSETS, "web", back, namespace)
    status = await settled(api, namespace, readyReplicas=3, updatedReplicas=3, currentReplicas=3)
    assert status["currentRevision"] == before["currentRevision"]  # the old revision serves again


async def test_a_pod_that_never_becomes_ready_holds_up_even_the_mended_template(api, namespace, nodes):
    """kubernetes/kubernetes#67250."""
    nowhere = {"template": pod_template(namespace, nodeSelector={"hollow": "nowhere"})}
    await api.create(
        STATEFULSETS, a_set(namespace, 2) | {"spec": a_set(namespace, 2)["spec"] | nowhere}, namespace
    )
    await settled(api, namespace, replicas=1)
    mended = {"spec": {"template": pod_template(namespace) | {}}}
    mended["spec"]["template"]["spec"]["nodeSelector"] = {"hollow": namespace}
    await api.patch(STATEFULSETS, "web", mended, namespace)
    await settled(api, namespace, replicas=1, updatedReplicas=0)
    (stuck,) = await live_pods(api, namespace)
    assert stuck["spec"]["nodeSelector"] == {"hollow": "nowhere"}
    await api.delete(PODS, "web-0", namespace)
    await settled(api, namespace, replicas=2, readyReplicas=2, updatedReplicas=2)


async def test_claims_stay_when_pods_go_unless_the_set_says_otherwise(api, namespace, nodes):
    resources = {"requests": {"storage": "1Mi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": "none"}
    more = {
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": spec}],
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Retain"},
    }
    await api.create(STATEFULSETS, a_set(namespace, 2, **more), namespace)
    await settled(api, namespace, replicas=2)

    async def claims() -> dict[str, Obj]:
        return {one["metadata"]["name"]: one for one in (await api.list(PVCS, namespace)).items}

    assert set(await claims()) == {"data-web-0", "data-web-1"}
    pod = await api.get(PODS, "web-1", namespace)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}}
    assert volume in pod["spec"]["volumes"]
    claim = (await claims())["data-web-0"]
    assert labels_of(claim) == {"app": "web"}
    assert not claim["metadata"].get("ownerReferences")

    await api.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}}, namespace)

    async def only_first() -> bool:
        return set(await claims()) == {"data-web-0"}

    await until("the claim of the pod scaled away to go", only_first)
    await api.delete(STATEFULSETS, "web", namespace)

    async def no_pods() -> bool:
        return not (await api.list(PODS, namespace)).items

    await until("the pods to go", no_pods)
    assert await only_first()


async def test_what_pods_took_of_a_quota_comes_back_when_they_end(api, namespace, nodes):
    hard = {"pods": "2", "count/jobs.batch": "1"}
    await api.create(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, namespace)

    async def used(**wanted: str) -> bool:
        found = ((await api.get(QUOTAS, "q", namespace)).get("status") or {}).get("used") or {}
        return all(found.get(name) == value for name, value in wanted.items())

    await until("the quota to be counted", lambda: used(pods="0"))
    await api.create(STATEFULSETS, a_set(namespace, 3), namespace)
    await settled(api, namespace, readyReplicas=2)
    pod = {"metadata": {"name": "more"}, "spec": pod_template(namespace)["spec"]}
    with pytest.raises(Forbidden, match="exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"):
        await api.create(PODS, pod, namespace)
    await api.patch(STATEFULSETS, "web", {"spec": {"replicas": 1}}, namespace)
    await until("the place to be free", lambda: used(pods="1"))

    async def is_let_in() -> bool:
        try:
            await api.create(PODS, pod, namespace)
        except ApiError:
            return False
        return True

    await until("the pod to be let in", is_let_in)
    job = {"spec": {"suspend": True, "template": pod_template(namespace, restartPolicy="Never")}}
    await api.create(JOBS, {"metadata": {"name": "a"}} | job, namespace)
    with pytest.raises(Forbidden, match="limited: count/jobs.batch=1"):
        await api.create(JOBS, {"metadata": {"name": "b"}} | job, namespace)


async def test_a_cron_job_makes_a_job_for_its_latest_moment_and_tells_what_became_of_it(api, namespace, nodes):
    template = pod_template(namespace, restartPolicy="Never")
    spec = {
        "schedule": "0 0 * * *",
        "timeZone": "Etc/UTC",
        "suspend": True,
        "successfulJobsHistoryLimit": 0,
        "jobTemplate": {"metadata": {"labels": {"kind": "nightly"}}, "spec": {"template": template}},
    }
    cron = await api.create(CRONJOBS, {"metadata": {"name": "c"}, "spec": spec}, namespace)
    before = rfc3339(SYSTEM.now() - timedelta(days=3))
    await api.patch(CRONJOBS, "c", {"status": {"lastScheduleTime": before}}, namespace, subresource="status")
    await api.patch(CRONJOBS, "c", {"spec": {"suspend": False}}, namespace)

    async def made() -> Obj | None:
        found = (await api.list(JOBS, namespace)).items
        return found[0] if found else None

    job = await until("the Job", made)
    moment = datetime.fromisoformat(
        job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    ).astimezone(UTC)
    assert (moment.hour, moment.minute, moment.second) == (0, 0, 0)
    assert job["metadata"]["name"] == f"c-{int(moment.timestamp()) // 60}"
    assert labels_of(job)["kind"] == "nightly"
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("CronJob", cron["metadata"]["uid"], True)

    async def active() -> Obj | None:
        status = (await api.get(CRONJOBS, "c", namespace)).get("status") or {}
        return status if status.get("active") else None

    status = await until("the Job in the status", active)
    (ref,) = status["active"]
    known = {name: ref[name] for name in ("apiVersion", "kind", "name", "namespace", "uid")}
    meta = job["metadata"]
    named = {"name": meta["name"], "namespace": namespace, "uid": meta["uid"]}
    assert known == {"apiVersion": "batch/v1", "kind": "Job"} | named
    assert status["lastScheduleTime"] == rfc3339(moment)

    async def pod() -> Obj | None:
        found = await live_pods(api, namespace)
        return found[0] if found and (found[0].get("status") or {}).get("phase") == "Running" else None

    running = await until("the Job's pod", pod)
    await nodes.finish(namespace, running["metadata"]["name"], 0)

    async def over() -> bool:
        status = (await api.get(CRONJOBS, "c", namespace)).get("status") or {}
        return not status.get("active") and bool(status.get("lastSuccessfulTime"))

    await until("the Job's end in the status", over)

    async def cleaned() -> bool:
        return not (await api.list(JOBS, namespace)).items

    await until("the history to be cleaned", cleaned)
    assert (await api.get(CRONJOBS, "c", namespace))["status"]["lastScheduleTime"] == rfc3339(moment)
