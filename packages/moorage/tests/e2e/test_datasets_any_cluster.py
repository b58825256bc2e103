"""Datasets and backups on whichever cluster the environment chose: filled, shared, taken back, deleted.

Where pods run as processes the filler itself runs; elsewhere nodes are hollow, and the test speaks for the filler
by its pod's status. Scheduler, Job controller, volume controller and API are the cluster's own.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from moorage.model.dataset import DATASETS, job_name, reader_claim_name, reader_volume_name
from moorage.model.tenant import TENANTS
from moorage.model.volumebackup import BACKUPS, make_backup
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.meta import condition
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.datasets import make_dataset
from moorage_testing.hollow import hollow_nodes

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api", "scheduler", "controllers")]


@pytest.fixture
async def reader(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A tenant and its namespace."""
    name = f"{unique}-reader"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    tenant = {"apiVersion": TENANTS.api_version, "kind": "Tenant", "metadata": {"name": name}}
    await api.create(TENANTS, tenant | {"spec": {"namespace": name}})
    yield name
    await api.delete(TENANTS, name)
    await api.delete(NAMESPACES, name)


@pytest.fixture
async def storage(api: KubeClient, unique: str, tmp_path: Path) -> AsyncIterator[str]:
    """A class whose volumes are made by hand: two folders of this machine."""
    annotations = {"moorage.dev/access-modes": "ReadWriteOnce,ReadWriteMany"}
    await api.create(
        STORAGECLASSES,
        {"metadata": {"name": unique, "annotations": annotations}, "provisioner": "kubernetes.io/no-provisioner"},
    )
    volumes = [f"{unique}-{one}" for one in "ab"]
    for one in volumes:
        (tmp_path / one).mkdir()
        (tmp_path / one).chmod(0o777)  # a kubelet gives hostPath volumes no owner, and fillers do not run as root
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": unique,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(tmp_path / one), "type": "Directory"},
        }
        await api.create(PVS, {"metadata": {"name": one}, "spec": spec})
    yield unique
    for one in volumes:
        await api.delete(PVS, one)
    await api.delete(STORAGECLASSES, unique)


@pytest.fixture
async def nodes(api: KubeClient, unique: str, cluster: Cluster) -> AsyncIterator[None]:
    if "kubelet" in cluster.offers:
        yield
        return
    async with hollow_nodes(api, f"{unique}-a", f"{unique}-b"):
        yield


@pytest.fixture
async def source(cluster: Cluster, api: KubeClient, tmp_path: Path) -> AsyncIterator[str]:
    """A folder of five files, over HTTP at an address of this machine that pods of the cluster reach."""
    folder = tmp_path / "www" / "d"
    folder.mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"{number}" * 100)
    app = web.Application()
    app.router.add_static("/files", tmp_path / "www", show_index=True)
    runner = web.AppRunner(app)
    await runner.setup()
    host = await _address_for_pods(cluster, api)
    await web.TCPSite(runner, host, 0).start()
    yield f"http://{host}:{runner.addresses[0][1]}/files/"
    await runner.cleanup()


async def speak(api: KubeClient, cluster: Cluster, namespace: str, job: str, result: Obj, code: int = 0) -> None:
    """Where no process runs: end the Job's pod with these last words."""
    if "kubelet" in cluster.offers:
        return

    async def pod() -> Obj | None:
        found = (await api.list(PODS, namespace, label_selector=f"job-name={job}")).items
        return next((one for one in found if (one.get("spec") or {}).get("nodeName")), None)

    found = await until(f"a pod of {job} on a node", pod)
    over = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": json.dumps(result)}
    status = {
        "phase": "Succeeded" if code == 0 else "Failed",
        "containerStatuses": [
            {
                "name": "filler",
                "image": "x",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": over},
            }
        ],
    }
    await api.patch(PODS, found["metadata"]["name"], {"status": status}, namespace, subresource="status")


async def phase(api: KubeClient, namespace: str, name: str, wanted: str) -> Obj:
    async def reached() -> Obj | None:
        obj = await api.get(DATASETS, name, namespace)
        return obj if (obj.get("status") or {}).get("phase") == wanted else None

    found: Obj = await until(f"dataset {name} is {wanted}", reached)
    return found


async def gone(api: KubeClient, resource: Any, name: str, namespace: str | None = None) -> bool:
    try:
        await api.get(resource, name, namespace)
    except NotFound:
        return True
    return False


