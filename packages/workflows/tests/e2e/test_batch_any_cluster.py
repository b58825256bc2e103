"""Nightly batch, as a team wrote it for Argo: a step that uploads a file of a volume, a schedule that replaces.

The manifests are those of the field report in shape: bucket and images are other ones.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from moorage.model.argo import CRON_LABEL, CRON_WORKFLOWS, WORKFLOW_LABEL, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.meta import is_deleting
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import PODS, PVCS, SECRETS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.namespaces import until_printed
from moorage_workflows.model.cronworkflow import parse_cron, slot_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(900),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]

FINAL = ("Succeeded", "Failed", "Error")
TEMPLATE = """
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: nightly}
spec:
  entrypoint: main
  volumeClaimTemplates:
  - metadata: {name: workspace}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  templates:
  - name: main
    steps:
    - - {name: recommend, template: recommend}
    - - {name: upload, template: upload}
  - name: recommend
    container:
      image: IMAGE
      command: [sh, -c, "mkdir -p /workspace/out && echo 'user,item' > /workspace/out/file"]
      volumeMounts: [{name: workspace, mountPath: /workspace}]
  - name: upload
    outputs:
      artifacts:
      - name: workdir
        path: /workspace/out/file
        archive: {none: {}}
        s3: {bucket: nightly, key: /recommend/file}
    container:
      image: IMAGE
      command: ["echo", "upload"]
      volumeMounts: [{name: workspace, mountPath: /workspace}]
"""
SCHEDULE = """
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: every-night}
spec:
  schedules: ["@every 2s"]
  timezone: "Asia/Tokyo"
  concurrencyPolicy: Replace
  startingDeadlineSeconds: 600
  failedJobsHistoryLimit: 10
  workflowSpec:
    entrypoint: main
    templates:
    - name: main
      container:
        image: IMAGE
        command: ["sh", "-euc"]
        args: ["exec sleep 600"]
"""
LONG_JOB = """
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: every-night}
spec:
  schedules: ["@every 2s"]
  concurrencyPolicy: POLICY
  failedJobsHistoryLimit: 100
  successfulJobsHistoryLimit: 100
  workflowSpec:
    entrypoint: main
    volumes: [{name: work, persistentVolumeClaim: {claimName: work}}]
    templates:
    - name: main
      steps:
      - - {name: long, template: long}
      - - {name: count, template: count}
    - name: long
      container:
        image: IMAGE
        command: [sh, -c]
        args:
        - |
          echo {{workflow.name}} >> /work/starts; echo counted
          [ $(grep -c {{workflow.name}} /work/starts) -lt 3 ] || exit 0
          trap 'exit 143' TERM
          sleep 600 &
          wait
        volumeMounts: [{name: work, mountPath: /work}]
    - name: count
      outputs: {parameters: [{name: starts, globalName: starts, valueFrom: {path: /tmp/starts}}]}
      container:
        image: IMAGE
        command: [sh, -c, "cp /work/starts /tmp/starts"]
        volumeMounts: [{name: work, mountPath: /work}]
"""
NO_SLOT_SOON = "0 0 29 2 *"


@pytest.fixture
def bucket(cluster: Cluster) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(a client, fields of a location) of a bucket on a server of this process."""
    if not cluster.address:
        pytest.skip("the bucket is on this machine: MOORAGE_TEST_ADDRESS says where pods reach it")
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address=cluster.address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="nightly")
    secret = {name: {"name": "bucket", "key": name} for name in ("accessKeySecret", "secretKeySecret")}
    yield client, {"endpoint": f"{host}:{port}", "insecure": True, "region": "us-east-1"} | secret
    server.stop()


def read(cluster: Cluster, manifest: str) -> Obj:
    image = "debian" if cluster.kind == "local" else cluster.image
    document: Obj = yaml.safe_load(manifest.replace("IMAGE", image))
    if cluster.kind == "local":
        spec = document["spec"].get("workflowSpec") or document["spec"]
        spec["podMetadata"] = {"annotations": {HOST_ENV_ANNOTATION: "true"}}
    return document


async def test_a_step_that_only_uploads_brings_a_file_of_a_volume_into_a_bucket(
    cluster: Cluster, api: KubeClient, namespace: str, bucket: tuple[Any, dict[str, Any]]
) -> None:
    client, location = bucket
    keys = {"accessKeySecret": "id", "secretKeySecret": "key"}
    await api.create(SECRETS, {"metadata": {"name": "bucket"}, "stringData": keys}, namespace)
    template = read(cluster, TEMPLATE)
    template["spec"]["templates"][2]["outputs"]["artifacts"][0]["s3"] |= location
    await api.create(WORKFLOW_TEMPLATES, template, namespace)
    spec = {"workflowTemplateRef": {"name": "nightly"}}
    typed = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind}
    await api.create(WORKFLOWS, typed | {"metadata": {"name": "tonight"}, "spec": spec}, namespace)

    async def ended() -> Obj | None:
        obj = await api.get(WORKFLOWS, "tonight", namespace)
        return obj if (obj.get("status") or {}).get("phase") in FINAL else None

    obj = await until("the workflow to end", ended)
    assert obj["status"]["phase"] == "Succeeded", obj["status"]
    (stored,) = client.list_objects_v2(Bucket="nightly")["Contents"]
    assert client.get_object(Bucket="nightly", Key=stored["Key"])["Body"].read() == b"user,item\n"
    assert stored["Key"].strip("/") == "recommend/file"


