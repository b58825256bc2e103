"""The explanation why a pod waits, in the same words for the command line and the page.

`explanation_view` gives headline, advice and sections; `explain_text` lays them out as text, the page as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from moorage.decide.explain.amounts import amount_text, gpus_text
from moorage.decide.explain.mounts import FAILED_ATTACH, FailedMount
from moorage.decide.explain.starting import Starting
from moorage.decide.explain.types import Earliest, Explanation, HeldBy, Missing
from moorage.decide.runs.forecast import Usual
from moorage.decide.usage.gpus import Holder
from moorage.model.machine import FAIR
from moorage.model.names import MACHINE_GATE
from moorage.present.ending import ending_headline, ending_lines, moment_text, way_to_start
from moorage.present.missing import way_to_mount, way_to_objects
from moorage.present.reasons import reason_words
from moorage_kube.moments import format_duration, rfc3339
from moorage_kube.quantity import format_amount
from moorage_kube.texts import as_lines

LINE_SHOWN = 10
NODES_SHOWN = 20  # of a large cluster the rest is summed up by reason
HOLDERS_SHOWN = 15
OBSTACLES_SHOWN = 3

LIKENESS = {
    "work": "same image and command",
    "name": "same name",
    "owner": "this owner's runs on the type",
    "type": "all users' runs on the type",
}


def short_reason(explanation: Explanation, *, typed: bool = True) -> str:
    """Why it waits, in one line without a full stop; "" when it runs or has ended.

    Without `typed` the GPU type of the request is omitted, for a table with a column for it.
    """
    # the first cause that applies, from the request to the nodes
    if explanation.state in ("running", "finished"):
        return ""
    if explanation.ended is not None and explanation.ended.is_retrying:
        return f"it failed ({reason_words(explanation.ended.reason)}); it is about to be tried again"
    if explanation.ended is not None:
        return f"attempt {explanation.ended.attempts[-1].number} was disrupted; the next one is about to start"
    # the pod does not exist, or is not offered to the scheduler yet
    if explanation.refusals:
        first = explanation.refusals[0]
        if first.code == "unknown_gpu_type":
            return f"GPU type {' or '.join(explanation.gpu_types)} not found"
        return first.message.partition(" asks for ")[2] or first.message
    if explanation.quota:
        return "quota exceeded"
    if explanation.not_made:
        return "its pod cannot be created"
    if explanation.queue is not None:
        return f"it is in Kueue's queue {explanation.queue.queue}"
    if explanation.suspended:
        return "its Job is suspended"
    # the pod exists and waits for its turn or its volumes
    if explanation.machine is not None:
        return _short_of_machine(explanation)
    if explanation.troubles:
        first_trouble = explanation.troubles[0]
        if not first_trouble.claim:
            return first_trouble.message
        return f"volume {first_trouble.claim} {first_trouble.message.partition(';')[0].partition(':')[0]}"
    if explanation.gates:
        return f"held by gate {explanation.gates[0]}"
    # the nodes have no room
    if explanation.obstacles:
        return _and_more(explanation.obstacles)
    if explanation.missing:
        return _short_of(explanation.missing[0], typed=typed)
    if explanation.fits and explanation.line:
        return f"{len(explanation.line)} ahead in line"
    if explanation.fits:
        return "about to start"
    return explanation.scheduler_says or "every node refuses it"


def _short_of_machine(explanation: Explanation) -> str:
    machine = explanation.machine
    assert machine is not None
    if not machine.known:
        return f"machine type {machine.group}/{machine.type} not found"
    if not machine.order:
        return f"waits for a machine {machine.group}/{machine.type}"
    if machine.waits_until is not None:
        return (
            f"the free machines {machine.group}/{machine.type} are reserved until {rfc3339(machine.waits_until)}"
        )
    if machine.used < machine.available:
        return f"a machine {machine.group}/{machine.type} is being given out"
    return f"all {machine.available} machines of type {machine.group}/{machine.type} are in use"


def _short_of(missing: Missing, *, typed: bool) -> str:
    needs = f"needs {_of_type(missing) if typed else amount_text(missing.resource, missing.asks)}"
    if not missing.most_free_node:
        return f"{needs}; no node that it may use is ready"
    most, total = (
        format_amount(missing.resource, missing.most_free),
        format_amount(missing.resource, missing.free_in_total),
    )
    if not missing.free_in_total:
        return f"{needs}; none is free"
    return f"{needs}; one node has at most {most} free" + (f" ({total} in all)" if total != most else "")


def _and_more(obstacles: Sequence[str]) -> str:
    shown = ", ".join(obstacles[:OBSTACLES_SHOWN])
    more = len(obstacles) - OBSTACLES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


class Section(Struct, frozen=True, kw_only=True):
    """A section of an explanation: sentences, or the rows of a table under a heading."""

    heading: str = ""
    lines: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()  # all of one width
    more: str = ""  # below the rows: how many are left out


class ExplanationView(Struct, frozen=True, kw_only=True):
    """An explanation in parts: the answer first, then the necessary actions, then each reason."""

    headline: str
    advice: tuple[str, ...] = ()  # errors with their hints: to be fixed before it can start
    sections: tuple[Section, ...] = ()


def explanation_view(explanation: Explanation) -> ExplanationView:
    """The explanation for people. Single sentences have no full stop."""
    who = explanation.who
    if explanation.ended is not None:
        return ExplanationView(
            headline=ending_headline(explanation.ended, explanation.now),
            advice=tuple(ending_lines(explanation.ended, public=explanation.public)),
        )
    advice = []
    for refusal in explanation.refusals:
        advice += [f"error: {refusal.message}"] + ([f"hint: {refusal.hint}"] if refusal.hint else [])
    advice += _blocks(explanation)
    if explanation.state in ("running", "finished"):
        advice += _starting_lines(explanation)
        advice += _until_lines(explanation)
        return ExplanationView(headline=_headline(explanation, who), advice=tuple(advice))
    sections = (
        _missing_section(explanation),
        _holders_section(explanation),
        _line_section(explanation),
        _start_section(explanation),
        _nodes_section(explanation),
        _scheduler_section(explanation),
        _public_section(explanation),
    )
    return ExplanationView(
        headline=_headline(explanation, who),
        advice=tuple(advice),
        sections=tuple(section for section in sections if section is not None),
    )


def explain_text(explanation: Explanation) -> str:
    """The explanation as text; empty lines separate its sections."""
    view = explanation_view(explanation)
    lines = [view.headline, *view.advice]
    for section in view.sections:
        lines += ["", *([section.heading] if section.heading else []), *section.lines, *_table(section.rows)]
        lines += [f"  {section.more}"] if section.more else []
    return as_lines(lines)


def _headline(explanation: Explanation, who: str) -> str:
    match explanation.state:
        case "running" if explanation.starting is not None:
            return _starting_headline(explanation.starting, who, explanation.node)
        case "running":
            return f"{who} is running on {explanation.node}"
        case "finished":
            return f"{who} has ended" + (f" (on {explanation.node})" if explanation.node else "")
        case "fits":
            return f"{who} would start now, on {explanation.node}"
        case "never":
            return f"{who} cannot run on this cluster"
        case "gated" if explanation.machine is not None:
            return f"{who} waits for a machine: {short_reason(explanation)}"
        case "gated":
            return f"{who} waits for its gate to be lifted"
        case "waiting":
            return f"{who} waits: {short_reason(explanation)}"


def _blocks(explanation: Explanation) -> list[str]:
    """The faults that a user or an administrator must repair before it can start."""
    lines = []
    if explanation.quota:
        lines += [f"quota: {explanation.quota}"]
    elif explanation.not_made:
        lines += [f"its pod cannot be created: {explanation.not_made}"]
    if explanation.queue is not None:
        lines += [f"Kueue: {explanation.queue.message}"] if explanation.queue.message else []
    elif explanation.suspended:
        lines += ["the Job has `suspend: true`: it starts no pod until that is removed"]
    for trouble in explanation.troubles:
        volume = f"volume {explanation.namespace}/{trouble.claim} " if trouble.claim else ""
        lines += [f"{volume}{trouble.message}"]
    gates = [gate for gate in explanation.gates if explanation.machine is None or gate != MACHINE_GATE]
    if gates:
        lines += [f"it is held back by scheduling gate{'s' if len(gates) > 1 else ''} {', '.join(gates)}"]
    if explanation.killed:
        lines += [f"{explanation.killed}; give its template more memory to go on"]
    if explanation.machine is not None and explanation.machine.waits_for:
        lines += [explanation.machine.waits_for]
    if explanation.machine is not None and not explanation.machine.known:
        lines += ["hint: `moor machines` shows which there are"]
    return lines


def starting_reason(explanation: Explanation) -> str:
    """The reason why the containers do not run on the pod's node, in one line.

    "" if they run, or it has no node.
    """
    starting = explanation.starting
    if starting is None:
        return ""
    if starting.mount is not None:
        return (
            f"its pod does not start on {explanation.node}: {mount_text(starting.mount)}: {starting.mount.cause}"
        )
    return f"its containers start on {explanation.node}: {starting.reason}"


def mount_text(mount: FailedMount) -> str:
    """The volume of a pod that is missing: "volume config (Secret keys) cannot be mounted"."""
    named = f"volume {mount.volume}" if mount.volume else "a volume"
    of = f" ({mount.source.kind} {mount.source.name})" if mount.source is not None else ""
    verb = "attached to the node" if mount.reason == FAILED_ATTACH else "mounted"
    return f"{named}{of} cannot be {verb}"


def way_on(explanation: Explanation) -> str:
    """How to make a pod with a node start; "" if unknown, or if it runs."""
    starting = explanation.starting
    if starting is None:
        return ""
    if starting.mount is not None:
        return way_to_mount(starting.mount, explanation.namespace, explanation.name)
    of_objects = way_to_objects(starting.message, explanation.namespace) if starting.is_trouble else ""
    return of_objects or way_to_start(starting.reason, starting.message, explanation.run)


def _starting_headline(starting: Starting, who: str, node: str) -> str:
    if starting.mount is not None:
        return f"{who} does not start on {node}: {mount_text(starting.mount)} ({starting.reason})"
    if starting.is_unpulled:
        kind = "init container" if starting.is_init else "container"
        of = f" of {kind} {starting.container}" if starting.container else ""
        image = f"image {starting.image}" if starting.image else "image"
        return f"{who} does not start on {node}: the {image}{of} cannot be pulled ({starting.reason})"
    return f"{who} is placed on {node}; it does not run yet ({starting.reason})"


def _starting_lines(explanation: Explanation) -> list[str]:
    """The kubelet's message, and the next steps."""
    starting = explanation.starting
    if starting is None:
        return []
    lines = [starting.message] if starting.message and starting.is_trouble else []
    if starting.is_trouble and not starting.is_unpulled and starting.container:
        kind = "init container" if starting.is_init else "container"
        lines = [f"{kind} {starting.container}: {line}" for line in lines]
    advice = way_on(explanation)
    return [*lines, advice] if advice else lines


