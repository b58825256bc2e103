"""`moor restore`: the copies that `moor up` keeps of its data folder, and one of them brought back."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage.apimachinery.quantity import counted
from moorage.cli import console
from moorage.cli.datafolder import DataFolder
from moorage.cli.folderhealth import CLUSTER, find_damage
from moorage.cli.up import data_option, stop_leftovers
from moorage.client.datafolder import default_folder
from moorage.clock import SYSTEM, format_duration, rfc3339
from moorage.errors import AlreadyRunning, MoorageError, UsageError
from moorage.present.sizes import bytes_text

if TYPE_CHECKING:
    from moorage.localcluster.copies import Copy

DAMAGED = "damaged"  # the folder in which what was replaced is kept
_SCRATCH = ".restoring-"


@console.command(
    examples={
        "moor restore": "list the copies",
        "moor restore latest --dry-run": "print what would be brought back",
        "moor restore latest": "bring damaged files back",
    }
)
@click.argument("copy", required=False)
@click.option("--file", "files", multiple=True, metavar="FILE", help="Bring back this file only; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Bring back every file of the copy, also undamaged files.")
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@console.output_option
@data_option
def restore(
    copy: str | None, files: tuple[str, ...], everything: bool, dry_run: bool, output: str, data: Path | None
) -> None:
    """Bring back damaged files of the data folder from a copy, or list the copies.

    COPY is a name from the list, or `latest`: the newest copy that has the damaged files. Only damaged files are
    replaced, unless --file or --all is given; the old files are kept in the folder `damaged`. The cluster must be
    stopped. Running pods are left alone; the next `moor up` adopts them, also pods that are newer than the copy.
    """
    from moorage.localcluster.copies import NOT_COPIED, check_copy, list_copies

    folder = DataFolder(data.absolute() if data else default_folder())
    folder.check_version()
    copies = list_copies(folder.path)
    if copy is None:
        if files or everything or dry_run:
            raise UsageError("no copy is named", hint="`moor restore latest`, or a name that `moor restore` lists")
        _print_copies(folder, copies, output)
        return
    with _stopped(folder):
        damaged = [damage.file for damage in find_damage(folder)]
        wanted = _wanted(copies, files, everything=everything, damaged=damaged)
        dropped = [name for name in wanted if name in NOT_COPIED]
        wanted = [name for name in wanted if name not in NOT_COPIED]
        is_named = copy != "latest"  # a name that is wrong is refused also where nothing is damaged
        chosen = _choose(copy, copies, wanted) if wanted or everything or is_named else None
        if chosen is not None:
            wanted = sorted(chosen.files) if everything else wanted
            check_copy(chosen, wanted)
        if not wanted and not dropped:
            console.say("nothing is damaged: nothing was changed (--all brings back every file of a copy)")
            return
        steps = _restore(folder, chosen, wanted, dropped, dry_run=dry_run)
    for step in steps:
        console.say(f"would {step}" if dry_run else step)
    if not dry_run:
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        console.say(f"done; `moor up{option}` starts the cluster")


@contextlib.contextmanager
def _stopped(folder: DataFolder) -> Any:
    """Hold the folder's lock. Raises AlreadyRunning while a cluster runs on it."""
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


def _print_copies(folder: DataFolder, copies: Sequence[Copy], output: str) -> None:
    now = SYSTEM.now().astimezone(UTC)
    items = [
        {
            "name": copy.name,
            "taken": rfc3339(copy.taken),
            "version": copy.version,
            "revision": copy.revision,
            "objects": copy.objects,
            "bytes": copy.bytes,
            "files": sorted(copy.files),
            "problem": copy.problem,
        }
        for copy in copies
    ]
    console.print_listing(
        output,
        headers=("NAME", "AGE", "OBJECTS", "SIZE", "FILES"),
        rows=lambda: [
            (
                copy.name,
                format_duration(now - copy.taken),
                str(copy.objects),
                bytes_text(copy.bytes),
                copy.problem or str(len(copy.files)),
            )
            for copy in copies
        ],
        items=items,
        names=[copy.name for copy in copies],
        nothing=f"no copies are kept in {folder.path}; a running cluster makes one every quarter of an hour",
    )
    if not folder.is_running():
        for damage in find_damage(folder):
            console.note(f"{damage.file} {damage.problem}")


def _wanted(
    copies: Sequence[Copy], files: Sequence[str], *, everything: bool, damaged: Sequence[str]
) -> list[str]:
    if files and everything:
        raise UsageError("--file and --all cannot be used together")
    known = {name for copy in copies for name in copy.files}
    if unknown := [name for name in files if name not in known]:
        raise UsageError(
            f"no copy holds {unknown[0]}", hint=f"copies hold: {', '.join(sorted(known)) or 'nothing'}"
        )
    return list(files or damaged)


