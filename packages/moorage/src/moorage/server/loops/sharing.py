"""Sharing by time: asks runs to give their place to others, by the rule of their tenant.

It runs on the server that records, since only that server knows the recent use of each user. It
writes one annotation on the Job of an attempt; the operator ends the attempt and starts the next.
Asked twice, or by two servers, it is asked once: the Job is written only as it was read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from moorage.decide.runs.state import AttemptView, PodView, RunView, State
from moorage.decide.sharing.plan import Holding, Observed, RunKey, TenantRule, Waiting, Yield, plan, rule_of
from moorage.decide.sharing.use import HALF_LIVES, faded_use
from moorage.decide.usage.intervals import Interval
from moorage.model.names import SHARE_ANNOTATION, YIELDS_TO_ANNOTATION
from moorage.server.cluster import Cluster
from moorage.server.tenants import KnownTenants
from moorage.usage.store import UsageStore
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, MoorageError, NotFound
from moorage_kube.meta import annotations_of
from moorage_kube.resources import JOBS, Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, parse_node, parse_pod

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks; a turn is minutes at least


class Sharing:
    """Asks runs to yield their place to waiting runs. `run` it on one server of a database at a time."""

    def __init__(
        self, api: Api, cluster: Cluster, usage: UsageStore, tenants: KnownTenants, *, clock: Clock
    ) -> None:
        self._api, self._cluster, self._usage = api, cluster, usage
        self._tenants, self._clock = tenants, clock

    async def run(self) -> None:
        """Check from time to time, until cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except (MoorageError, OSError) as error:
                log.warning("turns of runs are not judged now", extra={"error": str(error)})

    async def look(self) -> tuple[Yield, ...]:
        """Judge once, ask the runs that must yield, and return them."""
        if not self._cluster.synced:
            return ()
        asked: list[Yield] = []
        for tenant in await self._tenants.all():
            rule = rule_of(tenant)
            namespace = str((tenant.get("spec") or {}).get("namespace") or "")
            if rule is None or not namespace:
                continue
            seen = await self._observe(namespace, rule)
            if seen is None:
                continue
            for decided in plan(seen):
                if await self._ask(decided):
                    asked.append(decided)
        return tuple(asked)

    async def _observe(self, namespace: str, tenant_rule: TenantRule) -> Observed | None:
        rule = tenant_rule.rule
        runs = [run for run in self._cluster.runs() if run.namespace == namespace]
        sharing = [
            run for run in runs if not run.state.ended and self._shares(run, everybody=tenant_rule.everybody)
        ]
        waiting = [waits for run in sharing if (waits := self._waiting(run)) is not None]
        holdings = [holds for run in sharing if (holds := self._holding(run)) is not None]
        if not waiting or not holdings:
            return None
        now = self._clock.now()
        since = now - HALF_LIVES * rule.half_life
        intervals = await asyncio.to_thread(self._usage.overlapping, since, now)
        nodes, on_node = self._nodes()
        return Observed(
            rule=rule,
            holdings=holdings,
            waiting=waiting,
            nodes=nodes,
            on_node=on_node,
            use_of_owner=faded_use(intervals, _owner, now=now, half_life=rule.half_life),
            use_of_run=faded_use(intervals, _run, now=now, half_life=rule.half_life),
            now=now,
        )

    def _shares(self, run: RunView, *, everybody: bool) -> bool:
        if not run.checkpoint:
            return False
        job = self._job(run, run.attempts[0])
        wish = annotations_of(job).get(SHARE_ANNOTATION) if job is not None else None
        return wish == "true" or (everybody and wish != "false")

    def _job(self, run: RunView, attempt: AttemptView) -> Obj | None:
        return self._cluster.jobs.get(attempt.job, run.namespace)

    def _pod(self, run: RunView, pod: PodView) -> PodInfo | None:
        obj = self._cluster.pods.get(pod.name, run.namespace)
        return parse_pod(obj) if obj is not None else None

    def _waiting(self, run: RunView) -> Waiting | None:
        """A run that waits with its only pod, which the scheduler could not place; None for other runs.

        A run of several pods does not take part in sharing.
        """
        pods = _live(run)
        if run.state is not State.WAITING or len(pods) != 1:
            return None
        pod = self._pod(run, pods[0])
        if pod is None or pod.node or pod.gates or pods[0].reason != "Unschedulable":
            return None
        since = run.attempts[-1].created or run.created or self._clock.now()
        return Waiting(run=(run.namespace, run.name), owner=run.owner, pod=pod, since=since)

    def _holding(self, run: RunView) -> Holding | None:
        attempt, pods = run.attempts[-1], _live(run)
        if attempt.yields_to and (run.state.ended or attempt.state == "Failed"):
            return None
        if run.state not in (State.RUNNING, State.RESTARTING) or len(pods) != 1 or pods[0].started is None:
            return None
        pod = self._pod(run, pods[0])
        if pod is None or not pod.node:
            return None
        return Holding(
            run=(run.namespace, run.name),
            owner=run.owner,
            pod=pod,
            since=pods[0].started,
            checkpoint_at=run.checkpoint_at,
            yields_to=_key(attempt.yields_to),
        )

    def _nodes(self) -> tuple[list[NodeInfo], Mapping[str, Sequence[PodInfo]]]:
        nodes = [parse_node(node) for node in self._cluster.nodes.all()]
        on_node: dict[str, list[PodInfo]] = {node.name: [] for node in nodes}
        for obj in self._cluster.pods.all():
            pod = self._cluster.parsed(obj).pod
            if pod.node in on_node and not pod.finished:
                on_node[pod.node].append(pod)
        return nodes, on_node

    async def _ask(self, decided: Yield) -> bool:
        """Write the yield request to the Job of the run's last attempt.

        False if the Job has changed since it was read.
        """
        namespace, name = decided.run
        run = next((run for run in self._cluster.runs() if (run.namespace, run.name) == decided.run), None)
        job = self._job(run, run.attempts[-1]) if run is not None else None
        if job is None:
            return False
        meta = job["metadata"]
        note = {
            "metadata": {
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
                "annotations": {YIELDS_TO_ANNOTATION: "/".join(decided.to)},
            }
        }
        try:
            await self._api.patch(JOBS, meta["name"], note, namespace)
        except NotFound:
            return False
        except ApiError as error:
            log.info("a run is not asked for its place now", extra={"run": name, "error": error.message})
            return False
        log.info("a run is asked to give its place to another", extra={"run": name, "to": "/".join(decided.to)})
        return True


def _live(run: RunView) -> list[PodView]:
    return [pod for pod in run.attempts[-1].pods if not pod.gone and pod.phase in ("Pending", "Running")]


def _key(text: str) -> RunKey | None:
    namespace, slash, name = text.partition("/")
    return (namespace, name) if slash else None


def _owner(interval: Interval) -> str:
    return interval.owner


def _run(interval: Interval) -> RunKey:
    return interval.namespace, interval.run
