"""Read runs from the cluster: their Jobs, their pods, and the nodes they are on."""

from __future__ import annotations

import asyncio

from moorage.apimachinery.meta import labels_of
from moorage.apimachinery.resources import JOBS, NODES, PODS, Obj
from moorage.cli.session import Session
from moorage.decide.runs.state import RunView, view_run, view_runs
from moorage.decide.usage.gpus import gpu_type
from moorage.errors import ApiError, NotFound
from moorage.model.names import RUN_LABEL, RUN_NAME_MAX, is_dns_label


async def read_runs(session: Session, *, all_namespaces: bool = False) -> tuple[RunView, ...]:
    """Every run of the namespace (or of all), newest first."""
    namespace = None if all_namespaces else session.namespace
    jobs, pods, types = await asyncio.gather(
        session.api.list(JOBS, namespace, label_selector=RUN_LABEL),
        session.api.list(PODS, namespace, label_selector=RUN_LABEL),
        node_types(session),
    )
    return view_runs(jobs.items, pods.items, now=session.clock.now(), node_types=types)


async def jobs_of(session: Session, name: str) -> list[Obj]:
    """The Jobs of a run, one per attempt. Raises NotFound, with the names that are near."""
    if is_dns_label(name) and len(name) <= RUN_NAME_MAX:
        found = await session.api.list(JOBS, session.namespace, label_selector=f"{RUN_LABEL}={name}")
        if found.items:
            return found.items
    raise await no_such_run(session, name)


async def read_run(session: Session, name: str) -> RunView:
    """One run. Raises NotFound."""
    jobs = await jobs_of(session, name)
    pods, types = await asyncio.gather(pods_of(session, name), node_types(session))
    return view_run(jobs, pods, now=session.clock.now(), node_types=types)


async def pods_of(session: Session, name: str) -> list[Obj]:
    return (await session.api.list(PODS, session.namespace, label_selector=f"{RUN_LABEL}={name}")).items


async def node_types(session: Session) -> dict[str, str]:
    """Node name → GPU type; empty where the user may not list nodes."""
    try:
        nodes = await session.api.list(NODES)
    except ApiError:
        return {}
    return {obj["metadata"]["name"]: gpu_type(labels_of(obj)) for obj in nodes.items}


async def no_such_run(session: Session, name: str) -> NotFound:
    """The error for a run that is not there, with what may have been meant."""
    from difflib import get_close_matches

    try:
        jobs = await session.api.list(JOBS, session.namespace, label_selector=RUN_LABEL)
    except ApiError:
        jobs = None
    known = sorted({labels_of(job)[RUN_LABEL] for job in jobs.items}) if jobs is not None else []
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`moor jobs` lists the runs; -n chooses the namespace"
    return NotFound(f"there is no run {name!r} in namespace {session.namespace}", hint=hint)
