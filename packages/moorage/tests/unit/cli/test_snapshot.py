"""The copy of the current folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.snapshot import Limits, store
from moorage_kube.errors import UsageError

NAMES = st.text("ab.é", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
TREES = st.recursive(
    st.tuples(st.binary(max_size=3), st.sampled_from([0o644, 0o755])) | st.none(),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
).filter(lambda tree: isinstance(tree, dict))


def write(folder: Path, tree) -> None:
    for name, content in tree.items():
        if isinstance(content, dict):
            (folder / name).mkdir()
            write(folder / name, content)
        elif content is not None:
            (folder / name).write_bytes(content[0])
            (folder / name).chmod(content[1])


def read(folder: Path):
    """The tree in a folder, without .moorage."""
    return {
        path.name: f"-> {os.readlink(path)}"
        if path.is_symlink()
        else read(path)
        if path.is_dir()
        else (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in folder.iterdir()
        if path.name != ".moorage"
    }


@given(TREES, TREES)
def test_a_copy_is_equal_and_has_the_same_digest_for_the_same_files_only(first, second):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write(root, first)
        one = store(root)
        assert read(one.folder) == read(root)
        assert store(root) == one
        other = root / "other"
        other.mkdir()
        write(other, second)
        two = store(other)
        assert (two.folder.name == one.folder.name) == (read(other) == read(one.folder))


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("1")
    return folder


def test_equal_files_of_two_copies_are_shared_and_never_with_the_users_file(project):
    (project / "b.py").write_text("1")
    one = store(project)
    with (project / "b.py").open("r+") as file:  # an editor that writes in place
        file.write("2")
    two = store(project)
    assert (one.folder / "b.py").read_text() == "1"
    assert (two.folder / "b.py").read_text() == "2"
    assert (one.folder / "src" / "a.py").samefile(two.folder / "src" / "a.py")
    assert not (one.folder / "src" / "a.py").samefile(project / "src" / "a.py")
    assert (project / ".moorage" / ".gitignore").read_text() == "*\n"


def test_what_is_not_copied_is_linked_and_caches_are_left_out(project, tmp_path):
    for name in (".git", ".venv", "data", "env", "__pycache__", "src/__pycache__", ".pytest_cache"):
        (project / name).mkdir()
    (project / "env" / "pyvenv.cfg").write_text("")
    (project / "model.bin").write_bytes(b"x" * 11)
    (project / ".moorageignore").write_text("data/\n")
    (project / "inside").symlink_to("src/a.py")
    (tmp_path / "elsewhere").mkdir()
    (project / "outside").symlink_to("../elsewhere")
    (project / "nothing").symlink_to("missing")
    os.mkfifo(project / "pipe")
    stored = store(project, limits=Limits(file_bytes=10))
    linked = (".git", ".venv", "data", "env", "model.bin", "nothing", "outside", "pipe")
    assert read(stored.folder) == {
        **{name: f"-> {project / name}" for name in linked},
        ".moorageignore": (b"data/\n", 0o644),
        "inside": "-> src/a.py",
        "src": {"a.py": (b"1", 0o644)},
    }
    assert (stored.files, stored.large) == (2, ("model.bin",))


@pytest.mark.parametrize("limits", [Limits(files=6), Limits(bytes=20)])
def test_a_folder_above_the_limits_is_refused_with_its_largest_part(project, limits):
    (project / "src" / "pictures").mkdir()
    for number in range(8):
        (project / "src" / "pictures" / str(number)).write_text("xxx")
    with pytest.raises(UsageError, match="src/pictures/ has most of them") as caught:
        store(project, limits=limits)
    assert "write src/pictures/ in .moorageignore" in str(caught.value.hint)
    assert not (project / ".moorage").exists()
    (project / ".moorageignore").write_text("src/pictures/")
    assert store(project, limits=limits).files == 2


class Killed(BaseException):
    """The end of the process: nothing runs after it."""


def test_a_kill_leaves_nothing_half_made(project):
    def kill(_files: int, _size: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        store(project, on_progress=kill)
    assert list((project / ".moorage" / "code").iterdir()) == []
    assert read(store(project).folder) == read(project)


def test_a_folder_that_cannot_be_written_is_refused(project):
    (project / ".moorage").write_text("")
    with pytest.raises(UsageError, match="cannot copy the folder") as caught:
        store(project)
    assert caught.value.hint == "start the run in the folder itself: --live"