def _choose(name: str, copies: Sequence[Copy], wanted: Sequence[str]) -> Copy:
    """The copy that is named, or the newest that holds all that is wanted. Raises UsageError."""
    if name != "latest":
        for copy in copies:
            if copy.name == name:
                break
        else:
            raise UsageError(f"copy {name!r} not found", hint="`moor restore` lists them")
        if copy.problem is not None:
            raise MoorageError(f"the copy {name} cannot be used: {copy.problem}", hint="choose another one")
        if missing := [file for file in wanted if file not in copy.files]:
            raise UsageError(f"the copy {name} does not hold {missing[0]}", hint="choose another one")
        return copy
    for copy in copies:
        if copy.problem is None and set(wanted) <= set(copy.files):
            return copy
    raise MoorageError(
        f"no copy holds {' and '.join(wanted) or 'anything'}",
        hint="bring the file back from a backup of yours; `moor down` stops the pods of this folder",
    )


def _restore(
    folder: DataFolder, copy: Copy | None, wanted: Sequence[str], dropped: Sequence[str], *, dry_run: bool
) -> list[str]:
    """Make all new files beside the old ones, then set the old ones aside and put the new ones in their place.

    Cut short at any moment, what is missing is found by the next start, and this can be done again: the mark of a
    database stays where it is until the new file is in its place, so that one that is gone is missed.
    """
    from moorage.apimachinery.databasefile import log_files, mark_path, side_files, sync_folder

    aside = folder.path / DAMAGED / SYSTEM.now().astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    steps = []
    prepared: list[tuple[str, Path]] = []
    for name in wanted:
        assert copy is not None
        scratch = folder.path / f"{_SCRATCH}{name.replace('/', '-')}"
        if name == CLUSTER:
            steps += _prepare_cluster(folder, copy, scratch, dry_run=dry_run)
        else:
            steps.append(f"bring back {name} of {rfc3339(copy.taken)}")
            if not dry_run:
                _copy_file(copy.path / name, scratch)
        prepared.append((name, scratch))
    steps += [f"set {name} aside: no copy is kept of what maps have printed" for name in dropped]
    if dry_run:
        return [*steps, f"keep what is replaced in {aside}"]
    for name in (*wanted, *dropped):
        path = folder.path / name
        beside: tuple[Path, ...] = ()
        if name.endswith(".db"):
            beside = side_files(path) if name in dropped else log_files(path)
            if name in wanted and not mark_path(path).exists():
                _mark_as_replaced(path)
        for old in (path, *beside):
            if old.exists():
                target = aside / old.relative_to(folder.path)
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                old.rename(target)
    for name, scratch in prepared:
        final = folder.path / name
        final.parent.mkdir(exist_ok=True, mode=0o700)
        scratch.rename(final)
        sync_folder(final.parent)
    for name in wanted:
        if name.endswith(".db"):
            _mark(folder.path / name)
    return [*steps, f"what was replaced is in {aside}"]


def _prepare_cluster(folder: DataFolder, copy: Copy, scratch: Path, *, dry_run: bool) -> list[str]:
    from moorage.apimachinery.databasefile import read_mark
    from moorage.localcluster.restoring import pods_on_disk, restore
    from moorage.localcluster.storage.sqlite import read_records, write_records

    mark = read_mark(folder.path / CLUSTER)
    restored = restore(
        read_records(copy.path / CLUSTER),
        revision=copy.revision,
        past=mark.count if mark else 0,
        pods=pods_on_disk(folder.path / "nodes"),
        copied=copy.name,
    )
    if not dry_run:
        scratch.unlink(missing_ok=True)
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        write_records(scratch, restored.records, restored.revision, identity=mark.identity if mark else None)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
    steps = [f"bring back {CLUSTER} of {rfc3339(copy.taken)}: {counted(copy.objects, 'object')}"]
    if restored.adopted:
        count = counted(len(restored.adopted), "pod")
        steps.append(f"put back {count} younger than it: {', '.join(restored.adopted)}")
    return steps


def _copy_file(source: Path, scratch: Path) -> None:
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out, source.open("rb") as content:
        shutil.copyfileobj(content, out)
        out.flush()
        os.fsync(out.fileno())


def _mark_as_replaced(database: Path) -> None:
    """A mark that fits no file, for a database of a version that kept none: the next start misses it by this."""
    from moorage.apimachinery.databasefile import Mark, write_mark

    write_mark(database, Mark("replaced", 0))


def _mark(database: Path) -> None:
    """A mark that fits the restored file: what it lacks was given up knowingly. None where it counts nothing."""
    from moorage.apimachinery.databasefile import Mark, mark_path, reading, write_mark

    with reading(database) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'high_water'").fetchone():
            row = db.execute("SELECT identity, count FROM high_water").fetchone()
            write_mark(database, Mark(str(row[0]), int(row[1])))
        else:
            mark_path(database).unlink(missing_ok=True)
