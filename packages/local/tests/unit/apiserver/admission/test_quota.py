"""Quotas: what objects take, that nothing more is let in than they allow, and what is given back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.clock import rfc3339
from moorage_kube.errors import AlreadyExists, Forbidden
from moorage_kube.meta import Key
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import CONFIGMAPS, JOBS, NAMESPACES, PODS, PVCS, SERVICES, Resource
from moorage_kube.testing import builders
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.server import ApiServer
from moorage_local.apiserver.types.schema import canonical_quantity
from moorage_local.controllers.catalogue import KNOWN, RESOURCEQUOTAS, Catalogue
from moorage_local.controllers.quota.controller import QuotaController
from moorage_local.controllers.quota.plan import Observed, plan
from moorage_local.informers import InformerSet
from moorage_local.quota import (
    Quantity,
    added,
    pod_amounts,
    read_amounts,
    scopes_match,
    total_usage,
    tracked,
    usage,
    write_amounts,
)
from moorage_local.storage.memory import MemoryStorage

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = Key("lab", "q")
WIDGETS = Resource("example.org", "v1", "widgets", "Widget")


def a_pod(name="a", cpu=None, phase="Pending", **spec):
    return builders.a_pod(name, image="x", requests={"cpu": cpu} if cpu else None, phase=phase, spec=spec)


def wants(cpu):
    return {"resources": {"requests": {"cpu": cpu}}}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({"containers": [wants("1"), wants("500m")]}, "1500m", id="containers together"),
        pytest.param({"containers": [wants("1")], "initContainers": [wants("3")]}, "3", id="a larger start"),
        pytest.param(
            {"containers": [wants("1")], "initContainers": [wants("1") | {"restartPolicy": "Always"}, wants("2")]},
            "3",
            id="a start beside a sidecar",
        ),
        pytest.param({"containers": [wants("1")], "overhead": {"cpu": "250m"}}, "1250m", id="overhead"),
        pytest.param({"containers": [wants("1")]} | wants("4"), "4", id="set for the pod"),
    ],
)
def test_a_pod_takes_what_it_needs_at_its_widest(spec, cpu):
    assert write_amounts(pod_amounts(spec, "requests")) == {"cpu": cpu}


@pytest.mark.parametrize(
    ("resource", "obj", "taken"),
    [
        pytest.param(PODS, a_pod(phase="Failed"), {"count/pods": "1"}, id="a pod that ended"),
        pytest.param(
            PODS,
            a_pod(cpu="1"),
            {"count/pods": "1", "pods": "1", "cpu": "1", "requests.cpu": "1"},
            id="a pod",
        ),
        pytest.param(JOBS, a_pod(), {"count/jobs.batch": "1"}, id="a job"),
        pytest.param(CONFIGMAPS, a_pod(), {"count/configmaps": "1", "configmaps": "1"}, id="a config map"),
        pytest.param(WIDGETS, a_pod(), {"count/widgets.example.org": "1"}, id="a custom object"),
        pytest.param(
            SERVICES,
            a_pod() | {"spec": {"type": "LoadBalancer", "ports": [{}, {}]}},
            {"count/services": "1", "services": "1", "services.nodeports": "2", "services.loadbalancers": "1"},
            id="a balancer",
        ),
        pytest.param(
            PVCS,
            a_pod() | {"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}},
            {
                "count/persistentvolumeclaims": "1",
                "persistentvolumeclaims": "1",
                "requests.storage": "1Gi",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
                "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
            },
            id="a claim",
        ),
    ],
)
def test_an_object_takes_by_every_name_a_quota_may_use(resource, obj, taken):
    found = usage(resource, obj, NOON)
    assert write_amounts(found) == dict(sorted(taken.items()))
    assert set(tracked(resource, found)) == set(found)


def test_a_pod_whose_time_to_end_is_over_is_not_charged():
    pod = a_pod(cpu="1")
    pod["metadata"] |= {"deletionTimestamp": rfc3339(NOON), "deletionGracePeriodSeconds": 30}
    quota = {"metadata": {}, "spec": {"hard": {"pods": "1"}}}
    seen = Observed(quota=quota, objects={PODS: [pod]}, now=NOON + timedelta(seconds=30))
    assert plan(seen).status == {"hard": {"pods": "1"}, "used": {"pods": "1"}}
    assert plan(seen).look_again_in == timedelta(seconds=1)
    later = Observed(quota=quota, objects={PODS: [pod]}, now=NOON + timedelta(seconds=31))
    assert plan(later).status == {"hard": {"pods": "1"}, "used": {"pods": "0"}}


@pytest.mark.parametrize(
    ("scope", "spec", "holds"),
    [
        ({"scopeName": "Terminating", "operator": "Exists"}, {"activeDeadlineSeconds": 0}, True),
        ({"scopeName": "NotTerminating", "operator": "Exists"}, {}, True),
        ({"scopeName": "BestEffort", "operator": "Exists"}, {"containers": [wants("1")]}, False),
        ({"scopeName": "NotBestEffort", "operator": "Exists"}, {"initContainers": [wants("1")]}, True),
        ({"scopeName": "PriorityClass", "operator": "Exists"}, {}, False),
        ({"scopeName": "PriorityClass", "operator": "DoesNotExist"}, {}, True),
        ({"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}, {"priorityClassName": "a"}, True),
        ({"scopeName": "PriorityClass", "operator": "NotIn", "values": ["a"]}, {"priorityClassName": "a"}, False),
        (
            {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"},
            {
                "affinity": {
                    "podAntiAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"podAffinityTerm": {"namespaceSelector": {}}}
                        ]
                    }
                }
            },
            True,
        ),
    ],
)
def test_a_scope_picks_its_pods_and_no_other_objects(scope, spec, holds):
    quota = {"spec": {"scopeSelector": {"matchExpressions": [scope]}}}
    assert scopes_match(quota, PODS, {"spec": spec}) is holds
    assert not scopes_match(quota, CONFIGMAPS, {"spec": spec})


@given(st.lists(st.sampled_from(["1", "250m", "1Gi", "1G", "1536Mi", "0", "3Ki", "1e3", "7"]), max_size=6))
def test_amounts_add_up_exactly_and_are_written_as_the_server_writes_them(texts):
    total = {}
    for text in texts:
        total = added(total, read_amounts({"x": canonical_quantity(text)}))
    if texts:
        assert total["x"].value == sum(map(parse_quantity, texts))
        assert 0 <= parse_quantity(str(total["x"])) - total["x"].value < 1  # binary forms have no fractions
        assert canonical_quantity(str(total["x"])) == str(total["x"])


def test_zero_takes_the_form_of_what_is_added():
    assert str(Quantity(Fraction(0)).plus(Quantity(Fraction(2**30), binary=True))) == "1Gi"


@given(st.lists(st.tuples(st.sampled_from(["Pending", "Running", "Failed"]), st.integers(1, 9)), max_size=9))
def test_what_is_used_is_what_the_pods_that_have_not_ended_take(pods):
    made = [a_pod(f"p{at}", cpu=str(cpu), phase=phase) for at, (phase, cpu) in enumerate(pods)]
    quota = {"spec": {"hard": {"requests.cpu": "1", "pods": "1", "count/pods": "1", "secrets": "1"}}}
    live = [cpu for phase, cpu in pods if phase != "Failed"]
    found = {name: int(one.value) for name, one in total_usage(quota, {PODS: made}, NOON).items()}
    assert found == {"requests.cpu": sum(live), "pods": len(live), "count/pods": len(pods)}


# --- let in and given back, by a server


@pytest.fixture
async def server():
    made = ApiServer(MemoryStorage())
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def api(server):
    client = server.client("admin")
    await client.create(NAMESPACES, {"metadata": {"name": "lab"}})
    return client


async def make_quota(api, hard, name="q"):
    quota = await api.create(
        RESOURCEQUOTAS, {"metadata": {"name": name, "namespace": "lab"}, "spec": {"hard": hard}}
    )
    quota["status"] = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    await api.update(RESOURCEQUOTAS, quota, subresource="status")


async def used_of(api, name="q"):
    return (await api.get(RESOURCEQUOTAS, name, "lab"))["status"]["used"]


async def try_pod(api, name, cpu="1"):
    pod = a_pod(name, cpu=cpu)
    try:
        await api.create(PODS, pod)
    except Forbidden as error:
        return error.message
    return None


@pytest.mark.anyio
async def test_many_at_once_get_no_more_than_the_quotas_allow(server, api):
    await make_quota(api, {"requests.cpu": "7", "pods": "50"})
    await make_quota(api, {"pods": "9"}, name="r")
    said = await asyncio.gather(*(try_pod(api, f"p{at}") for at in range(40)))
    assert sum(1 for one in said if one is None) == 7
    assert len((await api.list(PODS, "lab")).items) == 7
    assert await used_of(api) == {"requests.cpu": "7", "pods": "7"}
    assert await used_of(api, "r") == {"pods": "7"}
    refused = "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=7, limited: requests.cpu=7"
    assert all(one.endswith(refused) for one in said if one)
    assert not server.quotas.in_flight("lab")


@pytest.mark.anyio
async def test_somebody_who_writes_the_quota_meanwhile_loses_no_charge(api):
    await make_quota(api, {"pods": "10"})

    async def label():
        for at in range(20):
            await api.patch(RESOURCEQUOTAS, "q", {"metadata": {"labels": {"a": str(at)}}}, "lab")

    said, _ = await asyncio.gather(asyncio.gather(*(try_pod(api, f"p{at}") for at in range(25))), label())
    assert sum(1 for one in said if one is None) == 10
    assert await used_of(api) == {"pods": "10"}


@pytest.mark.anyio
async def test_a_dry_run_is_judged_and_not_charged(api):
    await make_quota(api, {"pods": "1"})
    await api.create(PODS, a_pod("dry"), dry_run=True)
    assert await used_of(api) == {"pods": "0"}
    await api.create(PODS, a_pod("wet"))
    with pytest.raises(Forbidden):
        await api.create(PODS, a_pod("dry"), dry_run=True)


def make_controller(server, clock=None):
    return QuotaController(
        server.client("system:kube-controller-manager"),
        InformerSet(server.client("system:kube-controller-manager")),
        clock or FakeClock(NOON),
        catalogue=Catalogue(KNOWN),
        in_flight=server.quotas.in_flight,
    )


@pytest.mark.anyio
async def test_what_was_charged_and_not_stored_is_given_back(server, api):
    await make_quota(api, {"pods": "5"})
    await api.create(PODS, a_pod("a"))
    with pytest.raises(AlreadyExists):
        await api.create(PODS, a_pod("a"))
    assert await used_of(api) == {"pods": "2"}
    await make_controller(server).reconcile(KEY)
    assert await used_of(api) == {"pods": "1"}


@pytest.mark.anyio
async def test_nothing_is_counted_anew_while_a_charge_is_under_way(server, api):
    await make_quota(api, {"pods": "5"})
    controller = make_controller(server)
    server.quotas._in_flight["lab"] = 1
    assert await controller.reconcile(KEY) is not None
    assert await used_of(api) == {"pods": "0"}


@pytest.mark.anyio
async def test_pods_that_end_give_back_what_they_took(server, api):
    await api.create(
        RESOURCEQUOTAS,
        {"metadata": {"name": "q", "namespace": "lab"}, "spec": {"hard": {"pods": "2", "requests.cpu": "2"}}},
    )
    manager = server.client("system:kube-controller-manager")
    informers = InformerSet(manager)
    controller = QuotaController(
        manager, informers, server.clock, catalogue=Catalogue(KNOWN), in_flight=server.quotas.in_flight
    )

    async def until_used(pods):
        async def is_used():
            status = (await api.get(RESOURCEQUOTAS, "q", "lab")).get("status") or {}
            return (status.get("used") or {}).get("pods") == pods

        await until(f"a quota with {pods} pods", is_used)

    running = [asyncio.create_task(informers.run()), asyncio.create_task(controller.loop.run())]
    try:
        await until_used("0")
        assert await try_pod(api, "a") is None
        assert await try_pod(api, "b") is None
        assert "exceeded quota" in await try_pod(api, "c")
        pod = await api.get(PODS, "a", "lab")
        await api.update(PODS, pod | {"status": {"phase": "Succeeded"}}, subresource="status")
        await until_used("1")
        await api.delete(PODS, "b", "lab", grace_period_seconds=0)
        await until_used("0")
        assert await try_pod(api, "c") is None
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
