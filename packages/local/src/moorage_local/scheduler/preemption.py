"""Choose the pods to remove so that a pod without a node can run: kube-scheduler's DefaultPreemption.

On each node all pods of lower priority are removed in a simulation and returned one by one, the most important
first, and those with a used-up disruption budget before the others; a pod that cannot be returned is a victim.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from moorage_local.scheduler.filters import Refusal, facts_of, judge
from moorage_local.scheduler.snapshot import Budget, NodeState, PodView, Snapshot

NOT_HELPFUL = Refusal("Preemption is not helpful for scheduling", False)
NO_VICTIMS = Refusal("No preemption victims found for incoming pod", False)

_PRIORITY_BASE = 2**31  # keeps sums of negative priorities from favouring nodes with more victims
_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node and its victims: the pods to remove from it, the most important first.

    There is at least one victim.
    """

    node: str
    victims: tuple[PodView, ...]
    violations: int  # victims whose disruption budget does not allow it


def why_not_eligible(
    pod: PodView, nominated: str, snapshot: Snapshot, refusals: Mapping[str, Sequence[Refusal]]
) -> str | None:
    """Return why the pod may not preempt now; None if it may.

    The pod waits while victims of an earlier preemption are ending on its nominated node (`nominated`, "" if
    none).
    """
    if not pod.info.may_preempt:
        return "not eligible due to preemptionPolicy=Never."
    node = snapshot.nodes.get(nominated)
    if node is None or any(not refusal.resolvable for refusal in refusals.get(nominated, ())):
        return None
    if any(other.preempted and other.info.priority < pod.info.priority for other in node.pods):
        return "not eligible due to a terminating pod on the nominated node."
    return None


def find_candidates(
    pod: PodView, snapshot: Snapshot, refusals: Mapping[str, Sequence[Refusal]]
) -> tuple[list[Candidate], dict[str, tuple[Refusal, ...]]]:
    """Return the nodes on which the removal of pods helps, and the reasons of the other nodes.

    The order is that of the snapshot.
    """
    candidates: list[Candidate] = []
    failed: dict[str, tuple[Refusal, ...]] = {}
    for name, node in snapshot.nodes.items():
        if any(not refusal.resolvable for refusal in refusals.get(name, ())):
            failed[name] = (NOT_HELPFUL,)
            continue
        judged = _victims_on(pod, node, snapshot)
        if isinstance(judged, Candidate):
            candidates.append(judged)
        else:
            failed[name] = judged
    return candidates, failed


def choose(candidates: Sequence[Candidate], rng: random.Random) -> Candidate | None:
    """Return the candidate with the lowest cost; if several are equal, a random one of them.

    The order is: fewest violated budgets, lowest top priority, lowest sum of priorities, fewest victims,
    latest start of the most important victims.
    """
    if not candidates:
        return None
    best = min(map(_cost, candidates))
    return rng.choice([candidate for candidate in candidates if _cost(candidate) == best])


def by_importance(pod: PodView) -> tuple[int, datetime, str]:
    """Return a sort key, the most important first: higher priority, then the longer running pod."""
    return (-pod.info.priority, pod.info.started or _LATEST, str(pod.key))


def split_by_budget(pods: Sequence[PodView], budgets: Sequence[Budget]) -> tuple[list[PodView], list[PodView]]:
    """Split the pods into those that a disruption budget protects, and the others; the order stays."""
    left = [budget.allowed for budget in budgets]
    protected: list[PodView] = []
    free: list[PodView] = []
    for pod in pods:
        broken = False
        for at, budget in enumerate(budgets):
            if pod.info.labels and budget.covers(pod.info):
                left[at] -= 1
                broken = broken or left[at] < 0
        (protected if broken else free).append(pod)
    return protected, free


def _victims_on(pod: PodView, node: NodeState, snapshot: Snapshot) -> Candidate | tuple[Refusal, ...]:
    lower = sorted((other for other in node.pods if other.info.priority < pod.info.priority), key=by_importance)
    if not lower:
        return (NO_VICTIMS,)
    emptied = node.without_pods(*(other.key for other in lower))
    refused = _refused(pod, emptied, snapshot)
    if refused:
        return refused
    victims: list[PodView] = []
    violations = 0
    protected, free = split_by_budget(lower, snapshot.budgets)
    for group, counts in ((protected, 1), (free, 0)):
        for other in group:
            fuller = emptied.with_pods(other)
            if _refused(pod, fuller, snapshot):
                victims.append(other)
                violations += counts
            else:
                emptied = fuller
    if not victims:
        return (NO_VICTIMS,)  # only an extender refused the node
    return Candidate(node=node.name, victims=tuple(sorted(victims, key=by_importance)), violations=violations)


def _refused(pod: PodView, node: NodeState, snapshot: Snapshot) -> tuple[Refusal, ...]:
    world = snapshot.with_node(node)
    return judge(pod, node, world, facts_of(pod, world))


def _cost(candidate: Candidate) -> tuple[int, int, int, int, float]:
    highest = candidate.victims[0].info.priority
    started = min(
        (victim.info.started or _LATEST for victim in candidate.victims if victim.info.priority == highest),
        default=_LATEST,
    )
    return (
        candidate.violations,
        highest,
        sum(victim.info.priority + _PRIORITY_BASE for victim in candidate.victims),
        len(candidate.victims),
        -started.timestamp(),
    )
