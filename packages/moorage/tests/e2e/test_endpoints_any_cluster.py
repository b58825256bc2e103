"""EndpointSlices and Endpoints are the same on whichever cluster the environment chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import (
    ENDPOINTS,
    ENDPOINTSLICES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICEACCOUNTS,
    SERVICES,
    Obj,
)
from moorage_kube.testing import waiting

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("controllers")]

PATIENCE_SECONDS = 180.0  # bounds a hang
until = partial(waiting.until, patience=PATIENCE_SECONDS)


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    node: Obj = {"metadata": {"name": unique, "labels": {"topology.kubernetes.io/zone": "east"}}}
    await api.create(NODES, node)

    async def account() -> bool:
        try:
            await api.get(SERVICEACCOUNTS, "default", unique)
        except NotFound:
            return False
        return True

    await until("the namespace's service account", account)
    yield unique
    await api.delete(NAMESPACES, unique)
    await api.delete(NODES, unique)


async def make_pod(api: KubeClient, namespace: str, name: str, address: str, **spec: Any) -> None:
    container = {"name": "c", "image": "x:1", "ports": [{"name": "http", "containerPort": 8000}]}
    await api.create(
        PODS,
        {
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": namespace, "containers": [container], "terminationGracePeriodSeconds": 5} | spec,
        },
        namespace,
    )
    await tell(api, namespace, name, address, ready=True)


async def tell(
    api: KubeClient, namespace: str, name: str, address: str, *, ready: bool, phase: str = "Running"
) -> None:
    """Write the pod's status, as its kubelet would."""
    word, now = "True" if ready else "False", rfc3339(SYSTEM.now())
    conditions = [{"type": "Ready", "status": word, "lastTransitionTime": now}]
    status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    await api.patch(PODS, name, {"status": status}, namespace, subresource="status")


async def slices(api: KubeClient, namespace: str, service: str = "web") -> list[Obj]:
    selector = f"kubernetes.io/service-name={service}"
    return list((await api.list(ENDPOINTSLICES, namespace, label_selector=selector)).items)


async def readiness(api: KubeClient, namespace: str) -> dict[str, tuple[bool, bool, bool]]:
    return {
        endpoint["addresses"][0]: tuple(
            bool(endpoint["conditions"].get(one)) for one in ("ready", "serving", "terminating")
        )
        for one in await slices(api, namespace)
        for endpoint in one["endpoints"] or ()
    }


async def until_readiness(api: KubeClient, namespace: str, **want: Any) -> None:
    seen: Any = None

    async def read() -> bool:
        nonlocal seen
        seen = await readiness(api, namespace)
        return bool(seen == want)

    try:
        await until("the endpoints", read)
    except AssertionError as error:
        raise AssertionError(f"{seen} is not {want}") from error


