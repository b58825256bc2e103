"""The controller of VolumeBackups: the reads and writes around `plan`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, assert_never

import msgspec

from moorage.controllers.base import Controller, Shared
from moorage.controllers.dataset.filler import (
    Runtime,
    find_runtime,
    make_pod_spec,
    pod_beside,
    result_of,
    why_waiting,
)
from moorage.controllers.volumebackup.plan import BringBack, Copy, DropJob, JobSeen, Plan, Seen, job_name, plan
from moorage.model.dataset import parse_volume
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL
from moorage.model.tenant import TENANTS, tenant_of
from moorage.model.volumebackup import (
    BACKUP_LABEL,
    BACKUPS,
    FAILED,
    BackupView,
    BadBackup,
    backup_name,
    parse_backup,
)
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, MoorageError, NotFound, UsageError
from moorage_kube.informer import index_by_label
from moorage_kube.meta import (
    Key,
    condition,
    controller_ref,
    is_condition_true,
    key_of,
    labels_of,
    owner_reference,
    with_condition,
)
from moorage_kube.moments import moment, rfc3339
from moorage_kube.resources import JOBS, PODS, PVCS, Obj

log = logging.getLogger(__name__)

ROOT, TARGET = "/volume", "/target"
FINAL_EXIT = 3  # moorage.filler.errors.EXIT_FINAL
TRIES = 3
RESULTS_KEPT = 10_000  # of Jobs that have ended


class VolumeBackupController(Controller):
    """One per operator."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "volumebackup")
        self._runtime: Runtime | None = None
        by_name = {"backup": index_by_label(BACKUP_LABEL)}
        self._backups = self._follow(BACKUPS)
        self._jobs = self._follow(JOBS, label_selector=BACKUP_LABEL, indexes=by_name)
        self._pods = self._follow(PODS, label_selector=BACKUP_LABEL, indexes=by_name)
        self.loop.hear(self._backups, lambda obj: [key_of(obj)])
        for informer in (self._jobs, self._pods):
            self.loop.hear(informer, _backup_of)
        self._results: BoundedCache[str, Mapping[str, Any]] = BoundedCache(RESULTS_KEPT)  # by the uid of the Job
        self._refused: dict[str, str] = {}  # by uid: why the API would not have the last Job
        self._backups.on_change(self._forget)

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            self._refused.pop(before["metadata"]["uid"], None)

    async def reconcile(self, key: Key) -> timedelta | None:
        """Make the backup that is due and report the results; return when to look again."""
        obj = self._backups.get(key.name, key.namespace)
        if obj is None:
            return None
        try:
            backup = parse_backup(obj)
        except BadBackup as error:
            log.warning("a volume backup cannot be read", extra={"backup": str(key), "error": error.message})
            return None
        if backup.deleting:
            return None
        decided = plan(await self._observe(backup))
        await self._report(backup, obj, decided)  # the moment is taken up before its Job is made
        for action in decided.actions:
            match action:
                case Copy() | BringBack():
                    await self._start(backup, obj, action)
                case DropJob(job):
                    with contextlib.suppress(NotFound):
                        await self._api.delete(
                            JOBS, job.name, backup.namespace, uid=job.uid, propagation="Background"
                        )
                case _:
                    assert_never(action)
        return decided.look_again_in

    async def _observe(self, backup_view: BackupView) -> Seen:
        jobs = []
        pods = [
            each for each in self._pods.by_index("backup", backup_view.name) if _in(each, backup_view.namespace)
        ]
        for job in self._jobs.by_index("backup", backup_view.name):
            if not _in(job, backup_view.namespace):
                continue
            uid = job["metadata"]["uid"]
            mine = [each for each in pods if (controller_ref(each) or {}).get("uid") == uid]
            newest = max(mine, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
            result = self._results.get(uid) or await result_of(self._api, newest)
            seen = _job_seen(job, backup_view, result, why_waiting(newest) if newest else "")
            if result is not None and not seen.active:
                self._results.put(uid, result)
            jobs.append(seen)
        able = self._refused.pop(backup_view.uid, "")
        if self._runtime is None or not self._runtime.image:
            self._runtime = await find_runtime(self._api)
        if not self._runtime.image:
            able = "the operator does not know the image that backups run in: set MOORAGE_IMAGE"
        elif backup_view.spec.to.startswith("/"):
            able = await self._folder_refusal(backup_view) or able
        return Seen(
            backup=backup_view,
            now=self._clock.now(),
            jobs=jobs,
            volume=await self._claim(backup_view.spec.volume, backup_view) is not None,
            able=able,
        )

    async def _folder_refusal(self, backup_view: BackupView) -> str:
        """Why a folder of the machine is not allowed.

        Only its owner may use it, no tenant and no node of a cluster.
        """
        assert self._runtime is not None
        if not self._runtime.on_processes:
            return f"{backup_view.spec.to} would be a folder of a node: write to a bucket or to volume:NAME"
        if tenant_of(backup_view.namespace, (await self._api.list(TENANTS)).items) is not None:
            return f"{backup_view.spec.to} is a folder of the machine: tenants must write to volume:NAME"
        return ""

    async def _claim(self, name: str, backup_view: BackupView) -> Obj | None:
        try:
            return await self._api.get(PVCS, name, backup_view.namespace)
        except NotFound:
            return None

    async def _start(self, backup_view: BackupView, obj: Obj, action: Copy | BringBack) -> None:
        assert self._runtime is not None
        # a restore may write to another volume
        volume = backup_view.spec.volume
        if isinstance(action, BringBack):
            assert backup_view.spec.restore is not None
            volume = backup_view.spec.restore.volume
        claims = {ROOT: (volume, isinstance(action, Copy))}
        # the target is a volume, a folder of this machine, or a bucket
        target, host = backup_view.spec.to, ""
        if (there := parse_volume(target)) is not None:
            claims[TARGET] = (there[0], isinstance(action, BringBack))
            target = f"folder:{TARGET}/{there[1]}".rstrip("/")
        elif target.startswith("/"):
            host, target = target, f"folder:{target}"
        # a ReadWriteOnce volume in use: run on the node that mounts it
        beside = None
        pods = (await self._api.list(PODS, backup_view.namespace)).items
        for claim in (claim for claim, _ in claims.values()):
            if (claim_object := await self._claim(claim, backup_view)) is not None:
                try:
                    beside = beside or pod_beside(claim_object, pods)
                except UsageError as error:
                    self._refuse(backup_view, error)
                    return
        # arguments of the process
        if isinstance(action, Copy):
            args = [
                "backup",
                "--root",
                ROOT,
                "--target",
                target,
                "--name",
                backup_name(backup_view.series, action.at),
            ]
            args += ["--series", backup_view.series, "--keep", str(backup_view.spec.keep)]
        else:
            assert backup_view.spec.restore is not None
            args = ["restore", "--root", ROOT, "--target", target, "--name", backup_view.spec.restore.backup]
            args += ["--force"] if backup_view.spec.restore.force else []
        # `$(` would be expanded by the kubelet
        pod = make_pod_spec(
            self._runtime,
            [arg.replace("$(", "$$(") for arg in args],
            claims=claims,
            secret=backup_view.spec.secret,
            google=backup_view.spec.to.startswith("gs://"),
            host_folder=host,
            beside=beside,
        )
        job = _make_job(backup_view, obj, job_name(backup_view, action), pod)
        try:
            await self._api.create(JOBS, job, backup_view.namespace)
        except AlreadyExists:  # an earlier pass made it
            return
        except (Invalid, BadRequest, Forbidden) as error:
            self._refuse(backup_view, error)
            return
        log.info(
            "began a backup or a restore",
            extra={"backup": f"{backup_view.namespace}/{backup_view.name}", "job": job_name(backup_view, action)},
        )

    def _refuse(self, backup_view: BackupView, error: MoorageError) -> None:
        self._refused[backup_view.uid] = error.message
        self.loop.queue.add(Key(backup_view.namespace, backup_view.name))

    async def _report(self, backup_view: BackupView, obj: Obj, decided: Plan) -> None:
        new, before = decided.status, obj.get("status") or {}
        conditions = with_condition(
            before.get("conditions") or [],
            "Ready",
            "False" if new.phase == FAILED else "True",
            now=rfc3339(self._clock.now()),
            reason=new.reason,
            message=new.message,
            observedGeneration=backup_view.generation,
        )
        fields: Obj = {
            "phase": new.phase,
            "lastScheduled": new.last_scheduled,
            "lastSuccess": new.last_success,
            "next": new.next,
            "backups": [msgspec.to_builtins(each) for each in new.backups],
            "restoreId": new.restore_id,
            "restorePhase": new.restore_phase,
            "restoreMessage": new.restore_message,
        }
        status = {key: value for key, value in fields.items() if value not in ("", [])}
        status |= {"conditions": conditions, "observedGeneration": backup_view.generation}
        if status == before:
            return
        patch = {key: None for key in before if key not in status} | status
        with contextlib.suppress(NotFound):
            await self._api.patch(
                BACKUPS,
                backup_view.name,
                {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "status": patch},
                backup_view.namespace,
                subresource="status",
            )
        if new.phase == FAILED and backup_view.status.phase != FAILED:
            about = {"apiVersion": BACKUPS.api_version, "kind": BACKUPS.kind} | obj
            await self._events.record(about, "Warning", new.reason, new.message)


def _make_job(backup_view: BackupView, obj: Obj, name: str, pod: Obj) -> Obj:
    labels = {BACKUP_LABEL: backup_view.name} | (
        {OWNER_LABEL: backup_view.owner_label} if backup_view.owner_label else {}
    )
    annotations = {OWNER_ANNOTATION: backup_view.owner} if backup_view.owner else {}
    typed = {"apiVersion": BACKUPS.api_version, "kind": BACKUPS.kind} | obj
    final = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [FINAL_EXIT]}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": backup_view.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(typed)],
        },
        "spec": {
            "backoffLimit": TRIES,
            "podFailurePolicy": {"rules": [final]},
            "template": {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}, "spec": pod},
        },
    }


def _job_seen(job: Obj, backup_view: BackupView, result: Mapping[str, Any] | None, waiting: str) -> JobSeen:
    succeeded, failed = is_condition_true(job, "Complete"), is_condition_true(job, "Failed")
    over = condition(job, "Complete" if succeeded else "Failed") or {}
    return JobSeen(
        name=job["metadata"]["name"],
        uid=job["metadata"]["uid"],
        created=moment(job["metadata"].get("creationTimestamp")) or backup_view.created,
        ours=(controller_ref(job) or {}).get("uid") == backup_view.uid,
        succeeded=succeeded,
        failed=failed,
        ended=moment(over.get("lastTransitionTime")) if over else None,
        result=result,
        waiting=waiting,
    )


def _in(obj: Mapping[str, Any], namespace: str) -> bool:
    return bool(obj["metadata"].get("namespace") == namespace)


def _backup_of(obj: Obj) -> Iterable[Key]:
    name = labels_of(obj).get(BACKUP_LABEL)
    return (Key(obj["metadata"].get("namespace") or "", name),) if name else ()
