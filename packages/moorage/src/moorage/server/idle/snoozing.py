"""Snooze the suspension of idle work, as its user."""

from __future__ import annotations

from moorage.actions.idle import snooze_work
from moorage.actions.runs import jobs_of_run
from moorage.api.errors import ErrorCode
from moorage.api.idle import IdleWork
from moorage.decide.idle.work import RESOURCES
from moorage.decide.runs.state import attempt_of
from moorage.model.idle import RUN
from moorage.model.spans import parse_span
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.loops.idle import IdleLoop
from moorage_kube.errors import Forbidden, NotReady, UsageError
from moorage_kube.resources import Obj


async def put_off(
    context: Context, user: User, kind: str, namespace: str, name: str, time: str | None = None
) -> IdleWork:
    """Snooze a piece of work for its user, for `time`, or for the policy's default if None.

    Raises UsageError, Forbidden and ApiError.
    """
    # errors of the request come before reads
    loop, api = loop_of(context), context.acting(user)
    try:
        span = None if time is None else parse_span(time)
    except ValueError as error:
        raise UsageError(
            f"invalid time {time!r}: use a span such as 90m, 4h or 1d",
            code=ErrorCode.INVALID,
            field="time",
        ) from error
    # read as the user; the first Job has the record of a run
    resource = RESOURCES[kind]
    if kind == RUN:
        obj: Obj = min(await jobs_of_run(api, namespace, name), key=attempt_of)
    else:
        obj = await api.get(resource, name, namespace)
    # written with the server's rights, so the user's right is checked here
    if not await context.auth.may(
        user,
        "patch",
        resource.plural,
        group=resource.group,
        namespace=namespace,
        name=obj["metadata"]["name"],
    ):
        raise Forbidden(f"{user.name} may not change {kind} {namespace}/{name}", code=ErrorCode.FORBIDDEN)
    return await snooze_work(
        context.api,
        obj,
        kind,
        loop.policies(),
        span,
        by=user.name,
        tenants=await context.tenants.all(),
        clock=context.clock,
    )


def loop_of(context: Context) -> IdleLoop:
    if context.idle is None:
        raise NotReady("idle work is followed by a server of Moorage only")
    return context.idle
