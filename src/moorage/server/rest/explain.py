"""GET /api/v1/explain/{namespace}/{name}: why a run or a pod waits. POST /api/v1/explain: why one would.

Who may read the pods of its namespace is told all; everybody else, who made it too, only what is public.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.meta import is_condition_true
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.scheduling import has_gate, parse_pod
from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import concerning, pod_of_job, snapshot
from moorage.decide.explain.storage import Storage
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.state import attempt_of
from moorage.errors import QuantityError
from moorage.model.names import MACHINE_GATE
from moorage.present.explanation import explain_text
from moorage.present.explanationjson import to_json
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.inputs import read_as
from moorage.server.problems import Json, Problem

BODY_BYTES = 3 * 1024 * 1024  # etcd's own limit on an object is half of it
CLAIMS_MAX = 5000


class Asked(msgspec.Struct):
    """The body of a POST: a `v1.Pod` not made yet, and the claims of its namespace as its user sees them."""

    pod: dict[str, Any]
    claims: list[dict[str, Any]] | None = None
    refused: str = ""  # why the API server would not have it, in its words


def routes(context: Context) -> list[Route]:
    async def explain(request: Request) -> Response:
        """Why a run or a pod waits, how long, and what would start sooner."""
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        return _answer(await explained(context, namespace, name, request.state.user))

    async def explain_new(request: Request) -> Response:
        """Why a pod that is not made yet would wait: `{pod, claims}`."""
        cluster = await context.ready()
        asked = await read_as(
            request, Asked, BODY_BYTES, hint="send {pod: a v1 Pod, claims: its namespace's claims}"
        )
        meta = asked.pod.get("metadata")
        if not isinstance(meta, dict) or meta.get("uid"):
            raise Problem(
                422, "invalid", "the pod has no metadata, or is made already", "GET explains a pod that is", "pod"
            )
        try:
            info = parse_pod(asked.pod)
            storage = Storage()
            if info.claims and asked.claims is not None:
                storage = await cluster.storage(info.namespace, asked.claims[:CLAIMS_MAX])
            events = ({"reason": "FailedCreate", "message": asked.refused},) if asked.refused else ()
            return _answer(await _explained(context, asked.pod, storage, events))
        except (QuantityError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise Problem(422, "invalid", f"the pod cannot be read: {exc}", "send a v1 Pod", "pod") from exc

    return [
        Route("/api/v1/explain/{namespace}/{name}", explain, methods=["GET"]),
        Route("/api/v1/explain", explain_new, methods=["POST"]),
    ]


async def explained(context: Context, namespace: str, name: str, user: User) -> Explanation:
    """The explanation of a run, Job or pod, as much of it as the user may know. Raises Problem 404."""
    cluster = await context.ready()
    found = find_pod(cluster, namespace, name)
    if found is None:
        raise Problem(
            404,
            "not_found",
            f"there is no run, Job or pod {namespace}/{name}",
            "`moor jobs --all-namespaces` lists the runs",
            "name",
        )
    pod, job = found
    events = await cluster.events_about(namespace, pod["metadata"]["name"])
    if job is not None and job["metadata"]["name"] != pod["metadata"]["name"]:
        events += await cluster.events_about(namespace, job["metadata"]["name"])
    storage = await cluster.storage(namespace) if parse_pod(pod).claims else Storage()
    suspended = job is not None and bool((job.get("spec") or {}).get("suspend"))
    said = await _explained(context, pod, storage, tuple(events), suspended=suspended)
    return said if await context.auth.may_read_pods(user, namespace) else as_public(said)


async def _explained(
    context: Context, pod: Obj, storage: Storage, events: tuple[Obj, ...], *, suspended: bool = False
) -> Explanation:
    cluster, past = context.cluster, await context.past.history()
    machines = await cluster.machines() if has_gate(pod.get("spec") or {}, MACHINE_GATE) else []
    nodes, pods, now = cluster.nodes.all(), cluster.pods.all(), context.now()

    def work() -> Explanation:
        explainer = Explainer(snapshot(nodes, concerning(pod, pods), history=past, machines=machines))
        return explainer.explain(pod, now=now, storage=storage, events=events, suspended=suspended)

    return await asyncio.to_thread(work)


def _answer(said: Explanation) -> Response:
    return Json(to_json(said) | {"text": explain_text(said)})


def find_pod(cluster: Cluster, namespace: str, name: str) -> tuple[Obj, Obj | None] | None:
    """The pod that stands for a run, a Job or a pod of that name, and its Job; None when there is none.

    Of a run the newest attempt counts. A Job without a pod is judged by the pod it would make.
    """
    jobs = cluster.jobs_of_run(namespace, name)
    job = max(jobs, key=attempt_of, default=None) or cluster.jobs.get(name, namespace)
    if job is None:
        pod = cluster.pods.get(name, namespace)
        return None if pod is None else (pod, None)
    pods = sorted(
        cluster.pods_of_job(job), key=lambda one: (_is_over(one), one["metadata"].get("creationTimestamp") or "")
    )
    alive = [one for one in pods if not _is_over(one)]
    if alive:
        return alive[-1], job
    ended = is_condition_true(job, "Complete") or is_condition_true(job, "Failed")
    if ended and pods:
        return pods[-1], job
    pod = pod_of_job(job)
    if ended:
        pod["status"] = {"phase": "Failed" if is_condition_true(job, "Failed") else "Succeeded"}
    return pod, job


def _is_over(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
