"""/healthz and /readyz for probes, without a token; /metrics for Prometheus, with one.

Metrics name people and the GPUs they use. As with kube-rbac-proxy and Kubernetes' own components,
they are for tokens that may `get` the path /metrics (the ClusterRole `moorage-metrics-reader`).
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, Response

from moorage import __version__
from moorage.api.errors import ErrorCode
from moorage.decide.measures.gpus import FAMILIES as GPU_FAMILIES
from moorage.decide.measures.gpus import NO_TENANT, TenantOf, measure_gpus
from moorage.decide.measures.reclaim import FAMILIES as RECLAIM_FAMILIES
from moorage.decide.measures.reclaim import measure_cost, measure_idle
from moorage.decide.measures.use import FAMILIES as USE_FAMILIES
from moorage.decide.measures.use import measure_use, pod_gpus
from moorage.decide.measures.work import FAMILIES as WORK_FAMILIES
from moorage.decide.measures.work import measure_maps, measure_runs, measure_workspaces
from moorage.decide.runs.storedruns import uid_of
from moorage.decide.usage.gpus import GpuView
from moorage.decide.usage.intervals import By
from moorage.features import load_all
from moorage.metrics.caches import FAMILIES as CACHES
from moorage.metrics.caches import measure_caches
from moorage.metrics.families import Family, Measured, measured
from moorage.metrics.page import BUILD, MEDIA_TYPE, exposition
from moorage.metrics.requests import ANSWERS, SECONDS
from moorage.model.names import METRICS_ROLE
from moorage.model.tenant import tenant_names
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.gpuhours import gpu_hours
from moorage.server.identity.auth import METRICS_PATH
from moorage.server.poduse import FRESH
from moorage.server.problems import Problem
from moorage.sql.times import ERRORS as SQL_ERRORS
from moorage.sql.times import SECONDS as SQL_SECONDS
from moorage.sql.times import read_times
from moorage_kube.errors import MoorageError, StorageError
from moorage_kube.meta import key_of

log = logging.getLogger(__name__)

USE_WINDOW = timedelta(hours=24)

LIMITED = Family(
    name="moorage_requests_limited_total",
    help="Requests refused with 429, as their user sent too many",
    kind="counter",
    series_max=1,
)
LOST = Family(
    name="moorage_audit_records_lost_total",
    help="Changes in the Kubernetes API that are not in the audit log, as the server was away too long",
    kind="counter",
    series_max=1,
)
STORED_BYTES = Family(
    name="moorage_stored_log_bytes", help="Bytes on the disk of stored logs, at the last measurement", series_max=1
)
LOG_STREAMS = Family(name="moorage_log_streams", help="Logs of pods that the server reads now", series_max=1)
RECORDS = Family(
    name="moorage_server_records", help="1 on the server that records use and logs, 0 on the others", series_max=1
)
READINGS = Family(
    name="moorage_use_readings_total",
    help="Readings of pods' use that this server stored",
    kind="counter",
    series_max=1,
)
READING_FAILURES = Family(
    name="moorage_use_reading_failures_total",
    help="Nodes, exporters and APIs that did not report the use of pods, and rounds that could not be stored",
    kind="counter",
    series_max=1,
)
READING_LAG = Family(
    name="moorage_use_reading_seconds", help="How long the last round of readings of pods' use took", series_max=1
)
OWN = (
    READINGS,
    READING_FAILURES,
    READING_LAG,
    LIMITED,
    LOST,
    STORED_BYTES,
    LOG_STREAMS,
    RECORDS,
    SECONDS,
    ANSWERS,
    SQL_SECONDS,
    SQL_ERRORS,
    *CACHES,
    BUILD,
)
FAMILIES = (*GPU_FAMILIES, *USE_FAMILIES, *RECLAIM_FAMILIES, *WORK_FAMILIES, *OWN)


async def healthz(_call: Call[None, None]) -> Response:
    """Answer while the process lives; needs no token."""
    return PlainTextResponse("ok")


async def readyz(call: Call[None, None]) -> Response:
    """Answer when the server has read the cluster; needs no token."""
    context = call.context
    if not (context.cluster.synced and context.gateway.info.synced.is_set()):  # which hosts are workspaces'
        raise Problem(503, ErrorCode.STARTING, "the server has not read the cluster yet", "try again in a moment")
    return PlainTextResponse("ok")


async def metrics(call: Call[None, None]) -> Response:
    """For Prometheus: GPUs by state and user, metrics of workflows; for those who may `get` /metrics."""
    context, user = call.context, call.user
    if not await context.auth.may_get_path(user, METRICS_PATH):
        raise Problem(
            403,
            ErrorCode.FORBIDDEN,
            f"{user.name} may not get {METRICS_PATH}",
            f"bind the ClusterRole {METRICS_ROLE} to the ServiceAccount that Prometheus uses",
        )
    rows = await _measure(context)
    body = await asyncio.to_thread(exposition, rows, process=True)
    for more in load_all("metrics"):
        body += await more(context)
    return Response(body, media_type=MEDIA_TYPE)


async def _measure(context: Context) -> list[Measured]:
    """All metrics except those of features. Metrics from a database are missing while it cannot be read."""
    cluster = await context.ready()
    now, tenant_of = context.now(), await _tenants(context)
    hours = await gpu_hours(context, since=now - USE_WINDOW, until=now, by=By.USER)
    view, runs = cluster.gpus(), cluster.runs()
    rows = await asyncio.to_thread(measure_gpus, view, hours, tenant_of)
    rows += await _of_use(context, view, tenant_of)
    rows += await _of_idle(context, tenant_of)
    rows += measure_cost(context.cost_of_day())
    rows += await asyncio.to_thread(measure_runs, runs, tenant_of, now)
    rows += await _of_maps(context, tenant_of)
    rows += measure_workspaces(context.gateway.workspaces.all(), tenant_of)
    return [*rows, *_of_server(context)]


def _of_server(context: Context) -> list[Measured]:
    keeper, cluster, collector = context.keeper, context.cluster, context.collector
    return [
        measured(READINGS, [((), collector.counts.readings)]),
        measured(READING_FAILURES, [((), collector.failures)]),
        measured(READING_LAG, [((), collector.counts.lag_seconds)]),
        measured(LIMITED, [((), context.limiter.refused)]),
        measured(LOST, [((), context.changes.lost)]),
        measured(STORED_BYTES, [((), keeper.stored_bytes)]),
        measured(LOG_STREAMS, [((), keeper.streams)]),
        measured(RECORDS, [((), context.records())]),
        context.times.seconds.read(),
        context.times.answers.read(),
        *read_times(),
        *measure_caches([cluster.nodes, cluster.pods, cluster.jobs, context.gateway.workspaces]),
        measured(BUILD, [((__version__,), 1)]),
    ]


async def _tenants(context: Context) -> TenantOf:
    names = tenant_names(await context.tenants.all())
    return lambda namespace: names.get(namespace, NO_TENANT)


async def _of_use(context: Context, view: GpuView, tenant_of: TenantOf) -> list[Measured]:
    try:
        latest = await asyncio.to_thread(context.samples.latest, since=context.now() - FRESH)
    except StorageError as error:
        log.warning("metrics of the use of GPUs cannot be read", extra={"error": error.message})
        return []
    readings = {key_of(pod): latest[uid] for pod in context.cluster.pods.all() if (uid := uid_of(pod)) in latest}
    return await asyncio.to_thread(lambda: measure_use(pod_gpus(view, readings, tenant_of)))


async def _of_idle(context: Context, tenant_of: TenantOf) -> list[Measured]:
    if context.idle is None:
        return []
    return measure_idle(await context.idle.held(), tenant_of)


async def _of_maps(context: Context, tenant_of: TenantOf) -> list[Measured]:
    try:
        stored = await context.queue.read(lambda store: store.list_maps())
    except MoorageError as error:
        log.warning("metrics of maps cannot be read", extra={"error": error.message})
        return []
    maps = [
        (known.namespace, known.map.state.name.lower(), msgspec.structs.asdict(known.map.counts))
        for known in stored
    ]
    return measure_maps(maps, tenant_of)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/healthz", handler=healthz, media_type="text/plain"),
    Endpoint(method="GET", path="/readyz", handler=readyz, media_type="text/plain"),
    Endpoint(method="GET", path=METRICS_PATH, handler=metrics, media_type="text/plain"),
)
