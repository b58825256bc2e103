"""Explanations: why a run, a Job or a pod waits, or how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from moorage.actions.kept import Kept, NothingKept
from moorage.actions.runs import Now, get_deleted, get_run, is_run_name, no_such_run
from moorage.cluster.kueue import read_queue_wait
from moorage.decide.explain.explainer import explain
from moorage.decide.explain.snapshot import pod_of_job
from moorage.decide.explain.storage import storage_of
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.state import RunView, attempt_of
from moorage.model.machine import MACHINES
from moorage.model.names import RUN_LABEL
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Forbidden, NotFound
from moorage_kube.meta import is_condition_true, key_of, labels_of
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj, Resource


async def explain_run(api: Api, namespace: str, name: str, now: Now, kept: Kept | None = None) -> Explanation:
    """Why a run, a Job or a pod waits, from what the caller may read; of a run that has ended, how.

    `kept`: gives the facts of pods and Jobs that are gone. Raises NotFound; Forbidden without nodes.
    """
    kept = kept or NothingKept()
    try:
        pod, job = await _find_pod(api, namespace, name)
    except NotFound:
        if (deleted := await get_deleted(kept, namespace, name)) is None:
            raise
        return explain(pod_of_run(deleted), nodes=(), pods=(), now=now(), run=deleted)
    run = await _run_of(api, job, kept)
    nodes, pods = await asyncio.gather(api.list(NODES), api.list(PODS))
    claims, volumes, classes, machines, events, queue = await asyncio.gather(
        _listed(api, PVCS, namespace),
        _listed(api, PVS),
        _listed(api, STORAGECLASSES),
        _listed(api, MACHINES),
        _events(api, namespace, pod, job),
        read_queue_wait(api, job, pod),
    )
    return explain(
        pod,
        nodes=nodes.items,
        pods=pods.items,
        now=now(),
        storage=storage_of(claims, volumes, classes),
        events=events,
        machines=machines or (),
        suspended=is_suspended(job),
        queue=queue,
        run=run,
    )


def pod_of_run(run: RunView) -> Obj:
    """A pod that stands for a run whose Jobs are gone: no more than its names."""
    meta = {"namespace": run.namespace, "name": run.name, "labels": {RUN_LABEL: run.name}}
    return {"metadata": meta, "spec": {"containers": []}, "status": {"phase": "Failed"}}


async def pod_to_be(api: Api, job: Obj, namespace: str) -> tuple[Obj, str]:
    """The pod that a planned Job would make, as admission would change it; and why the API server would refuse it.

    Nothing is created.
    """
    pod = pod_of_job(job)
    meta = pod["metadata"] | {"name": f"{job['metadata']['name']}-dry-run"}
    meta.pop("creationTimestamp", None)
    wanted: Obj = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod["spec"]}
    try:
        tried = await api.create(PODS, wanted, namespace, dry_run=True)
    except Forbidden as error:
        # a user may be let make Jobs and no pods: then the pod is judged as it stands in the Job
        return pod, "" if "cannot create resource" in error.message else error.message
    except ApiError:
        return pod, ""
    return pod | {"spec": tried.get("spec") or pod["spec"]}, ""


def pod_for(job: Obj, pods: Iterable[Obj]) -> Obj:
    """The pod that stands for a Job: the newest alive, or that ended with it; else the one that it will make."""
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


async def _run_of(api: Api, job: Obj | None, kept: Kept) -> RunView | None:
    """The run that a Job belongs to; None: it belongs to none."""
    name = labels_of(job).get(RUN_LABEL) if job is not None else None
    if job is None or not name:
        return None
    return await get_run(api, job["metadata"].get("namespace") or "default", name, kept)


def is_suspended(job: Obj | None) -> bool:
    return job is not None and bool((job.get("spec") or {}).get("suspend"))


async def _find_pod(api: Api, namespace: str, name: str) -> tuple[Obj, Obj | None]:
    """The pod that stands for a run, a Job or a pod of that name, and its Job. Raises NotFound."""
    jobs: list[Obj] = []
    if is_run_name(name):
        jobs = (await api.list(JOBS, namespace, label_selector=f"{RUN_LABEL}={name}")).items
    job = max(jobs, key=attempt_of, default=None) or await _get(api, JOBS, namespace, name)
    if job is None:
        pod = await _get(api, PODS, namespace, name)
        if pod is None:
            raise await no_such_run(api, namespace, name)
        return pod, None
    uid = job["metadata"].get("uid")
    pods = [pod for pod in (await api.list(PODS, namespace)).items if _is_of(pod, uid, job)]
    return pod_for(job, pods), job


def _is_of(pod: Obj, uid: str | None, job: Obj) -> bool:
    """Whether a Job made the pod: by its controller; by run and attempt where it has none."""
    owners = pod["metadata"].get("ownerReferences") or ()
    if owners:
        return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)
    run = (job["metadata"].get("labels") or {}).get(RUN_LABEL)
    is_same_run = run is not None and (pod["metadata"].get("labels") or {}).get(RUN_LABEL) == run
    return is_same_run and attempt_of(pod) == attempt_of(job)


async def _get(api: Api, resource: Resource, namespace: str, name: str) -> Obj | None:
    """None: there is none, or it may not be read."""
    try:
        return await api.get(resource, name, namespace)
    except ApiError:
        return None


async def _listed(api: Api, resource: Resource, namespace: str | None = None) -> list[Obj] | None:
    """None: the caller may not read them, or the cluster does not know the kind."""
    try:
        return (await api.list(resource, namespace)).items
    except ApiError:
        return None


async def _events(api: Api, namespace: str, pod: Obj, job: Obj | None) -> list[Obj]:
    events: list[Obj] = []
    for name in sorted({key_of(obj).name for obj in (pod, job) if obj is not None}):
        try:
            listed = await api.list(EVENTS, namespace, field_selector=f"involvedObject.name={name}")
        except ApiError:
            continue
        events += listed.items
    return events


def _is_over(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
