"""Send the heartbeats and notices of workflows and schedules.

A heartbeat is written to the object after it was sent: a restart in between sends it again, and loses
nothing. A finalizer retains the Workflow until its last heartbeat is sent.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import msgspec

from moorage.controllers.base import Controller, Shared
from moorage.decide.maps.notices import Notice
from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS, is_ours
from moorage.model.names import BEATS_ANNOTATION, BEATS_FINALIZER
from moorage.notify.delivery import NotDelivered
from moorage.notify.heartbeat import beat as send_beat
from moorage.notify.send import send
from moorage_kube.backoff import DoublingDelay
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key, annotations_of, is_deleting, key_of
from moorage_kube.moments import moment
from moorage_kube.resources import Obj, Resource
from moorage_workflows.decide.workflows.monitors import (
    TOO_OLD,
    Beat,
    Monitor,
    RunState,
    beat_address,
    due,
    make_notice,
    missed_notice,
    parse_monitor,
    usual_time,
)
from moorage_workflows.model.cronworkflow import Beats, cron_of, is_monitor_key, parse_cron

log = logging.getLogger(__name__)

WORKERS = 16  # a slow receiver holds one for 10 s
WAITS = DoublingDelay(5.0, 300.0)  # between tries of a heartbeat, in seconds
GIVE_UP = timedelta(hours=24)
REMEMBERED = 10_000  # runs whose receivers fail


class _Sender:
    """Sends for both controllers; after a failed delivery it decides when to try again."""

    def __init__(self, shared: Shared) -> None:
        self._clock, self._events, self._outbound = shared.clock, shared.events, shared.outbound
        self._tries: BoundedCache[str, tuple[int, float]] = BoundedCache(REMEMBERED)  # uid: (tries, not before)
        self._told: BoundedCache[str, tuple[str, ...]] = BoundedCache(REMEMBERED)  # uid: reported problems

    def waits(self, uid: str) -> timedelta | None:
        """Return how long to wait for a receiver that failed; None: send now."""
        _, not_before = self._tries.get(uid) or (0, 0.0)
        left = not_before - self._clock.monotonic()
        return timedelta(seconds=left) if left > 0 else None

    async def beat(self, about: Obj, address: str, since: datetime) -> timedelta | None:
        """Send one heartbeat, or give up. Returns the time until the next attempt; None if there is none."""
        uid = str(about["metadata"]["uid"])
        try:
            await send_beat(address, self._outbound)
        except NotDelivered as error:
            tries = (self._tries.get(uid) or (0, 0.0))[0] + 1
            if error.again and self._clock.now() - since < GIVE_UP:
                wait = max(WAITS.after(tries), min(error.after, WAITS.after(100)))
                self._tries.put(uid, (tries, self._clock.monotonic() + wait))
                log.info(
                    "a heartbeat was not delivered", extra={"about": str(key_of(about)), "problem": error.problem}
                )
                return timedelta(seconds=wait)
            await self._events.record(
                about, "Warning", "HeartbeatLost", f"a heartbeat was abandoned: {error.problem}"
            )
        self._tries.put(uid, (0, 0.0))
        return None

    async def tell(self, about: Obj, monitor: Monitor, notice: Notice) -> None:
        """Send a notice to its targets; a failed delivery becomes an event."""
        for delivery in await send(notice, monitor.targets, self._outbound, clock=self._clock):
            if delivery.problem:
                message = f"a notice was not delivered to {delivery.target}: {delivery.problem}"
                await self._events.record(about, "Warning", "NoticeLost", message)

    async def complain(self, about: Obj, problems: tuple[str, ...]) -> None:
        """Record an event about problems of the annotations, once."""
        uid = str(about["metadata"]["uid"])
        if problems and self._told.get(uid) != problems:
            self._told.put(uid, problems)
            await self._events.record(about, "Warning", "InvalidMonitor", "; ".join(problems)[:1000])


class RunMonitorController(Controller):
    """Sends heartbeats of Workflows. One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "workflowmonitor", workers=WORKERS)
        self._sender = _Sender(shared)
        self._sent: BoundedCache[str, tuple[str, ...]] = BoundedCache(REMEMBERED)  # by uid
        self._runs = self._follow(WORKFLOWS)
        self._crons = self._follow(CRON_WORKFLOWS)
        self.loop.hear(self._runs, lambda obj: [key_of(obj)] if _is_monitored(obj) else [])

    async def reconcile(self, key: Key) -> timedelta | None:
        """Send the due heartbeats and notices of one run; return when to look again."""
        obj = self._runs.get(key.name, key.namespace)
        if obj is None or not is_ours(obj):
            return None
        obj = _typed(WORKFLOWS, obj)
        monitor, problems = parse_monitor(annotations_of(obj))
        await self._sender.complain(obj, problems)
        if monitor is None:
            await self._hold(obj, is_held=False)
            return None
        while True:
            sent = self._known(obj)
            run, now = run_state(obj), self._clock.now()
            beats = frozenset(Beat(word) for word in sent if word in list(Beat))
            decided = due(run, beats, now, self._after(monitor, obj))
            if decided.is_done:
                await self._hold(obj, is_held=False)
                return None
            if not is_deleting(obj):
                obj = await self._hold(obj, is_held=True)
            if decided.beat is None:
                return None if decided.look_again_at is None else decided.look_again_at - now
            wait = await self._deliver(obj, monitor, run, decided.beat, sent)
            if wait is not None:
                return wait

    async def _deliver(
        self, obj: Obj, monitor: Monitor, run: RunState, beat: Beat, sent: tuple[str, ...]
    ) -> timedelta | None:
        """Send one heartbeat and record it.

        Returns the time until the next attempt; None if it was sent or given up.
        """
        wait = self._sender.waits(run.uid)
        if wait is not None:
            return wait
        notice = make_notice(run, beat, self._clock.now())
        mark = f"told-{beat}"
        if notice is not None and monitor.targets and mark not in sent:
            await self._sender.tell(obj, monitor, notice)
            sent = (*sent, mark)
            await self._remember(obj, sent)
        address = beat_address(monitor, beat, run.uid, run.message)
        if address:
            since = run.finished or run.started or run.created
            wait = await self._sender.beat(obj, address, since)
            if wait is not None:
                return wait
        await self._remember(obj, (*sent, beat))
        return None

    def _after(self, monitor: Monitor, obj: Obj) -> timedelta | None:
        if monitor.after is not None:
            return monitor.after
        cron = self._crons.get(cron_of(obj), obj["metadata"].get("namespace") or "")
        return usual_time(parse_cron(cron).state.seconds) if cron is not None else None

    async def _remember(self, obj: Obj, sent: tuple[str, ...]) -> None:
        text = msgspec.json.encode(Beats(sent=sent)).decode()
        meta, patch = obj["metadata"], {"metadata": {"annotations": {BEATS_ANNOTATION: text}}}
        self._sent.put(str(meta["uid"]), sent)
        try:
            stored = await self._api.patch(WORKFLOWS, meta["name"], patch, meta.get("namespace"))
        except NotFound:
            return
        meta["resourceVersion"] = stored["metadata"]["resourceVersion"]

    def _known(self, obj: Obj) -> tuple[str, ...]:
        """The heartbeats sent so far: those of the object, and newer ones that this copy lacks."""
        return tuple(dict.fromkeys((*_beats(obj).sent, *(self._sent.get(str(obj["metadata"]["uid"])) or ()))))

    async def _hold(self, obj: Obj, *, is_held: bool) -> Obj:
        """Add our finalizer to a Workflow, or remove it. Raises Conflict if the object changed after the read."""
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or ())
        if (BEATS_FINALIZER in finalizers) == is_held:
            return obj
        kept = [each for each in finalizers if each != BEATS_FINALIZER] + ([BEATS_FINALIZER] if is_held else [])
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": kept}}
        try:
            return _typed(WORKFLOWS, await self._api.patch(WORKFLOWS, meta["name"], patch, meta.get("namespace")))
        except NotFound:
            return obj


