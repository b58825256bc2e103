"""The explanation why a pod waits, for programs: `GET /api/v1/explain/{namespace}/{name}`."""

from __future__ import annotations

from moorage.api import explain as wire
from moorage.decide.explain.types import (
    Earliest,
    Explanation,
    HeldBy,
    MachineLine,
    Missing,
    Smaller,
    Verdict,
    Waiter,
)
from moorage.decide.runs.forecast import Usual
from moorage.decide.usage.gpus import Holder
from moorage.present.explanation import explain_text, short_reason
from moorage_kube.moments import whole_seconds
from moorage_kube.quantity import format_amount


def make_explanation(explanation: Explanation) -> wire.Explanation:
    """Convert an explanation to an answer; it includes the text for people. Amounts are Kubernetes quantities."""
    # times in whole seconds, lists as tuples: all values are JSON
    until, ended = explanation.until, explanation.ended
    return wire.Explanation(
        namespace=explanation.namespace,
        name=explanation.name,
        run=explanation.run,
        step=explanation.step,
        owner=explanation.owner,
        public=explanation.public,
        state=explanation.state,
        now=whole_seconds(explanation.now),
        asks={name: format_amount(name, value) for name, value in explanation.asks.items()},
        gpus=explanation.gpus,
        gpu_types=explanation.gpu_types,
        node=explanation.node,
        since=whole_seconds(until.since) if until else None,
        expected_until=whole_seconds(until.expected_until) if until else None,
        usual_until=whole_seconds(explanation.usual_until),
        usual=_usual(explanation.usual),
        starting=explanation.starting.reason if explanation.starting else "",
        starting_container=explanation.starting.container if explanation.starting else "",
        starting_image=explanation.starting.image if explanation.starting else "",
        starting_message=explanation.starting.message if explanation.starting else "",
        run_state=str(ended.state) if ended else "",
        ended=whole_seconds(ended.ended) if ended else None,
        exit_code=ended.exit_code if ended else None,
        reason=ended.reason if ended else "",
        nodes=tuple(_node(verdict) for verdict in explanation.verdicts),
        missing=tuple(_missing(missing) for missing in explanation.missing),
        obstacles=explanation.obstacles,
        held_by=tuple(_held(held) for held in explanation.held_by),
        earliest=_earliest(explanation.earliest),
        likely=_earliest(explanation.likely),
        position=explanation.position,
        line=tuple(_waiter(waiter) for waiter in explanation.line),
        machine=_machine(explanation.machine),
        gates=explanation.gates,
        missing_claims=explanation.missing_claims,
        volumes=tuple(
            wire.VolumeTrouble(claim=trouble.claim, message=trouble.message) for trouble in explanation.troubles
        ),
        quota=explanation.quota,
        not_made=explanation.not_made,
        suspended=explanation.suspended,
        queue=explanation.queue.queue if explanation.queue else "",
        queue_message=explanation.queue.message if explanation.queue else "",
        scheduler_says=explanation.scheduler_says,
        smaller=tuple(_smaller(smaller) for smaller in explanation.smaller),
        refusals=tuple(
            wire.Refusal(code=refusal.code, message=refusal.message, hint=refusal.hint)
            for refusal in explanation.refusals
        ),
        short=short_reason(explanation),
        text=explain_text(explanation),
    )


def _node(verdict: Verdict) -> wire.NodeVerdict:
    return wire.NodeVerdict(
        name=verdict.node,
        gpu_type=verdict.gpu_type,
        gpus=verdict.gpus,
        gpus_free=verdict.gpus_free,
        fits=verdict.fits,
        reasons=verdict.reasons,
    )


def _missing(missing: Missing) -> wire.MissingResource:
    return wire.MissingResource(
        resource=missing.resource,
        gpu_types=missing.gpu_types,
        asks=format_amount(missing.resource, missing.asks),
        most_free=format_amount(missing.resource, missing.most_free),
        most_free_node=missing.most_free_node,
        free_in_total=format_amount(missing.resource, missing.free_in_total),
    )


def _held(held: HeldBy) -> wire.HeldBy:
    holder = held.holder
    return wire.HeldBy(
        owner=holder.owner,
        run=holder.run,
        step=holder.step,
        namespace=holder.namespace,
        pod=holder.pod,
        since=whole_seconds(holder.since),
        expected_until=whole_seconds(holder.expected_until),
        node=held.node,
        resource=held.resource,
        amount=format_amount(held.resource, held.amount),
        sure=held.sure,
        usual_until=whole_seconds(held.usual_until),
        usual=_usual(held.usual),
        reserved_for=held.reserved_for,
    )


def _waiter(waiter: Waiter) -> wire.Waiter:
    return wire.Waiter(
        owner=waiter.owner,
        run=waiter.run,
        step=waiter.step,
        namespace=waiter.namespace,
        pod=waiter.pod,
        priority=waiter.priority,
        created=whole_seconds(waiter.created),
        gpus=waiter.gpus,
    )


def _machine(machine: MachineLine | None) -> wire.MachineLine | None:
    if machine is None:
        return None
    return wire.MachineLine(
        group=machine.group,
        type=machine.type,
        order=machine.order,
        available=machine.available,
        used=machine.used,
        known=machine.known,
        waits_for=machine.waits_for,
        waits_until=whole_seconds(machine.waits_until),
    )


def _smaller(smaller: Smaller) -> wire.SmallerRequest:
    return wire.SmallerRequest(
        gpus=smaller.gpus,
        gpu_types=smaller.gpu_types,
        node=smaller.node,
        node_type=smaller.node_type,
        change=smaller.change,
        options=smaller.options,
    )


def _usual(usual: Usual | None) -> wire.UsualTime | None:
    """The duration of past runs like it; None if there are none."""
    if usual is None:
        return None
    return wire.UsualTime(
        seconds=None if usual.total is None else round(usual.total.total_seconds()),
        done=usual.done,
        of=usual.of,
        known=usual.known,
        likeness=usual.likeness,
    )


def _earliest(earliest: Earliest | None) -> wire.Earliest | None:
    if earliest is None:
        return None
    return wire.Earliest(
        at=whole_seconds(earliest.at),
        node=earliest.node,
        after=_holder_name(earliest.after) if earliest.after else None,
        usual=_usual(earliest.usual),
    )


def _holder_name(holder: Holder) -> wire.HolderName:
    return wire.HolderName(
        owner=holder.owner, run=holder.run, step=holder.step, namespace=holder.namespace, pod=holder.pod
    )
