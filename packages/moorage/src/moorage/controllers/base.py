"""Base class of the operator's controllers: shared dependencies, informers and the control loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Protocol

from msgspec import Struct

from moorage.controllers.loop import MANY_WORKERS, WORKERS, Loop, LoopMetrics, shared_out
from moorage.decide.runs.restarts import LOST_AFTER
from moorage.evaluator.pool import Evaluation, InPlace
from moorage.notify.outbound import Outbound
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.informer import Index, Informer
from moorage_kube.informers import Informers
from moorage_kube.meta import Key
from moorage_kube.remote.events import EventRecorder
from moorage_kube.resources import Obj, Resource

COMPONENT = "moorage-operator"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The dependencies that all controllers of one operator share.

    `lost_after`: how long a node may be silent before its runs restart. `evaluation`: where users' expressions
    are evaluated. `outbound`: the allowed targets of heartbeats and of workflows' notifications.
    """

    api: Api
    clock: Clock
    informers: Informers = field(default_factory=Informers)
    metrics: LoopMetrics | None = None
    lost_after: timedelta = LOST_AFTER
    evaluation: Evaluation = field(default_factory=InPlace)
    outbound: Outbound = field(default_factory=Outbound)

    @cached_property
    def events(self) -> EventRecorder:
        return EventRecorder(self.api, component=COMPONENT, clock=self.clock)


class OperatorApi(Api, Protocol):
    """The operator's API connection; `KubeClient` implements it."""

    async def authorization(self) -> str:
        """The Authorization header of the operator's own requests."""
        ...


class Operator(Struct, frozen=True, kw_only=True):
    """The arguments from which features make their controllers.

    `api`: the operator's connection. `guard` is called before each write; None if all writes are allowed.
    `identity` differs between processes. `registries`: registries, in addition to public ones, that the operator
    asks for the commands of images.
    """

    shared: Shared
    api: OperatorApi
    guard: Callable[[], None] | None
    identity: str
    registries: Sequence[str] = ()


class Controller:
    """One control loop of the operator. The caller runs its informers."""

    def __init__(self, shared: Shared, name: str, *, workers: int = WORKERS, by_namespace: bool = False) -> None:
        """With `by_namespace`: use many workers, and limit the number that one namespace may use at a time."""
        self._api, self._clock, self._events = shared.api, shared.clock, shared.events
        self._informers = shared.informers
        self.informers: tuple[Informer, ...] = ()
        self.loop = Loop(
            name,
            shared_out(self.reconcile, shared.evaluation.is_full) if by_namespace else self.reconcile,
            clock=shared.clock,
            workers=MANY_WORKERS if by_namespace else workers,
            metrics=shared.metrics,
        )

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one object a step closer to its spec.

        Returns the time until the next look; None: after the next change.
        """
        raise NotImplementedError

    def _follow(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        indexes: Mapping[str, Index] | None = None,
        keep: Callable[[Obj], Obj] | None = None,
    ) -> Informer:
        """The informer of a collection. It is added to this controller's `informers`."""
        informer = self._informers.of(
            self._api,
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            indexes=indexes,
            keep=keep,
        )
        self.informers = (*self.informers, informer)
        return informer
