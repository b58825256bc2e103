"""Uploaded code: an archive or files, packed within limits, and never outside of their folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

import pytest

from moorage.actions.directoryarchive import RAW_LIMIT_BYTES
from moorage.server.codeupload import PACKED, pack_upload
from moorage_kube.errors import UsageError

pytestmark = pytest.mark.anyio


def a_tar(*members, mode="w:gz"):
    """A tar of (name, content); a content of None is a link to /etc/passwd."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            info.size = len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
    return file.getvalue()


def a_zip(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return file.getvalue()


TREE = [("train.py", b"print(1)"), ("pkg/a.py", b"A = 1"), (".git/config", b""), (".env", b"KEY=1")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("code.zip", a_zip(*TREE)),
        ("code.tar", a_tar(*TREE, mode="w")),
        ("Code.TGZ", a_tar(*TREE)),
        ("a.zip", a_zip(*((f"project/{name}", text) for name, text in TREE))),
    ],
    ids=["zip", "tar", "tar.gz", "in one folder"],
)
async def test_an_archive_is_packed_as_a_folder_is(name, content):
    upload = await pack_upload({}, [(name, content)])
    assert (upload.names, upload.code.files) == (frozenset({"train.py", "pkg/a.py"}), 2)
    assert upload.notes[0].startswith("not sent, as credentials are not: .env (credentials)")
    again = await pack_upload({PACKED: upload.text}, [])
    assert (again.archive, again.code) == (upload.archive, upload.code)


async def test_a_form_without_files_has_no_upload():
    assert await pack_upload({}, []) is None


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.zip", a_zip(("../../x.py", b"")), "'../../x.py' has the part '..': it may lead out of the folder"),
        ("a.tgz", a_tar(("/etc/x", b"")), "'/etc/x' is absolute; names are relative to the folder"),
        ("a.tar", a_tar(("link", None), mode="w"),
         "'link' in the archive is a link; only files and folders are unpacked"),
        ("a.tgz", gzip.compress(bytes(RAW_LIMIT_BYTES + 1)), "the upload has more than 64Mi"),
        ("a.zip", a_zip(("x", bytes(RAW_LIMIT_BYTES + 1))), "the upload has more than 64Mi"),
        ("a.tgz", a_tar(("x", b""))[:20], "the upload cannot be read: "),
        ("a.tar.gz", a_tar(mode="w:xz"), "the upload is packed twice or by bzip2 or xz"),
        ("a.zip", b"no zip", "the archive cannot be read: "),
        ("a.zip", a_zip((".git/x", b"")), "the upload has no files to send"),
        ("..", b"", "'..' has the part '..'"),
    ],
    ids=["outside", "absolute", "a link", "long gzip", "long zip", "cut off", "xz", "no zip", "nothing", "dots"],
)  # fmt: skip
async def test_an_upload_that_cannot_be_used_is_refused(name, content, says):
    with pytest.raises(UsageError) as refused:
        await pack_upload({}, [(name, content)])
    assert (refused.value.message.startswith(says), refused.value.field) == (True, "upload"), refused.value.message


async def test_a_broken_or_too_large_upload_is_refused():
    for given, files, says in (
        ({PACKED: "?"}, [], "the upload cannot be read"),
        ({}, None, "the upload has more than 8Mi"),
    ):
        with pytest.raises(UsageError, match=says):
            await pack_upload(given, files)
