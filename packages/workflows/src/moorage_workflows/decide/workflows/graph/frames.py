"""The state of a template while it runs: its inputs, its children so far, its place in the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from moorage_workflows.decide.workflows.graph.coroutines import Future, Slots
from moorage_workflows.decide.workflows.graph.inputs import Inputs
from moorage_workflows.decide.workflows.graph.outcomes import Ended, Ready
from moorage_workflows.decide.workflows.graph.scopes import Seen
from moorage_workflows.model.workflow import Artifact, NodeRecord

Prefix = Literal["steps", "tasks"]


class Cut(Exception):
    """The run is shut down: nodes that have not started do not start. `message`: for the nodes that wait for
    it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Frame(Struct):
    """The state of a steps or DAG template that is running."""

    record: NodeRecord
    template: Mapping[str, Any]
    scope: str  # where names of templates are looked up
    depth: int
    prefix: Prefix
    inputs: Inputs
    slots: Slots
    is_exit: bool
    used: frozenset[str] | None  # names of the steps with used results; None: tags name them, so it may be any
    seen: dict[str, Seen] = field(default_factory=dict)
    daemons: list[str] = field(default_factory=list)  # names of pods
    is_failing: bool = False  # with failFast: no further child starts


class Awaited(Struct):
    """A pod, and the node that waits for its end or its readiness."""

    node: str  # id
    future: Future[Ended | Ready]
    is_daemon: bool
    is_exit: bool
    members: tuple[str, ...] = ()  # of a container set: ids of its containers' nodes


class Attempt(Struct, frozen=True, kw_only=True):
    """The values that one attempt of a template has from earlier ones."""

    local: Mapping[str, str]  # of its tags: the number of retries, and how the last one ended
    excluded: tuple[str, ...] = ()  # hosts where its pod may not run
    strategy: Mapping[str, Any] | None = None  # its `retryStrategy`; None: it is the only one
    first: NodeRecord | None = None  # of the attempts, where there were others


class Call(Struct, frozen=True, kw_only=True):
    """A template to run as a node."""

    name: str
    display_name: str
    step: Mapping[str, Any]  # with template, templateRef or inline, and arguments
    artifacts: Mapping[str, Artifact]  # of its arguments
    absent: frozenset[str] = frozenset()  # arguments whose value was never made
    frame: Frame | None = None
    scope: str = ""
    depth: int = 0
    parents: tuple[str, ...] = ()
    wants_result: bool = False
    is_exit: bool = False
    local: Mapping[str, str] = field(default_factory=dict)  # of its tags, without the inputs
