"""The web pages of the files of a volume: list a folder, look at a text, download, upload and delete.

They work through a helper pod that the user starts. So the cluster's rights decide, and a GET starts no pod.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator
from datetime import datetime
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from moorage.actions import volumefiles, volumes
from moorage.actions.volumefiles import ENTRIES, Entry, Helper, Listing, VolumeFiles
from moorage.controllers.dataset.filler import find_runtime
from moorage.filler.paths import shown
from moorage.present.sizes import bytes_text
from moorage.server.inputs import whole_number
from moorage.server.multipart import read_parts
from moorage.server.pages.board import When, ago
from moorage.server.pages.paging import address
from moorage.server.pages.site import Page, Question, Site, done, key_in, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError

HERE = "/volumes"
FILES = f"{HERE}/{{namespace}}/{{name}}/files"
CONTROLS = ("read volume file", "create run")
TEXT_BYTES = 256 * 1024  # of a file that is shown
UPLOAD_BYTES = 10 * 1024**3  # of one form
ENTRIES_MAX = 10_000_000


class FileRow(Struct, frozen=True, kw_only=True):
    """An entry of a folder. `path` is empty for an entry that has no address: a link, or an odd name."""

    name: str
    kind: str
    path: str
    size: str
    when: When | None


class Crumb(Struct, frozen=True):
    """A folder on the way to the shown one."""

    name: str
    path: str


class TextFile(Struct, frozen=True):
    """A file that is shown. `text` is None for a file that is not text; `is_cut`: only its beginning is shown."""

    text: str | None
    size: str
    is_cut: bool


async def show(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The web page of a folder of a volume."""
    namespace, name = key_in(request)
    api, path = site.context.acting(request.state.user), _path(request)
    await volumes.get_volume(api, namespace, name)
    helper = await volumefiles.helper_of(api, namespace, name, request.state.user.name)
    first, listing = whole_number(request, "first", maximum=ENTRIES_MAX) or 0, None
    if helper is not None and helper.is_ready:
        try:
            listing = await VolumeFiles(api, namespace, helper).listing(path, first=first)
        except (Problem, MoorageError) as error:
            problem = problem or problem_to_show(error)
    return await _page(site, request, problem, helper=helper, listing=listing, first=first)


async def open_(site: Site, request: Request) -> Response:
    """Start the helper pod that reads and writes the files of a volume."""
    form = await read_form(request)
    namespace, name = key_in(request)
    user = request.state.user
    site.context.audit(request, "open files of volume", f"{namespace}/{name}")
    try:
        runtime = await find_runtime(site.context.api)
        await volumefiles.open_files(site.context.acting(user), namespace, name, user.name, runtime)
    except (Problem, MoorageError) as error:
        return await show(site, request, problem_to_show(error))
    return RedirectResponse(address(_here(request), [("path", form.get("path", ""))]), 303)


async def close(site: Site, request: Request) -> Response:
    """Delete the helper pod."""
    namespace, name = key_in(request)
    user = request.state.user
    site.context.audit(request, "close files of volume", f"{namespace}/{name}")
    await volumefiles.close_files(site.context.acting(user), namespace, name, user.name)
    return done(f"{HERE}/{namespace}/{name}", "closed-files", f"{namespace}/{name}")


async def show_text(site: Site, request: Request) -> Response:
    """The page of a file of a volume: its text, if it is one."""
    files, path = await _files(site, request), _path(request)
    async with files.reading(path, most=TEXT_BYTES) as (size, pieces):
        data = b"".join([piece async for piece in pieces])
    is_cut = size > len(data)
    file = TextFile(_text_of(data, is_cut=is_cut), bytes_text(size), is_cut)
    return await _page(site, request, file=file)


async def download(site: Site, request: Request) -> Response:
    """Download a file of a volume."""
    files, path, sizes = await _files(site, request), _path(request), list[int]()
    content = _content(files, path, sizes)
    await anext(content)
    headers = {
        "content-length": str(sizes[0]),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2], safe='')}",
    }
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)


