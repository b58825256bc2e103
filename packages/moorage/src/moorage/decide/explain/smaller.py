"""Smaller or different requests with which a pending pod would start now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moorage.decide.explain.amounts import gpus_text
from moorage.decide.explain.nodeconstraints import names_type, of_any_type, wanted_types
from moorage.decide.explain.pendingpod import PendingPod, Used
from moorage.decide.explain.types import Smaller
from moorage.decide.usage.gpus import gpu_type
from moorage_kube.quantity import format_amount
from moorage_kube.scheduling import NodeInfo, PodInfo, is_gpu, shortages

SMALLER_SHOWN = 3
TYPE_COST = 0.25  # another GPU type counts as a change as large as a quarter fewer GPUs
RESOURCE_COST = 0.35  # another GPU resource, such as a slice of a GPU
FEWER_OF_ALL_COST = 0.05  # with fewer GPUs: less CPU and memory too
NODE_COST = 0.4  # another node than the named node: its data may be there
LEAST_KEPT = 0.1  # a change to less than a tenth of the CPU or memory asked for is not offered


def smaller_requests(pending: PendingPod, used: Used) -> tuple[Smaller, ...]:
    """Smaller or other requests, the least change first; each was tried on its node.

    `used` is the usage of each node once those ahead have started.
    """
    if pending.volumes.troubles or pending.base.quota:
        return ()
    offers = [
        *_fewer_gpus(pending, used),
        *_other_type(pending, used),
        *_other_resource(pending, used),
        *_less_cpu_and_memory(pending, used),
        *_any_node(pending, used),
    ]
    cheapest: dict[str, Smaller] = {}
    for offer in sorted(offers, key=lambda offer: (offer.cost, offer.change)):
        cheapest.setdefault(offer.change, offer)
    return tuple(list(cheapest.values())[:SMALLER_SHOWN])


def _first_node(pending: PendingPod, pod: PodInfo, used: Used) -> NodeInfo | None:
    return next((node for node in pending.snapshot.nodes if pending.takes(pod, node, used)), None)


def _offer(pod: PodInfo, node: NodeInfo, cost: float, change: str, options: str) -> Smaller:
    return Smaller(
        gpus=pod.gpus,
        gpu_types=wanted_types(pod),
        node=node.name,
        node_type=gpu_type(node.labels) if node.gpus else "",
        change=change,
        options=options,
        cost=cost,
    )


def _gpu_resource(pod: PodInfo) -> str | None:
    return next((name for name in pod.requests if is_gpu(name)), None)


def _fewer_gpus(pending: PendingPod, used: Used) -> Iterator[Smaller]:
    """A request with fewer GPUs: the largest number that fits now.

    If needed, CPU and memory are reduced in proportion.
    """
    me, resource = pending.me, _gpu_resource(pending.me)
    if resource is None:
        return
    asked = me.requests[resource]
    for fewer in range(asked - 1, 0, -1):
        lost = 1 - fewer / asked
        requests = {**me.requests, resource: fewer}
        pod = replace(me, requests=requests)
        if (node := _first_node(pending, pod, used)) is not None:
            yield _offer(pod, node, lost, gpus_text(fewer), f"--gpus {fewer}")
            return
        scaled = {
            name: _rounded(name, requests[name] * fewer // asked) for name in ("cpu", "memory") if name in requests
        }
        pod = replace(me, requests=requests | scaled)
        if (node := _first_node(pending, pod, used)) is not None:
            texts = {name: format_amount(name, value) for name, value in scaled.items()}
            options = " ".join([f"--gpus {fewer}", *(f"--{name} {text}" for name, text in texts.items())])
            change = ", ".join([gpus_text(fewer), *(f"{text} {name}" for name, text in texts.items())])
            yield _offer(pod, node, lost + FEWER_OF_ALL_COST, change, options)
            return


def _other_type(pending: PendingPod, used: Used) -> Iterator[Smaller]:
    """The same number of GPUs of each other type that fits now."""
    me, wanted = pending.me, wanted_types(pending.me)
    if not wanted:
        return
    pod = of_any_type(me)
    offered = set(wanted)
    for node in pending.snapshot.nodes:
        kind = gpu_type(node.labels) if node.gpus else ""
        if kind and kind not in offered and pending.takes(pod, node, used):
            offered.add(kind)
            yield _offer(pod, node, TYPE_COST, f"{gpus_text(me.gpus)} of type {kind}", f"--gpu-type {kind}")


def _other_resource(pending: PendingPod, used: Used) -> Iterator[Smaller]:
    """The same number of another GPU resource, such as a slice of a GPU."""
    me, resource = pending.me, _gpu_resource(pending.me)
    if resource is None:
        return
    asked = me.requests[resource]
    offered = {
        name
        for node in pending.snapshot.nodes
        for name, count in node.allocatable.items()
        if is_gpu(name) and count
    }
    for other in sorted(offered - {resource}):
        requests = {name: value for name, value in me.requests.items() if name != resource}
        pod = replace(me, requests={**requests, other: asked})
        if (node := _first_node(pending, pod, used)) is not None:
            yield _offer(pod, node, RESOURCE_COST, f"{asked} × {other}", f"--gpu-resource {other}")


def _less_cpu_and_memory(pending: PendingPod, used: Used) -> Iterator[Smaller]:
    """A request with less CPU and memory, on the node with the smallest reduction.

    Other resources do not change.
    """
    me, best = pending.me, None
    for node in pending.usable:
        short = shortages(me, node, used[node.name])
        if not short or not set(short) <= {"cpu", "memory"}:
            continue
        given = {name: _rounded(name, free) for name, (_, free) in short.items()}
        if any(value < LEAST_KEPT * me.requests[name] or value <= 0 for name, value in given.items()):
            continue
        lost = max(1 - value / me.requests[name] for name, value in given.items())
        pod = replace(me, requests={**me.requests, **given})
        if (best is None or lost < best[0]) and pending.takes(pod, node, used):
            best = (lost, pod, node, given)
    if best is not None:
        lost, pod, node, given = best
        texts = {name: format_amount(name, value) for name, value in sorted(given.items())}
        change = ", ".join(f"{text} {name}" for name, text in texts.items())
        options = " ".join(f"--{name} {text}" for name, text in texts.items())
        yield _offer(pod, node, lost, change, options)


def _any_node(pending: PendingPod, used: Used) -> Iterator[Smaller]:
    """On a node that the pod's own node selector excludes, with the same GPU type."""
    named = [part for part in pending.me.node_selector if not names_type(part)]
    if not named:
        return
    pod = replace(pending.me, node_selector=tuple(part for part in pending.me.node_selector if names_type(part)))
    if (node := _first_node(pending, pod, used)) is not None:
        left_out = ", ".join(f"{part.key}={','.join(part.values)}" for part in named)
        yield _offer(pod, node, NODE_COST, f"no node selector {left_out}", "")


def _rounded(resource: str, value: int) -> int:
    """Round down to an amount that a user would ask for: whole CPUs or tenths, GiB or MiB."""
    steps = (1000, 100) if resource == "cpu" else (2**30, 2**20)
    return next((value // step * step for step in steps if value >= step), 0)
