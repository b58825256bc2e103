"""VolumeBackup: scheduled copies of a volume, limited in number, and their restore on request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from moorage.model.dataset import parse_volume
from moorage.model.machine import Fault
from moorage.model.names import GROUP, OWNER_ANNOTATION, OWNER_LABEL, VERSION, is_dns_label, owned_by
from moorage.model.schedule import next_moment, problem_of_cron
from moorage.model.tenant import Condition
from moorage_kube.errors import MoorageError
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.moments import moment
from moorage_kube.resources import Obj, Resource

BACKUPS = Resource(GROUP, VERSION, "volumebackups", "VolumeBackup")
BACKUP_LABEL = "moorage.dev/volume-backup"  # on its Jobs and their pods: its name
NAME_MAX = 40  # its Jobs are named after it
KEEP_MAX = 1000
RUNNING, IDLE, FAILED = "Running", "Idle", "Failed"

_STAMP = "%Y%m%dT%H%M%SZ"
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
_TIME = Meta(extra_json_schema={"format": "date-time"})
_CLAIM = Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
_BACKUP = Meta(max_length=201, pattern="^[A-Za-z0-9][-A-Za-z0-9._]*$")


class Restore(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One backup to restore; another `id` is another restore."""

    id: Annotated[
        str,
        Meta(min_length=1, max_length=16, pattern="^[a-z0-9]+$", description="A new id asks for a new restore."),
    ]
    backup: Annotated[str, _BACKUP, Meta(description="Name of the backup.")]
    volume: Annotated[str, _CLAIM, Meta(description="Volume to restore into; it must be empty.")]
    force: Annotated[bool, Meta(description="Also onto a volume that is not empty.")] = False


class VolumeBackupSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The volume to copy, the schedule, and the destination."""

    volume: Annotated[str, Meta(min_length=1, max_length=253, description="The claim, of this namespace.")]
    to: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            description="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, volume:NAME[/FOLDER] of this namespace, or on a"
            " local cluster a /folder of its machine.",
        ),
    ]
    schedule: Annotated[
        str, Meta(max_length=120, description='In cron\'s words, in UTC: "0 3 * * *". Empty: once, at once.')
    ] = ""
    keep: Annotated[int, Meta(ge=1, le=KEEP_MAX, description="So many stay; older ones are removed.")] = 7
    secret: Annotated[
        str, Meta(max_length=253, description="Secret of this namespace whose keys become environment variables.")
    ] = ""
    suspend: Annotated[bool, Meta(description="Make no backups for now.")] = False
    restore: Restore | None = None


class StoredBackup(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A complete backup."""

    name: Annotated[str, Meta(description="Name of the backup.")]
    at: Annotated[str, _TIME, Meta(description="When the backup ended.")] = ""
    files: Annotated[int, Meta(ge=0, description="Number of its files.")] = 0
    bytes: Annotated[int, Meta(ge=0, description="Size of its files.")] = 0
    sha256: Annotated[str, Meta(description="SHA-256 of its list of files.")] = ""
    changed: Annotated[int, Meta(ge=0, description="Files that changed while they were read.")] = 0


class VolumeBackupStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    phase: Annotated[str, Meta(description="Idle, Running or Failed.")] = ""
    last_scheduled: Annotated[str, _TIME, Meta(description="Time of the schedule that was acted on last.")] = ""
    last_success: Annotated[str, _TIME, Meta(description="When the last good backup ended.")] = ""
    next: Annotated[str, _TIME, Meta(description="When the next backup starts.")] = ""
    backups: Annotated[list[StoredBackup], Meta(max_length=KEEP_MAX)] = []
    restore_id: Annotated[str, Meta(description="The last restore that was started.")] = ""
    restore_phase: Annotated[str, Meta(description="Running, Done or Failed.")] = ""
    restore_message: Annotated[str, Meta(description="The result of the restore, or why it failed.")] = ""
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class VolumeBackup(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Copies of a volume, limited in number; each is complete or absent."""

    spec: VolumeBackupSpec
    status: VolumeBackupStatus = VolumeBackupStatus()


class BadBackup(MoorageError):
    """A VolumeBackup is invalid."""


class BackupView(Struct, frozen=True, kw_only=True):
    """A VolumeBackup, parsed."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: VolumeBackupSpec
    status: VolumeBackupStatus
    created: datetime
    owner: str = ""
    owner_label: str = ""
    deleting: bool = False
    faults: tuple[Fault, ...] = ()

    @property
    def series(self) -> str:
        """The prefix of the backups' names. It is unique for each VolumeBackup, even within one bucket."""
        return f"{self.namespace}.{self.name}"


def parse_backup(obj: Mapping[str, Any]) -> BackupView:
    """Parse a stored VolumeBackup. Raises BadBackup."""
    meta = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec") or {}, VolumeBackupSpec)
        status = msgspec.convert(obj.get("status") or {}, VolumeBackupStatus)
    except msgspec.ValidationError as error:
        raise BadBackup(f"spec: {error}") from error
    return BackupView(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=str(meta.get("uid") or ""),
        generation=int(meta.get("generation") or 0),
        spec=spec,
        status=status,
        created=moment(meta.get("creationTimestamp")) or datetime.fromisoformat("1970-01-01T00:00:00+00:00"),
        owner=annotations_of(obj).get(OWNER_ANNOTATION, ""),
        owner_label=labels_of(obj).get(OWNER_LABEL, ""),
        deleting=is_deleting(obj),
        faults=tuple(check_backup(meta["name"], spec)),
    )


def check_backup(name: str, spec: VolumeBackupSpec) -> list[Fault]:
    """Check everything that the schema cannot express. Returns all errors."""
    faults = []
    if not is_dns_label(name) or len(name) > NAME_MAX:
        faults.append(Fault("metadata.name", name, f"must be at most {NAME_MAX} of a-z, 0-9 and '-'"))
    to = spec.to
    volume = parse_volume(to) if to.startswith("volume:") else None
    host = urlsplit(to).netloc if to.startswith(("s3://", "gs://")) else ""
    is_folder = to.startswith("/") and ".." not in to.split("/") and len(to.strip("/")) > 0
    if not (volume or host or is_folder):
        faults.append(Fault("spec.to", to, "must be s3://BUCKET/PREFIX, gs://…, volume:NAME[/FOLDER] or /FOLDER"))
    if "@" in host:
        faults.append(Fault("spec.to", to, "must hold no password; name a Secret"))
    if volume is not None and volume[0] == spec.volume:
        faults.append(Fault("spec.to", to, "must be another volume than the one that is copied"))
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in to):
        faults.append(Fault("spec.to", ascii(to), "must hold no control characters"))
    if spec.schedule and not is_schedule(spec.schedule):
        faults.append(Fault("spec.schedule", spec.schedule, "must be five fields as cron has them: 0 3 * * *"))
    return faults


def is_schedule(text: str) -> bool:
    """Whether the text is a cron expression of five fields with a next time."""
    return not problem_of_cron(text) and next_moment(text, datetime(2026, 1, 1, tzinfo=UTC)) is not None


def backup_name(series: str, at: datetime) -> str:
    """The name of a backup. Names of a series sort by time."""
    return f"{series}-{at.strftime(_STAMP)}"


def backup_job(name: str, at: datetime) -> str:
    return f"backup-{name}-{at.strftime('%y%m%d%H%M%S')}"


def restore_job(name: str, id_: str) -> str:
    return f"restore-{name}-{re.sub('[^a-z0-9]', '', id_)}"


def make_backup(
    name: str,
    namespace: str,
    *,
    volume: str,
    to: str,
    schedule: str,
    keep: int,
    secret: str,
    user: str,
) -> Obj:
    """A VolumeBackup object, ready to create."""
    spec: Obj = {"volume": volume, "to": to, "keep": keep}
    spec |= {"schedule": schedule} if schedule else {}
    spec |= {"secret": secret} if secret else {}
    return {
        "apiVersion": BACKUPS.api_version,
        "kind": BACKUPS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            **owned_by(user),
        },
        "spec": spec,
    }
