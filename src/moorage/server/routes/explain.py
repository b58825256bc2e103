"""GET /api/v1/explain/{namespace}/{name}: why a run or a pod waits."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.meta import is_condition_true
from moorage.apimachinery.resources import Obj
from moorage.decide.explain import explain_in, explain_text, pod_of_job, to_json
from moorage.decide.runstate import attempt_of
from moorage.server.cluster import Cluster
from moorage.server.context import Context
from moorage.server.problems import Json, Problem


def routes(context: Context) -> list[Route]:
    async def explain(request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
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
        said = explain_in(
            cluster.snapshot(), pod, now=context.now(), claims=await cluster.claims(namespace), events=events
        )
        return Json(to_json(said) | {"text": explain_text(said)})

    return [Route("/api/v1/explain/{namespace}/{name}", explain, methods=["GET"])]


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
