"""Why Kueue holds a Job, where it is installed."""

from __future__ import annotations

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import Obj
from moorage.decide.runs.kueue import QueueWait, queue_of, queue_wait
from moorage.errors import ApiError
from moorage.kube.kueue import workloads_of


async def read_queue_wait(api: Api, job: Obj | None) -> QueueWait | None:
    """What a suspended Job waits for in its queue; None: Kueue does not hold it. What may not be read is empty."""
    if job is None or queue_wait(job, ()) is None:
        return None
    try:
        workloads = await workloads_of(api, job)
    except ApiError:
        return QueueWait(queue_of(job), "")
    return queue_wait(job, [workload for _, workload in workloads])
