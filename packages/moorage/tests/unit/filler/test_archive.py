"""Archives: what is refused, and what comes out."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable

import pytest

from moorage.filler.archive import unpack
from moorage.filler.errors import ArchiveBomb, BadArchive, FillError, TooLarge, TooManyFiles, UnsafePath
from moorage.filler.tree import Tree


def a_tar(*members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def a_zip(*members: tuple[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            packed.writestr(info, content)
    return out.getvalue()


def unpacked(tmp_path, data: bytes, **limits):
    (tmp_path / "archive").write_bytes(data)
    (tmp_path / "root").mkdir()
    tree = Tree(tmp_path / "root")
    given = {"most_bytes": None, "most_files": 1000} | limits
    try:
        with open(tmp_path / "archive", "rb") as file:
            return list(unpack(file, tree, "out", **given))
    finally:
        tree.close()


FILES = (("a.txt", b"one"), ("d/b.txt", b"two" * 1000), ("日本/語 \n", b""))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(a_tar(*FILES), id="tar.gz"),
        pytest.param(a_tar(*FILES, mode="w"), id="tar"),
        pytest.param(a_tar(*FILES, mode="w:xz"), id="tar.xz"),
        pytest.param(a_tar(*FILES, mode="w:bz2"), id="tar.bz2"),
        pytest.param(a_zip(*FILES), id="zip"),
        pytest.param(a_tar(special("./", tarfile.DIRTYPE), special("./d", tarfile.DIRTYPE), *FILES), id="folders"),
    ],
)
def test_files_come_out_whole(tmp_path, data):
    got = unpacked(tmp_path, data)
    assert got == [(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in FILES]
    for name, content in FILES:
        assert (tmp_path / "root" / "out" / name).read_bytes() == content


def overlapping_zip() -> bytes:
    """Two members that claim the same compressed bytes, as a bomb without nesting does."""
    data = bytearray(a_zip(("a", b"x" * 1000), ("b", b"x" * 1000)))
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = struct.pack("<I", 0)  # the local header's place: the first one's
    return bytes(data)


def lying_zip() -> bytes:
    data = bytearray(a_zip(("a", b"x" * 100_000)))
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = struct.pack("<I", 10)  # says it is 10 bytes long
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(a_tar(("../evil", b"x")), UnsafePath, id="tar: upwards"),
        pytest.param(a_tar(("a/../../evil", b"x")), UnsafePath, id="tar: upwards in the middle"),
        pytest.param(a_tar(("/etc/evil", b"x")), UnsafePath, id="tar: absolute"),
        pytest.param(
            a_tar(special("l", tarfile.SYMTYPE, "/etc"), ("l/evil", b"x")), BadArchive, id="tar: a link out"
        ),
        pytest.param(a_tar(("a", b"x"), special("l", tarfile.LNKTYPE, "a")), BadArchive, id="tar: a hard link"),
        pytest.param(a_tar(special("dev", tarfile.CHRTYPE)), BadArchive, id="tar: a device"),
        pytest.param(a_tar(special("pipe", tarfile.FIFOTYPE)), BadArchive, id="tar: a pipe"),
        pytest.param(a_tar(("a", b"1"), ("a", b"2")), BadArchive, id="tar: twice"),
        pytest.param(a_tar(("a", b"1"), ("./a", b"2")), BadArchive, id="tar: twice, written otherwise"),
        pytest.param(a_tar(("a", b"1"), ("a/b", b"2")), UnsafePath, id="tar: below a file"),
        pytest.param(a_tar(*FILES)[:-40], BadArchive, id="tar: cut short"),
        pytest.param(b"no archive at all", BadArchive, id="no archive"),
        pytest.param(a_zip(("../evil", b"x")), UnsafePath, id="zip: upwards"),
        pytest.param(a_zip(("/evil", b"x")), UnsafePath, id="zip: absolute"),
        pytest.param(a_zip(("l", b"/etc"), mode=stat.S_IFLNK | 0o777), BadArchive, id="zip: a link"),
        pytest.param(overlapping_zip(), BadArchive, id="zip: members that overlap"),
        pytest.param(lying_zip(), BadArchive, id="zip: a size that lies"),
    ],
)
def test_an_archive_that_attacks_is_refused(tmp_path, data, error):
    with pytest.raises(error):
        unpacked(tmp_path, data)
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "root"}


@pytest.mark.parametrize("make", [a_tar, a_zip])
def test_a_bomb_is_put_out_by_its_growth(tmp_path, make: Callable[..., bytes]):
    with pytest.raises(ArchiveBomb):
        unpacked(tmp_path, make(("zeros", bytes(32 << 20))), bomb_bytes=4 << 20)
    grown = sum(path.stat().st_size for path in (tmp_path / "root").rglob("*") if path.is_file())
    assert grown <= 6 << 20


@pytest.mark.parametrize(
    ("limits", "error"), [({"most_bytes": 2000}, TooLarge), ({"most_files": 2}, TooManyFiles)]
)
@pytest.mark.parametrize("make", [a_tar, a_zip])
def test_limits_are_kept(tmp_path, make, limits, error):
    with pytest.raises(error):
        unpacked(tmp_path, make(*FILES), **limits)


def test_an_encrypted_member_is_refused(tmp_path):
    data = bytearray(a_zip(("a", b"x")))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.index(mark)
        data[start + place] |= 1
    with pytest.raises(FillError):
        unpacked(tmp_path, bytes(data))
