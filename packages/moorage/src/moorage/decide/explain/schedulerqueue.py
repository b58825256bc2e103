"""The pods ahead of a pod in the scheduler's queue, and a simulation that forecasts its start."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from itertools import count

from moorage.decide.explain.nodeconstraints import placing
from moorage.decide.explain.pendingpod import PendingPod, Used
from moorage.decide.explain.snapshot import ParsedPod
from moorage.decide.explain.types import Earliest, Missing, Waiter, usual_end
from moorage.decide.runs.forecast import Usual
from moorage.decide.usage.gpus import is_reservation, owner_of, step_of
from moorage.model.names import EXPECTED_SECONDS_ANNOTATION, RUN_LABEL
from moorage_kube.meta import condition
from moorage_kube.resources import Obj
from moorage_kube.scheduling import PodInfo, is_extended, shortages

QUEUE_LIMIT = 200  # pods ahead that are played through for a forecast of the start; beyond that there is none


def turn(pod: PodInfo) -> tuple[int, float, str, str]:
    """The sort key of the scheduler's queue: priority, then age.

    Pods that do not exist yet are last of their priority.
    """
    created = pod.created.timestamp() if pod.created else float("inf")
    return -pod.priority, created, pod.namespace, pod.name


def pods_ahead(pending: PendingPod, missing: Sequence[Missing]) -> list[ParsedPod]:
    """The pods that the scheduler tries before this pod and that compete for the same resource on a common
    node.
    """
    me = pending.me
    wanted = {short.resource for short in missing} or {name for name in me.requests if is_extended(name)}
    wanted = wanted or {name for name in me.requests if name != "pods"}
    mine = {node.name for node in pending.usable}
    ahead = []
    for other in pending.others:
        pod = other.pod
        if other.holder is not None or pod.node or pod.finished or pod.deleting or pod.gates:
            continue
        if not wanted & set(pod.requests) or turn(pod) >= turn(me) or is_reservation(pod):
            continue
        if "persistentvolumeclaim" in scheduler_message(other.obj).lower():
            continue  # its volumes keep it from every node
        if any(node.name in mine for node in pending.lookup.usable(pod)):
            ahead.append(other)
    return sorted(ahead, key=lambda other: turn(other.pod))


def scheduler_message(pod: Obj) -> str:
    """The message of the scheduler's last attempt to place the pod."""
    return str((condition(pod, "PodScheduled") or {}).get("message") or "")


def waiter(pod: PodInfo) -> Waiter:
    return Waiter(
        owner=owner_of(pod),
        run=pod.labels.get(RUN_LABEL, ""),
        namespace=pod.namespace,
        pod=pod.name,
        priority=pod.priority,
        created=pod.created,
        gpus=pod.gpus,
        step=step_of(pod),
    )


# -- the future


def simulate(pending: PendingPod, line: Sequence[ParsedPod], *, usual: bool) -> tuple[Earliest | None, Used]:
    """Simulate the future: at each expected end the queue is tried again, in its order.

    Holders past their expected end are taken to end now; those without one never end. None: not foreseeable.
    With `usual`, the end that past runs forecast is used where it is before the limit or there is no limit.
    Also returned: the usage of each node once those ahead that fit now have started.
    """
    future = _Simulation(pending, line[:QUEUE_LIMIT], usual=usual)
    at, freed = pending.now, [node.name for node in pending.usable]
    earliest = future.start_those_that_fit(at, freed)
    used_now = future.used()
    while earliest is None and future.has_ends:
        at, freed = future.pass_to_next_end()
        earliest = future.start_those_that_fit(at, freed)
    return earliest, used_now


