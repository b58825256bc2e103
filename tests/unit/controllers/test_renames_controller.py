"""Objects of the last release get the new names in the store, soon after the operator starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorage.apimachinery.informer import wait_synced
from moorage.apimachinery.meta import Key
from moorage.controllers.renames.controller import RenamesController
from moorage.model.workspace import WORKSPACES
from moorage.testing.clock import FakeClock
from moorage.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


def a_workspace(name: str, **schedule: str) -> Any:
    return {"metadata": {"name": name, "namespace": "lab"}, "spec": {"type": "jupyterlab", "schedule": schedule}}


async def test_both_names_are_written_once_and_nothing_else_is_touched() -> None:
    api = FakeApi()
    api.put(WORKSPACES, a_workspace("old", start="0 8 * * *", timezone="Asia/Tokyo"))
    api.put(WORKSPACES, a_workspace("new", timeZone="Europe/Berlin"))
    api.put(WORKSPACES, a_workspace("neither", start="0 8 * * *"))
    controller = RenamesController(api, WORKSPACES, clock=FakeClock())
    tasks = [asyncio.create_task(informer.run()) for informer in controller.informers]
    await wait_synced(*controller.informers)
    for name in ("old", "new", "neither", "gone"):
        assert await controller.reconcile(Key("lab", name)) is None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    specs = {obj["metadata"]["name"]: obj["spec"]["schedule"] for obj in (await api.list(WORKSPACES)).items}
    assert specs == {
        "old": {"start": "0 8 * * *", "timezone": "Asia/Tokyo", "timeZone": "Asia/Tokyo"},
        "new": {"timezone": "Europe/Berlin", "timeZone": "Europe/Berlin"},
        "neither": {"start": "0 8 * * *"},
    }
    assert sorted(call.name for call in api.calls if call.verb == "patch") == ["new", "old"]
