"""The loop that checks work that holds GPUs. It warns, reminds and suspends according to the policies.

It runs in one server at a time. For each piece of work: read, decide (`decide.idle.plan`), write the intent, act,
write the result. If another writer has changed the record meanwhile (such as a snooze), the next round handles it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec import Struct

from moorage.actions.suspension import suspend_run
from moorage.decide.idle.evidence import Connection, Facts, Kernels, Verdict, judge
from moorage.decide.idle.notices import make_notice
from moorage.decide.idle.plan import Act, Observed, after_notice, after_suspension, plan, recover
from moorage.decide.idle.readings import windows_of
from moorage.decide.idle.states import Record, read_record, write_record
from moorage.decide.idle.successors import Taker, is_unclaimed, next_holder, takers_of
from moorage.decide.idle.work import RESOURCES, Held, HeldWork, WorkKey
from moorage.decide.maps.notices import Notice
from moorage.decide.usage.samples import Point
from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.idle import BUILT_IN, RUN, WORKSPACE, BadIdlePolicy, Policy, parse_policy, policy_for
from moorage.model.names import IDLE_ANNOTATION
from moorage.model.targets import Target, parse_target
from moorage.notify.delivery import Delivery
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, Conflict, MoorageError, NotFound, ServerError, StorageError, UsageError
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import annotations_of
from moorage_kube.remote.events import EventRecorder
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

LONGEST_PAUSE, SHORTEST_PAUSE = 60.0, 5.0  # seconds between two looks; a quarter of the shortest window in between
LOOK_BACK = timedelta(days=8)  # readings older than this are not asked for: no policy waits longer in windows
WORKFLOWS_SECONDS = 60.0  # between two lists of workflows
BY = "the idle policy"

Send = Callable[[Notice, Sequence[Target]], Awaitable[Sequence[Delivery]]]


class Samples(Protocol):
    """The part of the history of use that the loop needs."""

    def points(self, uids: Iterable[str], since: datetime, until: datetime, step: int) -> list[Point]: ...


AskKernels = Callable[[str, str], Awaitable[Kernels | None]]
"""Of the workspace with this namespace and name; None: it is no Jupyter server. Raises ServerError."""


class Sources(Struct, frozen=True, kw_only=True):
    """The data that the loop reads."""

    pods: Informer
    jobs: Informer
    workspaces: Informer
    maps: Informer
    policies: Informer
    tenants: Callable[[], Awaitable[list[Obj]]]
    samples: Samples
    kernels: AskKernels
    connection: Callable[[str, str, Connection], Connection]


class IdleLoop:
    """The idle loop. One per server; only the leader may `run` it."""

    def __init__(
        self, api: Api, sources: Sources, *, send: Send, events: EventRecorder, clock: Clock, page: str = ""
    ) -> None:
        self._api, self._sources, self._clock = api, sources, clock
        self._send, self._events, self._page = send, events, page
        self._recovered: set[WorkKey] = set()  # with a record that was taken over from a server before us
        self._held = HeldWork()
        self._workflows: tuple[float, list[Obj]] = (-WORKFLOWS_SECONDS, [])
        self._complained: dict[str, str] = {}  # policy: its error

    async def run(self) -> None:
        """Check all work in rounds, until cancelled."""
        await wait_synced(self._sources.pods, self._sources.jobs)
        self._recovered.clear()
        while True:
            try:
                await self.look()
            except (MoorageError, OSError) as error:
                log.warning("idle work cannot be looked at", extra={"error": str(error)})
            await self._clock.sleep(self._pause())

    async def look(self) -> None:
        """Check all work once. A failure for one piece of work does not stop the others."""
        policies, works = self.policies(), await self.held()
        self._recovered.intersection_update(held.key for held in works)
        gave_back = any(is_unclaimed(held.record) for held in works)
        takers = takers_of(self._sources.pods.all()) if gave_back else ()
        for held in works:
            try:
                await self._look_at(held, policies, takers)
            except (MoorageError, OSError) as error:
                log.warning(
                    "a piece of work cannot be judged", extra={"work": held.work.title, "error": str(error)}
                )

    def policies(self) -> tuple[Policy, ...]:
        """The valid policies of the administrator, or the built-in policy if there are no policies."""
        return read_policies(self._sources.policies.all(), self._complain)

    async def held(self) -> list[Held]:
        """All work that holds GPUs or has held them."""
        sources = self._sources
        return await asyncio.to_thread(
            self._held.of,
            sources.pods.all(),
            sources.jobs.all(),
            sources.workspaces.all(),
            sources.maps.all(),
            await self._all_workflows(),
            await sources.tenants(),
        )

    # --- one piece of work

    async def _look_at(self, held: Held, policies: Sequence[Policy], takers: Sequence[Taker]) -> None:
        now = self._clock.now()
        policy = policy_for(policies, tenant=held.work.tenant, work=held.work.kind)
        record = held.record
        if held.key not in self._recovered:
            record = recover(record)
        verdict: Verdict | None = None
        if policy is not None and held.pods and not held.work.suspended:
            try:
                verdict = await self._judge(held, policy, now)
            except _Later:
                return
        targets = policy.targets_of(held.work.owner, _targets(held)) if policy is not None else ()
        taker = next_holder(held.key, record, takers) if is_unclaimed(record) else ""
        step = plan(
            Observed(work=held.work, verdict=verdict, policy=policy, record=record, now=now, next_holder=taker)
        )
        if step.changed or record != held.record:
            written = msgspec.structs.replace(step.record, told_at=now.replace(microsecond=0))
            if not await self._write(held, held.record, written):
                return
        self._recovered.add(held.key)
        if step.act and policy is not None:
            await self._act(held, step.act, step.record, policy, targets)
        elif step.act is Act.SUSPEND:
            await self._suspend(held, step.record)

    async def _judge(self, held: Held, policy: Policy, now: datetime) -> Verdict:
        since = now - min(LOOK_BACK, policy.warn_after + 8 * policy.window)
        if held.record.since is not None:
            since = min(since, max(held.record.since - 2 * policy.window, now - LOOK_BACK))
        step = int(policy.window.total_seconds())
        uids = [pod.uid for pod in held.pods]
        try:
            points = await asyncio.to_thread(self._sources.samples.points, uids, since, now, step)
        except StorageError as error:
            raise _Later from error
        facts = Facts(
            started=held.work.started or now,
            windows=windows_of(points, held.pods, now=now),
            proven_since=held.record.since,
            kernels=await self._kernels_of(held),
            connection=self._connection_of(held),
            checkpoint_at=held.work.checkpoint_at,
        )
        return judge(facts, policy, now)

    def _connection_of(self, held: Held) -> Connection | None:
        if held.connection is None:
            return None
        return self._sources.connection(held.work.namespace, held.work.name, held.connection)

    async def _kernels_of(self, held: Held) -> Kernels | None:
        """Jupyter's kernels of a workspace; None for other work. Raises `_Later` where it does not answer."""
        if held.work.kind != WORKSPACE:
            return None
        try:
            return await self._sources.kernels(held.work.namespace, held.work.name)
        except ServerError as error:
            log.info(
                "a workspace does not report its kernels", extra={"work": held.work.title, "why": error.message}
            )
            raise _Later from error  # neither idle nor in use: ask again

    async def _act(
        self, held: Held, act: Act, record: Record, policy: Policy, targets: tuple[Target, ...]
    ) -> None:
        if act is Act.SUSPEND:
            await self._suspend(held, record)
            return
        notice = make_notice(act, held.work, record, policy, address=self._address())
        kind = {Act.WARN: "Idle", Act.REMIND: "IdleReminder", Act.REPORT: "Suspended"}[act]
        text = "; ".join(line.removesuffix(".") for line in (notice.title, *notice.lines))
        await self._events.record(_typed(held), "Warning", kind, text[:1000])
        deliveries = await self._send(notice, targets) if targets else ()
        for delivery in deliveries:
            if delivery.problem:
                message = f"a notice was not delivered to {delivery.target}: {delivery.problem}"
                await self._events.record(_typed(held), "Warning", "NoticeLost", message)
        delivered = not targets or any(delivery.delivered for delivery in deliveries)
        log.info(
            "sent notices of idle work",
            extra={"work": held.work.title, "act": str(act), "targets": len(targets), "delivered": delivered},
        )
        await self._note(held, act, lambda stored: after_notice(stored, delivered=delivered))

    async def _suspend(self, held: Held, record: Record) -> None:
        work = held.work
        if work.kind == WORKSPACE:
            patch = {"metadata": {"uid": work.uid}, "spec": {"running": False}}
            await self._api.patch(RESOURCES[WORKSPACE], work.name, patch, work.namespace)
        elif work.kind == RUN:
            await suspend_run(
                self._api, work.namespace, work.name, by=BY, why=f"idle: {record.why}", clock=self._clock
            )
        log.info("suspended idle work", extra={"work": work.title, "why": record.why})
        await self._note(held, Act.SUSPEND, after_suspension)
        stored = await self._api.get(RESOURCES[work.kind], held.obj["metadata"]["name"], work.namespace)
        after = read_record(annotations_of(stored).get(IDLE_ANNOTATION))
        policy = policy_for(self.policies(), tenant=work.tenant, work=work.kind)
        if policy is not None and after.pending == Act.REPORT:
            targets = policy.targets_of(work.owner, _targets(held))
            await self._act(held, Act.REPORT, after, policy, targets)

    # --- writes

    async def _write(self, held: Held, before: Record, after: Record) -> bool:
        """Write a record over the one that was read; False: another wrote meanwhile, or the object was deleted."""
        resource, name = RESOURCES[held.work.kind], held.obj["metadata"]["name"]
        try:
            stored = await self._api.get(resource, name, held.work.namespace)
        except NotFound:
            return False
        if stored["metadata"]["uid"] != held.work.uid:
            return False
        if read_record(annotations_of(stored).get(IDLE_ANNOTATION)) != before:
            return False
        meta = {
            "uid": held.work.uid,
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "annotations": {IDLE_ANNOTATION: write_record(after)},
        }
        try:
            await self._api.patch(resource, name, {"metadata": meta}, held.work.namespace)
        except (Conflict, NotFound):
            return False
        return True

    async def _note(self, held: Held, act: Act, change: Callable[[Record], Record]) -> None:
        """Write the outcome of an act to the current record; a snooze in between stays."""
        resource, name = RESOURCES[held.work.kind], held.obj["metadata"]["name"]

        async def read() -> tuple[Obj, Obj]:
            stored = await self._api.get(resource, name, held.work.namespace)
            record = read_record(annotations_of(stored).get(IDLE_ANNOTATION))
            after = change(record) if record.pending == act else record
            notes = {IDLE_ANNOTATION: write_record(after)}
            return stored, {"metadata": {"uid": held.work.uid, "annotations": notes}}

        try:
            await change_as_read(self._api, resource, read, clock=self._clock)
        except NotFound:
            return

    # --- rarely read objects

    async def _all_workflows(self) -> list[Obj]:
        listed_at, workflows = self._workflows
        if self._clock.monotonic() - listed_at >= WORKFLOWS_SECONDS:
            wanted = any(
                WORKFLOW_LABEL in (pod["metadata"].get("labels") or {}) for pod in self._sources.pods.all()
            )
            try:
                workflows = (await self._api.list(WORKFLOWS)).items if wanted else []
            except ApiError:  # no such kind here
                workflows = []
            self._workflows = self._clock.monotonic(), workflows
        return workflows

    def _complain(self, name: str, problem: str) -> None:
        if self._complained.get(name) != problem:
            self._complained[name] = problem
            log.warning("an idle policy is invalid and does not hold", extra={"policy": name, "error": problem})

    def _pause(self) -> float:
        shortest = min((policy.window.total_seconds() for policy in self.policies()), default=LONGEST_PAUSE)
        return max(SHORTEST_PAUSE, min(LONGEST_PAUSE, shortest / 4))

    def _address(self) -> str:
        return self._page


class _Later(Exception):
    """Raised if data cannot be read now; the decision waits until it can."""


def read_policies(objs: Iterable[Obj], complain: Callable[[str, str], None]) -> tuple[Policy, ...]:
    """Parse policies; invalid ones are reported. The built-in policy if there are no objects."""
    policies, seen = [], False
    for obj in objs:
        seen = True
        try:
            policies.append(parse_policy(obj))
        except BadIdlePolicy as error:
            complain(str(obj["metadata"]["name"]), error.message)
    return tuple(policies) if seen else (BUILT_IN,)


def _targets(held: Held) -> tuple[Target, ...]:
    """The targets in the work itself, without invalid ones and commands."""
    targets: list[Target] = []
    for text in held.notify:
        try:
            if not text.lower().startswith("command:"):
                targets.append(parse_target(text))
        except UsageError:
            continue
    return tuple(targets)


def _typed(held: Held) -> Obj:
    resource = RESOURCES[held.work.kind]
    return {"apiVersion": resource.api_version, "kind": resource.kind, **held.obj}
