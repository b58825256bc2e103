from __future__ import annotations

import asyncio
import contextlib

import pytest

from moorage_kube.informer import index_by_label
from moorage_kube.informers import Informers
from moorage_kube.resources import NODES, PODS
from moorage_local.testing.fakeapi import FakeApi


def by_zone(obj):
    return [obj["metadata"].get("labels", {}).get("zone", "")]


def by_name(obj):
    return [obj["metadata"]["name"]]


def test_a_collection_has_one_informer_and_another_has_another():
    informers, api = Informers(), FakeApi()
    nodes = informers.of(api, NODES)
    assert informers.of(api, NODES) is nodes
    others = {
        informers.of(api, PODS),
        informers.of(api, PODS, "lab"),
        informers.of(api, PODS, label_selector="a"),
        informers.of(api, PODS, field_selector="a=b"),
        informers.of(api, NODES, keep=dict),
    }
    assert len(others | {nodes}) == 6


def test_indexes_are_put_together_and_one_name_means_one_index():
    informers, api = Informers(), FakeApi()
    pods = informers.of(api, PODS, indexes={"run": index_by_label("run")})
    assert informers.of(api, PODS, indexes={"run": index_by_label("run"), "name": by_name}) is pods
    assert pods.index("name") is by_name
    with pytest.raises(ValueError, match="another index 'run'"):
        informers.of(api, PODS, indexes={"run": index_by_label("map")})
    with pytest.raises(ValueError, match="another index 'name'"):
        informers.of(api, PODS, indexes={"name": by_zone})


@pytest.mark.anyio
async def test_the_next_owner_goes_on_when_the_first_is_cancelled():
    api = FakeApi()
    nodes = Informers().of(api, NODES)
    first, second = asyncio.create_task(nodes.run()), asyncio.create_task(nodes.run())
    await nodes.synced.wait()
    assert sum(call.verb == "list" for call in api.calls) == 1
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    heard = asyncio.Event()
    nodes.on_change(lambda before, after: heard.set())
    api.put(NODES, {"metadata": {"name": "a"}})
    await heard.wait()
    assert nodes.get("a") is not None
    second.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await second
