"""Decide when to copy a volume, and read the results. Pure.

A backup is named by the time when it was due, so each time makes one backup, however often it is planned. Of
the times missed while no operator ran, only the last is made up for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from moorage.model.schedule import last_moment, next_moment
from moorage.model.volumebackup import FAILED, IDLE, RUNNING, BackupView, StoredBackup, backup_job, restore_job
from moorage_kube.moments import moment, rfc3339
from moorage_kube.quantity import counted

LOOK_SECONDS = 3.0
JOBS_KEPT = 3  # of those that ended, for their logs


class JobSeen(Struct, frozen=True, kw_only=True):
    """One Job of the backup. `result`: the last result that its process wrote."""

    name: str
    uid: str
    created: datetime
    ours: bool = True
    succeeded: bool = False
    failed: bool = False
    ended: datetime | None = None
    result: Mapping[str, Any] | None = None
    waiting: str = ""

    @property
    def active(self) -> bool:
        return not (self.succeeded or self.failed)


class Seen(Struct, frozen=True, kw_only=True):
    backup: BackupView
    now: datetime
    jobs: Sequence[JobSeen] = ()
    volume: bool = True  # whether the claim is there
    able: str = ""  # why Jobs cannot run on this cluster; empty: they can


class Copy(Struct, frozen=True):
    """Create the backup that was due at this time."""

    at: datetime


class BringBack(Struct, frozen=True):
    pass


class DropJob(Struct, frozen=True):
    job: JobSeen


Action = Copy | BringBack | DropJob


class NewStatus(Struct, frozen=True, kw_only=True):
    """The new status."""

    phase: str
    reason: str
    message: str = ""
    last_scheduled: str = ""
    last_success: str = ""
    next: str = ""
    backups: tuple[StoredBackup, ...] = ()
    restore_id: str = ""
    restore_phase: str = ""
    restore_message: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    status: NewStatus
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


def due(seen: Seen) -> tuple[datetime | None, datetime | None]:
    """(the due time that was not handled yet, the next due time)."""
    backup = seen.backup
    last = moment(backup.status.last_scheduled)
    if not backup.spec.schedule:
        return (backup.created if last is None else None), None
    after = seen.now.replace(microsecond=0)
    since = last if last is not None else backup.created
    return last_moment(backup.spec.schedule, after, since), next_moment(backup.spec.schedule, after)


def plan(seen: Seen) -> Plan:
    """The next steps. Safe to stop after any of them."""
    backup, status = seen.backup, seen.backup.status
    if backup.faults:
        fault = backup.faults[0]
        message = f"{fault.field}: {fault.value!r} {fault.message}"
        return Plan(status=_new_status(seen, FAILED, "Invalid", message))
    # Jobs of the backup by kind, and their results
    jobs = sorted((job for job in seen.jobs if job.ours), key=lambda job: job.created)
    copies = [job for job in jobs if job.name.startswith("backup-")]
    restores = [job for job in jobs if job.name.startswith("restore-")]
    backups, success = _backups(status.backups, copies)
    restore, actions = _restoring(seen, restores)
    active = next((job for job in copies if job.active), None)
    # one Job at a time: a due backup waits for the end of the last one
    at, coming = due(seen)
    busy = active is not None or restore[1] == RUNNING
    taken = status.last_scheduled
    if at is not None and not busy and not backup.spec.suspend and not seen.able and seen.volume:
        actions.append(Copy(at))
        taken = rfc3339(at)
    # some ended Jobs remain, for their logs
    ended = [job for job in jobs if not job.active]
    actions += [DropJob(job) for job in ended[:-JOBS_KEPT]]
    # the due time is recorded in the same pass, so that it is used once
    phase, reason, message = _state(seen, copies, active)
    new_status = _new_status(
        seen,
        phase,
        reason,
        message,
        last_scheduled=taken,
        last_success=success or status.last_success,
        next="" if coming is None or backup.spec.suspend else rfc3339(coming),
        backups=backups,
        restore=restore,
    )
    # look again for the progress of a Job, at the next due time, or for the volume
    waits = [LOOK_SECONDS] if busy or any(isinstance(action, (Copy, BringBack)) for action in actions) else []
    if coming is not None and not backup.spec.suspend:
        waits.append(max(1.0, (coming - seen.now).total_seconds()))
    if seen.able or not seen.volume:
        waits.append(30.0)
    again = timedelta(seconds=min(waits)) if waits else None
    return Plan(status=new_status, actions=tuple(actions), look_again_in=again)


def _state(seen: Seen, copies: Sequence[JobSeen], active: JobSeen | None) -> tuple[str, str, str]:
    if not seen.volume:
        return FAILED, "NoVolume", f"there is no volume {seen.backup.spec.volume!r} in this namespace"
    if seen.able:
        return FAILED, "CannotRun", seen.able
    if active is not None:
        return RUNNING, "Running", active.waiting
    last = copies[-1] if copies else None
    if last is not None and not (last.succeeded and _is_done(last)):
        result = last.result or {}
        message = str(result.get("message") or "its process was killed, or its node was lost")
        return FAILED, str(result.get("reason") or "BackupFailed"), message
    return IDLE, "Suspended" if seen.backup.spec.suspend else "Waiting", ""


def _backups(known: Sequence[StoredBackup], copies: Sequence[JobSeen]) -> tuple[tuple[StoredBackup, ...], str]:
    """The complete backups, as the last successful Job listed them, and the time of that list."""
    by_name, success, kept = {copy.name: copy for copy in known}, "", None
    for job in copies:
        if not (job.succeeded and _is_done(job)) or job.result is None:
            continue
        result = job.result
        ended = rfc3339(job.ended) if job.ended is not None else ""
        by_name[str(result["name"])] = StoredBackup(
            name=str(result["name"]),
            at=ended,
            files=_number(result.get("files")),
            bytes=_number(result.get("bytes")),
            sha256=str(result.get("sha256") or ""),
            changed=_number(result.get("changed")),
        )
        success, kept = ended, {str(name) for name in result["kept"]}
    names = sorted(by_name) if kept is None else sorted(set(by_name) & kept)
    return tuple(by_name[name] for name in names), success


def _is_done(job: JobSeen) -> bool:
    result = job.result or {}
    return result.get("phase") == "ready" and bool(result.get("name")) and isinstance(result.get("kept"), list)


def _restoring(seen: Seen, restores: Sequence[JobSeen]) -> tuple[tuple[str, str, str], list[Action]]:
    """(id, phase, message) of the requested restore, and its next steps."""
    backup, status = seen.backup, seen.backup.status
    wish = backup.spec.restore
    if wish is None:
        return (status.restore_id, status.restore_phase, status.restore_message), []
    if status.restore_id == wish.id and status.restore_phase in ("Done", FAILED):
        return (wish.id, status.restore_phase, status.restore_message), []
    job = next((each for each in restores if each.name == restore_job(backup.name, wish.id)), None)
    if job is None:
        if seen.able:
            return (wish.id, FAILED, seen.able), []
        return (wish.id, RUNNING, ""), [BringBack()]
    if job.active:
        return (wish.id, RUNNING, job.waiting), []
    result = job.result or {}
    if job.succeeded:
        return (wish.id, "Done", f"{counted(_number(result.get('files')), 'file')} of {wish.backup}"), []
    return (wish.id, FAILED, str(result.get("message") or "its process was killed, or its node was lost")), []


def _new_status(
    seen: Seen,
    phase: str,
    reason: str,
    message: str = "",
    *,
    last_scheduled: str | None = None,
    last_success: str | None = None,
    next: str = "",
    backups: Sequence[StoredBackup] | None = None,
    restore: tuple[str, str, str] | None = None,
) -> NewStatus:
    status = seen.backup.status
    id_, how, why = restore or (status.restore_id, status.restore_phase, status.restore_message)
    return NewStatus(
        phase=phase,
        reason=reason,
        message=message[:1000],
        last_scheduled=status.last_scheduled if last_scheduled is None else last_scheduled,
        last_success=status.last_success if last_success is None else last_success,
        next=next,
        backups=tuple(status.backups if backups is None else backups),
        restore_id=id_,
        restore_phase=how,
        restore_message=why[:1000],
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def job_name(backup_view: BackupView, action: Copy | BringBack) -> str:
    """The name of the Job of an action. It is computed, so the Job is created only once."""
    if isinstance(action, Copy):
        return backup_job(backup_view.name, action.at)
    assert backup_view.spec.restore is not None
    return restore_job(backup_view.name, backup_view.spec.restore.id)
