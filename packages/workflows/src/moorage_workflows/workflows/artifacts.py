"""Artifacts of workflows' steps: files of any size under keys, in a folder, or in a bucket by fsspec.

A key is like a path, `train/train-prepare-1/model.tgz`; keys of a store begin with the namespace. Each artifact is
complete or absent: a folder gets it by a rename, a bucket when its upload is completed.
https://filesystem-spec.readthedocs.io
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from moorage.settings import ARTIFACTS_PER_NAMESPACE
from moorage_kube.bodies import BodyTooLong
from moorage_kube.cache import BoundedCache
from moorage_kube.databasefile import sync_folder
from moorage_kube.errors import BadRequest, MoorageError, NotFound, QuotaExceeded, StorageError, StorageFull
from moorage_workflows.executor.folders import sum_of
from moorage_workflows.model.workflow import Artifact

log = logging.getLogger(__name__)

KEY_BYTES = 900  # S3 takes 1,024 with the prefix
PART_BYTES = 255  # of one name in a key, as file systems take it
CHUNK = 1 << 20  # bytes that are written or read at once
RESERVE_BYTES = 256 << 20  # of the disk that are reserved for the databases next to the folder
BELOW_MAX = 10_000  # artifacts that one key may stand for
LOOK_EVERY = 16  # chunks between two looks at the disk
BUCKETS = ("s3", "gs", "gcs", "memory")  # memory: for tests
SIZES_KEPT, SIZE_SECONDS = 10_000, 60.0  # of namespaces: how many are remembered, and how long
_COMING = ".coming"  # folder of incomplete artifacts
_SUFFIXES = {"tar": ".tgz", "zip": ".zip", "none": ""}

A = TypeVar("A")
T = TypeVar("T")


def make_key(workflow: str, pod: str, name: str, archive: str) -> str:
    """Return Argo's default key of an artifact, relative to its namespace."""
    return f"{workflow}/{pod}/{name}{_SUFFIXES.get(archive, '')}"


def check_key(key: str) -> str:
    """Return the key. Raises BadRequest if it could lead out of the store, or if some store does not allow it."""
    parts = key.split("/")
    if len(key.encode(errors="replace")) > KEY_BYTES:
        raise BadRequest(f"the key has more than {KEY_BYTES} bytes: {key[:60]!r}…", field="key")
    for part in parts:
        if part in ("", ".", "..") or part == _COMING:
            raise BadRequest(f"invalid key {key!r}: each part between slashes must be a name", field="key")
        if len(part.encode(errors="replace")) > PART_BYTES or "\\" in part or not part.isprintable():
            raise BadRequest(
                f"invalid key {key!r}: a part has at most {PART_BYTES} printable bytes and no backslash",
                field="key",
            )
    return key


class Content(Struct, frozen=True, kw_only=True):
    """An open artifact with its stored bytes. Read `parts` to the end, or close them."""

    size_bytes: int
    parts: AsyncIterator[bytes]


class Place(Protocol):
    """A store of artifacts. Every method blocks, and raises OSError; callers check the keys."""

    @property
    def name(self) -> str:
        """The place of the store, for messages."""
        ...

    def create(self, key: str) -> Upload: ...

    def open(self, key: str) -> tuple[BinaryIO, int]:
        """Return the open file and its size in bytes. Raises FileNotFoundError."""
        ...

    def delete(self, key: str) -> None:
        """Raises FileNotFoundError."""
        ...

    def version(self, key: str) -> str:
        """Return a string that changes with each write, even of the same bytes. Raises FileNotFoundError."""
        ...

    def written(self, key: str) -> datetime:
        """Return the time of the last write. Raises FileNotFoundError."""
        ...

    def below(self, key: str) -> list[str]:
        """The keys below this one, relative to it, in order; empty if there are none."""
        ...

    def size(self, namespace: str) -> int:
        """Return the number of stored bytes of a namespace."""
        ...

    def collect(self, older: datetime) -> int:
        """Delete artifacts that were written before a moment; return their number."""
        ...


