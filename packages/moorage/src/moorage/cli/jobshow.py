"""`moor show`: show one run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timedelta

import click
import msgspec

from moorage.api.jobs import Job, RunPod
from moorage.api.overviews import JobEvent, JobOverview
from moorage.api.rightsizing import SizeAdvice
from moorage.cli import console
from moorage.cli.hints import as_typed
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_about_run, in_session, target_options
from moorage.cli.use import use_lines
from moorage.decide.runs.timelimit import format_seconds
from moorage.present.codetext import code_text
from moorage.present.reasons import attempt_words, message_words, reason_words
from moorage.settings import ADVICE
from moorage_kube.moments import format_duration, rfc3339
from moorage_kube.quantity import format_bytes
from moorage_kube.texts import as_lines

LOST = "unknown: no kubelet reported the end of the pod: its node was lost, or the pod was removed by force"
OVERVIEW = "/api/v1/jobs/{namespace}/{name}/overview"


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
    """Show a run: its attempts, how each ended, its use over its life, checkpoint, events."""

    async def work(session: Session) -> int:
        is_text = output == "text"
        params = {"advice": is_text and ADVICE.read(os.environ)}
        overview = await ask_about_run(session, JobOverview, OVERVIEW, name, params)
        if is_text:
            console.show(*show_text(overview, session.clock.now()).split("\n"), *advice_lines(overview.advice))
            return 0
        document = msgspec.to_builtins(overview.job)
        if overview.use is not None:
            document["use"] = msgspec.to_builtins(overview.use)
        console.print_document(document, output)
        return 0

    return in_session(target, work, asks_once=True)


def show_text(overview: JobOverview, now: datetime) -> str:
    """Return all facts of a run as text for people."""
    # facts first; empty ones are left out
    run = overview.job
    state = run.state + (f": {reason_words(run.reason)}" if run.reason and run.reason != run.state else "")
    fields = [
        ("run", f"{run.namespace}/{run.name}"),
        ("state", state),
        ("idle", overview.idle),
        ("owner", run.owner),
        ("labels", ", ".join(f"{key}={value}" for key, value in run.labels.items())),
        ("command", run.command),
        ("code", _code_text(run)),
        ("git", run.git),
        ("outputs", run.outputs),
        ("asks", _asks(run)),
        ("node", run.node),
        ("created", f"{format_duration(now - run.created)} ago" if run.created else ""),
        ("waited", _seconds_text(run.waited_seconds)),
        ("ran", _seconds_text(run.ran_seconds)),
        ("time limit", _time_text(run, now)),
        ("restarts", f"{run.restarts} of at most {run.restart_limit}"),
        ("checkpoint", _checkpoint_text(run, now)),
    ]
    width = max(len(name) for name, _ in fields)
    lines = [f"{name:<{width}}  {text}" for name, text in fields if text]
    if overview.checkpoint_warning:
        lines += ["", f"warning: {overview.checkpoint_warning}"]
    # one row per pod; an attempt without recorded pods has one row too
    lines += ["", "Attempts"]
    rows = []
    for attempt in run.history:
        if not attempt.pods:
            why = attempt_words(attempt.cause, attempt.reason, attempt.message)
            rows.append([str(attempt.number), "(its pod is deleted)", "", attempt.state, why, "", ""])
        for pod in attempt.pods:
            rows.append(
                [
                    str(attempt.number),
                    pod.name,
                    pod.node,
                    _phase(pod, is_stopping=pod.name in overview.stopping),
                    _how_it_ended(pod),
                    _ran(pod, now),
                    _memory(pod),
                ]
            )
    # on a narrow terminal, phase and reason are the last to be dropped
    headers = ("ATTEMPT", "POD", "NODE", "PHASE", "REASON", "RAN", "MEMORY")
    kept = frozenset({"PHASE", "REASON"})
    lines += console.plain_table_for_terminal(headers, rows, indent="  ", kept=kept).split("\n")
    # then causes, use and events, each with a hint where one helps
    if any(pod.is_lost for attempt in run.history for pod in attempt.pods):
        lines.append(f"  {LOST}")
    lines += _messages(run)
    if overview.mount_problem:
        lines += ["", f"  {overview.mount_problem}", as_typed(f"  hint: {overview.mount_hint}")]
    lines += use_lines(overview.use)
    if overview.events:
        lines += ["", "Events", *(f"  {_event_text(event, now)}" for event in overview.events)]
    if run.state == "Waiting":
        lines += ["", f"moor explain {run.name} says why it waits"]
    return as_lines(lines)


def advice_lines(advice: Iterable[SizeAdvice]) -> list[str]:
    """The lines of the advice; empty if there is none."""
    lines = [f"  {each.text}" for each in advice]
    return ["", "Advice, by past runs of the same command", *lines] if lines else []


def _event_text(event: JobEvent, now: datetime) -> str:
    age = format_duration(now - event.at) if event.at else "?"
    times = f" (x{event.count})" if event.count > 1 else ""
    return f"{age:>6}  {event.reason:<20} {event.about}: {event.message}{times}"


def _code_text(run: Job) -> str:
    if run.code is None:
        return ""
    return code_text(run.code) + ("; -o json has the diff" if run.code.diff else "")


def _asks(run: Job) -> str:
    parts = [f"{value} {name}" for name, value in run.requests.items() if "/" not in name]
    if run.gpus:
        parts.insert(
            0, f"{run.gpus} GPU{'s' if run.gpus > 1 else ''}" + (f" {run.gpu_type}" if run.gpu_type else "")
        )
    if "memory" not in run.requests:
        parts.append("no memory limit")
    return ", ".join(parts)


def _seconds_text(seconds: int | None) -> str:
    return "" if seconds is None else format_duration(timedelta(seconds=seconds))


def _time_text(run: Job, now: datetime) -> str:
    limit = format_seconds(run.time_limit_seconds) if run.time_limit_seconds else "none"
    if run.deadline is None or run.has_ended:
        return limit
    left = format_seconds(max(0, int((run.deadline - now).total_seconds())))
    return f"{limit}; {left} left, until {rfc3339(run.deadline)}"


def _checkpoint_text(run: Job, now: datetime) -> str:
    if not run.checkpoint:
        return "none; a restart begins from the start (--checkpoint NAME adds one)"
    of = f"; continues that of run {run.checkpoint_from}" if run.checkpoint_from else ""
    if run.checkpoint_at is None:
        return f"volume {run.checkpoint}; none written yet{of}"
    return f"volume {run.checkpoint}; newest {format_duration(now - run.checkpoint_at)} old{of}"


def _phase(pod: RunPod, *, is_stopping: bool) -> str:
    if pod.gone:
        return f"{pod.phase}, gone"
    return "Stopping" if is_stopping and pod.phase == "Running" else pod.phase


def _how_it_ended(pod: RunPod) -> str:
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else ""
    if pod.is_lost:
        code = "exit code unknown"
    if pod.reason == "Error":
        return code
    return f"{pod.reason} ({code})" if pod.reason and code else pod.reason or code


def _ran(pod: RunPod, now: datetime) -> str:
    if pod.started is None or (pod.ended is None and pod.phase != "Running"):
        return "unknown" if pod.is_lost else ""
    return format_duration(max(timedelta(), (pod.ended or now) - pod.started))


def _memory(pod: RunPod) -> str:
    limit = f"limit {format_bytes(pod.memory_limit_bytes)}" if pod.memory_limit_bytes else "no limit"
    if pod.peak_memory_bytes is None and pod.is_lost:
        return f"peak unknown, {limit}"
    return f"peak {format_bytes(pod.peak_memory_bytes)}, {limit}" if pod.peak_memory_bytes else limit


def _messages(run: Job) -> list[str]:
    """Return the messages of the newest attempt's pod and Job, without duplicates."""
    last = run.history[-1]
    messages = [message_words(pod.reason, pod.message) for pod in last.pods[-1:] if pod.message]
    if last.message and last.state == "Failed" and not messages:
        messages.append(attempt_words(last.cause, last.reason, last.message))
    lines = [f"  {message}" for message in dict.fromkeys(messages)]
    pods = [pod for attempt in run.history for pod in attempt.pods]
    killed = next((pod for pod in reversed(pods) if pod.reason == "OOMKilled"), None)
    if killed is not None and run.state == "OOMKilled":
        limit = f" of {format_bytes(killed.memory_limit_bytes)}" if killed.memory_limit_bytes else ""
        peak = f"; it had reached {format_bytes(killed.peak_memory_bytes)}" if killed.peak_memory_bytes else ""
        if (killed.peak_memory_bytes or 0) > (killed.memory_limit_bytes or 0) > 0:
            peak += " when that was measured: a program can grow past its limit between two measurements"
        lines.append(f"  killed for its memory: it grew beyond the limit{limit}{peak}")
        lines.append("  hint: run it again with a higher --memory")
    return ["", *lines] if lines else []
