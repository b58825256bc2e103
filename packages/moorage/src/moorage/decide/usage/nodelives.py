"""Nodes as facts: the resources that each offered, and the time during which it existed.

One node is one life, under its uid and its start, so an hour of it cannot be counted twice. A node that changes
its type, region, market or resources ends one life and begins the next in the same moment. A new node gets some
values only when its drivers and the cloud's controller are done: these belong to its first life, see SETTLE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from fractions import Fraction

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.usage.devices import Counts, counts_of, gpus_of, share_of
from moorage.decide.usage.gpus import gpu_type
from moorage.model.prices import REGION_LABEL, TYPE_LABEL, market_of
from moorage_kube.meta import labels_of
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_count
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu, parse_node

SETTLE = timedelta(minutes=15)  # device plugins install drivers for minutes before a new node shows its GPUs


class NodeLife(Struct, frozen=True, kw_only=True):
    """The resources that one node offered to pods, and when. `ended_at` None: it still exists.

    CPU and memory are those that pods can use (allocatable); GPUs are all it has, because a broken one is paid
    for, too.
    """

    node_uid: str
    node: str
    instance_type: str = ""  # by its label, as are the next two; empty: no label
    region: str = ""
    market: str = ""  # spot or on-demand
    gpu_type: str = ""  # empty: it has no GPUs
    devices: Counts = ()
    shares: Mapping[str, Fraction] = field(default_factory=dict)  # of a whole GPU, where a device is less
    cpu_milli: int
    memory_bytes: int
    started_at: datetime
    ended_at: datetime | None = None
    first_seen_at: datetime
    last_seen_at: datetime

    @property
    def key(self) -> tuple[str, datetime]:
        return self.node_uid, self.started_at

    @property
    def gpus(self) -> Fraction:
        """The number of whole GPUs: seven slices of a seventh count as one."""
        return gpus_of(self.devices, self.shares)


class Begin(Struct, frozen=True):
    life: NodeLife


class Amend(Struct, frozen=True):
    """A young node reports its values: they apply to its life from the start."""

    life: NodeLife


class End(Struct, frozen=True):
    key: tuple[str, datetime]
    ended_at: datetime


class Resume(Struct, frozen=True):
    """The node was thought deleted and is not."""

    key: tuple[str, datetime]


NodeStep = Begin | Amend | End | Resume


def life_of(obj: Obj, *, now: datetime) -> NodeLife | None:
    """Convert a `v1.Node` to a life that starts at the node's creation. None if it has no uid."""
    meta, node, labels = obj["metadata"], parse_node(obj), labels_of(obj)
    uid = str(meta.get("uid") or "")
    if not uid:
        return None
    capacity = (obj.get("status") or {}).get("capacity") or {}
    amounts = {name: count for name, count in node.allocatable.items() if is_gpu(name)}
    amounts |= {
        name: max(amounts.get(name, 0), parse_count(count)) for name, count in capacity.items() if is_gpu(name)
    }
    devices = counts_of(amounts)
    shares = {resource: share_of(resource, labels) for resource, _ in devices}
    created = moment(meta.get("creationTimestamp"))
    return NodeLife(
        node_uid=uid,
        node=node.name,
        instance_type=labels.get(TYPE_LABEL, ""),
        region=labels.get(REGION_LABEL, ""),
        market=market_of(labels),
        gpu_type=gpu_type(labels) if devices else "",
        devices=devices,
        shares={resource: share for resource, share in shares.items() if share != 1},
        cpu_milli=node.allocatable.get("cpu", 0),
        memory_bytes=node.allocatable.get("memory", 0),
        started_at=min(created, now) if created else now,
        first_seen_at=now,
        last_seen_at=now,
    )


def plan_nodes(
    known: Iterable[NodeLife],
    nodes: Iterable[Obj],
    *,
    deleted: Mapping[str, datetime] | None = None,
    now: datetime,
) -> tuple[NodeStep, ...]:
    """The steps from the stored lives to the present nodes. Planning again after them returns none.

    `known`: the open lives, and the last ones of the nodes in `nodes`. `deleted`: uid → when the deletion of the
    node was seen. A node that was deleted while the cluster was not watched is charged up to when it was last
    seen, no further.
    """
    last: dict[str, NodeLife] = {}
    steps: list[NodeStep] = []
    for life in sorted(known, key=lambda life: life.started_at):
        earlier = last.get(life.node_uid)
        if (
            earlier is not None and earlier.ended_at is None
        ):  # killed between an end and a begin: never two at once
            steps.append(End(earlier.key, max(earlier.started_at, life.started_at)))
        last[life.node_uid] = life
    present = set()
    for obj in nodes:
        seen = life_of(obj, now=now)
        if seen is None:
            continue
        present.add(seen.node_uid)
        steps += _steps_of(last.get(seen.node_uid), seen, now)
    gone = deleted or {}
    for uid, life in last.items():
        if uid not in present and life.ended_at is None:
            end = min(now, gone[uid]) if uid in gone else life.last_seen_at
            steps.append(End(life.key, max(life.started_at, end)))
    return tuple(steps)


def _steps_of(known: NodeLife | None, seen: NodeLife, now: datetime) -> list[NodeStep]:
    if known is None:
        return [Begin(seen)]
    steps: list[NodeStep] = [] if known.ended_at is None else [Resume(known.key)]
    current = replace(
        seen,
        started_at=known.started_at,
        ended_at=known.ended_at,
        first_seen_at=known.first_seen_at,
        last_seen_at=known.last_seen_at,
    )
    if current == known:
        return steps
    if now - known.started_at < SETTLE:
        return [*steps, Amend(current)]
    return [*steps, End(known.key, now), Begin(replace(seen, started_at=now))]
