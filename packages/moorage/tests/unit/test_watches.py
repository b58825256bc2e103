"""How many watches the parts of one process open, as `moor up` composes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.controllers.manager import run_operator
from moorage.model.names import MEMORY_KILLS, MEMORY_LABEL
from moorage.server.service import ServerService
from moorage.webhooks.app import Webhook
from moorage_kube.api import WatchEvent
from moorage_kube.informers import Informers
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

TURNS = 200  # of the loop; a FakeApi answers within some

Watch = tuple[str, str | None, str, str]  # resource, namespace, label selector, field selector


class CountingApi(FakeApi):
    """Counts watches by all that they ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: Counter[Watch] = Counter()

    def guarded(self, _guard: Any) -> CountingApi:
        return self

    async def watch(self, resource: Any, namespace: str | None = None, **more: Any) -> AsyncIterator[WatchEvent]:
        asked = (resource.plural, namespace, more.get("label_selector") or "", more.get("field_selector") or "")
        self.watches[asked] += 1
        async for event in super().watch(resource, namespace, **more):
            yield event


@pytest.mark.anyio
async def test_parts_of_one_process_watch_a_collection_once(tmp_path: Path) -> None:
    api, clock, shared = CountingApi(), FakeClock(), Informers()
    webhook = Webhook(api, clock=clock, informers=shared)
    service = ServerService(api, usage_db=tmp_path / "usage.db", page_token="page", clock=clock, informers=shared)
    works = (
        run_operator(api, identity="a", leader_elect=False, clock=clock, informers=shared),
        webhook.run(),
        service.run(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    await webhook.wait_synced()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert api.watches["nodes", None, "", ""] == 1  # eight apart
    twice = {watch for watch, number in api.watches.items() if number > 1}
    assert twice == {  # the webhook keeps less of what was killed for its memory than the operator
        ("pods", None, "", "status.phase=Failed"),
        ("pods", None, MEMORY_LABEL, ""),
        *((kind, None, MEMORY_KILLS, "") for kind in ("jobs", "replicasets", "statefulsets")),
    }
    assert api.watches.total() == 57  # 83 apart