async def test_a_schedule_that_replaces_never_has_two_runs(cluster, api, namespace) -> None:
    await api.create(CRON_WORKFLOWS, read(cluster, SCHEDULE), namespace)
    seen: dict[str, str] = {}

    async def replaced() -> bool:
        runs = (await api.list(WORKFLOWS, namespace, label_selector=f"{CRON_LABEL}=every-night")).items
        seen.update({run["metadata"]["name"]: (run.get("status") or {}).get("phase", "") for run in runs})
        kept_on = [
            run
            for run in runs
            if (run.get("status") or {}).get("phase") not in FINAL and not (run["spec"].get("shutdown"))
        ]
        assert len(kept_on) <= 1, [run["metadata"]["name"] for run in kept_on]
        return sum(phase == "Failed" for phase in seen.values()) >= 2 and len(seen) >= 3

    await until("two runs to be replaced, and one to go on", replaced)
    await api.patch(CRON_WORKFLOWS, "every-night", {"spec": {"suspend": True}}, namespace)


class Nights:
    """The runs of the schedule every-night, and all that were ever seen."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.uids: dict[str, set[str]] = collections.defaultdict(set)  # by name: two would be a slot run twice

    async def going_on(self) -> list[Obj]:
        """Those that have not ended and are not being replaced."""
        runs = (await self.api.list(WORKFLOWS, self.namespace, label_selector=f"{CRON_LABEL}=every-night")).items
        for run in runs:
            self.uids[run["metadata"]["name"]].add(run["metadata"]["uid"])
        going_on = [
            run
            for run in runs
            if (run.get("status") or {}).get("phase") not in FINAL and not run["spec"].get("shutdown")
        ]
        assert len(going_on) <= 1, [run["metadata"]["name"] for run in going_on]
        return going_on

    async def wait_for_no_other_slot(self) -> None:
        """Change the schedule, and wait until the operator goes by it."""
        spec = {"schedules": [NO_SLOT_SOON]}
        await self.api.patch(CRON_WORKFLOWS, "every-night", {"spec": spec}, self.namespace)

        async def is_read() -> bool:
            cron = parse_cron(await self.api.get(CRON_WORKFLOWS, "every-night", self.namespace))
            return cron.schedule_used == NO_SLOT_SOON and not cron.state.pending

        await until("the schedule to be read", is_read)

    async def wait_for_slots_after(self, run: Obj) -> None:
        slot = slot_of(run)
        assert slot is not None

        async def has_passed() -> bool:
            cron = parse_cron(await self.api.get(CRON_WORKFLOWS, "every-night", self.namespace))
            return cron.state.cursor >= slot.timestamp() + 4

        await until("later slots to pass", has_passed)

    async def evict(self, name: str, *, but: set[str]) -> str:
        """Evict the running pod of a run that is none of those; its name."""

        async def running() -> str:
            await self.going_on()
            pods = (await self.api.list(PODS, self.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
            there = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}
            leaving = {pod["metadata"]["name"] for pod in pods if is_deleting(pod)}
            return next(iter(there - leaving - but), "")

        pod: str = await until(f"a pod of {name} to run", running)
        await until_printed(self.api, self.namespace, pod, b"counted")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        await self.api.create_subresource(PODS, pod, "eviction", eviction, self.namespace)
        return pod


@pytest.mark.parametrize("policy", ["Forbid", "Replace"])
async def test_a_long_job_of_a_schedule_that_is_evicted_twice_is_one_run_and_ends_once(
    cluster: Cluster, api: KubeClient, namespace: str, policy: str
) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    await api.create(PVCS, {"metadata": {"name": "work"}, "spec": claim}, namespace)
    await api.create(CRON_WORKFLOWS, read(cluster, LONG_JOB.replace("POLICY", policy)), namespace)
    nights = Nights(api, namespace)
    (run,) = await until("a slot to be run", nights.going_on)
    if policy == "Replace":  # the next slot would end the run
        await nights.wait_for_no_other_slot()
        (run,) = await until("the last run", nights.going_on)
    name = run["metadata"]["name"]
    first = await nights.evict(name, but=set())
    if policy == "Forbid":
        await nights.wait_for_slots_after(run)
        await nights.wait_for_no_other_slot()
    await nights.evict(name, but={first})

    async def counted() -> Obj | None:
        await nights.going_on()
        cron = await api.get(CRON_WORKFLOWS, "every-night", namespace)
        return cron if not cron["status"]["active"] else None

    cron = await until("the schedule to have no run", counted)
    assert cron["status"]["succeeded"] == 1
    assert {name: len(uids) for name, uids in nights.uids.items()} == dict.fromkeys(nights.uids, 1)
    obj = await api.get(WORKFLOWS, name, namespace)
    assert obj["status"]["phase"] == "Succeeded", obj["status"]
    (starts,) = obj["status"]["outputs"]["parameters"]
    counts = collections.Counter(starts["value"].split())
    assert counts.pop(name) == 3
    if policy == "Forbid":
        assert set(nights.uids) == {name}
    assert set(counts) < set(nights.uids)  # those that were replaced, which ran once at most
    assert set(counts.values()) <= {1}