async def test_a_service_has_a_slice_and_endpoints_of_its_pods(api, namespace):
    spec = {"selector": {"app": "web"}, "ports": [{"name": "h", "port": 80, "targetPort": "http"}]}
    service = await api.create(
        SERVICES, {"metadata": {"name": "web", "labels": {"team": "x"}}, "spec": spec}, namespace
    )

    async def empty() -> Obj | None:
        found = await slices(api, namespace)
        return found[0] if found else None

    first = await until("a slice of a service without pods", empty)
    assert not first["endpoints"]
    assert not first["ports"]

    await make_pod(api, namespace, "a", "10.1.2.3", hostname="a", subdomain="web")
    await until_readiness(api, namespace, **{"10.1.2.3": (True, True, False)})
    (one,) = await slices(api, namespace)
    meta = one["metadata"]
    assert meta["generateName"] == "web-"
    assert meta["labels"] == {
        "team": "x",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert meta["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": "web",
            "uid": service["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    pod = await api.get(PODS, "a", namespace)
    target = {"kind": "Pod", "name": "a", "namespace": namespace, "uid": pod["metadata"]["uid"]}
    assert one["addressType"] == "IPv4"
    assert one["ports"] == [{"name": "h", "port": 8000, "protocol": "TCP"}]
    assert one["endpoints"] == [
        {
            "addresses": ["10.1.2.3"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "hostname": "a",
            "nodeName": namespace,
            "targetRef": target,
            "zone": "east",
        }
    ]

    async def endpoints() -> Obj | None:
        found = await api.get(ENDPOINTS, "web", namespace)
        return found if found.get("subsets") else None

    found = await until("the Endpoints", endpoints)
    assert found["metadata"]["labels"] == {
        "team": "x",
        "endpoints.kubernetes.io/managed-by": "endpoint-controller",
    }
    assert found["subsets"] == [
        {
            "addresses": [{"ip": "10.1.2.3", "hostname": "a", "nodeName": namespace, "targetRef": target}],
            "ports": [{"name": "h", "port": 8000, "protocol": "TCP"}],
        }
    ]


async def test_endpoints_follow_what_becomes_of_pods(api, namespace):
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, namespace)
    for name, address in (("a", "10.1.2.3"), ("b", "10.1.2.4"), ("c", "10.1.2.5")):
        await make_pod(api, namespace, name, address)
    good = (True, True, False)
    await until_readiness(api, namespace, **{"10.1.2.3": good, "10.1.2.4": good, "10.1.2.5": good})
    await tell(api, namespace, "a", "10.1.2.3", ready=False)
    await api.delete(PODS, "b", namespace, grace_period_seconds=60)
    await tell(api, namespace, "c", "10.1.2.5", ready=False, phase="Succeeded")
    want = {"10.1.2.3": (False, False, False), "10.1.2.4": (False, True, True)}
    await until_readiness(api, namespace, **want)

    async def subset() -> bool:
        (found,) = (await api.get(ENDPOINTS, "web", namespace)).get("subsets") or [{}]
        return not found.get("addresses") and [one["ip"] for one in found["notReadyAddresses"]] == ["10.1.2.3"]

    await until("Endpoints without the pods that end", subset)
    await api.patch(SERVICES, "web", {"spec": {"publishNotReadyAddresses": True}}, namespace)
    await until_readiness(api, namespace, **{"10.1.2.3": (True, False, False), "10.1.2.4": (True, True, True)})
    await api.delete(PODS, "b", namespace, grace_period_seconds=0)
    await api.patch(PODS, "a", {"metadata": {"labels": {"app": "other"}}}, namespace)
    await until_readiness(api, namespace)


async def test_pods_whose_named_ports_differ_are_told_apart(api, namespace):
    spec = {"selector": {"app": "web"}, "clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}]}
    await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, namespace)
    await make_pod(api, namespace, "a", "10.1.2.3")
    other = {"name": "c", "image": "x:1", "ports": [{"name": "http", "containerPort": 9000}]}
    await make_pod(api, namespace, "b", "10.1.2.4", containers=[other])
    await make_pod(api, namespace, "none", "10.1.2.5", containers=[{"name": "c", "image": "x:1"}])

    async def ports() -> bool:
        found = await slices(api, namespace)
        told = {
            endpoint["addresses"][0]: [port["port"] for port in one["ports"] or ()]
            for one in found
            for endpoint in one["endpoints"] or ()
        }
        headless = all(one["metadata"]["labels"].get("service.kubernetes.io/headless") == "" for one in found)
        return told == {"10.1.2.3": [8000], "10.1.2.4": [9000], "10.1.2.5": []} and headless

    await until("a slice for each set of ports", ports)


async def test_a_service_without_selector_keeps_the_slices_that_somebody_gave_it(api, namespace):
    await api.create(SERVICES, {"metadata": {"name": "out"}, "spec": {"ports": [{"port": 80}]}}, namespace)
    given = {
        "metadata": {"name": "mine", "labels": {"kubernetes.io/service-name": "out"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"], "conditions": {"ready": True}}],
        "ports": [{"port": 80}],
    }
    await api.create(ENDPOINTSLICES, given, namespace)
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, namespace)

    async def other() -> bool:
        return bool(await slices(api, namespace))

    await until("the other service's slice", other)  # by then the controller has seen both
    (kept,) = await slices(api, namespace, "out")
    assert kept["metadata"]["name"] == "mine"
    assert kept["endpoints"][0]["addresses"] == ["10.9.9.9"]


async def test_endpoints_and_slices_go_with_their_service(api, namespace):
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await api.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec}, namespace)

    async def made() -> bool:
        return bool(await slices(api, namespace)) and bool((await api.list(ENDPOINTS, namespace)).items)

    await until("slice and Endpoints", made)
    await api.delete(SERVICES, "web", namespace)

    async def gone() -> bool:
        return not await slices(api, namespace) and not (await api.list(ENDPOINTS, namespace)).items

    await until("slice and Endpoints to go", gone)