def shared_photos(namespace: str, reader: str, storage: str, source: str) -> Obj:
    return make_dataset("photos", namespace, url=source, storageClass=storage, readers=(reader,))


def filled(revision: str) -> dict[str, Any]:
    """The last line of a filler that has filled a dataset."""
    return {"phase": "ready", "revision": revision, "files": 5, "bytes": 500, "sha256": "s", "versions": "v"}


async def test_a_dataset_is_filled_shared_taken_back_and_deleted(
    api: KubeClient, cluster: Cluster, namespace: str, reader: str, storage: str, nodes: None, source: str
) -> None:
    made = await api.create(DATASETS, shared_photos(namespace, reader, storage, source), namespace)
    job = await until("its Job", lambda: _or_none(api, JOBS, job_name("photos", 1), namespace))
    revision = (await api.get(DATASETS, "photos", namespace))["status"]["revision"]
    args = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert args[args.index("--revision") + 1] == revision
    await speak(api, cluster, namespace, job_name("photos", 1), filled(revision))
    ready = await phase(api, namespace, "photos", "Ready")
    status = ready["status"]
    assert (status["files"], status["bytes"], status["claim"], status["access"]) == (
        5,
        500,
        "dataset-photos",
        "shared",
    )
    await until("the filler's Job goes", lambda: gone(api, JOBS, job_name("photos", 1), namespace))
    claim, volume = reader_claim_name(namespace, "photos"), reader_volume_name(namespace, "photos", reader)

    async def is_shared() -> bool:
        word = condition(await api.get(DATASETS, "photos", namespace), "Shared") or {}
        return word.get("status") == "True"

    await until("the reader's claim is bound", is_shared)
    theirs = await api.get(PVCS, claim, reader)
    assert theirs["status"]["phase"] == "Bound"
    assert theirs["spec"]["accessModes"] == ["ReadOnlyMany"]
    await api.patch(DATASETS, "photos", {"spec": {"readers": []}}, namespace)
    await until("the reader's claim goes", lambda: gone(api, PVCS, claim, reader))
    await until("its volume goes", lambda: gone(api, PVS, volume))
    await api.patch(DATASETS, "photos", {"spec": {"readers": [reader]}}, namespace)
    await until("it is shared again", is_shared)
    await api.delete(DATASETS, "photos", namespace, uid=made["metadata"]["uid"])
    await until("the dataset goes", lambda: gone(api, DATASETS, "photos", namespace))
    await until("the reader's volume goes", lambda: gone(api, PVS, volume))
    await until("its own claim goes", lambda: gone(api, PVCS, "dataset-photos", namespace))


async def test_labels_of_another_team_neither_use_a_shared_dataset_nor_keep_it(
    api: KubeClient, cluster: Cluster, namespace: str, reader: str, storage: str, nodes: None, source: str
) -> None:
    await api.create(DATASETS, shared_photos(namespace, reader, storage, source), namespace)
    revision = await until("its revision", lambda: _revision(api, namespace))
    await speak(api, cluster, namespace, job_name("photos", 1), filled(revision))
    await phase(api, namespace, "photos", "Ready")
    stranger, name = f"{namespace}-stranger", reader_claim_name(namespace, "photos")
    await api.create(NAMESPACES, {"metadata": {"name": stranger}})
    labels = {"moorage.dev/dataset": "photos", "moorage.dev/dataset-namespace": namespace}
    kept = {"labels": labels, "finalizers": ["example.org/for-ever"]}
    size = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    never = {"volumeName": reader_volume_name(namespace, "photos", stranger)}
    uses = {"moorage.dev/uses-dataset": "true", "dataset.moorage.dev/photos": namespace}
    container = {"name": "main", "image": "x", "command": ["sleep", "600"]}
    try:
        await api.create(PVCS, {"metadata": kept | {"name": "other"}, "spec": size}, stranger)
        await api.create(PVCS, {"metadata": kept | {"name": name}, "spec": size | never}, stranger)
        pod = {"metadata": {"name": "user", "labels": uses}, "spec": {"containers": [container]}}
        await api.create(PODS, pod, stranger)
        pod["metadata"] = {"name": "reading", "labels": uses}
        await api.create(PODS, pod, reader)

        async def users() -> list[str]:
            status = (await api.get(DATASETS, "photos", namespace))["status"]
            return [use["name"] for use in status.get("usedBy") or ()]

        assert "user" not in await until("the use of the reader", users)
        await api.delete(DATASETS, "photos", namespace)
        await until("the dataset goes", lambda: gone(api, DATASETS, "photos", namespace))
    finally:
        for claim in ("other", name):
            await api.patch(PVCS, claim, {"metadata": {"finalizers": None}}, stranger)
        await api.delete(NAMESPACES, stranger)


