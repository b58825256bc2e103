"""The files of a volume: list, read, write and delete them as the user, through a helper pod that mounts it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import Struct

from moorage.actions.objects import get_object
from moorage.actions.volumes import VOLUME
from moorage.api.errors import ErrorCode
from moorage.controllers.dataset.filler import Runtime, last_result, make_pod_spec, pod_beside, why_waiting
from moorage.filler.browse import LENGTH
from moorage.filler.paths import checked
from moorage.model.names import VOLUME_FILES_LABEL, owned_by
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError, NotFound, ServerError, UsageError
from moorage_kube.integers import integer_or
from moorage_kube.meta import is_deleting
from moorage_kube.remote.exec import STDOUT, ExecProcess
from moorage_kube.resources import PODS, Obj
from moorage_kube.scheduling import parse_pod

ROOT = "/volume"
OPEN_SECONDS = 1800  # the helper pod of a page ends after that, and a page starts another one
HEAD_BYTES = 4096  # the line before the bytes of a file
ENTRIES = 200  # of one page of a folder
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Reading = tuple[int, AsyncIterator[bytes]]  # the size of a file, and its bytes


class Entry(Struct, frozen=True):
    """An entry of a folder. `kind`: folder, file, link or other."""

    name: str
    kind: str
    size: int
    changed: datetime | None  # None: the volume has an odd time


class Listing(Struct, frozen=True):
    """A page of a folder: its entries, and the number of all entries."""

    entries: tuple[Entry, ...]
    total: int


class Helper(Struct, frozen=True):
    """The helper pod of a user and a volume. `why`: why it does not run yet, if that is known."""

    name: str
    python: str
    is_ready: bool
    why: str = ""


async def make_helper(
    api: Api, namespace: str, volume: str, runtime: Runtime, meta: Obj, *, read_only: bool, seconds: int
) -> Obj:
    """A pod that mounts the volume and waits; it ends after `seconds`. Raises NotFound for the volume."""
    claim = await get_object(api, VOLUME, namespace, volume)
    beside = pod_beside(claim, (await api.list(PODS, namespace)).items)
    claims = {ROOT: (volume, read_only)}
    spec = make_pod_spec(runtime, ["wait"], claims=claims, beside=beside, grace_seconds=1)
    spec["activeDeadlineSeconds"] = seconds
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "namespace": namespace}, "spec": spec}


async def open_files(api: Api, namespace: str, volume: str, user: str, runtime: Runtime) -> None:
    """Start the user's helper pod for a volume, unless it exists. Ended ones are deleted. Raises UsageError."""
    if not runtime.image:
        raise UsageError(
            "cannot start the helper pod: Moorage's image is not known",
            hint="an administrator can set MOORAGE_IMAGE for moor server",
        )
    if await helper_of(api, namespace, volume, user) is not None:
        return
    await close_files(api, namespace, volume, user)
    meta: Obj = {"generateName": "volume-files-", **owned_by(user)}
    meta["labels"] |= {VOLUME_FILES_LABEL: _label(volume, user)}
    pod = await make_helper(api, namespace, volume, runtime, meta, read_only=False, seconds=OPEN_SECONDS)
    await api.create(PODS, pod, namespace)


async def close_files(api: Api, namespace: str, volume: str, user: str) -> None:
    """Delete the user's helper pods for a volume."""
    for pod in await _helpers(api, namespace, volume, user):
        with contextlib.suppress(NotFound):
            await api.delete(PODS, pod["metadata"]["name"], namespace, uid=pod["metadata"]["uid"])


async def helper_of(api: Api, namespace: str, volume: str, user: str) -> Helper | None:
    """The user's helper pod for a volume; None if there is none, or it has ended."""
    for pod in await _helpers(api, namespace, volume, user):
        if not (is_deleting(pod) or parse_pod(pod).finished):
            is_ready = (pod.get("status") or {}).get("phase") == "Running"
            python = pod["spec"]["containers"][0]["command"][0]
            return Helper(pod["metadata"]["name"], python, is_ready, "" if is_ready else why_waiting(pod))
    return None


