"""The control loop of our controllers: changes become keys, keys become passes, failures are tried again later.

A pass is told which object to look at, never what happened to it: a lost, doubled or merged event changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from moorage.apimachinery.controlloop import ControlLoop, Reconcile
from moorage.apimachinery.informer import Informer, wait_synced
from moorage.apimachinery.meta import Key
from moorage.apimachinery.resources import Obj
from moorage.clock import Clock

WORKERS = 4
MANY_WORKERS = 16  # for kinds of which thousands may be due at one moment: a pass mostly waits for others to write

ToKeys = Callable[[Obj], Iterable[Key]]
"""Which objects a change of this one concerns."""


class LoopMetrics(Protocol):
    """What a loop tells whoever counts."""

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        """A pass ended; `outcome` is done, conflict, refused (the API said no) or failed (a defect)."""
        ...

    def began(self, loops: Sequence[Loop], informers: Sequence[Informer]) -> None:
        """These work from now on, until `ended`."""
        ...

    def ended(self) -> None: ...


@dataclass
class Counters:
    """Passes and seconds by (controller, outcome)."""

    passes: dict[tuple[str, str], int] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        key = (controller, outcome)
        self.passes[key] = self.passes.get(key, 0) + 1
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds

    def began(self, loops: Sequence[Loop], informers: Sequence[Informer]) -> None: ...

    def ended(self) -> None: ...


class Loop(ControlLoop[Key]):
    """A control loop over objects that hears from informers; these are run by whoever made them."""

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
        self._informers: list[Informer] = []

    def hear(self, informer: Informer, to_keys: ToKeys) -> None:
        """Look at `to_keys` of every object that appears, changes or goes; of both states when it changes."""
        self._informers.append(informer)

        def changed(before: Obj | None, after: Obj | None) -> None:
            for obj in (before, after):
                if obj is not None:
                    for key in to_keys(obj):
                        self.queue.add(key)

        informer.on_change(changed)

    async def run(self) -> None:
        """Work until cancelled; nothing is looked at before every informer has synced."""
        await wait_synced(*self._informers)
        await super().run()
