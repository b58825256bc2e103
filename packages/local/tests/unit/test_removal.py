"""Folders of pods are removed whatever is in them, and nothing else is touched."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_local.nodeagent.podfolder import PodFolder
from moorage_local.removal import remove_tree


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A folder of an ordinary user, and this process with that user's rights alone."""
    with tempfile.TemporaryDirectory(prefix="moor-removal-") as name:
        folder = Path(name)
        if os.geteuid() != 0:
            yield folder
            return
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            yield folder
        finally:
            os.seteuid(0)


def deepen(folder: Path, levels: int) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


def test_a_deep_tree_is_removed(tmp_path: Path) -> None:
    pod = tmp_path / "pod"
    pod.mkdir()
    deepen(pod, 5000)
    PodFolder(pod).remove()
    assert not pod.exists()


def test_folders_without_permissions_are_removed(ordinary: Path) -> None:
    pod = ordinary / "pod"
    for name, mode in (("closed", 0o000), ("unlisted", 0o300), ("unwritable", 0o500)):
        (pod / "a" / name / "below").mkdir(parents=True)
        (pod / "a" / name / "below" / "file").write_text("")
        (pod / "a" / name / "below").chmod(0o000)
        (pod / "a" / name).chmod(mode)
    (pod / "a").chmod(0o000)
    PodFolder(pod).remove()
    assert not pod.exists()


def test_nothing_that_links_lead_to_is_touched(ordinary: Path) -> None:
    outside, pod = ordinary / "outside", ordinary / "pod"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (outside / "file").chmod(0o400)
    outside.chmod(0o500)
    (pod / "closed").mkdir(parents=True)
    (pod / "closed" / "to-folder").symlink_to(outside)
    (pod / "closed" / "to-file").symlink_to(outside / "file")
    (pod / "to-folder").symlink_to(outside)
    (pod / "closed").chmod(0o500)
    PodFolder(pod).remove()
    assert not pod.exists()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert stat.S_IMODE((outside / "file").stat().st_mode) == 0o400
    outside.chmod(0o700)


def test_what_cannot_be_removed_keeps_nothing_else(ordinary: Path) -> None:
    pod = ordinary / "pod"
    (pod / "theirs").mkdir(parents=True)
    (pod / "theirs" / "file").write_text("")
    (pod / "ours").mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can make a file that this user cannot remove")
    os.seteuid(0)
    os.chown(pod / "theirs", 0, 0)
    (pod / "theirs").chmod(0o755)
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    with pytest.raises(PermissionError):
        remove_tree(pod)
    assert [one.name for one in pod.iterdir()] == ["theirs"]


def test_a_folder_that_is_gone_is_fine_and_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "kept").is_dir()
