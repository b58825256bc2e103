"""What everything that calls itself `Api` must do.

Runs on the local cluster's in-process client, on our HTTPS client before the local cluster, and on our HTTPS
client before the cluster that the environment chooses (KUBEBUILDER_ASSETS or MOORAGE_TEST_KUBECONFIG): the real
API server is the judge of the others. `FakeApi` runs what it claims to do: tests of schemas, admission and
subresources are marked `servers_only`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.api import Api, WatchEvent
from moorage_kube.errors import AlreadyExists, ApiError, BadRequest, Conflict, Invalid, NotFound, Unauthorized
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import Connection, load_connection
from moorage_kube.resources import (
    CONFIGMAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICEACCOUNTS,
    SERVICES,
    Obj,
    Resource,
)
from moorage_kube.testing import builders
from moorage_local.testing.fakepods import FakePodApi

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 180.0
REAL = bool(os.environ.get("MOORAGE_TEST_KUBECONFIG") or os.environ.get("KUBEBUILDER_ASSETS"))


@contextlib.asynccontextmanager
async def local_server(folder: Path) -> AsyncIterator[tuple[Any, Connection]]:
    from moorage_kube.serving import serve
    from moorage_local.apiserver.pki import ensure_pki
    from moorage_local.apiserver.server import ApiServer
    from moorage_local.storage.sqlite import SqliteStorage

    pki = ensure_pki(folder / "pki")
    tokens = {"secret": {"user": "ada", "groups": ["system:masters"]}}
    server = ApiServer(SqliteStorage(folder / "cluster.db"), tokens=tokens, signing_key=pki.signing_key)
    await server.start()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        stop = asyncio.Event()
        address = f"https://127.0.0.1:{sock.getsockname()[1]}"
        serving = asyncio.create_task(serve(server.app, sock, certificate=pki.certificate, key=pki.key, stop=stop))
        try:
            yield server, Connection(server=address, token="secret", ca_pem=pki.ca.read_bytes())
        finally:
            stop.set()
            await serving
            await server.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The fake runs every test but those of what it does not claim to do."""
    if "api" in metafunc.fixturenames:
        fake = [] if metafunc.definition.get_closest_marker("servers_only") else ["fake"]
        metafunc.parametrize("api", [*fake, "in process", "local over HTTPS", "cluster"], indirect=True)


@pytest.fixture
async def api(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Api]:
    if request.param == "fake":
        yield FakePodApi()
        return
    if request.param == "cluster":
        if not REAL:
            pytest.skip("no other cluster: set KUBEBUILDER_ASSETS or MOORAGE_TEST_KUBECONFIG")
        # the API alone is wanted of a cluster that runs already: none of our services beside it
        given = os.environ.get("MOORAGE_TEST_KUBECONFIG")
        kubeconfig = Path(given) if given else request.getfixturevalue("cluster").kubeconfig
        async with KubeClient(load_connection(kubeconfig)) as client:
            yield client
        return
    async with local_server(tmp_path) as (server, connection):
        if request.param == "in process":
            yield server.client()
            return
        async with KubeClient(connection) as client:
            yield client


@pytest.fixture
def real_only(request: pytest.FixtureRequest) -> None:
    """For what the local cluster is known to do otherwise; the real API server is right."""
    given = os.environ.get("MOORAGE_TEST_KUBECONFIG", "")
    if request.node.callspec.params["api"] != "cluster" or "moorage-local" in (
        Path(given).read_text() if given else ""
    ):
        pytest.skip("a known difference of the local cluster")


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    with contextlib.suppress(NotFound):
        await api.delete(NAMESPACES, name)


def a_configmap(name: str = "a", labels: dict[str, str] | None = None, **data: str) -> Obj:
    return builders.an_object(CONFIGMAPS, name, namespace="", labels=labels, data=data)


def a_pod(name: str) -> Obj:
    return builders.a_pod(name, namespace="", image="localhost/host", spec={"schedulerName": "nobody"})


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


