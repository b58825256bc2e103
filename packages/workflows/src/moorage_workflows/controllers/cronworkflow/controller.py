"""The controller of CronWorkflows: the reads and writes around `plan`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from moorage.cluster.argo import argo_controller
from moorage.controllers.base import Controller, Shared
from moorage.model.argo import (
    COMPLETED_LABEL,
    CRON_WORKFLOWS,
    INSTANCE_LABEL,
    OUR_INSTANCE,
    WORKFLOWS,
    is_free,
    is_ours,
)
from moorage.model.names import (
    CRON_BACKFILL_ANNOTATION,
    CRON_BACKFILL_LABEL,
    CRON_FINALIZER,
    CRON_STATE_ANNOTATION,
)
from moorage_kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from moorage_kube.meta import Key, key_of
from moorage_kube.moments import moment
from moorage_kube.resources import Obj
from moorage_workflows.controllers.cronworkflow.plan import (
    Drop,
    Record,
    Release,
    RunSeen,
    Save,
    Seen,
    Start,
    Tell,
    Terminate,
    plan,
    status_of,
)
from moorage_workflows.model.cronworkflow import (
    SCHEDULE_ANNOTATION,
    cron_of,
    is_completed,
    is_run_of,
    make_run,
    parse_cron,
    slot_of,
)

log = logging.getLogger(__name__)

ARGO_SECONDS = 30.0  # how long an answer to "does Argo's controller run?" counts


class CronWorkflowController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "cronworkflow", by_namespace=True)
        self._evaluation = shared.evaluation
        self._crons = self._follow(CRON_WORKFLOWS)
        self._runs = self._follow(WORKFLOWS, indexes={"cron": cron_names})
        self.loop.hear(self._crons, lambda obj: [key_of(obj)])
        self.loop.hear(self._runs, _cron_key)
        self._made: dict[Key, Obj] = {}  # created here, not yet seen by the informer
        self._runs.on_change(self._forget_made)
        self._refused: dict[Key, str] = {}  # why the API would not have a Workflow, by its key
        self._argo: tuple[float, bool] | None = None  # (when it was asked, whether Argo's controller runs)

    def _forget_made(self, before: Obj | None, after: Obj | None) -> None:
        obj = after or before
        if obj is not None:
            self._made.pop(key_of(obj), None)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Start due runs and count ended ones; return when to look again."""
        obj = self._crons.get(key.name, key.namespace)
        if obj is None:
            await self._let_go(key)
            return None
        if is_free(obj):
            if await self._has_argo():
                return timedelta(seconds=ARGO_SECONDS)
            obj = await self._adopt(obj)
        if not is_ours(obj):
            return None
        decided = await self._evaluation.think(key.namespace, f"CronWorkflow {key}", plan, self._observe(obj))
        for action in decided.actions:
            obj = await self._act(obj, action)
        if any(isinstance(action, Start) for action in decided.actions):
            self.loop.queue.add(key)  # record it after all other actions: a thousand slots start first
        return decided.look_again_in

    async def _has_argo(self) -> bool:
        now = self._clock.monotonic()
        if self._argo is None or now - self._argo[0] >= ARGO_SECONDS:
            self._argo = now, await argo_controller(self._api, self._clock.now()) is not None
        return self._argo[1]

    async def _adopt(self, obj: Obj) -> Obj:
        """Set our label before any other action: from then on Argo's controller ignores the object."""
        key = key_of(obj)
        version = obj["metadata"]["resourceVersion"]
        labels = {INSTANCE_LABEL: OUR_INSTANCE}
        log.info("adopted a cron workflow", extra={"cronWorkflow": str(key)})
        return await self._api.patch(
            CRON_WORKFLOWS,
            key.name,
            {"metadata": {"resourceVersion": version, "labels": labels}},
            key.namespace,
        )

    def _observe(self, obj: Obj) -> Seen:
        key, uid = key_of(obj), obj["metadata"]["uid"]
        runs = {
            run["metadata"]["name"]: run for run in self._runs.by_index("cron", str(key)) if is_run_of(run, uid)
        }
        for made, run in self._made.items():
            if made.namespace == key.namespace and is_run_of(run, uid):
                runs.setdefault(made.name, run)
        return Seen(
            cron=parse_cron(obj),
            document=obj,
            now=self._clock.now(),
            runs=[run_seen(run) for run in runs.values()],
            refused={
                refused.name: why for refused, why in self._refused.items() if refused.namespace == key.namespace
            },
        )

    async def _act(self, obj: Obj, action: Save | Tell | Terminate | Start | Release | Drop) -> Obj:
        """Carry out one action. Returns the CronWorkflow after it."""
        namespace = obj["metadata"].get("namespace") or ""
        match action:
            case Save(record):
                return await self._save(obj, record)
            case Tell(is_warning, reason, message):
                about = {"apiVersion": CRON_WORKFLOWS.api_version, "kind": CRON_WORKFLOWS.kind} | obj
                await self._events.record(about, "Warning" if is_warning else "Normal", reason, message)
            case Terminate(run):
                key = Key(namespace, run.name)
                with contextlib.suppress(NotFound):
                    ending = await self._api.patch(
                        WORKFLOWS, run.name, {"spec": {"shutdown": "Terminate"}}, namespace
                    )
                    if key in self._made:
                        self._made[key] = ending
            case Start(slot, backfill):
                await self._start(obj, slot, backfill)
            case Release(run):
                await self._release(Key(namespace, run.name))
            case Drop(run):
                with contextlib.suppress(NotFound, Conflict):
                    await self._api.delete(WORKFLOWS, run.name, namespace, uid=run.uid, propagation="Background")
            case _:
                assert_never(action)
        return obj

    async def _save(self, obj: Obj, record: Record) -> Obj:
        """Write state and status. Raises Conflict if the object changed after `obj` was read."""
        key = key_of(obj)
        annotations: dict[str, str | None] = {
            CRON_STATE_ANNOTATION: msgspec.json.encode(record.state).decode(),
            SCHEDULE_ANNOTATION: record.schedule_used or None,
        }
        if not record.has_backfill:
            annotations[CRON_BACKFILL_ANNOTATION] = None
        status = status_of(record, key.namespace, WORKFLOWS.api_version, WORKFLOWS.kind)
        meta: Obj = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": annotations}
        if record.is_stopped:
            meta["labels"] = {COMPLETED_LABEL: "true"}
        saved = await self._api.patch(
            CRON_WORKFLOWS, key.name, {"metadata": meta, "status": status}, key.namespace
        )
        written = saved.get("status") or {}
        if any(written.get(field) != value for field, value in status.items()):  # status is a subresource there
            saved = await self._api.patch(
                CRON_WORKFLOWS, key.name, {"status": status}, key.namespace, subresource="status"
            )
        self._forget_refusals(key, {run_name_of(key.name, pending.slot) for pending in record.state.pending})
        return saved

    def _forget_refusals(self, key: Key, pending: set[str]) -> None:
        for refused in [each for each in self._refused if each.namespace == key.namespace]:
            if refused.name.rpartition("-")[0] == key.name and refused.name not in pending:
                del self._refused[refused]

    async def _start(self, obj: Obj, slot: datetime, backfill: str) -> None:
        run = make_run(obj, slot=slot, backfill=backfill, finalizers=(CRON_FINALIZER,))
        key = key_of(run)
        self._made[key] = run  # until the informer hears of it, which may be before the answer is here
        made: Obj | None = None
        try:
            made = await self._api.create(WORKFLOWS, run, key.namespace)
        except AlreadyExists:
            existing = await self._api.get(WORKFLOWS, key.name, key.namespace)
            if is_run_of(existing, obj["metadata"]["uid"]):
                made = existing
            else:
                self._refused[key] = "another Workflow has this name: delete it or rename it"
        except (Invalid, BadRequest, Forbidden) as error:
            self._refused[key] = error.message
        else:
            late = (self._clock.now() - slot).total_seconds()
            log.info("started a slot of a cron workflow", extra={"workflow": str(key), "lateSeconds": late})
        finally:
            if made is None:
                self._made.pop(key, None)
            elif key in self._made:
                self._made[key] = made

    async def _release(self, key: Key) -> None:
        """Remove our finalizer; others stay."""
        run = self._made.get(key) or self._runs.get(key.name, key.namespace)
        if run is None:
            return
        meta = run["metadata"]
        kept = [finalizer for finalizer in meta.get("finalizers") or () if finalizer != CRON_FINALIZER]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": kept}}
        with contextlib.suppress(NotFound):
            released = await self._api.patch(WORKFLOWS, key.name, patch, key.namespace)
            if key in self._made:
                self._made[key] = released

    async def _let_go(self, key: Key) -> None:
        """Remove our finalizers from the Workflows of a deleted CronWorkflow."""
        for run in self._runs.by_index("cron", str(key)):
            if CRON_FINALIZER in (run["metadata"].get("finalizers") or ()):
                await self._release(key_of(run))
        for made in [made for made, run in self._made.items() if Key(made.namespace, cron_of(run)) == key]:
            await self._release(made)
            self._made.pop(made, None)


