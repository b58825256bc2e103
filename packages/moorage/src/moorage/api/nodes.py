"""API types of nodes: `/api/v1/nodes`."""

from __future__ import annotations

from typing import Annotated

from moorage.api.fields import Answer, Time, about


class Node(Answer, frozen=True):
    """A node: its capacity, and how much of it is in use."""

    name: str
    state: Annotated[str, about("Ready, Cordoned or NotReady.")] = ""
    reason: Annotated[str, about("Why it takes no pods, or the resource that it lacks; empty: no problem.")] = ""
    cordoned: Annotated[bool, about("Whether the node takes no new pods.")] = False
    created: Annotated[Time | None, about("When the node joined the cluster.")] = None
    instance_type: Annotated[str, about("Type of machine, by its label; empty: no such label.")] = ""
    region: Annotated[str, about("Region, by its label; empty: no such label.")] = ""
    market: Annotated[str, about("spot (it may be taken away) or on-demand; empty: its labels do not say.")] = ""
    gpu_type: Annotated[str, about("GPU type, such as a100; empty: it has no GPUs.")] = ""
    gpus: Annotated[int, about("GPUs that pods can get in all.")] = 0
    gpus_used: Annotated[int, about("GPUs that pods hold.")] = 0
    cpu_millicores: Annotated[int, about("CPU that pods can get in all.")] = 0
    cpu_used_millicores: Annotated[int, about("CPU that pods ask for.")] = 0
    memory_bytes: Annotated[int, about("Memory that pods can get in all.")] = 0
    memory_used_bytes: Annotated[int, about("Memory that pods ask for.")] = 0
    pods: Annotated[int, about("Pods that have not ended.")] = 0
    runs: Annotated[tuple[str, ...], about("Runs with a pod on it, as NAMESPACE/NAME.")] = ()
    taints: Annotated[tuple[str, ...], about("Taints, as KEY=VALUE:EFFECT.")] = ()
    version: Annotated[str, about("Version of its kubelet.")] = ""


class Nodes(Answer, frozen=True):
    """All nodes of the cluster at one moment."""

    now: Annotated[Time, about("Moment that the answer describes.")]
    nodes: tuple[Node, ...] = ()
