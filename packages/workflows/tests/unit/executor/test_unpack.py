"""Artifacts packed and unpacked: what comes back, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.pack import pack
from moorage_workflows.executor.unpack import open_up, place, unpack

names = st.sampled_from(["a", "b", "-c", "ä b", ".hidden", "x.tar"])
modes = st.sampled_from([0o644, 0o755, 0o600])
files = st.tuples(st.binary(max_size=20), modes)
trees = st.recursive(files, lambda below: st.dictionaries(names, below, max_size=3), max_leaves=6)
Tree = tuple[bytes, int] | dict[str, "Tree"]


def write(tree: Tree, path: Path) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name, below in tree.items():
            write(below, path / name)
    else:
        path.write_bytes(tree[0])
        path.chmod(tree[1])


def read(path: Path) -> Tree:
    if path.is_dir():
        return {below.name: read(below) for below in path.iterdir()}
    return path.read_bytes(), stat.S_IMODE(path.stat().st_mode)


def readable(tree: Tree) -> Tree:
    """The tree with the modes that an input has."""
    if isinstance(tree, dict):
        return {name: readable(below) for name, below in tree.items()}
    return tree[0], tree[1] | (0o555 if tree[1] & 0o100 else 0o444)


def as_the_script_leaves_it(path: Path, into: Path) -> Path:
    with tarfile.open(into, "w") as tar:
        tar.add(path, f"./{path.name}")
    return into


@given(trees, st.sampled_from(["tar", "zip", "none"]))
def test_what_was_packed_comes_back(tree: Tree, archive: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write(tree, base / "out")
        packed_as = pack(as_the_script_leaves_it(base / "out", base / "raw"), archive, base / "packed")
        assert packed_as == ("tar" if archive == "none" and isinstance(tree, dict) else archive)
        artifact = unpack(base / "packed", packed_as, base / "work")
        place(artifact, base / "in" / "0")
        open_up(base / "in" / "0", None, is_recursive=False)
        came_back = read(base / "in" / "0")
        if packed_as == "none":
            assert isinstance(came_back, tuple)
            assert came_back[0] == tree[0]  # type: ignore[index]
        else:
            assert came_back == readable(tree)


@given(trees)
def test_the_same_files_give_the_same_bytes(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write(tree, base / "out")
        raw = as_the_script_leaves_it(base / "out", base / "raw")
        with tarfile.open(raw) as tar, tarfile.open(base / "turned", "w") as turned:
            for member in reversed(tar.getmembers()):  # the order in which a folder lists its names is no promise
                member.uid, member.uname = 1234, "somebody"
                turned.addfile(member, tar.extractfile(member) if member.isreg() else None)
        pack(raw, "tar", base / "1")
        pack(base / "turned", "tar", base / "2")
        assert (base / "1").read_bytes() == (base / "2").read_bytes()


def test_links_stay_links_and_hard_links_stay_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "z").write_text("content")
    os.link(out / "z", out / "a")
    (out / "link").symlink_to("z")
    pack(as_the_script_leaves_it(out, tmp_path / "raw"), "tar", tmp_path / "packed")
    artifact = unpack(tmp_path / "packed", "tar", tmp_path / "work")
    assert os.readlink(artifact / "link") == "z"
    assert (artifact / "a").read_text() == (artifact / "z").read_text() == "content"


def test_pipes_and_devices_are_left_out_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "pipe")
    (tmp_path / "out" / "file").write_text("x")
    pack(as_the_script_leaves_it(tmp_path / "out", tmp_path / "raw"), "tar", tmp_path / "packed")
    with tarfile.open(tmp_path / "packed") as tar:
        assert tar.getnames() == ["out", "out/file"]
    assert "out/pipe" in capsys.readouterr().err


def test_a_link_does_not_fit_into_a_zip_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to("x")
    with pytest.raises(StepError, match="out/link"):
        pack(as_the_script_leaves_it(tmp_path / "out", tmp_path / "raw"), "zip", tmp_path / "packed")


def a_tar(member: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def a_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def a_zip(name: str, mode: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, b"data")
    return buffer.getvalue()


@pytest.fixture(params=["data_filter", "none"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python, and one before 3.11.4, whose tarfile has no filters."""
    if request.param == "none":
        if sys.version_info >= (3, 12):
            pytest.skip("tarfile of this Python warns where no filter is named")
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.usefixtures("python")
def test_links_within_an_archive_come_back(tmp_path: Path) -> None:
    (tmp_path / "out" / "below").mkdir(parents=True)
    (tmp_path / "out" / "below" / "file").write_text("x")
    (tmp_path / "out" / "link").symlink_to("below/file")
    pack(as_the_script_leaves_it(tmp_path / "out", tmp_path / "raw"), "tar", tmp_path / "packed")
    assert (unpack(tmp_path / "packed", "tar", tmp_path / "work") / "link").read_text() == "x"


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    ("data", "archive"),
    [
        pytest.param(a_tar(a_member("../out"), b"x"), "tar", id="tar: a name that leads out"),
        pytest.param(a_tar(a_member("link", tarfile.SYMTYPE, "/etc/passwd")), "tar", id="tar: an absolute link"),
        pytest.param(a_tar(a_member("link", tarfile.SYMTYPE, "../../x")), "tar", id="tar: a link that leads out"),
        pytest.param(a_tar(a_member("hard", tarfile.LNKTYPE, "/etc/passwd")), "tar", id="tar: a hard link out"),
        pytest.param(a_tar(a_member("null", tarfile.CHRTYPE)), "tar", id="tar: a device"),
        pytest.param(a_tar(a_member("pipe", tarfile.FIFOTYPE)), "tar", id="tar: a pipe"),
        pytest.param(b"no archive", "tar", id="tar: no archive"),
        pytest.param(gzip.compress(b"x" * 2000)[:30], "tar", id="tar: cut off"),
        pytest.param(a_zip("../out"), "zip", id="zip: a name that leads out"),
        pytest.param(a_zip("/out"), "zip", id="zip: an absolute name"),
        pytest.param(a_zip("a\\..\\b"), "zip", id="zip: a name of Windows"),
        pytest.param(a_zip("link", stat.S_IFLNK | 0o777), "zip", id="zip: a link"),
        pytest.param(b"no archive", "zip", id="zip: no archive"),
    ],
)
def test_archives_that_lead_out_or_are_broken_are_refused(tmp_path: Path, data: bytes, archive: str) -> None:
    source, work = tmp_path / "source", tmp_path / "deep" / "work"
    work.parent.mkdir()
    source.write_bytes(data)
    with pytest.raises(StepError):
        unpack(source, archive, work)
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "deep"}


