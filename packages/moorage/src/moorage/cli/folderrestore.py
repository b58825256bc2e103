"""Replace files in the folder of a stopped local cluster by those of a copy or of a backup."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage.cli.datafolder import DataFolder
from moorage.cli.folderhealth import CLUSTER
from moorage.cli.up import stop_leftovers
from moorage.server.backup.sqlite import release
from moorage.server.databases import LOGS_FOLDER
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import AlreadyRunning, MoorageError
from moorage_kube.quantity import counted

if TYPE_CHECKING:
    from moorage.cli.embedded import Copy

QUEUE = "queue.db"
DAMAGED = "damaged"  # the folder of replaced files
_SCRATCH = ".restoring-"


@contextlib.contextmanager
def stopped(folder: DataFolder) -> Any:
    """Lock the folder inside the `with` block. Raises AlreadyRunning if a cluster runs in it."""
    if not folder.path.is_dir():
        raise MoorageError(f"data folder {folder.path} not found", hint="give it with --data or $MOORAGE_DATA")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(folder.locked())
        except AlreadyRunning as error:
            raise AlreadyRunning(
                error.message, hint="stop it first: moor down, or moor down --keep-pods"
            ) from error
        stop_leftovers(folder)
        yield


def replace_files(
    folder: DataFolder,
    copy: Copy | None,
    wanted: Sequence[str],
    dropped: Sequence[str],
    *,
    logs: Path | None = None,
    dry_run: bool,
) -> list[str]:
    """Create all new files next to the old ones, then move the old ones to `damaged` and rename the new ones.

    `logs`: a folder that replaces the stored logs, or a missing folder; None: they remain. Logs come before
    databases.

    It may stop at any moment: the next start finds missing files, and the command can run again. The manifest
    lists a database until the new file is in place, so that a start notices a missing one.
    """
    from moorage.cli.embedded import embedded
    from moorage_kube.databasefile import disk_errors, forget, log_files, read_mark, sync_folder

    aside = folder.path / DAMAGED / SYSTEM.now().astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    # make the new files first: a failure up to here leaves the folder as it was
    with disk_errors(folder.path), contextlib.ExitStack() as unless_prepared:
        unless_prepared.callback(_remove_scratch, folder.path)
        prepared, steps = _prepare(folder, copy, wanted, logs, dry_run=dry_run)
        unless_prepared.pop_all()
    steps += [f"set {name} aside: {embedded().NOT_COPIED[name]}" for name in dropped]
    if dry_run:
        return [*steps, f"move replaced files to {aside}"]
    # move the old files away, databases with their logs; a mark makes a start notice a missing one
    for name in (*wanted, *dropped, *((LOGS_FOLDER,) if logs is not None else ())):
        path = folder.path / name
        beside: tuple[Path, ...] = ()
        if name.endswith(".db"):
            beside = log_files(path)
            if name in dropped:
                forget(path)
            elif read_mark(path) is None:
                _mark_as_replaced(path)
        for old in (path, *beside):
            if old.exists():
                target = aside / old.relative_to(folder.path)
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                old.rename(target)
    # put each new file in place, and make the rename durable before the next one
    for name, scratch in prepared:
        final = folder.path / name
        final.parent.mkdir(exist_ok=True, mode=0o700)
        scratch.rename(final)
        sync_folder(final.parent)
    # only now mark databases as whole: a start accepts the restored, older data
    for name in wanted:
        if name.endswith(".db"):
            _mark(folder.path / name)
    return [*steps, f"replaced files are in {aside}"]


def _prepare(
    folder: DataFolder, copy: Copy | None, wanted: Sequence[str], logs: Path | None, *, dry_run: bool
) -> tuple[list[tuple[str, Path]], list[str]]:
    """Create the new files next to the old ones. Returns their names and paths, and the steps as sentences."""
    steps: list[str] = []
    prepared: list[tuple[str, Path]] = []
    for name in wanted:
        assert copy is not None
        scratch = folder.path / f"{_SCRATCH}{name.replace('/', '-')}"
        if name == CLUSTER:
            steps += _prepare_cluster(folder, copy, scratch, dry_run=dry_run)
        else:
            steps.append(f"restore {name} of {rfc3339(copy.taken)}")
            if not dry_run:
                _copy_file(copy.path / name, scratch)
                if name == QUEUE:
                    release(scratch)
        prepared.append((name, scratch))
    if logs is not None and not dry_run:
        scratch = folder.path / f"{_SCRATCH}{LOGS_FOLDER}"
        shutil.rmtree(scratch, ignore_errors=True)
        if logs.is_dir():
            shutil.copytree(logs, scratch)
            prepared.insert(0, (LOGS_FOLDER, scratch))  # while a database is missing, a start is refused
    return prepared, steps


def _remove_scratch(folder: Path) -> None:
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def _prepare_cluster(folder: DataFolder, copy: Copy, scratch: Path, *, dry_run: bool) -> list[str]:
    from moorage.cli.embedded import embedded
    from moorage_kube.databasefile import read_mark

    mark = read_mark(folder.path / CLUSTER)
    restored = embedded().restore(
        embedded().read_records(copy.path / CLUSTER),
        revision=copy.revision,
        past=mark.count if mark else 0,
        pods=embedded().pods_on_disk(folder.path / "nodes"),
        copied=copy.name,
    )
    if not dry_run:
        scratch.unlink(missing_ok=True)
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        embedded().write_records(
            scratch, restored.records, restored.revision, identity=mark.identity if mark else None
        )
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
    steps = [f"restore {CLUSTER} of {rfc3339(copy.taken)}: {counted(copy.objects, 'object')}"]
    if restored.adopted:
        count = counted(len(restored.adopted), "pod")
        steps.append(f"add {count} newer than the copy: {', '.join(restored.adopted)}")
    return steps


def _copy_file(source: Path, scratch: Path) -> None:
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out, source.open("rb") as content:
        shutil.copyfileobj(content, out)
        out.flush()
        os.fsync(out.fileno())


def _mark_as_replaced(database: Path) -> None:
    """Write a mark that matches no file, for a database that the manifest lacks.

    The next start reports the loss.
    """
    from moorage_kube.databasefile import Mark, write_mark

    write_mark(database, Mark("replaced", 0))


def _mark(database: Path) -> None:
    """Write a mark that fits the restored file, which accepts its loss of data.

    Remove the mark if it has no count.
    """
    from moorage_kube.databasefile import Mark, forget, reading, write_mark

    with reading(database) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'high_water'").fetchone():
            row = db.execute("SELECT identity, count FROM high_water").fetchone()
            write_mark(database, Mark(str(row[0]), int(row[1])))
        else:
            forget(database)