class VolumeFiles(Struct, frozen=True):
    """The files of a volume, by its helper pod that runs. Paths are relative to the root of the volume.

    Methods raise UsageError for a path that the volume does not have, and MoorageError for other failures.
    """

    api: Api
    namespace: str
    helper: Helper

    async def listing(self, path: str, *, first: int = 0) -> Listing:
        """A page of a folder; "" is the root of the volume."""
        result = await self._result("list", path, f"--first={first}", f"--most={ENTRIES}")
        entries = (
            Entry(str(name), str(kind), int(size), _moment(int(mtime)))
            for name, kind, size, mtime in result["entries"]
        )
        return Listing(tuple(entries), int(result["total"]))

    @contextlib.asynccontextmanager
    async def reading(self, path: str, *, most: int | None = None) -> AsyncGenerator[Reading]:
        """Yield the size of a file, and its bytes; with `most`, only the first ones."""
        more = () if most is None else (f"--most={most}",)
        async with await self._start("read", path, *more) as process:
            output = _output(process)
            head, first = await _head(output)
            yield integer_or(str(head.get("size")), 0), _joined(first, output)

    async def write(self, path: str, content: AsyncIterable[bytes]) -> None:
        """Write a file; if the content or the connection breaks off, the volume is as before."""
        async with await self._start("write", path, stdin=True) as process:
            try:
                async for piece in content:
                    if piece:
                        await process.write(LENGTH.pack(len(piece)) + piece)
                await process.write(LENGTH.pack(0))
            except ServerError:
                pass  # it has ended before: its output has the reason
            _checked(last_result((await process.output())[1]))

    async def delete(self, path: str) -> None:
        """Delete a file, or a folder with all its content."""
        await self._result("delete", path)

    async def _result(self, command: str, path: str, *options: str) -> dict[str, Any]:
        async with await self._start(command, path, *options) as process:
            return _checked(last_result((await process.output())[1]))

    async def _start(self, command: str, path: str, *options: str, stdin: bool | None = None) -> ExecProcess:
        try:
            path = checked(path) if path else ""
        except MoorageError as error:
            raise UsageError(error.message, code=ErrorCode.INVALID, field="path") from error
        words = [self.helper.python, "-m", "moorage.filler", command, f"--root={ROOT}", f"--path={path}", *options]
        process: ExecProcess = await cast(Any, self.api).exec(self.helper.name, self.namespace, words, stdin=stdin)
        return process


def _moment(nanoseconds: int) -> datetime | None:
    try:
        return EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None


async def _helpers(api: Api, namespace: str, volume: str, user: str) -> Sequence[Obj]:
    selector = f"{VOLUME_FILES_LABEL}={_label(volume, user)}"
    return (await api.list(PODS, namespace, label_selector=selector)).items


def _label(volume: str, user: str) -> str:
    return hashlib.sha256(f"{volume}\0{user}".encode()).hexdigest()[:32]


async def _output(process: ExecProcess) -> AsyncGenerator[bytes]:
    async for channel, data in process:
        if channel == STDOUT:
            yield data


async def _head(output: AsyncIterator[bytes]) -> tuple[dict[str, Any], bytes]:
    """The first line of an output as JSON, and the bytes after it that have arrived."""
    seen = b""
    async for data in output:
        seen += data
        line, end, rest = seen.partition(b"\n")
        if end or len(seen) > HEAD_BYTES:
            return _checked(last_result(line)), rest
    return _checked(None), b""


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for data in rest:
        yield data


def _checked(result: dict[str, Any] | None) -> dict[str, Any]:
    """The result of a helper's command. Raises UsageError for a failure that another path avoids."""
    if result is None:
        raise MoorageError("the helper pod gave no answer", hint="close the files, and open them again")
    if result["phase"] == "failed":
        message = str(result.get("message") or "the helper pod failed")
        if result.get("reason") == "BadSource":
            raise UsageError(message, code=ErrorCode.NOT_FOUND)
        if result.get("final"):
            raise UsageError(message, hint=result.get("hint"), code=ErrorCode.CONFLICT)
        raise MoorageError(message, hint=result.get("hint"))
    return result
