"""The sources of data: HTTP servers, object stores, folders of volumes.

A source lists its files with a *version* of each (ETag, generation, time of change), and reads a file from
any offset. When a version is no longer the one listed, reading or the second listing raises SourceChanged.
"""

from __future__ import annotations

import asyncio
import html.parser
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from moorage.filler.errors import (
    BadSource,
    SourceChanged,
    SourceDenied,
    SourceEmpty,
    SourceFailed,
    SourceNotFound,
    TooManyFiles,
    UnsafePath,
)
from moorage.filler.paths import checked, shown
from moorage.filler.tree import Tree

if TYPE_CHECKING:
    import aiohttp

CHUNK = 4 * 1024 * 1024
OBJECT_CHUNK = 8 * 1024 * 1024  # one request to an object store
HEADS = 32  # requests under way at once while a web server is listed
DEPTH = 32  # folders of a web server below one another
PAGE_BYTES = 64 * 1024 * 1024  # of one page that lists a folder
PATIENCE_SECONDS = 60.0  # without a byte
HTTP_AUTHORIZATION = (
    "MOORAGE_HTTP_AUTHORIZATION"  # environment: the header's value, sent to the source's own host only
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file at the source. `size` None: unknown. `version` "": unknown."""

    path: str
    size: int | None
    version: str
    where: str  # for the source itself: URL, key, or path


class Source(Protocol):
    """A source of files. Every method raises subclasses of FillError."""

    async def entries(self, *, most: int) -> list[Entry]:
        """All current files, sorted by path. Raises TooManyFiles beyond `most`."""
        ...

    def read(self, entry: Entry, start: int = 0) -> AsyncIterator[bytes]:
        """The file from byte `start`. Raises SourceChanged if the file is known to have changed."""
        ...

    async def close(self) -> None: ...


def open_source(url: str, *, anonymous: bool = False, env: Mapping[str, str] = os.environ) -> Source:
    """Open the source of an address: https://, http://, s3://, gs://, or folder:/path of a mounted volume.

    Raises BadSource.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        return HttpSource(url, authorization=env.get(HTTP_AUTHORIZATION, ""))
    if scheme in ("s3", "gs"):
        return ObjectSource(open_store(scheme, anonymous=anonymous), url)
    if scheme == "folder":
        return FolderSource(Path(url.removeprefix("folder:")))
    raise BadSource(f"invalid source {shown(url)}: use s3://, gs://, https:// or http://")


class _Links(html.parser.HTMLParser):
    """The links of an HTML page, and whether the text of each link marks it as a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[str, bool] = {}
        self._open: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = next((value for name, value in attrs if tag == "a" and name == "href" and value), None)
        if self._open:
            self.addresses.setdefault(self._open, False)

    def handle_data(self, data: str) -> None:
        if self._open and data.rstrip().endswith("/"):
            self.addresses[self._open] = True


def links_of(page: str, url: str, base: str) -> Iterable[tuple[str, str]]:
    """(path, address) of the links of a listing below `base`; a path that ends in "/" is a folder.

    Links with a query (columns to sort by), to other hosts and upwards are no part of the listing. Raises
    UnsafePath for names that would lead out, such as "..%2f".
    """
    links = _Links()
    links.feed(page)
    root = urlsplit(base)
    for href, is_folder in links.addresses.items():
        try:
            there = urlsplit(urljoin(url, href))
        except ValueError:
            continue
        same = (there.scheme, there.netloc) == (root.scheme, root.netloc)
        if not same or there.query or not there.path.startswith(root.path) or there.path == root.path:
            continue
        path = unquote(there.path[len(root.path) :], errors="surrogateescape")
        checked(path.removesuffix("/"))
        if "%2f" in href.lower():
            raise UnsafePath(f"the listing at {url} has a name with a slash in it: {shown(href)}")
        slash = "/" if is_folder and not path.endswith("/") else ""
        yield path + slash, urlunsplit((there.scheme, there.netloc, there.path + slash, "", ""))


class HttpSource:
    """A web server: a single file, or, if the address ends in "/", all files in its folder listings."""

    def __init__(self, url: str, *, authorization: str = "") -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise BadSource(f"{shown(url)} has no host")
        self._url, self._authorization = url, authorization
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def entries(self, *, most: int) -> list[Entry]:
        files = await self._listed(most) if urlsplit(self._url).path.endswith("/") else [self._single()]
        limit = asyncio.Semaphore(HEADS)

        async def headed(path: str, url: str) -> Entry:
            async with limit:
                entry: Entry = await _patiently(lambda: self._head(path, url))
                return entry

        entries: list[Entry] = []
        for first in range(0, len(files), 1024):
            entries += await asyncio.gather(*(headed(path, url) for path, url in files[first : first + 1024]))
        return sorted(entries, key=lambda entry: entry.path)

    def _single(self) -> tuple[str, str]:
        name = unquote(posixpath.basename(urlsplit(self._url).path), errors="surrogateescape")
        if not name:
            raise BadSource(
                f"{shown(self._url)} has no file name", hint="an address that ends in / is listed as a folder"
            )
        return checked(name), self._url

    async def _listed(self, most: int) -> list[tuple[str, str]]:
        """All files below the folder. Each listing is read only once, so circular links are harmless."""
        files: dict[str, str] = {}
        seen = {self._url}
        level = [self._url]
        for _ in range(DEPTH):
            below: list[str] = []
            for url in level:
                page = await _patiently(lambda url=url: self._page(url))  # type: ignore[misc]
                for path, there in links_of(page, url, self._url):
                    if path.endswith("/"):
                        if there not in seen:
                            seen.add(there)
                            below.append(there)
                        continue
                    files[path] = there
                if len(files) > most or len(seen) > most:
                    raise TooManyFiles(f"the source has more than {most:,} files")
            if not below:
                return sorted(files.items())
            level = below
        raise BadSource(f"the source has folders more than {DEPTH} below one another")

    async def _page(self, url: str) -> str:
        async with self._http().get(url, headers=self._headers(url)) as answer:
            _judge(answer, url)
            kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            if kind not in ("text/html", "application/xhtml+xml"):
                raise BadSource(
                    f"{shown(url)} is not a listing of a folder but {kind or 'something without a type'}",
                    hint="leave the / at its end out to fetch one file",
                )
            body = bytearray()
            async for chunk in answer.content.iter_chunked(CHUNK):
                body += chunk
                if len(body) > PAGE_BYTES:
                    raise TooManyFiles(f"the listing at {shown(url)} has more than {PAGE_BYTES >> 20} MiB")
            return bytes(body).decode(answer.charset or "utf-8", errors="surrogateescape")

    async def _head(self, path: str, url: str) -> Entry:
        async with self._http().head(url, headers=self._headers(url), allow_redirects=True) as answer:
            if answer.status in (405, 501):
                return Entry(path, None, "", url)
            _judge(answer, url)
            if answer.url.path.endswith("/") and not urlsplit(url).path.endswith("/"):
                raise BadSource(f"{shown(url)} is a folder", hint="end its address with /")
            return Entry(path, _length(answer), _version(answer), url)

    async def read(self, entry: Entry, start: int = 0) -> AsyncIterator[bytes]:
        import aiohttp

        headers = self._headers(entry.where)
        etag = entry.version.removeprefix("etag ") if entry.version.startswith("etag ") else ""
        if start:
            headers["Range"] = f"bytes={start}-"
            if etag and not etag.startswith("W/"):
                headers["If-Range"] = etag
        try:
            async with self._http().get(entry.where, headers=headers) as answer:
                if start and answer.status == 416:
                    raise SourceChanged(f"{shown(entry.path)} has become shorter at the source")
                _judge(answer, entry.where)
                version = _version(answer)
                if entry.version and version and version != entry.version:
                    raise SourceChanged(f"{shown(entry.path)} has changed at the source")
                skip = start if answer.status != 206 else 0  # a server that knows no ranges begins at the front
                if answer.status == 206:
                    span = answer.headers.get("Content-Range", "")
                    if not span.startswith(f"bytes {start}-"):
                        raise SourceFailed(f"{shown(entry.path)}: the server answered with another range: {span}")
                async for chunk in answer.content.iter_chunked(CHUNK):
                    if skip:
                        left = chunk[skip:]
                        skip -= len(chunk) - len(left)
                        chunk = left
                    if chunk:
                        yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SourceFailed(f"{shown(entry.path)}: {error or type(error).__name__}") from error

    def _headers(self, url: str) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        if self._authorization and urlsplit(url)[:2] == urlsplit(self._url)[:2]:
            headers["Authorization"] = self._authorization
        return headers

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=PATIENCE_SECONDS)
            connector = aiohttp.TCPConnector(limit=HEADS)
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=connector, trust_env=True, auto_decompress=False
            )
        return self._session


def _judge(answer: aiohttp.ClientResponse, url: str) -> None:
    status = answer.status
    if status < 400:
        return
    if status in (401, 403):
        raise SourceDenied(f"{shown(url)} answered HTTP {status}")
    if status in (404, 410):
        raise SourceNotFound(f"{shown(url)} answered HTTP {status}")
    if status in (408, 425, 429) or status >= 500:
        raise SourceFailed(f"{shown(url)} answered HTTP {status}")
    raise BadSource(f"{shown(url)} answered HTTP {status}")


def _length(answer: aiohttp.ClientResponse) -> int | None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() and encoding in ("", "identity") else None


def _version(answer: aiohttp.ClientResponse) -> str:
    if etag := answer.headers.get("ETag"):
        return f"etag {etag}"
    changed = answer.headers.get("Last-Modified")
    return f"changed {changed}" if changed else ""


async def _patiently(ask: Callable[[], Any], *, tries: int = 5) -> Any:
    """Retry after temporary failures, first after half a second; each delay is twice as long."""
    import aiohttp

    for left in reversed(range(tries)):
        try:
            return await ask()
        except (aiohttp.ClientError, TimeoutError, OSError, SourceFailed) as error:
            if not left:
                if isinstance(error, SourceFailed):
                    raise
                raise SourceFailed(f"the source does not answer: {error or type(error).__name__}") from error
            await asyncio.sleep(0.5 * 2.0 ** (tries - 1 - left))
    raise AssertionError("unreachable")


def open_store(scheme: str, *, anonymous: bool = False) -> Any:
    """The fsspec file system of an object store. Credentials come from the environment, as for the store's tools.

    Raises BadSource if this image lacks the package for the store.
    """
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if anonymous:
        options |= {"anon": True} if scheme == "s3" else {"token": "anon"}
    try:
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        package = {"s3": "s3fs", "gs": "gcsfs"}[scheme]
        raise BadSource(f"{scheme}:// needs the package {package}: pip install 'moorage[datasets]'") from error


class ObjectSource:
    """All objects of a bucket below a prefix, or a single object, read with fsspec."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        parts = urlsplit(url, allow_fragments=False)
        if not parts.netloc:
            raise BadSource(f"{shown(url)} has no bucket")
        self._url = url
        self._root = url.split("://", 1)[1]

    async def close(self) -> None:
        return None

    async def entries(self, *, most: int) -> list[Entry]:
        return await asyncio.to_thread(self._entries, most)

    def _entries(self, most: int) -> list[Entry]:
        root = self._root.rstrip("/")
        with_store = in_our_words(self._url)
        objects = with_store(lambda: self._store.find(root, detail=True))
        if not objects:
            raise SourceNotFound(f"no files found at {shown(self._url)}")
        if len(objects) > most:
            raise TooManyFiles(f"{shown(self._url)} has {len(objects):,} files; at most {most:,}")
        entries = []
        for key, info in objects.items():
            if info.get("type") == "directory" or key.endswith("/"):
                continue  # a marker that stands for an empty folder
            path = posixpath.basename(root) if key == root else key[len(root) + 1 :]
            entries.append(Entry(checked(path), int(info["size"]), object_version(info), key))
        if not entries:
            raise SourceEmpty(f"no files found at {shown(self._url)}")
        return sorted(entries, key=lambda entry: entry.path)

    async def read(self, entry: Entry, start: int = 0) -> AsyncIterator[bytes]:
        with_store = in_our_words(f"{self._url}: {entry.path}")
        assert entry.size is not None
        while start < entry.size:
            end = min(start + OBJECT_CHUNK, entry.size)
            data = await asyncio.to_thread(
                with_store, lambda start=start, end=end: self._store.cat_file(entry.where, start=start, end=end)
            )
            if len(data) != end - start:
                raise SourceChanged(f"{shown(entry.path)} has become shorter at the source")
            yield data
            start = end


def object_version(info: Mapping[str, Any]) -> str:
    """A text that differs between contents of an object."""
    for name in ("generation", "ETag", "etag", "md5Hash", "crc32c", "LastModified", "updated", "mtime"):
        if info.get(name):
            return f"{name} {info[name]}"
    return ""


def in_our_words(what: str) -> Callable[[Callable[[], R]], R]:
    """Run a call of fsspec; convert its errors, and those of the stores' packages, to FillErrors."""

    def run(call: Callable[[], R]) -> R:
        try:
            return call()
        except FileNotFoundError as error:
            raise SourceNotFound(f"{shown(what)}: not found") from error
        except PermissionError as error:
            raise SourceDenied(f"{shown(what)}: {error}") from error
        except (OSError, TimeoutError) as error:
            raise SourceFailed(f"{shown(what)}: {error}") from error
        except Exception as error:  # botocore's and google's own classes, of packages that may not be there
            text = f"{type(error).__name__}: {error}"
            if "Credential" in text or "Forbidden" in text or "AccessDenied" in text:
                raise SourceDenied(f"{shown(what)}: {text}") from error
            raise SourceFailed(f"{shown(what)}: {text}") from error

    return run


class FolderSource:
    """A folder of a mounted volume. Links to files inside the folder are read as those files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tree: Tree | None = None

    async def close(self) -> None:
        if self._tree is not None:
            self._tree.close()

    async def entries(self, *, most: int) -> list[Entry]:
        return await asyncio.to_thread(self._entries, most)

    def _opened(self) -> Tree:
        if self._tree is None:
            if not self._folder.is_dir():
                raise SourceNotFound(f"folder {self._folder.name!r} not found on the volume")
            self._tree = Tree(self._folder)
        return self._tree

    def _entries(self, most: int) -> list[Entry]:
        tree, entries = self._opened(), []
        root = os.path.realpath(self._folder)
        for entry in tree.walk():
            path, where = entry.path, entry.path
            if entry.kind == "folder":
                continue
            if entry.kind == "link":
                where = os.path.relpath(os.path.realpath(os.path.join(root, path)), root)
                behind = tree.stat(where) if where != "." and where.split("/")[0] != ".." else None
                if behind is None or behind.kind != "file":
                    raise UnsafePath(
                        f"{shown(path)} is a link to {shown(entry.target)}, which is not a file of this folder"
                    )
                entry = behind
            elif entry.kind != "file":
                raise UnsafePath(f"{shown(path)} is neither a file nor a folder")
            entries.append(Entry(checked(path), entry.size, f"mtime {entry.mtime_ns}", where))
            if len(entries) > most:
                raise TooManyFiles(f"the source has more than {most:,} files")
        if not entries:
            raise SourceEmpty("the source has no file")
        return sorted(entries, key=lambda entry: entry.path)

    async def read(self, entry: Entry, start: int = 0) -> AsyncIterator[bytes]:
        tree = self._opened()
        try:
            fd = await asyncio.to_thread(tree.open, entry.where)
        except FileNotFoundError as error:
            raise SourceChanged(f"{shown(entry.path)} is no longer at the source") from error
        with os.fdopen(fd, "rb", buffering=0) as file:
            before = os.fstat(fd)
            if f"mtime {before.st_mtime_ns}" != entry.version or before.st_size != entry.size:
                raise SourceChanged(f"{shown(entry.path)} has changed at the source")
            file.seek(start)
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                yield chunk
