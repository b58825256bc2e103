"""Names and trees: nothing leads out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.filler.errors import UnsafePath
from moorage.filler.paths import checked, conflict_of, shown
from moorage.filler.tree import Tree

ATTACKS = [
    "",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "/",
    "//",
    "a\0b",
    "a/" + "x" * 256,
    "é" * 128,
    "/".join(["d" * 250] * 20),
    "\ud800",
]
HARMLESS = [
    "a",
    "a/b",
    "...",
    "..a",
    "a..",
    ".moorage",
    "a b",
    "-rf",
    "~",
    "a\nb",
    "a\\..\\b",
    "C:x",
    "日本/語",
    "x" * 255,
    "%2e%2e%2f",
    "$(reboot)",
    "`id`",
    "a;b",
    "\x1b[31m",
    os.fsdecode(b"\xff\xfe"),
]


@pytest.mark.parametrize("path", ATTACKS)
def test_a_name_that_leads_out_or_cannot_be_is_refused(path):
    with pytest.raises(UnsafePath):
        checked(path)


@pytest.mark.parametrize("path", HARMLESS)
def test_an_odd_name_is_a_name(path, tmp_path):
    tree = Tree(tmp_path)
    os.close(tree.create(checked(path)))
    assert [entry.path for entry in tree.walk() if entry.kind == "file"] == [path]
    assert "\n" not in shown(path)
    assert "\x1b" not in shown(path)
    tree.close()


@given(st.text())
def test_what_passes_stays_below_the_folder(text):
    try:
        path = checked(text)
    except UnsafePath:
        return
    whole = os.path.normpath(os.path.join("/root/of/it", path))
    assert whole.startswith("/root/of/it/")


def test_a_link_on_the_way_is_not_followed(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "victim").write_text("mine")
    (root / "door").symlink_to(outside)
    tree = Tree(root)
    for act in (tree.create, tree.open, tree.make_folder, tree.reopen):
        with pytest.raises(UnsafePath):
            act("door/victim")
    os.close(tree.create("a"))
    with pytest.raises(UnsafePath):
        tree.move("a", "door/victim")
    assert (outside / "victim").read_text() == "mine"
    assert list(outside.iterdir()) == [outside / "victim"]
    tree.close()


def test_a_link_in_a_files_place_is_replaced_and_its_target_left_alone(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "victim").write_text("mine")
    (root / "x").symlink_to(tmp_path / "victim")
    tree = Tree(root)
    fd = tree.create("x")
    os.write(fd, b"new")
    os.close(fd)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (root / "x").read_text() == "new"
    assert not (root / "x").is_symlink()
    tree.close()


def test_clearing_a_folder_leaves_what_its_links_lead_to(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "victim").write_text("mine")
    (root / "a" / "out").symlink_to(outside)
    (root / "a" / "b" / "c").write_text("x")
    tree = Tree(root)
    tree.clear("a")
    assert list(root.iterdir()) == []
    assert (outside / "victim").read_text() == "mine"
    tree.close()


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    tree = Tree(tmp_path)
    with pytest.raises(UnsafePath, match="not a file"):
        tree.open("pipe")
    tree.close()


@pytest.mark.parametrize(
    ("paths", "want"),
    [
        (["a", "b"], None),
        (["a", "a/b"], ("a", "a/b")),
        (["a/b/c", "a"], ("a", "a/b/c")),
        (["ab", "a/b"], None),
        (["a/b", "a/b/c/d"], ("a/b", "a/b/c/d")),
    ],
)
def test_a_file_that_is_also_a_folder_is_found(paths, want):
    assert conflict_of(paths) == want


def test_a_small_file_is_whole_or_absent(tmp_path: Path):
    tree = Tree(tmp_path)
    tree.write_whole("a/b.json", b"{}")
    assert tree.read_whole("a/b.json") == b"{}"
    assert tree.read_whole("a/c.json") is None
    assert tree.read_whole("z/c.json") is None
    assert sorted(entry.path for entry in tree.walk()) == ["a", "a/b.json"]
    tree.close()
