"""Remove folders that pods have written into, with any content.

`shutil.rmtree` recurses once a level, and cannot enter a folder without permissions.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder with all in it; a missing folder is not an error.

    Links are not followed, so nothing outside changes, not even its permissions. Folders in it are moved to its
    top and emptied there: the depth costs neither stack nor open files. Raises the first OSError, when all that
    can be removed is.
    """
    try:
        top = _open(os.fspath(path))
    except FileNotFoundError:
        return
    try:
        _empty(top)
    finally:
        os.close(top)
    path.rmdir()


def _empty(top: int) -> None:
    token, moved = secrets.token_hex(8), 0
    left: set[str] = set()  # could not be removed
    first: OSError | None = None
    while True:
        with os.scandir(top) as entries:
            waiting = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        waiting = [(name, is_folder) for name, is_folder in waiting if name not in left]
        if not waiting:
            break
        for name, is_folder in waiting:
            try:
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                    continue
                folder = _open(name, top)
                try:
                    moved = _empty_into(folder, top, f".{token}-", moved)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError as error:
                left.add(name)
                first = first or error
    if first is not None:
        raise first


def _empty_into(folder: int, top: int, prefix: str, moved: int) -> int:
    """Remove the files of a folder and move its subfolders to the top.

    Return the number of moved folders so far.
    """
    with os.scandir(folder) as entries:
        entries_here = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in entries_here:
        if is_folder:
            os.close(_open(name, folder))  # a folder that moves must be writable
            moved += 1
            os.rename(name, f"{prefix}{moved}", src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved


def _open(name: str, parent: int | None = None) -> int:
    """Open a folder to list it, after giving its owner all rights in it. Raises OSError."""
    handle = os.open(name, _FOLDER, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{handle}"
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & 0o700 != 0o700:
            os.chmod(path, mode | 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