class Upload(Protocol):
    """A file that is being written. It exists after `commit`; `discard` deletes all parts of it."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class Artifacts:
    """One store of artifacts, used from an event loop: each step of reading and writing runs in a thread.

    Methods raise StorageError, and StorageFull where there is no room; BadRequest for a bad key. `place` None:
    there is no store, and `refusal` is the hint of the error.
    """

    def __init__(
        self, place: Place | None, *, most_bytes: int, namespace_bytes: int = 0, refusal: str = ""
    ) -> None:
        """`namespace_bytes`: the limit for all artifacts of one namespace; 0: no limit."""
        self._place = place
        self._refusal = refusal
        self.most_bytes = most_bytes
        self._namespace_bytes = namespace_bytes
        self._sizes: BoundedCache[str, int] = BoundedCache(SIZES_KEPT, keep_seconds=SIZE_SECONDS)
        self._coming: Counter[str] = Counter()  # bytes by namespace that are being written

    async def put(self, parts: AsyncIterable[bytes], key: str, *, name: str, archive: str = "none") -> Artifact:
        """Store a stream under a key; an artifact with this key is replaced.

        Raises BodyTooLong beyond `most_bytes`, QuotaExceeded beyond the bytes of the key's namespace.

        After any error, also one of the stream, the store is as it was before.
        """
        # the namespace may be full before the first byte
        place, digest, size = self._use(), hashlib.sha256(), 0
        check_key(key)
        namespace = key.partition("/")[0]
        await self._check_room(place, namespace)
        upload = await self._do("write", lambda: place.create(key))
        whole = False
        # limits are checked with every chunk: uploads of one namespace run at once
        try:
            async for chunk in _chunks(parts):
                size += len(chunk)
                self._coming[namespace] += len(chunk)
                if size > self.most_bytes:
                    raise BodyTooLong(self.most_bytes)
                await self._check_room(place, namespace)
                await self._do("write", partial(_add, upload, digest, chunk))
            await self._do("write", upload.commit)
            whole = True
            version = await self._do("read", lambda: _or_none(place.version, key))
        # discard an incomplete upload, also when the caller is cancelled
        finally:
            self._coming[namespace] -= size
            if whole:
                self._sizes.change(namespace, self._sizes.get(namespace, 0) + size)
            if not self._coming[namespace]:
                del self._coming[namespace]
            if not whole:
                await asyncio.shield(asyncio.to_thread(_discard, upload))
        return Artifact(
            name=name,
            key=key,
            size_bytes=size,
            digest=f"sha256:{digest.hexdigest()}",
            archive=archive,
            version=version or "",
        )

    async def _check_room(self, place: Place, namespace: str) -> None:
        """Raise QuotaExceeded if a namespace exceeds its limit, including bytes that are being written."""
        if not self._namespace_bytes:
            return
        if (stored := self._sizes.get(namespace)) is None:
            stored = await self._do("list", lambda: place.size(namespace))
            self._sizes.put(namespace, stored)
        if stored + self._coming[namespace] > self._namespace_bytes:
            raise QuotaExceeded(
                f"the artifacts of namespace {namespace} have {stored:,} bytes; {self._coming[namespace]:,} more"
                f" exceed the limit of {self._namespace_bytes:,}",
                hint="save less, give artifacts an `artifactGC`, or save them to a bucket (`s3`, `gcs`); an"
                f" administrator sets {ARTIFACTS_PER_NAMESPACE.name}",
            )

    async def open(self, key: str, since: datetime | None = None) -> Content:
        """Open an artifact. Raises NotFound, also for an artifact that was written before `since`."""
        place = self._use()
        check_key(key)
        opened = await self._do("read", lambda: _or_none(partial(_open, place, since), key))
        if opened is None:
            raise NotFound(f"there is no artifact {key!r}", hint="it was deleted, or never saved")
        file, size = opened
        return Content(size_bytes=size, parts=self._parts(file))

    async def below(self, key: str, since: datetime | None = None) -> list[str]:
        """The keys that begin with this one and "/", relative to it, in order.

        Artifacts that were written before `since` are left out. Raises BadRequest for more than BELOW_MAX.
        """
        place = self._use()
        check_key(key)
        names: list[str] = await self._do("list", lambda: _below(place, key, since))
        if len(names) > BELOW_MAX:
            raise BadRequest(f"{len(names)} artifacts are stored below {key!r}; at most {BELOW_MAX} are fetched")
        return names

    async def delete(self, key: str, *, version: str | None = None) -> bool:
        """Delete an artifact; return whether it existed. `version`: leave it if it has another version."""
        place = self._use()
        check_key(key)
        if version is not None and await self._do("read", lambda: _or_none(place.version, key)) != version:
            return False
        self._sizes.drop(key.partition("/")[0])
        return bool(await self._do("delete", lambda: _or_none(_deleted, (place, key))))

    async def delete_folder(self, key: str, *, version: str) -> bool:
        """Delete all artifacts below a key.

        Returns False, and deletes nothing, if the folder has another `version`.
        """
        names = await self.below(key)
        place = self._use()
        versions = {
            name: await self._do("read", partial(_or_none, place.version, f"{key}/{name}")) for name in names
        }
        if sum_of({name: each or "" for name, each in versions.items()}) != version:
            return False
        for name in names:
            await self.delete(f"{key}/{name}")
        return True

    async def collect(self, older: datetime) -> int:
        """Delete artifacts that were written before a moment; return their number."""
        place = self._place
        return 0 if place is None else await self._do("clean", lambda: place.collect(older))

    async def _parts(self, file: BinaryIO) -> AsyncIterator[bytes]:
        try:
            while data := await self._do("read", lambda: file.read(CHUNK)):
                yield data
        finally:
            await asyncio.shield(asyncio.to_thread(file.close))

    def _use(self) -> Place:
        if self._place is None:
            raise StorageError("this server does not store artifacts", hint=self._refusal)
        return self._place

    async def _do(self, verb: str, work: Any) -> Any:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise _storage_error(error, f"could not {verb} artifacts in {self._use().name}") from error
        except MoorageError:
            raise
        except Exception as error:  # each object store's library has its own errors
            raise StorageError(f"could not {verb} artifacts in {self._use().name}: {error}") from error


def open_artifacts(where: Path | str, *, most_bytes: int, namespace_bytes: int = 0) -> Artifacts:
    """Open a folder, which is created if necessary, or `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`.

    The environment has the credentials of a bucket: https://boto3.amazonaws.com, https://gcsfs.readthedocs.io
    Raises StorageError.
    """
    scheme = urlsplit(where).scheme if isinstance(where, str) else ""
    if scheme in BUCKETS:
        return Artifacts(Bucket(str(where)), most_bytes=most_bytes, namespace_bytes=namespace_bytes)
    path = Path(str(where).removeprefix("file://"))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"the folder of artifacts {path} cannot be made: {error.strerror}") from error
    return Artifacts(Folder(path), most_bytes=most_bytes, namespace_bytes=namespace_bytes)


class Folder:
    """Artifacts as files below a folder that only this process writes to."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    def create(self, key: str) -> _FileUpload:
        self._keep_reserve()
        coming = self._root / _COMING
        coming.mkdir(exist_ok=True, mode=0o700)
        return _FileUpload(self, coming / secrets.token_hex(8), self._root / key)

    def open(self, key: str) -> tuple[BinaryIO, int]:
        try:
            file = (self._root / key).open("rb")
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(key) from error
        return file, os.fstat(file.fileno()).st_size

    def delete(self, key: str) -> None:
        path = self._root / key
        try:
            path.unlink()
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise FileNotFoundError(key) from error
        self._prune(path.parent)

    def version(self, key: str) -> str:
        try:
            status = (self._root / key).stat()
        except NotADirectoryError as error:
            raise FileNotFoundError(key) from error
        return f"{status.st_ino}-{status.st_mtime_ns}"

    def written(self, key: str) -> datetime:
        return datetime.fromtimestamp((self._root / key).stat().st_mtime, UTC)

    def below(self, key: str) -> list[str]:
        root = self._root / key
        return sorted(
            str(Path(folder, name).relative_to(root)) for folder, _, names in os.walk(root) for name in names
        )

    def size(self, namespace: str) -> int:
        size = 0
        for folder, _, names in os.walk(self._root / namespace):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    size += Path(folder, name).lstat().st_size
        return size

    def collect(self, older: datetime) -> int:
        """Delete old artifacts, also incomplete ones that are not being written any more."""
        count = 0
        for folder, _, names in os.walk(self._root, topdown=False):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if datetime.fromtimestamp(path.lstat().st_mtime, UTC) < older:
                        path.unlink()
                        count += _COMING not in path.relative_to(self._root).parts[:1]
            if Path(folder) != self._root:
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()
        return count

    def _keep_reserve(self) -> None:
        """Raise OSError if the databases next to the folder would run out of room."""
        free = shutil.disk_usage(self._root).free
        if free < RESERVE_BYTES:
            raise OSError(
                errno.ENOSPC, f"{free >> 20} MiB are free; {RESERVE_BYTES >> 20} MiB are reserved for databases"
            )

    def _prune(self, folder: Path) -> None:
        """Delete folders that became empty."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


class _FileUpload:
    def __init__(self, folder: Folder, temporary: Path, target: Path) -> None:
        self._folder, self._temporary, self._target = folder, temporary, target
        self._chunks = 0
        self._file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        self._chunks += 1
        if self._chunks % LOOK_EVERY == 0:
            self._folder._keep_reserve()
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def commit(self) -> None:
        os.fsync(self._file)
        for _ in range(3):  # another may remove the folder while it is empty
            with contextlib.suppress(FileNotFoundError):
                self._make_parents()
                os.replace(self._temporary, self._target)
                sync_folder(self._target.parent)
                self._close()
                return
        raise OSError(errno.EIO, f"the folder of {self._target.name} is removed repeatedly")

    def _make_parents(self) -> None:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (FileExistsError, NotADirectoryError) as error:
            raise _taken(self._target) from error
        if self._target.is_dir():
            raise _taken(self._target)

    def discard(self) -> None:
        self._close()
        self._temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._file = self._file, -1
        if descriptor >= 0:
            os.close(descriptor)


class Bucket:
    """Artifacts as objects below a prefix of a bucket, by fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        scheme, _, path = url.rstrip("/").partition("://")
        self._url, self._root = url, path
        try:
            self._files = fsspec.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"artifacts cannot be stored in {url}: {error}", hint="install moorage with the extra `datasets`"
            ) from error

    @property
    def name(self) -> str:
        return self._url

    def create(self, key: str) -> _ObjectUpload:
        return _ObjectUpload(self._files, self._path(key))

    def open(self, key: str) -> tuple[BinaryIO, int]:
        path = self._path(key)
        self._files.invalidate_cache()
        info = self._files.info(path)
        if info.get("type") != "file":
            raise FileNotFoundError(key)
        file: BinaryIO = self._files.open(path, "rb", block_size=8 * CHUNK, cache_type="readahead")
        return file, int(info["size"])

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._files.invalidate_cache()
        if not self._files.isfile(path):
            raise FileNotFoundError(key)
        self._files.rm_file(path)

    def version(self, key: str) -> str:
        self._files.invalidate_cache()
        info = self._files.info(self._path(key))
        names = ("generation", "VersionId", "ETag", "LastModified", "created")
        return " ".join(str(info[name]) for name in names if info.get(name))

    def written(self, key: str) -> datetime:
        at = _written(self._files.info(self._path(key)))
        if at is None:
            raise OSError(errno.EIO, f"{self._url} does not say when {key} was written")
        return at

    def below(self, key: str) -> list[str]:
        path = self._path(key)
        self._files.invalidate_cache()
        try:
            return sorted(str(name).removeprefix(f"{path}/") for name in self._files.find(path) if name != path)
        except FileNotFoundError:
            return []

    def size(self, namespace: str) -> int:
        self._files.invalidate_cache()
        try:
            objects = self._files.find(self._path(namespace), detail=True)
        except FileNotFoundError:
            return 0
        return sum(int(info.get("size") or 0) for info in objects.values())

    def collect(self, older: datetime) -> int:
        count = 0
        for path in list(self._old(older)):
            self._files.rm_file(path)
            count += 1
        return count

    def _old(self, older: datetime) -> Iterator[str]:
        self._files.invalidate_cache()
        try:
            objects = self._files.find(self._root, detail=True)
        except FileNotFoundError:
            return
        for path, info in objects.items():
            if (at := _written(info)) is not None and at < older:
                yield path

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


