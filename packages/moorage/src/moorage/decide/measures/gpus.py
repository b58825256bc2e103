"""Metrics of GPUs by node, type, owner and tenant. At most one series for each GPU and state: 4 per GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moorage.decide.usage.gpus import GpuState, GpuView
from moorage.decide.usage.intervals import UsageRow
from moorage.metrics.families import Family, Measured, measured

NO_TENANT = "-"  # an empty label would be none at all
STATES = ("free", "used", "reserved", "unavailable")
POOR = ("fragmented", "stranded")
TYPES_MAX = 200  # of GPUs
PEOPLE_MAX = 5_000
NODES_MAX = 20_000  # 5,000 nodes with four states

GPUS = Family(
    name="moorage_gpus",
    help="GPUs by node, type and state",
    labels=("node", "type", "state"),
    series_max=NODES_MAX,
)
OF_TYPE = Family(
    name="moorage_type_gpus", help="GPUs by type and state", labels=("type", "state"), series_max=4 * TYPES_MAX
)
OF_CLUSTER = Family(
    name="moorage_cluster_gpus", help="GPUs of the cluster by state", labels=("state",), series_max=4
)
OF_LITTLE_USE = Family(
    name="moorage_gpus_free_of_little_use",
    help="Free GPUs on nodes with taken ones (fragmented), or on nodes without free CPU or memory (stranded)",
    labels=("type", "kind"),
    series_max=2 * TYPES_MAX,
)
OF_LITTLE_USE_ON = Family(
    name="moorage_node_gpus_free_of_little_use",
    help="The same by node",
    labels=("node", "type", "kind"),
    series_max=NODES_MAX,
)
TOGETHER = Family(
    name="moorage_gpus_free_together", help="Most free GPUs on one node", labels=("type",), series_max=TYPES_MAX
)
HELD_OF_TYPE = Family(
    name="moorage_gpus_held_by_type", help="GPUs held now, by user and type", labels=("user", "type")
)
HELD = Family(name="moorage_gpus_held", help="GPUs held now, by user", labels=("user",), series_max=PEOPLE_MAX)
OF_TENANT = Family(
    name="moorage_tenant_gpus_held",
    help="GPUs held now, by tenant and type; the tenant is - for namespaces of none",
    labels=("tenant", "type"),
)
HOLDINGS = Family(
    name="moorage_gpu_holdings",
    help="GPUs held now, by holder and node; the holder is a run, a step or a pod",
    labels=("node", "type", "user", "namespace", "holder"),
    series_max=NODES_MAX,
)
HELD_SINCE = Family(
    name="moorage_gpu_holding_start_timestamp_seconds",
    help="Since when, in Unix time",
    labels=("node", "type", "user", "namespace", "holder"),
    series_max=NODES_MAX,
)
HOURS = Family(
    name="moorage_gpu_use_24h_seconds",
    help="Seconds of GPUs in the last 24 hours by user; 3600 are a GPU-hour",
    labels=("user",),
    series_max=PEOPLE_MAX,
)

FAMILIES = (
    GPUS,
    OF_TYPE,
    OF_CLUSTER,
    OF_LITTLE_USE,
    OF_LITTLE_USE_ON,
    TOGETHER,
    HELD_OF_TYPE,
    HELD,
    OF_TENANT,
    HOLDINGS,
    HELD_SINCE,
    HOURS,
)

TenantOf = Callable[[str], str]
"""The name of the tenant of a namespace; NO_TENANT: of none."""

Values = Iterator[tuple[tuple[str, ...], float]]


def measure_gpus(view: GpuView, hours: Sequence[UsageRow], tenant_of: TenantOf) -> list[Measured]:
    """The metrics of GPUs. `hours`: the GPU-hours of the last 24 hours, by user."""
    return [
        measured(GPUS, _states(view)),
        measured(
            OF_TYPE,
            (((kind, state), getattr(counts, state)) for kind, counts in view.by_type.items() for state in STATES),
        ),
        measured(OF_CLUSTER, (((state,), getattr(view.totals, state)) for state in STATES)),
        measured(
            OF_LITTLE_USE,
            (((kind, poor), getattr(counts, poor)) for kind, counts in view.by_type.items() for poor in POOR),
        ),
        measured(OF_LITTLE_USE_ON, _poor(view)),
        measured(TOGETHER, (((kind,), counts.together) for kind, counts in view.by_type.items())),
        measured(
            HELD_OF_TYPE,
            (((user, kind), many) for user, kinds in view.types_of_user.items() for kind, many in kinds.items()),
        ),
        measured(HELD, (((user,), many) for user, many in view.by_user.items())),
        measured(OF_TENANT, _of_tenants(view, tenant_of)),
        *_holdings(view),
        measured(HOURS, (((row.name,), row.gpu_hours * 3600) for row in hours)),
    ]


def _states(view: GpuView) -> Values:
    """The count of each state for each type on each node. Zeros are included: a missing series says nothing."""
    for node in view.nodes:
        for kind in {gpu.type for gpu in node.gpus}:
            for state in STATES:
                yield (node.name, kind, state), 0
        for gpu in node.gpus:
            yield (node.name, gpu.type, gpu.state.value), 1


def _poor(view: GpuView) -> Values:
    for node in view.nodes:
        for kind in {gpu.type for gpu in node.gpus}:
            for poor in POOR:
                yield (node.name, kind, poor), 0
        for gpu in node.gpus:
            if gpu.fragmented:
                yield (node.name, gpu.type, "fragmented"), 1
            if gpu.stranded:
                yield (node.name, gpu.type, "stranded"), 1


def _of_tenants(view: GpuView, tenant_of: TenantOf) -> Values:
    for gpu in view.gpus:
        if gpu.holder is not None:
            yield (tenant_of(gpu.holder.namespace), gpu.type), 1


def _holdings(view: GpuView) -> list[Measured]:
    many: dict[tuple[str, ...], float] = {}
    since: dict[tuple[str, ...], float] = {}
    for gpu in view.gpus:
        if gpu.state is not GpuState.USED or (holder := gpu.holder) is None:
            continue
        key = (gpu.node, gpu.type, holder.owner, holder.namespace, holder.title)
        many[key] = many.get(key, 0) + 1
        if holder.since is not None:
            began = holder.since.timestamp()
            since[key] = min(began, since.get(key, began))
    return [measured(HOLDINGS, many.items()), measured(HELD_SINCE, since.items())]
