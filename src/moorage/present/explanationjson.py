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


def to_json(found: Explanation) -> Obj:
    """The body of `GET /api/v1/explain/{namespace}/{name}`. Amounts are Kubernetes quantities."""
    return {
        "namespace": found.namespace,
        "name": found.name,
        "run": found.run,
        "owner": found.owner,
        "public": found.public,
        "state": found.state,
        "now": rfc3339(found.now),
        "asks": {name: format_amount(name, value) for name, value in found.asks.items()},
        "gpus": found.gpus,
        "gpuTypes": list(found.gpu_types),
        "node": found.node,
        "since": _time(found.until.since) if found.until else None,
        "expectedUntil": _time(found.until.expected_until) if found.until else None,
        "usualUntil": _time(found.usual_until),
        "usual": usual_json(found.usual),
        "starting": found.starting,
        "nodes": [
            {
                "name": one.node,
                "gpuType": one.gpu_type,
                "gpus": one.gpus,
                "gpusFree": one.gpus_free,
                "fits": one.fits,
                "reasons": list(one.reasons),
            }
            for one in found.verdicts
        ],
        "missing": [
            {
                "resource": one.resource,
                "gpuTypes": list(one.gpu_types),
                "asks": format_amount(one.resource, one.asks),
                "mostFree": format_amount(one.resource, one.most_free),
                "mostFreeNode": one.most_free_node,
                "freeInTotal": format_amount(one.resource, one.free_in_total),
            }
            for one in found.missing
        ],
        "obstacles": list(found.obstacles),
        "heldBy": [
            holder_json(one.holder)
            | {
                "node": one.node,
                "resource": one.resource,
                "amount": format_amount(one.resource, one.amount),
                "sure": one.sure,
                "usualUntil": _time(one.usual_until),
                "usual": usual_json(one.usual),
                "reservedFor": one.reserved_for,
            }
            for one in found.held_by
        ],
        "earliest": _earliest_json(found.earliest),
        "likely": _earliest_json(found.likely),
        "position": found.position,
        "line": [
            {
                "owner": one.owner,
                "run": one.run,
                "namespace": one.namespace,
                "pod": one.pod,
                "priority": one.priority,
                "created": _time(one.created),
                "gpus": one.gpus,
            }
            for one in found.line
        ],
        "machine": {
            "group": found.machine.group,
            "type": found.machine.type,
            "order": found.machine.order,
            "available": found.machine.available,
            "used": found.machine.used,
            "known": found.machine.known,
            "waitsFor": found.machine.waits_for,
            "waitsUntil": _time(found.machine.waits_until),
        }
        if found.machine
        else None,
        "gates": list(found.gates),
        "missingClaims": list(found.missing_claims),
        "volumes": [{"claim": one.claim, "message": one.message} for one in found.troubles],
        "quota": found.quota,
        "notMade": found.not_made,
        "suspended": found.suspended,
        "schedulerSays": found.scheduler_says,
        "smaller": [
            {
                "gpus": one.gpus,
                "gpuTypes": list(one.gpu_types),
                "node": one.node,
                "nodeType": one.node_type,
                "change": one.change,
                "options": one.options,
            }
            for one in found.smaller
        ],
        "refusals": [{"code": one.code, "message": one.message, "hint": one.hint} for one in found.refusals],
        "short": short_reason(found),
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


def _earliest_json(one: Earliest | None) -> Obj | None:
    if one is None:
        return None
    after = one.after
    return {
        "at": rfc3339(one.at),
        "node": one.node,
        "after": {"owner": after.owner, "run": after.run, "namespace": after.namespace, "pod": after.pod}
        if after
        else None,
        "usual": usual_json(one.usual),
    }


def _time(moment: datetime | None) -> str | None:
    return rfc3339(moment) if moment else None
