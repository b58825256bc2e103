"""What is done to runs through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.apimachinery.api import Api
from moorage.apimachinery.meta import annotations_of, condition, is_condition_true
from moorage.apimachinery.resources import JOBS, Obj
from moorage.decide.runs.state import CANCELLED, attempt_of
from moorage.errors import NotFound
from moorage.model.names import ENDED_ANNOTATION

BY_POLICY = "PodFailurePolicy"  # reason of a Job that a disruption failed, or a kill for memory


async def cancel_run(api: Api, jobs: Iterable[Obj], *, by: str, delete: bool = False) -> str:
    """Stop a run, given its Jobs (one or more); return "cancelled", "deleted", or "had ended already".

    Intent first: from the mark on the first Job on, nobody starts another attempt. Raises ApiError.
    """
    found = sorted(jobs, key=attempt_of)
    first, last = found[0], found[-1]
    namespace = first["metadata"]["namespace"]
    live = [job for job in found if not (is_condition_true(job, "Complete") or is_condition_true(job, "Failed"))]
    settled = (
        is_condition_true(last, "Complete")
        or bool(annotations_of(first).get(ENDED_ANNOTATION))
        # by the rules of its pod failure policy alone an attempt is followed by another
        or (is_condition_true(last, "Failed") and (condition(last, "Failed") or {}).get("reason") != BY_POLICY)
    )
    if not settled or live:
        mark = {"metadata": {"annotations": {ENDED_ANNOTATION: f"{CANCELLED} by {by}"}}}
        await api.patch(JOBS, first["metadata"]["name"], mark, namespace)
    if delete:
        for job in reversed(found):
            try:
                await api.delete(
                    JOBS,
                    job["metadata"]["name"],
                    namespace,
                    uid=job["metadata"].get("uid"),
                    propagation="Background",
                )
            except NotFound:
                continue  # it went with the first attempt
        return "deleted"
    for job in live:
        await api.patch(JOBS, job["metadata"]["name"], {"spec": {"suspend": True}}, namespace)
    return "cancelled" if live or not settled else "had ended already"
