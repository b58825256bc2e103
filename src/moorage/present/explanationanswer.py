"""Why a pod waits, as programs read it: the body of `GET /api/v1/explain/{namespace}/{name}`."""

from __future__ import annotations

from datetime import datetime

from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.quantity import format_amount
from moorage.apimachinery.resources import Obj
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
from moorage.present.explanation import short_reason
from moorage.present.gpusanswer import holder_json


def to_json(explanation: Explanation) -> Obj:
    """The body of `GET /api/v1/explain/{namespace}/{name}`. Amounts are Kubernetes quantities."""
    until = explanation.until
    return {
        "namespace": explanation.namespace,
        "name": explanation.name,
        "run": explanation.run,
        "owner": explanation.owner,
        "public": explanation.public,
        "state": explanation.state,
        "now": rfc3339(explanation.now),
        "asks": {name: format_amount(name, value) for name, value in explanation.asks.items()},
        "gpus": explanation.gpus,
        "gpuTypes": list(explanation.gpu_types),
        "node": explanation.node,
        "since": _time(until.since) if until else None,
        "expectedUntil": _time(until.expected_until) if until else None,
        "usualUntil": _time(explanation.usual_until),
        "usual": usual_json(explanation.usual),
        "starting": explanation.starting,
        "nodes": [_node_json(verdict) for verdict in explanation.verdicts],
        "missing": [_missing_json(missing) for missing in explanation.missing],
        "obstacles": list(explanation.obstacles),
        "heldBy": [_held_json(held) for held in explanation.held_by],
        "earliest": _earliest_json(explanation.earliest),
        "likely": _earliest_json(explanation.likely),
        "position": explanation.position,
        "line": [_waiter_json(waiter) for waiter in explanation.line],
        "machine": _machine_json(explanation.machine) if explanation.machine else None,
        "gates": list(explanation.gates),
        "missingClaims": list(explanation.missing_claims),
        "volumes": [{"claim": trouble.claim, "message": trouble.message} for trouble in explanation.troubles],
        "quota": explanation.quota,
        "notMade": explanation.not_made,
        "suspended": explanation.suspended,
        "schedulerSays": explanation.scheduler_says,
        "smaller": [_smaller_json(smaller) for smaller in explanation.smaller],
        "refusals": [
            {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
            for refusal in explanation.refusals
        ],
        "short": short_reason(explanation),
    }


def _node_json(verdict: Verdict) -> Obj:
    return {
        "name": verdict.node,
        "gpuType": verdict.gpu_type,
        "gpus": verdict.gpus,
        "gpusFree": verdict.gpus_free,
        "fits": verdict.fits,
        "reasons": list(verdict.reasons),
    }


def _missing_json(missing: Missing) -> Obj:
    return {
        "resource": missing.resource,
        "gpuTypes": list(missing.gpu_types),
        "asks": format_amount(missing.resource, missing.asks),
        "mostFree": format_amount(missing.resource, missing.most_free),
        "mostFreeNode": missing.most_free_node,
        "freeInTotal": format_amount(missing.resource, missing.free_in_total),
    }


def _held_json(held: HeldBy) -> Obj:
    return holder_json(held.holder) | {
        "node": held.node,
        "resource": held.resource,
        "amount": format_amount(held.resource, held.amount),
        "sure": held.sure,
        "usualUntil": _time(held.usual_until),
        "usual": usual_json(held.usual),
        "reservedFor": held.reserved_for,
    }


def _waiter_json(waiter: Waiter) -> Obj:
    return {
        "owner": waiter.owner,
        "run": waiter.run,
        "namespace": waiter.namespace,
        "pod": waiter.pod,
        "priority": waiter.priority,
        "created": _time(waiter.created),
        "gpus": waiter.gpus,
    }


def _machine_json(machine: MachineLine) -> Obj:
    return {
        "group": machine.group,
        "type": machine.type,
        "order": machine.order,
        "available": machine.available,
        "used": machine.used,
        "known": machine.known,
        "waitsFor": machine.waits_for,
        "waitsUntil": _time(machine.waits_until),
    }


def _smaller_json(smaller: Smaller) -> Obj:
    return {
        "gpus": smaller.gpus,
        "gpuTypes": list(smaller.gpu_types),
        "node": smaller.node,
        "nodeType": smaller.node_type,
        "change": smaller.change,
        "options": smaller.options,
    }


def usual_json(usual: Usual | None) -> Obj | None:
    """How past runs like it went; null when there were none."""
    if usual is None:
        return None
    return {
        "seconds": None if usual.total is None else round(usual.total.total_seconds()),
        "done": usual.done,
        "of": usual.of,
        "known": usual.known,
        "likeness": usual.likeness,
    }


def _earliest_json(earliest: Earliest | None) -> Obj | None:
    if earliest is None:
        return None
    after = earliest.after
    return {
        "at": rfc3339(earliest.at),
        "node": earliest.node,
        "after": {"owner": after.owner, "run": after.run, "namespace": after.namespace, "pod": after.pod}
        if after
        else None,
        "usual": usual_json(earliest.usual),
    }


def _time(moment: datetime | None) -> str | None:
    return rfc3339(moment) if moment else None
