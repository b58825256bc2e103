"""Runs that come and go leave nothing in any table of the control plane, whatever its class."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.resources import EVENTS, JOBS, PODS, Obj
from moorage_kube.testing import builders
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.server import ApiServer
from moorage_local.controllers.manager import ControllerManager
from moorage_local.scheduler.scheduler import Scheduler
from moorage_local.storage import Change, HistoryLimits, MemoryStorage, Record

pytestmark = pytest.mark.anyio
RUNS = 12
BOUNDED = {
    "BoundedCache._entries",  # its `most` entries: packages/kube/tests/unit/test_cache.py
    "Mirror._history",  # bytes, number and age: packages/local/tests/contract/test_storage.py
    "Mirror._times",
    "SchedulingQueue._timers",  # each falls out when it is due, in five minutes at most
    "SchedulingQueue._early",
}


DATA = (str, bytes, int, float, type, asyncio.Task, asyncio.Future, Record, Change)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def tables(*roots: object) -> Counter[str]:
    """How many entries each table of our objects holds, by class and attribute; reached from the roots."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[object] = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, DATA):
            continue
        seen.add(id(thing))
        if isinstance(thing, dict):
            if not {"kind", "metadata"} & thing.keys():  # objects of Kubernetes are data
                waiting += thing.values()
        elif isinstance(thing, (list, tuple, set, frozenset, deque)):
            waiting += thing
        elif type(thing).__module__.startswith("moorage_"):
            owned = dict(getattr(thing, "__dict__", {}))
            for kind in type(thing).__mro__:
                slots = getattr(kind, "__slots__", ())
                owned |= {name: getattr(thing, name, None) for name in ([slots] if type(slots) is str else slots)}
            for name, value in owned.items():
                if isinstance(value, (dict, set, list, deque)):
                    found[f"{type(thing).__name__}.{name}"] += len(value)
                waiting.append(value)
        elif callable(thing) and getattr(thing, "__self__", None) is not None:
            waiting.append(thing.__self__)
    return found


def a_job(name: str) -> Obj:
    return builders.a_job(name, namespace="default", image="localhost/host", command=["true"])


async def test_runs_that_come_and_go_leave_nothing_in_any_table(tmp_path: Path) -> None:
    storage = MemoryStorage(limits=HistoryLimits(events=100))
    server = ApiServer(storage, tokens={})
    await server.start()
    api = server.client("system:kube-controller-manager")
    manager = ControllerManager(
        api, volumes_folder=tmp_path / "volumes", ca_pem="CERTIFICATE", node_grace_seconds=3600
    )
    scheduler = Scheduler(server.client("system:kube-scheduler"))
    work = [asyncio.create_task(manager.run()), asyncio.create_task(scheduler.run())]
    await manager.ready.wait()

    async def come_and_go(batch: int) -> None:
        names = [f"run-{batch}-{number}" for number in range(RUNS)]
        for name in names:
            await api.create(JOBS, a_job(name))

        async def started() -> bool:
            return len((await api.list(PODS, "default")).items) == RUNS

        async def gone() -> Any:
            return not (await api.list(PODS, "default")).items and not (await api.list(JOBS, "default")).items

        await until("pods of every run", started)
        for number, name in enumerate(names):
            if number % 2:  # half of them end, half are deleted while they wait
                for pod in (await api.list(PODS, "default", label_selector=f"job-name={name}")).items:
                    await api.patch(
                        PODS,
                        pod["metadata"]["name"],
                        {"status": {"phase": "Succeeded"}},
                        "default",
                        subresource="status",
                    )

        async def ended() -> bool:
            jobs = (await api.list(JOBS, "default")).items
            return sum(bool((job.get("status") or {}).get("completionTime")) for job in jobs) == RUNS // 2

        await until("the end of half of them", ended)
        for name in names:
            await api.delete(JOBS, name, "default", propagation="Background")
        await until("the end of all", gone)
        for event in (await api.list(EVENTS, "default")).items:
            await api.delete(EVENTS, event["metadata"]["name"], "default")

    async def settled() -> Counter[str]:
        return tables(server, manager, scheduler)

    await come_and_go(0)
    await asyncio.sleep(0)
    before = await settled()
    assert before["Mirror.records"] > 0

    for batch in (1, 2):
        await come_and_go(batch)

    async def nothing_more() -> bool:
        return not grown(before, await settled())

    try:
        await until("tables as before", nothing_more, patience=180)
    except AssertionError:
        assert grown(before, await settled()) == {}
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await server.stop()


def grown(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """Tables that hold more than before, by half a batch or more: less may be what is under way."""
    return {
        name: (before[name], count)
        for name, count in after.items()
        if name not in BOUNDED and count >= before[name] + RUNS // 2
    }