# --- create and get


async def test_a_created_object_gets_an_identity_and_is_read_back(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    assert (made["apiVersion"], made["kind"], made["data"]) == ("v1", "ConfigMap", {"x": "1"})
    assert made["metadata"]["namespace"] == namespace
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
    assert await api.get(CONFIGMAPS, "a", namespace) == made


async def test_the_namespace_may_stand_in_the_object(api: Api, namespace: str) -> None:
    obj = a_configmap()
    obj["metadata"]["namespace"] = namespace
    await api.create(CONFIGMAPS, obj)
    assert (await api.get(CONFIGMAPS, "a", namespace))["metadata"]["namespace"] == namespace


async def test_two_namespaces_in_one_request_are_refused(api: Api, namespace: str) -> None:
    obj = a_configmap()
    obj["metadata"]["namespace"] = "default"
    with pytest.raises(BadRequest):
        await api.create(CONFIGMAPS, obj, namespace)


async def test_a_missing_object_is_not_found(api: Api, namespace: str) -> None:
    with pytest.raises(NotFound, match=r'configmaps "nope" not found') as caught:
        await api.get(CONFIGMAPS, "nope", namespace)
    assert caught.value.reason == "NotFound"


@pytest.mark.servers_only
async def test_an_unknown_kind_is_not_found(api: Api) -> None:
    with pytest.raises(NotFound):
        await api.list(Resource("nowhere.example", "v1", "things", "Thing"), "default")


async def test_a_name_is_given_once(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(), namespace)
    with pytest.raises(AlreadyExists) as caught:
        await api.create(CONFIGMAPS, a_configmap(), namespace)
    assert caught.value.reason == "AlreadyExists"


async def test_a_name_can_be_generated(api: Api, namespace: str) -> None:
    obj: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "run-"}}
    names = {(await api.create(CONFIGMAPS, obj, namespace))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("run-") and len(name) == 9 for name in names)


@pytest.mark.servers_only
async def test_a_namespace_must_exist(api: Api) -> None:
    with pytest.raises(NotFound):
        await api.create(CONFIGMAPS, a_configmap(), unique("nope"))


@pytest.mark.servers_only
async def test_a_bad_name_is_invalid_with_its_field(api: Api, namespace: str) -> None:
    with pytest.raises(Invalid) as caught:
        await api.create(CONFIGMAPS, a_configmap("Bad_Name"), namespace)
    causes = (caught.value.details or {})["causes"]
    assert [cause["field"] for cause in causes] == ["metadata.name"]


@pytest.mark.servers_only
async def test_every_wrong_field_is_named_at_once(api: Api) -> None:
    pod = a_pod(unique("pod"))
    pod["spec"]["containers"] = [{"name": "Bad_Name"}]
    pod["spec"]["restartPolicy"] = "Sometimes"
    with pytest.raises(Invalid) as caught:
        await api.create(PODS, pod, "default")
    fields = {cause["field"] for cause in (caught.value.details or {})["causes"]}
    assert {"spec.containers[0].name", "spec.containers[0].image", "spec.restartPolicy"} <= fields


async def test_a_dry_run_stores_nothing(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace, dry_run=True)
    assert made["data"] == {"x": "1"}
    with pytest.raises(NotFound):
        await api.get(CONFIGMAPS, "a", namespace)


# --- update and patch


