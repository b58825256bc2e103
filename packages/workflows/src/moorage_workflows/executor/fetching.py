"""`init`: puts the script and each input artifact in their places."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from moorage_workflows.executor.errors import Missing, Passing, StepError
from moorage_workflows.executor.order import Input, Order
from moorage_workflows.executor.retrying import Retrying
from moorage_workflows.executor.stores import Stores
from moorage_workflows.executor.unpack import open_up, place, unpack
from moorage_workflows.executor.web import Server

BUSYBOX = Path("/bin/busybox")  # Debian's busybox-static, in Moorage's image
VOLUMES = "/moorage/volumes"  # see `decide.workflows.pods`


def prepare(step: Path, order: Order, *, busybox: Path = BUSYBOX) -> None:
    """Create the folder that the containers of the pod share, as the package describes it. Raises StepError."""
    try:
        for name, mode in (("in", 0o755), ("out", 0o777), ("tmp", 0o700)):
            (step / name).mkdir(exist_ok=True)
            (step / name).chmod(mode)
        if order.members:
            _prepare_set(step, order.members)
        if not (order.wraps or order.members):
            return
        _bring(step, "wrapper.sh")
        _bring(step, "find.sh")
        (step / "paths").write_text("".join(f"{line}\n" for line in order.lines), encoding="utf-8")
        for name, wanted in (("keep-result", order.keeps_result), ("keep-log", order.keeps_logs)):
            if wanted:
                (step / name).touch(mode=0o644)
        _make_pipe(step / "alive")
        if order.brings_shell:
            if not busybox.is_file():
                raise StepError(f"this image of Moorage has no {busybox}, which runs the commands of steps")
            (step / "bin").mkdir(exist_ok=True)
            shutil.copyfile(busybox, step / "bin" / "busybox")
            (step / "bin" / "busybox").chmod(0o755)
    except OSError as error:
        raise StepError(f"the folder of the step cannot be made: {error}") from error


def _prepare_set(step: Path, members: Sequence[str]) -> None:
    """Create the folder in which containers of a set record their starts and ends. Any user may write there."""
    folder = step / "set"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    for name in members:
        _make_pipe(folder / f"{name}.alive")
    (step / "members").write_text("".join(f"{name}\n" for name in members), encoding="utf-8")
    for script in ("member.sh", "ends.sh"):
        _bring(step, script)


def _bring(step: Path, script: str) -> None:
    (step / script).write_bytes(Path(__file__).with_name(script).read_bytes())
    (step / script).chmod(0o644)


def _make_pipe(path: Path) -> None:
    if not path.exists():
        os.mkfifo(path)
        path.chmod(0o666)


def fetch_all(
    step: Path, order: Order, server: Callable[[], Server], stores: Stores, retrying: Retrying, *, volumes: Path
) -> None:
    """Fetch every input. `server`: called for each input in our own store. Raises StepError with its name."""
    for number, entry in enumerate(order.inputs):
        try:
            _fetch(step, number, entry, server, stores, retrying, volumes)
        except Missing as error:
            if not entry.is_optional:
                raise StepError(f"input artifact {entry.name!r}: {error.message}") from error
            print(f"moorage: optional input artifact {entry.name!r}: {error.message}", file=sys.stderr, flush=True)
        except StepError as error:
            raise StepError(f"input artifact {entry.name!r}: {error.message}") from error
        except OSError as error:
            raise StepError(f"input artifact {entry.name!r}: {error}") from error


def _fetch(
    step: Path,
    number: int,
    entry: Input,
    server: Callable[[], Server],
    stores: Stores,
    retrying: Retrying,
    volumes: Path,
) -> None:
    work = step / "tmp" / f"in-{number}"
    target = step / "in" / str(number)
    if entry.below is not None:
        # in a volume: unpacked there, because that may be another disk
        root = volumes / str(number)
        target = _inside(root, entry.below)
        work = root / f".moorage-in-{number}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        fetched = work / "fetched"
        key = str(entry.location.get("key") or "")

        def read() -> bool:
            if fetched.is_dir():
                shutil.rmtree(fetched)
            if set(entry.location) <= {"key", "digest"}:
                try:
                    if key.endswith("/"):  # a folder that was stored file by file
                        raise Missing(f"there is no artifact below {key!r}")
                    server().get_artifact(key, fetched)
                except Missing:
                    source = server()
                    folder = work / "folder"
                    if not _all_below(source, key.rstrip("/"), fetched) and not _from_folder(
                        source, key, fetched, folder
                    ):
                        raise
                    return fetched.is_dir()
                _check(fetched, str(entry.location.get("digest") or ""))
                return False
            return stores.read(entry.location, fetched)

        is_whole = retrying.call(f"input artifact {entry.name!r}", read)
        artifact = fetched if is_whole else unpack(fetched, entry.archive, work / "unpacked")
        place(artifact, target)
        open_up(target, entry.mode, is_recursive=entry.recurse_mode)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _all_below(server: Server, key: str, into: Path) -> bool:
    """Fetch every artifact whose key begins with this key, as the files of a folder.

    Returns whether there was any.
    """
    names = server.keys_below(key)
    for name in names:
        target = _inside(into, name)
        if not target.resolve().is_relative_to(into.resolve()):
            raise StepError(f"the artifact {name!r} below {key!r} leads out of its folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        server.get_artifact(f"{key}/{name}", target)
    return bool(names)


def _from_folder(server: Server, key: str, into: Path, work: Path) -> bool:
    """Fetch a file of a folder that was stored as one artifact: "a/b/c" may be c of the folder "a/b"."""
    names = key.split("/")
    for split in range(len(names) - 1, 0, -1):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            server.get_artifact("/".join(names[:split]), work / "packed")
        except Missing:
            continue
        folder = unpack(work / "packed", "tar", work / "unpacked")
        wanted = folder.joinpath(*names[split:])
        if not folder.is_dir() or not wanted.resolve().is_relative_to(folder.resolve()) or not wanted.exists():
            return False
        wanted.rename(into)
        return True
    return False


def _check(file: Path, digest: str) -> None:
    if digest and digest_of(file) != digest:
        raise Passing("the fetched artifact has another digest than the stored one")


def digest_of(file: Path) -> str:
    """Return "sha256:…" of the file's content."""
    with file.open("rb") as content:
        return f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"


def _inside(root: Path, below: str) -> Path:
    """Return a path in a volume. Raises StepError if a link in its parent folders leads out of the volume."""
    target = root if below == "." else root / below
    parent = root if below == "." else target.parent
    if not parent.resolve().is_relative_to(root.resolve()):
        raise StepError(f"its path {below!r} leads out of the volume by a link")
    return target
