"""Runs, maps and workspaces: their number, the reasons why some wait, and the waiting times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime

from moorage.decide.measures.gpus import TenantOf, Values
from moorage.decide.runs.state import RunView, State
from moorage.metrics.families import Family, Measured, measured
from moorage.model.workspace import WAITING as WAITING_PHASE
from moorage_kube.resources import Obj

TENANTS_MAX = 500
WAITS = ("gpus", "memory", "cpu", "node", "machine", "queue", "starting", "restart", "pod")
"""Why runs wait: for free GPUs, memory or CPU, a node that may take them, a machine type, in Kueue's queue;
for their container to start, for the next attempt, for a pod that is not made (quota)."""
_GPU = re.compile(r"Insufficient \S*(gpu|mig-)\S*", re.IGNORECASE)
ITEM_STATES = ("waiting", "ready", "leased", "done", "dead", "large")

RUNS = Family(
    name="moorage_runs",
    help="Runs by state and tenant",
    labels=("state", "tenant"),
    series_max=len(State) * TENANTS_MAX,
)
WAITING = Family(
    name="moorage_runs_waiting",
    help=f"Runs that wait, by reason ({', '.join(WAITS)}) and tenant",
    labels=("reason", "tenant"),
    series_max=len(WAITS) * TENANTS_MAX,
)
WAITING_GPUS = Family(
    name="moorage_runs_waiting_gpus",
    help="GPUs that waiting runs ask for, by the type that they ask for (any) and tenant",
    labels=("type", "tenant"),
    series_max=2 * TENANTS_MAX,
)
OLDEST_WAIT = Family(
    name="moorage_run_oldest_wait_seconds",
    help="For how long the oldest waiting run of a tenant has waited; 0: none waits",
    labels=("tenant",),
    series_max=TENANTS_MAX,
)
MAPS = Family(
    name="moorage_maps", help="Maps by state and tenant", labels=("state", "tenant"), series_max=6 * TENANTS_MAX
)
ITEMS = Family(
    name="moorage_map_items",
    help="Items of maps by state: ready, leased (at work), waiting (to be tried again), large, done, dead",
    labels=("state", "tenant"),
    series_max=len(ITEM_STATES) * TENANTS_MAX,
)
WORKERS = Family(
    name="moorage_map_workers", help="Workers of maps at work", labels=("tenant",), series_max=TENANTS_MAX
)
WORKSPACES = Family(
    name="moorage_workspaces",
    help="Workspaces by phase and tenant",
    labels=("phase", "tenant"),
    series_max=8 * TENANTS_MAX,
)
FAMILIES = (RUNS, WAITING, WAITING_GPUS, OLDEST_WAIT, MAPS, ITEMS, WORKERS, WORKSPACES)


def wait_reason(run: RunView) -> str:
    """The reason why a run waits (one of WAITS); "" if it does not wait."""
    if run.state is State.RESTARTING:
        return "restart"
    if run.state is not State.WAITING:
        return ""
    attempt = run.attempts[-1]
    if attempt.state == "Suspended":
        return "queue"
    pod = next((pod for pod in reversed(attempt.pods) if not pod.gone), None)
    if pod is None:
        return "pod"
    if pod.node:
        return "starting"
    if pod.reason == "SchedulingGated":
        return "machine"
    if _GPU.search(pod.message):
        return "gpus"
    for resource in ("memory", "cpu"):
        if f"Insufficient {resource}" in pod.message:
            return resource
    return "node"


def measure_runs(runs: Iterable[RunView], tenant_of: TenantOf, now: datetime) -> list[Measured]:
    """The metrics of existing runs. Runs with deleted Jobs are not counted."""
    runs = list(runs)
    waiting = [(run, tenant_of(run.namespace), reason) for run in runs if (reason := wait_reason(run))]
    oldest = {(tenant_of(run.namespace),): 0.0 for run in runs}
    for run, tenant, _ in waiting:
        since = _waits_since(run)
        if since is not None:
            oldest[tenant,] = max(oldest[tenant,], (now - since).total_seconds())
    return [
        measured(RUNS, (((run.state.value, tenant_of(run.namespace)), 1) for run in runs)),
        measured(WAITING, [((reason, tenant), 1) for _, tenant, reason in waiting]),
        measured(
            WAITING_GPUS,
            [((run.gpu_type or "any", tenant), run.gpus) for run, tenant, _ in waiting if run.gpus],
        ),
        measured(OLDEST_WAIT, oldest.items()),
    ]


def _waits_since(run: RunView) -> datetime | None:
    return run.attempts[-1].created or run.created


def measure_maps(maps: Iterable[tuple[str, str, Mapping[str, int]]], tenant_of: TenantOf) -> list[Measured]:
    """The metrics of maps. `maps`: (namespace, state, counters) of each map."""
    known = [(tenant_of(namespace), state, counts) for namespace, state, counts in maps]

    def items() -> Values:
        for tenant, _, counts in known:
            for state in ITEM_STATES:
                yield (state, tenant), counts.get(state, 0)

    return [
        measured(MAPS, (((state, tenant), 1) for tenant, state, _ in known)),
        measured(ITEMS, items()),
        measured(WORKERS, (((tenant,), counts.get("workers", 0)) for tenant, _, counts in known)),
    ]


def measure_workspaces(workspaces: Iterable[Obj], tenant_of: TenantOf) -> list[Measured]:
    """The metrics of workspaces. A workspace that the operator has not handled yet counts as waiting."""
    return [
        measured(
            WORKSPACES,
            (
                (
                    (
                        str((workspace.get("status") or {}).get("phase") or WAITING_PHASE),
                        tenant_of(str(workspace["metadata"].get("namespace") or "default")),
                    ),
                    1,
                )
                for workspace in workspaces
            ),
        )
    ]