async def test_an_update_moves_the_version_and_keeps_the_identity(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    changed = await api.update(CONFIGMAPS, made | {"data": {"y": "2"}})
    assert changed["data"] == {"y": "2"}
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert changed["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]


async def test_an_update_that_changes_nothing_keeps_the_version(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    again = await api.update(CONFIGMAPS, made)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_stale_update_is_a_conflict(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    await api.update(CONFIGMAPS, made | {"data": {"x": "2"}})
    with pytest.raises(Conflict) as caught:
        await api.update(CONFIGMAPS, made | {"data": {"x": "3"}})
    assert caught.value.reason == "Conflict"
    assert (await api.get(CONFIGMAPS, "a", namespace))["data"] == {"x": "2"}


async def test_an_update_without_a_version_overwrites(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    obj = a_configmap(x="2")
    obj["metadata"]["namespace"] = namespace
    assert (await api.update(CONFIGMAPS, obj))["data"] == {"x": "2"}


async def test_a_merge_patch_sets_and_removes(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(x="1", y="2"), namespace)
    patched = await api.patch(CONFIGMAPS, "a", {"data": {"x": None, "z": "3"}}, namespace)
    assert patched["data"] == {"y": "2", "z": "3"}


async def test_a_patch_may_be_guarded_by_version_and_uid(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    await api.patch(CONFIGMAPS, "a", {"data": {"x": "2"}}, namespace)
    version = {"resourceVersion": made["metadata"]["resourceVersion"]}
    with pytest.raises(Conflict):
        await api.patch(CONFIGMAPS, "a", {"metadata": version, "data": {"x": "3"}}, namespace)
    with pytest.raises(Invalid, match=r"metadata\.uid"):
        await api.patch(CONFIGMAPS, "a", {"metadata": {"uid": str(uuid.uuid4())}, "data": {"x": "3"}}, namespace)
    right = {"metadata": {"uid": made["metadata"]["uid"]}, "data": {"x": "3"}}
    assert (await api.patch(CONFIGMAPS, "a", right, namespace))["data"] == {"x": "3"}


async def test_a_json_patch_tests_before_it_writes(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(x="1"), namespace)
    good = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "replace", "path": "/data/x", "value": "2"}]
    assert (await api.patch(CONFIGMAPS, "a", good, namespace, kind="json"))["data"] == {"x": "2"}
    with pytest.raises(ApiError) as caught:
        await api.patch(CONFIGMAPS, "a", good, namespace, kind="json")
    assert caught.value.status == 422
    assert (await api.get(CONFIGMAPS, "a", namespace))["data"] == {"x": "2"}


async def test_a_strategic_patch_merges_lists_by_their_key(api: Api, namespace: str) -> None:
    service: Obj = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 80}, {"name": "metrics", "port": 90}]},
    }
    await api.create(SERVICES, service, namespace)
    patch = {"spec": {"ports": [{"port": 90, "targetPort": 9090}]}}
    patched = await api.patch(SERVICES, "s", patch, namespace, kind="strategic")
    ports = {port["name"]: port["targetPort"] for port in patched["spec"]["ports"]}
    assert ports == {"http": 80, "metrics": 9090}


@pytest.mark.servers_only
async def test_apply_creates_and_updates(api: Api, namespace: str) -> None:
    for value in ("1", "2"):
        obj = a_configmap(x=value)
        made = await api.patch(CONFIGMAPS, "a", obj, namespace, kind="apply", field_manager="one")
        assert made["data"] == {"x": value}


@pytest.mark.servers_only
@pytest.mark.usefixtures("real_only")  # it does not know yet who owns a field
async def test_apply_guards_what_others_own(api: Api, namespace: str) -> None:
    await api.patch(CONFIGMAPS, "a", a_configmap(x="1"), namespace, kind="apply", field_manager="one")
    with pytest.raises(Conflict):
        await api.patch(CONFIGMAPS, "a", a_configmap(x="2"), namespace, kind="apply", field_manager="two")
    taken = await api.patch(
        CONFIGMAPS, "a", a_configmap(x="2"), namespace, kind="apply", field_manager="two", force=True
    )
    assert taken["data"] == {"x": "2"}


async def test_patching_what_is_missing_is_not_found(api: Api, namespace: str) -> None:
    with pytest.raises(NotFound):
        await api.patch(CONFIGMAPS, "nope", {"data": {}}, namespace)


