"""`moor show`, `moor cancel`: one run as it stands, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import click
import msgspec

from moorage.actions.runs import cancel_run, get_run, job_of
from moorage.api.gpus import Gpus
from moorage.api.use import Use
from moorage.cli import console
from moorage.cli.hints import as_typed
from moorage.cli.kept import AskedKept, erase_kept
from moorage.cli.names import complete
from moorage.cli.rightsize import advice_lines, advice_of_run
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.cli.use import ask_use, use_lines
from moorage.decide.explain.mounts import failed_mount
from moorage.decide.runs.state import PodView, RunView, State, checkpoint_warning
from moorage.decide.runs.timelimit import format_seconds
from moorage.present.explanation import mount_text
from moorage.present.idlemarks import mark_of
from moorage.present.missing import way_to_mount
from moorage_kube.errors import ApiError, MoorageError, NotFound
from moorage_kube.moments import format_duration, rfc3339
from moorage_kube.quantity import format_bytes
from moorage_kube.resources import EVENTS, Obj
from moorage_kube.texts import as_lines

EVENTS_SHOWN = 8
LOST = "unknown: no kubelet reported the end of the pod: its node was lost, or the pod was removed by force"


@console.command(
    examples={
        "moor show train-7f3a": "attempts, use over its life, checkpoint and events",
        "moor show train-7f3a -o json": "the same for a program",
    }
)
@click.argument("name", shell_complete=complete("runs"))
@console.document_option
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show a run: its attempts, how each ended, what it used over its life, checkpoint, events."""

    async def work(session: Session) -> int:
        ask_types = partial(_types_of_server, session, {})
        run = await get_run(session.api, session.namespace, name, AskedKept(session), ask_types)
        use = await ask_use(session, f"/api/v1/jobs/{quote(run.namespace)}/{quote(run.name)}")
        if output != "text":
            document = _as_json(run, session.clock.now())
            if use is not None:
                document["use"] = msgspec.to_builtins(use)
            console.print_document(document, output)
            return 0
        events, advice = await asyncio.gather(_events_of(session, run), advice_of_run(session, run.name))
        text = show_text(run, events, session.clock.now(), use)
        console.show(*text.split("\n"), *advice_lines(advice))
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor cancel train-7f3a": "stop a run; its checkpoint is kept",
        "moor cancel sweep-1 sweep-2 sweep-3": "stop several runs",
        "moor cancel --delete train-7f3a": "delete it too, so that its name is free again",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("runs"))
@click.option(
    "--delete",
    is_flag=True,
    help="Also delete the runs with their pods; their names are free again. Kept logs stay on the server.",
)
@click.option("--forget", is_flag=True, help="Also delete the runs, and erase what the server keeps of them.")
@target_options
def cancel(target: Target, names: tuple[str, ...], delete: bool, forget: bool) -> int:
    """Stop runs: their pods get their grace period, and no new attempt starts. Checkpoints are kept."""

    async def work(session: Session) -> int:
        done = await asyncio.gather(
            *(_cancel(session, name, delete=delete, forget=forget) for name in dict.fromkeys(names)),
            return_exceptions=True,
        )
        problems: list[tuple[str, str | None]] = []
        for outcome in done:
            if isinstance(outcome, ApiError):
                problems.append((outcome.message, outcome.hint))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                console.show(outcome)
        if problems:
            error = Problems(problems)
            error.exit_code = 1  # type: ignore[misc]
            raise error
        return 0

    return in_session(target, work)


async def _cancel(session: Session, name: str, *, delete: bool, forget: bool) -> str:
    """Stop one run, and say what was done."""
    missing: NotFound | None = None
    outcome = ""
    try:
        done = await cancel_run(
            session.api,
            session.namespace,
            name,
            by=await session.user(),
            delete=delete or forget,
        )
        outcome = f"{name} {done.outcome}"
    except NotFound as error:
        if not forget:
            raise
        missing = error
    if not forget:
        return outcome
    pods = await erase_kept(session, name)
    if missing is not None and not pods:
        raise missing
    erased = f"what was kept of {pods} {'pod' if pods == 1 else 'pods'} is erased"
    return f"{outcome}; {erased}" if outcome else f"{name} was deleted before; {erased}"


