"""`moor restore`: restore a backup, or one of the copies of the data folder that `moor up` makes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorage.cli import console
from moorage.cli.datafolder import DataFolder
from moorage.cli.folderhealth import find_damage
from moorage.cli.folderrestore import replace_files, stopped
from moorage.cli.restorefile import is_file_name, restore_file
from moorage.cli.session import Target, target_options
from moorage.client.datafolder import default_folder
from moorage.present.sizes import bytes_text
from moorage_kube.clock import SYSTEM, format_duration, rfc3339
from moorage_kube.errors import MoorageError, UsageError

if TYPE_CHECKING:
    from moorage.cli.embedded import Copy


@console.command(
    examples={
        "moor restore": "list the copies",
        "moor restore latest": "restore damaged files",
        "moor restore --dry-run ./moorage.backup": "check a backup, and print its contents",
        "moor restore --force ./moorage.backup": "replace all data by a backup",
    }
)
@target_options
@click.argument("copy", required=False, metavar="[COPY|FILE]")
@click.option("--file", "files", multiple=True, metavar="FILE", help="Restore only this file; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Restore every file of the copy, also undamaged files.")
@click.option("--dry-run", is_flag=True, help="Print the steps; change nothing.")
@click.option("--force", is_flag=True, help="Of a backup: replace existing data.")
@console.output_option
def restore(
    target: Target,
    copy: str | None,
    files: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    force: bool,
    output: str,
) -> None:
    """Restore a backup, restore damaged files of the data folder from a copy, or list the copies.

    FILE is a backup of `moor backup`: its path, with a `/` or a dot in it. It replaces all existing data. On
    a cluster the server restores it; restart the servers then. A local cluster must be stopped. Earlier
    workers lose their items, which are handed out again.

    COPY is a name from the list, or `latest`: the newest copy that has the damaged files, whole. Only damaged
    files are replaced, unless --file or --all is given; the old ones are moved to the folder `damaged`. The
    cluster must be stopped. Running pods are left alone; the next `moor up` adopts them, also pods that are
    newer than the copy.
    """
    from moorage.cli.embedded import embedded

    # a path is a backup; other names are copies
    if copy is not None and is_file_name(copy):
        if files or everything:
            raise UsageError("--file and --all are for copies: a backup is restored as a whole")
        restore_file(target, Path(copy), dry_run=dry_run, force=force, output=output)
        return
    if force:
        raise UsageError("--force is for backups", hint="a copy is restored with --all")
    # without a name, list the copies
    folder = DataFolder(target.data.absolute() if target.data else default_folder())
    folder.check_version()
    copies = embedded().list_copies(folder.path)
    if copy is None:
        if files or everything or dry_run:
            raise UsageError("copy missing", hint="`moor restore latest`, or a name that `moor restore` lists")
        _print_copies(folder, copies, output)
        return
    # the lock ensures that the cluster does not start meanwhile
    with stopped(folder):
        damaged = [damage.file for damage in find_damage(folder)]
        wanted = _wanted(copies, files, everything=everything, damaged=damaged)
        # some files have no copy: they are only moved away, and the next start creates them again
        dropped = [name for name in wanted if name in embedded().NOT_COPIED]
        wanted = [name for name in wanted if name not in embedded().NOT_COPIED]
        is_named = copy != "latest"  # a name that is wrong is refused also where nothing is damaged
        needed = None if everything else wanted
        chosen = _choose(copy, copies, needed) if wanted or everything or is_named else None
        # check the copy before a file of the folder is touched
        if chosen is not None:
            wanted = sorted(chosen.files) if everything else wanted
            embedded().check_copy(chosen, wanted)
        if not wanted and not dropped:
            console.say("there are no damaged files: nothing was changed (--all restores every file of a copy)")
            return
        steps = replace_files(folder, chosen, wanted, dropped, dry_run=dry_run)
    for step in steps:
        console.say(f"would {step}" if dry_run else step)
    if not dry_run:
        option = "" if folder.path == default_folder() else f" --data {folder.path}"
        console.say(f"done; `moor up{option}` starts the cluster")


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
        nothing=f"there are no copies in {folder.path}; a running cluster makes one every 15 minutes",
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


def _choose(name: str, copies: Sequence[Copy], wanted: Sequence[str] | None) -> Copy:
    """The named copy, or the newest copy in which all `wanted` parts are complete (None: all its parts).

    Raises UsageError, MoorageError.
    """
    from moorage.cli.embedded import embedded

    if name != "latest":
        for copy in copies:
            if copy.name == name:
                break
        else:
            raise UsageError(f"copy {name!r} not found", hint="`moor restore` lists them")
        if copy.problem is not None:
            raise MoorageError(f"the copy {name} cannot be used: {copy.problem}", hint="choose another one")
        if missing := [file for file in wanted or () if file not in copy.files]:
            raise UsageError(f"the copy {name} does not hold {missing[0]}", hint="choose another one")
        return copy
    if (whole := embedded().newest_whole(copies, wanted)) is not None:
        return whole
    for copy in copies:
        if set(wanted or ()) <= copy.files.keys():
            embedded().check_copy(copy, wanted or copy.files)  # names the damaged file
    raise MoorageError(
        f"no copy holds {' and '.join(wanted or ()) or 'anything'}",
        hint="restore the file from your own backup; `moor down` stops the pods of this folder",
    )
