"""The code of a run that a form uploads: an archive or files, packed as `moor run` packs a folder."""

from __future__ import annotations

import asyncio
import binascii
import gzip
import hashlib
import io
import tarfile
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from starlette.requests import Request

from moorage.actions.directoryarchive import FILES_LIMIT, RAW_LIMIT_BYTES, credentials_note, pack
from moorage.api.errors import ErrorCode
from moorage.decide.runs.code import Code
from moorage.filler.archive import unpack
from moorage.filler.errors import TooLarge
from moorage.filler.paths import checked
from moorage.filler.tree import Tree
from moorage.server.multipart import read_parts
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.quantity import format_bytes

UPLOAD = "upload"  # the input of the files
PACKED = "packed"  # the input of an upload that the form has sent before, in base64
UPLOAD_BYTES = 8 * 2**20  # of all files of an upload: they are read in memory
TEXT_BYTES = 16 * 1024  # of a field
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
PIECE_BYTES = 2**18
GZIP = b"\x1f\x8b"
OTHER_PACKERS = (GZIP, b"BZh", b"\xfd7zXZ")  # a tar within one of them may grow in memory
VOLUME_HINT = "leave out data, or put the folder on a volume"

Files = Sequence[tuple[str, bytes]]
"""The name and the content of each file."""


class Upload(Struct, frozen=True):
    """An upload that is packed for a pod. `notes`: files that are left out."""

    code: Code
    archive: bytes
    names: frozenset[str]  # paths of its files
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The archive for an input of the form."""
        return b64encode(self.archive).decode()


async def read_upload_form(request: Request) -> tuple[dict[str, str], Files | None]:
    """The fields of a form, stripped, and its files; None: they are larger than UPLOAD_BYTES."""
    given, files, left = dict[str, str](), list[tuple[str, bytes]](), UPLOAD_BYTES
    async for part in read_parts(request, RAW_LIMIT_BYTES):
        if part.filename is None:
            given[part.name] = (await part.text(UPLOAD_BYTES if part.name == PACKED else TEXT_BYTES)).strip()
        elif part.filename:
            data = bytearray()
            async for piece in part.content:
                left -= len(piece)
                data += piece if left >= 0 else b""
            files.append((part.filename.replace("\\", "/").rpartition("/")[2], bytes(data)))
    if files:
        given.pop(PACKED, None)
    return given, files if left >= 0 else None


async def pack_upload(given: Mapping[str, str], files: Files | None) -> Upload | None:
    """Pack the files of a form, else those that it has sent before; None: it has none. Raises UsageError."""
    try:
        if files is None:
            raise UsageError(f"the upload has more than {format_bytes(UPLOAD_BYTES)}", hint=VOLUME_HINT)
        if not files and given.get(PACKED):
            files = [("code.tar.gz", b64decode(given[PACKED], validate=True))]
        return await asyncio.to_thread(_pack, files) if files else None
    except TooLarge as error:
        message, hint = f"the upload has more than {format_bytes(RAW_LIMIT_BYTES)}", VOLUME_HINT
        raise UsageError(message, hint=hint, code=ErrorCode.INVALID, field=UPLOAD) from error
    except MoorageError as error:
        raise UsageError(error.message, hint=error.hint, code=ErrorCode.INVALID, field=UPLOAD) from error
    except (OSError, EOFError, zlib.error, binascii.Error) as error:
        message, hint = f"the upload cannot be read: {error}", "choose a zip or tar archive, or files"
        raise UsageError(message, hint=hint, code=ErrorCode.INVALID, field=UPLOAD) from error


def _pack(files: Files) -> Upload:
    with tempfile.TemporaryDirectory(prefix="upload-") as scratch:
        # the files, in a folder that only this function uses
        folder = Path(scratch) / "code"
        folder.mkdir()
        if len(files) == 1 and files[0][0].lower().endswith(ARCHIVES):
            _unpack(files[0][1], Path(scratch))
        else:
            for name, content in files:
                (folder / checked(name)).write_bytes(content)
        # an archive often has one folder with all the rest in it
        tops = [path for path in folder.iterdir() if path.name != "__MACOSX" and not path.name.startswith(".")]
        root = tops[0] if len(tops) == 1 and tops[0].is_dir() else folder
        for path in root.rglob("*"):
            if path.is_file() and path.read_bytes()[:2] == b"#!":
                path.chmod(0o755)  # neither browsers nor our unpacking keep it
        try:
            packed = pack(root)
        except UsageError as error:
            raise UsageError(error.message.replace(str(root), "the upload"), hint=VOLUME_HINT) from error
    if not packed.files:
        raise UsageError("the upload has no files to send")
    code = Code(digest=hashlib.sha256(packed.archive).hexdigest(), files=packed.files, bytes=packed.size)
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as archive:
        names = frozenset(archive.getnames())
    notes = (credentials_note(packed.credentials),) if packed.credentials else ()
    return Upload(code, packed.archive, names, notes)


def _unpack(content: bytes, scratch: Path) -> None:
    """Unpack an archive into the folder `code`, within the limits of `moor run`. Paths stay inside."""
    given = io.BytesIO(content)
    with (
        gzip.GzipFile(fileobj=given) if content.startswith(GZIP) else given as source,
        tempfile.TemporaryFile() as file,
        closing(Tree(scratch)) as tree,
    ):
        while piece := source.read(PIECE_BYTES):
            if file.tell() == 0 and piece.startswith(OTHER_PACKERS):
                raise UsageError(
                    "the upload is packed twice or by bzip2 or xz", hint="choose a zip or tar archive, or files"
                )
            if file.tell() + len(piece) > RAW_LIMIT_BYTES:
                raise TooLarge("too large")
            file.write(piece)
        file.seek(0)
        for _ in unpack(file, tree, "code", most_bytes=RAW_LIMIT_BYTES, most_files=FILES_LIMIT):
            pass
