"""Explanations: why a run, a Job or a pod waits, or how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.explain.storage import storage_of
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.state import RunView
from moorage.model.machine import MACHINES
from moorage.model.names import RUN_LABEL
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Forbidden
from moorage_kube.meta import is_condition_true
from moorage_kube.resources import EVENTS, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj, Resource
from moorage_kube.scheduling import parse_pod


async def explain_pod(api: Api, namespace: str, name: str, now: datetime) -> Explanation:
    """Why a pod waits, from objects that the caller may read. Raises NotFound; Forbidden without nodes."""
    pod = await api.get(PODS, name, namespace)
    nodes, pods = await asyncio.gather(api.list(NODES), api.list(PODS))
    claims, volumes, classes, machines, events = await asyncio.gather(
        _listed(api, PVCS, namespace),
        _listed(api, PVS),
        _listed(api, STORAGECLASSES),
        _listed(api, MACHINES),
        _listed(api, EVENTS, namespace, field_selector=f"involvedObject.name={name}"),
    )
    for claim in parse_pod(pod).claims:
        about = await _listed(api, EVENTS, namespace, field_selector=f"involvedObject.name={claim}")
        events = [*(events or ()), *(about or ())]
    return explain(
        pod,
        nodes=nodes.items,
        pods=pods.items,
        now=now,
        storage=storage_of(claims, volumes, classes),
        events=events or (),
        machines=machines or (),
    )


def pod_of_run(run: RunView) -> Obj:
    """A pod with no more than the names of a run, for a run whose Jobs are deleted."""
    meta = {"namespace": run.namespace, "name": run.name, "labels": {RUN_LABEL: run.name}}
    return {"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Failed"}}


async def pod_to_be(api: Api, job: Obj, namespace: str) -> tuple[Obj, str]:
    """The pod of a planned Job after admission, and the reason why the API server would refuse it.

    Nothing is created.
    """
    pod = pod_of_job(job)
    meta = pod["metadata"] | {"name": f"{job['metadata']['name']}-dry-run"}
    meta.pop("creationTimestamp", None)
    wanted: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod["spec"]}
    try:
        tried = await api.create(PODS, wanted, namespace, dry_run=True)
    except Forbidden as error:
        # the user may make Jobs but no pods: judge the pod of the Job's template
        return pod, "" if "cannot create resource" in error.message else error.message
    except ApiError:
        return pod, ""
    return pod | {"spec": tried.get("spec") or pod["spec"]}, ""


def pod_for(job: Obj, pods: Iterable[Obj]) -> Obj:
    """The pod that represents a Job: the newest active pod, else a pod from its template.

    For an ended Job, its last pod.
    """
    ordered = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    alive = [pod for pod in ordered if not _is_over(pod)]
    if alive:
        return alive[-1]
    is_failed = is_condition_true(job, "Failed")
    has_ended = is_failed or is_condition_true(job, "Complete")
    if has_ended and ordered:
        return ordered[-1]
    pod = pod_of_job(job)
    if has_ended:
        pod["status"] = {"phase": "Failed" if is_failed else "Succeeded"}
    return pod


def is_suspended(job: Obj | None) -> bool:
    return job is not None and bool((job.get("spec") or {}).get("suspend"))


async def _listed(api: Api, resource: Resource, namespace: str | None = None, **options: Any) -> list[Obj] | None:
    """List objects; None if the caller may not read them, or the cluster does not have the kind."""
    try:
        return (await api.list(resource, namespace, **options)).items
    except ApiError:
        return None


def _is_over(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
