"""Files of a volume as the web page asks for them: pages of a folder, one file, and no way out of the volume."""

from __future__ import annotations

import io
import json
import os

import pytest

from moorage.filler import browse
from moorage.filler.errors import FillError
from moorage.filler.tree import Tree


def pieces(*parts: bytes, end: bool = True) -> io.BytesIO:
    framed = b"".join(browse.LENGTH.pack(len(part)) + part for part in parts)
    return io.BytesIO(framed + (browse.LENGTH.pack(0) if end else b""))


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "volume" / "code").mkdir(parents=True)
    (tmp_path / "volume" / "code" / "train.py").write_text("print(1)\n")
    (tmp_path / "volume" / "a.txt").write_text("text")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("private")
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "volume"


def test_a_folder_is_listed_in_pages_with_folders_first(volume):
    (volume / "line\nbreak").write_text("")
    os.mkfifo(volume / "pipe")
    os.close(os.open(os.fsencode(volume) + b"/\xff", os.O_CREAT | os.O_WRONLY))
    whole = browse.list_folder(Tree(volume), "", first=0, most=100)
    assert [(name, kind) for name, kind, *_ in whole["entries"]] == [
        ("code", "folder"), ("a.txt", "file"), ("line\nbreak", "file"), ("link", "link"), ("pipe", "other"),
        ("\\xff", "other"),
    ]  # fmt: skip
    page = browse.list_folder(Tree(volume), "", first=1, most=2)
    assert (page["entries"], page["total"]) == (whole["entries"][1:3], 6)
    assert json.loads(json.dumps(page)) == page


def test_a_file_is_read_in_whole_or_its_beginning(volume):
    out = io.BytesIO()
    browse.read_file(Tree(volume), "code/train.py", out, most=5)
    head, _, content = out.getvalue().partition(b"\n")
    assert (json.loads(head), content) == ({"phase": "ready", "size": 9}, b"print")


@pytest.mark.parametrize(
    "path", ["../outside/key", "link/key", "link", "/etc/passwd", "a//b", "code", "none", "x\0"]
)
def test_nothing_outside_the_volume_and_no_link_is_read_listed_or_written(volume, path):
    tree, before = Tree(volume), sorted(os.listdir(volume.parent / "outside"))
    with pytest.raises(FillError):
        browse.read_file(tree, path, io.BytesIO())
    if path != "code":
        with pytest.raises(FillError):
            browse.list_folder(tree, path, first=0, most=10)
    with pytest.raises(FillError):
        browse.write_file(tree, f"{path}/../../key", pieces(b"spoilt"))
    assert (volume.parent / "outside" / "key").read_text() == "private"
    assert sorted(os.listdir(volume.parent / "outside")) == before


def test_a_written_file_replaces_the_one_before_only_when_it_is_complete(volume):
    tree = Tree(volume)
    with pytest.raises(FillError, match="broke off"):
        browse.write_file(tree, "a.txt", pieces(b"half", end=False))
    assert ((volume / "a.txt").read_text(), sorted(os.listdir(volume))) == ("text", ["a.txt", "code", "link"])
    assert browse.write_file(tree, "new/b.txt", pieces(b"one ", b"two")) == {"phase": "ready", "bytes": 7}
    assert (volume / "new" / "b.txt").read_text() == "one two"


def test_a_deleted_link_leaves_its_target(volume):
    tree = Tree(volume)
    for path in ("link", "code", "a.txt"):
        browse.delete(tree, path)
    assert (os.listdir(volume), os.listdir(volume.parent / "outside")) == ([], ["key"])
    with pytest.raises(FillError, match="does not exist"):
        browse.delete(tree, "code")
