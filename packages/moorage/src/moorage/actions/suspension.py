"""Suspend a run, so that it holds no resources, and resume it from its checkpoint.

Each is a single change of one Job, so that a crash leaves no partial state; both can be repeated. The caller
decides whether a run has a checkpoint to resume from.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from moorage.actions.runs import jobs_of_run
from moorage.api.errors import ErrorCode
from moorage.cluster.kueue import activate, deactivate
from moorage.decide.runs.interrupted import was_suspended
from moorage.decide.runs.kueue import queue_of
from moorage.decide.runs.state import Suspension, attempt_of, suspension_of
from moorage.model.names import (
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    ENDED_ANNOTATION,
    SUSPENDED_ANNOTATION,
)
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Conflict
from moorage_kube.meta import annotations_of, is_condition_true
from moorage_kube.resources import JOBS, Obj


class Switched(Struct, frozen=True):
    """The result. `changed` is False if it was so already. `checkpoint_at`: where the run resumes from, if any."""

    changed: bool
    jobs: tuple[Obj, ...]
    checkpoint_at: str = ""


async def suspend_run(
    api: Api, namespace: str, name: str, *, by: str, why: str = "", clock: Clock = SYSTEM
) -> Switched:
    """Stop the pods of a run after their grace period; no pods start until the run is resumed.

    Raises NotFound, ApiError, and Conflict for a run that has ended.
    """
    jobs = await _live_jobs(api, namespace, name)
    last = jobs[-1]
    if suspension_of(last):
        return _switched(jobs, changed=False)
    note = _encode(Suspension(by=by, at=clock.now().replace(microsecond=0), why=why))
    patch: Obj = {"metadata": {"annotations": {SUSPENDED_ANNOTATION: note}}, "spec": {"suspend": True}}
    changed = await _change(api, last, patch, clock)
    if queue_of(changed):
        await deactivate(api, changed)  # otherwise Kueue resumes the Job
    return _switched([*jobs[:-1], changed], changed=True)


async def resume_run(api: Api, namespace: str, name: str, *, clock: Clock = SYSTEM) -> Switched:
    """Resume a suspended run; its program sees the same checkpoint folder as before.

    Raises NotFound, ApiError, and Conflict for a run that has ended, or that waits in a queue of Kueue.
    """
    jobs = await _live_jobs(api, namespace, name)
    last = jobs[-1]
    if not last["spec"].get("suspend"):
        return _switched(jobs, changed=False)
    if not suspension_of(last) and queue_of(last):
        raise Conflict(
            f"run {name} waits in Kueue's queue {queue_of(last)}: no user suspended it",
            hint=f"moor explain {name} -n {namespace}",
            code=ErrorCode.CONFLICT,
        )
    patch: Obj = {"metadata": {"annotations": {SUSPENDED_ANNOTATION: None}}, "spec": {"suspend": False}}
    if queue_of(last):
        await activate(api, last)
        patch.pop("spec")  # Kueue starts it when there is quota
    changed = await _change(api, last, patch, clock)
    return _switched([*jobs[:-1], changed], changed=True)


async def _live_jobs(api: Api, namespace: str, name: str) -> list[Obj]:
    jobs = sorted(await jobs_of_run(api, namespace, name), key=attempt_of)
    last = jobs[-1]
    ended = annotations_of(jobs[0]).get(ENDED_ANNOTATION, "")
    is_over = is_condition_true(last, "Complete") or is_condition_true(last, "Failed")
    if (is_over and not was_suspended(last)) or ended:
        raise Conflict(
            f"run {name} has ended" + (f" ({ended})" if ended else ""),
            hint=f"start it again: moor rerun {name} -n {namespace}",
            code=ErrorCode.CONFLICT,
        )
    return jobs


async def _change(api: Api, job: Obj, patch: Obj, clock: Clock) -> Obj:
    """Patch a Job, guarded by its uid: raises Conflict if another Job has the name now."""
    meta = job["metadata"]

    async def read() -> tuple[Obj, Obj]:
        stored = await api.get(JOBS, meta["name"], meta["namespace"])
        return stored, {**patch, "metadata": {**patch["metadata"], "uid": meta["uid"]}}

    return await change_as_read(api, JOBS, read, clock=clock)


def _switched(jobs: list[Obj], *, changed: bool) -> Switched:
    notes = annotations_of(jobs[0])
    kept = notes.get(CHECKPOINT_AT_ANNOTATION, "") if notes.get(CHECKPOINT_ANNOTATION) else ""
    return Switched(changed, tuple(jobs), kept)


def _encode(suspension: Suspension) -> str:
    return msgspec.json.encode(suspension).decode()
