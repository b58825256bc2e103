"""The use of held GPUs, by the newest reading of each pod.

Unmeasured GPUs are counted apart: means do not include them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from moorage.decide.measures.gpus import PEOPLE_MAX, TenantOf, Values
from moorage.decide.measures.work import TENANTS_MAX
from moorage.decide.usage.gpus import GpuState, GpuView
from moorage.decide.usage.samples import Reading
from moorage.metrics.families import Family, Measured, measured
from moorage_kube.meta import Key

NODES_MAX = 5_000  # with one GPU type each, as nodes have
_MEAN = "Mean utilisation now of the held GPUs that are measured, 0 to 1"
_COUNT = "GPUs held now, by whether their use is measured (yes, no)"

NODE_USE = Family(
    name="moorage_node_gpu_utilisation_ratio",
    help=f"{_MEAN}, by node and type",
    labels=("node", "type"),
    series_max=NODES_MAX,
)
NODE_COUNT = Family(
    name="moorage_node_gpus_measured",
    help=f"{_COUNT}, by node and type",
    labels=("node", "type", "measured"),
    series_max=2 * NODES_MAX,
)
USER_USE = Family(
    name="moorage_user_gpu_utilisation_ratio",
    help=f"{_MEAN}, by user",
    labels=("user",),
    series_max=PEOPLE_MAX,
)
USER_COUNT = Family(
    name="moorage_user_gpus_measured",
    help=f"{_COUNT}, by user",
    labels=("user", "measured"),
    series_max=2 * PEOPLE_MAX,
)
TENANT_USE = Family(
    name="moorage_tenant_gpu_utilisation_ratio",
    help=f"{_MEAN}, by tenant",
    labels=("tenant",),
    series_max=TENANTS_MAX,
)
TENANT_COUNT = Family(
    name="moorage_tenant_gpus_measured",
    help=f"{_COUNT}, by tenant",
    labels=("tenant", "measured"),
    series_max=2 * TENANTS_MAX,
)
FAMILIES = (NODE_USE, NODE_COUNT, USER_USE, USER_COUNT, TENANT_USE, TENANT_COUNT)


class PodGpus(Struct, frozen=True, kw_only=True):
    """The GPUs of a pod on its node. `known`: the number of GPUs with a reading, at most `held`."""

    node: str
    type: str
    user: str
    tenant: str
    held: int
    known: int
    busy: float  # the sum of the utilisation of the known ones, each 0 to 1


def pod_gpus(view: GpuView, readings: Mapping[Key, Reading], tenant_of: TenantOf) -> list[PodGpus]:
    """All pods with GPUs. `readings`: the newest reading of each pod, without old ones."""
    held: dict[tuple[str, str, str, Key], int] = {}
    for gpu in view.gpus:
        if gpu.state is GpuState.USED and gpu.holder is not None:
            key = (gpu.node, gpu.type, gpu.holder.owner, Key(gpu.holder.namespace, gpu.holder.pod))
            held[key] = held.get(key, 0) + 1
    pods = []
    for (node, kind, user, pod), count in held.items():
        reading = readings.get(pod)
        known = min(len(reading.gpus), count) if reading is not None else 0
        pods.append(
            PodGpus(
                node=node,
                type=kind,
                user=user,
                tenant=tenant_of(pod.namespace),
                held=count,
                known=known,
                busy=known * _mean(reading) if reading is not None and known else 0.0,
            )
        )
    return pods


def _mean(reading: Reading) -> float:
    """The mean utilisation (0 to 1) of all devices of a reading.

    With MIG slices, these may be more than the pod holds.
    """
    return sum(min(max(gpu.utilisation, 0.0), 100.0) for gpu in reading.gpus) / len(reading.gpus) / 100


def measure_use(pods: Iterable[PodGpus]) -> list[Measured]:
    """A mean without measured GPUs is absent; a count without GPUs is 0."""
    pods = list(pods)
    return [
        *_by(pods, NODE_USE, NODE_COUNT, lambda pod: (pod.node, pod.type)),
        *_by(pods, USER_USE, USER_COUNT, lambda pod: (pod.user,)),
        *_by(pods, TENANT_USE, TENANT_COUNT, lambda pod: (pod.tenant,)),
    ]


def _by(
    pods: Iterable[PodGpus], use: Family, count: Family, key_of: Callable[[PodGpus], tuple[str, ...]]
) -> list[Measured]:
    """Values beyond the bound are first added up, so that their mean is one too."""
    busy = measured(use, ((key_of(pod), pod.busy) for pod in pods if pod.known)).values
    known = measured(use, ((key_of(pod), pod.known) for pod in pods if pod.known)).values
    means = {key: busy[key] / gpus for key, gpus in known.items()}
    return [Measured(family=use, values=means), measured(count, _counts(pods, key_of))]


def _counts(pods: Iterable[PodGpus], key_of: Callable[[PodGpus], tuple[str, ...]]) -> Values:
    for pod in pods:
        key = key_of(pod)
        yield (*key, "yes"), pod.known
        yield (*key, "no"), pod.held - pod.known
