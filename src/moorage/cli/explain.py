"""`moor explain`: why a run waits, and who holds what it needs."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from moorage.apimachinery.meta import key_of
from moorage.apimachinery.resources import EVENTS, NODES, PODS, PVCS, Obj
from moorage.cli import console
from moorage.cli.runs_of import jobs_of, pods_of
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runstate import attempt_of
from moorage.errors import ApiError, Forbidden, NotFound, NotReady, ServerError, Unauthorized


@click.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@target_options
def explain(target: Target, name: str, output: str) -> int:
    """Say why a run (or a pod) waits: what is missing, who holds it, and until when."""

    async def work(session: Session) -> int:
        try:
            body = await session.server.get(f"/api/v1/explain/{session.namespace}/{name}")
        except (NotReady, ServerError, Unauthorized, Forbidden):
            body = await _explain_here(session, name)
        except NotFound:
            body = await _explain_here(session, name)  # newer than the server's cache, or it names the near ones
        text = str(body.pop("text"))
        if output == "text":
            click.echo(text)
        else:
            console.print_document(body, output)
        return 0

    return in_session(target, work)


async def _explain_here(session: Session, name: str) -> dict[str, Any]:
    """The same answer from what this user may read. Raises NotFound; Forbidden if nodes are hidden."""
    from moorage.decide.explain import explain as explained
    from moorage.decide.explain import explain_text, pod_of_job, to_json

    api = session.api
    try:
        job = max(await jobs_of(session, name), key=attempt_of)
    except NotFound as missing:
        try:
            pod = await api.get(PODS, name, session.namespace)
        except ApiError:
            raise missing from None
    else:
        pods = sorted(
            (one for one in await pods_of(session, name) if attempt_of(one) == attempt_of(job)),
            key=lambda one: str(one["metadata"].get("creationTimestamp") or ""),
        )
        pod = pods[-1] if pods else pod_of_job(job)
    nodes, pods_list, claims, events = await asyncio.gather(
        api.list(NODES), api.list(PODS), api.list(PVCS, session.namespace), _events(session, pod)
    )
    found = explained(
        pod,
        nodes=nodes.items,
        pods=pods_list.items,
        now=session.clock.now(),
        claims=claims.items,
        events=events,
    )
    return to_json(found) | {"text": explain_text(found)}


async def _events(session: Session, pod: Obj) -> list[Obj]:
    try:
        listed = await session.api.list(
            EVENTS, session.namespace, field_selector=f"involvedObject.name={key_of(pod).name}"
        )
    except ApiError:
        return []
    return listed.items
