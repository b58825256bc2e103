"""/api/v1/idle: idle work, since when, why, and the next action; snoozes; a report of a policy's past
effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage.actions.idle import idle_work
from moorage.api.errors import ErrorCode
from moorage.api.idle import IdleChoice, IdleList, IdleWork, Report, ReportRequest, ReportRow, Snooze
from moorage.decide.idle.whatif import Outcome, pasts_of
from moorage.decide.idle.work import RESOURCES
from moorage.decide.timetext import moment_before
from moorage.model.idle import MAP, RUN, WORKFLOW, WORKSPACE, BadIdlePolicy, Policy, parse_policy, policy_for
from moorage.server.endpoint import Call, Endpoint
from moorage.server.idle.replay import replay
from moorage.server.idle.snoozing import loop_of, put_off
from moorage.server.namespaces import by_namespace
from moorage_kube.errors import UsageError

DECIMALS = 3  # of hours in an answer


async def list_idle(call: Call[None, IdleChoice]) -> IdleList:
    """List work that holds GPUs and is idle: since when, why, and the next action."""
    loop = loop_of(call.context)
    await call.context.ready()
    held = [each for each in await loop.held() if call.query.namespace in ("", each.work.namespace)]
    return IdleList(now=call.context.now().replace(microsecond=0), work=idle_work(held, loop.policies()))


async def snooze_workspace(call: Call[Snooze, None]) -> IdleWork:
    """Delay the next action on an idle workspace, within the limits of its policy."""
    return await _snooze(call, WORKSPACE)


async def snooze_job(call: Call[Snooze, None]) -> IdleWork:
    """Delay the next action on an idle run, within the limits of its policy."""
    return await _snooze(call, RUN)


async def snooze_map(call: Call[Snooze, None]) -> IdleWork:
    """Delay the next action on an idle map, within the limits of its policy."""
    return await _snooze(call, MAP)


async def snooze_workflow(call: Call[Snooze, None]) -> IdleWork:
    """Delay the next action on an idle workflow, within the limits of its policy."""
    return await _snooze(call, WORKFLOW)


async def _snooze(call: Call[Snooze, None], kind: str) -> IdleWork:
    call.audit(f"snooze {kind}", f"{call.namespace}/{call.name}")
    return await put_off(call.context, call.user, kind, call.namespace, call.name, call.body.time)


async def report_idle(call: Call[ReportRequest, None]) -> Report:
    """Show the GPUs that an IdlePolicy would have reclaimed, from stored readings, before it is turned on."""
    context, loop, now = call.context, loop_of(call.context), call.context.now()
    since = moment_before(call.body.since, now, "since")
    if call.body.spec is not None:
        try:
            tried = parse_policy({"metadata": {"name": "as given"}, "spec": call.body.spec})
        except BadIdlePolicy as error:
            raise UsageError(error.message, code=ErrorCode.INVALID, field="spec") from error
        policies: Sequence[Policy] = (tried,)
    else:
        policies = loop.policies()
    every = await asyncio.to_thread(
        context.usage.overlapping, since, now, every_pod=True
    )  # has the namespaces and owners
    intervals = await by_namespace(context.api, (interval for interval in every if interval.gpus))
    tenants = {
        str((each.get("spec") or {}).get("namespace") or each["metadata"]["name"]): each["metadata"]["name"]
        for each in await context.tenants.all()
    }
    by_policy: dict[tuple[str, str], Policy] = {}
    for namespace in {interval.namespace for interval in intervals}:
        for kind in RESOURCES:
            policy = policy_for(policies, tenant=tenants.get(namespace, ""), work=kind)
            if policy is not None:
                by_policy[kind, namespace] = policy
    pasts = pasts_of(intervals, by_policy, now=now)
    rows = await asyncio.to_thread(replay, context.samples, pasts, since=since, now=now)
    return report_of(rows, since=since, until=now, policy=", ".join(policy.name for policy in policies))


def report_of(rows: Sequence[Outcome], *, since: datetime, until: datetime, policy: str) -> Report:
    """The answer: the sums, and a row for each piece of work that was idle at some time."""
    return Report(
        since=since.replace(microsecond=0),
        until=until.replace(microsecond=0),
        policy=policy,
        held_hours=round(sum(row.held_hours for row in rows), DECIMALS),
        measured_hours=round(sum(row.measured_hours for row in rows), DECIMALS),
        idle_hours=round(sum(row.idle_hours for row in rows), DECIMALS),
        reclaimed_hours=round(sum(row.reclaimed_hours for row in rows), DECIMALS),
        rows=tuple(
            ReportRow(
                kind=row.work.kind,
                namespace=row.work.namespace,
                name=row.work.name,
                owner=row.work.owner,
                gpus=row.work.gpus,
                idle_hours=round(row.idle_hours, DECIMALS),
                warned_at=row.warned_at,
                suspended_at=row.suspended_at,
                reclaimed_hours=round(row.reclaimed_hours, DECIMALS),
                why=row.why,
            )
            for row in rows
            if row.idle_hours
        ),
    )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/idle", handler=list_idle, query=IdleChoice, answer=IdleList),
    Endpoint(method="POST", path="/api/v1/idle/report", handler=report_idle, body=ReportRequest, answer=Report),
    *(
        Endpoint(
            method="POST",
            path=f"/api/v1/{plural}/{{namespace}}/{{name}}/snooze",
            handler=handler,
            body=Snooze,
            answer=IdleWork,
        )
        for plural, handler in (
            ("workspaces", snooze_workspace),
            ("jobs", snooze_job),
            ("maps", snooze_map),
            ("workflows", snooze_workflow),
        )
    ),
)
