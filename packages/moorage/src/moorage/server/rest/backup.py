"""GET /api/v1/backup: an archive of all data of the server; POST: restore an archive. For administrators.

They need `get` and `update` of `backups.moorage.dev`, which `cluster-admin` has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from moorage.api.backups import ARCHIVE, BACKUP_PATH, BackupSummary, RestoreOptions
from moorage.api.errors import ErrorCode
from moorage.model.names import GROUP
from moorage.server.backup import store
from moorage.server.backup.archive import pack
from moorage.server.backup.mapjobs import create_missing, read_mapjobs, save_mapjobs
from moorage.server.backup.summary import summary_of
from moorage.server.endpoint import Call, Endpoint
from moorage_kube.errors import Forbidden

CHUNK_BYTES = 256 * 1024
NAME = "moorage.backup"


async def make_backup(call: Call[None, None]) -> StreamingResponse:
    """Make a backup of databases, stored logs and MapJobs, and send it; for administrators."""
    await _check_right(call, "get", "make")
    place, now = call.context.place, call.context.now()
    call.audit("create", "a backup")
    stack = contextlib.ExitStack()
    try:
        folder = stack.enter_context(store.scratch(place))
        content = folder / "content"
        content.mkdir()
        manifest = await asyncio.to_thread(store.collect, place, content, now=now)
        await save_mapjobs(call.context, content)
        await asyncio.to_thread(pack, content, manifest, folder / NAME)
        file = stack.enter_context((folder / NAME).open("rb"))
    except BaseException:
        stack.close()
        raise

    async def parts() -> AsyncIterator[bytes]:
        with stack:
            while part := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield part

    size = (folder / NAME).stat().st_size
    return StreamingResponse(parts(), media_type=ARCHIVE, headers={"Content-Length": str(size)})


async def restore_backup(call: Call[None, RestoreOptions]) -> BackupSummary:
    """Replace all that the server keeps by a backup, which is the body; then restart the servers.

    MapJobs of restored maps that are missing are created, as their owners.
    """
    await _check_right(call, "update", "restore")
    place, options = call.context.place, call.query
    with store.scratch(place) as folder:
        archive = folder / NAME
        with archive.open("wb") as file:
            async for part in call.request.stream():
                await asyncio.to_thread(file.write, part)
        if options.dry_run:
            return await asyncio.to_thread(_look, place, archive, folder / "content")
        call.audit("restore", "a backup")
        await call.context.audit_log.flush()
        manifest = await asyncio.to_thread(store.restore, place, archive, force=options.force)
        problems = await create_missing(call.context, call.user, await asyncio.to_thread(read_mapjobs, archive))
    return msgspec.structs.replace(summary_of(manifest), without_map_job=problems)


def _look(place: store.Place, archive: Path, folder: Path) -> BackupSummary:
    folder.mkdir()
    return summary_of(store.inspect(archive, folder), replaces=store.content_of(place))


async def _check_right(call: Call[Any, Any], verb: str, what: str) -> None:
    if not await call.context.auth.may(call.user, verb, "backups", group=GROUP):
        raise Forbidden(
            f"only administrators of the cluster may {what} backups",
            hint="ask one of them",
            code=ErrorCode.FORBIDDEN,
        )


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=BACKUP_PATH, handler=make_backup, media_type=ARCHIVE),
    Endpoint(method="POST", path=BACKUP_PATH, handler=restore_backup, query=RestoreOptions, answer=BackupSummary),
)
