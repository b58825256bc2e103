"""A full ResourceQuota: the pods that use it, and when their time limits leave room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from moorage.decide.explain.nodes import hold_of, sorted_holders
from moorage.decide.explain.pendingpod import PendingPod
from moorage.decide.explain.types import Earliest, HeldBy
from moorage.decide.usage.gpus import holder_of
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import amount

_PARTS = ("requested", "used", "limited")
_PREFIXES = ("requests.", "limits.")


def excess(message: str) -> dict[str, int]:
    """How much of each resource must become free, in units of `quantity.amount`, by the API server's message.

    The message is "exceeded quota: NAME, requested: A=1,B=2, used: A=3,B=4, limited: A=3,B=5". Empty for others.
    """
    requested, used, limited = (_amounts(message, part) for part in _PARTS)
    return {
        _resource(name): over
        for name in requested
        if name in used and name in limited and (over := requested[name] + used[name] - limited[name]) > 0
    }


def quota_holders(pending: PendingPod, short: Mapping[str, int]) -> tuple[HeldBy, ...]:
    """The unfinished pods of the namespace that use the resources which the quota is short of, by their ends.

    Pods that wait for a node count in a quota too.
    """
    pods = [
        replace(other, holder=other.holder or holder_of(other.obj, other.pod))
        for other in pending.others
        if other.pod.namespace == pending.me.namespace and not other.pod.finished
    ]
    holders = (hold_of(pending, pod, resource) for pod in pods for resource in short)
    return sorted_holders(held for held in holders if held.amount)


def quota_frees(holders: Iterable[HeldBy], short: Mapping[str, int], now: datetime) -> Earliest | None:
    """When the quota has room, if the holders reach their time limits; None: not known."""
    left = dict(short)
    ends = ((held, held.holder.expected_until) for held in holders)
    for held, end in sorted(((held, end) for held, end in ends if end is not None), key=lambda pair: pair[1]):
        left[held.resource] -= held.amount
        if all(amount <= 0 for amount in left.values()):
            return Earliest(at=max(end, now), node="", after=held.holder)
    return None


def _amounts(message: str, part: str) -> dict[str, int]:
    """The amounts after a word of the message, by name; unreadable ones are left out."""
    text = message.partition(f"{part}: ")[2].partition(", ")[0]
    out = {}
    for pair in text.split(","):
        name, _, quantity = pair.partition("=")
        try:
            out[name] = amount(_resource(name), quantity)
        except QuantityError:
            continue
    return out


def _resource(name: str) -> str:
    """The resource of a pod that a name of a quota counts: "requests.cpu" counts cpu."""
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
