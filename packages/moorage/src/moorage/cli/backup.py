"""`moor backup`: all data of Moorage outside the Kubernetes API, as one file.

On a real cluster the server creates it. For a local cluster the command creates it from the data folder, also
while the cluster is stopped. It then includes the objects, because there is no etcd with its own backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from moorage.cli import console
from moorage.cli.datafolder import DataFolder
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.client.datafolder import default_folder
from moorage.client.files import replacing
from moorage.client.target import choose_kubeconfig
from moorage.present.sizes import bytes_text
from moorage.server.backup.archive import FOLDER, Manifest, pack
from moorage.server.backup.store import Place, collect, scratch
from moorage_kube.clock import SYSTEM
from moorage_kube.databasefile import read_mark
from moorage_kube.errors import ApiError, NotReady, StorageError, UsageError
from moorage_kube.quantity import counted

if TYPE_CHECKING:
    from moorage.cli.embedded import Copy


@console.command(
    examples={
        "moor backup moorage.backup": "back up the cluster that commands use",
        "moor backup --data ./cluster moorage.backup": "back up a local cluster, also a stopped one",
        "moor restore --dry-run moorage.backup": "check it, and print its contents",
    }
)
@target_options
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(target: Target, file: Path) -> None:
    """Back up the data of Moorage outside the Kubernetes API.

    Maps, logins, the audit log, GPU use, stored logs.

    FILE is written completely, or not at all; an existing file is replaced. On a cluster back up etcd too:
    objects, accounts and Secrets are there. A local cluster's backup includes its objects. Volumes: `moor
    volume backup`.
    """
    if not file.absolute().parent.is_dir():
        raise UsageError(f"folder {file.absolute().parent} not found")
    folder = local_folder(target)
    if folder is not None:
        manifest = back_up_folder(folder, file)
        rows, size = manifest.rows, file.stat().st_size
        console.say(f"{file}: {bytes_text(size)}; {described(rows)}; {counted(objects_of(manifest), 'object')}")
        return
    in_session(target, lambda session: _download(session, file))
    console.say(f"{file}: {bytes_text(file.stat().st_size)}")
    console.say("back up etcd too: objects, accounts and Secrets are there")


def local_folder(target: Target) -> DataFolder | None:
    """The data folder of the chosen local cluster; None if another cluster is chosen."""
    if target.data is not None:
        return _existing(DataFolder(target.data.absolute()))
    if target.context is not None or target.kubeconfig is not None:
        return None
    folder = DataFolder(default_folder())
    kubeconfig = choose_kubeconfig(target, os.environ)
    is_meant = kubeconfig == folder.path / "kubeconfig" or os.environ.get("KUBECONFIG") == str(
        folder.path / "kubeconfig"
    )
    has_other = kubeconfig is not None or bool(os.environ.get("KUBECONFIG"))
    return folder if folder.exists() and (is_meant or not has_other) else None


def _existing(folder: DataFolder) -> DataFolder:
    folder.check_version()
    if not folder.exists():
        raise NotReady(
            f"{folder.path} is not a data folder of a local cluster", hint="create one: moor up --data FOLDER"
        )
    return folder


def described(rows: dict[str, int]) -> str:
    """Describe the contents of a backup for people."""
    names = (
        ("maps", "map"),
        ("results", "result"),
        ("login_sessions", "session"),
        ("audit_log", "audit record"),
        ("intervals", "interval of GPU use"),
        ("attempt_jobs", "stored attempt"),
        ("workflow_runs", "workflow"),
    )
    parts = [counted(rows.get(table, 0), name) for table, name in names if name != "interval of GPU use"]
    intervals = rows.get("intervals", 0)
    return ", ".join([*parts, f"{intervals} interval{'' if intervals == 1 else 's'} of GPU use"])


def objects_of(manifest: Manifest) -> int:
    return manifest.rows.get("objects", 0)


def back_up_folder(folder: DataFolder, file: Path) -> Manifest:
    """Write a backup of a local cluster. Raises StorageError, OSError."""
    from moorage.cli.embedded import embedded

    place = Place(folder=folder.path)
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(_objects(folder))
        made = stack.enter_context(scratch(place))
        manifest = collect(place, made, now=SYSTEM.now().astimezone(UTC))
        names = [name for name in (embedded().CLUSTER, *embedded().SMALL_FILES) if name in copy.files]
        embedded().check_copy(copy, names)
        for name in names:
            target = made / FOLDER / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(copy.path / name, target)
        rows = {**manifest.rows, "objects": copy.objects}
        manifest = msgspec.structs.replace(manifest, revision=copy.revision, rows=rows)
        return pack(made, manifest, file.absolute())


@contextlib.contextmanager
def _objects(folder: DataFolder) -> Iterator[Copy]:
    """A copy of the cluster's current objects, inside the `with` block.

    The control plane creates it; if the cluster is stopped, this process does.
    """
    from moorage.cli.embedded import embedded

    if folder.is_running():
        yield asyncio.run(_new_copy(folder))
        return
    with folder.locked():
        mark = read_mark(folder.path / "cluster.db")
        records = embedded().read_records(folder.path / "cluster.db")
        yield embedded().take_copy(
            folder.path, records, mark.count if mark else 0, now=SYSTEM.now().astimezone(UTC), spare_bytes=0
        )


async def _new_copy(folder: DataFolder) -> Copy:
    """Let the control plane create a copy. Raises StorageError if it fails (a full disk) or does not answer."""
    from moorage.cli.embedded import embedded
    from moorage_kube.remote.client import KubeClient

    try:
        async with KubeClient.from_kubeconfig(folder.kubeconfig) as api:
            made = msgspec.json.decode(await api.raw("POST", embedded().COPIES_PATH))
    except ApiError as error:
        raise StorageError(
            f"the control plane of {folder.path} did not copy its objects: {error.message}",
            hint=f"free some space where {folder.path} is, or see {folder.path}/log/localcluster.log",
        ) from error
    copy = next((copy for copy in embedded().list_copies(folder.path) if copy.name == made["name"]), None)
    if copy is None or copy.problem is not None:
        raise StorageError(f"the copy {made['name']} of {folder.path} cannot be read", hint="try again")
    return copy


async def _download(session: Session, file: Path) -> None:
    from moorage.api.backups import BACKUP_PATH

    with replacing(file, private=True) as out:
        async with session.server.stream("GET", BACKUP_PATH) as parts:
            async for part in parts:
                out.write(part)
