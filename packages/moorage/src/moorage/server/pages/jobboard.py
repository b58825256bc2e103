"""The content of the page of one run: from its view and its newest Job to words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from moorage.decide.runs.events import RunEvent
from moorage.decide.runs.state import AttemptView, PodView, RunView, State, checkpoint_warning
from moorage.model.names import HOST_IMAGE
from moorage.present.idlemarks import mark_of
from moorage.present.reasons import attempt_words, message_words
from moorage.server.pages.board import When, ago, owner_hues, run_tone, span, time_left, type_name, why_words
from moorage.server.pages.texts import N_, say
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import format_bytes
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu

UNKNOWN = "unknown"  # a time that is not known
_ATTEMPT_TONES = {"Running": "good", "Waiting": "wait", "Suspended": "wait", "Succeeded": "done"}


class Fact(Struct, frozen=True, kw_only=True):
    """One line of a list of details: a text or a moment; with `href` it is a link."""

    name: str
    text: str = ""
    href: str = ""
    when: When | None = None
    say: str = "ago"  # how the page counts on: "ago" or "left"
    note: str = ""  # behind it, small


class PodRow(Struct, frozen=True, kw_only=True):
    """A pod, as a row under its attempt."""

    name: str
    phase: str
    node: str
    took: str
    exit_code: str
    is_bad: bool
    reason: str
    message: str
    memory: str
    is_chosen: bool
    is_gone: bool  # its object is deleted: these are stored facts


class AttemptRow(Struct, frozen=True, kw_only=True):
    number: int
    state: str
    tone: str
    why: str
    created: When | None
    pods: tuple[PodRow, ...]


class EventRow(Struct, frozen=True, kw_only=True):
    when: When | None
    is_warning: bool
    reason: str
    message: str
    about: str
    count: int


class JobModel(Struct, frozen=True, kw_only=True):
    """The page of one run. Without `private` it has only the public fields."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str
    tone: str
    has_ended: bool
    private: bool
    command: str
    asks: tuple[Fact, ...]
    times: tuple[Fact, ...]
    labels: tuple[tuple[str, str], ...]
    warning: str
    attempts: tuple[AttemptRow, ...]
    restarts: str

    @property
    def has_gone_pods(self) -> bool:
        return any(pod.is_gone for attempt in self.attempts for pod in attempt.pods)


def job_model(run: RunView, job: Obj, now: datetime, *, private: bool, chosen: str = "") -> JobModel:
    """The data of a run's page. `job`: its newest Job; `chosen`: the pod whose log is shown."""
    return JobModel(
        namespace=run.namespace,
        name=run.name,
        owner=run.owner,
        hue=owner_hues([run.owner])[run.owner],
        state=str(run.state),
        tone=run_tone(run.state),
        has_ended=run.state.ended,
        private=private,
        command=run.command if private else "",
        asks=tuple(_asks(run, job, private=private)),
        times=tuple(_times(run, now, private=private)),
        labels=tuple(run.labels.items()) if private else (),
        warning=checkpoint_warning(run, now),
        attempts=tuple(
            _attempt(attempt, now, private=private, chosen=chosen) for attempt in reversed(run.attempts)
        ),
        restarts=_restarts(run),
    )


def running_words(run: RunView, now: datetime) -> str:
    """The state of a run that holds its place, or is suspended, in a sentence."""
    if run.state is State.SUSPENDED:
        return why_words(run)
    if (ran := run.ran(now)) is None:
        return say("It is running on {node}", node=run.node)
    if run.deadline is None:
        return say("It has run for {span} on {node}", span=span(ran), node=run.node)
    left = say("past its limit") if run.deadline <= now else time_left(run.deadline, now)
    return say("It has run for {span} on {node}; {left}", span=span(ran), node=run.node, left=left)


def event_rows(events: Iterable[RunEvent], now: datetime) -> tuple[EventRow, ...]:
    return tuple(
        EventRow(
            when=ago(event.at, now),
            is_warning=event.is_warning,
            reason=event.reason,
            message=event.message,
            about=event.about,
            count=event.count,
        )
        for event in events
    )


def _asks(run: RunView, job: Obj, *, private: bool) -> Iterable[Fact]:
    """The requested resources, and other settings of the Job."""
    spec = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    container = (spec.get("containers") or [{}])[0]
    limits: Mapping[str, str] = (container.get("resources") or {}).get("limits") or {}
    if run.gpus:
        kind = run.gpu_type
        words = f"{run.gpus} × {type_name(kind)}" if kind else f"{run.gpus} of any type"
        yield Fact(name="GPUs", text=words, href=f"/gpus/{kind}" if kind and "," not in kind else "")
    else:
        yield Fact(name="GPUs", text=N_("none"))
    if not private:
        return
    image = str(container.get("image") or "")
    yield Fact(name="Image", text="none: it runs on the machine itself" if image == HOST_IMAGE else image)
    if run.git:
        yield Fact(name="Code from git", text=run.git)
    for name, label in (("cpu", "CPU"), ("memory", "Memory limit")):
        if limits.get(name):
            yield Fact(name=label, text=str(limits[name]))
    if any(is_gpu(name) and name != "nvidia.com/gpu" for name in limits):
        yield Fact(name="GPU resource", text=", ".join(name for name in limits if is_gpu(name)))
    yield Fact(name="Time limit", text=span(run.time_limit) if run.time_limit else N_("none"))
    if spec.get("priorityClassName"):
        yield Fact(name="Priority class", text=str(spec["priorityClassName"]))
    for volume in spec.get("volumes") or ():
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and claim != run.checkpoint:
            yield Fact(name="Volume", text=claim, href=f"/volumes/{run.namespace}/{claim}")