async def test_status_and_the_rest_are_written_apart(api: Api) -> None:
    name = unique("node")
    await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
    try:
        status = {"status": {"capacity": {"cpu": "4"}}, "spec": {"unschedulable": True}}
        after = await api.patch(NODES, name, status, subresource="status")
        assert after["status"]["capacity"] == {"cpu": "4"}
        assert "unschedulable" not in after["spec"]
        after = await api.patch(NODES, name, {"spec": {"unschedulable": True}, "status": {"capacity": None}})
        assert after["spec"]["unschedulable"] is True
        assert after["status"]["capacity"] == {"cpu": "4"}
    finally:
        await api.delete(NODES, name)


async def test_labels_of_a_pod_may_be_written_with_its_status(api: Api) -> None:
    name = unique("pod")
    await api.create(PODS, a_pod(name), "default")
    try:
        patch = {"metadata": {"labels": {"team": "red"}}, "spec": {"nodeName": "x"}, "status": {"message": "held"}}
        after = await api.patch(PODS, name, patch, "default", subresource="status")
        # where our webhook stands it has stamped the owner too
        assert (after["metadata"]["labels"]["team"], after["status"]["message"]) == ("red", "held")
        assert "nodeName" not in after["spec"]
    finally:
        await api.delete(PODS, name, "default", grace_period_seconds=0)


# --- delete


async def test_deleting_removes_and_deleting_again_is_not_found(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(), namespace)
    await api.delete(CONFIGMAPS, "a", namespace)
    with pytest.raises(NotFound):
        await api.delete(CONFIGMAPS, "a", namespace)


async def test_a_deletion_may_be_guarded_by_uid(api: Api, namespace: str) -> None:
    made = await api.create(CONFIGMAPS, a_configmap(), namespace)
    with pytest.raises(Conflict):
        await api.delete(CONFIGMAPS, "a", namespace, uid=str(uuid.uuid4()))
    await api.delete(CONFIGMAPS, "a", namespace, uid=made["metadata"]["uid"])


async def test_a_finalizer_keeps_an_object_until_it_is_taken_off(api: Api, namespace: str) -> None:
    obj = a_configmap()
    obj["metadata"]["finalizers"] = ["example.org/wait"]
    await api.create(CONFIGMAPS, obj, namespace)
    await api.delete(CONFIGMAPS, "a", namespace)
    assert "deletionTimestamp" in (await api.get(CONFIGMAPS, "a", namespace))["metadata"]
    with pytest.raises(AlreadyExists):
        await api.create(CONFIGMAPS, a_configmap(), namespace)
    await api.patch(CONFIGMAPS, "a", {"metadata": {"finalizers": None}}, namespace)
    with pytest.raises(NotFound):
        await api.get(CONFIGMAPS, "a", namespace)


# --- list


async def test_a_list_is_filtered_by_labels_and_fields(api: Api, namespace: str) -> None:
    for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        await api.create(CONFIGMAPS, a_configmap(name, {"team": team}), namespace)

    async def names(**selectors: str) -> list[str]:
        listed = await api.list(CONFIGMAPS, namespace, **selectors)
        found = [item["metadata"]["name"] for item in listed.items]
        return [name for name in found if not name.endswith("ca.crt")]  # a real cluster puts its own into each

    assert await names() == ["a", "b", "c"]
    assert await names(label_selector="team=red") == ["a", "c"]
    assert await names(label_selector="team notin (red),team") == ["b"]
    assert await names(field_selector="metadata.name=b") == ["b"]
    assert await names(label_selector="team=red", field_selector="metadata.name!=a") == ["c"]


async def test_items_of_a_list_say_what_they_are(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap(), namespace)
    listed = await api.list(CONFIGMAPS, namespace)
    assert {(item["apiVersion"], item["kind"]) for item in listed.items} == {("v1", "ConfigMap")}


async def test_a_list_over_all_namespaces_finds_each(api: Api, namespace: str) -> None:
    name = unique("far")
    await api.create(CONFIGMAPS, a_configmap(name), namespace)
    await api.create(CONFIGMAPS, a_configmap(name), "default")
    try:
        listed = await api.list(CONFIGMAPS, field_selector=f"metadata.name={name}")
        assert {item["metadata"]["namespace"] for item in listed.items} == {namespace, "default"}
    finally:
        await api.delete(CONFIGMAPS, name, "default")