def _as_json(run: RunView, now: datetime) -> Any:
    """A run for programs, as the REST API gives it."""
    return msgspec.to_builtins(job_of(run, now))


def show_text(run: RunView, events: Sequence[Obj], now: datetime, use: Use | None = None) -> str:
    """All there is to know of a run, for people. `events`: of its Jobs and pods, oldest first."""
    state = str(run.state) + (f": {run.reason}" if run.reason and run.reason != str(run.state) else "")
    fields = [
        ("run", f"{run.namespace}/{run.name}"),
        ("state", state),
        ("idle", f"{mark}: {run.idle.why}" if (mark := _idle(run, now)) and run.idle.why else mark),
        ("owner", run.owner),
        ("labels", ", ".join(f"{key}={value}" for key, value in run.labels.items())),
        ("command", run.command),
        ("asks", _asks(run)),
        ("node", run.node),
        ("created", f"{format_duration(now - run.created)} ago" if run.created else ""),
        ("time", _time_text(run, now)),
        ("restarts", f"{run.restarts} of at most {run.restart_limit}"),
        ("checkpoint", _checkpoint_text(run, now)),
    ]
    width = max(len(name) for name, _ in fields)
    lines = [f"{name:<{width}}  {text}" for name, text in fields if text]
    if warning := checkpoint_warning(run, now):
        lines += ["", f"warning: {warning}"]
    lines += ["", "Attempts"]
    rows = []
    for attempt in run.attempts:
        if not attempt.pods:
            why = attempt.cause.value if attempt.cause else attempt.reason
            rows.append([str(attempt.number), "(its pod is gone)", "", attempt.state, why, "", ""])
        for pod in attempt.pods:
            rows.append(
                [
                    str(attempt.number),
                    pod.name,
                    pod.node,
                    _phase(pod),
                    _how_it_ended(pod),
                    _ran(pod, now),
                    _memory(pod),
                ]
            )
    headers = ("ATTEMPT", "POD", "NODE", "PHASE", "REASON", "RAN", "MEMORY")
    kept = frozenset({"PHASE", "REASON"})
    lines += console.plain_table_for_terminal(headers, rows, indent="  ", kept=kept).split("\n")
    if any(pod.is_lost for pod in run.pods):
        lines.append(f"  {LOST}")
    lines += _messages(run)
    lines += _mount_lines(run, events)
    lines += use_lines(use)
    if events:
        lines += ["", "Events", *(f"  {_event_text(event, now)}" for event in events[-EVENTS_SHOWN:])]
    if run.state is State.WAITING:
        lines += ["", f"moor explain {run.name} says why it waits"]
    return as_lines(lines)


def _mount_lines(run: RunView, events: Sequence[Obj]) -> list[str]:
    """Why the volumes of the newest pod are not mounted, and what to do; none: nothing says so."""
    pod = run.pods[-1] if run.pods else None
    if run.state is not State.WAITING or pod is None or pod.gone or not pod.node or pod.started is not None:
        return []
    mount = failed_mount(events, uid=pod.uid)
    if mount is None:
        return []
    why = f"it does not start on {pod.node}: {mount_text(mount)}: {mount.cause}"
    return ["", f"  {why}", as_typed(f"  hint: {way_to_mount(mount, run.namespace, pod.name)}")]


async def _events_of(session: Session, run: RunView) -> list[Obj]:
    """The events of the run's Jobs and pods, oldest first; none where they may not be read."""
    names = {attempt.job for attempt in run.attempts} | {pod.name for pod in run.pods}
    try:
        listed = await session.api.list(EVENTS, session.namespace)
    except ApiError:
        return []
    objs = [obj for obj in listed.items if (obj.get("involvedObject") or {}).get("name") in names]
    objs.sort(key=_event_time)
    return objs


def _event_time(event: Obj) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _event_text(event: Obj, now: datetime) -> str:
    from moorage_kube.moments import parse_rfc3339

    about = event.get("involvedObject") or {}
    stamp = _event_time(event)
    age = format_duration(now - parse_rfc3339(stamp)) if stamp else "?"
    times = f" (x{event['count']})" if int(event.get("count") or 1) > 1 else ""
    what = f"{str(about.get('kind') or '').lower()}/{about.get('name')}"
    return f"{age:>6}  {event.get('reason') or '':<20} {what}: {event.get('message') or ''}{times}"


