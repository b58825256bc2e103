"""The bridge between MapJobs and the queue: it creates the maps of MapJobs and writes their status.

Every server on the queue runs a bridge. All write the same counts. A notification is sent once: before it is
sent, its mark is written to the version of the MapJob that was read. A crash is safe after every step: the
finalizer is on the MapJob before its map is in the queue. The MapJob's uid identifies the creation, so a repeat
creates nothing. A restored MapJob has another uid, so it uses the uid of the original.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from moorage.actions.maps import name_taken
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Limit, Policy, State
from moorage.decide.maps.notices import MapState, Notice, NoticeRules, due
from moorage.model.mapjob import (
    ACCEPTED,
    BAD_LIMITS,
    CANCELLED,
    FINISHED,
    MAPJOBS,
    NAME_TAKEN,
    QUOTA_EXCEEDED,
    BadMapJob,
    MapJobSpec,
    MapView,
    Writer,
    check_mapjob,
    parse_mapjob,
    secret_name,
    status_patch,
)
from moorage.model.names import INFO_CONFIGMAP, MAP_FINALIZER, MAP_LABEL, MAP_REQUEST_ANNOTATION, SYSTEM_NAMESPACE
from moorage.queue.manager import Queue
from moorage.queue.store import Stored
from moorage.server.namespaces import records_since
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    MoorageError,
    NotFound,
    QuotaExceeded,
    UsageError,
)
from moorage_kube.informers import Informers
from moorage_kube.meta import Key, condition, key_of, owner_reference, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, SECRETS, Obj

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0  # how often the queue is asked for its maps, all in one
TELL_SECONDS = 2.0  # counts are written no more often; another state is at once
AGAIN_SECONDS = 10.0  # until an error that the server cannot fix is checked again
KIND_SECONDS = 2.0  # how often a cluster without MapJobs is asked for them again
RATE_MARGIN = 1.5  # workers beyond rate times mean, as items differ


class MapBridge:
    """Follows the MapJobs of a cluster during `run`."""

    def __init__(
        self,
        api: Api,
        queue: Queue,
        *,
        clock: Clock = SYSTEM,
        informers: Informers | None = None,
        send: Callable[..., Awaitable[object]] | None = None,
    ) -> None:
        """`send` delivers notices; None: `moorage.notify.send.send`."""
        shared = informers or Informers()
        self._api, self._queue, self._clock, self._deliver = api, queue, clock, send
        self.informer = shared.of(api, MAPJOBS)
        self.loop: ControlLoop[Key] = ControlLoop("maps", self.reconcile, workers=2, clock=clock, of=self.informer)
        self.informer.on_change(self._changed)
        self._told: dict[str, tuple[float, Obj]] = {}  # by uid: the time, and our part of the status
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Reconcile until cancelled. If the cluster does not have the kind, retry the list."""
        await self._wait_for_kind()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.informer.run(), name="informer mapjobs")
                await self.informer.synced.wait()
                tasks.create_task(self.loop.run(), name="loop maps")
                tasks.create_task(self._ticks(), name="counts of maps")
        finally:
            for task in self._sending:
                task.cancel()

    async def reconcile(self, key: Key) -> timedelta | None:
        """Add the map of one MapJob to the queue, or remove it; return the delay until the next check, or None."""
        obj = self.informer.get(key.name, key.namespace)
        if obj is None:
            return None
        if obj["metadata"].get("deletionTimestamp"):
            await self._release(obj)
            return None
        accepted = _accepted(obj)
        current = (obj.get("status") or {}).get("observedGeneration") == obj["metadata"].get("generation")
        if accepted == "True" and current:
            return None
        return await self._accept(await self._hold(obj))

    async def tick(self) -> None:
        """Write the status of each map that has changed, and send the notices that are due."""
        known = [
            mapjob
            for mapjob in self.informer.all()
            if _accepted(mapjob) and (mapjob.get("status") or {}).get("queue")
        ]
        there = {mapjob["metadata"]["uid"] for mapjob in known}
        self._told = {uid: status for uid, status in self._told.items() if uid in there}
        if not known:
            return
        stored, limits = await self._queue.read(lambda store: (store.list_maps(), store.limits()))
        by_uid = {known_map.uid: known_map for known_map in stored}
        for obj in known:
            stored_map = by_uid.get(obj["status"]["queue"].get("uid") or "")
            if stored_map is None or obj["metadata"].get("deletionTimestamp"):
                continue
            try:
                await self._tell(obj, stored_map, limits)
            except (Conflict, NotFound):
                continue  # changed or deleted; the watch will report it
            except BadMapJob as error:
                log.warning("a MapJob cannot be read", extra={"map": str(key_of(obj)), "error": error.message})

    # --- into the queue, and out of it

    async def _hold(self, obj: Obj) -> Obj:
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or []
        if MAP_FINALIZER in finalizers:
            return obj
        patch = {"resourceVersion": meta["resourceVersion"], "finalizers": [*finalizers, MAP_FINALIZER]}
        return await self._api.patch(MAPJOBS, meta["name"], {"metadata": patch}, meta["namespace"])

    async def _accept(self, obj: Obj) -> timedelta | None:
        faults = check_mapjob(obj)
        if faults:
            message = "; ".join(
                f"{fault.field}: {fault.message}" + (f" (found {fault.value})" * bool(fault.value))
                for fault in faults
            )
            return await self._refuse(obj, "Invalid", message)
        view = parse_mapjob(obj)
        url = await self._server_url()
        if not url:
            message = f"the ConfigMap {INFO_CONFIGMAP} in {SYSTEM_NAMESPACE} names no serverUrl"
            return await self._refuse(obj, "NoServerAddress", message, again=True)
        try:
            made = await self._make(view)
        except AlreadyExists as error:
            taken = name_taken(view.namespace, view.name) if not error.code else error
            message = f"{taken.message}; {taken.hint or ''}".strip("; ")
            return await self._refuse(obj, NAME_TAKEN, message, again=True)
        except QuotaExceeded as error:
            message = f"{error.message}; {error.hint or ''}".strip("; ")
            return await self._refuse(obj, QUOTA_EXCEEDED, message, again=True)
        except UsageError as error:
            message = f"{error.message}; {error.hint or ''}".strip("; ")
            return await self._refuse(obj, BAD_LIMITS, message, again=True)
        secret = await self._make_secret(obj, view, made.uid, url)
        ours = self._ours(obj, made, await self._queue.read(lambda store: store.limits()))
        ours["queue"] |= {"url": url, "uid": made.uid, "secret": secret}
        await self._write(obj, ours, "True", "Accepted", "its map is in the queue")
        return None

    async def _make(self, view: MapView) -> Stored:
        spec = view.spec
        return await self._queue.create_map(
            namespace=view.namespace,
            name=view.name,
            owner=view.owner,
            policy=policy_of(spec),
            request=view.notes.get(MAP_REQUEST_ANNOTATION) or view.uid,
            limits={name: limit.capacity for name, limit in spec.limits.items() if limit.capacity is not None},
            priority=spec.priority,
            since=await records_since(self._api, view.namespace),
        )

    async def _make_secret(self, obj: Obj, view: MapView, uid: str, url: str) -> str:
        """Create the Secret with the map's token; return its name.

        The name contains the uid and the token never changes, so an existing Secret is correct.
        """
        name = secret_name(view.name, view.uid)
        data = {"token": self._queue.token_of(uid), "server": url}
        owner = {"apiVersion": MAPJOBS.api_version, "kind": MAPJOBS.kind} | obj
        secret: Obj = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": view.namespace,
                "labels": {MAP_LABEL: view.name},
                "ownerReferences": [owner_reference(owner, controller=False)],
            },
            "type": "Opaque",
            "immutable": True,
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
        }
        with contextlib.suppress(AlreadyExists):
            await self._api.create(SECRETS, secret, view.namespace)
        return name

    async def _refuse(self, obj: Obj, reason: str, message: str, *, again: bool = False) -> timedelta | None:
        stated = condition(obj, ACCEPTED) or {}
        if (stated.get("status"), stated.get("reason"), stated.get("message")) != ("False", reason, message):
            await self._write(obj, {}, "False", reason, message)
            log.info("a MapJob is refused", extra={"map": str(key_of(obj)), "reason": reason})
        return timedelta(seconds=AGAIN_SECONDS) if again else None

    async def _release(self, obj: Obj) -> None:
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or []
        if MAP_FINALIZER not in finalizers:
            return
        known = ((obj.get("status") or {}).get("queue") or {}).get("uid")
        stored = await self._queue.read(lambda store: store.find_uid(known) if known else None)
        if stored is None and not known:  # stopped between making the map and writing it down?
            with contextlib.suppress(AlreadyExists, QuotaExceeded, UsageError, BadMapJob):
                stored = await self._make(parse_mapjob({**obj, "status": {}}))
        if stored is not None:
            await self._queue.delete_map(stored.map.id)
        left = [finalizer for finalizer in finalizers if finalizer != MAP_FINALIZER]
        patch = {"resourceVersion": meta["resourceVersion"], "finalizers": left}
        with contextlib.suppress(NotFound):
            await self._api.patch(MAPJOBS, meta["name"], {"metadata": patch}, meta["namespace"])

    async def _server_url(self) -> str:
        try:
            config_map = await self._api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
        except NotFound:
            return ""
        return str((config_map.get("data") or {}).get("serverUrl") or "").rstrip("/")

    # --- its status

    async def _tell(self, obj: Obj, stored: Stored, limits: list[Limit]) -> None:
        uid = obj["metadata"]["uid"]
        at, _ = self._told.get(uid, (-math.inf, {}))
        before = self._before(obj)
        ours = self._ours(obj, stored, limits)
        new_state = ours["state"] != before.get("state")
        notices, ours["queue"]["marks"] = await self._notices(obj, stored, ours)
        if ours != before and (new_state or notices or self._clock.monotonic() - at >= TELL_SECONDS):
            status = status_patch(Writer.SERVER, _replacing(before, ours))
            meta = obj["metadata"]
            patch = {"metadata": {"uid": uid}, "status": status}
            if notices:  # of two servers that are about to send them, one writes to this version
                patch["metadata"]["resourceVersion"] = meta["resourceVersion"]
            await self._api.patch(MAPJOBS, meta["name"], patch, meta["namespace"], subresource="status")
            self._told[uid] = (self._clock.monotonic(), ours)
        if notices:
            task = asyncio.create_task(self._send(parse_mapjob({**obj, "status": {}}), notices))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _before(self, obj: Obj) -> Obj:
        """Our part of the status, as last written: the watch may be behind."""
        written = self._told.get(obj["metadata"]["uid"])
        if written is not None:
            return written[1]
        status = obj.get("status") or {}
        return {key: status[key] for key in ("state", "queue", "items") if key in status}

    def _ours(self, obj: Obj, stored: Stored, limits: list[Limit]) -> Obj:
        before = self._before(obj)
        was: Mapping[str, Any] = before.get("items") or {}
        queue = dict(before.get("queue") or {})
        map_, counts = stored.map, stored.map.counts
        now = rfc3339(self._clock.now())
        state = FINISHED if leasing.is_finished(map_, counts) else map_.state.value
        if before.get("state") in (FINISHED, CANCELLED) and state not in (FINISHED, CANCELLED):
            queue["round"] = int(queue.get("round") or 0) + 1
        if counts.granted and not queue.get("heardAt"):
            queue["heardAt"] = now
        if counts.done + counts.dead != int(was.get("done") or 0) + int(was.get("dead") or 0):
            queue["progressAt"] = now
        items: Obj = {
            name: getattr(counts, name)
            for name in ("total", "waiting", "ready", "large", "leased", "done", "dead", "lost")
        }
        if (mean := leasing.mean_ms(counts)) is not None:
            items["meanSeconds"] = round(mean / 1000, 3)
        if (at_once := at_once_of(map_, limits)) is not None:
            items["atOnce"] = at_once
        return {"state": state, "queue": queue, "items": items}

    async def _notices(self, obj: Obj, stored: Stored, ours: Obj) -> tuple[tuple[Notice, ...], list[str]]:
        """The notices that are due now, and all marks. They describe the status that is about to be written."""
        stored_marks = ((obj.get("status") or {}).get("queue") or {}).get("marks") or ()  # another server's too
        marks = sorted({*(ours["queue"].get("marks") or ()), *stored_marks})
        wanted = (obj.get("spec") or {}).get("notify")
        if not wanted:
            return (), marks
        spec = parse_mapjob({**obj, "status": {}}).spec.notify
        assert spec is not None
        rules = NoticeRules(first_failure=spec.first_failure, failure_share=spec.failure_share, at_end=spec.at_end)
        state = self._map_state(stored, ours)
        due_now = due(rules, state, frozenset(marks))
        if due_now.notices and state.failed:
            due_now = due(rules, await self._with_failure(stored, state), frozenset(marks))
        return due_now.notices, sorted(due_now.marks)

    def _map_state(self, stored: Stored, ours: Obj) -> MapState:
        counts, state = stored.map.counts, ours["state"]
        outcome = "cancelled" if state == CANCELLED else "failed" if counts.dead else "succeeded"
        url = ours["queue"].get("url") or ""
        return MapState(
            namespace=stored.namespace,
            name=stored.name,
            round=1 + int(ours["queue"].get("round") or 0),
            total=counts.total,
            done=counts.done,
            failed=counts.dead,
            ended=state in (FINISHED, CANCELLED),
            outcome=outcome,
            seconds=max(0.0, self._clock.now().timestamp() - stored.created_at / 1000),
            address=f"{url}/api/v1/maps/{stored.namespace}/{stored.name}/items?state=dead" if counts.dead else "",
        )

    async def _with_failure(self, stored: Stored, state: MapState) -> MapState:
        of = stored.map.id
        dead = await self._queue.read(lambda store: store.list_items(of, states=[State.DEAD], limit=1))
        if not dead:
            return state
        item = await self._queue.read(lambda store: store.get_item(of, dead[0].item))
        output = item[1].decode("utf-8", "replace") if item is not None else ""
        failure = dead[0].failure
        text = output.strip() or (failure.message if failure is not None else "")
        key = dead[0].key or f"{dead[0].item}: {bytes(dead[0].value).decode('utf-8', 'replace')[:200]}"
        return msgspec.structs.replace(state, first_failed_item=key, first_error=text)

    async def _send(self, view: MapView, notices: tuple[Notice, ...]) -> None:
        from moorage.model.targets import parse_target
        from moorage.notify.outbound import Outbound, mail_server_of
        from moorage.notify.send import send

        try:
            targets = [parse_target(target) for target in (view.spec.notify.targets if view.spec.notify else ())]
            outbound = Outbound(mail=mail_server_of(os.environ))
        except UsageError as error:
            log.warning(
                "a notice cannot be sent", extra={"map": f"{view.namespace}/{view.name}", "error": error.message}
            )
            return
        for notice in notices:
            await (self._deliver or send)(notice, targets, outbound, clock=self._clock)

    # --- writes, time, changes

    async def _write(self, obj: Obj, ours: Obj, status: str, reason: str, message: str) -> None:
        """Write a condition.

        Conditions are one list with two writers, so the write needs the version that was read.
        """
        meta = obj["metadata"]
        generation = int(meta.get("generation") or 0)
        standing = (obj.get("status") or {}).get("conditions") or []
        conditions = with_condition(
            standing,
            ACCEPTED,
            status,
            now=rfc3339(self._clock.now()),
            reason=reason,
            message=message[:32_000],
            observedGeneration=generation,
        )
        patch = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": status_patch(
                Writer.SERVER,
                _replacing(self._before(obj), ours) | {"observedGeneration": generation},
                standing,
                conditions,
            ),
        }
        await self._api.patch(MAPJOBS, meta["name"], patch, meta["namespace"], subresource="status")
        if ours:
            self._told[meta["uid"]] = (self._clock.monotonic(), ours)

    async def _ticks(self) -> None:
        failing = ""
        while True:
            try:
                await self.tick()
                failing = ""
            except (MoorageError, OSError) as error:
                if str(error) != failing:
                    log.warning("the status of maps cannot be written", extra={"error": str(error)})
                failing = str(error)
            await self._clock.sleep(TICK_SECONDS)

    async def _wait_for_kind(self) -> None:
        while True:
            try:
                await self._api.list(MAPJOBS, limit=1)
                return
            except NotFound:
                pass  # the CRD is not there yet
            except (ApiError, OSError) as error:
                log.warning("cannot read MapJobs", extra={"error": str(error)})
            await self._clock.sleep(KIND_SECONDS)

    def _changed(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            self._told.pop(before["metadata"]["uid"], None)
        elif after is not None:
            self.loop.queue.add(key_of(after))


def policy_of(spec: MapJobSpec) -> Policy:
    """The queue's policy; fields that the MapJob does not set have the queue's defaults."""
    given = {name: value for name, value in msgspec.structs.asdict(spec.policy).items() if value is not None}
    return Policy(**given, limits={name: limit.tokens for name, limit in spec.limits.items()})


def at_once_of(map_: leasing.Map, limits: list[Limit]) -> int | None:
    """About how many items the named limits and the rate let run at the same time; None if they set no limit."""
    most: list[int] = []
    capacities = {limit.name: limit.capacity for limit in limits}
    for name, tokens in map_.policy.limits.items():
        most.append(capacities.get(name, 0) // max(1, tokens))
    mean = leasing.mean_ms(map_.counts)
    if map_.policy.rate is not None and mean is not None:
        most.append(1 + math.ceil(RATE_MARGIN * map_.policy.rate * mean / 1000))
    return min(most, default=None)


def _accepted(obj: Mapping[str, Any]) -> str:
    return str((condition(obj, ACCEPTED) or {}).get("status") or "")


def _replacing(before: Obj, ours: Obj) -> Obj:
    """A merge patch that also removes keys which the new value does not have."""
    patch: Obj = {}
    for key, value in ours.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            patch[key] = dict.fromkeys(old.keys() - value.keys()) | value
        else:
            patch[key] = value
    return patch
