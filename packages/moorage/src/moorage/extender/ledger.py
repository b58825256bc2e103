"""Held resources of each node: by pods seen there, and by pods assumed there and not seen yet.

kube-scheduler asks about one pod at a time and binds it later, during the next cycles: when it asks again,
the pod before is not bound yet and our watch has not reported it. So the pod is assumed on the node that was
recommended for it, and counted there until something newer is known:

| event | the assumption |
|---|---|
| the pod is seen bound | ends; counted as `right` or, bound elsewhere, `wrong` |
| it is asked about again: the attempt before failed | ends (`again`) and a new one is made |
| a status newer than the question: unschedulable, or nominated to a node | ends (`refused`) |
| the pod is deleted, has finished, or another has its name | ends (`gone`) |
| nothing for `ASSUME_SECONDS` | ends (`expired`) |

A pod is counted once: where it is bound, else where it is assumed, else where it is nominated
(`status.nominatedNodeName`: the scheduler keeps or makes room for it there). Pure: time comes in, changed nodes
are returned.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping

from msgspec import Struct

from moorage_kube.meta import Key

# kube-scheduler itself stores an assumption until its binding ends: milliseconds, or the time to make a volume.
# A longer one is not counted for a moment; one with a missed end is not counted for ever.
ASSUME_SECONDS = 60.0


class Hold(Struct, frozen=True):
    """The GPUs and CPU (millicores) of a pod that are in use or promised on a node."""

    node: str
    gpus: Mapping[str, int]
    cpu: int


class Sight(Struct, frozen=True, kw_only=True):
    """A pod, as read from the API.

    `hold`: its node if it is bound or nominated; None if not, or if it has finished.
    """

    uid: str
    hold: Hold | None = None
    bound: bool = False  # for good; it may have finished since
    finished: bool = False
    refused: bool = False  # the scheduler said that it cannot be scheduled
    version: int = 0  # its resourceVersion; 0: unknown


class _Assumed(Struct, frozen=True):
    uid: str
    hold: Hold
    version: int  # of the pod as it was asked about
    until: float


class Ledger:
    """Counters of the held resources, moved by events in any order.

    Each method returns the nodes on which something changed.
    """

    def __init__(self, *, assume_seconds: float = ASSUME_SECONDS) -> None:
        self._assume_seconds = assume_seconds
        self._seen: dict[Key, Sight] = {}  # those that hold something, or are bound
        self._assumed: OrderedDict[Key, _Assumed] = OrderedDict()  # the oldest first
        self._counted: dict[Key, Hold] = {}
        self._gpus: dict[str, dict[str, int]] = {}
        self._cpu: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()

    def __len__(self) -> int:
        """The number of assumed placements that are not confirmed yet."""
        return len(self._assumed)

    def gpus(self, node: str) -> Mapping[str, int]:
        """The GPUs in use on the node by resource name. The mapping changes later: do not store it."""
        return self._gpus.get(node, {})

    def cpu(self, node: str) -> int:
        """Millicores held there."""
        return self._cpu.get(node, 0)

    def counted(self, key: Key) -> Hold | None:
        """The node and resources that are counted for the pod."""
        return self._counted.get(key)

    def assumed(self, key: Key) -> str | None:
        """The node of the pod's assumed placement."""
        assumed = self._assumed.get(key)
        return assumed.hold.node if assumed is not None else None

    def see(self, key: Key, sight: Sight) -> set[str]:
        """Handle a new or changed pod."""
        assumed = self._assumed.get(key)
        if assumed is not None and (outcome := _outcome(assumed, sight)) is not None:
            self._drop(key, outcome)
        if sight.hold is None and not sight.bound:
            self._seen.pop(key, None)
        else:
            self._seen[key] = sight
        return self._count(key)

    def gone(self, key: Key, uid: str) -> set[str]:
        """Handle a deleted pod."""
        self._seen.pop(key, None)
        assumed = self._assumed.get(key)
        if assumed is not None and assumed.uid == uid:
            self._drop(key, "gone")
        return self._count(key)

    def asked_again(self, key: Key) -> set[str]:
        """Drop the assumed placement of a pod, because the scheduler asks about the pod again."""
        if key not in self._assumed:
            return set()
        self._drop(key, "again")
        return self._count(key)

    def assume(self, key: Key, uid: str, hold: Hold, *, version: int, now: float) -> set[str]:
        """Assume a placement. Changes nothing if the pod is bound already: the request was late."""
        seen = self._seen.get(key)
        if seen is not None and seen.bound and seen.uid == uid:
            return set()
        self._assumed.pop(key, None)
        self._assumed[key] = _Assumed(uid, hold, version, now + self._assume_seconds)
        return self._count(key)

    def expire(self, now: float) -> set[str]:
        """Drop assumed placements that are too old."""
        changed: set[str] = set()
        while self._assumed:
            key, oldest = next(iter(self._assumed.items()))
            if oldest.until > now:
                break
            self._drop(key, "expired")
            changed |= self._count(key)
        return changed

    def _drop(self, key: Key, outcome: str) -> None:
        del self._assumed[key]
        self.outcomes[outcome] += 1

    def _count(self, key: Key) -> set[str]:
        seen, assumed, before = self._seen.get(key), self._assumed.get(key), self._counted.get(key)
        after = seen.hold if seen is not None else None
        if assumed is not None and not (seen is not None and seen.bound and seen.uid == assumed.uid):
            after = assumed.hold
        if before == after:
            return set()
        if before is not None:
            self._move(before, -1)
            del self._counted[key]
        if after is not None:
            self._move(after, 1)
            self._counted[key] = after
        return {hold.node for hold in (before, after) if hold is not None}

    def _move(self, hold: Hold, sign: int) -> None:
        node = hold.node
        cpu = self._cpu.get(node, 0) + sign * hold.cpu
        if cpu:
            self._cpu[node] = cpu
        else:
            self._cpu.pop(node, None)
        held = self._gpus.setdefault(node, {})
        for resource, count in hold.gpus.items():
            left = held.get(resource, 0) + sign * count
            if left:
                held[resource] = left
            else:
                held.pop(resource, None)
        if not held:
            del self._gpus[node]


def _outcome(assumed: _Assumed, sight: Sight) -> str | None:
    """The outcome of an assumption when the pod is seen so; None: it stays."""
    if assumed.uid != sight.uid:
        return "gone" if sight.version > assumed.version else None  # an older pod of that name: its event is late
    if sight.bound:
        if sight.hold is None:
            return "gone"  # bound, and finished before we looked
        return "right" if sight.hold.node == assumed.hold.node else "wrong"
    if sight.finished:
        return "gone"
    if sight.version <= assumed.version:
        return None  # older than the question
    return "refused" if sight.refused or sight.hold is not None else None