def run_name_of(cron: str, slot: int) -> str:
    """Return the name of a slot's Workflow. `slot`: Unix seconds."""
    return f"{cron}-{slot}"


def run_seen(run: Mapping[str, Any]) -> RunSeen:
    """The fields of one Workflow that the plan needs."""
    meta, status = run["metadata"], run.get("status") or {}
    started, finished = moment(status.get("startedAt")), moment(status.get("finishedAt"))
    return RunSeen(
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        created=_moment(meta.get("creationTimestamp")),
        phase=str(status.get("phase") or ""),
        is_completed=is_completed(run),
        finished=finished,
        seconds=int((finished - started).total_seconds()) if started and finished else None,
        slot=slot_of(run),
        backfill=(meta.get("labels") or {}).get(CRON_BACKFILL_LABEL, ""),
        is_held=CRON_FINALIZER in (meta.get("finalizers") or ()),
        is_stopping=(run.get("spec") or {}).get("shutdown") == "Terminate",
        is_deleting=bool(meta.get("deletionTimestamp")),
    )


def _moment(text: str | None) -> datetime:
    return moment(text) or datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def cron_names(run: Obj) -> Iterable[str]:
    """Index Workflows by their CronWorkflow."""
    name = cron_of(run)
    return (str(Key(run["metadata"].get("namespace") or "", name)),) if name else ()


def _cron_key(run: Obj) -> Iterable[Key]:
    name = cron_of(run)
    return (Key(run["metadata"].get("namespace") or "", name),) if name else ()