async def test_a_list_can_be_read_page_by_page(api: Api, namespace: str) -> None:
    for number in range(5):
        await api.create(CONFIGMAPS, a_configmap(f"page-{number}", {"paged": "yes"}), namespace)
    names, token, pages = [], None, 0
    while True:
        page = await api.list(CONFIGMAPS, namespace, label_selector="paged", limit=2, cont=token)
        names += [item["metadata"]["name"] for item in page.items]
        pages, token = pages + 1, page.cont
        if token is None:
            break
        await api.delete(CONFIGMAPS, "page-4", namespace) if pages == 1 else None
    assert names == [f"page-{number}" for number in range(5)], "every page shows the moment of the first"
    assert pages == 3


async def test_a_label_selector_that_is_none_is_refused(api: Api, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await api.list(CONFIGMAPS, namespace, label_selector="a b c")


async def test_a_field_that_cannot_be_selected_is_refused(api: Api, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await api.list(CONFIGMAPS, namespace, field_selector="data.x=1")


# --- watch


async def collect(stream: AsyncIterator[WatchEvent], count: int) -> list[tuple[str, str]]:
    """The first `count` changes as (type, name); bookmarks are left out."""
    found: list[tuple[str, str]] = []

    async def read() -> None:
        async with contextlib.aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                if event.type != "BOOKMARK":
                    found.append((event.type, event.object["metadata"]["name"]))
                if len(found) == count:
                    return

    await asyncio.wait_for(read(), PATIENCE_SECONDS)
    return found


async def test_a_watch_tells_every_change_after_a_list_in_order(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap("old", {"mine": "yes"}), namespace)
    listed = await api.list(CONFIGMAPS, namespace, label_selector="mine")
    await api.create(CONFIGMAPS, a_configmap("new", {"mine": "yes"}), namespace)
    await api.patch(CONFIGMAPS, "old", {"data": {"x": "1"}}, namespace)
    await api.delete(CONFIGMAPS, "new", namespace)
    stream = api.watch(CONFIGMAPS, namespace, resource_version=listed.resource_version, label_selector="mine")
    assert await collect(stream, 3) == [("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "new")]


async def test_an_object_that_stops_matching_is_told_as_deleted(api: Api, namespace: str) -> None:
    await api.create(CONFIGMAPS, a_configmap("a", {"team": "red"}), namespace)
    listed = await api.list(CONFIGMAPS, namespace, label_selector="team=red")
    await api.patch(CONFIGMAPS, "a", {"metadata": {"labels": {"team": "blue"}}}, namespace)
    await api.patch(CONFIGMAPS, "a", {"metadata": {"labels": {"team": "red"}}}, namespace)
    stream = api.watch(CONFIGMAPS, namespace, resource_version=listed.resource_version, label_selector="team=red")
    assert await collect(stream, 2) == [("DELETED", "a"), ("ADDED", "a")]


async def test_a_watch_carries_objects_of_any_size(api: Api, namespace: str) -> None:
    listed = await api.list(CONFIGMAPS, namespace, field_selector="metadata.name=big")
    await api.create(CONFIGMAPS, a_configmap("big", x="é\n" * 200_000), namespace)
    stream = api.watch(
        CONFIGMAPS, namespace, resource_version=listed.resource_version, field_selector="metadata.name=big"
    )
    async with contextlib.aclosing(stream) as events:  # type: ignore[type-var]
        async for event in events:
            if event.type == "ADDED":
                assert event.object["data"]["x"] == "é\n" * 200_000
                break


async def test_an_informer_follows_the_collection(api: Api, namespace: str) -> None:
    await api.create(LEASES, _lease("one"), namespace)
    informer = Informer(api, LEASES, namespace)
    following = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(wait_synced(informer), PATIENCE_SECONDS)
        assert informer.get("one", namespace) is not None
        seen = asyncio.Event()

        def changed(_before: Obj | None, _after: Obj | None) -> None:
            if informer.get("one", namespace) is None and informer.get("two", namespace) is not None:
                seen.set()

        informer.on_change(changed)
        await api.create(LEASES, _lease("two"), namespace)
        await api.delete(LEASES, "one", namespace)
        await asyncio.wait_for(seen.wait(), PATIENCE_SECONDS)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


# --- subresources


async def test_binding_puts_a_pod_on_a_node_once(api: Api) -> None:
    name = unique("pod")
    await api.create(PODS, a_pod(name), "default")
    try:
        target = {"apiVersion": "v1", "kind": "Node", "name": "somewhere"}
        binding: Obj = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await api.create_subresource(PODS, name, "binding", binding, "default")
        bound = await api.get(PODS, name, "default")
        assert bound["spec"]["nodeName"] == "somewhere"
        assert [(one["type"], one["status"]) for one in bound["status"]["conditions"]] == [
            ("PodScheduled", "True")
        ]
        with pytest.raises(Conflict):
            await api.create_subresource(PODS, name, "binding", binding, "default")
    finally:
        await api.delete(PODS, name, "default", grace_period_seconds=0)


@pytest.mark.servers_only
async def test_a_pod_that_never_started_is_evicted_at_once(api: Api) -> None:
    name = unique("pod")
    await api.create(PODS, a_pod(name), "default")
    eviction: Obj = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    await api.create_subresource(PODS, name, "eviction", eviction, "default")
    with pytest.raises(NotFound):
        await api.get(PODS, name, "default")


@pytest.mark.servers_only
async def test_a_service_account_gets_a_token_for_a_while(api: Api, namespace: str) -> None:
    account: Obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
    await api.create(SERVICEACCOUNTS, account, namespace)
    ask: Obj = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    answer = await api.create_subresource(SERVICEACCOUNTS, "robot", "token", ask, namespace)
    assert answer["status"]["token"].count(".") == 2
    assert answer["status"]["expirationTimestamp"]


# --- what only a network client has


@pytest.fixture
async def client(api: Api) -> KubeClient:
    if not isinstance(api, KubeClient):
        pytest.skip("not over a network")
    return api


@pytest.mark.servers_only
async def test_a_token_nobody_knows_is_unauthorized(client: KubeClient) -> None:
    from dataclasses import replace

    async with KubeClient(replace(client.connection, token="wrong", token_file=None)) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.list(PODS, "default")


@pytest.mark.servers_only
async def test_acting_for_another_is_seen_by_the_server(client: KubeClient) -> None:
    review: Obj = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    import msgspec

    answer = msgspec.json.decode(await client.as_user("bob", ["team-red"]).raw("POST", path, body=review))
    info = answer["status"]["userInfo"]
    assert info["username"] == "bob"
    assert set(info["groups"]) == {"team-red", "system:authenticated"}


@pytest.mark.servers_only
async def test_discovery_finds_what_is_served(client: KubeClient) -> None:
    found = await client.discover()
    assert {PODS, NODES, CONFIGMAPS, LEASES} <= set(found)


@pytest.mark.servers_only
async def test_the_version_is_told(client: KubeClient) -> None:
    version = await client.version()
    assert int(version["minor"].rstrip("+")) >= 30


@pytest.mark.servers_only
@pytest.mark.usefixtures("real_only")  # it answers 400
async def test_a_pod_that_runs_nowhere_has_said_nothing(client: KubeClient) -> None:
    name = unique("pod")
    with pytest.raises(NotFound):
        await _output(client, name)
    await client.create(PODS, a_pod(name), "default")
    try:
        assert await _output(client, name) == b""
    finally:
        await client.delete(PODS, name, "default", grace_period_seconds=0)


async def _output(client: KubeClient, pod: str) -> bytes:
    return b"".join([chunk async for chunk in client.logs(pod, "default")])


def _lease(name: str) -> Obj:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}
