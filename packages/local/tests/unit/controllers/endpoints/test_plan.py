"""Which endpoints a Service has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.resources import SERVICES
from moorage_kube.testing import builders
from moorage_local.controllers.endpoints.plan import (
    Seen,
    SlicePlan,
    endpoints_object,
    find_port,
    is_managed,
    plan_slices,
)

NODES = {"n1": "", "n2": "east"}


def a_service(**spec: Any) -> dict[str, Any]:
    spec = {"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "ports": [{"port": 80}]} | spec
    return builders.an_object(SERVICES, "web", uid="s1", labels={"team": "x"}, spec=spec)


def a_pod(
    name: str, *, ready: bool = True, port: int = 8000, meta: Any = None, status: Any = None, **spec: Any
) -> dict[str, Any]:
    container = {"ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}]}
    addresses = {"podIPs": [{"ip": f"127.64.1.{sum(map(ord, name)) % 200}"}]}
    return builders.a_pod(
        name, uid=f"uid-{name}", node="n1", phase="Running", ready=ready, container=container,
        metadata=meta, spec=spec, status=addresses | (status or {}),
    )  # fmt: skip


def seen(*pods: Any, service: Any = None, slices: Any = ()) -> Seen:
    return Seen(service=service or a_service(), pods=pods, nodes=NODES, slices=slices)


def conditions_of(plan: SlicePlan) -> dict[str, tuple[bool, bool, bool]]:
    return {
        endpoint["targetRef"]["name"]: tuple(endpoint["conditions"].values())  # type: ignore[misc]
        for made in (*plan.create, *plan.update)
        for endpoint in made["endpoints"]
    }


def test_a_slice_as_the_real_controller_makes_it() -> None:
    pod = a_pod("a", nodeName="n2", hostname="a", subdomain="web")
    (made,) = plan_slices(
        seen(pod, service=a_service(ports=[{"name": "h", "port": 80, "targetPort": "http"}]))
    ).create
    name = made["metadata"].pop("name")
    assert name.startswith("web-")
    assert made == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": "web-",
            "namespace": "lab",
            "labels": {
                "team": "x",
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": "web",
                    "uid": "s1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["127.64.1.97"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "hostname": "a",
                "nodeName": "n2",
                "targetRef": {"kind": "Pod", "name": "a", "namespace": "lab", "uid": "uid-a"},
                "zone": "east",
            }
        ],
        "ports": [{"name": "h", "port": 8000, "protocol": "TCP"}],
    }


PUBLISH = {"publishNotReadyAddresses": True}
DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("pod", "service", "want"),
    [
        pytest.param(a_pod("a"), {}, (True, True, False), id="ready"),
        pytest.param(a_pod("a", ready=False), {}, (False, False, False), id="not ready"),
        pytest.param(a_pod("a", meta=DELETING), {}, (False, True, True), id="ending but still serving"),
        pytest.param(
            a_pod("a", ready=False),
            PUBLISH,
            (True, False, False),
            id="published, not ready",
        ),
        pytest.param(
            a_pod("a", meta=DELETING),
            PUBLISH,
            (True, True, True),
            id="published, ending",
        ),
        pytest.param(a_pod("a", status={"phase": "Succeeded"}), {}, None, id="over: left out"),
        pytest.param(a_pod("a", status={"podIPs": []}), {}, None, id="without an address: left out"),
        pytest.param(a_pod("a", nodeName="gone"), {}, None, id="on a node that is no more: left out"),
    ],
)
def test_conditions_of_an_endpoint(pod: Any, service: Any, want: Any) -> None:
    conditions = conditions_of(plan_slices(seen(pod, service=a_service(**service))))
    assert conditions == ({} if want is None else {"a": want})


def test_a_service_without_endpoints_has_one_empty_slice() -> None:
    (made,) = plan_slices(seen()).create
    assert (made["endpoints"], made["ports"]) == ([], [])
    assert plan_slices(seen(slices=[made])) == SlicePlan()


def test_pods_that_name_their_port_differently_are_in_slices_of_their_own() -> None:
    service = a_service(ports=[{"port": 80, "targetPort": "http"}])
    made = plan_slices(seen(a_pod("a"), a_pod("b", port=9000), service=service)).create
    assert sorted(endpoint_slice["ports"][0]["port"] for endpoint_slice in made) == [8000, 9000]


@pytest.mark.parametrize(
    ("port", "want"),
    [
        ({"port": 80}, 80),
        ({"port": 80, "targetPort": 81}, 81),
        ({"port": 80, "targetPort": "http"}, 8000),
        ({"port": 80, "targetPort": "http", "protocol": "UDP"}, None),
        ({"port": 80, "targetPort": "no"}, None),
    ],
)
def test_which_port_of_the_pod_is_meant(port: Any, want: Any) -> None:
    assert find_port(a_pod("a"), port) == want


def test_services_without_selector_and_external_names_are_left_alone() -> None:
    assert is_managed(a_service())
    assert not is_managed(a_service(selector={}))
    assert not is_managed(a_service(type="ExternalName"))


def test_endpoints_tell_ready_and_unready_addresses_apart() -> None:
    made = endpoints_object(seen(a_pod("a"), a_pod("b", ready=False), a_pod("c", meta=DELETING)))
    (subset,) = made["subsets"]
    assert [address["targetRef"]["name"] for address in subset["addresses"]] == ["a"]
    assert [address["targetRef"]["name"] for address in subset["notReadyAddresses"]] == ["b"]
    assert subset["ports"] == [{"port": 80, "protocol": "TCP"}]


def test_endpoints_of_a_headless_service_without_ports_have_addresses_all_the_same() -> None:
    made = endpoints_object(seen(a_pod("a"), service=a_service(ports=[], clusterIP="None")))
    assert "ports" not in made["subsets"][0]
    assert made["metadata"]["labels"]["service.kubernetes.io/headless"] == ""


worlds = st.lists(
    st.tuples(st.sampled_from("abcdefghijkl"), st.booleans(), st.sampled_from([8000, 9000]), st.booleans()),
    max_size=12,
    unique_by=lambda entry: entry[0],
)


@given(st.lists(worlds, min_size=1, max_size=5))
def test_after_any_changes_every_pod_stands_in_exactly_one_slice_and_nothing_is_left_to_do(
    steps: list[list[tuple[str, bool, int, bool]]],
) -> None:
    slices: dict[str, Any] = {}
    service = a_service(ports=[{"port": 80, "targetPort": "http"}])
    for world in steps:
        pods = [a_pod(name, ready=ready, port=port) for name, ready, port, _ in world]
        made = plan_slices(seen(*pods, service=service, slices=list(slices.values())), most=3)
        for endpoint_slice in (*made.create, *made.update):
            slices[endpoint_slice["metadata"]["name"]] = endpoint_slice
        for endpoint_slice in made.delete:
            del slices[endpoint_slice["metadata"]["name"]]
        again = plan_slices(seen(*pods, service=service, slices=list(slices.values())), most=3)
        assert again == SlicePlan()
        published = sorted(
            (endpoint["targetRef"]["name"], endpoint["conditions"]["ready"], made["ports"][0]["port"])
            for made in slices.values()
            for endpoint in made["endpoints"]
        )
        assert published == sorted((name, ready, port) for name, ready, port, _ in world)
        assert all(len(endpoint_slice["endpoints"]) <= 3 for endpoint_slice in slices.values())
        assert len(slices) >= 1
