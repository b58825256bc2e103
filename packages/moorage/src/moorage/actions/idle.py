"""Idle work: list it, and postpone its policy's next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from moorage.api.errors import ErrorCode
from moorage.api.idle import IdleWork
from moorage.decide.idle.notices import outlook
from moorage.decide.idle.plan import snooze
from moorage.decide.idle.states import State, write_record
from moorage.decide.idle.work import RESOURCES, Held, HeldWork
from moorage.model.idle import Policy, policy_for
from moorage.model.names import IDLE_ANNOTATION
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import NotFound, UsageError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj


def idle_work(held: Iterable[Held], policies: Sequence[Policy]) -> tuple[IdleWork, ...]:
    """The work that is not in use, the longest idle first."""
    rows = [view_of(each, policies) for each in held if each.record.state is not State.ACTIVE]
    return tuple(sorted(rows, key=lambda row: (row.since is None, row.since, row.namespace, row.name)))


def view_of(held: Held, policies: Sequence[Policy]) -> IdleWork:
    """Convert a piece of work to an answer."""
    work, record = held.work, held.record
    policy = policy_for(policies, tenant=work.tenant, work=work.kind)
    return IdleWork(
        kind=work.kind,
        namespace=work.namespace,
        name=work.name,
        state=str(record.state),
        owner=work.owner,
        gpus=record.gpus or work.gpus,
        since=record.since,
        why=record.why,
        next=record.next,
        next_at=record.next_at,
        outlook=outlook(work, record, policy) if policy is not None and record.since is not None else "",
        policy=record.policy,
        snoozed_until=record.snoozed_until,
        snoozes=record.snoozes,
        went_to=record.went_to,
    )


async def snooze_work(
    api: Api,
    obj: Obj,
    kind: str,
    policies: Sequence[Policy],
    span: timedelta | None,
    *,
    by: str,
    tenants: Iterable[Obj] = (),
    clock: Clock = SYSTEM,
) -> IdleWork:
    """Postpone the next step for idle work. `span` None: as long as its policy usually does.

    The caller has checked whether `by` may change the object. Raises UsageError if the policy does not allow the
    span, and NotFound.
    """
    resource, meta = RESOURCES[kind], obj["metadata"]
    tenants = list(tenants)
    after: list[Held] = []

    async def read() -> tuple[Obj, Obj]:
        # a new object of the same name is not snoozed
        stored = await api.get(resource, meta["name"], meta["namespace"])
        if stored["metadata"]["uid"] != meta["uid"]:
            raise NotFound(f"{kind} {meta['name']} is another one now", code=ErrorCode.NOT_FOUND)
        # the policy decides how long a snooze may be
        held = held_of(kind, stored, tenants)
        policy = policy_for(policies, tenant=held.work.tenant, work=kind)
        if policy is None:
            raise UsageError(
                f"no idle policy holds for {held.work.title}: there is nothing to snooze", code=ErrorCode.INVALID
            )
        try:
            asked = policy.usual_snooze if span is None else span
            record = snooze(held.record, policy, asked, by=by, now=clock.now().replace(microsecond=0))
        except UsageError as error:
            raise UsageError(
                f"{held.work.title}: {error.message}", hint=error.hint, code=ErrorCode.INVALID, field="time"
            ) from error
        # the patch repeats this read if the object changes meanwhile
        after[:] = [Held(work=held.work, obj=stored, record=record)]
        notes = {IDLE_ANNOTATION: write_record(record)}
        return stored, {"metadata": {"uid": meta["uid"], "annotations": notes}}

    await change_as_read(api, resource, read, clock=clock)
    return view_of(after[0], policies)


def held_of(kind: str, obj: Obj, tenants: Iterable[Obj]) -> Held:
    """Convert an object to a piece of work, even if it holds no GPUs now."""
    notes = {IDLE_ANNOTATION: annotations_of(obj).get(IDLE_ANNOTATION) or "{}"}
    marked = {**obj, "metadata": {**obj["metadata"], "annotations": {**annotations_of(obj), **notes}}}
    lists = {each: [marked] if each == kind else [] for each in RESOURCES}
    held = HeldWork().of([], lists["run"], lists["workspace"], lists["map"], lists["workflow"], tenants)
    if not held:
        raise NotFound(f"{kind} {obj['metadata']['name']} is being deleted", code=ErrorCode.NOT_FOUND)
    return held[0]
