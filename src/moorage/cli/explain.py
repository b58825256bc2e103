"""`moor explain`: why a run waits, and who holds what it needs."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from moorage.actions.runs import jobs_of_run, pods_of_run
from moorage.apimachinery.meta import key_of
from moorage.apimachinery.resources import EVENTS, NODES, PODS, PVCS, PVS, STORAGECLASSES, Obj, Resource
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs.state import attempt_of
from moorage.errors import ApiError, Forbidden, NotFound, NotReady, ServerError, Unauthorized
from moorage.model.machine import MACHINES


@click.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@target_options
def explain(target: Target, name: str, output: str) -> int:
    """Say why a run (or a pod) waits: what is missing, who holds it and until when, its place in line, and what
    would start now.

    Of other users' runs it says what everybody may know.
    """

    async def work(session: Session) -> int:
        try:
            body = await session.server.get(f"/api/v1/explain/{session.namespace}/{name}")
        except (NotReady, ServerError, Unauthorized, Forbidden):
            body = await _explain_here(session, name)
        except NotFound as missing:
            try:
                body = await _explain_here(
                    session, name
                )  # newer than the server's cache, or it names the near ones
            except Forbidden:
                raise missing from None
        text = str(body.pop("text"))
        if output == "text":
            console.show(text)
        else:
            console.print_document(body, output)
        return 0

    return in_session(target, work)


async def _explain_here(session: Session, name: str) -> dict[str, Any]:
    """The same answer from what this user may read. Raises NotFound; Forbidden if nodes are hidden."""
    from moorage.decide.explain.explainer import explain as explained
    from moorage.decide.explain.snapshot import pod_of_job
    from moorage.decide.explain.storage import storage_of
    from moorage.present.explanation import explain_text
    from moorage.present.explanationjson import to_json

    api, job = session.api, None
    try:
        job = max(await jobs_of_run(api, session.namespace, name), key=attempt_of)
    except NotFound as missing:
        try:
            pod = await api.get(PODS, name, session.namespace)
        except ApiError:
            raise missing from None
    else:
        pods = sorted(
            (one for one in await pods_of_run(api, session.namespace, name) if attempt_of(one) == attempt_of(job)),
            key=lambda one: str(one["metadata"].get("creationTimestamp") or ""),
        )
        pod = pods[-1] if pods else pod_of_job(job)
    nodes, pods_list = await asyncio.gather(api.list(NODES), api.list(PODS))
    claims, volumes, classes, machines, events = await asyncio.gather(
        _listed(session, PVCS, session.namespace),
        _listed(session, PVS),
        _listed(session, STORAGECLASSES),
        _listed(session, MACHINES),
        _events(session, pod, job),
    )
    found = explained(
        pod,
        nodes=nodes.items,
        pods=pods_list.items,
        now=session.clock.now(),
        storage=storage_of(claims, volumes, classes),
        events=events,
        machines=machines or (),
        suspended=job is not None and bool((job.get("spec") or {}).get("suspend")),
    )
    return to_json(found) | {"text": explain_text(found)}


async def _listed(session: Session, resource: Resource, namespace: str | None = None) -> list[Obj] | None:
    """None: not to be read by this user, or unknown to this cluster."""
    try:
        return (await session.api.list(resource, namespace)).items
    except ApiError:
        return None


async def _events(session: Session, pod: Obj, job: Obj | None) -> list[Obj]:
    found: list[Obj] = []
    for name in sorted({key_of(one).name for one in (pod, job) if one is not None}):
        try:
            listed = await session.api.list(
                EVENTS, session.namespace, field_selector=f"involvedObject.name={name}"
            )
        except ApiError:
            continue
        found += listed.items
    return found