def _peak(run: RunView) -> Fact:
    """The highest use of memory of all its pods, with the limit of that pod."""
    measured = [pod for pod in run.pods if pod.peak_memory_bytes is not None]
    if not measured:
        return Fact(name="Peak memory", text="not measured")
    pod = max(measured, key=lambda pod: pod.peak_memory_bytes or 0)
    return peak_fact(pod.peak_memory_bytes or 0, pod.memory_limit_bytes)


def peak_fact(peak: int, limit: int | None) -> Fact:
    """A use of memory with the limit, both in bytes."""
    note = f"{100 * peak // limit} % of {format_bytes(limit)}" if limit else ""
    if limit and peak > limit:
        note += "; it grew past the limit between two measurements"
    return Fact(name="Peak memory", text=format_bytes(peak), note=note)


def _times(run: RunView, now: datetime, *, private: bool) -> Iterable[Fact]:
    if run.node:
        yield Fact(name="Node", text=run.node, href=f"/nodes/{run.node}")
    yield Fact(name="Created", when=ago(run.created, now), note="ago")
    if (waited := run.waited(now)) is not None:
        yield Fact(name="Waited", text=span(waited))
    if run.started is not None:
        yield Fact(name="Started", when=ago(run.started, now), note="ago")
        yield Fact(name="Ran for", text=UNKNOWN if (ran := run.ran(now)) is None else span(ran))
    if private:
        yield _peak(run)
    if run.state is not State.SUSPENDED and (mark := mark_of(run.idle, now)):
        yield Fact(name="Use of its GPUs", text=mark)
    if run.ended is not None:
        yield Fact(name="Ended", when=ago(run.ended, now), note="ago")
    if private and run.deadline is not None and not run.state.ended:
        words = say("past its limit") if run.deadline <= now else time_left(run.deadline, now)
        yield Fact(name="Time left", when=When(words, rfc3339(run.deadline)), say="left")
    if run.checkpoint:
        href = f"/volumes/{run.namespace}/{run.checkpoint}" if private else ""
        yield Fact(name="Checkpoints on", text=run.checkpoint, href=href)
        newest = ago(run.checkpoint_at, now)
        if newest is not None:
            yield Fact(name="Last checkpoint", when=newest, note="ago")
        else:
            yield Fact(name="Last checkpoint", text="none yet")
    else:
        yield Fact(name="Checkpoints", text="not kept", note="a restart begins from the start")


def _restarts(run: RunView) -> str:
    words = say("{restarts} of at most {limit} restarts", restarts=run.restarts, limit=run.restart_limit)
    return f"{words}, {run.retries} retries" if run.retries else words


def _attempt(attempt: AttemptView, now: datetime, *, private: bool, chosen: str) -> AttemptRow:
    cause = attempt.cause.value if attempt.cause else ""
    return AttemptRow(
        number=attempt.number,
        state=attempt.state,
        tone=_ATTEMPT_TONES.get(attempt.state, "bad"),
        why=attempt_words(cause, attempt.reason, attempt.message if private else ""),
        created=ago(attempt.created, now),
        pods=_pods(attempt.pods, now, private=private, chosen=chosen),
    )


def _pods(pods: Sequence[PodView], now: datetime, *, private: bool, chosen: str) -> tuple[PodRow, ...]:
    return tuple(_pod(pod, now, private=private, chosen=chosen) for pod in reversed(pods))


def _pod(pod: PodView, now: datetime, *, private: bool, chosen: str) -> PodRow:
    measured: Any = pod.peak_memory_bytes if private else None
    return PodRow(
        name=pod.name,
        phase=pod.phase,
        node=pod.node,
        took=_ran(pod, now),
        exit_code=UNKNOWN if pod.is_lost else "" if pod.exit_code is None else str(pod.exit_code),
        is_bad=bool(pod.exit_code),
        reason="" if pod.reason == "Error" else pod.reason,  # the exit code says it
        message=message_words(pod.reason, pod.message) if private and pod.message else "",
        memory="" if measured is None else format_bytes(measured),
        is_chosen=pod.name == chosen,
        is_gone=pod.gone,
    )


def _ran(pod: PodView, now: datetime) -> str:
    """The time that its container ran; empty: it has not begun. Unknown for a pod that was lost with its
    node.
    """
    time = pod.running_time(now)
    if time is not None:
        return span(time)
    return UNKNOWN if pod.started or (pod.gone and pod.node) else ""
