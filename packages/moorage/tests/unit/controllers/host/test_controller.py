"""Two Ingresses for one host, of two namespaces: the younger is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from moorage.controllers.base import Shared
from moorage.controllers.host.controller import HostController
from moorage_kube.meta import Key
from moorage_kube.resources import EVENTS, INGRESSES, NAMESPACES
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.builders import keyed
from moorage_testing.controllers import running

pytestmark = pytest.mark.anyio

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def an_ingress(namespace: str, *hosts: str, created: str = EARLY) -> Any:
    meta = {"name": "web", "namespace": namespace, "uid": f"u-{namespace}", "creationTimestamp": created}
    return {"metadata": meta, "spec": {"rules": [{"host": host} for host in hosts]}}


async def events_about(*ingresses: Any, order: Iterable[str] = ("a", "b")) -> list[tuple[str, str]]:
    """(namespace, message) of the Events after each namespace's Ingress was looked at, in this order."""
    api = FakeApi()
    for name, guard in (("a", "enabled"), ("b", "enabled"), ("c", None)):
        api.put(NAMESPACES, an_object(NAMESPACES, name, labels=keyed(guard=guard)))
    for ingress in ingresses:
        api.put(INGRESSES, ingress)
    async with running(HostController(Shared(api=api, clock=FakeClock()))) as controller:
        for namespace in order:
            await controller.reconcile(Key(namespace, "web"))
    events = (await api.list(EVENTS)).items
    assert all(event["involvedObject"]["kind"] == "Ingress" and event["type"] == "Warning" for event in events)
    return sorted((event["metadata"]["namespace"], event["message"]) for event in events)


MESSAGE = (
    "shop.org belongs to namespace a: its Ingress web was the first with this host; remove it from this Ingress"
)


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_the_younger_ingress_of_another_namespace_is_told(order):
    younger = an_ingress("b", "Shop.org.", "other.org", created=LATE)
    assert await events_about(an_ingress("a", "shop.org"), younger, order=order) == [("b", MESSAGE)]


async def test_of_two_of_one_second_the_second_by_name_is_told():
    assert await events_about(an_ingress("b", "shop.org"), an_ingress("a", "shop.org")) == [("b", MESSAGE)]


@pytest.mark.parametrize(
    "ingresses",
    [
        [],
        [an_ingress("a", "shop.org"), an_ingress("b", "other.org", created=LATE)],
        [an_ingress("a", ""), an_ingress("b", "", created=LATE)],
        [an_ingress("a", "shop.org"), an_ingress("c", "shop.org", created=LATE)],
    ],
    ids=["gone", "another host", "no host", "not guarded"],
)
async def test_nothing_else_is_told(ingresses):
    assert await events_about(*ingresses, order="abc") == []


async def test_the_younger_is_looked_at_also_when_the_older_comes_to_be_known_later():
    api = FakeApi()
    api.put(INGRESSES, an_ingress("b", "shop.org", created=LATE))
    async with running(HostController(Shared(api=api, clock=FakeClock()))) as controller:
        assert controller._sharing(an_ingress("a", "shop.org")) == {Key("a", "web"), Key("b", "web")}
