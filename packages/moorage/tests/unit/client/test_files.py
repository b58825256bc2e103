"""What the command line and the services write is for their owner alone; logs do not grow for ever."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.supervisor import keep_small
from moorage.client import logins
from moorage.client.files import replacing, write_private
from moorage.queue.outputs import Outputs
from moorage.queue.store import open_store
from moorage.server.identity.sessions import open_sessions
from moorage.usage.store import UsageStore
from moorage_local.storage.sqlite import SqliteStorage


@pytest.fixture(autouse=True)
def generous_mask() -> Iterator[None]:
    """The least careful mask there is: what is private must be so by our own doing."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_an_open_data_folder_is_shut_and_volumes_keep_their_modes(tmp_path: Path) -> None:
    data = tmp_path / "d"
    for part in ("log", "run", "pki", "nodes/node-1/pod", "volumes/v1"):
        (data / part).mkdir(parents=True)
    files = ("VERSION", "cluster.db", "cluster.db-wal", "log/services.log", "run/ingress.json", "pki/ca.key")
    for file in files:
        (data / file).write_text("1\n")
        (data / file).chmod(0o644)
    (data / "volumes" / "v1" / "shared.txt").write_text("x")
    (data / "volumes" / "v1").chmod(0o2775)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    (data / "link").symlink_to(elsewhere)
    DataFolder(data).prepare()
    shut = [data, *(data / name for name in ("log", "run", "pki", "nodes", "nodes/node-1", "volumes"))]
    assert {mode(path) for path in shut} == {0o700}
    assert {mode(data / name) for name in files} == {0o600}
    assert (data / "volumes" / "v1").stat().st_mode & 0o7777 == 0o2775
    assert mode(data / "volumes" / "v1" / "shared.txt") == 0o666
    assert mode(elsewhere) == 0o666


async def _cluster(path: Path) -> None:
    store = SqliteStorage(path)
    await store.start()
    await store.put("a", b"{}")
    assert mode(path.with_name(f"{path.name}-wal")) == 0o600
    await store.stop()


async def _outputs(path: Path) -> None:
    outputs = Outputs(path)
    await outputs.add(1, "pod", [(1, 1, 1, b"x")])
    assert mode(path.with_name(f"{path.name}-wal")) == 0o600
    outputs.close()


async def _sync(make: Callable[[Path], Any], path: Path) -> None:
    made = make(path)
    assert mode(path.with_name(f"{path.name}-wal")) == 0o600
    made.close()


@pytest.mark.anyio
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(_cluster, id="cluster.db"),
        pytest.param(_outputs, id="outputs.db"),
        pytest.param(lambda path: _sync(open_store, path), id="queue.db"),
        pytest.param(lambda path: _sync(UsageStore, path), id="usage.db"),
        pytest.param(lambda path: _sync(open_sessions, path), id="people.db"),
    ],
)
async def test_databases_are_private_new_ones_and_old_ones(tmp_path, use, existing):
    path = tmp_path / "x.db"
    if existing:
        sqlite3.connect(path).close()
        path.touch()
        path.chmod(0o644)
    await use(path)
    assert {mode(tmp_path / name) for name in os.listdir(tmp_path)} == {0o600}


@pytest.mark.parametrize("planted", ["file", "link"])
def test_a_planted_file_or_link_is_not_written_to(tmp_path: Path, planted: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("")
    scratch = tmp_path / f".kubeconfig.{os.getpid()}"
    if planted == "link":
        scratch.symlink_to(theirs)
        reading = theirs.open()
    else:
        scratch.write_text("")
        reading = scratch.open()
    with reading:
        write_private(tmp_path / "kubeconfig", "token")
        assert reading.read() == ""
    assert (tmp_path / "kubeconfig").read_text() == "token"
    assert mode(tmp_path / "kubeconfig") == 0o600


def test_the_files_of_a_login_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path / "config"))
    with logins.known_logins():
        pass
    assert mode(tmp_path / "config") == 0o700
    assert {mode(file) for file in (tmp_path / "config").iterdir()} == {0o600}


def test_logs_are_cut_and_their_newest_part_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "services.log"
    with log.open("ab") as child:  # as a child holds it
        for number in range(50):
            child.write(b"%09d\n" % number * 10)
            child.flush()
            keep_small(tmp_path, 1000)
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * 1000 + 100
    text = log.with_name("services.log.1").read_text() + log.read_text()
    assert text.endswith("000000049\n")
    numbers = [int(line) for line in text.splitlines() if len(line) == 9]
    assert numbers == sorted(numbers)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["services.log", "services.log.1"]


def test_a_device_or_pipe_stays_what_it_is_and_gets_the_content(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_private(pipe, "token")
        assert os.read(reader, 100) == b"token"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a device")
def test_a_device_is_not_replaced_by_a_file_that_root_writes(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    write_private(device, "token")
    with replacing(device) as file:
        file.write(b"more")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["null"]


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to("real")
    write_private(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert ((tmp_path / "real").read_text(), mode(tmp_path / "real")) == ("after", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_or_pipe_of_another_user_is_replaced_never_followed(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("ours")
    (tmp_path / "link").symlink_to("ours")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        os.chown(tmp_path / name, 12345, 12345, follow_symlinks=False)
        write_private(tmp_path / name, "token")
        assert (tmp_path / name).read_text() == "token"
        assert stat.S_ISREG((tmp_path / name).lstat().st_mode)
    assert (tmp_path / "ours").read_text() == "ours"


def test_a_write_that_fails_half_way_changes_neither_file_nor_permissions(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text("before")
    file.chmod(0o640)
    with contextlib.suppress(ValueError), replacing(file) as out:
        out.write(b"half")
        raise ValueError
    assert (file.read_text(), mode(file)) == ("before", 0o640)
    with replacing(file) as out:
        out.write(b"whole")
    assert (file.read_text(), mode(file), len(list(tmp_path.iterdir()))) == ("whole", 0o640, 1)
    with pytest.raises(FileExistsError), replacing(file, new=True):
        raise AssertionError("it is there")
