"""`moor restore FILE`: restore a backup to a cluster through its server, or to the folder of a local cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from moorage.api.backups import ARCHIVE, BACKUP_PATH, BackupSummary
from moorage.cli import console
from moorage.cli.backup import described, local_folder
from moorage.cli.datafolder import DataFolder
from moorage.cli.folderrestore import replace_files, stopped
from moorage.cli.session import Session, Target, in_session
from moorage.client.datafolder import default_folder
from moorage.present.sizes import bytes_text
from moorage_kube.errors import Conflict, MoorageError
from moorage_kube.quantity import counted


def is_file_name(text: str) -> bool:
    """Whether a text names a backup file; the names of copies contain no slash and no dot."""
    return "/" in text or "." in text


def restore_file(target: Target, file: Path, *, dry_run: bool, force: bool, output: str) -> None:
    """Check a backup, and restore it unless it is a dry run. Raises BadArchive, Conflict, MoorageError."""
    if not file.is_file():
        raise MoorageError(f"backup {file} not found")
    folder = DataFolder(target.data.absolute()) if target.data is not None else local_folder(target)
    if folder is not None:
        summary = _restore_folder(folder, file, dry_run=dry_run, force=force)
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        then = f"`moor up{option}` starts the cluster"
    else:
        content = file.read_bytes()
        summary = in_session(target, lambda session: _upload(session, content, dry_run=dry_run, force=force))
        then = "start the servers again: kubectl -n moorage-system rollout restart deployment/moorage-server"
    if dry_run and output != "table":
        console.print_document(msgspec.to_builtins(summary), output)
        return
    _say(summary, dry_run=dry_run)
    for problem in summary.without_map_job:
        console.say(f"warning: no MapJob, and so no workers: map {problem}")
    console.say("dry run: nothing was changed" if dry_run else f"restored; {then}")


def _say(summary: BackupSummary, *, dry_run: bool) -> None:
    console.say(f"backup of {summary.taken}, made by Moorage {summary.version} from {summary.database}")
    objects = summary.rows.get("objects", 0)
    held = f", {counted(objects, 'object')}" if objects else ""
    files = f"{counted(summary.files, 'file')}, {bytes_text(summary.bytes)}"
    console.say(f"it holds {described(summary.rows)}{held}; {files}; all checksums are valid")
    if summary.replaces:
        verb = "would replace" if dry_run else "replaced"
        console.say(f"it {verb} {listed(summary.replaces)}{' (needs --force)' if dry_run else ''}")


def listed(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{counted(count, 'row')} of {table}" for table, count in rows.items())


async def _upload(session: Session, archive: bytes, *, dry_run: bool, force: bool) -> BackupSummary:
    params = {"dryRun": "true" if dry_run else None, "force": "true" if force else None}
    sent = session.server.stream("POST", BACKUP_PATH, params=params, data=archive, content_type=ARCHIVE)
    async with sent as parts:
        answer = b"".join([part async for part in parts])
    return msgspec.json.decode(answer, type=BackupSummary)


def _restore_folder(folder: DataFolder, file: Path, *, dry_run: bool, force: bool) -> BackupSummary:
    from moorage.cli.embedded import embedded
    from moorage.server.backup import sqlite
    from moorage.server.backup.archive import FOLDER, LOGS
    from moorage.server.backup.store import Place, content_of, inspect, scratch, stage_files
    from moorage.server.backup.summary import summary_of
    from moorage.server.databases import LOGS_FOLDER
    from moorage_kube.databasefile import MANIFEST

    # a new folder is removed again when the restore does not succeed
    folder.check_version()
    is_new = not folder.path.exists()
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # unpack next to the folder, on the same disk, so that the files can be renamed into place
        with scratch(Place(folder=folder.path)) as made:
            content = made / "content"
            content.mkdir()
            manifest = inspect(file.absolute(), content)
            if not (content / FOLDER / embedded().CLUSTER).exists():
                raise MoorageError(
                    f"{file} is a backup of a server, not of a local cluster: it has no objects",
                    hint="restore it on a cluster: moor restore --context NAME FILE",
                )
            # a dry run needs the facts only
            there = content_of(Place(folder=folder.path)) if folder.exists() else {}
            summary = summary_of(manifest, replaces=there)
            if dry_run:
                return summary
            # an existing cluster is replaced only with --force
            if (folder.path / embedded().CLUSTER).exists() and not force:
                raise Conflict(
                    f"{folder.path} is not empty: it is the folder of a local cluster",
                    hint="back it up first; --force replaces all of it by the backup",
                )
            # from here on the cluster must stay stopped
            with stopped(folder):
                staged = stage_files(made, manifest, content)
                shutil.copytree(content / FOLDER, staged, dirs_exist_ok=True)
                # the folder's own files, without logs, the manifest and SQLite's side files
                names = [
                    str(path.relative_to(staged))
                    for path in sorted(staged.rglob("*"))
                    if path.is_file() and path.relative_to(staged).parts[0] != LOGS_FOLDER
                    and not path.name.endswith((MANIFEST, "-wal", "-shm"))
                ]  # fmt: skip
                copy = embedded().copy_of(
                    staged, names, taken=manifest.taken, revision=manifest.revision,
                    objects=manifest.rows.get("objects", 0),
                )  # fmt: skip
                replace_files(folder, copy, names, (), logs=content / LOGS, dry_run=False)
                (folder.path / sqlite.JOURNAL).unlink(missing_ok=True)
            return summary
    finally:
        if is_new and (dry_run or not (folder.path / "cluster.db").exists()):
            shutil.rmtree(folder.path, ignore_errors=True)
