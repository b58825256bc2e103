"""Decide which run yields its place to which waiting run.

Nothing here reads the clock or the cluster: all that the decision depends on is a field of `Observed`.

- Only to a run that fits in the place that is freed, and that fits nowhere now.
- Only by a run that has had its guaranteed time since this turn began, so that two runs cannot push each other out
  at once.
- Only by a run with a checkpoint of this turn that is fresh: it loses little.
- `fair`: to an owner with less recent GPU use than the yielding one; between runs of one owner, to the run with
  less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.model.tenant import TimeSharing
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, refusals

RunKey = tuple[str, str]
"""Namespace and name of a run."""


class Rule(Struct, frozen=True, kw_only=True):
    """A tenant's `spec.timeSharing`."""

    guaranteed: timedelta
    half_life: timedelta
    fresh: timedelta  # how old a checkpoint may be


class TenantRule(Struct, frozen=True, kw_only=True):
    """The rule of a tenant. `everybody`: all runs with a checkpoint take part unless they opt out.

    Otherwise only runs that ask for it take part.
    """

    rule: Rule
    everybody: bool


def rule_of(tenant: Obj) -> TenantRule | None:
    """The rule of a stored Tenant; None if its runs do not take turns."""
    given = (tenant.get("spec") or {}).get("timeSharing")
    if given is None:
        return None
    sharing = msgspec.convert(given, TimeSharing)
    return TenantRule(
        rule=Rule(
            guaranteed=timedelta(seconds=sharing.guaranteed_seconds),
            half_life=timedelta(seconds=sharing.half_life_seconds),
            fresh=timedelta(seconds=sharing.checkpoint_seconds),
        ),
        everybody=sharing.runs == "Checkpointed",
    )


class Holding(Struct, frozen=True, kw_only=True):
    """A run with one running pod. `yields_to`: the run that it was already asked to yield to."""

    run: RunKey
    owner: str
    pod: PodInfo
    since: datetime  # when this turn began
    checkpoint_at: datetime | None
    yields_to: RunKey | None = None


class Waiting(Struct, frozen=True, kw_only=True):
    """A run that waits: its pod fits on no node now."""

    run: RunKey
    owner: str
    pod: PodInfo
    since: datetime


class Observed(Struct, frozen=True, kw_only=True):
    """The runs of one tenant that take turns, and the whole cluster. Use is in GPU-seconds, faded to `now`."""

    rule: Rule
    holdings: Sequence[Holding]
    waiting: Sequence[Waiting]
    nodes: Sequence[NodeInfo]
    on_node: Mapping[str, Sequence[PodInfo]]  # every pod that is bound
    use_of_owner: Mapping[str, float] = field(default_factory=dict)
    use_of_run: Mapping[RunKey, float] = field(default_factory=dict)
    now: datetime


class Yield(Struct, frozen=True):
    """`run` yields its place to `to`."""

    run: RunKey
    to: RunKey


def plan(seen: Observed) -> tuple[Yield, ...]:
    """The runs that yield now, each to a waiting run. Planning again after these were asked returns no others for
    them.
    """
    yields: list[Yield] = []
    served = {holding.yields_to for holding in seen.holdings if holding.yields_to is not None}
    for waiting in sorted(seen.waiting, key=lambda waiting: _turn(waiting, seen)):
        if waiting.run in served or _fits_now(waiting, seen):
            continue
        chosen = _choose(waiting, seen)
        yields += [Yield(holding.run, waiting.run) for holding in chosen]
        taken = {holding.run for holding in chosen}
        asked = [replace(holding, yields_to=waiting.run) for holding in chosen]
        kept = [holding for holding in seen.holdings if holding.run not in taken]
        seen = replace(seen, holdings=[*kept, *asked])
    return tuple(yields)


def may_yield(holding: Holding, waiting: Waiting, seen: Observed) -> bool:
    """Whether the rule allows asking this run to yield to the waiting run."""
    if holding.yields_to is not None or holding.run == waiting.run:
        return False
    if seen.now - holding.since < seen.rule.guaranteed:
        return False
    at = holding.checkpoint_at
    if at is None or at < holding.since or seen.now - at > seen.rule.fresh:
        return False
    if holding.owner == waiting.owner:
        return seen.use_of_run.get(holding.run, 0.0) > seen.use_of_run.get(waiting.run, 0.0)
    return seen.use_of_owner.get(holding.owner, 0.0) > seen.use_of_owner.get(waiting.owner, 0.0)


def _turn(waiting: Waiting, seen: Observed) -> tuple[float, float, datetime, RunKey]:
    """The owner with the least use comes first."""
    return (
        seen.use_of_owner.get(waiting.owner, 0.0),
        seen.use_of_run.get(waiting.run, 0.0),
        waiting.since,
        waiting.run,
    )


def _fits_now(waiting: Waiting, seen: Observed) -> bool:
    return any(not refusals(waiting.pod, node, seen.on_node.get(node.name, ())) for node in seen.nodes)


def _choose(waiting: Waiting, seen: Observed) -> list[Holding]:
    """The fewest runs on one node whose places are enough for the waiting run; those with the most use first.

    Empty if all nodes have too few.
    """
    best: list[Holding] = []
    for node in seen.nodes:
        chosen = _on(node, waiting, seen)
        if chosen and (not best or _cost(chosen, seen) < _cost(best, seen)):
            best = chosen
    return best


def _on(node: NodeInfo, waiting: Waiting, seen: Observed) -> list[Holding]:
    there = seen.on_node.get(node.name, ())
    candidates = [
        holding for holding in seen.holdings if holding.pod.node == node.name and may_yield(holding, waiting, seen)
    ]
    candidates.sort(key=lambda holding: _cost([holding], seen))
    chosen: list[Holding] = []
    for holding in candidates:
        chosen.append(holding)
        if _fits_without(waiting, node, there, chosen):
            break
    else:
        return []
    for holding in list(chosen):  # an early choice may turn out unneeded
        rest = [other for other in chosen if other is not holding]
        if rest and _fits_without(waiting, node, there, rest):
            chosen = rest
    return chosen


def _fits_without(waiting: Waiting, node: NodeInfo, there: Iterable[PodInfo], gone: Sequence[Holding]) -> bool:
    names = {(holding.pod.namespace, holding.pod.name) for holding in gone}
    left = [pod for pod in there if (pod.namespace, pod.name) not in names]
    return not refusals(waiting.pod, node, left)


def _cost(chosen: Sequence[Holding], seen: Observed) -> tuple[int, float, datetime, RunKey]:
    """Fewer runs, owners with more use, and longer turns cost less."""
    used = sum(seen.use_of_owner.get(holding.owner, 0.0) for holding in chosen)
    run_use = sum(seen.use_of_run.get(holding.run, 0.0) for holding in chosen)
    return len(chosen), -used - run_use, min(holding.since for holding in chosen), chosen[0].run
