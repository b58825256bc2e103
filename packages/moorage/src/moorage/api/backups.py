"""Backups on the wire: `/api/v1/backup`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

BACKUP_PATH = "/api/v1/backup"
ARCHIVE = "application/gzip"


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options for the restore of an archive."""

    force: Annotated[bool, Meta(description="Replace existing data.")] = False
    dry_run: Annotated[bool, Meta(description="Check the archive and list its contents; change nothing.")] = False


class BackupSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The contents of a backup."""

    version: Annotated[str, Meta(description="Version of Moorage that made it.")]
    taken: Annotated[str, Meta(description="When it was made.")]
    database: Annotated[str, Meta(description="Database that it was made from: sqlite or postgres.")]
    schemas: Annotated[dict[str, int], Meta(description="Version of the schema of each part.")]
    rows: Annotated[dict[str, int], Meta(description="Rows of the tables that matter most.")]
    bytes: Annotated[int, Meta(description="Size of its files, unpacked.")]
    files: Annotated[int, Meta(description="Number of its files.")]
    replaces: Annotated[dict[str, int], Meta(description="Rows that are there now; a restore replaces them.")] = {}
    without_map_job: Annotated[
        list[str],
        Meta(description="Restored maps that have no MapJob, and so no workers: each with the reason."),
    ] = []
