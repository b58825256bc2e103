"""Why a pod waits, as programs read it: the body of `GET /api/v1/explain/{namespace}/{name}`."""

from __future__ import annotations

from datetime import datetime

from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.quantity import format_amount
from moorage.apimachinery.resources import Obj
from moorage.decide.explain.types import Earliest, Explanation
from moorage.decide.runs.forecast import Usual
from moorage.present.explanation import short_reason
from moorage.present.gpusjson import holder_json


def to_json(explanation: Explanation) -> Obj:
    """The body of `GET /api/v1/explain/{namespace}/{name}`. Amounts are Kubernetes quantities."""
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
        "since": _time(explanation.until.since) if explanation.until else None,
        "expectedUntil": _time(explanation.until.expected_until) if explanation.until else None,
        "usualUntil": _time(explanation.usual_until),
        "usual": usual_json(explanation.usual),
        "starting": explanation.starting,
        "nodes": [
            {
                "name": verdict.node,
                "gpuType": verdict.gpu_type,
                "gpus": verdict.gpus,
                "gpusFree": verdict.gpus_free,
                "fits": verdict.fits,
                "reasons": list(verdict.reasons),
            }
            for verdict in explanation.verdicts
        ],
        "missing": [
            {
                "resource": missing.resource,
                "gpuTypes": list(missing.gpu_types),
                "asks": format_amount(missing.resource, missing.asks),
                "mostFree": format_amount(missing.resource, missing.most_free),
                "mostFreeNode": missing.most_free_node,
                "freeInTotal": format_amount(missing.resource, missing.free_in_total),
            }
            for missing in explanation.missing
        ],
        "obstacles": list(explanation.obstacles),
        "heldBy": [
            holder_json(held.holder)
            | {
                "node": held.node,
                "resource": held.resource,
                "amount": format_amount(held.resource, held.amount),
                "sure": held.sure,
                "usualUntil": _time(held.usual_until),
                "usual": usual_json(held.usual),
                "reservedFor": held.reserved_for,
            }
            for held in explanation.held_by
        ],
        "earliest": _earliest_json(explanation.earliest),
        "likely": _earliest_json(explanation.likely),
        "position": explanation.position,
        "line": [
            {
                "owner": waiter.owner,
                "run": waiter.run,
                "namespace": waiter.namespace,
                "pod": waiter.pod,
                "priority": waiter.priority,
                "created": _time(waiter.created),
                "gpus": waiter.gpus,
            }
            for waiter in explanation.line
        ],
        "machine": {
            "group": explanation.machine.group,
            "type": explanation.machine.type,
            "order": explanation.machine.order,
            "available": explanation.machine.available,
            "used": explanation.machine.used,
            "known": explanation.machine.known,
            "waitsFor": explanation.machine.waits_for,
            "waitsUntil": _time(explanation.machine.waits_until),
        }
        if explanation.machine
        else None,
        "gates": list(explanation.gates),
        "missingClaims": list(explanation.missing_claims),
        "volumes": [{"claim": trouble.claim, "message": trouble.message} for trouble in explanation.troubles],
        "quota": explanation.quota,
        "notMade": explanation.not_made,
        "suspended": explanation.suspended,
        "schedulerSays": explanation.scheduler_says,
        "smaller": [
            {
                "gpus": smaller.gpus,
                "gpuTypes": list(smaller.gpu_types),
                "node": smaller.node,
                "nodeType": smaller.node_type,
                "change": smaller.change,
                "options": smaller.options,
            }
            for smaller in explanation.smaller
        ],
        "refusals": [
            {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
            for refusal in explanation.refusals
        ],
        "short": short_reason(explanation),
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
