"""`moor volume cp`: copy files between this machine and a volume, through a pod that mounts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import click

from moorage.actions.atomic import AtomicCreate
from moorage.actions.directoryarchive import Credentials, credentials_note
from moorage.actions.objects import get_object
from moorage.actions.volumefiles import ROOT, make_helper
from moorage.actions.volumes import VOLUME
from moorage.api.volumes import Helper
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.controllers.dataset.filler import Runtime, find_runtime, why_waiting
from moorage.filler.paths import checked
from moorage.filler.tree import Tree, TreeEntry
from moorage.filler.wire import receive, send
from moorage.model.names import owned_by
from moorage.present.sizes import bytes_text
from moorage.sdk.progress import Bar, Meter
from moorage_kube.errors import ApiError, MoorageError, UsageError
from moorage_kube.quantity import counted
from moorage_kube.resources import PODS

LOOK_SECONDS = 0.2
START_SECONDS = 300.0
DAY_SECONDS = 86_400  # a pod whose command died does not stay longer


@console.command(
    examples={
        "moor volume cp ./images data:/images": "copy a folder to a volume",
        "moor volume cp data:/results ./results": "copy a folder from it",
    }
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--image", default="", help="Moorage image of the helper pod (default: the cluster's).")
@target_options
def cp(target: Target, source: str, destination: str, image: str) -> int:
    """Copy files between this machine and a volume, written VOLUME:/PATH.

    A folder is copied into DST with all its files, and each file is verified. Files that are in DST already, with
    the same size and time, are skipped: to continue an interrupted copy, run it again. Links are left out. So are
    files with credentials (keys, tokens, logins) in a folder that is sent: to send one, name it as SRC.
    """
    here, there = _place(source), _place(destination)
    if (here is None) == (there is None):
        raise UsageError("invalid SRC and DST: write exactly one of them as VOLUME:/PATH")
    if here is None and not os.path.lexists(source):
        raise UsageError(f"{source!r} not found on this machine")
    if here is None and os.path.isdir(source):
        Credentials(Path(source))  # refuses a home folder, before a pod is created

    async def work(session: Session) -> int:
        volume = (here or there or ("", ""))[0]
        await get_object(session.api, VOLUME, session.namespace, volume)
        runtime = await helper_runtime(session, image)
        async with _helper(session, volume, runtime, read_only=here is not None) as pod:
            result = await _copy(session, pod, runtime.python, source, destination, here, there)
        console.say(f"{counted(result['files'], 'file')}, {bytes_text(result['bytes'])} copied")
        for key, text in (("skipped", "were already there"), ("left_out", "links were left out")):
            if result.get(key):
                console.note(f"{result[key]:,} {text}")
        note_credentials(result)
        return 0

    return in_session(target, work)


def note_credentials(result: Mapping[str, Any]) -> None:
    """Report the files of a folder that were not copied because they contain credentials."""
    if result.get("credentials"):
        console.note(credentials_note(result["credentials"]))


async def copy_in(
    session: Session, folder: str, volume: str, runtime: Runtime, *, on_start: Callable[[], None]
) -> dict[str, Any]:
    """Copy a local folder to the root of a volume. `on_start` is called before the first file."""
    async with _helper(session, volume, runtime, read_only=False) as pod:
        on_start()
        return await _copy(session, pod, runtime.python, folder, f"{volume}:/", None, (volume, ""))


async def helper_runtime(session: Session, image: str = "") -> Runtime:
    """Return the image and Python of a helper pod: from this argument, else the server, else the cluster's nodes.

    Raises UsageError if none of them names an image.
    """
    if image:
        return Runtime(image)
    with contextlib.suppress(MoorageError):
        helper = await session.server.ask(Helper, "GET", "/api/v1/helper")
        if helper.image:
            return Runtime(helper.image, helper.python)
    with contextlib.suppress(ApiError):  # only an administrator may list nodes
        runtime = await find_runtime(session.api)
        if runtime.image:
            return runtime
    raise UsageError(
        "cannot start the helper pod: Moorage's image is not known",
        hint="volume cp takes it by --image; an administrator can set MOORAGE_IMAGE for `moor server`",
    )


def _place(text: str) -> tuple[str, str] | None:
    """Split VOLUME:/PATH into (volume, path); None for a local path. Raises UsageError if it is invalid."""
    name, colon, path = text.partition(":")
    if not colon or "/" in name or not name or name in (".", ".."):
        return None
    ending = "/" if path.endswith("/") else ""
    path = path.strip("/")
    try:
        return name, (checked(path) + ending) if path else ""
    except MoorageError as error:
        raise UsageError(error.message) from error


@contextlib.asynccontextmanager
async def _helper(session: Session, volume: str, runtime: Runtime, *, read_only: bool) -> AsyncGenerator[str]:
    """Yield the name of a pod that mounts a volume and waits; it is deleted with the end of the block."""
    name = f"volume-cp-{secrets.token_hex(4)}"
    meta = {"name": name, **owned_by(await session.user())}
    pod = await make_helper(
        session.api, session.namespace, volume, runtime, meta, read_only=read_only, seconds=DAY_SECONDS
    )
    batch = AtomicCreate(session.api, session.namespace)
    try:
        await batch.create(PODS, pod)
        await _running(session, name)
        yield name
    finally:
        await asyncio.shield(batch.remove())


async def _running(session: Session, name: str) -> None:
    """Wait until the helper pod runs. Raises MoorageError."""
    last = ""
    end = session.clock.monotonic() + START_SECONDS
    while session.clock.monotonic() < end:
        pod = await session.api.get(PODS, name, session.namespace)
        phase = (pod.get("status") or {}).get("phase")
        if phase == "Running":
            return
        if phase in ("Succeeded", "Failed"):
            raise MoorageError(f"the helper pod {name} ended at once: {phase}")
        if (why := why_waiting(pod)) and why != last:
            last = why
            console.say(f"waiting for the helper pod: {why}")
        await session.clock.sleep(LOOK_SECONDS)
    raise MoorageError(f"the helper pod did not start: {last or 'the reason is not known'}")


async def _copy(
    session: Session,
    pod: str,
    python: str,
    source: str,
    destination: str,
    here: tuple[str, str] | None,
    there: tuple[str, str] | None,
) -> dict[str, Any]:
    """Run one end in the pod and the other in a thread of this process."""
    with Bar(clock=session.clock) as bar:
        words, run = _ends(python, source, destination, here, there, Meter(bar, clock=session.clock))
        api = cast(Any, session.api)
        async with await api.exec(pod, session.namespace, words, stdin=True) as process:
            return await _bridge(process, run)


def _single(path: str, name: str) -> tuple[str, str]:
    """Return folder and name of a single file.

    A path with "/" at its end is the folder, else it includes the name.
    """
    if not path or path.endswith("/"):
        return path.rstrip("/"), name
    folder, _, last = path.rpartition("/")
    return folder, last


def _ends(
    python: str,
    source: str,
    destination: str,
    here: tuple[str, str] | None,
    there: tuple[str, str] | None,
    meter: Meter,
) -> tuple[list[str], Any]:
    """Return the command of the pod, and the function to run here meanwhile."""
    # to the volume: the pod receives, this machine sends
    words = [python, "-m", "moorage.filler"]
    if there is not None:  # to the volume
        path = Path(source).absolute()
        folder, name = _single(there[1], path.name)
        words += ["receive", "--root", ROOT, "--base", there[1].rstrip("/")]
        words += ["--single-folder", folder, "--single-name", name]
        root, below = (path.parent, path.name) if path.is_file() else (path, "")
        credentials = Credentials(root) if not below else None  # a file that is named is meant

        def leaves_out(entry: TreeEntry) -> bool:
            return credentials is not None and credentials.holds(entry.path, is_folder=entry.kind == "folder")

        def run(read: IO[bytes], write: IO[bytes]) -> dict[str, Any]:
            result = send(
                Tree(root),
                below,
                read,
                write,
                on_start=meter.begin,
                on_progress=meter.add,
                leaves_out=leaves_out,
            )
            return result | {"credentials": credentials.left_out if credentials is not None else {}}
    else:
        # from the volume: the pod sends, this machine receives
        assert here is not None
        words += ["send", "--root", ROOT, "--path", here[1].rstrip("/")]
        wanted = Path(destination).absolute()
        is_folder = destination.endswith("/") or wanted.is_dir()
        top = wanted if is_folder else wanted.parent
        name = here[1].rstrip("/").rpartition("/")[2] if is_folder else wanted.name

        def run(read: IO[bytes], write: IO[bytes]) -> dict[str, Any]:
            top.mkdir(parents=True, exist_ok=True)
            base = "" if is_folder else wanted.name
            return receive(
                Tree(top), base, read, write, single=("", name), on_start=meter.begin, on_progress=meter.add
            )

    return words, run


async def _bridge(process: Any, run: Any) -> dict[str, Any]:
    """Connect a process in a pod with a thread here: each reads the output of the other."""
    # the thread works on blocking files; a socket pair joins it with the event loop
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    errors = bytearray()

    def thread() -> dict[str, Any]:
        read, write = theirs.makefile("rb"), theirs.makefile("wb")
        try:
            result: dict[str, Any] = run(read, write)
            return result
        finally:
            for stream in (write, read, theirs):
                with contextlib.suppress(OSError):  # unsent data are of no use
                    stream.close()

    # copy in both directions until the thread has finished
    async def to_pod() -> None:
        while chunk := await reader.read(1 << 20):
            await process.write(chunk)

    async def from_pod() -> None:
        try:
            async for channel, data in process:
                if channel == 1:
                    writer.write(data)
                    await writer.drain()
                else:
                    # the pod's stderr explains a failure better than the broken stream does
                    errors.extend(data[-2000:])
        finally:
            writer.close()

    # wait for the thread only: the copies are of no use after its end
    working = asyncio.create_task(asyncio.to_thread(thread))
    pumps = [asyncio.create_task(to_pod()), asyncio.create_task(from_pod())]
    try:
        return await working
    except MoorageError as error:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise MoorageError(error.message, hint=lines[-1] if lines else error.hint) from error
    finally:
        # end the copies, also after an error
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        with contextlib.suppress(OSError):
            writer.close()
