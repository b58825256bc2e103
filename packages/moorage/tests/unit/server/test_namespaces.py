"""What is kept of a namespace when it is created anew: who sees it, and what is counted against whom."""

from __future__ import annotations

import json

import msgspec
import pytest

from moorage.api.maps import NewItem
from moorage.decide.maps.leasing import Policy
from moorage.decide.usage.intervals import Interval
from moorage.server.namespaces import by_namespace, is_too_old, records_since
from moorage_kube.clock import rfc3339
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.recreatednamespace import ADA, LATER, RecreatedNamespace

pytestmark = pytest.mark.anyio

READS = (
    "/api/v1/maps", "/api/v1/maps/lab", "/api/v1/maps/lab/old-squares", "/api/v1/maps/lab/old-squares/items",
    "/maps", "/maps/lab/old-squares", "/maps/lab/old-squares/items",
)  # fmt: skip


@pytest.fixture
async def old(site):
    """A map of a namespace that was created at noon."""
    async with site.running():
        old = RecreatedNamespace(site, READS)
        queue = site.service.queue
        stored = await queue.create_map(
            namespace="lab", name="old-squares", owner="eve", policy=Policy(), request="r"
        )
        await queue.add_items(stored.map.id, [NewItem(value=msgspec.Raw(b'"old-value"'))])
        yield old


async def test_a_member_of_the_new_namespace_sees_nothing_that_is_older(old):
    assert len(await old.seen()) == len(READS)
    old.namespace(LATER)
    assert await old.seen() == set()


async def test_an_administrator_of_all_namespaces_sees_it_still(old):
    old.namespace(LATER)
    old.site.api.readers |= {("ada", None)}
    assert len(await old.seen()) == len(READS)


async def test_an_annotation_gives_a_restored_namespace_its_records(old):
    old.namespace(LATER, **{"moorage.dev/records-since": rfc3339(NOON)})
    assert len(await old.seen()) == len(READS)
    old.namespace(LATER, **{"moorage.dev/records-since": "noon"})
    assert await old.seen() == set()


async def test_a_map_of_the_new_namespace_takes_the_name_and_the_quota_of_the_old(old):
    old.namespace(LATER)
    body = json.dumps({"name": "old-squares", "request": "r"}).encode()
    headers = ADA | {"content-type": "application/json"}
    made = await old.site.ask("/api/v1/maps/lab", method="POST", headers=headers, body=body, token=False)
    assert made.status == 201
    items = await old.site.ask("/api/v1/maps/lab/old-squares/items", headers=ADA, token=False)
    assert items.json["items"] == []
    stored = await old.service.queue.read(lambda store: (store._used("lab"), store.list_maps()))
    assert (stored[0].maps, stored[0].items) == (1, 0)
    moved = f"lab@{LATER.timestamp() * 1000:.0f}"
    assert [each.namespace for each in stored[1]] == [moved, "lab"]
    for path in ("/maps", "/glance/work"):
        assert ">eve<" not in (await old.site.ask(path, headers=ADA, token=False)).text
    assert (await old.site.ask(f"/maps/{moved}/old-squares", headers=ADA, token=False)).status == 404


@pytest.mark.parametrize("is_administrator", [False, True])
async def test_maps_of_a_namespace_that_is_gone_are_on_the_pages_of_administrators_alone(old, is_administrator):
    await old.site.api.delete(NAMESPACES, "lab")
    old.site.api.readers |= {("ada", None)} if is_administrator else set()
    assert (">eve<" in (await old.site.ask("/maps", headers=ADA, token=False)).text) is is_administrator
    page = await old.site.ask("/maps/lab/old-squares", headers=ADA, token=False)
    assert page.status == (200 if is_administrator else 404)


@pytest.mark.parametrize("path", ["/api/v1/maps/lab/old-squares", "/api/v1/jobs/lab/old-train/records"])
async def test_a_member_deletes_nothing_that_is_older(old, path):
    old.namespace(LATER)
    answer = await old.site.ask(path, method="DELETE", headers=ADA, token=False)
    assert answer.status in (200, 404)
    assert await old.service.queue.read(lambda store: store.find_map("lab", "old-squares")) is not None


def an_interval(**fields):
    known = {
        "pod_uid": "p", "namespace": "lab", "pod": "old-train-x", "run": "old-train", "attempt": 1, "owner": "eve",
        "node": "n1", "gpu_type": "a100", "gpus": 1, "cpu_milli": 1000, "memory_bytes": 1, "started_at": NOON,
        "ended_at": None, "last_seen_at": NOON,
    }  # fmt: skip
    return Interval(**known | fields)


async def test_use_of_the_old_namespace_is_not_that_of_the_new(old):
    api, mine = old.site.api, an_interval(pod_uid="q", started_at=LATER)
    assert await by_namespace(api, [an_interval(), mine]) == [an_interval(), mine]
    old.namespace(LATER)
    assert await by_namespace(api, [an_interval(), mine]) == [an_interval(namespace="lab (deleted)"), mine]
    other = an_interval(namespace="gone")
    assert await by_namespace(api, [other]) == [other]


async def test_many_namespaces_are_read_by_one_request():
    api = FakeApi()
    for number in range(30):
        created = rfc3339(LATER if number % 2 else NOON)
        api.put(NAMESPACES, {"metadata": {"name": f"team-{number}", "creationTimestamp": created}})
    intervals = [an_interval(namespace=f"team-{number}") for number in range(40)]
    shown = await by_namespace(api, intervals)
    assert [each.namespace for each in shown] == [
        f"team-{number} (deleted)" if number < 30 and number % 2 else f"team-{number}" for number in range(40)
    ]
    assert [(call.verb, call.resource) for call in api.calls] == [("list", "namespaces")]


@pytest.mark.parametrize("path", ["/maps", "/api/v1/maps"])
async def test_maps_of_many_namespaces_read_none_of_them_alone(old, path):
    for number in range(20):
        name = f"team-{number}"
        old.site.api.put(NAMESPACES, {"metadata": {"name": name, "creationTimestamp": rfc3339(NOON)}})
        old.site.api.readers |= {("ada", name)}
        await old.service.queue.create_map(namespace=name, name="m", owner="ada", policy=Policy(), request="r")
    old.site.api.calls.clear()
    assert "team-19" in (await old.site.ask(path, headers=ADA, token=False)).text
    assert {call.verb for call in old.site.api.calls if call.resource == "namespaces"} == {"list"}


async def test_without_a_namespace_rights_alone_decide(site):
    assert await records_since(site.api, "none") is None
    assert await records_since(None, "lab") is None
    assert not is_too_old(NOON, None)
    assert is_too_old(None, NOON)
