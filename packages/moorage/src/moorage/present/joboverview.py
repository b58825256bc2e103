"""Combine a run with its events, use and advice in one answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from moorage.api.jobs import Job
from moorage.api.overviews import JobEvent, JobOverview
from moorage.api.rightsizing import SizeAdvice
from moorage.api.use import Use
from moorage.decide.explain.mounts import failed_mount
from moorage.decide.runs.events import RunEvent, newest_events
from moorage.decide.runs.state import RunView, State, checkpoint_warning
from moorage.present.explanation import mount_text
from moorage.present.idlemarks import mark_of
from moorage.present.missing import way_to_mount
from moorage_kube.resources import Obj

EVENTS_SHOWN = 8


def make_overview(
    run: RunView,
    job: Job,
    now: datetime,
    *,
    events: Sequence[Obj] = (),
    use: Use | None = None,
    advice: Iterable[SizeAdvice] = (),
) -> JobOverview:
    """`job`: the run as an API object; `events`: the events of its Jobs and pods."""
    problem, hint = _mount(run, events)
    return JobOverview(
        job=job,
        use=use,
        events=tuple(map(_event, newest_events(events, EVENTS_SHOWN))),
        advice=tuple(advice),
        idle=_idle(run, now),
        checkpoint_warning=checkpoint_warning(run, now),
        stopping=tuple(pod.name for pod in run.pods if pod.deleting),
        mount_problem=problem,
        mount_hint=hint,
    )


def _event(event: RunEvent) -> JobEvent:
    return JobEvent(
        at=event.at,
        reason=event.reason,
        message=event.message,
        about=event.about.replace(" ", "/", 1),
        count=event.count,
    )


def _idle(run: RunView, now: datetime) -> str:
    """The idle label of a run; "" also for a suspended run: its reason says it already."""
    mark = "" if run.state is State.SUSPENDED else mark_of(run.idle, now)
    return f"{mark}: {run.idle.why}" if mark and run.idle.why else mark


def _mount(run: RunView, events: Sequence[Obj]) -> tuple[str, str]:
    """Why the volumes of the newest pod are not mounted, and the next step; "" if no event says it."""
    pod = run.pods[-1] if run.pods else None
    if run.state is not State.WAITING or pod is None or pod.gone or not pod.node or pod.started is not None:
        return "", ""
    mount = failed_mount(events, uid=pod.uid)
    if mount is None:
        return "", ""
    why = f"it does not start on {pod.node}: {mount_text(mount)}: {mount.cause}"
    return why, way_to_mount(mount, run.namespace, pod.name)
