"""The agent's state of one pod."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from moorage_kube.resources import Obj
from moorage_local.nodeagent.podfolder import Admission
from moorage_local.nodeagent.volumes import TokenRequest

MOUNT_EVENT_SECONDS = 120.0  # before an event says the same again; after an hour the API server forgets it

Problems = dict[str, tuple[str, str]]
"""Why containers wait: name → (reason, message)."""


@dataclass(slots=True, kw_only=True)
class PodState:
    """The state of one pod in memory.

    It begins when the agent first admits the pod or finds its folder, and ends when both its object and its
    folder are deleted. A new agent creates it again: data that must outlive the agent is in the pod's folder.
    """

    admission: Admission | None = None  # as in the folder
    mark: tuple[int, int] | None = None  # the shim's state that was last queued; None: the pod does not live
    has_ended: bool = False  # an admitted pod never comes back from this

    # starting
    problems: Problems = field(default_factory=dict)
    tries: int = 0  # failed since the last start
    mount_problem: str = ""  # last reported in an event
    mount_reported: float | None = None  # monotonic time of that
    tokens: dict[TokenRequest, tuple[str, datetime]] = field(default_factory=dict)  # with the time to replace it
    refreshed: float | None = None  # monotonic time at which its volumes were last brought up to date

    # publishing
    peak_written: float | None = None  # monotonic time of the last annotation of its peak memory
    hooks_failed: set[str] = field(default_factory=set)  # as reported in events
    sent: tuple[Obj, Obj] | None = None  # the status last sent, and as the API returned it

    # probing
    probing: dict[str, tuple[int, asyncio.Task[None]]] = field(default_factory=dict)  # container → attempt, task
    unready: set[str] = field(default_factory=set)
    unstarted: set[str] = field(default_factory=set)

    @property
    def is_watched(self) -> bool:
        """Whether reports of its shim matter."""
        return self.admission is not None or self.mark is not None

    def is_news(self, mount_problem: str, now: float) -> bool:
        """Whether to write an event that a volume cannot be mounted: the reason is new, or the last event is
        old.
        """
        is_old = self.mount_reported is None or now - self.mount_reported >= MOUNT_EVENT_SECONDS
        if mount_problem == self.mount_problem and not is_old:
            return False
        self.mount_problem, self.mount_reported = mount_problem, now
        return True

    def started(self, mark: tuple[int, int], now: float) -> None:
        """Record that the shim runs: earlier problems are over."""
        self.problems = {}
        self.tries = 0
        self.mount_problem = ""
        self.mount_reported = None
        self.mark = mark
        self.refreshed = now

    def stop_probing(self) -> None:
        for _, task in self.probing.values():
            task.cancel()
        self.probing.clear()
