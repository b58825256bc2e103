"""The data folder of the local cluster: its path, and whether its cluster runs.

The command line owns the files that `moor up` stores in it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from moorage.settings import DATA

PROC = Path("/proc")


def default_folder() -> Path:
    """Return the default data folder: $MOORAGE_DATA, else moorage under $XDG_DATA_HOME or ~/.local/share."""
    if chosen := DATA.read(os.environ):
        return chosen.absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(base).expanduser() / "moorage").absolute()


def is_running(folder: Path) -> bool:
    """Whether a running supervisor has locked the folder."""
    try:
        import fcntl

        fd = os.open(folder / "run" / "lock", os.O_RDWR | os.O_CLOEXEC)
    except (ImportError, OSError):  # Windows has no fcntl, and no local cluster
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def running_kubeconfig(folder: Path) -> Path | None:
    """Return the kubeconfig of the cluster that runs in a folder; None if no cluster runs there."""
    kubeconfig = folder / "kubeconfig"
    exists = (folder / "VERSION").exists() and kubeconfig.exists()
    return kubeconfig if exists and is_running(folder) else None


def running_folders(proc: Path = PROC) -> list[Path]:
    """Return the data folders of this user's running local clusters, from the command lines of their processes."""
    folders = {folder for folder in _served_folders(proc) if running_kubeconfig(folder) is not None}
    return sorted(folders)


def _served_folders(proc: Path) -> Iterator[Path]:
    for name in os.listdir(proc) if proc.is_dir() else ():
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile; ValueError: of another program
            if (proc / name).stat().st_uid != os.getuid():
                continue
            words = (proc / name / "cmdline").read_bytes().split(b"\0")
            if b"moorage_local" in words:
                yield Path(os.fsdecode(words[words.index(b"--data") + 1]))


def way_to(folders: list[Path]) -> str:
    """Return how commands reach local clusters that run in other data folders; empty if none runs."""
    if not folders:
        return ""
    first = shlex.quote(str(folders[0]))
    if len(folders) == 1:
        return f"a local cluster runs in {folders[0]}: export MOORAGE_DATA={first}"
    others = ", ".join(str(folder) for folder in folders)
    return f"local clusters run in {others}: choose one of them, such as: export MOORAGE_DATA={first}"
