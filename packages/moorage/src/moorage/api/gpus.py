"""API types of GPUs: `/api/v1/gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from moorage.api.fields import Answer, Query, Text, Time, about


class GpuQuery(Query):
    """The namespace for which the defaults are requested."""

    namespace: Annotated[
        Text, about("Namespace for which to add the defaults of its Tenant, for users who may create Jobs there.")
    ] = ""


class GpuCounts(Answer, frozen=True):
    """The number of GPUs in each state."""

    total: Annotated[int, about("GPUs in all: used + reserved + free + unavailable.")] = 0
    used: Annotated[int, about("GPUs that pods hold.")] = 0
    free: Annotated[int, about("GPUs that a pod could get now.")] = 0
    unavailable: Annotated[int, about("GPUs without a holder that pods cannot get now.")] = 0
    reserved: Annotated[int, about("GPUs that a Machine keeps for a guest.")] = 0
    fragmented: Annotated[int, about("Free GPUs of nodes where others are taken.")] = 0
    stranded: Annotated[int, about("Free GPUs of nodes with no CPU, memory or pod left.")] = 0
    together: Annotated[int, about("Most free GPUs on one node.")] = 0


class GpuType(GpuCounts, frozen=True):
    """The GPUs of a type."""

    type: Annotated[str, about("GPU type, such as a100.")] = ""


class Gpu(Answer, frozen=True):
    """A GPU, and its holder if it has one."""

    index: Annotated[int, about("Number of the GPU on its node, from 0.")]
    type: Annotated[str, about("GPU type, such as a100.")] = ""
    resource: Annotated[str, about("Resource that counts it, such as nvidia.com/gpu.")] = ""
    device: Annotated[str, about("Device id, as the node reports it; empty: its holder is counted only.")] = ""
    state: Annotated[str, about("free, used, reserved or unavailable.")] = ""
    why: Annotated[str, about("Why it is unavailable or reserved, or the resource that a stranded one lacks.")] = (
        ""
    )
    fragmented: Annotated[bool, about("Whether it is free while other GPUs of the node are taken.")] = False
    stranded: Annotated[bool, about("Whether it is free while its node has no CPU, memory or pod left.")] = False
    owner: Annotated[str, about("User whose pod holds it; empty: no holder.")] = ""
    run: Annotated[str, about("Run that holds it; empty: no holder, or a pod of no run.")] = ""
    step: Annotated[str, about("Step of a workflow that holds it, as WORKFLOW/STEP; empty: none.")] = ""
    namespace: Annotated[str, about("Namespace of the pod that holds it; empty: no holder.")] = ""
    pod: Annotated[str, about("Pod that holds it; empty: no holder.")] = ""
    since: Annotated[Time | None, about("When its node accepted the pod; null: no holder, or not yet.")] = None
    expected_until: Annotated[
        Time | None, about("When the pod's time limit ends it; null: no holder, or no limit.")
    ] = None


class GpuNode(GpuCounts, frozen=True):
    """A node with its GPUs."""

    name: str = ""
    type: Annotated[str, about("GPU type of the node, such as a100.")] = ""
    ready: Annotated[bool, about("Whether the condition Ready of the node is True.")] = False
    cordoned: Annotated[bool, about("Whether the node takes no new pods.")] = False
    gpus: Annotated[tuple[Gpu, ...], about("Every GPU of the node.")] = ()


class GpuUser(Answer, frozen=True):
    """A user who holds GPUs."""

    user: str
    gpus: Annotated[int, about("GPUs that the user's pods hold.")] = 0
    types: Annotated[Mapping[str, int], about("GPU type and how many of it the user holds.")] = {}


class Gpus(Answer, frozen=True):
    """The state of every GPU of the cluster at one moment."""

    now: Annotated[Time, about("Moment that the answer describes.")]
    totals: Annotated[GpuCounts, about("Sums over the cluster.")] = GpuCounts()
    types: Annotated[tuple[GpuType, ...], about("Sums per GPU type.")] = ()
    users: Annotated[tuple[GpuUser, ...], about("Users who hold GPUs.")] = ()
    nodes: tuple[GpuNode, ...] = ()
    process_runtime: Annotated[bool, about("Whether pods run as plain processes, as on a local cluster.")] = False
    tenant: Annotated[
        Mapping[str, Any] | None,
        about("Tenant of the requested namespace: its name, defaults and restartLimit; null: none."),
    ] = None
