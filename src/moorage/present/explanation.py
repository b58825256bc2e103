"""Why a pod waits, as people read it: the same words in the command line and on the page.

`explanation_view` gives headline, advice and sections; `explain_text` lays them out as text, the page as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from moorage.apimachinery.moments import format_duration, rfc3339
from moorage.apimachinery.quantity import format_amount
from moorage.decide.explain.amounts import amount_text, gpus_text
from moorage.decide.explain.types import Earliest, Explanation, HeldBy, Missing
from moorage.decide.runs.forecast import Usual
from moorage.decide.usage.gpus import Holder
from moorage.model.machine import FAIR
from moorage.model.names import MACHINE_GATE

LINE_SHOWN = 10
NODES_SHOWN = 20  # of a large cluster the rest is summed up by reason
HOLDERS_SHOWN = 15
OBSTACLES_SHOWN = 3

LIKENESS = {
    "work": "same image and command",
    "name": "same name",
    "owner": "this owner's runs on the type",
    "type": "everybody's runs on the type",
}


def short_reason(found: Explanation, *, typed: bool = True) -> str:
    """Why it waits, in one line without a full stop; empty when it runs or is over.

    Without `typed` the GPU type it asks for is left out, for a table that has it in a column of its own.
    """
    if found.state in ("running", "finished"):
        return ""
    if found.refusals:
        first = found.refusals[0]
        if first.code == "unknown_gpu_type":
            return f"no node has GPU type {' or '.join(found.gpu_types)}"
        return first.message.partition(" asks for ")[2] or first.message
    if found.quota:
        return "quota exceeded"
    if found.not_made:
        return "its pod cannot be created"
    if found.suspended:
        return "its Job is suspended"
    if found.machine is not None:
        return _short_of_machine(found)
    if found.troubles:
        first_trouble = found.troubles[0]
        if not first_trouble.claim:
            return first_trouble.message
        return f"volume {first_trouble.claim} {first_trouble.message.partition(';')[0].partition(':')[0]}"
    if found.gates:
        return f"held by gate {found.gates[0]}"
    if found.obstacles:
        return _and_more(found.obstacles)
    if found.missing:
        return _short_of(found.missing[0], typed=typed)
    if found.fits and found.line:
        return f"{len(found.line)} ahead in line"
    if found.fits:
        return "about to start"
    return found.scheduler_says or "every node refuses it"


def _short_of_machine(found: Explanation) -> str:
    machine = found.machine
    assert machine is not None
    if not machine.known:
        return f"there is no machine type {machine.group}/{machine.type}"
    if not machine.order:
        return f"waits for a machine {machine.group}/{machine.type}"
    if machine.waits_until is not None:
        return f"what is free of {machine.group}/{machine.type} is reserved until {rfc3339(machine.waits_until)}"
    if machine.used < machine.available:
        return f"a machine {machine.group}/{machine.type} is being given out"
    return f"all {machine.available} machines of type {machine.group}/{machine.type} are in use"


def _short_of(one: Missing, *, typed: bool) -> str:
    needs = f"needs {_of_type(one) if typed else amount_text(one.resource, one.asks)}"
    if not one.most_free_node:
        return f"{needs}; no node that it may use is ready"
    most, total = format_amount(one.resource, one.most_free), format_amount(one.resource, one.free_in_total)
    if not one.free_in_total:
        return f"{needs}; none is free"
    return f"{needs}; one node has at most {most} free" + (f" ({total} in all)" if total != most else "")


def _and_more(obstacles: Sequence[str]) -> str:
    said = ", ".join(obstacles[:OBSTACLES_SHOWN])
    more = len(obstacles) - OBSTACLES_SHOWN
    return f"{said} and {more} more" if more > 0 else said


def explain_text(found: Explanation) -> str:
    """The explanation for people: the answer first, then each reason. No full stop after single sentences."""
    who = f"{'run' if found.run else 'pod'} {found.namespace}/{found.run or found.name}"
    lines = [_headline(found, who)]
    for one in found.refusals:
        lines += [f"error: {one.message}"] + ([f"hint: {one.hint}"] if one.hint else [])
    lines += _blocks(found)
    if found.state in ("running", "finished"):
        return "\n".join(lines + _until_lines(found))
    if found.missing and not found.refusals and not found.obstacles:
        lines += ["", "What is missing", *(f"  {_missing_text(one)}" for one in found.missing)]
    if found.held_by:
        lines += ["", "Who holds it", *_table([held_row(one, found.now) for one in found.held_by[:HOLDERS_SHOWN]])]
        if len(found.held_by) > HOLDERS_SHOWN:
            lines += [f"  and {len(found.held_by) - HOLDERS_SHOWN} more"]
    lines += _line_text(found)
    start = [] if found.state == "never" else start_lines(found)
    start += [smaller_text(one.change, one.node, one.options) for one in found.smaller]
    lines += ["", *start] if start else []
    if found.verdicts and found.machine is None:
        lines += ["", "Nodes", *_node_lines(found)]
    if found.scheduler_says and not found.fits:
        lines += ["", f"The scheduler says: {found.scheduler_says}"]
    elif found.scheduler_says and found.state != "fits":
        lines += ["", f"The scheduler said, when it last tried: {found.scheduler_says}"]
    if found.public:
        lines += ["", f"More is told to {found.owner}, and to who may read the pods of {found.namespace}"]
    return "\n".join(lines)


def _headline(found: Explanation, who: str) -> str:
    match found.state:
        case "running" if found.starting:
            return f"{who} has its place on {found.node}; it does not run yet ({found.starting})"
        case "running":
            return f"{who} has its place on {found.node}"
        case "finished":
            return f"{who} has ended" + (f" (on {found.node})" if found.node else "")
        case "fits":
            return f"{who} would start now, on {found.node}"
        case "never":
            return f"{who} cannot run on this cluster"
        case "gated" if found.machine is not None:
            return f"{who} waits for a machine: {short_reason(found)}"
        case "gated":
            return f"{who} waits for its gate to be lifted"
        case "waiting":
            return f"{who} waits: {short_reason(found)}"


def _blocks(found: Explanation) -> list[str]:
    """What must be mended by somebody before it can start."""
    lines = []
    if found.quota:
        lines += [f"quota: {found.quota}"]
    elif found.not_made:
        lines += [f"its pod cannot be created: {found.not_made}"]
    if found.suspended:
        lines += ["the Job has `suspend: true`; it starts nothing before that is taken off"]
    for one in found.troubles:
        lines += [f"volume {found.namespace}/{one.claim} {one.message}" if one.claim else one.message]
    gates = [gate for gate in found.gates if found.machine is None or gate != MACHINE_GATE]
    if gates:
        lines += [f"it is held back by scheduling gate{'s' if len(gates) > 1 else ''} {', '.join(gates)}"]
    if found.killed:
        lines += [f"{found.killed}; give its template more memory to go on"]
    if found.machine is not None and found.machine.waits_for:
        lines += [found.machine.waits_for]
    if found.machine is not None and not found.machine.known:
        lines += ["hint: `moor machines` shows which there are"]
    return lines


def _until_lines(found: Explanation) -> list[str]:
    if found.until is None or found.until.since is None or found.state != "running":
        return []
    said = until_text(found.until, found.usual, found.now)
    return [f"It runs since {_clock(found.until.since)}; {said}"]


def _missing_text(one: Missing) -> str:
    if not one.most_free_node:
        return f"{_of_type(one)}: no node that the pod may use is ready"
    return (
        f"{_of_type(one)}: most free on one node {format_amount(one.resource, one.most_free)}"
        f" ({one.most_free_node}), in total {format_amount(one.resource, one.free_in_total)}"
    )


def held_row(one: HeldBy, now: datetime) -> tuple[str, ...]:
    """A holder as a row: owner, run, amount, node, since when, until when."""
    holder = one.holder
    since = f"since {_clock(holder.since)} ({format_duration(now - holder.since)})" if holder.since else "starting"
    amount = amount_text(one.resource, one.amount) if one.resource else ""
    if one.reserved_for:
        return (
            "reserved",
            f"machine {one.reserved_for}",
            amount,
            one.node,
            since,
            "held for that machine's guests",
        )
    return (holder.owner, holder.run or holder.pod, amount, one.node, since, until_text(holder, one.usual, now))


def until_text(holder: Holder, usual: Usual | None, now: datetime) -> str:
    """Until when somebody holds something: by past runs like it, and by its limit; each said for what it is."""
    parts = []
    limit = holder.expected_until
    if usual is not None and holder.since is not None:
        if usual.total is None:
            parts.append(f"has run longer than {usual.known - usual.of} of {usual.known} like it")
        elif limit is None or holder.since + usual.total < limit:
            end = holder.since + usual.total
            parts.append(f"usually done by {about(end, now)} ({usual_text(usual)})")
    if limit is not None and limit <= now:
        parts.append("past its time limit")
    elif limit is not None:
        parts.append(f"until {_clock(limit)} at the latest (in {format_duration(limit - now)})")
    elif not parts or (usual is not None and usual.total is None):
        parts.append("end unknown")
    return ", ".join(parts)


def usual_text(usual: Usual) -> str:
    """The ground of a forecast: "8 of 10 like it: same name"."""
    return f"{usual.done} of {usual.of} like it: {LIKENESS[usual.likeness]}"


def about(moment: datetime, now: datetime) -> str:
    """A moment that is not known to the minute: rounded up to about a tenth of how far away it is."""
    left = max(timedelta(), moment - now)
    steps = (1, 5, 15, 30, 60, 180, 360, 720, 1440)
    step = next((one for one in reversed(steps) if timedelta(minutes=one) * 10 <= left), 1)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    size = timedelta(minutes=step)
    rounded = day + -(-(moment - day) // size) * size
    return f"about {_clock(rounded)}" if rounded.date() != now.date() else f"about {rounded:%H:%M} UTC"


def _line_text(found: Explanation) -> list[str]:
    if not found.line:
        return []
    many = len(found.line)
    order = "the scheduler tries them first; a smaller one may pass a larger"
    if found.machine is not None:
        order = "who used least lately goes first" if found.machine.order == FAIR else "who came first goes first"
    lines = ["", f"In line: {many} ahead of it ({order})"]
    rows = [
        (
            one.owner,
            one.run or one.pod,
            gpus_text(one.gpus),
            f"since {_clock(one.created)}" if one.created else "",
            f"priority {one.priority}",
        )
        for one in found.line[:LINE_SHOWN]
    ]
    lines += _table(rows)
    if many > LINE_SHOWN:
        lines += [f"  and {many - LINE_SHOWN} more"]
    return lines


def start_lines(found: Explanation) -> list[str]:
    """When it could start, and how sure that is."""
    if found.state == "fits":
        return []
    if found.quota or found.not_made or found.troubles or found.suspended:
        return ["It cannot start before that is mended"]
    lines = []
    if found.likely is not None:
        lines.append(_likely_text(found, found.likely))
    if found.earliest is not None:
        lines.append(_earliest_text(found, found.earliest))
    if lines:
        return lines
    if found.obstacles:
        return ["It can start when such a node takes pods again"]
    if found.machine is not None and not found.machine.known:
        return ["It cannot start before that is mended"]
    if found.held_by:
        return ["When it can start is not known: those who hold what it needs gave no `--time`"]
    return ["When it can start is not known"]


def _likely_text(found: Explanation, one: Earliest) -> str:
    where = f" on {one.node}" if one.node else ""
    if one.at <= found.now:
        return f"It could usually have started by now{where}"
    why = ""
    if one.after is not None and one.usual is not None:
        whose = f"{one.after.owner}'s {one.after.run or one.after.pod}"
        why = f", when {whose} is usually done ({usual_text(one.usual)})"
    return f"It will usually start by {about(one.at, found.now)}{where}{why}"


def _earliest_text(found: Explanation, one: Earliest) -> str:
    after = "once the gate is lifted " if found.gates and found.machine is None else ""
    where = f" on {one.node}" if one.node else ""
    if one.at <= found.now:
        return f"It could start {after}now" + (f", on {one.node}" if one.node else "")
    span = format_duration(one.at - found.now)
    return (
        f"It could start {after}at {_clock(one.at)} (in {span}){where}, if all keep their time limits;"
        " earlier if somebody ends sooner"
    )


def smaller_text(change: str, node: str, options: str) -> str:
    """A lesser wish in a sentence."""
    return f"It would start now with {change}, on {node}" + (f" (`{options}`)" if options else "")


def _node_lines(found: Explanation) -> list[str]:
    """A line for each node; of many, those that fit and then the reasons with how many nodes have them."""
    if len(found.verdicts) <= NODES_SHOWN:
        rows = [(one.node, one.gpu_type, "; ".join(one.reasons) or "fits now") for one in found.verdicts]
        return _table(rows)
    fitting = [one for one in found.verdicts if one.fits]
    rows = [(one.node, one.gpu_type, "fits now") for one in fitting[:NODES_SHOWN]]
    if len(fitting) > NODES_SHOWN:
        rows += [(f"and {len(fitting) - NODES_SHOWN} more", "", "fit now")]
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in found.verdicts:
        if not one.fits:
            reasons.setdefault((one.gpu_type, "; ".join(one.reasons)), []).append(one.node)
    most = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    for (kind, why), names in most[:NODES_SHOWN]:
        rows.append((names[0] if len(names) == 1 else f"{len(names)} nodes, such as {names[0]}", kind, why))
    left = sum(len(names) for _, names in most[NODES_SHOWN:])
    if left:
        rows.append((f"and {left} more nodes", "", "for other reasons"))
    return _table(rows)


def _of_type(one: Missing) -> str:
    return amount_text(one.resource, one.asks) + (
        f" of type {' or '.join(one.gpu_types)}" if one.gpu_types else ""
    )


def _clock(moment: datetime) -> str:
    return moment.strftime("%d %b %H:%M UTC")


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with two spaces before and between the columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
