"""Volumes and datasets over HTTP: as the asker, paged, refused in one shape."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from moorage.model.dataset import DATASETS
from moorage.model.names import HOST_IMAGE, SYSTEM_NAMESPACE
from moorage.server.volumeuse import VolumeUse, used_of
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.resources import NODES, PODS, PVCS, STORAGECLASSES
from moorage_kube.testing.clock import FakeClock
from moorage_testing.datasets import make_dataset

pytestmark = pytest.mark.anyio

SPEC = {"source": {"url": "s3://b/x"}, "size": "1Gi"}


class Asker:
    """ada, with a Kubernetes token; everything the server does for her is done with it."""

    def __init__(self, site):
        self.site, self.api, self.tokens = site, site.api, []

        def with_token(token, *_):
            self.tokens.append(token)
            return site.api

        site.api.with_token = with_token

    async def __call__(self, method, path, body=None):
        headers = {"authorization": "Bearer kube-token", "content-type": "application/json"}
        text = b"" if body is None else json.dumps(body).encode()
        return await self.site.ask(path, method=method, headers=headers, body=text, token=False)


@pytest.fixture
async def ada(site):
    return Asker(site)


def a_claim(name="data", **spec):
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": "lab"}, "spec": asked | spec}


def a_user(claim="data", node="n"):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    return {
        "metadata": {"name": "p", "namespace": "lab", "labels": {"moorage.dev/run": "train"}},
        "spec": {"nodeName": node, "containers": [], "volumes": [volume]},
        "status": {"phase": "Running"},
    }


async def test_a_volume_is_made_listed_resized_and_deleted_as_the_asker(ada):
    made = await ada("POST", "/api/v1/volumes", {"name": "data", "namespace": "lab", "size": "1Gi"})
    assert (made.status, made.json["size"], made.json["owner"]) == (201, "1Gi", "ada")
    listed = (await ada("GET", "/api/v1/volumes?namespace=lab")).json["volumes"]
    assert [(one["name"], one["usedBytes"]) for one in listed] == [("data", None)]
    grown = await ada("PATCH", "/api/v1/volumes/lab/data", {"size": "2Gi"})
    assert grown.json["size"] == "2Gi"
    assert (await ada("PATCH", "/api/v1/volumes/lab/data", {"size": "1Gi"})).status == 409
    assert (await ada("DELETE", "/api/v1/volumes/lab/data")).status == 204
    assert set(ada.tokens) == {"kube-token"}


async def test_a_volume_in_use_is_kept_unless_forced(ada):
    ada.api.put(PVCS, a_claim())
    ada.api.put(PODS, a_user())
    refused = await ada("DELETE", "/api/v1/volumes/lab/data")
    assert (refused.status, refused.json["code"]) == (409, "in_use")
    assert "train" in refused.json["message"]
    assert (await ada("DELETE", "/api/v1/volumes/lab/data?force=true")).status == 204


async def test_a_dataset_is_made_shown_shared_and_deleted(ada):
    body = {"name": "photos", "namespace": "lab", "spec": SPEC}
    assert (await ada("POST", "/api/v1/datasets", body)).status == 201
    assert (await ada("POST", "/api/v1/datasets", body)).status == 409
    assert (await ada("GET", "/api/v1/datasets/lab/photos")).json["source"] == "s3://b/x"
    shared = await ada("PATCH", "/api/v1/datasets/lab/photos", {"readers": ["vision"]})
    assert shared.json["readers"] == [{"tenant": "vision"}]
    assert [one["name"] for one in (await ada("GET", "/api/v1/datasets")).json["datasets"]] == ["photos"]
    assert (await ada("DELETE", "/api/v1/datasets/lab/photos")).status == 204
    assert (await ada("GET", "/api/v1/datasets/lab/photos")).status == 404


async def test_a_dataset_in_use_is_kept_unless_forced(ada):
    obj = make_dataset("photos", "lab", url="s3://b/x")
    obj["status"] = {"usedBy": [{"namespace": "vision", "name": "train", "active": True}]}
    ada.api.put(DATASETS, obj)
    refused = await ada("DELETE", "/api/v1/datasets/lab/photos")
    assert (refused.status, "vision/train" in refused.json["message"]) == (409, True)
    assert (await ada("DELETE", "/api/v1/datasets/lab/photos?force=true")).status == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/v1/volumes", {"name": "../x", "namespace": "lab", "size": "1Gi"}, 422),
        ("POST", "/api/v1/volumes", {"name": "x", "namespace": "lab", "size": "-1Gi"}, 422),
        ("POST", "/api/v1/volumes", {"name": "x", "namespace": "lab", "size": "big"}, 422),
        ("POST", "/api/v1/volumes", {"name": "x", "namespace": "lab", "size": "1Gi", "accessMode": "Any"}, 422),
        ("POST", "/api/v1/volumes", {"name": "x", "namespace": "lab", "size": "1Gi", "hostPath": "/etc"}, 422),
        ("POST", "/api/v1/volumes", ["x"], 422),
        ("GET", "/api/v1/volumes?limit=0", None, 400),
        ("GET", "/api/v1/volumes?limit=99999999999999999999", None, 400),
        ("GET", "/api/v1/datasets?limit=x", None, 400),
        ("POST", "/api/v1/datasets", {"name": "x", "namespace": "lab", "spec": {}}, 422),
        ("POST", "/api/v1/datasets", {"name": "x" * 60, "namespace": "lab", "spec": SPEC}, 422),
        ("POST", "/api/v1/datasets", {"name": "x", "namespace": "lab", "spec": {**SPEC, "size": "0"}}, 422),
        (
            "POST",
            "/api/v1/datasets",
            {"name": "x", "namespace": "lab", "spec": {**SPEC, "source": {"url": "volume:../../etc"}}},
            422,
        ),
        ("PATCH", "/api/v1/datasets/lab/none", {"readers": []}, 404),
        ("PATCH", "/api/v1/volumes/lab/none", {"size": "1Gi"}, 404),
        ("DELETE", "/api/v1/volumes/..%2f..%2fkube-system/x", None, 400),
    ],
)
async def test_bad_requests_are_refused_in_one_shape(ada, method, path, body, status):
    answer = await ada(method, path, body)
    assert answer.status == status
    assert {"code", "message"} <= set(answer.json)


async def test_what_the_cluster_forbids_is_forbidden(ada):
    ada.api.failing = None
    before = ada.api.list

    async def refuse(resource, *args, **options):
        if resource in (PVCS, DATASETS):
            raise Forbidden("persistentvolumeclaims is forbidden")
        return await before(resource, *args, **options)

    ada.api.list = refuse
    for path in ("/api/v1/volumes?namespace=theirs", "/api/v1/datasets?namespace=theirs"):
        answer = await ada("GET", path)
        assert (answer.status, answer.json["code"]) == (403, "forbidden")


async def test_who_may_only_look_changes_nothing(site):
    for method, path in (("GET", "/api/v1/volumes"), ("DELETE", "/api/v1/datasets/lab/x")):
        assert (await site.ask(path, method=method)).status == 403


async def test_what_volumes_hold_is_what_nodes_tell():
    asked = []

    class Kubelets:
        async def summary(self, node):
            asked.append(node["metadata"]["name"])
            if node["metadata"]["name"] == "away":
                raise ServerError("the kubelet does not answer")
            volume = {"name": "v", "usedBytes": 123, "pvcRef": {"name": "data", "namespace": "lab"}}
            return {"pods": [{"volume": [volume]}]}

    nodes = [{"metadata": {"name": name}} for name in ("n", "away")]
    cluster = SimpleNamespace(nodes=SimpleNamespace(all=lambda: nodes))
    use = VolumeUse(cluster, Kubelets(), clock=FakeClock())
    for _ in range(3):
        assert await use.used() == {("lab", "data"): 123}
    assert asked == ["n", "away"]  # believed for a while


async def test_classes_are_told_with_their_modes(ada):
    ada.api.put(STORAGECLASSES, {"metadata": {"name": "nfs"}, "provisioner": "nfs.csi.k8s.io"})
    [one] = (await ada("GET", "/api/v1/storageclasses")).json["storageClasses"]
    assert one["modes"] == ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"]


@pytest.mark.parametrize(
    "summary", [None, [], {"pods": None}, {"pods": [{"volume": [{"pvcRef": {}, "usedBytes": "many"}]}]}]
)
async def test_a_summary_that_is_none_tells_nothing(summary):
    assert used_of(summary) == {}


@pytest.mark.parametrize(
    ("runtime", "pods", "image"),
    [
        pytest.param("containerd://2.1", [], "", id="the server is no pod: nobody knows"),
        pytest.param("containerd://2.1", ["moorage-server"], "registry/moorage:1", id="the image of the service"),
        pytest.param("containerd://2.1", ["other"], "", id="another pod in our namespace says nothing"),
        pytest.param("process://1", [], HOST_IMAGE, id="nodes that run processes"),
    ],
)
async def test_every_user_may_ask_what_a_helper_pod_runs(ada, runtime, pods, image):
    node = {"metadata": {"name": "n1"}, "status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}
    ada.api.put(NODES, node)
    mesh = {"name": "proxy", "image": "registry/proxy:9"}
    for name in pods:
        meta = {"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {"app.kubernetes.io/name": name}}
        containers = [mesh, {"name": "server", "image": "registry/moorage:1"}]
        ada.api.put(PODS, {"metadata": meta, "spec": {"containers": containers}})
    answer = await ada("GET", "/api/v1/helper")
    assert (answer.status, answer.json["image"]) == (200, image)
