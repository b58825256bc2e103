"""Workloads of Kueue: read, and deactivated when a run is cancelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.apimachinery.api import Api
from moorage.apimachinery.resources import Obj, Resource
from moorage.errors import NotFound
from moorage.model.kueue import JOB_UID_LABEL, WORKLOADS


async def workloads_of(api: Api, job: Mapping[str, Any]) -> list[tuple[Resource, Obj]]:
    """What Kueue has made of a Job, in the newest version that it serves; nothing where it is not installed.

    Raises ApiError for all else.
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
    """Let Kueue start a Job no more: it resumes one that others have suspended. Returns whether it knows the Job.

    Raises ApiError.
    """
    workloads = await workloads_of(api, job)
    for resource, workload in workloads:
        if (workload.get("spec") or {}).get("active") is not False:
            meta = workload["metadata"]
            patch = {"metadata": {"uid": meta["uid"]}, "spec": {"active": False}}
            await api.patch(resource, meta["name"], patch, meta["namespace"])
    return bool(workloads)
