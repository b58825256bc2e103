"""Why a pod waits: the missing resources, their holders, the possible start, and requests that would start now.

Pure: nodes, pods, volumes, machines, events and past runs in, an `Explanation` out. The rules of placement are
those of `moorage_kube.scheduling`, read one node at a time. Pod (anti-)affinity and spreading are not judged here:
for them the scheduler's own sentence is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from moorage.decide.explain.eventtexts import newest_message
from moorage.decide.explain.lookup import Lookup
from moorage.decide.explain.machines import explain_guest, guest_line
from moorage.decide.explain.nodeconstraints import wanted_types
from moorage.decide.explain.nodes import held_by, missing, obstacles, verdict
from moorage.decide.explain.pendingpod import PendingPod, Used, make_pending_pod
from moorage.decide.explain.quota import excess, quota_frees, quota_holders
from moorage.decide.explain.refusals import refused_for_ever
from moorage.decide.explain.schedulerqueue import pods_ahead, scheduler_message, simulate, waiter
from moorage.decide.explain.smaller import smaller_requests
from moorage.decide.explain.snapshot import Snapshot, parse, snapshot
from moorage.decide.explain.starting import starting_of
from moorage.decide.explain.storage import Storage, Trouble
from moorage.decide.explain.types import Explanation
from moorage.decide.runs.forecast import History
from moorage.decide.runs.kueue import QueueWait
from moorage.decide.runs.state import RunView, State
from moorage.decide.usage.gpus import owner_of, step_of
from moorage.model.names import MEMORY_GATE, MEMORY_HELD_ANNOTATION, RUN_LABEL, SCHEDULER_NAME
from moorage.model.schedulerconfig import DEFAULT_SCHEDULER
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, gpus_in


def explain(
    pod: Obj,
    *,
    nodes: Iterable[Obj],
    pods: Iterable[Obj],
    now: datetime,
    storage: Storage | None = None,
    events: Iterable[Obj] = (),
    history: History | None = None,
    machines: Iterable[Obj] = (),
    suspended: bool = False,
    queue: QueueWait | None = None,
    run: RunView | None = None,
) -> Explanation:
    """Explain a pod, stored or hypothetical.

    `pods` are all pods of the cluster (the pod itself may be among them), `storage` the volumes that were read
    (None: nothing, so none is called missing), `events` those of the pod and of its Job, `run` the run of the pod.
    """
    explainer = Explainer(snapshot(nodes, pods, history=history, machines=machines))
    return explainer.explain(
        pod, now=now, storage=storage, events=events, suspended=suspended, queue=queue, run=run
    )


class Explainer:
    """Explains pods of one snapshot. Shared values are computed once; for one thread at a time."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.lookup = Lookup(snapshot)

    def explain(
        self,
        pod: Obj,
        *,
        now: datetime,
        storage: Storage | None = None,
        events: Iterable[Obj] = (),
        suspended: bool = False,
        queue: QueueWait | None = None,
        run: RunView | None = None,
        brief: bool = False,
    ) -> Explanation:
        """Explain one pod, like the function `explain`. `brief` leaves `held_by` and `smaller` empty."""
        parsed = parse(pod)
        me = parsed.pod
        base = Explanation(
            namespace=me.namespace,
            name=me.name,
            run=me.labels.get(RUN_LABEL, ""),
            owner=owner_of(me),
            state="finished" if me.finished else "running",
            now=now,
            asks={name: value for name, value in me.requests.items() if name != "pods"},
            gpus=me.gpus,
            gpu_types=wanted_types(me),
            node=me.node,
            step=step_of(me),
        )
        # a run without a pod that waits or runs needs no verdict on nodes
        if run is not None and (run.state.ended or run.state is State.RESTARTING or run.is_retrying):
            return _explain_ended(base, run)
        if me.finished:
            return base
        # it has its node: explain its start and its end
        if me.node:
            usual = self.lookup.usual(parsed, now)
            return replace(base, until=parsed.holder, usual=usual, starting=starting_of(pod, events))
        # it waits: judge every node
        pending = make_pending_pod(
            parsed,
            base,
            self.lookup,
            storage or Storage(),
            tuple(events),
            suspended=suspended,
            queue=queue,
            brief=brief,
        )
        return _explain_waiting(pending)


