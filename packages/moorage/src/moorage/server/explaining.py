"""Explain why a run or a pod waits, or would wait, from the data of the server."""

from __future__ import annotations

import asyncio

from moorage.actions.explain import is_suspended, pod_for, pod_of_run
from moorage.actions.runs import get_deleted
from moorage.api.explain import PodQuestion
from moorage.cluster.kueue import read_queue_wait
from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.explainer import explain as explain_pod
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import concerning, snapshot
from moorage.decide.explain.storage import Storage
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.kueue import QueueWait
from moorage.decide.runs.state import RunView, attempt_of
from moorage.model.names import MACHINE_GATE, RUN_LABEL
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.runs import RunReader
from moorage.server.storedruns import RecordsForUser
from moorage_kube.errors import NotFound
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate, parse_pod

CLAIMS_MAX = 5000


async def explained(context: Context, namespace: str, name: str, user: User) -> Explanation:
    """The explanation of a run, Job or pod, without the parts that the user may not see. Raises NotFound."""
    cluster, reader = await context.ready(), RunReader(context, user)
    is_readable = await context.auth.may_read_pods(user, namespace)
    try:
        pod, job = await _find_pod(reader, namespace, name)
    except NotFound:
        if (deleted := await get_deleted(RecordsForUser(context, user), namespace, name)) is None:
            raise
        explanation = explain_pod(pod_of_run(deleted), nodes=(), pods=(), now=context.now(), run=deleted)
        return explanation if is_readable else as_public(explanation)
    run = await _run_of(reader, job)
    events = await cluster.events_about(namespace, pod["metadata"]["name"])
    if job is not None and job["metadata"]["name"] != pod["metadata"]["name"]:
        events += await cluster.events_about(namespace, job["metadata"]["name"])
    claims = parse_pod(pod).claims
    storage = await cluster.storage(namespace) if claims else Storage()
    for claim in claims[:CLAIMS_MAX]:
        events += await cluster.events_about(namespace, claim)
    queue = await read_queue_wait(context.api, job, pod)
    explanation = await _explained(
        context, pod, storage, tuple(events), suspended=is_suspended(job), queue=queue, run=run
    )
    return explanation if is_readable else as_public(explanation)


async def explained_new(context: Context, question: PodQuestion) -> Explanation:
    """The explanation of a pod that does not exist yet. Raises ValueError and its subclasses for an invalid
    pod.
    """
    cluster, pod = await context.ready(), parse_pod(question.pod)
    storage = Storage()
    if pod.claims and question.claims is not None:
        storage = await cluster.storage(pod.namespace, question.claims[:CLAIMS_MAX])
    events = ({"reason": "FailedCreate", "message": question.refused},) if question.refused else ()
    return await _explained(context, question.pod, storage, events)


async def _explained(
    context: Context,
    pod: Obj,
    storage: Storage,
    events: tuple[Obj, ...],
    *,
    suspended: bool = False,
    queue: QueueWait | None = None,
    run: RunView | None = None,
) -> Explanation:
    cluster, past = context.cluster, await context.past.history()
    machines = await cluster.machines() if has_gate(pod.get("spec") or {}, MACHINE_GATE) else []
    nodes, pods, now = cluster.nodes.all(), cluster.pods.all(), context.now()

    def work() -> Explanation:
        seen = snapshot(nodes, concerning(pod, pods), history=past, machines=machines, read=cluster.parsed)
        explainer = Explainer(seen)
        return explainer.explain(
            pod, now=now, storage=storage, events=events, suspended=suspended, queue=queue, run=run
        )

    return await asyncio.to_thread(work)


async def _run_of(reader: RunReader, job: Obj | None) -> RunView | None:
    """The run of a Job, with the stored records of its pods; None if there is none."""
    name = labels_of(job).get(RUN_LABEL) if job is not None else None
    if job is None or not name:
        return None
    jobs = reader.context.cluster.jobs_of_run(job["metadata"].get("namespace") or "default", name)
    return (await reader.complete([reader.view(jobs)], peaks=True))[0] if jobs else None


async def _find_pod(reader: RunReader, namespace: str, name: str) -> tuple[Obj, Obj | None]:
    """The pod of the run, Job or pod with that name, and its Job. Raises NotFound.

    For a run, the pod of the newest attempt.
    """
    cluster = reader.context.cluster
    job = max(cluster.jobs_of_run(namespace, name), key=attempt_of, default=None) or cluster.jobs.get(
        name, namespace
    )
    if job is None:
        if (pod := cluster.pods.get(name, namespace)) is not None:
            return pod, None
        job = max(await reader.jobs(namespace, name), key=attempt_of, default=None)
    if job is None:
        raise await reader.missing(namespace, name)
    return pod_for(job, cluster.pods_of_job(job)), job
