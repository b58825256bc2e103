"""The events that a run of a workflow gets, and the decisions that it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from moorage_workflows.model.workflow import Artifact, MetricPoint, NodeRecord, StepReport, WorkflowRecord


class ContainerSeen(Struct, frozen=True, kw_only=True):
    """The state of a container of a pod. `exit_code`: None until it has ended; times are RFC 3339."""

    name: str
    is_running: bool = False
    exit_code: int | None = None
    reason: str = ""  # of its end
    message: str = ""
    started_at: str = ""
    finished_at: str = ""


class PodSeen(Struct, frozen=True, kw_only=True):
    """A step's pod, at one moment.

    `is_ended`: all its processes have ended, and none will start. `exit_code`: of the main container, if it
    has one. `stopped_at`: when it was asked to stop; None: it was not, or the time is unknown. `is_watched`:
    its main container runs under a script of ours, or is ours. `disrupted`: why its node took it away
    (preempted, drained, lost), even if the main container had ended well before; empty: it did not.
    `failure`: the reason of its end, if that is not the main container's own exit code: a deadline, an
    eviction. `broken`: why a container other than the main one failed, so that inputs or outputs are
    missing.
    """

    name: str
    is_running: bool = False
    is_ready: bool = False
    is_ended: bool = False
    is_deleted: bool = False  # it has a deletion timestamp
    is_stuck: bool = False  # it has ended, but a helper container does not end by itself
    exit_code: int | None = None
    stopped_at: datetime | None = None
    is_watched: bool = False
    disrupted: str = ""
    failure: str = ""
    broken: str = ""
    waiting: str = ""  # why it does not run yet
    reason: str = ""  # of the main container's end: Error, OOMKilled
    message: str = ""
    host: str = ""
    address: str = ""
    started_at: str = ""
    finished_at: str = ""
    resources_seconds: Mapping[str, int] = field(default_factory=dict)
    report: StepReport | None = None
    containers: tuple[ContainerSeen, ...] = ()  # without those that carry inputs and outputs

    @property
    def has_run(self) -> bool:
        """Whether a process of the pod runs or has run."""
        return self.is_running or self.exit_code is not None


class CreatePod(Struct, frozen=True, kw_only=True):
    """A pod to create. The node's record must be saved before."""

    record: NodeRecord
    template: Mapping[str, Any]
    artifacts: Mapping[str, Artifact]
    wants_result: bool
    longest: timedelta | None  # that it may run; None: for ever
    ends_by: datetime | None  # the first deadline of its step, workflow and retries; None: there is none
    excluded_hosts: tuple[str, ...]

    def deadline_seconds(self, now: datetime) -> int | None:
        """The pod's own `activeDeadlineSeconds`, when it is created at this moment; None: it has no limit.

        It limits the pod while the operator is down. It is never shorter than the remaining time, so that a
        running operator ends the pod first.
        """
        limits = [self.longest] if self.longest is not None else []
        limits += [self.ends_by - now] if self.ends_by is not None else []
        return max(math.ceil(min(limits).total_seconds()), 1) if limits else None


class EndPod(Struct, frozen=True):
    """A pod to end before its work is done."""

    pod: str


class ConfigMapValue(Struct, frozen=True):
    """A query: the value of a key of a ConfigMap of the workflow's namespace. Answer: text, or a Refusal."""

    name: str
    key: str


class Recall(Struct, frozen=True):
    """A query: outputs that were remembered under a key. Answer: Outputs, or None."""

    cache: str
    key: str
    max_age_seconds: int | None


class Locks(Struct, frozen=True):
    """A query: may this node hold these locks? Answer: None, when it does. It holds them until it has ended."""

    node: str  # id
    priority: int
    created_at: str
    locks: tuple[str, ...]
    is_exit: bool = False  # of an exit handler, which continues after Stop and the deadline


Query = ConfigMapValue | Recall | Locks


class Refusal(Struct, frozen=True):
    """An answer that ends a step. `message`: the reason."""

    message: str


class Remember(Struct, frozen=True):
    """Outputs to store in the cache under a key (memoization)."""

    memo: Recall
    node: NodeRecord


class Decision(Struct, frozen=True, kw_only=True):
    """The actions to carry out now, in this order. Doing a part of it, or doing it twice, does no harm."""

    remember: tuple[Remember, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()  # to save
    workflow: WorkflowRecord | None = None  # to save with them, when it changed
    metrics: tuple[MetricPoint, ...] = ()  # to save with them: values of metrics, each once
    create: tuple[CreatePod, ...] = ()
    end: tuple[EndPod, ...] = ()
    release: tuple[str, ...] = ()  # pods whose end is recorded: they may go
    unlock: tuple[str, ...] = ()  # ids of nodes that hold no lock any more
    queries: tuple[Query, ...] = ()
    look_again_in: timedelta | None = None


class Controls(Struct, frozen=True):
    """The controls in the Workflow's object for an active run."""

    shutdown: str = ""  # "", Stop, Terminate
    is_suspended: bool = False
