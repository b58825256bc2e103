"""Writers and watchers while the API server is killed: what was acknowledged stays, and each event comes once.

Each writer creates, updates, patches and deletes ConfigMaps of its own, one after the other. A write is
acknowledged when its answer has come; one whose answer never came may have happened or not, and is looked up
afterwards. Every version of an object has a number of its own, so that what is found can be told from what was
there before.

A watcher lists, then watches from where it is, and resumes there when the watch breaks; it lists again only when
it is told that its place has expired. What it must have heard is then: each acknowledged write once, by an event
or by the list that bridged the gap in which it happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moorage_kube.errors import AlreadyExists, ApiError, Expired, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, Obj
from moorage_testing.killing import Trouble, until_so
from scenes.outcome import Outcome, tell

NAMESPACE = "kills"
WRITERS, KEYS_EACH = 6, 40
PAD = "x" * 200  # bytes of an object beside its number
PATIENCE_SECONDS = 120.0  # bounds a hang; nothing is said about time
PAUSE_SECONDS = (0.0, 2.0)  # between a restart and the next kill


@dataclass(slots=True, eq=False)
class Write:
    """One attempt. `number` is None for a deletion; `revision` 0 until known (of a deletion for ever)."""

    number: int | None
    is_acknowledged: bool = False
    revision: int = 0


@dataclass(slots=True)
class History:
    """All attempts on one object that may have happened, in order; the last acknowledged is at `acknowledged`."""

    writes: list[Write] = field(default_factory=lambda: [Write(None, True)])
    acknowledged: int = 0
    stored: Obj | None = None  # as the last answer had it

    def acknowledge(self, write: Write, stored: Obj | None) -> None:
        write.is_acknowledged = True
        write.revision = revision_of(stored) if stored is not None else 0
        self.acknowledged = self.writes.index(write)
        self.stored = stored


def revision_of(obj: Obj) -> int:
    return int(obj["metadata"]["resourceVersion"])


def number_of(obj: Obj | None) -> int | None:
    return int(obj["data"]["number"]) if obj is not None else None


class Bench:
    """What all writers, watchers and the auditor share."""

    def __init__(self, api: KubeClient, outcome: Outcome) -> None:
        self.api = api
        self.outcome = outcome
        self.histories = {
            f"w{writer}-k{key:02}": History() for writer in range(WRITERS) for key in range(KEYS_EACH)
        }
        self.numbers = iter(range(1, 10**9))
        self.newest = 0  # revision anybody was told of
        self.acknowledged = 0
        self.unanswered = 0

    def see(self, revision: int, floor: int, what: str) -> None:
        """Note a revision that was told after `floor` was: it must not be smaller."""
        if revision < floor:
            self.outcome.doubled.append(f"revision {revision} in {what} after {floor} was told")
        self.newest = max(self.newest, revision)


class Writer:
    """One client that writes to its own objects, never two writes at once."""

    def __init__(self, bench: Bench, at: int, trouble: Trouble) -> None:
        self._bench = bench
        self._names = [name for name in bench.histories if name.startswith(f"w{at}-")]
        self._chance = trouble.chance

    async def run(self) -> None:
        while True:
            await self._write(self._chance.choice(self._names))

    async def _write(self, name: str) -> None:
        bench, history = self._bench, self._bench.histories[name]
        is_deletion = history.stored is not None and self._chance.random() < 0.15
        write = Write(None if is_deletion else next(bench.numbers))
        history.writes.append(write)
        floor = bench.newest
        try:
            stored = await self._send(name, history.stored, write)
        except ApiError:
            bench.unanswered += 1
            await self._look_up(name, history, write)
            return
        history.acknowledge(write, stored)
        bench.acknowledged += 1
        if stored is not None:
            bench.see(write.revision, floor + 1, f"the answer to a write of {name}")

    async def _send(self, name: str, stored: Obj | None, write: Write) -> Obj | None:
        api, data = self._bench.api, {"number": str(write.number), "pad": PAD}
        if stored is None:
            labels = {"half": "even" if int(name[-2:]) % 2 == 0 else "odd"}
            made: Obj = {"metadata": {"name": name, "labels": labels}, "data": data}
            return await api.create(CONFIGMAPS, made, NAMESPACE)
        if write.number is None:
            await api.delete(CONFIGMAPS, name, NAMESPACE, uid=stored["metadata"]["uid"])
            return None
        if self._chance.random() < 0.5:
            return await api.update(CONFIGMAPS, stored | {"data": data})
        return await api.patch(CONFIGMAPS, name, {"data": data}, NAMESPACE)

    async def _look_up(self, name: str, history: History, write: Write) -> None:
        """Find out whether an unanswered write happened."""
        stored = await _answered(lambda: _get(self._bench.api, name))
        if number_of(stored) == write.number:
            history.acknowledge(write, stored)
            return
        history.writes.remove(write)
        if number_of(stored) != number_of(history.stored):
            self._bench.outcome.lost.append(
                f"{name}: number {number_of(history.stored)} was acknowledged,"
                f" number {write.number} tried, and stored is {number_of(stored)}"
            )
            history.writes.append(Write(number_of(stored)))
            history.acknowledge(history.writes[-1], stored)


class Watcher:
    """A client that lists and watches as an informer does, and notes every event that it is sent."""

    def __init__(self, bench: Bench, name: str, *, namespace: str | None, half: str | None = None) -> None:
        self.name = name
        self._bench = bench
        self._namespace = namespace
        self._selector = f"half={half}" if half else None
        self._half = half
        self.at = 0  # all up to this revision was heard
        self.objects: dict[str, Obj] = {}
        self.heard: dict[int, tuple[str, int | None]] = {}  # event by revision
        self.bridged: list[tuple[int, int]] = []  # (after, up to) of each list
        self.resumed = 0

    def wants(self, name: str) -> bool:
        return self._half is None or (self._half == "even") == (int(name[-2:]) % 2 == 0)

    async def run(self) -> None:
        must_list = True
        while True:
            try:
                if must_list:
                    await self._list()
                    must_list = False
                await self._follow()
                await asyncio.sleep(0.05)  # a server that ends watches at once
            except Expired:
                must_list = True
            except ApiError:
                await asyncio.sleep(0.05)
            self.resumed += 1

    async def _list(self) -> None:
        floor = max(self.at, self._bench.newest)
        listed = await self._bench.api.list(CONFIGMAPS, self._namespace, label_selector=self._selector)
        revision = int(listed.resource_version)
        self._bench.see(revision, floor, f"a list of {self.name}")
        self.objects = {obj["metadata"]["name"]: obj for obj in listed.items if _is_ours(obj)}
        self.bridged.append((self.at, revision))
        self.at = max(self.at, revision)

    async def _follow(self) -> None:
        stream = self._bench.api.watch(
            CONFIGMAPS, self._namespace, resource_version=str(self.at), label_selector=self._selector
        )
        async with contextlib.aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                self.hear(event.type, event.object)

    def hear(self, kind: str, obj: Obj) -> None:
        revision, doubled = revision_of(obj), self._bench.outcome.doubled
        if kind == "BOOKMARK":
            if revision < self.at:
                doubled.append(f"{self.name}: a bookmark at {revision} after {self.at}")
            self.at = max(self.at, revision)
            return
        if revision <= self.at:
            doubled.append(f"{self.name}: {kind} {obj['metadata']['name']} at {revision} after {self.at}")
        self.at = max(self.at, revision)
        self._bench.newest = max(self._bench.newest, revision)
        if not _is_ours(obj):
            return
        name = obj["metadata"]["name"]
        before = self.objects.get(name)
        if (kind == "ADDED") != (before is None):
            self._bench.outcome.lost.append(
                f"{self.name}: {kind} {name} at {revision}, and before it stood"
                f" {'nothing' if before is None else f'number {number_of(before)}'}"
            )
        if kind == "DELETED":
            self.objects.pop(name, None)
            self.heard[revision] = (name, None)
        else:
            self.objects[name] = obj
            self.heard[revision] = (name, number_of(obj))

    def missed(self) -> Iterator[str]:
        """Acknowledged writes that neither an event nor a list told."""
        for name, history in self._bench.histories.items():
            for write in history.writes if self.wants(name) else ():
                if not write.revision:
                    continue
                event = self.heard.get(write.revision)
                is_bridged = any(after < write.revision <= upto for after, upto in self.bridged)
                if event is None and not is_bridged:
                    yield f"{self.name}: no event of {name} number {write.number} at {write.revision}"
                elif event is not None and event != (name, write.number):
                    yield f"{self.name}: at {write.revision} {event}, acknowledged was {name} {write.number}"

    def differs(self, listed: dict[str, Obj]) -> list[str]:
        """Where its copy is not what the server lists."""
        wanted = {name: number_of(obj) for name, obj in listed.items() if self.wants(name)}
        mine = {name: number_of(obj) for name, obj in self.objects.items()}
        return [
            f"{self.name}: {name} is {mine.get(name)}, should be {wanted.get(name)}"
            for name in sorted(wanted.keys() | mine.keys())
            if mine.get(name) != wanted.get(name)
        ]


def _is_ours(obj: Obj) -> bool:
    return obj["metadata"].get("namespace") == NAMESPACE and obj["metadata"]["name"].startswith("w")


async def _get(api: KubeClient, name: str) -> Obj | None:
    try:
        return await api.get(CONFIGMAPS, name, NAMESPACE)
    except NotFound:
        return None


async def _answered(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer. Raises AssertionError when there is none for `PATIENCE_SECONDS`."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await ask()
        except ApiError as error:
            if time.monotonic() > ends:
                raise AssertionError(f"no answer for {PATIENCE_SECONDS:g} s: {error.message}") from error
            await asyncio.sleep(0.05)


async def audit(bench: Bench) -> dict[str, Obj]:
    """List all, and compare each object with what was acknowledged before, and tried since. Returns the list."""
    floor = bench.newest
    since = {name: history.acknowledged for name, history in bench.histories.items()}
    writes = {name: history.writes[since[name]] for name, history in bench.histories.items()}
    listed = await _answered(lambda: bench.api.list(CONFIGMAPS, NAMESPACE))
    bench.see(int(listed.resource_version), floor, "the list after a restart")
    stored = {obj["metadata"]["name"]: obj for obj in listed.items if _is_ours(obj)}
    for name, history in bench.histories.items():
        at = history.writes.index(writes[name])
        possible = {write.number for write in history.writes[at:]}
        if number_of(stored.get(name)) not in possible:
            bench.outcome.lost.append(
                f"{name}: number {writes[name].number} was acknowledged,"
                f" and the list after a restart has {number_of(stored.get(name))}"
            )
    return stored


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """Until so many kills, and so many acknowledged writes."""
    async with KubeClient.from_kubeconfig(trouble.cluster.kubeconfig) as api:
        bench = Bench(api, outcome)
        with contextlib.suppress(AlreadyExists):
            await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        watchers = [
            Watcher(bench, "watcher of the namespace", namespace=NAMESPACE),
            Watcher(bench, "watcher of all namespaces", namespace=None),
            Watcher(bench, "watcher of the even half", namespace=NAMESPACE, half="even"),
        ]
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(watcher.run()) for watcher in watchers]
            writing = [tasks.create_task(Writer(bench, at, trouble).run()) for at in range(WRITERS)]
            while trouble.total < kills:
                await asyncio.sleep(trouble.chance.uniform(*PAUSE_SECONDS))
                await _strike(trouble, bench)
                if trouble.total % 10 == 0:
                    tell(f"apiserver: {trouble.total} kills, {bench.acknowledged} writes")
            await until_so(lambda: bench.acknowledged >= objects)
            for task in writing:
                task.cancel()
            await asyncio.wait(writing)
            await _caught_up(bench, watchers)
            for task in watching:
                task.cancel()
    for watcher in watchers:
        outcome.lost += watcher.missed()
    outcome.objects = bench.acknowledged
    outcome.notes |= {
        "events": sum(len(watcher.heard) for watcher in watchers),
        "lists": sum(len(watcher.bridged) for watcher in watchers),
        "watches resumed": sum(watcher.resumed for watcher in watchers),
        "writes without an answer": bench.unanswered,
    }


async def _strike(trouble: Trouble, bench: Bench) -> None:
    """One kill, sometimes another while the server starts; then all that was acknowledged must be there."""
    await trouble.strike("localcluster")
    if trouble.chance.random() < 0.25:
        await asyncio.sleep(trouble.chance.uniform(0.0, 1.0))
        return  # the next kill may find it starting
    await audit(bench)


async def _caught_up(bench: Bench, watchers: list[Watcher]) -> None:
    """Wait until each watcher's copy is what the server lists; what then differs is told as stuck."""
    stored = await audit(bench)
    ends = time.monotonic() + PATIENCE_SECONDS
    while (
        wrong := [fault for watcher in watchers for fault in watcher.differs(stored)]
    ) and time.monotonic() < ends:
        await asyncio.sleep(0.1)
        stored = await audit(bench)
    bench.outcome.stuck += wrong
