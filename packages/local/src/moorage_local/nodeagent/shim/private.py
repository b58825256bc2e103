"""A private root for a container.

Copy-on-write copies of this machine's folders, an empty /tmp, and the real devices.

The copies are overlays on top of this machine's folders. Root uses a single overlay on `/`. In a user
namespace the kernel refuses this, because the mounts in `/` are locked there. Then each folder without mounts
has an overlay.

https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import os
import stat

from .kernel import MS_BIND, MS_NODEV, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT, MS_UNBINDABLE
from .mounting import kept_flags, mount
from .volumes import is_below

TMP, SHM = "/tmp", "/dev/shm"
TMP_MODE = 0o1777
REAL = (
    "bcachefs",
    "btrfs",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "overlay",
    "xfs",
    "zfs",
)  # others are bound as they are
_OPTIONS = ("volatile", "")  # volatile: no fsync of all of the disk when the container ends (Linux 5.10)


class PrivateRefused(Exception):
    """The kernel does not let this user create overlays."""


class Layers:
    """Creates overlays whose upper layers are in the folder `path`."""

    def __init__(self, path: str, extra: str) -> None:
        self.path = path
        self._extra = extra
        self._number = 0

    def lay(self, lower: str, target: str) -> None:
        """Raises OSError."""
        self._number += 1
        folders = [f"{self.path}/{kind}{self._number}" for kind in ("upper", "work")]
        for folder in folders:
            os.mkdir(folder, 0o755)
        status = os.stat(lower)
        os.chmod(folders[0], stat.S_IMODE(status.st_mode))
        words = f"lowerdir={_escaped(lower)},upperdir={folders[0]},workdir={folders[1]}{self._extra}"
        for option in _OPTIONS:
            try:
                mount("overlay", target, "overlay", 0, f"{words},{option}" if option else words)
                return
            except OSError:
                if not option:
                    raise


def build_private(root: str, folder: int, hidden: str) -> str:
    """Build such a root at the empty folder `root`, or in it; returns its path.

    `folder`: an open, empty folder on a disk for writes; if it cannot hold an upper layer, they stay in memory.
    `hidden`: the folder under the fence; the fence is carried over. The process must lose CAP_SYS_ADMIN before a
    pod's program runs, or the folder does not stay hidden. Needs a separate mount namespace. Raises
    PrivateRefused.
    """
    in_user_namespace = not _is_initial_user_namespace()
    extra = ",userxattr" if in_user_namespace else ""
    mounts = _mounts(root)
    in_memory = f"{root}/layers"
    try:
        os.mkdir(f"/proc/self/fd/{folder}/tmp", TMP_MODE)
        os.chmod(f"/proc/self/fd/{folder}/tmp", TMP_MODE)
        first: OSError | None = None
        for place, where in ((f"/proc/self/fd/{folder}", root), (in_memory, f"{root}/root")):
            if place == in_memory:
                mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
                os.mkdir(in_memory)
                os.mkdir(where)
                os.mkdir(f"{in_memory}/tmp")
                os.chmod(f"{in_memory}/tmp", TMP_MODE)
            layers = Layers(place, extra)
            try:
                _build(layers, where, mounts, hidden, is_whole=not in_user_namespace)
                return where
            except OSError as error:
                first = first or error
        assert first is not None
        raise PrivateRefused(str(first)) from first
    except OSError as error:
        raise PrivateRefused(str(error)) from error


def _build(layers: Layers, root: str, mounts: list[tuple[str, str]], hidden: str, *, is_whole: bool) -> None:
    """Fill `root`. If overlays are impossible, raises OSError before anything is mounted."""
    if is_whole:
        layers.lay("/", root)
        mount(None, root, None, MS_UNBINDABLE)  # so that the folder it lies in can be bound into it
        _carry(layers, root, [place for place in mounts if place[0] != "/"], hidden)
    else:
        names = [f"/{name}" for name in sorted(os.listdir("/"))]
        plain = [
            path
            for path in names
            if os.path.isdir(path) and not os.path.islink(path) and not _has_mounts(path, mounts)
        ]
        if not plain:
            raise OSError(0, "every folder of the root has mounts")
        # one is tried before anything else is done
        trial = f"{layers.path}/trial"
        os.mkdir(trial)
        layers.lay(plain[0], trial)
        mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
        mount(None, root, None, MS_UNBINDABLE)
        _fill(layers, root, "/", mounts, hidden)
    # folders that are empty for each container
    tmp = os.path.realpath(TMP)
    os.makedirs(root + tmp, exist_ok=True)
    mount(f"{layers.path}/tmp", root + tmp, None, MS_BIND)
    if os.path.isdir(root + SHM):
        mount("tmpfs", root + SHM, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if hidden:
        os.makedirs(root + hidden, exist_ok=True)
        mount(hidden, root + hidden, None, MS_BIND | MS_REC)


def _carry(layers: Layers, root: str, mounts: list[tuple[str, str]], hidden: str) -> None:
    """Add the mounts below `/` to the root: disks as overlays, all others as bind mounts."""
    bound: list[str] = []
    for path, kind in mounts:
        if _is_left_out(path, hidden) or any(path == place or is_below(path, place) for place in bound):
            continue
        if not os.path.lexists(root + path):
            continue  # in a folder that is hidden by another mount
        if os.path.isdir(path) and kind in REAL:
            try:
                layers.lay(path, root + path)
                continue
            except OSError:
                pass
        mount(path, root + path, None, MS_BIND | MS_REC)
        bound.append(path)


def _fill(layers: Layers, root: str, level: str, mounts: list[tuple[str, str]], hidden: str) -> None:
    """Fill one level of folders that have mounts in them; its files become read-only binds."""
    places = dict(mounts)
    prefix = level if level == "/" else level + "/"
    for name in os.listdir(level):
        path = prefix + name
        new = root + path
        if os.path.islink(path):
            os.symlink(os.readlink(path), new)
            continue
        if not os.path.isdir(path):
            if not os.path.isfile(path) and path not in places:
                continue
            os.close(os.open(new, os.O_WRONLY | os.O_CREAT, 0o644))
            mount(path, new, None, MS_BIND)
            if path not in places:
                mount("none", new, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept_flags(os.statvfs(new).f_flag))
            continue
        os.mkdir(new)
        if _is_left_out(path, hidden):
            continue
        kind = places.get(path, "")
        has_mounts = _has_mounts(path, mounts, but=path)
        is_closed = has_mounts and not os.access(path, os.R_OK | os.X_OK)  # as /var/lib/docker: not ours to list
        if is_closed or (kind and kind not in REAL):
            mount(path, new, None, MS_BIND | MS_REC)
        elif has_mounts:
            _fill(layers, root, path, mounts, hidden)
        else:
            try:
                layers.lay(path, new)
            except OSError:
                if not kind and level == "/":
                    raise
                mount(path, new, None, MS_BIND | MS_REC)


def _is_left_out(path: str, hidden: str) -> bool:
    """Whether the path is in /tmp or the hidden folder, which are created afterwards."""
    return any(path == place or is_below(path, place) for place in (os.path.realpath(TMP), SHM, hidden) if place)


def _has_mounts(path: str, mounts: list[tuple[str, str]], but: str = "") -> bool:
    return any((place == path or is_below(place, path)) and place != but for place, _ in mounts)


def _mounts(root: str) -> list[tuple[str, str]]:
    """Return the mount points of this process with their file systems, parents first, without those in `root`."""
    places: dict[str, str] = {}
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            before, _, after = line.partition(b" - ")
            path = os.fsdecode(_unescaped(before.split(b" ")[4]))
            if path != root and not is_below(path, root):
                places[path] = os.fsdecode(after.split(b" ")[0])
    return sorted(places.items(), key=lambda place: place[0].count("/") if place[0] != "/" else 0)


def _unescaped(path: bytes) -> bytes:
    """As proc(5) writes blanks and backslashes: \\040."""
    parts = path.split(b"\\")
    return parts[0] + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in parts[1:])


def _escaped(path: str) -> str:
    for sign in ("\\", ":", ","):
        path = path.replace(sign, "\\" + sign)
    return path


def _is_initial_user_namespace() -> bool:
    with open("/proc/self/uid_map", "rb") as file:
        return [int(word) for word in file.read().split()] == [0, 0, 4294967295]


def make_private_folders(folder: str, name: str, attempt: int) -> str:
    """Create an empty folder for the writes of a container, in the pod's folder; a new one for each attempt."""
    path = os.path.join(folder, "private", f"{name}-{attempt}")
    os.makedirs(path, 0o755, exist_ok=True)
    return path
