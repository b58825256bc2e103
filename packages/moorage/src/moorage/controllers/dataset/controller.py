"""The controller of Datasets: the reads and writes around `plan`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, assert_never

import msgspec

from moorage.controllers.base import Controller, Shared
from moorage.controllers.dataset.filler import Runtime, find_runtime, pod_beside, result_of, why_waiting
from moorage.controllers.dataset.objects import (
    attempt_seen,
    claim_seen,
    is_bound,
    is_reader_claim,
    is_reader_object,
    make_claim,
    make_clone,
    make_job,
    make_reader_claim,
    make_reader_volume,
    shareable,
)
from moorage.controllers.dataset.plan import (
    Action,
    AttemptSeen,
    DropJob,
    MakeClaim,
    MakeClone,
    MakeJob,
    NewStatus,
    Plan,
    ReaderSeen,
    Seen,
    SetFinalizer,
    ShareWith,
    Unshare,
    plan,
)
from moorage.model.dataset import (
    DATASET_FINALIZER,
    DATASET_LABEL,
    DATASET_OF_LABEL,
    DATASETS,
    FAILED,
    READY,
    USES_LABEL,
    BadDataset,
    DatasetView,
    Use,
    clone_name,
    job_name,
    parse_dataset,
    reader_claim_name,
    reader_volume_name,
    used_datasets,
)
from moorage.model.names import MAP_LABEL, RUN_LABEL
from moorage.model.storageclass import class_named
from moorage.model.tenant import TENANTS
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, MoorageError, NotFound, UsageError
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, key_of, labels_of, with_condition
from moorage_kube.moments import rfc3339
from moorage_kube.resources import JOBS, PODS, PVCS, PVS, STORAGECLASSES, Obj

log = logging.getLogger(__name__)

RESULTS_KEPT = 10_000  # of Jobs that have ended


class DatasetController(Controller):
    """One per operator. Reports progress if `api` can read logs."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "dataset")
        self._runtime: Runtime | None = None
        self._datasets = self._follow(DATASETS)
        by_name = {"dataset": index_by_label(DATASET_LABEL)}
        self._jobs = self._follow(JOBS, label_selector=DATASET_LABEL, indexes=by_name)
        self._pods = self._follow(PODS, label_selector=DATASET_LABEL, indexes=by_name)
        self._claims = self._follow(PVCS, label_selector=DATASET_LABEL, indexes=by_name)
        self._users = self._follow(
            PODS, label_selector=USES_LABEL, indexes={"dataset": _datasets_used}, keep=_keep
        )
        self._runs = self._follow(JOBS, label_selector=USES_LABEL, indexes={"dataset": _datasets_used})
        self._tenants = self._follow(TENANTS)
        self.loop.hear(self._datasets, lambda obj: [key_of(obj)])
        for informer in (self._jobs, self._pods, self._claims):
            self.loop.hear(informer, _dataset_of)
        for informer in (self._users, self._runs):
            self.loop.hear(informer, _used)
        self.loop.hear(self._tenants, lambda _: [key_of(dataset) for dataset in self._datasets.all()])
        self._results: BoundedCache[str, Mapping[str, Any]] = BoundedCache(RESULTS_KEPT)  # by the uid of the Job
        self._refused: dict[tuple[str, str], str] = {}  # by uid and revision
        self._datasets.on_change(self._forget)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one dataset a step closer to being ready; return when to look again."""
        obj = self._datasets.get(key.name, key.namespace)
        if obj is None:
            return None
        try:
            dataset = parse_dataset(obj)
        except BadDataset as error:
            log.warning("a dataset cannot be read", extra={"dataset": str(key), "error": error.message})
            return None
        if dataset.deleting and DATASET_FINALIZER not in dataset.finalizers:
            return None
        seen = await self._observe(dataset)
        decided = plan(seen)
        # the counters are written before the objects that they count
        await self._report(dataset, obj, decided)
        for action in decided.actions:
            await self._act(dataset, obj, action)
        return decided.look_again_in

    # --- reads

    async def _observe(self, dataset_view: DatasetView) -> Seen:
        mine = [
            each
            for each in self._claims.by_index("dataset", dataset_view.name)
            if _in(each, dataset_view.namespace)
        ]
        names = {each["metadata"]["name"]: each for each in mine}
        claim = names.get(dataset_view.claim) or await self._unlabelled(dataset_view.claim, dataset_view.namespace)
        readers, strangers = self._readers(dataset_view)
        volume = await self._volume_of(claim) if readers and dataset_view.status.phase == READY else None
        runtime = await self._runtime_now() if dataset_view.status.phase != READY else Runtime("unused")
        return Seen(
            dataset=dataset_view,
            now=self._clock.now(),
            claim=claim_seen(claim, dataset_view),
            clone=claim_seen(names.get(clone_name(dataset_view.name)), dataset_view),
            storage=None if dataset_view.status.phase == READY else await self._class(dataset_view, claim),
            attempts=await self._attempts(dataset_view),
            readers=readers,
            strangers=strangers,
            shareable=shareable(volume) if readers and dataset_view.status.phase == READY else "",
            uses=self._uses(dataset_view, readers),
            image=bool(runtime.image),
            refused=self._refused.pop((dataset_view.uid, dataset_view.revision), ""),
        )

    async def _runtime_now(self) -> Runtime:
        if self._runtime is None or not self._runtime.image:
            self._runtime = await find_runtime(self._api)
        return self._runtime

    async def _unlabelled(self, name: str, namespace: str) -> Obj | None:
        """A claim that the informer does not have: it was just created, or it is not ours."""
        try:
            return await self._api.get(PVCS, name, namespace)
        except NotFound:
            return None

    async def _class(self, dataset_view: DatasetView, claim: Obj | None) -> Any:
        classes = (await self._api.list(STORAGECLASSES)).items
        name = dataset_view.spec.storage_class or ((claim or {}).get("spec") or {}).get("storageClassName") or ""
        return class_named(name, classes)

    async def _volume_of(self, claim: Obj | None) -> Obj | None:
        name = ((claim or {}).get("spec") or {}).get("volumeName")
        if not name:
            return None
        try:
            return await self._api.get(PVS, name)
        except NotFound:
            return None

    async def _attempts(self, dataset_view: DatasetView) -> list[AttemptSeen]:
        attempts = []
        pods = [
            each for each in self._pods.by_index("dataset", dataset_view.name) if _in(each, dataset_view.namespace)
        ]
        for job in self._jobs.by_index("dataset", dataset_view.name):
            if not _in(job, dataset_view.namespace):
                continue
            uid = job["metadata"]["uid"]
            pod = next((each for each in pods if _owner_uid(each) == uid), None)
            result = self._results.get(uid) or await result_of(self._api, pod)
            attempt = attempt_seen(job, dataset_view, result, why_waiting(pod) if pod else "")
            if result is not None and not attempt.active:
                self._results.put(uid, result)
            attempts.append(attempt)
        newest = dataset_view.status.attempts
        if newest and all(attempt.number != newest for attempt in attempts):
            # it may be made and not yet heard of: two fillers must not meet on one volume
            with contextlib.suppress(NotFound):
                job = await self._api.get(JOBS, job_name(dataset_view.name, newest), dataset_view.namespace)
                attempts.append(attempt_seen(job, dataset_view, None, ""))
        return sorted(attempts, key=lambda attempt: attempt.number)

    def _readers(self, dataset_view: DatasetView) -> tuple[list[ReaderSeen], list[tuple[str, str]]]:
        spaces = {
            str(each["metadata"]["name"]): str((each.get("spec") or {}).get("namespace") or "")
            for each in self._tenants.all()
        }
        name = reader_claim_name(dataset_view.namespace, dataset_view.name)
        theirs = {
            str(each["metadata"]["namespace"]): each
            for each in self._claims.by_index("dataset", dataset_view.name)
            if is_reader_claim(each, dataset_view)
        }
        readers = []
        for tenant in dataset_view.spec.readers:
            space = spaces.get(tenant, "")
            claim = theirs.get(space)
            phase = str(((claim or {}).get("status") or {}).get("phase") or "Pending") if claim is not None else ""
            readers.append(
                ReaderSeen(
                    tenant=tenant, namespace=space, claim=name, claim_phase=phase, has_volume=claim is not None
                )
            )
        wanted = {each.namespace for each in readers} - {dataset_view.namespace}
        if dataset_view.deleting:
            return [], [(space, name) for space in sorted(set(theirs))]
        return readers, [(space, name) for space in sorted(set(theirs) - wanted)]

    def _uses(self, dataset_view: DatasetView, readers: Iterable[ReaderSeen]) -> list[Use]:
        """The work that mounts the dataset, only in namespaces that can read it, because any user can set the
        labels.
        """
        readable_in = {dataset_view.namespace, *(each.namespace for each in readers)} | {
            each["metadata"]["namespace"]
            for each in self._claims.by_index("dataset", dataset_view.name)
            if is_bound(each) and is_reader_claim(each, dataset_view)
        }
        uses: dict[tuple[str, str], Use] = {}
        for obj in (
            *self._runs.by_index("dataset", dataset_view.full_name),
            *self._users.by_index("dataset", dataset_view.full_name),
        ):
            meta, status = obj["metadata"], obj.get("status") or {}
            if meta["namespace"] not in readable_in:
                continue
            name = labels_of(obj).get(RUN_LABEL) or labels_of(obj).get(MAP_LABEL) or meta["name"]
            is_pod = "phase" in status
            active = is_pod and status["phase"] not in ("Succeeded", "Failed")
            before = uses.get((meta["namespace"], name))
            uses[meta["namespace"], name] = Use(
                namespace=meta["namespace"],
                name=name,
                active=active or (before is not None and before.active),
                since=min(
                    filter(None, (meta.get("creationTimestamp"), before.since if before else None)), default=""
                ),
            )
        return list(uses.values())

    # --- writes

    async def _act(self, dataset_view: DatasetView, obj: Obj, action: Action) -> None:
        match action:
            case MakeClaim(mode):
                await self._make(dataset_view, PVCS, make_claim(dataset_view, obj, mode))
            case MakeClone():
                claim = await self._api.get(PVCS, dataset_view.claim, dataset_view.namespace)
                await self._make(dataset_view, PVCS, make_clone(dataset_view, obj, claim))
            case MakeJob(number):
                await self._start(dataset_view, obj, number)
            case DropJob(attempt):
                with contextlib.suppress(NotFound):
                    await self._api.delete(
                        JOBS, attempt.name, dataset_view.namespace, uid=attempt.uid, propagation="Background"
                    )
            case ShareWith(reader):
                await self._share(dataset_view, reader.namespace)
            case Unshare(namespace, claim):
                await self._unshare(dataset_view, namespace, claim)
            case SetFinalizer(present):
                await self._set_finalizer(obj, present=present)
            case _:
                assert_never(action)

    async def _make(self, dataset_view: DatasetView, resource: Any, wanted: Obj) -> None:
        try:
            await self._api.create(resource, wanted, dataset_view.namespace)
        except AlreadyExists:
            return
        except (Invalid, BadRequest, Forbidden) as error:
            self._refuse(dataset_view, error)

    def _refuse(self, dataset_view: DatasetView, error: MoorageError) -> None:
        self._refused[dataset_view.uid, dataset_view.revision] = error.message
        self.loop.queue.add(Key(dataset_view.namespace, dataset_view.name))

    async def _start(self, dataset_view: DatasetView, obj: Obj, number: int) -> None:
        beside = None
        pods = None
        for claim in filter(
            None, (dataset_view.claim, dataset_view.volume_source[0] if dataset_view.volume_source else "")
        ):
            claim_object = await self._unlabelled(claim, dataset_view.namespace)
            if claim_object is not None and claim != dataset_view.claim:
                pods = pods if pods is not None else (await self._api.list(PODS, dataset_view.namespace)).items
                try:
                    beside = pod_beside(claim_object, pods)
                except UsageError as error:
                    self._refuse(dataset_view, error)
                    return
        runtime = await self._runtime_now()
        job = make_job(dataset_view, obj, runtime, number=number, revision=dataset_view.revision, beside=beside)
        await self._make(dataset_view, JOBS, job)
        log.info("began to fill a dataset", extra={"dataset": dataset_view.full_name, "attempt": number})

    async def _share(self, dataset_view: DatasetView, reader: str) -> None:
        claim = await self._api.get(PVCS, dataset_view.status.claim or dataset_view.claim, dataset_view.namespace)
        volume = await self._volume_of(claim)
        if volume is None:
            return
        wanted = make_reader_volume(dataset_view, reader, volume)
        try:
            await self._api.create(PVS, wanted)
        except AlreadyExists:
            existing_volume = await self._api.get(PVS, wanted["metadata"]["name"])
            ref = (existing_volume.get("spec") or {}).get("claimRef") or {}
            gone = (existing_volume.get("status") or {}).get("phase") == "Released"
            # the reference names a claim before this one
            if is_reader_object(existing_volume, dataset_view) and gone and ref.get("uid"):
                await self._api.patch(
                    PVS, wanted["metadata"]["name"], {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}
                )
        with contextlib.suppress(AlreadyExists):
            await self._api.create(PVCS, make_reader_claim(dataset_view, reader, volume), reader)

    async def _unshare(self, dataset_view: DatasetView, namespace: str, claim: str) -> None:
        with contextlib.suppress(NotFound):
            claim_object = await self._api.get(PVCS, claim, namespace)
            if is_reader_object(claim_object, dataset_view):
                await self._api.delete(PVCS, claim, namespace, uid=claim_object["metadata"]["uid"])
        name = reader_volume_name(dataset_view.namespace, dataset_view.name, namespace)
        with contextlib.suppress(NotFound):
            volume = await self._api.get(PVS, name)
            if is_reader_object(volume, dataset_view):
                await self._api.delete(PVS, name, uid=volume["metadata"]["uid"])

    async def _set_finalizer(self, obj: Obj, *, present: bool) -> None:
        meta = obj["metadata"]
        others = [each for each in meta.get("finalizers") or () if each != DATASET_FINALIZER]
        patch = {
            "metadata": {
                "resourceVersion": meta["resourceVersion"],
                "finalizers": [*others, *([DATASET_FINALIZER] if present else [])],
            }
        }
        with contextlib.suppress(NotFound):
            await self._api.patch(DATASETS, meta["name"], patch, meta["namespace"])

    async def _report(self, dataset_view: DatasetView, obj: Obj, decided: Plan) -> None:
        """Write the status if it changed."""
        if dataset_view.deleting:
            return
        # set the conditions of the plan; remove those that do not apply any more
        before = obj.get("status") or {}
        conditions = before.get("conditions") or []
        for kind, word in (("Ready", decided.ready), ("Shared", decided.shared)):
            if word is not None:
                conditions = with_condition(
                    conditions,
                    kind,
                    "True" if word.status else "False",
                    now=rfc3339(self._clock.now()),
                    reason=word.reason,
                    message=word.message,
                    observedGeneration=dataset_view.generation,
                )
            else:
                conditions = [each for each in conditions if each.get("type") != kind]
        # write only a changed status
        shown = _status(decided.status, before)
        status = shown | {"conditions": conditions, "observedGeneration": dataset_view.generation}
        if status == before:
            return
        # a merge patch removes only fields that are set to null
        patch = {key: None for key in before if key not in status} | status
        if "progress" in status:  # a merge patch does not remove fields that it leaves out
            patch["progress"] = {key: None for key in before.get("progress") or {}} | status["progress"]
        with contextlib.suppress(NotFound):
            await self._api.patch(
                DATASETS,
                dataset_view.name,
                {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "status": patch},
                dataset_view.namespace,
                subresource="status",
            )
        # an event only for a final phase: progress changes too often
        if decided.status.phase != dataset_view.status.phase and decided.status.phase in (READY, FAILED):
            about = {"apiVersion": DATASETS.api_version, "kind": DATASETS.kind} | obj
            await self._events.record(
                about,
                "Normal" if decided.status.phase == READY else "Warning",
                decided.ready.reason,
                decided.ready.message,
            )
            extra = {
                "dataset": dataset_view.full_name,
                "phase": decided.status.phase,
                "reason": decided.ready.reason,
            }
            log.info("a dataset has come to an end", extra=extra)

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            uid = before["metadata"]["uid"]
            for key in [key for key in self._refused if key[0] == uid]:
                del self._refused[key]


def _status(new: NewStatus, before: Mapping[str, Any]) -> Obj:
    status: Obj = {
        "phase": new.phase,
        "claim": new.claim,
        "access": new.access,
        "files": new.files,
        "bytes": new.bytes,
        "checksum": new.checksum,
        "sourceVersion": new.source_version,
        "filledAt": before.get("filledAt") or "",
        "revision": new.revision,
        "attempts": new.attempts,
        "stalled": new.stalled,
        "mark": new.mark,
        "progress": msgspec.to_builtins(new.progress) if new.progress is not None else None,
        "readers": [msgspec.to_builtins(reader) for reader in new.readers],
        "usedBy": [msgspec.to_builtins(use) for use in new.used_by],
    }
    if new.filled_at is not None and new.phase == READY:
        status["filledAt"] = rfc3339(new.filled_at)
    return {key: value for key, value in status.items() if value not in ("", None, [])}


def _keep(pod: Obj) -> Obj:
    """The fields needed of a pod that reads a dataset; there may be thousands."""
    meta = pod["metadata"]
    wanted = ("name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp")
    kept = {key: meta[key] for key in wanted if key in meta}
    return {"metadata": kept, "status": {"phase": (pod.get("status") or {}).get("phase") or "Pending"}}


def _in(obj: Mapping[str, Any], namespace: str) -> bool:
    return bool(obj["metadata"].get("namespace") == namespace)


def _owner_uid(pod: Mapping[str, Any]) -> str:
    return next(
        (str(ref["uid"]) for ref in pod["metadata"].get("ownerReferences") or () if ref.get("controller")), ""
    )


def _dataset_of(obj: Obj) -> Iterable[Key]:
    labels = labels_of(obj)
    name = labels.get(DATASET_LABEL)
    space = labels.get(DATASET_OF_LABEL) or obj["metadata"].get("namespace") or ""
    return (Key(space, name),) if name else ()


def _used(obj: Obj) -> Iterable[Key]:
    return [Key(namespace, name) for name, namespace in used_datasets(labels_of(obj)).items()]


def _datasets_used(obj: Obj) -> Iterable[str]:
    return [f"{namespace}/{name}" for name, namespace in used_datasets(labels_of(obj)).items()]