class _ObjectUpload:
    def __init__(self, files: Any, path: str) -> None:
        self._file = files.open(path, "wb", block_size=8 * CHUNK, autocommit=False)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        self._file.close()
        self._file.commit()

    def discard(self) -> None:
        """Abort the upload. Otherwise the store keeps its parts, and the user pays for them."""
        try:
            self._file.discard()
        finally:
            self._file.closed = True  # else the garbage collector completes it


def _written(info: Mapping[str, Any]) -> datetime | None:
    """Return the time of the last write of an object; each library has another field for it."""
    at = info.get("LastModified") or info.get("updated") or info.get("created")
    if isinstance(at, str):
        at = datetime.fromisoformat(at)
    return at.replace(tzinfo=at.tzinfo or UTC) if isinstance(at, datetime) else None


def _open(place: Place, since: datetime | None, key: str) -> tuple[BinaryIO, int]:
    if since is not None and place.written(key) < since:
        raise FileNotFoundError(key)
    return place.open(key)


def _below(place: Place, key: str, since: datetime | None) -> list[str]:
    names = place.below(key)
    return names if since is None else [name for name in names if place.written(f"{key}/{name}") >= since]


def _or_none(work: Callable[[A], T], argument: A) -> T | None:
    """Return the result; None if the file does not exist."""
    try:
        return work(argument)
    except FileNotFoundError:
        return None


def _deleted(what: tuple[Place, str]) -> bool:
    place, key = what
    place.delete(key)
    return True


def _add(upload: Upload, digest: Any, chunk: bytes) -> None:
    upload.write(chunk)
    digest.update(chunk)


def _discard(upload: Upload) -> None:
    try:
        upload.discard()
    except Exception as error:  # the first error is the one to report
        log.warning("an upload could not be discarded", extra={"error": str(error)})


def _taken(target: Path) -> BadRequest:
    return BadRequest(
        f"the key of {target.name!r} is a folder of another key, or below another key",
        hint="a key may not be a folder of other keys",
        field="key",
    )


def _storage_error(error: OSError, what: str) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"{what}: its disk is full ({error.strerror})",
            hint="free some space, or store artifacts in a bucket: MOORAGE_ARTIFACTS; stored artifacts stay",
        )
    return StorageError(f"{what}: {error.strerror or error}")


async def _chunks(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Join small parts to pieces of at least CHUNK bytes, because each piece costs a call of a thread."""
    waiting: list[bytes] = []
    size = 0
    async for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if size:
        yield b"".join(waiting)
