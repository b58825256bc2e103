"""A summary of a backup, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.api.backups import BackupSummary
from moorage.server.backup.archive import Manifest
from moorage_kube.clock import rfc3339


def summary_of(manifest: Manifest, *, replaces: Mapping[str, int] | None = None) -> BackupSummary:
    return BackupSummary(
        version=manifest.version,
        taken=rfc3339(manifest.taken),
        database=manifest.dialect,
        schemas=manifest.schemas,
        rows=manifest.rows,
        bytes=sum(member.bytes for member in manifest.members.values()),
        files=len(manifest.members),
        replaces=dict(replaces or {}),
    )
