"""Backups of volumes: create them once or on a schedule, list them, restore them."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Struct

from moorage.actions.objects import Kind, get_object, refuse
from moorage.actions.volumes import VOLUME
from moorage.api.errors import ErrorCode
from moorage.model.volumebackup import BACKUPS, FAILED, NAME_MAX, make_backup, parse_backup
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.errors import AlreadyExists, Conflict, NotFound
from moorage_kube.meta import condition
from moorage_kube.quantity import counted
from moorage_kube.resources import Obj

BACKUP = Kind(BACKUPS, "backup")
LIST = "moor volume backups"  # the command
_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


class NewBackup(Struct, frozen=True, kw_only=True):
    """Backups of a volume.

    `schedule`: cron in UTC, "" for a single backup now; `name`: "" for a name made from the volume's.
    """

    namespace: str
    volume: str
    to: str
    schedule: str = ""
    keep: int = 7
    secret: str = ""
    name: str = ""


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A complete backup; with `backup` empty, a VolumeBackup that has none or that failed last.

    `files`, `bytes` and `changed` are None if there is no backup.
    """

    name: str
    volume: str
    to: str
    schedule: str
    next: str
    backup: str = ""
    files: int | None = None
    bytes: int | None = None
    at: str = ""
    sha256: str | None = None
    changed: int | None = None
    state: str = ""


class Outcome(Struct, frozen=True):
    """The outcome of a backup or restore; `error` is "" after a success."""

    message: str = ""
    error: str = ""


def plan_backup(request: NewBackup, owner: str) -> Obj:
    """Convert a request to a VolumeBackup. Raises InvalidObject."""
    suffix = "" if request.schedule else "-" + "".join(secrets.choice(_ID_LETTERS) for _ in range(4))
    obj = make_backup(
        request.name or request.volume[: NAME_MAX - len(suffix)].rstrip("-") + suffix,
        request.namespace,
        volume=request.volume,
        to=request.to,
        schedule=request.schedule,
        keep=request.keep,
        secret=request.secret,
        user=owner,
    )
    refuse(parse_backup(obj).faults)
    return obj


async def create_backup(api: Api, obj: Obj, *, dry_run: bool = False) -> None:
    """Create a planned VolumeBackup. Raises NotFound if the volume does not exist, and AlreadyExists."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    if not dry_run:
        await get_object(api, VOLUME, namespace, obj["spec"]["volume"])
    try:
        await api.create(BACKUPS, obj, namespace, dry_run=dry_run)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"the name {name!r} is taken: other backups in namespace {namespace} have it",
            hint=f"choose another name, or look at them: {LIST}",
            code=ErrorCode.EXISTS,
            field="name",
        ) from error
    except NotFound as error:
        raise BACKUP.unknown(error) from error


async def backup_outcome(api: Api, namespace: str, name: str) -> Outcome | None:
    """The outcome of the first backup; None while it runs."""
    obj = await api.get(BACKUPS, name, namespace)
    status = obj.get("status") or {}
    if status.get("backups"):
        return Outcome(f"{status['backups'][-1]['name']} is whole")
    if status.get("phase") != FAILED:
        return None
    ready = condition(obj, "Ready") or {}
    return Outcome(error=f"the backup failed: {ready.get('reason')}: {ready.get('message')}")


async def list_backups(api: Api, namespace: str, volume: str | None = None) -> list[Backup]:
    """Complete backups, and VolumeBackups without a backup, of one volume or of all."""
    try:
        objs = (await api.list(BACKUPS, namespace)).items
    except NotFound as error:
        raise BACKUP.unknown(error) from error
    chosen = (obj for obj in objs if volume in (None, (obj.get("spec") or {}).get("volume")))
    return [backup for obj in chosen for backup in backups_of(obj)]


async def restore_backup(api: Api, namespace: str, backup: str, volume: str, *, force: bool) -> tuple[str, str]:
    """Start to restore a backup to a volume; `force`: even if the volume is not empty.

    Returns the VolumeBackup and the ID of the restore, for `restore_outcome`. Raises NotFound for a missing volume
    or backup, and Conflict while another restore of these backups runs.
    """
    await get_object(api, VOLUME, namespace, volume)
    restore: Obj = {"id": secrets.token_hex(4), "backup": backup, "volume": volume, "force": force}

    async def read() -> tuple[Obj, Obj]:
        obj = await _having(api, namespace, backup)
        if (obj.get("status") or {}).get("restorePhase") == "Running":
            raise Conflict(
                "another restore of these backups is running", hint="wait for its end", code=ErrorCode.CONFLICT
            )
        return obj, {"spec": {"restore": restore}}

    changed = await change_as_read(api, BACKUPS, read)
    return str(changed["metadata"]["name"]), str(restore["id"])


async def restore_outcome(api: Api, namespace: str, name: str, restore: str) -> Outcome | None:
    """The outcome of a restore; None while it runs."""
    status = (await api.get(BACKUPS, name, namespace)).get("status") or {}
    if status.get("restoreId") != restore or status.get("restorePhase") not in ("Done", FAILED):
        return None
    message = str(status.get("restoreMessage"))
    return (
        Outcome(error=f"the restore failed: {message}") if status["restorePhase"] == FAILED else Outcome(message)
    )


async def _having(api: Api, namespace: str, backup: str) -> Obj:
    """The VolumeBackup object that contains a backup. Raises NotFound."""
    try:
        objs = (await api.list(BACKUPS, namespace)).items
    except NotFound as error:
        raise BACKUP.unknown(error) from error
    for obj in objs:
        if backup in [kept["name"] for kept in (obj.get("status") or {}).get("backups") or ()]:
            return obj
    raise NotFound(
        f"backup {backup!r} not found in namespace {namespace}",
        hint=f"list the backups: {LIST}",
        code=ErrorCode.NOT_FOUND,
    )


def backups_of(obj: Obj) -> list[Backup]:
    """The backups of a VolumeBackup. If it has none or the last one failed, one more row describes the object."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ready = condition(obj, "Ready") or {}
    failed = f"{ready.get('reason')}: {ready.get('message')}" if status.get("phase") == FAILED else ""
    empty = Backup(
        name=obj["metadata"]["name"],
        volume=spec.get("volume") or "",
        to=spec.get("to") or "",
        schedule=spec.get("schedule") or "",
        next=status.get("next") or "",
        state=failed or status.get("phase") or "Pending",
    )
    kept = [
        msgspec.structs.replace(
            empty,
            backup=backup["name"],
            files=backup.get("files", 0),
            bytes=backup.get("bytes", 0),
            at=backup.get("at") or "",
            sha256=backup.get("sha256") or "",
            changed=backup.get("changed", 0),
            state="whole"
            if not backup.get("changed")
            else f"{counted(backup['changed'], 'file')} changed meanwhile",
        )
        for backup in status.get("backups") or ()
    ]
    return kept if kept and not failed else [*kept, empty]
