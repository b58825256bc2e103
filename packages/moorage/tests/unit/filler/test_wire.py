"""Copies between two ends: whole, gone on with, and neither end can hurt the other."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from moorage.actions.directoryarchive import Credentials
from moorage.filler.errors import FillError
from moorage.filler.tree import LeavesOut, Tree
from moorage.filler.wire import receive, send


def copied(
    source: Path,
    path: str,
    target: Path,
    base: str = "",
    single: tuple[str, str] | None = None,
    leaves_out: LeavesOut = lambda _: False,
) -> dict:
    """Both ends, joined by a socket."""
    left, right = socket.socketpair()
    outcome: dict = {}

    def sending() -> None:
        with left, left.makefile("rb") as read:
            write = left.makefile("wb")
            try:
                outcome["sent"] = send(Tree(source), path, read, write, leaves_out=leaves_out)
            except FillError as error:
                outcome["sender"] = error
            with contextlib.suppress(OSError):
                write.close()

    thread = threading.Thread(target=sending)
    thread.start()
    try:
        with right, right.makefile("rb") as read:
            write = right.makefile("wb")
            try:
                outcome["received"] = receive(Tree(target), base, read, write, single=single)
            finally:
                with contextlib.suppress(OSError):
                    write.close()
    finally:
        thread.join()
    return outcome


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "big").write_bytes(os.urandom(3_000_000))
    (root / "d" / "odd \n名").write_text("x")
    (root / "empty").write_text("")
    (root / "link").symlink_to("/etc/passwd")
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def state(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_a_folder_is_copied_and_its_links_are_left_out(source, target):
    outcome = copied(source, "", target)
    assert state(target) == state(source)
    assert outcome["sent"]["left_out"] == 1
    assert not (target / "link").exists()


def test_credentials_of_a_folder_are_not_copied(source, target):
    (source / "d" / ".ssh").mkdir()
    (source / "d" / ".ssh" / "id").write_text("x")
    (source / "notes").write_text("-----BEGIN PRIVATE KEY-----")
    credentials = Credentials(source)
    copied(
        source,
        "",
        target,
        leaves_out=lambda entry: credentials.holds(entry.path, is_folder=entry.kind == "folder"),
    )
    assert set(state(target)) == {"d/e/big", "d/odd \n名", "empty"}
    assert credentials.left_out == {"d/.ssh/": "credentials", "notes": "a private key"}


def test_what_is_there_already_is_not_copied_again(source, target):
    copied(source, "", target)
    (source / "empty").write_text("no longer")
    outcome = copied(source, "", target)
    assert (outcome["received"]["files"], outcome["received"]["skipped"]) == (1, 2)
    assert state(target) == state(source)


def test_one_file_goes_under_the_name_it_is_given(source, target):
    copied(source, "d/e/big", target, single=("in", "large"))
    assert state(target) == {"in/large": (source / "d/e/big").read_bytes()}


def test_what_is_not_there_is_told_on_both_ends(source, target):
    with pytest.raises(FillError, match="nope"):
        copied(source, "nope", target)
    assert state(target) == {}


def test_a_link_at_the_target_is_not_followed(source, target, tmp_path):
    (tmp_path / "victim").mkdir()
    (target / "d").symlink_to(tmp_path / "victim")
    with pytest.raises(FillError):
        copied(source, "", target)
    assert list((tmp_path / "victim").iterdir()) == []


def offered(target: Path, *messages: dict | bytes) -> None:
    """Let `receive` hear what an evil end says."""
    left, right = socket.socketpair()
    data = b""
    for message in messages:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        data += text if isinstance(message, bytes) else struct.pack(">I", len(text)) + text
    with left, right:
        left.sendall(data)
        left.shutdown(socket.SHUT_WR)
        with right.makefile("rb") as read, right.makefile("wb") as write:
            receive(Tree(target), "", read, write)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([{"files": [["../evil", 1, 0]]}], id="upwards"),
        pytest.param([{"files": [["/etc/evil", 1, 0]]}], id="absolute"),
        pytest.param([{"files": [["a\x00b", 1, 0]]}], id="NUL"),
        pytest.param([{"files": [["a", 1, 0], ["a/b", 1, 0]]}], id="a file that is a folder"),
        pytest.param([{"files": "all"}], id="no list"),
        pytest.param([[]], id="no object"),
        pytest.param([struct.pack(">I", 2**32 - 1)], id="endless"),
        pytest.param([b"GET / HTTP/1.1\r\n\r\n"], id="another protocol"),
        pytest.param([struct.pack(">I", 4) + b"{{{{"], id="no JSON"),
        pytest.param([], id="nothing"),
        pytest.param([{"files": [["a", 5, 0]]}, {"path": "a", "size": 5}, b"12"], id="cut short"),
        pytest.param([{"files": [["a", 2, 0]]}, {"path": "a", "size": 2}, b"12" + bytes(32)], id="spoilt"),
    ],
)
def test_an_evil_end_leaves_nothing_behind(target, tmp_path, messages):
    with pytest.raises(FillError):
        offered(target, *messages)
    assert state(target) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_both_ends_know_what_is_to_come_and_count_it(source, target):
    (target / "empty").write_text("")
    os.utime(target / "empty", ns=((source / "empty").stat().st_mtime_ns,) * 2)
    left, right = socket.socketpair()
    expected, counted = [], {"sent": [0, 0], "received": [0, 0]}

    def count(end: str):
        def add(files: int, size: int) -> None:
            counted[end] = [counted[end][0] + files, counted[end][1] + size]

        return add

    def sending() -> None:
        with left, left.makefile("rb") as read, left.makefile("wb") as write:
            send(
                Tree(source),
                "",
                read,
                write,
                on_start=lambda *total: expected.append(total),
                on_progress=count("sent"),
            )

    thread = threading.Thread(target=sending)
    thread.start()
    with right, right.makefile("rb") as read, right.makefile("wb") as write:
        receive(
            Tree(target),
            "",
            read,
            write,
            on_start=lambda *total: expected.append(total),
            on_progress=count("received"),
        )
    thread.join()
    assert expected == [(2, 3_000_001)] * 2  # the file that is there already does not count
    assert counted == {"sent": [2, 3_000_001], "received": [2, 3_000_001]}
