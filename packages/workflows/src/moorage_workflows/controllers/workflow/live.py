"""A run in memory: its graph, and the controller's state of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from moorage_workflows.controllers.workflow.pendingpods import PendingPods
from moorage_workflows.decide.workflows.graph.events import Controls, CreatePod, Locks
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.model.workflow import Resume


class Live(Struct):
    """A run in memory. `held`: pods that the API server refused for now, such as by a quota."""

    run: Run
    uid: str
    pending: PendingPods
    changed: set[str]  # names of pods to look at
    held: dict[str, CreatePod] = field(default_factory=dict)
    held_until: float = 0.0
    reported_at: float = -1e9
    reported: Mapping[str, Any] | None = None
    deletions: dict[str, datetime] = field(default_factory=dict)  # by `podGC`: name of a pod → when
    granted: list[Locks] = field(default_factory=list)
    resumed: list[Resume] = field(default_factory=list)  # done, and still asked for by the object
    controls: Controls = field(default_factory=Controls)
