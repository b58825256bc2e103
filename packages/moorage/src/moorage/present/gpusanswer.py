"""GPUs and their holders, for programs: `GET /api/v1/gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from moorage.api import gpus as wire
from moorage.decide.usage.gpus import Counts, Gpu, GpuView, NodeGpus
from moorage_kube.moments import whole_seconds


def make_gpus(
    view: GpuView,
    *,
    now: datetime,
    process_runtime: bool = False,
    tenant: Mapping[str, Any] | None = None,
) -> wire.Gpus:
    """Convert all GPUs to an answer. `tenant`: the fields of a Tenant that decide about runs."""
    return wire.Gpus(
        now=whole_seconds(now),
        totals=_counts(view.totals),
        types=tuple(_type(name, counts) for name, counts in view.by_type.items()),
        users=tuple(
            wire.GpuUser(user=name, gpus=count, types=view.types_of_user.get(name) or {})
            for name, count in view.by_user.items()
        ),
        nodes=tuple(_node(node) for node in view.nodes),
        process_runtime=process_runtime,
        tenant=tenant,
    )


def _type(name: str, counts: Counts) -> wire.GpuType:
    return wire.GpuType(type=name, **asdict(counts))


def _node(node: NodeGpus) -> wire.GpuNode:
    return wire.GpuNode(
        name=node.name,
        type=node.type,
        ready=node.ready,
        cordoned=node.cordoned,
        gpus=tuple(_gpu(gpu) for gpu in node.gpus),
        **asdict(node.counts),
    )


def _counts(counts: Counts) -> wire.GpuCounts:
    return wire.GpuCounts(**asdict(counts))


def _gpu(gpu: Gpu) -> wire.Gpu:
    holder = gpu.holder
    return wire.Gpu(
        index=gpu.index,
        type=gpu.type,
        resource=gpu.resource,
        device=gpu.device,
        state=str(gpu.state),
        why=gpu.why,
        fragmented=gpu.fragmented,
        stranded=gpu.stranded,
        owner=holder.owner if holder else "",
        run=holder.run if holder else "",
        step=holder.step if holder else "",
        namespace=holder.namespace if holder else "",
        pod=holder.pod if holder else "",
        since=whole_seconds(holder.since) if holder else None,
        expected_until=whole_seconds(holder.expected_until) if holder else None,
    )