class SlotMonitorController(Controller):
    """Reports slots that were due and did not run. One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "slotmonitor", workers=WORKERS)
        self._sender = _Sender(shared)
        self._crons = self._follow(CRON_WORKFLOWS)
        self.loop.hear(self._crons, lambda obj: [key_of(obj)] if _is_monitored(obj) else [])

    async def reconcile(self, key: Key) -> timedelta | None:
        """Report the newest missed slot; return when to try again."""
        obj = self._crons.get(key.name, key.namespace)
        if obj is None or not is_ours(obj):
            return None
        obj = _typed(CRON_WORKFLOWS, obj)
        monitor, problems = parse_monitor(annotations_of(obj))
        await self._sender.complain(obj, problems)
        missed, known = parse_cron(obj).state.missed, _beats(obj)
        if monitor is None or missed <= known.missed:
            return None
        uid, slot = str(obj["metadata"]["uid"]), datetime.fromtimestamp(missed, UTC)
        wait = self._sender.waits(uid)
        if wait is not None:
            return wait
        mark = f"told-{missed}"
        if known.missed or self._clock.now() - slot <= TOO_OLD:
            if monitor.targets and mark not in known.sent:
                await self._sender.tell(obj, monitor, missed_notice(key.namespace, key.name, slot, uid))
                known = msgspec.structs.replace(known, sent=(mark,))
                await self._remember(key, known)
            address = beat_address(monitor, Beat.OVERDUE, uid)
            if address:
                wait = await self._sender.beat(obj, address, slot)
                if wait is not None:
                    return wait
        await self._remember(key, Beats(missed=missed))
        return None

    async def _remember(self, key: Key, beats: Beats) -> None:
        text = msgspec.json.encode(beats).decode()
        try:
            await self._api.patch(
                CRON_WORKFLOWS, key.name, {"metadata": {"annotations": {BEATS_ANNOTATION: text}}}, key.namespace
            )
        except NotFound:
            return


def run_state(obj: Obj) -> RunState:
    """Return a Workflow as input of the decision."""
    meta, status = obj["metadata"], obj.get("status") or {}
    return RunState(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=str(meta["uid"]),
        phase=str(status.get("phase") or ""),
        created=moment(meta.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC),
        started=moment(status.get("startedAt")),
        finished=moment(status.get("finishedAt")),
        message=str(status.get("message") or ""),
        cron=cron_of(obj),
        is_deleted=is_deleting(obj),
    )


def _is_monitored(obj: Obj) -> bool:
    is_held = BEATS_FINALIZER in (obj["metadata"].get("finalizers") or ())
    return is_held or any(is_monitor_key(key) for key in annotations_of(obj))


def _beats(obj: Obj) -> Beats:
    try:
        return msgspec.json.decode(annotations_of(obj).get(BEATS_ANNOTATION) or "{}", type=Beats)
    except msgspec.MsgspecError:
        return Beats()


def _typed(resource: Resource, obj: Obj) -> Obj:
    """A copy with its kind, as events need it. Its top level and its metadata may be changed."""
    return {"apiVersion": resource.api_version, "kind": resource.kind} | obj | {"metadata": dict(obj["metadata"])}
