"""Explain why the steps of a workflow wait: an answer for programs, with one text for all user interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from moorage.api import explain as wire
from moorage.decide.explain.types import Explanation
from moorage.present.ending import moment_text
from moorage.present.explanation import explain_text, short_reason, starting_reason, way_on
from moorage.present.explanationanswer import make_explanation
from moorage_kube.moments import format_duration, whole_seconds
from moorage_kube.texts import as_lines
from moorage_workflows.decide.workflows.views import WorkflowView, with_step_names
from moorage_workflows.decide.workflows.waiting import Wait, WaitKind, Waits

RUNNING_SHOWN = 10
HOLDERS_SHOWN = 5


class Explained(Struct, frozen=True, kw_only=True):
    """A wait with details. `explanation`: of the pod of the first step; None if it was not requested."""

    wait: Wait
    explanation: Explanation | None = None
    holders: Sequence[wire.LockHolder] = ()


def make_workflow_explanation(
    view: WorkflowView, waits: Waits, explained: Sequence[Explained], *, step: str, now: datetime
) -> wire.WorkflowExplanation:
    """Return the answer for programs, including its text for users."""
    return wire.WorkflowExplanation(
        namespace=view.namespace,
        name=view.name,
        step=step,
        owner=view.owner,
        phase=str(waits.ended[-1].phase) if waits.ended and not _goes_on(waits) else view.phase,
        message=_message(view, waits, step),
        now=whole_seconds(now),
        running=tuple(
            wire.StepRunning(
                step=each.step, pod=each.pod, node=each.node, since=whole_seconds(each.since), note=each.note
            )
            for each in waits.running
        ),
        waits=tuple(_wait(each) for each in explained),
        short=wait_line(explained[0], now) if explained else "",
        text=as_lines(_lines(view, waits, explained, step, now)),
    )


def wait_line(explained: Explained, now: datetime) -> str:
    """One wait in one line: the waiting steps and the reason."""
    wait = explained.wait
    text = f"{_steps_text(wait)}: {_reason(explained)}" if wait.steps else _reason(explained)
    if wait.until is not None:
        left = f" (in {format_duration(wait.until - now)})" if wait.until > now else ""
        text += f", until {moment_text(wait.until)}{left}"
    return text


def _wait(explained: Explained) -> wire.WorkflowWait:
    wait = explained.wait
    return wire.WorkflowWait(
        kind=str(wait.kind),
        message=_reason(explained),
        hint=wait_hint(explained),
        steps=wait.steps,
        count=wait.count,
        until=whole_seconds(wait.until),
        pod=wait.pod,
        holders=tuple(explained.holders),
        explanation=make_explanation(explained.explanation) if explained.explanation else None,
    )


def _goes_on(waits: Waits) -> bool:
    return bool(waits.running or waits.waits)


def _message(view: WorkflowView, waits: Waits, step: str) -> str:
    if step:
        return waits.ended[-1].message if waits.ended and not _goes_on(waits) else ""
    return with_step_names(view.message, view)


def _reason(explained: Explained) -> str:
    explanation = explained.explanation
    if explained.wait.kind is not WaitKind.POD or explanation is None:
        return explained.wait.message
    return starting_reason(explanation) or short_reason(explanation) or explained.wait.message


def wait_hint(explained: Explained) -> str:
    """Advice about a wait; empty if there is none."""
    explanation = explained.explanation
    if explained.wait.hint or explanation is None or explanation.starting is None:
        return explained.wait.hint
    return way_on(explanation) if explanation.starting.is_trouble else ""


def _steps_text(wait: Wait) -> str:
    more = wait.count - len(wait.steps)
    return ", ".join(wait.steps) + (f" and {more} more" if more > 0 else "")


# -- text


def _lines(
    view: WorkflowView, waits: Waits, explained: Sequence[Explained], step: str, now: datetime
) -> list[str]:
    who = f"workflow {view.namespace}/{view.name}"
    who = f"step {step} of {who}" if step else who
    headline = _headline(view, waits, explained, who, step)
    if step and len(explained) == 1 and explained[0].explanation is not None and not waits.running:
        return [headline, *explain_text(explained[0].explanation).splitlines()[1:]]
    lines = [headline]
    if message := _message(view, waits, step):
        lines.append(message)
    if view.unreadable:
        lines.append(f"its steps are not known: {view.unreadable}")
    if view.has_ended and view.phase != "Succeeded" and not view.is_gone:
        lines.append(f"hint: run the failed steps again: moor workflow retry {view.name}")
    lines += _running_lines(waits)
    lines += _waiting_lines(explained, now)
    pods = [(each.wait, each.explanation) for each in explained if each.explanation is not None]
    if step:
        for _, explanation in pods:
            lines += ["", explain_text(explanation)]
    elif pods and pods[0][0].steps:
        more = "the holder of its lock" if pods[0][1].starting is None else "more of its pod"
        lines += ["", f"see {more}: moor explain '{view.name}/{pods[0][0].steps[0]}'"]
    return lines


def _running_lines(waits: Waits) -> list[str]:
    lines = ["", "Running"] if waits.running else []
    for running in waits.running[:RUNNING_SHOWN]:
        where = f" on {running.node}" if running.node else ""
        since = f", since {moment_text(running.since)}" if running.since else ""
        lines.append(f"  {running.step}{where}{since}" + (f": {running.note}" if running.note else ""))
    if len(waits.running) > RUNNING_SHOWN:
        lines.append(f"  and {len(waits.running) - RUNNING_SHOWN} more")
    return lines


def _waiting_lines(explained: Sequence[Explained], now: datetime) -> list[str]:
    if not explained:
        return []
    lines = ["", "Waiting"]
    for each in explained:
        lines.append(f"  {wait_line(each, now)}")
        for holder in each.holders[:HOLDERS_SHOWN]:
            lines.append(f"    held by {holder_text(holder)}")
        if len(each.holders) > HOLDERS_SHOWN:
            lines.append(f"    and {len(each.holders) - HOLDERS_SHOWN} more")
        if hint := wait_hint(each):
            lines.append(f"    {hint}")
    return lines


def holder_text(holder: wire.LockHolder) -> str:
    """The holder of a lock as text."""
    since = f", since {moment_text(holder.since)}" if holder.since else ""
    if not holder.workflow:
        return f"a workflow that you may not read{since}"
    whole = f"workflow {holder.namespace}/{holder.workflow}"
    return (f"step {holder.step} of {whole}" if holder.step and holder.step != holder.workflow else whole) + since


def _headline(view: WorkflowView, waits: Waits, explained: Sequence[Explained], who: str, step: str) -> str:
    if step and waits.ended and not _goes_on(waits):
        return f"{who} has ended: {waits.ended[-1].phase}"
    if view.has_ended:
        return f"{who} has ended: {view.phase}" if not step else f"{who} was not run: the workflow is {view.phase}"
    if view.shutdown:
        return f"{who} is being stopped"
    waiting = sum(each.wait.count for each in explained)
    if waits.running:
        words = f"{len(waits.running)} step{'s' if len(waits.running) > 1 else ''}"
        text = f"{who} is running" if step else f"{who} is running {words}"
        return text + (f"; {waiting} wait{'s' if waiting == 1 else ''}" if waiting else "")
    if len(explained) == 1:
        return f"{who} waits: {_reason(explained[0])}"
    if explained:
        return f"{who} waits for {len(explained)} things"
    return f"{who} is {view.phase}: no step runs or waits now"
