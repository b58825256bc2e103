"""One decision: the node of a pod, or why it waits and which pods to remove for it.

Nothing is written here; extenders are asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moorage_local.scheduler.extenders import Extender, ExtenderError
from moorage_local.scheduler.filters import Facts, Refusal, blanket_message, facts_of, fit_message, judge
from moorage_local.scheduler.preemption import NOT_HELPFUL, Candidate, choose, find_candidates, why_not_eligible
from moorage_local.scheduler.scores import pick, total_scores
from moorage_local.scheduler.snapshot import Cache, NodeState, PodView, Snapshot


@dataclass(frozen=True, slots=True)
class Placed:
    """The node chosen for the pod."""

    node: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """All nodes refuse the pod. With a candidate, pods must first be removed from its node."""

    message: str
    candidate: Candidate | None = None
    keep_nomination: bool = False


class Decider:
    """Decides the node of a pod. `cache` has the current nominations; `rng` decides between equal nodes."""

    def __init__(self, cache: Cache, extenders: Sequence[Extender], rng: random.Random) -> None:
        self._cache = cache
        self._extenders = extenders
        self._rng = rng

    async def decide(self, pod: PodView, snapshot: Snapshot) -> Placed | Unplaced:
        """Raises ExtenderError."""
        if not snapshot.nodes:
            return Unplaced("no nodes available to schedule pods")
        facts = facts_of(pod, snapshot)
        if facts.everywhere is not None:
            everywhere = {name: (facts.everywhere,) for name in snapshot.nodes}
            return await self._make_room(pod, snapshot, everywhere, facts.everywhere)
        nominee = snapshot.nodes.get(self._cache.nomination(pod.key))
        if nominee is not None:
            feasible, _ = await self._feasible(pod, [nominee], snapshot, facts)
            if feasible:
                return Placed(nominee.name)
        feasible, refusals = await self._feasible(pod, list(snapshot.nodes.values()), snapshot, facts)
        if not feasible:
            return await self._make_room(pod, snapshot, refusals)
        if len(feasible) == 1:
            return Placed(feasible[0].name)
        totals = total_scores(pod, feasible, snapshot)
        for points in await asyncio.gather(
            *(self._points(extender, pod, feasible) for extender in self._extenders)
        ):
            for name, score in points.items():
                if name in totals:
                    totals[name] += score
        return Placed(pick(totals, self._rng))

    async def _feasible(
        self, pod: PodView, nodes: Sequence[NodeState], snapshot: Snapshot, facts: Facts
    ) -> tuple[list[NodeState], dict[str, tuple[Refusal, ...]]]:
        """Return the nodes that pass our filters and all extenders, and the reasons of the other nodes."""
        refusals = {node.name: judge(pod, node, snapshot, facts) for node in nodes}
        feasible = [node for node in nodes if not refusals[node.name]]
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.config.filter_verb or not extender.is_interested(pod.obj):
                continue
            try:
                feasible, failed, hopeless = await extender.filter(pod.obj, feasible)
            except ExtenderError:
                if extender.config.ignorable:
                    continue
                raise
            for name, message in {**failed, **hopeless}.items():
                refusals[name] = (Refusal(message, name not in hopeless),)
        return feasible, {name: reasons for name, reasons in refusals.items() if reasons}

    async def _points(self, extender: Extender, pod: PodView, nodes: Sequence[NodeState]) -> dict[str, int]:
        if not extender.config.prioritize_verb or not extender.is_interested(pod.obj):
            return {}
        try:
            return await extender.prioritize(pod.obj, nodes)
        except ExtenderError:
            return {}  # as in kube-scheduler, ignorable or not: the other scores decide

    async def _make_room(
        self,
        pod: PodView,
        snapshot: Snapshot,
        refusals: Mapping[str, Sequence[Refusal]],
        everywhere: Refusal | None = None,
    ) -> Unplaced:
        """Return the reasons why all nodes refuse the pod, and choose the pods to remove."""
        total = len(snapshot.nodes)

        def message(note: str) -> str:
            if everywhere is not None:
                return blanket_message(total, everywhere, f"preemption: {note}")
            return fit_message(total, refusals.values(), f"preemption: {note}")

        reason = why_not_eligible(pod, self._cache.nomination(pod.key), snapshot, refusals)
        if reason is not None:
            return Unplaced(message(reason), keep_nomination=True)
        if everywhere is not None and not everywhere.resolvable:
            return Unplaced(message(fit_message(total, [[NOT_HELPFUL]] * total)))
        candidates, failed = find_candidates(pod, snapshot, refusals)
        if not candidates:
            return Unplaced(message(fit_message(total, failed.values())))
        for extender in self._extenders:
            if not extender.config.preempt_verb or not extender.is_interested(pod.obj):
                continue
            try:
                candidates = await extender.preempt(pod.obj, candidates, snapshot)
            except ExtenderError as error:
                if extender.config.ignorable:
                    continue
                return Unplaced(message(error.message), keep_nomination=True)
            if not candidates:
                break
        chosen = choose(candidates, self._rng)
        if chosen is None:
            return Unplaced(message("no candidate node for preemption"), keep_nomination=True)
        plain = blanket_message(total, everywhere) if everywhere else fit_message(total, refusals.values())
        return Unplaced(plain, candidate=chosen)
