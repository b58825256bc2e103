"""/healthz and /readyz for probes, without a token; /metrics for Prometheus, with one.

Metrics name people and what they hold. As with kube-rbac-proxy and Kubernetes' own components, they are for tokens
that may `get` the path /metrics (the ClusterRole `moorage-metrics-reader`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse, Response

from moorage.api.errors import ErrorCode
from moorage.decide.runs.kept import is_of_step
from moorage.decide.usage.gpus import GpuView
from moorage.decide.usage.intervals import By, UsageRow
from moorage.decide.workflows.metrics import exposition as of_workflows
from moorage.decide.workflows.metrics import gauges
from moorage.errors import StorageError
from moorage.model.names import METRICS_ROLE
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import METRICS_PATH
from moorage.server.problems import Problem
from moorage.server.rest.top import use

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge

log = logging.getLogger(__name__)

STATES = ("free", "used", "reserved", "unavailable")
POOR = ("fragmented", "stranded")
USE_WINDOW = timedelta(hours=24)


async def healthz(_call: Call[None, None]) -> Response:
    """Answer while the process lives; needs no token."""
    return PlainTextResponse("ok")


async def readyz(call: Call[None, None]) -> Response:
    """Answer when the server has read the cluster; needs no token."""
    if not call.context.cluster.synced:
        raise Problem(503, ErrorCode.STARTING, "the server has not read the cluster yet", "try again in a moment")
    return PlainTextResponse("ok")


async def metrics(call: Call[None, None]) -> Response:
    """For Prometheus: GPUs by state and user, what workflows define; for those who may `get` /metrics."""
    context, user = call.context, call.user
    if not await context.auth.may_get_path(user, METRICS_PATH):
        raise Problem(
            403,
            ErrorCode.FORBIDDEN,
            f"{user.name} may not get {METRICS_PATH}",
            f"bind the ClusterRole {METRICS_ROLE} to the ServiceAccount that Prometheus uses",
        )
    view = (await context.ready()).gpus()
    now = context.now()
    rows = await use(context, since=now - USE_WINDOW, until=now, by=By.USER)
    kept = (context.keeper.kept_bytes, context.keeper.streams)
    body = await asyncio.to_thread(exposition, view, rows, context.limiter.refused, kept, context.changes.lost)
    body += await _of_workflows(context)
    return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _of_workflows(context: Context) -> bytes:
    """What workflows define, and what Argo's controller has; none while their records cannot be read."""
    steps = filter(is_of_step, context.cluster.pods.all())
    pods = [str((pod.get("status") or {}).get("phase") or "Pending") for pod in steps]
    try:
        series = [*await context.workflows.metrics(), *gauges(await context.workflows.phases(), pods)]
    except StorageError as error:
        log.warning("metrics of workflows cannot be read", extra={"error": error.message})
        return b""
    return (await asyncio.to_thread(of_workflows, series, context.now())).encode()


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/healthz", handler=healthz, media_type="text/plain"),
    Endpoint(method="GET", path="/readyz", handler=readyz, media_type="text/plain"),
    Endpoint(method="GET", path=METRICS_PATH, handler=metrics, media_type="text/plain"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of the server, to be filled. `prometheus_client` is imported late: it costs 80 ms."""

    registry: CollectorRegistry
    gpus: Gauge
    types: Gauge
    whole: Gauge
    free: Gauge
    together: Gauge
    held_types: Gauge
    held: Gauge
    hours: Gauge
    limited: Counter
    lost: Counter
    kept_bytes: Gauge
    followed: Gauge


def make_metrics() -> Metrics:
    from prometheus_client import CollectorRegistry, Counter, Gauge

    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=registry)

    return Metrics(
        registry=registry,
        gpus=gauge("moorage_gpus", "GPUs by node, type and state", "node", "type", "state"),
        types=gauge("moorage_type_gpus", "GPUs by type and state", "type", "state"),
        whole=gauge("moorage_cluster_gpus", "GPUs of the cluster by state", "state"),
        free=gauge(
            "moorage_gpus_free_of_little_use",
            "Free GPUs beside taken ones (fragmented), or with no CPU or memory left beside them (stranded)",
            "type",
            "kind",
        ),
        together=gauge("moorage_gpus_free_together", "Most free GPUs on one node", "type"),
        held_types=gauge("moorage_gpus_held_by_type", "GPUs held now, by user and type", "user", "type"),
        held=gauge("moorage_gpus_held", "GPUs held now, by user", "user"),
        hours=gauge("moorage_gpu_hours_24h", "GPU-hours in the last 24 hours, by user", "user"),
        limited=Counter(
            "moorage_requests_limited", "Requests refused with 429, as their user sent too many", registry=registry
        ),
        lost=Counter(
            "moorage_audit_records_lost",
            "Changes in the Kubernetes API that are not in the audit log, as the server was away too long",
            registry=registry,
        ),
        kept_bytes=gauge("moorage_kept_log_bytes", "Bytes on the disk of kept logs, at the last look"),
        followed=gauge("moorage_log_streams", "Logs of pods that the server reads now"),
    )


def exposition(
    view: GpuView, rows: tuple[UsageRow, ...], refused: int = 0, kept: tuple[int, int] = (0, 0), lost: int = 0
) -> bytes:
    """The metrics in Prometheus' text format. `kept`: bytes of kept logs, and how many logs are read now.

    `lost`: audit records that had no room.
    """
    from prometheus_client import generate_latest

    metrics = make_metrics()
    metrics.limited.inc(refused)
    metrics.lost.inc(lost)
    metrics.kept_bytes.set(kept[0])
    metrics.followed.set(kept[1])
    for node in view.nodes:
        for kind in sorted({gpu.type for gpu in node.gpus}):
            for state in STATES:
                many = sum(gpu.type == kind and gpu.state == state for gpu in node.gpus)
                metrics.gpus.labels(node=node.name, type=kind, state=state).set(many)
    for of_type, counts in view.by_type.items():
        for state in STATES:
            metrics.types.labels(type=of_type, state=state).set(getattr(counts, state))
        for poor in POOR:
            metrics.free.labels(type=of_type, kind=poor).set(getattr(counts, poor))
        metrics.together.labels(type=of_type).set(counts.together)
    for state in STATES:
        metrics.whole.labels(state=state).set(getattr(view.totals, state))
    for user, many in view.by_user.items():
        metrics.held.labels(user=user).set(many)
    for user, kinds in view.types_of_user.items():
        for kind, many in kinds.items():
            metrics.held_types.labels(user=user, type=kind).set(many)
    for row in rows:
        metrics.hours.labels(user=row.name).set(row.gpu_hours)
    return bytes(generate_latest(metrics.registry))