@pytest.mark.parametrize(
    ("data", "is_unpacked"),
    [
        pytest.param(a_tar(a_member("file"), b"inner"), True, id="a tgz is unpacked"),
        pytest.param(b"plain text", False, id="text stays as it is"),
        pytest.param(b"", False, id="nothing stays nothing"),
        pytest.param(a_zip("file"), False, id="a zip file stays as it is"),
        pytest.param(gzip.compress(b"text"), False, id="compressed text stays as it is"),
    ],
)
def test_of_what_nothing_is_known_only_tar_is_unpacked(tmp_path: Path, data: bytes, is_unpacked: bool) -> None:
    (tmp_path / "source").write_bytes(data)
    artifact = unpack(tmp_path / "source", "", tmp_path / "work")
    assert artifact.read_bytes() == (b"inner" if is_unpacked else data)


def test_an_artifact_is_merged_into_a_folder_and_follows_no_link(tmp_path: Path) -> None:
    target, outside = tmp_path / "volume", tmp_path / "outside"
    for folder in (target / "deep", outside, tmp_path / "new" / "deep"):
        folder.mkdir(parents=True)
    (target / "kept").write_text("kept")
    (target / "deep" / "old").write_text("old")
    (target / "link").symlink_to(outside)
    (tmp_path / "new" / "deep" / "old").write_text("new")
    (tmp_path / "new" / "link").mkdir()
    (tmp_path / "new" / "link" / "file").write_text("x")
    place(tmp_path / "new", target)
    assert (target / "kept").read_text() == "kept"
    assert (target / "deep" / "old").read_text() == "new"
    assert (target / "link" / "file").read_text() == "x"
    assert list(outside.iterdir()) == []


def test_a_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StepError, match="is a folder"):
        place(tmp_path / "file", tmp_path / "there")


@pytest.mark.parametrize(
    ("is_recursive", "want"),
    [
        pytest.param(False, 0o644, id="of the folder"),
        pytest.param(True, 0o700, id="of all below"),
    ],
)
def test_the_mode_is_set(tmp_path: Path, is_recursive: bool, want: int) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "file"
    file.write_text("x")
    file.chmod(0o600)
    open_up(tmp_path / "folder", 0o700, is_recursive=is_recursive)
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == want


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    raw = as_the_script_leaves_it(tmp_path / "out", tmp_path / "raw")
    with pytest.raises(StepError, match="cannot be packed"):
        pack(raw, "tar", Path("/dev/full"))
