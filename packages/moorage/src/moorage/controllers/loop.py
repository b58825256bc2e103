"""The control loop of our controllers: changes become keys, keys become passes, failures are tried again later.

A pass gets the key of an object and no event: a lost, duplicate or merged event changes nothing. Every few
minutes a full resync adds all objects. If it has to write, a change was missed by a defect: the loop repairs,
logs and counts this.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop, Reconcile
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import Key
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

WORKERS = 4
MANY_WORKERS = 16  # for kinds of which thousands may be due at one moment: a pass mostly waits for others to write

FULL_LOOK_SECONDS = 300.0  # between two full looks
KEYS_AT_ONCE = 100  # of a full look in each second, so that changes do not wait behind it

NAMESPACE_WORKERS = MANY_WORKERS - WORKERS  # at a time; the others are for other namespaces
FULL = timedelta(seconds=0.2)  # until the next try after the namespace was full

ToKeys = Callable[[Obj], Iterable[Key]]
"""Which objects a change of this one concerns."""


class _Pass(Struct):
    is_full_look: bool
    has_written: bool = False


_pass: ContextVar[_Pass | None] = ContextVar("pass", default=None)


def note_write() -> None:
    """Record that the current pass writes to the API server."""
    if (current := _pass.get()) is not None:
        current.has_written = True


def is_full_look() -> bool:
    """Whether the current pass was started by a full resync and not by a change."""
    current = _pass.get()
    return current is not None and current.is_full_look


def shared_out(reconcile: Reconcile[Key], is_full: Callable[[str], bool]) -> Reconcile[Key]:
    """Wrap `reconcile` so that a pass is delayed while its namespace uses its share of the workers, or
    `is_full`.
    """
    working: Counter[str] = Counter()

    async def in_turn(key: Key) -> timedelta | None:
        if working[key.namespace] >= NAMESPACE_WORKERS or is_full(key.namespace):
            return FULL
        working[key.namespace] += 1
        try:
            return await reconcile(key)
        finally:
            working[key.namespace] -= 1
            if not working[key.namespace]:
                del working[key.namespace]

    return in_turn


class LoopMetrics(Protocol):
    """The events of a loop that metrics count."""

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        """A pass ended. `outcome`: done, conflict, refused (by the API server) or failed (a defect)."""
        ...

    def healed(self, controller: str) -> None:
        """A full resync wrote something that no change had triggered."""
        ...

    def began(self, loops: Sequence[Loop], informers: Sequence[Informer]) -> None:
        """These loops and informers are running from now on, until `ended`."""
        ...

    def ended(self) -> None: ...


@dataclass
class Counters:
    """The number of passes and their seconds, by (controller, outcome)."""

    passes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    heals: dict[str, int] = field(default_factory=dict)  # by controller

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        key = (controller, outcome)
        self.passes[key] = self.passes.get(key, 0) + 1
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def healed(self, controller: str) -> None:
        self.heals[controller] = self.heals.get(controller, 0) + 1

    def began(self, loops: Sequence[Loop], informers: Sequence[Informer]) -> None: ...

    def ended(self) -> None: ...


class _Heard:
    """The objects of an informer, indexed by the keys that they lead to: for example runs by their Jobs."""

    def __init__(self, informer: Informer, to_keys: ToKeys) -> None:
        self.resource = informer.resource
        self._informer = informer
        self._to_keys = to_keys

    def get(self, name: str, namespace: str = "") -> Obj | None:
        if (obj := self._informer.get(name, namespace)) is not None:
            return obj
        key = Key(namespace, name)
        return next((obj for obj in self._informer.all() if key in self._to_keys(obj)), None)


class Loop(ControlLoop[Key]):
    """A control loop over objects that listens to informers. The caller runs the informers."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile[Key],
        *,
        clock: Clock,
        workers: int = WORKERS,
        metrics: LoopMetrics | None = None,
    ) -> None:
        def passed(outcome: str, seconds: float) -> None:
            if metrics is not None:
                metrics.passed(name, outcome, seconds)

        super().__init__(name, reconcile, workers=workers, clock=clock, passed=passed)
        self._metrics = metrics
        self._heard: list[tuple[Informer, ToKeys]] = []
        self._unheard: set[Key] = set()  # queued by a full look alone

    def hear(self, informer: Informer, to_keys: ToKeys) -> None:
        """Add the keys of each object that is created, changed or deleted; of both versions if it is changed.

        The informer of the objects themselves must be added first.
        """
        self.of = self.of or _Heard(informer, to_keys)
        self._heard.append((informer, to_keys))

        def changed(before: Obj | None, after: Obj | None) -> None:
            for obj in (before, after):
                if obj is not None:
                    for key in to_keys(obj):
                        self._unheard.discard(key)
                        self.queue.add(key)

        informer.on_change(changed)

    async def run(self) -> None:
        """Run until cancelled. The first pass waits until all informers have synced."""
        await wait_synced(*(informer for informer, _ in self._heard))
        looking = asyncio.create_task(self._look_fully(), name=f"full looks of {self.name}")
        try:
            await super().run()
        finally:
            looking.cancel()

    async def once(self, key: Key) -> None:
        """Run one pass; count it as healed if it wrote after a full resync without any change."""
        current = _Pass(is_full_look=key in self._unheard)
        self._unheard.discard(key)
        before = _pass.set(current)
        try:
            await super().once(key)
        finally:
            _pass.reset(before)
        if current.is_full_look and current.has_written and not self.queue.is_waiting(key):
            log.warning("a full resync repaired a missed change", extra={"controller": self.name, "key": str(key)})
            if self._metrics is not None:
                self._metrics.healed(self.name)

    async def _look_fully(self) -> None:
        while True:
            await self._clock.sleep(FULL_LOOK_SECONDS)
            keys = {key for informer, to_keys in self._heard for obj in informer.all() for key in to_keys(obj)}
            for number, key in enumerate(keys, start=1):
                if not self.queue.is_waiting(key):
                    self._unheard.add(key)
                    self.queue.add(key)
                if number % KEYS_AT_ONCE == 0:
                    await self._clock.sleep(1.0)
