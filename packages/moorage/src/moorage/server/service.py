"""The server as one part of a process: its application and its background tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

from starlette.applications import Starlette

from moorage.attempts.keeper import Keeper, Limits, limit_settings
from moorage.attempts.logs import LogFolder, Logs
from moorage.attempts.logtable import LogTable
from moorage.attempts.store import AttemptStore, open_attempts
from moorage.cluster.kubelets import Kubelets
from moorage.decide.maps.notices import Notice
from moorage.decide.rates import Rate
from moorage.decide.usage.readings import is_sampled
from moorage.evaluator.pool import Evaluation, InPlace
from moorage.features import load_all
from moorage.metrics.requests import RequestTimes
from moorage.model.idle import IDLE_POLICIES
from moorage.model.retention import USAGE_DAYS
from moorage.model.targets import Target
from moorage.notify.delivery import Delivery
from moorage.notify.outbound import outbound_of
from moorage.notify.send import send
from moorage.queue.manager import Queue
from moorage.queue.outputs import Outputs
from moorage.queue.quota import Quota, quota_settings
from moorage.queue.store import Store, open_store
from moorage.server.app import create_app
from moorage.server.backup.store import Place, finish_restore
from moorage.server.checkpointreports import CheckpointReports
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.fileimport import move_logs, move_usage
from moorage.server.gateway.gateway import Gateway
from moorage.server.identity.audit import AuditLog
from moorage.server.identity.auth import Auth
from moorage.server.identity.changes import Changes, OwnWrites
from moorage.server.identity.logins import Logins, LoginSettings
from moorage.server.identity.oidc import Provider, ProviderSettings
from moorage.server.identity.pagesessions import PageSessions
from moorage.server.identity.people import People
from moorage.server.identity.sessions import Sessions
from moorage.server.loops.collector import Collector
from moorage.server.loops.cost import CostOfDay
from moorage.server.loops.idle import IdleLoop, Sources
from moorage.server.loops.maps import MapBridge
from moorage.server.loops.outputs import sweep_outputs
from moorage.server.loops.sharing import Sharing
from moorage.server.memoryuse import MemoryUse
from moorage.server.parts import Base, make_parts, values_of
from moorage.server.ratelimit import Limiter, rate_settings
from moorage.server.rightsizing import Rightsizing
from moorage.server.runhistory import PastRuns
from moorage.server.summaries import NoKubelets
from moorage.server.tenants import KnownTenants
from moorage.server.usagesources import GpuSources, MetricsApi, SourceSettings
from moorage.server.volumeuse import VolumeUse
from moorage.sql import leases
from moorage.sql.leases import Leader, LeaseTable
from moorage.sql.opening import is_postgres, open_database
from moorage.sql.thread import StoreThread
from moorage.usage.recorder import Recorder
from moorage.usage.samples import Retention, SampleStore
from moorage.usage.store import UsageStore
from moorage_kube.api import Api, LogApi
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import StorageError
from moorage_kube.informers import Informers
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.events import EventRecorder
from moorage_kube.reserve import Reserve

log = logging.getLogger(__name__)

RECORDING = "recording"  # the task of the server that records: use, attempts, logs


def _leader(database: str | None, clock: Clock) -> tuple[StoreThread[LeaseTable] | None, Leader]:
    """The campaign for RECORDING; with a database in a file there is only one candidate."""
    holder = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    if database is None:
        return None, Leader(None, RECORDING, holder=holder, clock=clock)
    table = StoreThread("leases", lambda: LeaseTable(open_database(database, leases.SCHEMA)))
    return table, Leader(table, RECORDING, holder=holder, clock=clock)


class ServerService:
    """Serve `app` (with uvicorn or another ASGI server) while `run` runs.

    `usage_db` is created when it is missing; its folder must exist. Raises StorageError when it cannot
    be used. `database` is a `postgresql://` address: then the folder is not used, and servers may share
    the database. `queue_db` is a file (by default `queue.db` in the folder of `usage_db`) or a
    `postgresql://` address; `run` opens it, and an outage of it stops only maps. `page_person`: the user
    of the page's token; without one the token is read-only. `people_db` likewise, for sessions and the
    audit log (`people.db`); `provider`: the OIDC provider for logins. Facts of runs' pods are in
    `attempts.db`, their logs in the folder `attempts` next to it, or both in PostgreSQL. `env`: the
    settings. `rate`: the rate limit of one person; None: the one in `env`. `usage_days`: how long the
    history of GPU use is stored. `sources`: the sources of GPU readings. `hosts` are the server's names
    in addition to loopback. `open_queue` connects to the database of the queue.
    """

    def __init__(
        self,
        api: Api,
        *,
        usage_db: Path,
        database: str | None = None,
        queue_db: Path | str | None = None,
        page_token: str,
        page_person: str = "",
        people_db: Path | str | None = None,
        logins: LoginSettings | None = None,
        provider: ProviderSettings | None = None,
        rate: Rate | None = None,
        usage_days: int = USAGE_DAYS,
        env: Mapping[str, str] | None = None,
        sources: SourceSettings | None = None,
        hosts: Iterable[str] = (),
        clock: Clock = SYSTEM,
        informers: Informers | None = None,
        evaluation: Evaluation | None = None,
        open_queue: Callable[[Path | str, Quota], Store] = open_store,
    ) -> None:
        # a restore is finished before any database is opened
        shared, env = informers or Informers(), env or {}
        place = Place(folder=usage_db.parent, url=database or "")
        if not place.url:
            finish_restore(place.folder)
        # the history of use, and the objects that record it
        self.usage = UsageStore(database or usage_db)
        retention = Retention(hours=timedelta(days=usage_days))
        self.samples = SampleStore(database or usage_db.with_name("samples.db"), retention=retention)
        self.cluster = Cluster(api, clock=clock, informers=shared)
        self.recorder = Recorder(
            self.usage,
            pods=self.cluster.pods,
            nodes=self.cluster.nodes,
            clock=clock,
            keep=timedelta(days=usage_days),
        )
        # records and logs of attempts; one server on a database writes them
        self._files = usage_db.parent if database is not None else None  # of a server that had no PostgreSQL
        attempts = database or usage_db.with_name("attempts.db")
        self._attempts = StoreThread("attempts", lambda: open_attempts(attempts))
        limits = limit_settings(env)
        self._leases, self.leader = _leader(database, clock)
        self._logs = self._make_logs(attempts, usage_db.with_name("attempts"), limits, clock)
        self.keeper = self._make_keeper(api, limits, clock)
        # maps: their queue and output
        where = database or (usage_db.with_name("queue.db") if queue_db is None else queue_db)
        self._quota = quota_settings(env)
        reserve = Reserve(usage_db.parent) if database is None else None
        self.queue = Queue(lambda: open_queue(where, self._quota), clock=clock, reserve=reserve)
        self.outputs = Outputs(database or usage_db.with_name("outputs.db"))
        self._clock = clock
        self.maps = MapBridge(api, self.queue, clock=clock, informers=shared)
        # people: accounts, logins, audit log and rights
        self.people = People(api, informers=shared)
        self.sessions = Sessions(database or (usage_db.with_name("people.db") if people_db is None else people_db))
        settings = logins or LoginSettings()
        self.provider = Provider(provider, clock=clock) if provider is not None else None
        self.logins = Logins(
            api, self.people, self.sessions, provider=self.provider, settings=settings, clock=clock
        )
        self.audit = AuditLog(self.sessions, days=settings.audit_days, clock=clock)
        self.own_writes = OwnWrites(sessions=self.sessions if database is not None else None, clock=clock)
        self.changes = Changes(self.audit, self.own_writes, self.people, clock=clock)
        self.auth = self._make_auth(api, page_token, page_person, clock)
        # workspaces, idle work and costs
        self.gateway = Gateway(
            api,
            self.auth,
            clock=clock,
            people=self.people,
            sessions=self.sessions,
            audit=self.audit,
            informers=shared,
        )
        self.idle = self._make_idle(api, clock, shared)
        self.cost_of_day = CostOfDay()
        # sources of readings
        self._kubelets = Kubelets(api, clock=clock) if isinstance(api, KubeClient) else NoKubelets()
        self.collector = self._make_collector(api, sources or SourceSettings(), clock)
        # addresses follow the ConfigMap
        self.logins.addresses.allow(hosts)
        self.gateway.info.on_change(self.logins.addresses.follow)
        # features add their parts; the routes share all of these objects
        self._parts = make_parts(Base(api=api, clock=clock, env=env, place=place, sessions=self.sessions))
        self.context = Context(
            evaluation=evaluation or InPlace(),
            api=api,
            place=place,
            cluster=self.cluster,
            usage=self.usage,
            samples=self.samples,
            collector=self.collector,
            auth=self.auth,
            clock=clock,
            queue=self.queue,
            outputs=self.outputs,
            logins=self.logins,
            sessions=self.sessions,
            audit_log=self.audit,
            changes=self.changes,
            own_writes=self.own_writes,
            gateway=self.gateway,
            limiter=Limiter(rate or rate_settings(env), clock=clock),
            volume_use=VolumeUse(self.cluster, self._kubelets, clock=clock),
            tenants=KnownTenants(api, clock=clock),
            idle=self.idle,
            keeper=self.keeper,
            past=PastRuns(self.usage, clock=clock),
            rightsizing=Rightsizing(api, self.usage, self.keeper, self.samples.use_of, clock=clock),
            reports=CheckpointReports(clock=clock),
            parts=values_of(self._parts),
            times=RequestTimes(clock=clock),
            records=lambda: self.leader.term is not None,
            cost_of_day=lambda: self.cost_of_day.cost,
        )
        self.sharing = Sharing(api, self.cluster, self.usage, self.context.tenants, clock=clock)
        self.app: Starlette = create_app(self.context)

    def _make_collector(self, api: Api, sources: SourceSettings, clock: Clock) -> Collector:
        self._gpu_sources = GpuSources(api, sources, clock=clock)
        return Collector(
            self.cluster,
            self.samples,
            kubelets=MemoryUse(
                self.cluster, self._kubelets, self.keeper.note_memory, clock=clock, also=is_sampled
            ),
            gpus=self._gpu_sources,
            metrics_api=MetricsApi(api if isinstance(api, KubeClient) else None, clock=clock),
            clock=clock,
        )

    def _make_auth(self, api: Api, page_token: str, page_person: str, clock: Clock) -> Auth:
        return Auth(
            api,
            page_token=page_token,
            page_person=page_person,
            people=self.people,
            logins=self.logins,
            page_sessions=PageSessions(self.sessions, page_token, clock=clock),
            clock=clock,
        )

    def _make_idle(self, api: Api, clock: Clock, shared: Informers) -> IdleLoop:
        self._policies = shared.of(api, IDLE_POLICIES)
        sources = Sources(
            pods=self.cluster.pods,
            jobs=self.cluster.jobs,
            workspaces=self.gateway.workspaces,
            maps=self.maps.informer,
            policies=self._policies,
            tenants=KnownTenants(api, clock=clock).all,
            samples=self.samples,
            kernels=self.gateway.kernels,
            connection=self.gateway.traffic.connection_of,
        )

        async def deliver(notice: Notice, targets: Sequence[Target]) -> Sequence[Delivery]:
            return await send(notice, targets, outbound_of(os.environ), clock=clock)

        events = EventRecorder(api, component="moorage-server", clock=clock)
        return IdleLoop(api, sources, send=deliver, events=events, clock=clock)

    def _make_logs(self, attempts: Path | str, folder: Path, limits: Limits, clock: Clock) -> Logs:
        if not is_postgres(attempts):
            return LogFolder(folder, keep_bytes=limits.log_bytes)
        return LogTable(
            str(attempts),
            keep_bytes=limits.log_bytes,
            term=lambda: None if self.leader.term is None else (RECORDING, self.leader.term),
            clock=clock,
        )

    def _make_keeper(self, api: Api, limits: Limits, clock: Clock) -> Keeper:
        return Keeper(
            self._attempts,
            self._logs,
            api=cast(LogApi, api) if hasattr(api, "logs") else None,
            jobs=self.cluster.jobs,
            pods=self.cluster.pods,
            nodes=self.cluster.nodes,
            limits=limits,
            clock=clock,
        )

    async def run(self) -> None:
        """Follow the cluster, record its use and serve maps until cancelled; then end streams and close stores."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cluster.run())
                tasks.create_task(self.leader.run(self._record))
                tasks.create_task(self.queue.run())
                tasks.create_task(self.maps.run())
                tasks.create_task(self.people.run())
                tasks.create_task(self.logins.run())
                tasks.create_task(self.audit.run())
                tasks.create_task(self.own_writes.run())
                tasks.create_task(self.gateway.run())
                tasks.create_task(self._policies.run())
                tasks.create_task(self.cost_of_day.run(self.context))
        finally:
            self.cluster.close()
            self.outputs.close()
            self._attempts.close()
            for part in self._parts:
                for close in part.close:
                    close()
            self._logs.close()
            self.usage.close()
            self.samples.close()
            if self._leases is not None:
                self._leases.close()
            self.sessions.close()
            if self.provider is not None:
                await self.provider.close()
            await self._kubelets.close()
            await self._gpu_sources.close()

    def end_streams(self) -> None:
        """End all requests that wait for a change; their clients repeat them on another server."""
        self.cluster.close()
        self.queue.end_waits()

    async def _record(self) -> None:
        """Run the tasks that only one server on a database may run at a time."""
        if self._files is not None:
            try:
                await self._attempts.do(AttemptStore.open)  # its tables are there before the logs'
                await asyncio.to_thread(move_usage, self._files, self.usage)
                await asyncio.to_thread(move_logs, self._files, self._logs)
            except StorageError as error:
                log.error("files could not be moved into PostgreSQL", extra={"error": error.message})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.recorder.run())
            tasks.create_task(self.keeper.run())
            tasks.create_task(self.collector.run())
            tasks.create_task(self.sharing.run())
            tasks.create_task(sweep_outputs(self.queue, self.outputs, self._quota, clock=self._clock))
            tasks.create_task(self.idle.run())
            for added in load_all("recording"):
                for work in added(self.context):
                    tasks.create_task(work())
