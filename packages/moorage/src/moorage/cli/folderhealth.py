"""Check the files of a data folder: missing, damaged, or with less data than before. Changes nothing.

The manifest of databases and the newest copy show which files existed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from moorage.cli.datafolder import PARTS, DataFolder, unusable
from moorage.client.datafolder import default_folder
from moorage_kube.clock import SYSTEM, Clock, format_duration
from moorage_kube.databasefile import MANIFEST, Manifest, find_problem, is_counted, less_than, read_manifest
from moorage_kube.errors import DataFolderError, StorageDamaged

if TYPE_CHECKING:
    from moorage.cli.embedded import Copy

CLUSTER = "cluster.db"
WITHOUT_COPY = {
    "config.json": "write the ports and nodes of the last time into it, or remove it and give all options again:"
    " --nodes, --gpus, --port, --api-port, --ingress-port",
    "tokens.json": "write `{}` into it: then new tokens are made; old links and kubeconfigs stop working",
}


class Damage(Struct, frozen=True, kw_only=True):
    """A file, by its name in the folder, and its problem as the end of a sentence."""

    file: str
    problem: str


def find_damage(folder: DataFolder) -> list[Damage]:
    """Return every file of a stopped cluster's folder that is damaged, missing, or lacks acknowledged data.

    Empty for a folder without a previous cluster. Raises StorageError for files that cannot be checked.
    """
    path = folder.path
    if not path.is_dir():
        return []
    problems = dict(_misplaced(path))
    manifest = Manifest() if MANIFEST in problems else read_manifest(path)
    copied = next(_readable_copies(path), None)
    problems |= {name: problem for name, problem in _databases(path, manifest, copied) if name not in problems}
    is_gone = not (path / CLUSTER).exists()
    if CLUSTER not in problems and (is_gone or not (path / CLUSTER).stat().st_size):
        if not (copied or manifest.names() or _has_pods(path)):
            return _listed(problems)  # the first start was cut short, or has not been
        problems = {CLUSTER: "is missing" if is_gone else "is empty"} | problems
    # a cluster has run here, so all of these were once whole
    checks = {"VERSION": _version_problem, "config.json": _config_problem, "tokens.json": _tokens_problem}
    for name, check in checks.items():
        if name not in problems and (problem := check(folder)):
            problems[name] = problem
    return _listed(_pki_problems(path / "pki") | problems if "pki" not in problems else problems)


def _listed(problems: dict[str, str]) -> list[Damage]:
    databases = [name for name in problems if name.endswith(".db")]
    others = [name for name in problems if not name.endswith(".db")]
    others.sort(key=lambda name: name.startswith("pki/"))
    return [Damage(file=name, problem=problems[name]) for name in (*databases, *others)]


def _misplaced(path: Path) -> Iterator[tuple[str, str]]:
    """Yield files in the place of folders, and folders in the place of files. Databases are checked one by one."""
    from moorage.cli.embedded import embedded
    from moorage.server.databases import ARTIFACTS_FOLDER, LOGS_FOLDER

    folders = {*PARTS, "copies", LOGS_FOLDER, ARTIFACTS_FOLDER}
    for name in (*embedded().SMALL_FILES, *embedded().NOT_COPIED):
        if name not in folders and not name.endswith(".db") and (path / name).is_dir():
            yield name, "is a folder, not a file"
    for name in sorted(folders):
        if (path / name).exists() and not (path / name).is_dir():
            yield name, "is a file, not a folder"


def _readable_copies(path: Path) -> Iterator[Copy]:
    from moorage.cli.embedded import embedded

    return (copy for copy in embedded().list_copies(path) if copy.problem is None)


def _databases(path: Path, manifest: Manifest, copied: Copy | None) -> Iterator[tuple[str, str]]:
    """Yield problems of databases: by the manifest, and by the newest copy for databases that it does not list."""
    known = manifest.marks.keys()
    copies = {name for name in copied.files if name.endswith(".db")} - known if copied is not None else set()
    names = {database.name for database in path.glob("[!.]*.db")} | manifest.names() | copies
    if not known and copied is None and is_counted(path / CLUSTER):  # so there was a manifest
        names |= _kept_by_every_server()
    for name in sorted(names):
        problem = find_problem(path / name, deep=True)
        if problem is None and not (path / name).exists() and name not in known:
            problem = "is missing"
        if problem is None and name == CLUSTER and (path / name).exists() and (path / name).stat().st_size:
            problem = _record_problem(path / name)
        if problem is None and copied is not None and name in copies:
            problem = less_than(path / name, copied.path / name)
        if problem is not None:
            yield name, problem


def _kept_by_every_server() -> set[str]:
    from moorage.server.databases import databases

    return {database.file for database in databases() if database.needed and database.file}


def refuse_damage(folder: DataFolder, *, clock: Clock = SYSTEM) -> None:
    """Raise StorageDamaged that names every damaged file and the command that repairs it."""
    damage = find_damage(folder)
    if not damage:
        return
    described = "; ".join(f"{entry.file} {entry.problem}" for entry in damage)
    raise StorageDamaged(
        f"the data folder {folder.path} is damaged: {described}", hint=way_back(folder, damage, clock)
    )


def way_back(folder: DataFolder, damage: list[Damage], clock: Clock = SYSTEM) -> str:
    """Return how to fix damaged files. Names the newest copy in which they are whole."""
    from moorage.cli.embedded import embedded

    option = "" if folder.path == default_folder() else f" --data {folder.path}"
    named = [entry.file for entry in damage]
    names = sorted({*named} - embedded().NOT_COPIED.keys())
    kept = "nothing was changed, and running pods are left alone"
    if not names:
        aside = "; ".join(f"{name}: {embedded().NOT_COPIED[name]}" for name in named)
        return f"`moor restore latest{option}` sets aside {' and '.join(named)} ({aside}); {kept}"
    if copy := embedded().newest_whole(_readable_copies(folder.path), names):
        age = format_duration(clock.now().astimezone(UTC) - copy.taken)
        back = f"`moor restore latest{option}` restores the copy of {age} ago, `moor restore{option}` lists all"
        return f"{back}; {kept}"
    advice = [f"{name}: {WITHOUT_COPY[name]}" for name in names if name in WITHOUT_COPY]
    if advice and len(advice) == len(names):
        return f"there is no copy of {' and '.join(names)}. {'; '.join(advice)}; {kept}"
    return (
        f"there is no copy of {' and '.join(names)}: restore it from your own backup"
        f" (`moor restore FILE{option}`); `moor down{option}` stops the pods,"
        f" and another folder (--data) starts a new cluster; {kept}"
    )


def _has_pods(path: Path) -> bool:
    return any(pod.is_dir() for node in path.glob("nodes/*") if node.is_dir() for pod in node.iterdir())


def _record_problem(path: Path) -> str | None:
    from moorage.cli.embedded import embedded

    try:
        embedded().read_records(path)
    except StorageDamaged as error:
        return error.message.removeprefix(f"{path} ")
    return None


def _version_problem(folder: DataFolder) -> str | None:
    try:
        text = (folder.path / "VERSION").read_bytes().strip()
    except FileNotFoundError:
        return "is missing"
    return None if text.isdigit() else "is empty" if not text else "does not contain a number"


def _config_problem(folder: DataFolder) -> str | None:
    try:
        return None if folder.load_config() is not None else "is missing"
    except DataFolderError as error:
        return _problem(error, folder.path / "config.json")


def _tokens_problem(folder: DataFolder) -> str | None:
    try:
        return None if folder.load_tokens() is not None else "is missing"
    except DataFolderError as error:
        return _problem(error, folder.path / "tokens.json")


def _problem(error: DataFolderError, file: Path) -> str:
    """Return the problem of a file. Raises the error where a copy does not help: the file may not be read."""
    if isinstance(error.__cause__, PermissionError):
        raise error
    return error.message.removeprefix(f"{file} ")


def _pki_problems(pki: Path) -> dict[str, str]:
    from moorage.cli.embedded import embedded

    try:
        return {f"pki/{name}": problem for name, problem in embedded().find_pki_problems(pki).items()}
    except PermissionError as error:
        raise unusable(error) from error