async def _types_of_server(session: Session, known: dict[str, str], nodes: set[str]) -> dict[str, str]:
    """GPU types of nodes as the server tells them; `known` keeps them. Without a server: what is known."""
    if not nodes <= known.keys():
        with contextlib.suppress(MoorageError):
            answer = await session.server.ask(Gpus, "GET", "/api/v1/gpus")
            known.update({node.name: node.type for node in answer.nodes})
            known.update({node: "" for node in nodes - known.keys()})
    return known


def _idle(run: RunView, now: datetime) -> str:
    """That it is idle, and what comes; "" for a suspended one, whose reason says it."""
    return "" if run.state is State.SUSPENDED else mark_of(run.idle, now)


def _asks(run: RunView) -> str:
    parts = [f"{value} {name}" for name, value in run.requests.items() if "/" not in name]
    if run.gpus:
        parts.insert(
            0, f"{run.gpus} GPU{'s' if run.gpus > 1 else ''}" + (f" {run.gpu_type}" if run.gpu_type else "")
        )
    if "memory" not in run.requests:
        parts.append("no memory limit")
    return ", ".join(parts)


def _time_text(run: RunView, now: datetime) -> str:
    if run.deadline is None or run.state.ended:
        return ""
    left = format_seconds(max(0, int((run.deadline - now).total_seconds())))
    return f"{left} left, until {rfc3339(run.deadline)}"


def _checkpoint_text(run: RunView, now: datetime) -> str:
    if not run.checkpoint:
        return "none kept; a restart begins from the start (--checkpoint NAME keeps one)"
    of = f"; continues that of run {run.checkpoint_from}" if run.checkpoint_from else ""
    if run.checkpoint_at is None:
        return f"volume {run.checkpoint}; none written yet{of}"
    return f"volume {run.checkpoint}; newest {format_duration(now - run.checkpoint_at)} old{of}"


def _phase(pod: PodView) -> str:
    if pod.gone:
        return f"{pod.phase}, gone"
    return "Stopping" if pod.deleting and pod.phase == "Running" else pod.phase


def _how_it_ended(pod: PodView) -> str:
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else ""
    if pod.is_lost:
        code = "exit code unknown"
    if pod.reason == "Error":
        return code
    return f"{pod.reason} ({code})" if pod.reason and code else pod.reason or code


def _ran(pod: PodView, now: datetime) -> str:
    time = pod.running_time(now)
    if time is None:
        return "unknown" if pod.is_lost else ""
    return format_duration(time)


def _memory(pod: PodView) -> str:
    limit = f"limit {format_bytes(pod.memory_limit_bytes)}" if pod.memory_limit_bytes else "no limit"
    if pod.peak_memory_bytes is None and pod.is_lost:
        return f"peak unknown, {limit}"
    return f"peak {format_bytes(pod.peak_memory_bytes)}, {limit}" if pod.peak_memory_bytes else limit


def _messages(run: RunView) -> list[str]:
    """What the newest attempt's pod and Job have to say, once."""
    last = run.attempts[-1]
    messages = [pod.message for pod in last.pods[-1:] if pod.message]
    if last.message and last.state == "Failed":
        messages.append(last.message)
    lines = [f"  {message}" for message in dict.fromkeys(messages)]
    killed = next((pod for pod in reversed(run.pods) if pod.reason == "OOMKilled"), None)
    if killed is not None and run.state is State.OOM_KILLED:
        limit = f" of {format_bytes(killed.memory_limit_bytes)}" if killed.memory_limit_bytes else ""
        peak = f"; it had reached {format_bytes(killed.peak_memory_bytes)}" if killed.peak_memory_bytes else ""
        if (killed.peak_memory_bytes or 0) > (killed.memory_limit_bytes or 0) > 0:
            peak += " when that was measured: a program can grow past its limit between two measurements"
        lines.append(f"  killed for its memory: it grew beyond the limit{limit}{peak}")
        lines.append("  hint: run it again with a higher --memory")
    return ["", *lines] if lines else []
