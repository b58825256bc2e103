"""The state that the routes share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import Struct, field

from moorage.evaluator.pool import Evaluation, InPlace
from moorage.metrics.requests import RequestTimes
from moorage.model.people import is_account
from moorage.server.idempotency import Turns
from moorage.server.identity.auth import Auth, User
from moorage.server.problems import Problem
from moorage.server.starting import listed_once
from moorage_kube.api import Api
from moorage_kube.clock import Clock

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

    from moorage.attempts.keeper import Keeper
    from moorage.decide.measures.reclaim import Cost
    from moorage.queue.manager import Queue
    from moorage.queue.outputs import Outputs
    from moorage.server.backup.store import Place
    from moorage.server.checkpointreports import CheckpointReports
    from moorage.server.cluster import Cluster
    from moorage.server.gateway.gateway import Gateway
    from moorage.server.identity.audit import AuditLog
    from moorage.server.identity.changes import Changes, OwnWrites
    from moorage.server.identity.logins import Logins
    from moorage.server.identity.sessions import Sessions
    from moorage.server.loops.collector import Collector
    from moorage.server.loops.idle import IdleLoop
    from moorage.server.ratelimit import Limiter
    from moorage.server.rightsizing import Rightsizing
    from moorage.server.runhistory import PastRuns
    from moorage.server.tenants import KnownTenants
    from moorage.server.volumeuse import VolumeUse
    from moorage.usage.samples import SampleStore
    from moorage.usage.store import UsageStore

Part = TypeVar("Part")


class Context(Struct, frozen=True, kw_only=True):
    """The server's parts; every route receives them."""

    api: Api
    place: Place  # where the server keeps its data
    cluster: Cluster
    usage: UsageStore
    samples: SampleStore
    collector: Collector
    auth: Auth
    clock: Clock
    queue: Queue
    outputs: Outputs
    logins: Logins
    sessions: Sessions
    audit_log: AuditLog
    changes: Changes
    own_writes: OwnWrites
    gateway: Gateway
    limiter: Limiter
    volume_use: VolumeUse
    tenants: KnownTenants
    keeper: Keeper
    past: PastRuns
    rightsizing: Rightsizing
    reports: CheckpointReports
    times: RequestTimes
    records: Callable[[], bool]  # whether this server is the one that records
    parts: Mapping[type, object] = field(default_factory=dict)  # the objects of features
    turns: Turns = field(default_factory=Turns)
    evaluation: Evaluation = field(default_factory=InPlace)  # where users' text is evaluated
    idle: IdleLoop | None = None  # None: this is no server
    cost_of_day: Callable[[], Cost | None] = lambda: None  # as it was last computed

    def now(self) -> datetime:
        return self.clock.now()

    def part(self, kind: type[Part]) -> Part:
        """The object of this type that a feature added."""
        return cast(Part, self.parts[kind])

    def acting(self, user: User) -> Api:
        """The Kubernetes API as this user: its rights decide, not the server's.

        Users with a Kubernetes token act by that token, people act through their account. Raises Problem 403
        for users that it cannot act for, and 501 where the server's own connection cannot act for others.
        """
        if not user.account:
            raise Problem(
                403, "only_looking", f"{user.name} may look and not change anything here", "sign in as yourself"
            )
        if user.is_proved and not is_account(user.account):
            raise Problem(
                403,
                "only_looking",
                f"{user.name} came by a client certificate: the server cannot act as {user.name}",
                "log in, then type it again: moor login URL; or use kubectl",
            )
        act = getattr(self.api, "with_token" if user.token else "as_user", None)
        if act is None or not (user.token or is_account(user.account)):
            raise Problem(501, "cannot_act", "this server cannot act for its users", "ask whoever runs it")
        # the API server gives an account its groups
        acting = act(user.token, user.account if user.borrowed else "") if user.token else act(user.account)
        if hasattr(acting, "writing"):  # its requests are in the audit log by the request that causes them
            acting.writing = functools.partial(self.own_writes.note, user.account)
        return cast(Api, acting)

    def audit(self, request: HTTPConnection, verb: str, what: str) -> None:
        """Add a description to the audit entry of a request; without it the entry has only the path."""
        request.state.audit = f"{verb} {what}"

    async def ready(self) -> Cluster:
        """The cluster, after it was listed once. Raises Problem 503 if that takes too long."""
        if not self.cluster.synced:
            await listed_once(self.cluster.nodes, self.cluster.pods, self.cluster.jobs)
        return self.cluster