def _explain_ended(base: Explanation, run: RunView) -> Explanation:
    """Explain a run that has ended, or is between two attempts: nodes are not judged for it."""
    is_over = run.state.ended
    return replace(
        base,
        state="finished" if is_over else "waiting",
        owner=run.owner or base.owner,
        run=run.name,
        gpus=run.gpus,
        node=run.node if is_over else "",
        ended=run,
    )


def _explain_waiting(pending: PendingPod) -> Explanation:
    never = refused_for_ever(pending.me, pending.base, pending.snapshot.nodes)
    killed = annotations_of(pending.obj).get(MEMORY_HELD_ANNOTATION, "")
    start = replace(
        pending.base,
        verdicts=tuple(verdict(pending, node) for node in pending.snapshot.nodes),
        gates=pending.me.gates,
        killed=killed if MEMORY_GATE in pending.me.gates else "",
        missing_claims=tuple(trouble.claim for trouble in pending.volumes.troubles if trouble.missing),
        troubles=(*_other_scheduler(pending), *pending.volumes.troubles),
        quota=_quota(pending.obj, pending.events),
        not_made=_not_made(pending.obj, pending.events),
        suspended=pending.suspended,
        queue=pending.queue,
        scheduler_says=scheduler_message(pending.obj),
        refusals=never,
    )
    if never:
        smaller = () if pending.brief else smaller_requests(pending, pending.snapshot.used)
        return replace(start, state="never", smaller=smaller)
    guests = guest_line(pending)
    return _explain_in_queue(pending, start) if guests is None else explain_guest(pending, start, guests)


def _other_scheduler(pending: PendingPod) -> tuple[Trouble, ...]:
    """The scheduler of the pod, if another than those whose rules are judged here."""
    name = pending.me.scheduler
    if name in (DEFAULT_SCHEDULER, SCHEDULER_NAME):
        return ()
    return (Trouble("", f"its scheduler {name!r} has not placed it; Moorage cannot forecast other schedulers"),)


def _explain_in_queue(pending: PendingPod, start: Explanation) -> Explanation:
    """Explain a pod that waits for the scheduler."""
    short = () if start.fits else missing(pending)
    line = pods_ahead(pending, short)
    is_held = bool(start.troubles or start.quota or start.not_made or pending.suspended)
    earliest = likely = None
    used: Used = pending.snapshot.used
    if not is_held:
        earliest, used = simulate(pending, line, usual=False)
        likely, _ = simulate(pending, line, usual=True) if pending.snapshot.history.took else (None, {})
        if likely is not None and earliest is not None and likely.at >= earliest.at:
            likely = None
    short_of_quota = excess(start.quota)
    users = quota_holders(pending, short_of_quota)
    if start.quota:
        earliest = quota_frees(users, short_of_quota, pending.now)
    starts_now = not is_held and start.fits and earliest is not None and earliest.at <= pending.now
    return replace(
        start,
        state="gated" if pending.me.gates else "fits" if starts_now else "waiting",
        node=_landing(pending, used) if starts_now else "",
        missing=short,
        obstacles=obstacles(pending),
        held_by=() if pending.brief else users if start.quota else held_by(pending, short),
        line=() if starts_now and not pending.me.gates else tuple(waiter(other.pod) for other in line),
        earliest=earliest,
        likely=likely,
        smaller=() if starts_now or pending.brief else smaller_requests(pending, used),
    )


def _landing(pending: PendingPod, used: Used) -> str:
    """The node that packing would choose: the fitting node with the highest share of requested and used GPUs.

    For a pod without GPUs: the node with the fewest GPUs. "" if no node fits.
    """
    me = pending.me

    def fullness(node: NodeInfo) -> tuple[float, str]:
        held = gpus_in(used[node.name])
        if not me.gpus:
            return float(node.gpus), node.name  # those without GPUs first
        return -(held + me.gpus) / max(1, node.gpus), node.name

    fitting = [node for node in pending.usable if pending.takes(me, node, used)]
    return min(fitting, key=fullness).name if fitting else ""


# -- texts of the API server and the kubelet


def _quota(obj: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """The newest message about an exceeded quota, from the pod's conditions or its events."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if "exceeded quota" in str(condition.get("message")):
            return str(condition["message"])
    return newest_message([event for event in events if "exceeded quota" in str(event.get("message"))])


def _not_made(obj: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> str:
    """Why there is no pod: the newest event of its Job that a pod could not be created, with any reason."""
    if obj["metadata"].get("uid"):
        return ""  # it is created
    return newest_message([event for event in events if event.get("reason") == "FailedCreate"])