async def upload(site: Site, request: Request) -> Response:
    """Write the files of a form to a folder of a volume; files of the same names are replaced."""
    namespace, name = key_in(request)
    folder, count = _path(request), 0
    site.context.audit(request, "upload to volume", f"{namespace}/{name}:/{folder[:200]}")
    try:
        files = await _files(site, request)
        async for part in read_parts(request, UPLOAD_BYTES):
            if part.name == "files" and part.filename:
                last = part.filename.replace("\\", "/").rpartition("/")[2]
                await files.write(f"{folder}/{last}" if folder else last, part.content)
                count += 1
        if not count:
            raise Problem(422, "invalid", "choose a file to upload", field="files")
    except (Problem, MoorageError) as error:
        return await show(site, request, problem_to_show(error))
    return _changed(request, folder, "uploaded")


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a file or folder of a volume is deleted."""
    namespace, name = key_in(request)
    path = _path(request)
    await volumes.get_volume(site.context.acting(request.state.user), namespace, name)
    question = Question(
        title=say("Delete {what} {name}?", what=say("file or folder"), name=shown(path)),
        lines=(say("It is on volume {name}. A folder is deleted with all its files.", name=name),),
        button="Delete",
        action=address(f"{_here(request)}/delete", [("path", path)]),
        back=address(_here(request), [("path", path.rpartition("/")[0])]),
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a file or folder of a volume, after the page has asked."""
    namespace, name = key_in(request)
    path = _path(request)
    site.context.audit(request, "delete from volume", f"{namespace}/{name}:/{path[:200]}")
    try:
        await (await _files(site, request)).delete(path)
    except (Problem, MoorageError) as error:
        return await ask_delete(site, request, problem_to_show(error))
    return _changed(request, path.rpartition("/")[0], "deleted-file")


PAGES = (
    Page(method="GET", path=FILES, handler=show),
    Page(method="POST", path=f"{FILES}/open", handler=open_),
    Page(method="POST", path=f"{FILES}/close", handler=close),
    Page(method="GET", path=f"{FILES}/text", handler=show_text),
    Page(method="GET", path=f"{FILES}/download", handler=download),
    Page(method="POST", path=f"{FILES}/upload", handler=upload),
    Page(method="GET", path=f"{FILES}/delete", handler=ask_delete, controls=("read volume file",)),
    Page(method="POST", path=f"{FILES}/delete", handler=delete),
)


async def _page(
    site: Site,
    request: Request,
    problem: Problem | None = None,
    *,
    helper: Helper | None = None,
    listing: Listing | None = None,
    first: int = 0,
    file: TextFile | None = None,
) -> Response:
    namespace, name = key_in(request)
    path, now = _path(request), site.context.now()
    parts = path.split("/") if path else []
    return site.page(
        request,
        "volume_files.html",
        HERE,
        problem=problem,
        live=False,
        namespace=namespace,
        name=name,
        at=_here(request),
        path=path,
        crumbs=[Crumb(_readable(part), "/".join(parts[: at + 1])) for at, part in enumerate(parts)],
        helper=helper,
        rows=None if listing is None else [file_row(entry, path, now) for entry in listing.entries],
        first=first,
        step=ENTRIES,
        total=0 if listing is None else listing.total,
        file=file,
        rights=await site.allowed(request, CONTROLS, [namespace]),
    )


def file_row(entry: Entry, folder: str, now: datetime) -> FileRow:
    """An entry of a folder as the page shows it."""
    is_plain = entry.kind in ("file", "folder")
    return FileRow(
        name=_readable(entry.name),
        kind=entry.kind,
        path=(f"{folder}/{entry.name}" if folder else entry.name) if is_plain else "",
        size=bytes_text(entry.size) if entry.kind == "file" else "",
        when=ago(entry.changed, now),
    )


def _readable(name: str) -> str:
    """A name without line ends, and without characters that change the direction of the text."""
    return name if name.isprintable() else ascii(name)


def _text_of(data: bytes, *, is_cut: bool) -> str | None:
    """The text of a file; None if it is not text in UTF-8."""
    if b"\0" in data:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None


async def _content(files: VolumeFiles, path: str, sizes: list[int]) -> AsyncGenerator[bytes]:
    """The bytes of a file. First comes an empty piece: then the file is open, and `sizes` has its size."""
    async with files.reading(path) as (size, pieces):
        sizes.append(size)
        yield b""
        async for piece in pieces:
            yield piece


async def _files(site: Site, request: Request) -> VolumeFiles:
    """The files of the volume of the path. Raises Problem 409 if its helper pod does not run."""
    namespace, name = key_in(request)
    user = request.state.user
    api = site.context.acting(user)
    helper = await volumefiles.helper_of(api, namespace, name, user.name)
    if helper is None or not helper.is_ready:
        raise Problem(409, "conflict", f"the files of volume {name} are not open", "open them on its page")
    return VolumeFiles(api, namespace, helper)


def _changed(request: Request, folder: str, outcome: str) -> Response:
    namespace, name = key_in(request)
    fields = [("path", folder), ("done", outcome), ("what", f"{namespace}/{name}")]
    return RedirectResponse(address(_here(request), fields), 303)


def _path(request: Request) -> str:
    return request.query_params.get("path", "").strip("/")


def _here(request: Request) -> str:
    namespace, name = key_in(request)
    return f"{HERE}/{namespace}/{name}/files"
