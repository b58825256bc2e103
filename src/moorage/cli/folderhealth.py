"""What in a data folder is damaged, or less than it was. Looks only; nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from moorage.apimachinery.databasefile import find_problem, mark_path
from moorage.cli.datafolder import DataFolder
from moorage.client.datafolder import default_folder
from moorage.clock import SYSTEM, Clock, format_duration
from moorage.errors import DataFolderError, StorageDamaged

CLUSTER = "cluster.db"
WITHOUT_COPY = {
    "config.json": "write the ports and nodes of the last time into it, or remove it and give all options again:"
    " --nodes, --gpus, --port, --api-port, --ingress-port",
    "tokens.json": "write `{}` into it: then new tokens are made; old links and kubeconfigs stop working",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file, by its name in the folder, and what is wrong with it as the end of a sentence."""

    file: str
    problem: str


def find_damage(folder: DataFolder) -> list[Damage]:
    """Every file of a stopped cluster's folder that is damaged, gone, or holds less than was acknowledged.

    None for a folder in which no cluster ever ran. Raises StorageError for what cannot be looked at.
    """
    path = folder.path
    if not path.is_dir():
        return []
    damage = []
    for name in sorted(_databases(path)):
        problem = find_problem(path / name, deep=True)
        if problem is None and name == CLUSTER and (path / name).exists() and (path / name).stat().st_size:
            problem = _record_problem(path / name)
        if problem is not None:
            damage.append(Damage(file=name, problem=problem))
    is_gone = not (path / CLUSTER).exists()
    if CLUSTER not in {damage.file for damage in damage} and (is_gone or not (path / CLUSTER).stat().st_size):
        if not _has_run(path):
            return damage  # the first start was cut short, or has not been
        damage.insert(0, Damage(file=CLUSTER, problem="is gone" if is_gone else "is empty"))
    # a cluster has run here, so all of these were once whole
    checks = {"VERSION": _version_problem, "config.json": _config_problem, "tokens.json": _tokens_problem}
    for name, check in checks.items():
        if problem := check(folder):
            damage.append(Damage(file=name, problem=problem))
    return [*damage, *_pki_damage(path / "pki")]


def refuse_damage(folder: DataFolder, *, clock: Clock = SYSTEM) -> None:
    """Raise StorageDamaged naming every damaged file and the way back."""
    damage = find_damage(folder)
    if not damage:
        return
    described = "; ".join(f"{entry.file} {entry.problem}" for entry in damage)
    raise StorageDamaged(
        f"the data folder {folder.path} is damaged: {described}", hint=way_back(folder, damage, clock)
    )


def way_back(folder: DataFolder, damage: list[Damage], clock: Clock = SYSTEM) -> str:
    """What to do about damaged files. Names the newest copy that holds them."""
    from moorage.localcluster.copies import NOT_COPIED, list_copies

    option = "" if folder.path == default_folder() else f" --data {folder.path}"
    names = {entry.file for entry in damage} - NOT_COPIED
    copies = [copy for copy in list_copies(folder.path) if copy.problem is None and names <= set(copy.files)]
    kept = "nothing was changed, and running pods are left alone"
    if not names:
        return f"`moor restore latest{option}` sets aside what maps have printed, of which no copy is kept; {kept}"
    if copies:
        age = format_duration(clock.now().astimezone(UTC) - copies[0].taken)
        back = f"`moor restore latest{option}` brings back the copy of {age} ago, `moor restore{option}` lists all"
        return f"{back}; {kept}"
    advice = [f"{name}: {WITHOUT_COPY[name]}" for name in sorted(names) if name in WITHOUT_COPY]
    if advice and len(advice) == len(names):
        return f"no copy is kept of {' and '.join(sorted(names))}. {'; '.join(advice)}; {kept}"
    return (
        f"no copy is kept of {' and '.join(sorted(names))}: bring it back from a backup of yours;"
        f" `moor down{option}` stops the pods,"
        f" and another folder (--data) starts a new cluster; {kept}"
    )


def _databases(path: Path) -> set[str]:
    marked = {mark.name.removesuffix("-mark") for mark in path.glob("*.db-mark")}
    return {database.name for database in path.glob("*.db")} | marked


def _has_run(path: Path) -> bool:
    """Whether there is a sign that a cluster once ran in the folder."""
    if mark_path(path / CLUSTER).exists():
        return True
    if any(pod.is_dir() for node in path.glob("nodes/*") for pod in node.iterdir()):
        return True
    from moorage.localcluster.copies import list_copies

    return bool(list_copies(path))


def _record_problem(path: Path) -> str | None:
    from moorage.localcluster.storage.sqlite import read_records

    try:
        read_records(path)
    except StorageDamaged as error:
        return error.message.removeprefix(f"{path} ")
    return None


def _version_problem(folder: DataFolder) -> str | None:
    try:
        text = (folder.path / "VERSION").read_bytes().strip()
    except FileNotFoundError:
        return "is gone"
    return None if text.isdigit() else "is empty" if not text else "does not contain a number"


def _config_problem(folder: DataFolder) -> str | None:
    try:
        return None if folder.load_config() is not None else "is gone"
    except DataFolderError as error:
        return error.message.removeprefix(f"{folder.path / 'config.json'} ")


def _tokens_problem(folder: DataFolder) -> str | None:
    try:
        return None if folder.load_tokens() is not None else "is gone"
    except DataFolderError as error:
        return error.message.removeprefix(f"{folder.path / 'tokens.json'} ")


def _pki_damage(pki: Path) -> list[Damage]:
    from moorage.localcluster.apiserver.pki import find_pki_problems

    return [Damage(file=f"pki/{name}", problem=problem) for name, problem in find_pki_problems(pki).items()]
