"""Metrics of workflows, for Prometheus."""

from __future__ import annotations

import asyncio
import logging

from moorage.decide.runs.storedruns import is_of_step
from moorage.server.context import Context
from moorage_kube.errors import StorageError
from moorage_workflows.decide.workflows.metrics import exposition, gauges
from moorage_workflows.workflows.records import LocalRecords

log = logging.getLogger(__name__)


async def measure(context: Context) -> bytes:
    """The metrics that workflows define, and those of Argo's controller; empty while the records are
    unreadable.
    """
    records = context.part(LocalRecords)
    steps = filter(is_of_step, context.cluster.pods.all())
    pods = [str((pod.get("status") or {}).get("phase") or "Pending") for pod in steps]
    try:
        series = [*await records.metrics(), *gauges(await records.phases(), pods)]
    except StorageError as error:
        log.warning("metrics of workflows cannot be read", extra={"error": error.message})
        return b""
    return (await asyncio.to_thread(exposition, series, context.now())).encode()
