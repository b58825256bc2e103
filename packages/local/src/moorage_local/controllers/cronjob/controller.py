"""Executes the steps that `plan` decides for each CronJob."""

from __future__ import annotations

from datetime import timedelta

from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.controlloop import ControlLoop
from moorage_kube.errors import AlreadyExists, ApiError, Forbidden, NotFound
from moorage_kube.informer import index_by_controller
from moorage_kube.meta import Key, controller_ref, key_of
from moorage_kube.resources import JOBS, Obj
from moorage_local.controllers.base import NOT_YET, Writer
from moorage_local.controllers.catalogue import CRONJOBS
from moorage_local.controllers.events import EventRecorder
from moorage_local.informers import InformerSet


class CronJobController:
    """Keys are CronJobs."""

    def __init__(self, api: Api, informers: InformerSet, events: EventRecorder, clock: Clock) -> None:
        self._api = api
        self._events = events
        self._clock = clock
        self._crons = informers.of(CRONJOBS)
        self._jobs = informers.of(JOBS, controller=index_by_controller)
        self._writer = Writer(api, events, clock)
        self.loop: ControlLoop[Key] = ControlLoop("cronjob", self.reconcile, of=self._crons)
        self._crons.on_change(self._cron_changed)
        self._jobs.on_change(self._job_changed)

    def _cron_changed(self, before: Obj | None, after: Obj | None) -> None:
        self.loop.queue.add(key_of(after or before or {}))

    def _job_changed(self, before: Obj | None, after: Obj | None) -> None:
        for job in (before, after):
            ref = controller_ref(job) if job is not None else None
            if job is not None and ref is not None and ref.get("kind") == "CronJob":
                self.loop.queue.add(Key(job["metadata"]["namespace"], ref["name"]))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one CronJob a step closer to its spec; return the time until the next scheduled moment."""
        if not await self._writer.is_ready(key):
            return NOT_YET
        cron = self._crons.get(key.name, key.namespace)
        if cron is None:
            self._writer.forget(key)
            return None
        # not before it is needed: time zones and cron lines are no part of how every cluster starts
        from moorage_local.controllers.cronjob.plan import Observed, plan, started

        jobs = self._jobs.by_index("controller", cron["metadata"]["uid"])
        decided = plan(Observed(cron=cron, jobs=jobs, now=self._clock.now()))
        about = {"apiVersion": "batch/v1", "kind": "CronJob"} | cron
        status = decided.status
        for job in (*decided.delete, *decided.replace):
            await self._delete(key, about, job)
        if decided.start is not None and decided.scheduled is not None:
            made = await self._make(about, decided.start)
            if made is not None:
                self._writer.fresh.wrote(key, self._jobs, made)
                gone = [job["metadata"]["uid"] for job in decided.replace]
                status = started(status, made, decided.scheduled, gone)
        if status != (cron.get("status") or {}):
            await self._writer.write_status(key, self._crons, cron, status)
        for event in decided.events:
            self._events.event(about, event.type, event.reason, event.message)
        return decided.look_again

    async def _make(self, cron: Obj, job: Obj) -> Obj | None:
        """Create the Job, or return that of an earlier try.

        None if it has another owner, or the namespace is being deleted.
        """
        meta = job["metadata"]
        try:
            made = await self._api.create(JOBS, job)
        except AlreadyExists:
            there = await self._api.get(JOBS, meta["name"], meta["namespace"])
            return there if (controller_ref(there) or {}).get("uid") == cron["metadata"]["uid"] else None
        except Forbidden as error:
            if "being terminated" in error.message:
                return None
            self._events.event(cron, "Warning", "FailedCreate", f"Error creating job: {error.message}")
            raise
        except ApiError as error:
            self._events.event(cron, "Warning", "FailedCreate", f"Error creating job: {error.message}")
            raise
        self._events.event(cron, "Normal", "SuccessfulCreate", f"Created job {meta['name']}")
        return made

    async def _delete(self, key: Key, cron: Obj, job: Obj) -> None:
        meta = job["metadata"]
        try:
            await self._api.delete(
                JOBS, meta["name"], meta["namespace"], uid=meta["uid"], propagation="Background"
            )
        except NotFound:
            return
        self._writer.fresh.deleted(key, self._jobs, job)
        self._events.event(cron, "Normal", "SuccessfulDelete", f"Deleted job {meta['name']}")