class _Simulation:
    """The queue, the coming ends and the usage of nodes, at a moment that only moves forward."""

    def __init__(self, pending: PendingPod, line: Sequence[ParsedPod], *, usual: bool) -> None:
        self._pending = pending
        self._usual = usual
        self._mine = pending.parsed
        self._queue = [*line, self._mine]
        # pods of the same number are alike to the scheduler: when one finds no room, the others need not be tried
        self._nodes = {node.name: node for node in pending.snapshot.nodes}
        self._numbers, self._allowed = self._alike()
        self._left: dict[str, dict[str, int]] = {}  # usage of the nodes where something changed
        self._ticket = count()
        self._ends: list[tuple[datetime, int, str, ParsedPod, Usual | None]] = []
        self._last: tuple[ParsedPod, Usual | None] | None = None  # the last one that ended
        for other in pending.others:
            if other.holder is None or other.pod.node not in self._allowed[0] or is_reservation(other.pod):
                continue
            end, by = end_of(pending, other, usual=usual)
            if end is not None:
                self._ends.append((max(pending.now, end), next(self._ticket), other.pod.node, other, by))
        heapq.heapify(self._ends)

    @property
    def has_ends(self) -> bool:
        return bool(self._ends)

    def used(self) -> Used:
        return {**self._pending.snapshot.used, **{name: dict(used) for name, used in self._left.items()}}

    def start_those_that_fit(self, at: datetime, freed: Sequence[str]) -> Earliest | None:
        """Place the pods of the queue, in order, on the nodes with freed capacity.

        Returns a forecast when it is this pod's turn, else None.
        """
        refused: set[int] = set()
        kinds = len(set(self._numbers))
        started: list[int] = []
        earliest = None
        for place, (parsed, number) in enumerate(zip(self._queue, self._numbers, strict=True)):
            if number in refused:
                continue
            node = self._node_with_room(parsed.pod, number, freed)
            if node is None:
                refused.add(number)
                if len(refused) == kinds:
                    break
            elif parsed is self._mine:
                after, by = self._last or (None, None)
                earliest = Earliest(at=at, node=node, after=after.holder if after else None, usual=by)
                break
            else:
                started.append(place)
                self._change(node, parsed.pod, 1)
                if span := span_of(self._pending, parsed, usual=self._usual):
                    heapq.heappush(self._ends, (at + span, next(self._ticket), node, parsed, None))
        for place in reversed(started):
            del self._queue[place], self._numbers[place]
        return earliest

    def pass_to_next_end(self) -> tuple[datetime, list[str]]:
        """Apply the next end of pods. Returns its time and the nodes on which pods ended."""
        at, freed = self._ends[0][0], set()
        while self._ends and self._ends[0][0] == at:
            _, _, node, ended, by = heapq.heappop(self._ends)
            self._change(node, ended.pod, -1)
            freed.add(node)
            self._last = (ended, by)
        return at, sorted(freed)

    def _alike(self) -> tuple[list[int], list[set[str]]]:
        """Group the pods of the queue by the nodes that they may use.

        Returns a group number for each pod, and the nodes of each group. The group of this pod is 0.
        """
        pending = self._pending
        known: dict[Hashable, int] = {}
        numbers = []
        allowed = [{node.name for node in pending.usable}]
        for parsed in self._queue[:-1]:
            key = (placing(parsed.pod), tuple(sorted(parsed.pod.requests.items())))
            if key not in known:
                known[key] = len(allowed)
                allowed.append({node.name for node in pending.lookup.usable(parsed.pod)})
            numbers.append(known[key])
        return [*numbers, 0], allowed

    def _node_with_room(self, pod: PodInfo, number: int, freed: Sequence[str]) -> str | None:
        allowed, used = self._allowed[number], self._pending.snapshot.used
        for name in freed:
            if name in allowed and not shortages(pod, self._nodes[name], self._left.get(name) or used[name]):
                return name
        return None

    def _change(self, node: str, pod: PodInfo, sign: int) -> None:
        used = self._left.setdefault(node, dict(self._pending.snapshot.used[node]))
        for name, value in pod.requests.items():
            used[name] = used.get(name, 0) + sign * value


def end_of(pending: PendingPod, other: ParsedPod, *, usual: bool) -> tuple[datetime | None, Usual | None]:
    """The expected end of a holder, and the history that it is based on (None: it is the holder's limit)."""
    holder = other.holder
    assert holder is not None
    limit = holder.expected_until
    if usual:
        past = pending.lookup.usual(other, pending.now)
        end = usual_end(holder, past)
        if end is not None and (limit is None or end < limit):
            return end, past
    return limit, None


def span_of(pending: PendingPod, waiting: ParsedPod, *, usual: bool) -> timedelta | None:
    """The expected run time of a pending pod."""
    limit = _expected_span(waiting.pod)
    if usual:
        past = pending.lookup.usual(waiting, pending.now)
        if past is not None and past.total is not None:
            return min(limit, past.total) if limit else past.total
    return limit


def _expected_span(pod: PodInfo) -> timedelta | None:
    text = pod.annotations.get(EXPECTED_SECONDS_ANNOTATION, "")
    return timedelta(seconds=int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None