async def _revision(api: KubeClient, namespace: str) -> str:
    dataset = await api.get(DATASETS, "photos", namespace)
    return str((dataset.get("status") or {}).get("revision") or "")


async def test_a_source_that_is_not_there_fails_the_dataset_and_a_refill_begins_anew(
    api: KubeClient, cluster: Cluster, namespace: str, storage: str, nodes: None, source: str
) -> None:
    wanted = make_dataset("none", namespace, url=f"{source}nothing.bin", storageClass=storage)
    await api.create(DATASETS, wanted, namespace)
    told = {"phase": "failed", "reason": "SourceNotFound", "message": "HTTP 404", "final": True}
    await speak(api, cluster, namespace, job_name("none", 1), told, code=3)
    failed = await phase(api, namespace, "none", "Failed")
    assert (condition(failed, "Ready") or {})["reason"] == "SourceNotFound"
    patch = {"metadata": {"annotations": {"moorage.dev/refill": "again"}}}
    await api.patch(DATASETS, "none", patch, namespace)
    await until("another attempt", lambda: _or_none(api, JOBS, job_name("none", 2), namespace))


async def test_a_volume_is_copied_and_its_backup_listed_when_it_is_whole(
    api: KubeClient, cluster: Cluster, namespace: str, storage: str, nodes: None
) -> None:
    for name in ("data", "kept"):
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        await api.create(PVCS, {"metadata": {"name": name}, "spec": spec}, namespace)
    wanted = make_backup(
        "nightly", namespace, volume="data", to="volume:kept", schedule="", keep=3, secret="", user="ada"
    )
    await api.create(BACKUPS, wanted, namespace)

    async def job() -> str | None:
        found = (await api.list(JOBS, namespace, label_selector="moorage.dev/volume-backup=nightly")).items
        return found[0]["metadata"]["name"] if found else None

    name = await until("its Job", job)
    told = {"phase": "ready", "name": "b-1", "files": 0, "bytes": 1, "sha256": "s", "changed": 0, "kept": ["b-1"]}
    await speak(api, cluster, namespace, name, told)

    async def listed() -> list[Obj] | None:
        status = (await api.get(BACKUPS, "nightly", namespace)).get("status") or {}
        return status.get("backups") or None

    assert len(await until("the backup is listed", listed)) == 1


@pytest.mark.parametrize(
    "url",
    ["file:///etc", "/etc", "ftp://x/y", "", "javascript:x", "s3:/x"],
)
async def test_other_sources_are_refused_by_the_api_itself(api: KubeClient, namespace: str, url: str) -> None:
    wanted = make_dataset("bad", namespace, url=url)
    with pytest.raises(ApiError):
        await api.create(DATASETS, wanted, namespace)


@pytest.mark.parametrize("url", ["volume:../x", "volume:a/../../b", "s3://key:word@bucket/x", "volume:a/./b"])
async def test_sources_that_lead_out_or_tell_a_password_fail(api: KubeClient, namespace: str, url: str) -> None:
    wanted = make_dataset("bad", namespace, url=url)
    await api.create(DATASETS, wanted, namespace)
    failed = await phase(api, namespace, "bad", "Failed")
    assert (condition(failed, "Ready") or {})["reason"] == "Invalid"
    assert await gone(api, PVCS, "dataset-bad", namespace)


async def _address_for_pods(cluster: Cluster, api: KubeClient) -> str:
    """On a cluster with kubelets: the address from which this machine speaks to one of its nodes."""
    if cluster.kind != "kubeconfig":
        return "127.0.0.1"
    addresses = [one for node in (await api.list(NODES)).items for one in node["status"].get("addresses") or ()]
    internal = next(one["address"] for one in addresses if one["type"] == "InternalIP")
    with socket.socket(socket.AF_INET6 if ":" in internal else socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((internal, 9))  # sends nothing
        return str(asked.getsockname()[0])


async def _or_none(api: KubeClient, resource: Any, name: str, namespace: str) -> Obj | None:
    try:
        return await api.get(resource, name, namespace)
    except NotFound:
        return None