def _until_lines(explanation: Explanation) -> list[str]:
    if explanation.until is None or explanation.until.since is None or explanation.state != "running":
        return []
    until = until_text(explanation.until, explanation.usual, explanation.now)
    verb = "held its place" if explanation.starting is not None else "run"
    return [f"It has {verb} since {moment_text(explanation.until.since)}; {until}"]


def _missing_section(explanation: Explanation) -> Section | None:
    if not explanation.missing or explanation.refusals or explanation.obstacles:
        return None
    return Section(
        heading="Missing resources", rows=tuple((_missing_text(missing),) for missing in explanation.missing)
    )


def _missing_text(missing: Missing) -> str:
    if not missing.most_free_node:
        return f"{_of_type(missing)}: no node that the pod may use is ready"
    return (
        f"{_of_type(missing)}: most free on one node {format_amount(missing.resource, missing.most_free)}"
        f" ({missing.most_free_node}), in total {format_amount(missing.resource, missing.free_in_total)}"
    )


def _holders_section(explanation: Explanation) -> Section | None:
    if not explanation.held_by:
        return None
    left = len(explanation.held_by) - HOLDERS_SHOWN
    return Section(
        heading="Users of the quota" if explanation.quota else "Current holders",
        rows=tuple(held_row(held, explanation.now) for held in explanation.held_by[:HOLDERS_SHOWN]),
        more=f"and {left} more" if left > 0 else "",
    )


