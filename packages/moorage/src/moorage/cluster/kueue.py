"""Kueue's Workloads, which are deactivated when a run is cancelled, and its LocalQueues."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from moorage.decide.runs.kueue import UNKNOWN_QUEUES, Queues, QueueWait, is_held, queue_of, queue_wait
from moorage.model.kueue import JOB_UID_LABEL, LOCAL_QUEUES, WORKLOADS
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Forbidden, NotFound
from moorage_kube.resources import Obj, Resource


async def local_queues(api: Api, namespace: str) -> frozenset[str] | None:
    """The LocalQueues of a namespace; None if Kueue is not installed. Raises ApiError for other errors."""
    for resource in LOCAL_QUEUES:
        with contextlib.suppress(NotFound):
            return frozenset(obj["metadata"]["name"] for obj in (await api.list(resource, namespace)).items)
    return None


async def workloads_of(api: Api, job: Mapping[str, Any]) -> list[tuple[Resource, Obj]]:
    """The Workloads that Kueue made of a Job or a pod, in the newest version that it serves; empty without Kueue.

    Raises ApiError for other failures.
    """
    meta = job["metadata"]
    for resource in WORKLOADS:
        try:
            listed = await api.list(resource, meta["namespace"], label_selector=f"{JOB_UID_LABEL}={meta['uid']}")
        except NotFound:
            continue
        if listed.items:
            return [(resource, workload) for workload in listed.items]
    return []


async def deactivate(api: Api, job: Mapping[str, Any]) -> bool:
    """Stop Kueue from starting a Job, since it resumes Jobs that others suspend; return whether it knows the Job.

    Raises ApiError.
    """
    return await _set_active(api, job, active=False)


async def activate(api: Api, job: Mapping[str, Any]) -> bool:
    """Let Kueue start a deactivated Job again; return whether Kueue knows the Job. Raises ApiError."""
    return await _set_active(api, job, active=True)


async def _set_active(api: Api, job: Mapping[str, Any], *, active: bool) -> bool:
    workloads = await workloads_of(api, job)
    for resource, workload in workloads:
        if ((workload.get("spec") or {}).get("active") is not False) != active:
            meta = workload["metadata"]
            patch = {"metadata": {"uid": meta["uid"]}, "spec": {"active": active}}
            await api.patch(resource, meta["name"], patch, meta["namespace"])
    return bool(workloads)


async def read_queue_wait(api: Api, *objs: Obj | None) -> QueueWait | None:
    """Why the first of the objects (a Job, a pod) that Kueue holds waits in its queue; None: it holds none.

    Values that may not be read are empty.
    """
    held = next((obj for obj in objs if obj is not None and is_held(obj)), None)
    if held is None:
        return None
    try:
        workloads = await workloads_of(api, held)
    except ApiError:
        return QueueWait(queue_of(held), "")
    return queue_wait(held, [workload for _, workload in workloads])


async def read_queues(api: Api, namespace: str) -> Queues:
    """The queues of a namespace that the caller may read. Raises ApiError if the server does not answer."""
    try:
        return Queues(await local_queues(api, namespace))
    except Forbidden:
        return UNKNOWN_QUEUES
