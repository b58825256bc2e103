"""The local cluster's data folder, for those who look for a cluster: where it is, and whether it runs.

What `moor up` keeps in it is the command line's.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from moorage.settings import DATA


def default_folder() -> Path:
    """$MOORAGE_DATA, else moorage under $XDG_DATA_HOME or ~/.local/share."""
    if chosen := DATA.read(os.environ):
        return chosen.absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return (Path(base).expanduser() / "moorage").absolute()


def is_running(folder: Path) -> bool:
    """Whether a supervisor holds the folder's lock."""
    try:
        fd = os.open(folder / "run" / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def running_kubeconfig(folder: Path) -> Path | None:
    """The kubeconfig of the cluster that runs in a folder; None when none does."""
    kubeconfig = folder / "kubeconfig"
    exists = (folder / "VERSION").exists() and kubeconfig.exists()
    return kubeconfig if exists and is_running(folder) else None
