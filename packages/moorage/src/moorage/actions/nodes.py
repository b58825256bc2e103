"""Take nodes out of service and back, like kubectl: cordon, drain, uncordon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from moorage.decide.tools.drain import DrainOptions, DrainPlan, plan_drain
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, NotFound, Problems, TooManyRequests
from moorage_kube.meta import Key, key_of
from moorage_kube.resources import NODES, PODS, Obj, Resource

DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
RETRY_SECONDS = 5.0  # after a disruption budget said "not now", as kubectl
LOOK_SECONDS = 0.5  # between two checks whether a pod is deleted


async def set_schedulable(api: Api, node: str, *, unschedulable: bool) -> bool:
    """Cordon or uncordon a node; return False if nothing changed.

    Raises NotFound that names the existing nodes.
    """
    current = await _get_node(api, node)
    if bool((current.get("spec") or {}).get("unschedulable")) == unschedulable:
        return False
    await api.patch(NODES, node, {"spec": {"unschedulable": True if unschedulable else None}}, kind="strategic")
    return True


async def _get_node(api: Api, node: str) -> Obj:
    try:
        return await api.get(NODES, node)
    except NotFound as error:
        names = sorted(obj["metadata"]["name"] for obj in (await api.list(NODES)).items)
        raise NotFound(f"node {node!r} not found", hint=f"there are: {', '.join(names)}") from error


async def drain_node(
    api: Api,
    node: str,
    options: DrainOptions,
    *,
    grace_period: int | None,
    clock: Clock,
    say: Callable[[str], None],
) -> int:
    """Cordon a node, evict its pods and wait until they are deleted; return how many were evicted.

    Cordon first, so that evicted pods do not return. `say` gets progress. Raises Problems for pods that the
    options do not allow to evict, NotFound.
    """
    changed = await set_schedulable(api, node, unschedulable=True)
    say(f"{node} {'cordoned' if changed else 'was cordoned already'}")
    plan = _unrefused(await _plan(api, node, options))
    for warning in plan.warnings:
        say(f"warning: {warning}")
    await asyncio.gather(
        *(_evict(api, pod, grace_period, clock, say) for pod in plan.evict),
        *(_wait_gone(api, pod, clock) for pod in plan.leaving),
    )
    return len(plan.evict)


class BegunDrain(Struct, frozen=True):
    """The result of a drain without waiting: the number of evicted pods, and why others are not evicted yet."""

    evicted: int
    held: tuple[str, ...]


async def preview_drain(api: Api, node: str, options: DrainOptions) -> DrainPlan:
    """The pods that a drain would evict, leave and refuse now. Raises NotFound."""
    await _get_node(api, node)
    return await _plan(api, node, options)


async def begin_drain(api: Api, node: str, options: DrainOptions) -> BegunDrain:
    """Cordon a node and evict its pods, without waiting until they are deleted.

    Raises Problems for pods that the options do not allow to evict: none is evicted then. Raises NotFound.
    """
    await set_schedulable(api, node, unschedulable=True)
    plan = _unrefused(await _plan(api, node, options))
    held = []
    for pod in plan.evict:
        try:
            await _ask_eviction(api, pod, None)
        except TooManyRequests as error:
            held.append(f"pod {key_of(pod)} cannot be evicted yet: {error.message}")
    return BegunDrain(len(plan.evict) - len(held), tuple(held))


async def _plan(api: Api, node: str, options: DrainOptions) -> DrainPlan:
    pods = await api.list(PODS, field_selector=f"spec.nodeName={node}")
    return plan_drain(pods.items, await _daemonsets(api), options)


def _unrefused(plan: DrainPlan) -> DrainPlan:
    if plan.refused:
        raise Problems(
            [(f"pod {pod.pod} forbids the drain: {pod.why}", f"{pod.option} allows it") for pod in plan.refused]
        )
    return plan


async def _ask_eviction(api: Api, pod: Obj, grace_period: int | None) -> bool:
    """Request an eviction once; False if the pod does not exist.

    Raises TooManyRequests if a disruption budget forbids it.
    """
    key = key_of(pod)
    body: Obj = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "deleteOptions": {"preconditions": {"uid": pod["metadata"].get("uid")}},
    }
    if grace_period is not None:
        body["deleteOptions"]["gracePeriodSeconds"] = grace_period
    try:
        await api.create_subresource(PODS, key.name, "eviction", body, key.namespace)
    except NotFound:
        return False
    except TooManyRequests:
        raise
    except ApiError as error:
        if error.status == 409:  # another pod has the name now: ours is deleted
            return False
        raise
    return True


async def _evict(api: Api, pod: Obj, grace_period: int | None, clock: Clock, say: Callable[[str], None]) -> None:
    """Evict one pod and wait until it is deleted; repeat the request while a disruption budget forbids it."""
    key, has_warned = key_of(pod), False
    while True:
        try:
            if not await _ask_eviction(api, pod, grace_period):
                return
            break
        except TooManyRequests as error:
            if not has_warned:
                say(f"pod {key} cannot be evicted yet: {error.message}; trying again every {RETRY_SECONDS:g} s")
                has_warned = True
            await clock.sleep(RETRY_SECONDS)
    say(f"evicting pod {key}")
    await _wait_gone(api, pod, clock)


async def _wait_gone(api: Api, pod: Obj, clock: Clock) -> None:
    key, uid = key_of(pod), pod["metadata"].get("uid")
    while True:
        try:
            current = await api.get(PODS, key.name, key.namespace)
        except NotFound:
            return
        if current["metadata"].get("uid") != uid:
            return
        await clock.sleep(LOOK_SECONDS)


async def _daemonsets(api: Api) -> frozenset[Key] | None:
    try:
        listed: Sequence[Obj] = (await api.list(DAEMONSETS)).items
    except ApiError:
        return None
    return frozenset(key_of(obj) for obj in listed)
