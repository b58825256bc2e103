"""`moor drain`, `moor cordon`, `moor uncordon`: nodes out of service and back, as kubectl does it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import click

from moorage.apimachinery.meta import Key, key_of
from moorage.apimachinery.moments import format_duration
from moorage.apimachinery.resources import NODES, PODS, Obj, Resource
from moorage.cli import console
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.decide.runs.timelimit import parse_time
from moorage.decide.tools.drain import DrainOptions, plan_drain
from moorage.errors import ApiError, MoorageError, NotFound, TooManyRequests, UsageError

DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
RETRY_SECONDS = 5.0  # after a disruption budget said "not now", as kubectl
LOOK_SECONDS = 0.5  # between two looks whether a pod is gone


@click.command()
@click.argument("node")
@click.option("--timeout", default=None, help="Give up after this long: 90s, 10m (default: never).")
@click.option(
    "--grace-period", type=click.IntRange(0), default=None, help="Seconds instead of each pod's own grace period."
)
@click.option("--delete-emptydir-data", is_flag=True, help="Evict pods although their emptyDir data is lost.")
@click.option("--ignore-daemonsets", is_flag=True, help="Leave pods of DaemonSets where they are.")
@click.option("--force", is_flag=True, help="Evict pods that nothing would make again.")
@target_options
def drain(
    target: Target,
    node: str,
    timeout: str | None,
    grace_period: int | None,
    delete_emptydir_data: bool,
    ignore_daemonsets: bool,
    force: bool,
) -> int:
    """Cordon a node, evict its pods, and wait until they are gone.

    Runs get their grace period to write a checkpoint, and are started again on another node.
    """
    try:
        seconds = parse_time(timeout) if timeout not in (None, "0", "0s") and timeout is not None else None
    except ValueError as error:
        raise UsageError(f"--timeout: {timeout!r} is no time", hint="write it as 90s, 10m or 1h") from error
    options = DrainOptions(
        ignore_daemonsets=ignore_daemonsets, delete_emptydir_data=delete_emptydir_data, force=force
    )

    async def work(session: Session) -> int:
        started = session.clock.monotonic()
        try:
            async with asyncio.timeout(seconds):
                count = await _drain(session, node, options, grace_period)
        except TimeoutError as error:
            raise MoorageError(
                f"node {node} is cordoned but not empty after {timeout}",
                hint=f"`moor drain {node}` goes on; `moor uncordon {node}` opens it again",
            ) from error
        spent = timedelta(seconds=session.clock.monotonic() - started)
        console.say(f"evicted {count} pod{'' if count == 1 else 's'} in {format_duration(spent)}")
        console.show(f"{node} drained")
        return 0

    return in_session(target, work)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@target_options
def cordon(target: Target, nodes: tuple[str, ...]) -> int:
    """Let nothing new start on these nodes; what runs there goes on."""
    return _set_all(target, nodes, unschedulable=True)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@target_options
def uncordon(target: Target, nodes: tuple[str, ...]) -> int:
    """Open these nodes again."""
    return _set_all(target, nodes, unschedulable=False)


def _set_all(target: Target, nodes: tuple[str, ...], *, unschedulable: bool) -> int:
    async def work(session: Session) -> int:
        for node in dict.fromkeys(nodes):
            changed = await _set_schedulable(session, node, unschedulable=unschedulable)
            word = "cordoned" if unschedulable else "uncordoned"
            console.show(f"{node} {'' if changed else 'already '}{word}")
        return 0

    return in_session(target, work)


async def _set_schedulable(session: Session, node: str, *, unschedulable: bool) -> bool:
    """Cordon or open a node; False when it was so already. Raises NotFound with the nodes there are."""
    try:
        found = await session.api.get(NODES, node)
    except NotFound as error:
        known = sorted(obj["metadata"]["name"] for obj in (await session.api.list(NODES)).items)
        raise NotFound(f"there is no node {node!r}", hint=f"there are: {', '.join(known)}") from error
    if bool((found.get("spec") or {}).get("unschedulable")) == unschedulable:
        return False
    await session.api.patch(
        NODES, node, {"spec": {"unschedulable": True if unschedulable else None}}, kind="strategic"
    )
    return True


async def _drain(session: Session, node: str, options: DrainOptions, grace_period: int | None) -> int:
    """Cordon first, so that nothing evicted comes back; return how many pods were evicted."""
    changed = await _set_schedulable(session, node, unschedulable=True)
    console.say(f"{node} {'cordoned' if changed else 'was cordoned already'}")
    pods = await session.api.list(PODS, field_selector=f"spec.nodeName={node}")
    plan = plan_drain(pods.items, await _daemonsets(session), options)
    if plan.refused:
        raise Problems(
            [(f"pod {one.pod} forbids the drain: {one.why}", f"{one.option} allows it") for one in plan.refused]
        )
    for warning in plan.warnings:
        console.say(f"warning: {warning}")
    await asyncio.gather(
        *(_evict(session, pod, grace_period) for pod in plan.evict),
        *(_wait_gone(session, pod) for pod in plan.leaving),
    )
    return len(plan.evict)


async def _evict(session: Session, pod: Obj, grace_period: int | None) -> None:
    """Evict one pod and wait until it is gone; a disruption budget that says "not now" is asked again."""
    key, meta = key_of(pod), pod["metadata"]
    body: Obj = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "deleteOptions": {"preconditions": {"uid": meta.get("uid")}},
    }
    if grace_period is not None:
        body["deleteOptions"]["gracePeriodSeconds"] = grace_period
    told = False
    while True:
        try:
            await session.api.create_subresource(PODS, key.name, "eviction", body, key.namespace)
            break
        except NotFound:
            return
        except TooManyRequests as error:
            if not told:
                console.say(f"pod {key} may not go yet: {error.message}; trying again every {RETRY_SECONDS:g} s")
                told = True
            await session.clock.sleep(RETRY_SECONDS)
        except ApiError as error:
            if error.status == 409:  # another pod bears the name by now: ours is gone
                return
            raise
    console.say(f"evicting pod {key}")
    await _wait_gone(session, pod)


async def _wait_gone(session: Session, pod: Obj) -> None:
    key, uid = key_of(pod), pod["metadata"].get("uid")
    while True:
        try:
            found = await session.api.get(PODS, key.name, key.namespace)
        except NotFound:
            return
        if found["metadata"].get("uid") != uid:
            return
        await session.clock.sleep(LOOK_SECONDS)


async def _daemonsets(session: Session) -> frozenset[Key] | None:
    try:
        listed: Sequence[Obj] = (await session.api.list(DAEMONSETS)).items
    except ApiError:
        return None
    return frozenset(key_of(obj) for obj in listed)
