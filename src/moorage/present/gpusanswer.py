"""GPUs and their holders, as programs read them: the body of `GET /api/v1/gpus`."""

from __future__ import annotations

from datetime import datetime

from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.usage.gpus import Counts, Gpu, GpuState, GpuView, Holder


def gpu_view_json(view: GpuView, *, now: datetime) -> Obj:
    """The body of `GET /api/v1/gpus`. Times are RFC 3339 or null."""
    return {
        "now": rfc3339(now),
        "totals": _counts_json(view.totals),
        "types": [{"type": name} | _counts_json(counts) for name, counts in view.by_type.items()],
        "users": [
            {"user": name, "gpus": count, "types": dict(view.types_of_user.get(name) or {})}
            for name, count in view.by_user.items()
        ],
        "nodes": [
            {
                "name": node.name,
                "type": node.type,
                "ready": node.ready,
                "cordoned": node.cordoned,
                **_counts_json(node.counts),
                "gpus": [_gpu_json(gpu) for gpu in node.gpus],
            }
            for node in view.nodes
        ],
    }


def _gpu_json(gpu: Gpu) -> Obj:
    body: Obj = {
        "index": gpu.index,
        "type": gpu.type,
        "resource": gpu.resource,
        "device": gpu.device,
        "state": str(gpu.state),
    }
    if gpu.why:
        body["why"] = gpu.why
    if gpu.state is GpuState.FREE:
        body |= {"fragmented": gpu.fragmented, "stranded": gpu.stranded}
    if gpu.holder is not None:
        body |= holder_json(gpu.holder)
    return body


def _counts_json(counts: Counts) -> dict[str, int]:
    return {
        "total": counts.total,
        "used": counts.used,
        "free": counts.free,
        "unavailable": counts.unavailable,
        "reserved": counts.reserved,
        "fragmented": counts.fragmented,
        "stranded": counts.stranded,
        "together": counts.together,
    }


def holder_json(holder: Holder) -> Obj:
    """The public fields of a holder. Times are RFC 3339 or null."""
    return {
        "owner": holder.owner,
        "run": holder.run,
        "namespace": holder.namespace,
        "pod": holder.pod,
        "since": rfc3339(holder.since) if holder.since else None,
        "expectedUntil": rfc3339(holder.expected_until) if holder.expected_until else None,
    }
