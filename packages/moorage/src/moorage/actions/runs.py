"""List, show and cancel runs. A run is its Jobs (one for each attempt) and their pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

from moorage.actions.storedrecords import RunRecords
from moorage.api.errors import ErrorCode
from moorage.api.jobs import SORTS, Attempt, Code, Job, JobSummary, RunPod
from moorage.decide.runs.code import Code as CodeOfRun
from moorage.decide.runs.state import CANCELLED, AttemptView, PodView, RunView, State, attempt_of, view_run
from moorage.decide.runs.storedruns import view_deleted
from moorage.model.names import ENDED_ANNOTATION, NAME_COMPARED, RUN_LABEL, RUN_NAME_MAX, is_dns_label, label_value
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, NotFound, SelectorError, UsageError
from moorage_kube.meta import annotations_of, condition, is_condition_true, labels_of
from moorage_kube.resources import EVENTS, JOBS, PODS, Obj
from moorage_kube.selectors import LabelSelector, parse_label_selector

BY_POLICY = "PodFailurePolicy"  # reason of a Job that a disruption failed, or a kill for memory
NEAR_NAMES = 3  # that an error offers
EVENT_OBJECTS = 8  # newest Jobs and pods of a run whose events are read


class Cancelled(Struct, frozen=True):
    """The result of a cancellation. `outcome`: "cancelled", "deleted" or "had ended already"."""

    outcome: str
    jobs: tuple[Obj, ...]  # as they are now; empty after a deletion

    @property
    def is_deleted(self) -> bool:
        return not self.jobs


# -- reading


async def get_deleted(records: RunRecords, namespace: str, name: str) -> RunView | None:
    """The record of a run with deleted Jobs; None if nothing is stored."""
    return view_deleted(await records.run(namespace, name)) if is_run_name(name) else None


async def jobs_of_run(api: Api, namespace: str, name: str) -> list[Obj]:
    """The Jobs of a run, one for each attempt. Raises NotFound that suggests similar names."""
    if is_run_name(name):
        jobs = (await api.list(JOBS, namespace, label_selector=f"{RUN_LABEL}={name}")).items
        if jobs:
            return jobs
    raise await no_such_run(api, namespace, name)


async def pods_of_run(api: Api, namespace: str, name: str) -> list[Obj]:
    return (await api.list(PODS, namespace, label_selector=f"{RUN_LABEL}={name}")).items


async def events_of_run(api: Api, run: RunView) -> list[Obj]:
    """The events of the newest Jobs and pods of a run. Raises ApiError."""
    newest = [attempt.job for attempt in run.attempts[-2:]] + [pod.name for pod in run.pods[2 - EVENT_OBJECTS :]]
    names = sorted(set(newest))
    lists = await asyncio.gather(
        *(api.list(EVENTS, run.namespace, field_selector=f"involvedObject.name={name}") for name in names)
    )
    return [event for listed in lists for event in listed.items]


async def no_such_run(api: Api, namespace: str, name: str) -> NotFound:
    """The error for a run that does not exist, with similar names that the caller may list."""
    try:
        jobs = (await api.list(JOBS, namespace, label_selector=RUN_LABEL)).items
    except ApiError:
        jobs = []
    everywhere = await _may_list_everywhere(api)
    return missing_run(namespace, name, (labels_of(job)[RUN_LABEL] for job in jobs), everywhere=everywhere)


async def _may_list_everywhere(api: Api) -> bool:
    try:
        await api.list(JOBS, None, label_selector=RUN_LABEL, limit=1)
    except ApiError:
        return False
    return True


def missing_run(namespace: str, name: str, known: Iterable[str] = (), *, everywhere: bool = True) -> NotFound:
    """The error for a run that does not exist; `known` are the runs of its namespace.

    `everywhere`: whether the caller may list the runs of all namespaces.
    """
    near = get_close_matches(name[:NAME_COMPARED], sorted(set(known)), n=NEAR_NAMES)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif everywhere:
        hint = f"list the runs of namespace {namespace}: moor jobs -n {namespace}; of all: moor jobs -A"
    else:
        hint = f"list the runs of your namespace: moor jobs -n {namespace}; for another one, give -n NAMESPACE"
    return NotFound(
        f"run {name!r} not found in namespace {namespace}",
        hint=hint,
        code=ErrorCode.NOT_FOUND,
    )


def missing_attempt(run: RunView, attempt: int) -> NotFound:
    """The error for an attempt that a run does not have."""
    numbers = [known.number for known in run.attempts]
    return NotFound(
        f"run {run.name} has no attempt {attempt}",
        hint=f"it has {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"it has only {numbers[0]}",
        code=ErrorCode.NOT_FOUND,
    )


def is_run_name(name: str) -> bool:
    """Whether a run may have this name. Other names could be read as a selector."""
    return is_dns_label(name) and len(name) <= RUN_NAME_MAX


def select_runs(
    runs: Iterable[RunView],
    *,
    namespace: str | None = None,
    owner: str | None = None,
    state: str | None = None,
    active: bool = False,
    gpu_type: str | None = None,
    since: datetime | None = None,
    selector: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
) -> tuple[RunView, ...]:
    """The runs that match all filters; `active`: that have not ended; `since`: created then or later.

    An owner matches by the full name or by its label value. `sort` is one of SORTS; None leaves the order of the
    runs. `limit` counts after the sort. `selector` selects by the labels that users gave.
    Raises UsageError for an unknown state or order, and for an invalid selector.
    """
    # check the arguments before any filter runs
    if sort is not None and sort not in SORTS:
        message = f"invalid sort {sort!r}: use {', '.join(SORTS)}"
        raise UsageError(message, code=ErrorCode.BAD_REQUEST, field="sort")
    if state is not None and state not in list(State):
        raise UsageError(
            f"invalid state {state!r}: use {', '.join(State)}", code=ErrorCode.BAD_REQUEST, field="state"
        )
    # all filters are combined by and
    labelled = _label_selector(selector)
    owners = None if owner is None else (owner, label_value(owner))
    chosen = [
        run
        for run in runs
        if namespace in (None, run.namespace)
        and (owners is None or run.owner in owners)
        and state in (None, str(run.state))
        and gpu_type in (None, run.gpu_type)
        and (since is None or (run.created is not None and run.created >= since))
        and labelled.matches(run.labels)
        and not (active and run.state.ended)
    ]
    # a stable sort: equal runs stay in the given order
    match sort:
        case "name":
            chosen.sort(key=lambda run: (run.name, run.namespace))
        case "gpus":
            chosen.sort(key=lambda run: run.gpus, reverse=True)
        case "age":
            chosen.sort(key=lambda run: run.created or datetime.min.replace(tzinfo=UTC), reverse=True)
    return tuple(chosen[:limit])


def _label_selector(text: str | None) -> LabelSelector:
    try:
        return parse_label_selector(text or "")
    except SelectorError as error:
        raise UsageError(error.message, hint=error.hint, code=ErrorCode.BAD_REQUEST, field="selector") from error


# -- cancelling


async def cancel_run(api: Api, namespace: str, name: str, *, by: str, delete: bool | None = False) -> Cancelled:
    """Stop a run: its pods get their grace period, and no attempt follows. Checkpoints remain.

    `delete`: remove it too, with its pods (None: if it has ended). A run that has ended stays as it ended.
    The first Job is marked first: from then on no controller starts another attempt. Raises NotFound, ApiError.
    """
    jobs = sorted(await jobs_of_run(api, namespace, name), key=attempt_of)
    first, last = jobs[0], jobs[-1]
    if delete is None:
        delete = view_run(jobs, await pods_of_run(api, namespace, name)).state.ended
    live = [job for job in jobs if not (is_condition_true(job, "Complete") or is_condition_true(job, "Failed"))]
    settled = (
        is_condition_true(last, "Complete")
        or bool(annotations_of(first).get(ENDED_ANNOTATION))
        # by the rules of its pod failure policy alone an attempt is followed by another
        or (is_condition_true(last, "Failed") and (condition(last, "Failed") or {}).get("reason") != BY_POLICY)
    )
    has_ended = settled and not live
    if not has_ended:
        mark = {"metadata": {"annotations": {ENDED_ANNOTATION: f"{CANCELLED} by {by}"}}}
        await api.patch(JOBS, first["metadata"]["name"], mark, namespace)
    if delete:
        await _delete_jobs(api, jobs)
        return Cancelled("deleted", ())
    for job in live:
        await api.patch(JOBS, job["metadata"]["name"], {"spec": {"suspend": True}}, namespace)
    outcome = "had ended already" if has_ended else "cancelled"
    return Cancelled(outcome, tuple(await jobs_of_run(api, namespace, name)))


async def _delete_jobs(api: Api, jobs: Sequence[Obj]) -> None:
    """Delete the Jobs of a run, newest first: deleting the oldest may delete the others."""
    for job in reversed(jobs):
        meta = job["metadata"]
        try:
            await api.delete(JOBS, meta["name"], meta["namespace"], uid=meta.get("uid"), propagation="Background")
        except NotFound:
            continue


# -- on the wire


def summary_of(run: RunView) -> JobSummary:
    """The fields of a run that all users may see."""
    return JobSummary(**_public(run))


def job_of(run: RunView, now: datetime, *, private: bool = True, notes: Iterable[str] = ()) -> Job:
    """A run with its attempts. Without `private`, only the fields that all users may see."""
    return Job(
        **_public(run),
        history=tuple(_attempt(attempt, private=private) for attempt in run.attempts),
        command=run.command if private else "",
        requests=dict(run.requests) if private else {},
        labels=dict(run.labels) if private else {},
        code=_code(run.code) if private and run.code is not None else None,
        git=run.git if private else "",
        outputs=run.code.outputs if private and run.code is not None else "",
        deadline=run.deadline if private else None,
        time_left_seconds=_seconds(run.time_left(now)) if private else None,
        time_limit_seconds=_seconds(run.time_limit) if private else None,
        waited_seconds=_seconds(run.waited(now)),
        ran_seconds=_seconds(run.ran(now)),
        notes=tuple(notes),
    )


def _seconds(time: timedelta | None) -> int | None:
    return None if time is None else int(time.total_seconds())


def _public(run: RunView) -> dict[str, Any]:
    return {
        "namespace": run.namespace,
        "name": run.name,
        "owner": run.owner,
        "state": str(run.state),
        "reason": run.reason,
        "gpus": run.gpus,
        "gpu_type": run.gpu_type,
        "node": run.node,
        "created": run.created,
        "started": run.started,
        "ended": run.ended,
        "attempts": len(run.attempts),
        "restarts": run.restarts,
        "restart_limit": run.restart_limit,
        "retries": run.retries,
        "exit_code": run.exit_code,
        "checkpoint": run.checkpoint,
        "checkpoint_from": run.checkpoint_from,
        "checkpoint_at": run.checkpoint_at,
        "checkpoint_checked_at": run.checkpoint_checked_at,
        "idle_since": run.idle.since,
        "idle_next": run.idle.next,
        "idle_next_at": run.idle.next_at,
    }


def _code(code: CodeOfRun) -> Code:
    return Code(
        files=code.files,
        bytes=code.bytes,
        digest=code.digest,
        commit=code.commit,
        dirty=code.dirty,
        diff=code.diff,
    )


def _attempt(attempt: AttemptView, *, private: bool) -> Attempt:
    return Attempt(
        number=attempt.number,
        state=attempt.state,
        reason=attempt.reason,
        cause=attempt.cause.value if attempt.cause else "",
        message=attempt.message if private else "",
        job=attempt.job if private else "",
        created=attempt.created,
        ended=attempt.ended,
        pods=tuple(_pod(pod, private=private) for pod in attempt.pods),
    )


def _pod(pod: PodView, *, private: bool) -> RunPod:
    return RunPod(
        name=pod.name,
        phase=pod.phase,
        node=pod.node,
        started=pod.started,
        ended=pod.ended,
        exit_code=pod.exit_code,
        reason=pod.reason,
        message=pod.message if private else "",
        memory_limit_bytes=pod.memory_limit_bytes if private else None,
        peak_memory_bytes=pod.peak_memory_bytes if private else None,
        gone=pod.gone,
    )