def held_row(held: HeldBy, now: datetime) -> tuple[str, ...]:
    """A holder as a row: owner, run, amount, node, start, end."""
    holder = held.holder
    since = (
        f"since {moment_text(holder.since)} ({format_duration(now - holder.since)})"
        if holder.since
        else ("starting" if held.node else "waiting for a node")
    )
    amount = amount_text(held.resource, held.amount) if held.resource else ""
    if held.reserved_for:
        return (
            "reserved",
            f"machine {held.reserved_for}",
            amount,
            held.node,
            since,
            "held for that machine's guests",
        )
    return (holder.owner, holder.title, amount, held.node, since, until_text(holder, held.usual, now))


def until_text(holder: Holder, usual: Usual | None, now: datetime) -> str:
    """The expected end of a holder: by past runs like it, and by its limit. The text names the source."""
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
        parts.append(f"until {moment_text(limit)} at the latest (in {format_duration(limit - now)})")
    elif not parts or (usual is not None and usual.total is None):
        parts.append("end unknown")
    return ", ".join(parts)


def usual_text(usual: Usual) -> str:
    """The basis of a forecast: "8 of 10 like it: same name"."""
    return f"{usual.done} of {usual.of} like it: {LIKENESS[usual.likeness]}"


def about(moment: datetime, now: datetime) -> str:
    """Format an uncertain moment, rounded up to about a tenth of the time until then."""
    left = max(timedelta(), moment - now)
    steps = (1, 5, 15, 30, 60, 180, 360, 720, 1440)
    step = next((step for step in reversed(steps) if timedelta(minutes=step) * 10 <= left), 1)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    size = timedelta(minutes=step)
    rounded = day + -(-(moment - day) // size) * size
    return f"about {moment_text(rounded)}" if rounded.date() != now.date() else f"about {rounded:%H:%M} UTC"


def _line_section(explanation: Explanation) -> Section | None:
    if not explanation.line:
        return None
    many = len(explanation.line)
    order = "the scheduler tries them first; a smaller one may pass a larger"
    if explanation.machine is not None:
        is_fair = explanation.machine.order == FAIR
        order = "the owner with the least recent usage is first" if is_fair else "the earliest is first"
    rows = tuple(
        (
            waiter.owner,
            waiter.title,
            gpus_text(waiter.gpus),
            f"since {moment_text(waiter.created)}" if waiter.created else "",
            f"priority {waiter.priority}",
        )
        for waiter in explanation.line[:LINE_SHOWN]
    )
    return Section(
        heading=f"In line: {many} ahead of it ({order})",
        rows=rows,
        more=f"and {many - LINE_SHOWN} more" if many > LINE_SHOWN else "",
    )


def _start_section(explanation: Explanation) -> Section | None:
    lines = [] if explanation.state == "never" else start_lines(explanation)
    lines += [smaller_text(smaller.change, smaller.node, smaller.options) for smaller in explanation.smaller]
    return Section(lines=tuple(lines)) if lines else None


def start_lines(explanation: Explanation) -> list[str]:
    """The possible start of the pod, and how certain it is."""
    if explanation.state == "fits":
        return []
    is_stopped = explanation.suspended and explanation.queue is None
    if explanation.quota and explanation.held_by and not (explanation.troubles or is_stopped):
        if explanation.earliest is not None:
            return [_earliest_text(explanation, explanation.earliest)]
        return ["It can start when they leave room in the quota; when is not known: not all have a `--time`"]
    if explanation.quota or explanation.not_made or explanation.troubles or is_stopped:
        return ["It cannot start until this is fixed"]
    if explanation.queue is not None:
        return ["It can start when Kueue admits it; the nodes below are as they are now"]
    lines = []
    if explanation.likely is not None:
        lines.append(_likely_text(explanation, explanation.likely))
    if explanation.earliest is not None:
        lines.append(_earliest_text(explanation, explanation.earliest))
    if lines:
        return lines
    if explanation.obstacles:
        return ["It can start when such a node takes pods again"]
    if explanation.machine is not None and not explanation.machine.known:
        return ["It cannot start until this is fixed"]
    if explanation.held_by:
        return ["When it can start is not known: the runs that hold it have no `--time`"]
    return ["When it can start is not known"]


def _likely_text(explanation: Explanation, likely: Earliest) -> str:
    where = f" on {likely.node}" if likely.node else ""
    if likely.at <= explanation.now:
        return f"It could usually have started by now{where}"
    why = ""
    if likely.after is not None and likely.usual is not None:
        whose = f"{likely.after.owner}'s {likely.after.title}"
        why = f", when {whose} is usually done ({usual_text(likely.usual)})"
    return f"It will usually start by {about(likely.at, explanation.now)}{where}{why}"


def _earliest_text(explanation: Explanation, earliest: Earliest) -> str:
    after = "once the gate is lifted " if explanation.gates and explanation.machine is None else ""
    where = f" on {earliest.node}" if earliest.node else ""
    if earliest.at <= explanation.now:
        return f"It could start {after}now" + (f", on {earliest.node}" if earliest.node else "")
    span = format_duration(earliest.at - explanation.now)
    return (
        f"It could start {after}at {moment_text(earliest.at)} (in {span}){where}, if all runs reach their"
        " time limits; earlier if one ends sooner"
    )


def smaller_text(change: str, node: str, options: str) -> str:
    """A sentence that proposes a smaller request."""
    return f"It would start now with {change}, on {node}" + (f" (`{options}`)" if options else "")


def _nodes_section(explanation: Explanation) -> Section | None:
    """A row for each node. If there are many: the nodes that fit, then each reason with its number of nodes."""
    verdicts = explanation.verdicts
    if not verdicts or explanation.machine is not None:
        return None
    if len(verdicts) <= NODES_SHOWN:
        rows = [(verdict.node, verdict.gpu_type, "; ".join(verdict.reasons) or "fits now") for verdict in verdicts]
        return Section(heading="Nodes", rows=tuple(rows))
    fitting = [verdict for verdict in verdicts if verdict.fits]
    rows = [(verdict.node, verdict.gpu_type, "fits now") for verdict in fitting[:NODES_SHOWN]]
    if len(fitting) > NODES_SHOWN:
        rows += [(f"and {len(fitting) - NODES_SHOWN} more", "", "fit now")]
    reasons: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if not verdict.fits:
            reasons.setdefault((verdict.gpu_type, "; ".join(verdict.reasons)), []).append(verdict.node)
    by_count = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    for (kind, why), names in by_count[:NODES_SHOWN]:
        rows.append((names[0] if len(names) == 1 else f"{len(names)} nodes, such as {names[0]}", kind, why))
    left = sum(len(names) for _, names in by_count[NODES_SHOWN:])
    if left:
        rows.append((f"and {left} more nodes", "", "for other reasons"))
    return Section(heading="Nodes", rows=tuple(rows))


def _scheduler_section(explanation: Explanation) -> Section | None:
    message = explanation.scheduler_says
    if message and not explanation.fits:
        return Section(lines=(f"The scheduler says: {message}",))
    if message and explanation.state != "fits":
        return Section(lines=(f"The scheduler said, when it last tried: {message}",))
    return None


def _public_section(explanation: Explanation) -> Section | None:
    if not explanation.public:
        return None
    owner, namespace = explanation.owner, explanation.namespace
    return Section(lines=(f"{owner}, and users who may read the pods of {namespace}, see more",))


def _of_type(missing: Missing) -> str:
    return amount_text(missing.resource, missing.asks) + (
        f" of type {' or '.join(missing.gpu_types)}" if missing.gpu_types else ""
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format rows with two spaces before and between the columns; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return [
        "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
