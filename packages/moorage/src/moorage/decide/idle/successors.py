"""The next user of the GPUs of suspended work: the next pod that began to hold them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from moorage.decide.idle.states import Record, State
from moorage.decide.idle.work import WorkKey, devices_of, key_of_pod
from moorage.decide.usage.gpus import holder_of
from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod


class Taker(Struct, frozen=True, kw_only=True):
    """A pod that has held GPUs of a node since then."""

    node: str
    since: datetime
    title: str  # "run vision/train of ada"
    key: WorkKey | None  # None: of no work that we know
    devices: frozenset[str] = frozenset()  # as in a record; empty: its node names none


def takers_of(pods: Iterable[Obj]) -> tuple[Taker, ...]:
    """All pods that have held GPUs, sorted by the start. Ended pods are included while they exist."""
    takers = []
    for obj in pods:
        try:
            pod = parse_pod(obj)
            holder = holder_of(obj, pod)
        except (MoorageError, ValueError):  # unreadable
            continue
        if not pod.gpus or not pod.node or holder.since is None:
            continue
        key = key_of_pod(obj)
        title = f"{key[0]} {key[1]}/{key[2]}" if key else f"pod {pod.namespace}/{pod.name}"
        takers.append(
            Taker(
                node=pod.node,
                since=holder.since,
                title=f"{title} of {holder.owner}" if holder.owner else title,
                key=key,
                devices=frozenset(devices_of(obj)),
            )
        )
    return tuple(sorted(takers, key=lambda taker: (taker.since, taker.title)))


def is_unclaimed(record: Record) -> bool:
    """Whether it is suspended, and the next user of its GPUs is unknown."""
    return record.state is State.SUSPENDED and not record.went_to


def next_holder(key: WorkKey, record: Record, takers: Iterable[Taker]) -> str:
    """The first that took one of the GPUs that suspended work released; "" if none yet, or it is not suspended.

    Where nodes do not name their devices, it is the first that took any GPU of its nodes.
    """
    if record.state is not State.SUSPENDED or record.suspended_at is None:
        return ""
    nodes, devices = set(record.node.split(", ")), set(record.devices)
    for taker in takers:
        if taker.key == key or taker.node not in nodes or taker.since < record.suspended_at.replace(microsecond=0):
            continue
        if not devices or not taker.devices or devices & taker.devices:
            return taker.title
    return ""
