"""Backups: whole or not there, kept in number, brought back as they were."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from moorage.filler.backup import FolderTarget, backup, notes_of, open_target, restore
from moorage.filler.errors import BackupNotFound, BadSource, Corrupt, FillError, NotEmpty, UnsafePath
from moorage.filler.progress import Progress
from moorage.filler.tree import Tree

QUIET = Progress(every=1e9)


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    root = tmp_path / "volume"
    (root / "d" / "empty").mkdir(parents=True)
    (root / "d" / "a.bin").write_bytes(b"a" * 100_000)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("d/a.bin")
    (root / "out").symlink_to("/etc/passwd")
    (root / "odd \n名").write_text("x")
    return root


def state(root: Path) -> dict[str, object]:
    contents: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                contents[key] = ("link", os.readlink(path))
            elif path.is_dir():
                contents[key] = "folder"
            else:
                contents[key] = (path.read_bytes(), path.stat().st_mode & 0o777, int(path.stat().st_mtime))
    return contents


def kept(tmp_path: Path, volume: Path, name: str = "v-1", keep: int = 7, **more: Any) -> dict[str, object]:
    return backup(volume, FolderTarget(tmp_path / "kept"), name, QUIET, series="v", keep=keep, **more)


class Died(BaseException):
    pass


def test_what_is_brought_back_is_what_was_there(tmp_path, volume):
    answer = kept(tmp_path, volume)
    assert (answer["files"], answer["changed"], answer["kept"]) == (3, 0, ["v-1"])
    (tmp_path / "new").mkdir()
    restore(tmp_path / "new", FolderTarget(tmp_path / "kept"), "v-1", QUIET)
    assert state(tmp_path / "new") == state(volume)


def test_so_many_are_kept_and_the_oldest_go(tmp_path, volume):
    for number in range(5):
        answer = kept(tmp_path, volume, f"v-{number}", keep=2)
    assert answer["kept"] == ["v-3", "v-4"]
    assert sorted(os.listdir(tmp_path / "kept")) == ["v-3.json", "v-3.tar", "v-4.json", "v-4.tar"]


def test_those_of_other_volumes_and_other_files_are_left_alone(tmp_path, volume):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "w-1.tar").write_text("another's")
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    for number in range(3):
        kept(tmp_path, volume, f"v-{number}", keep=1)
    assert sorted(os.listdir(tmp_path / "kept")) == ["notes.txt", "v-2.json", "v-2.tar", "w-1.tar"]


def test_one_that_was_cut_short_is_never_listed_and_tidied_by_the_next(tmp_path, volume):
    class Dying(Tree):
        def open(self, path):
            raise Died

    with pytest.raises(Died):
        kept(tmp_path, volume, open_tree=Dying)
    (tmp_path / "kept" / "v-0.tar").write_bytes(b"without a note")
    target = FolderTarget(tmp_path / "kept")
    assert notes_of(target, "v") == {}
    with pytest.raises(BackupNotFound):
        restore(tmp_path, target, "v-0", QUIET)
    assert kept(tmp_path, volume)["kept"] == ["v-1"]
    assert sorted(os.listdir(tmp_path / "kept")) == ["v-1.json", "v-1.tar"]


def test_one_that_is_done_is_not_written_again(tmp_path, volume):
    first = kept(tmp_path, volume)
    (volume / "later").write_text("x")
    assert kept(tmp_path, volume) == first


def test_a_volume_that_is_not_empty_is_refused_and_replaced_by_force(tmp_path, volume):
    kept(tmp_path, volume)
    new = tmp_path / "new"
    (new / "d").mkdir(parents=True)
    (new / "d" / "old").write_text("old")
    (new / "mine").write_text("stays")
    target = FolderTarget(tmp_path / "kept")
    with pytest.raises(NotEmpty):
        restore(new, target, "v-1", QUIET)
    assert state(new)["mine"]
    restore(new, target, "v-1", QUIET, force=True)
    assert {key: value for key, value in state(new).items() if key != "mine"} == state(volume)


def test_a_spoilt_backup_leaves_the_volume_as_it_was(tmp_path, volume):
    kept(tmp_path, volume)
    tar = tmp_path / "kept" / "v-1.tar"
    data = bytearray(tar.read_bytes())
    data[data.index(b"aaaa") + 5] ^= 1
    tar.write_bytes(data)
    new = tmp_path / "new"
    new.mkdir()
    with pytest.raises(Corrupt):
        restore(new, FolderTarget(tmp_path / "kept"), "v-1", QUIET)
    assert [name for name in os.listdir(new) if not name.startswith(".moorage-restore")] == []


def test_a_restore_that_died_while_putting_in_place_is_finished_by_the_next(tmp_path, volume):
    kept(tmp_path, volume)
    new, moves = tmp_path / "new", []
    new.mkdir()

    class Dying(Tree):
        def move(self, source, target):
            super().move(source, target)
            if source.startswith(".moorage-restore/"):
                moves.append(target)
                if len(moves) == 2:
                    raise Died

    target = FolderTarget(tmp_path / "kept")
    with pytest.raises(Died):
        restore(new, target, "v-1", QUIET, open_tree=Dying)
    restore(new, target, "v-1", QUIET)
    assert state(new) == state(volume)


def a_forged(folder: Path, *members: tarfile.TarInfo) -> None:
    import hashlib

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    folder.mkdir()
    (folder / "v-1.tar").write_bytes(out.getvalue())
    note = {"sha256": hashlib.sha256(out.getvalue()).hexdigest(), "files": 1, "bytes": 1}
    (folder / "v-1.json").write_text(json.dumps(note))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("/tmp/evil")],
        [member("door", tarfile.SYMTYPE, ".."), member("door/evil")],
        [member("door", tarfile.SYMTYPE, "/tmp"), member("door/evil")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("device", tarfile.CHRTYPE)],
    ],
)
def test_a_forged_backup_writes_nothing_outside(tmp_path, members):
    a_forged(tmp_path / "kept", *members)
    new = tmp_path / "new"
    new.mkdir()
    with pytest.raises(FillError):
        restore(new, FolderTarget(tmp_path / "kept"), "v-1", QUIET)
    assert sorted(os.listdir(tmp_path)) == ["kept", "new"]
    assert not Path("/tmp/evil").exists()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a\0b", "x" * 300, "a..b"])
def test_names_that_are_none_are_refused(tmp_path, volume, name):
    with pytest.raises(UnsafePath):
        kept(tmp_path, volume, name)


@pytest.mark.parametrize("url", ["file:///x", "/x", "https://x/y", "", "s3://"])
def test_other_targets_are_refused(url):
    with pytest.raises(BadSource):
        open_target(url)


def test_backups_in_a_bucket(tmp_path, volume, monkeypatch):
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for key, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(key, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="backups")
        target = open_target("s3://backups/lab")
        for number in range(3):
            answer = backup(volume, target, f"v-{number}", QUIET, series="v", keep=2)
        assert answer["kept"] == ["v-1", "v-2"]
        keys = [item["Key"] for item in client.list_objects_v2(Bucket="backups")["Contents"]]
        assert keys == ["lab/v-1.json", "lab/v-1.tar", "lab/v-2.json", "lab/v-2.tar"]
        (tmp_path / "new").mkdir()
        restore(tmp_path / "new", open_target("s3://backups/lab"), "v-2", QUIET)
        assert state(tmp_path / "new") == state(volume)
    finally:
        server.stop()
