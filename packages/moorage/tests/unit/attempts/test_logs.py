"""The folder of kept logs: the end stays, the beginning goes, and no crash leaves half a line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.attempts.logs import FULL_SEGMENTS, LogFolder, log_key, pod_of
from moorage_kube.errors import StorageError

KEEP = 8 * 1024


def lines(first: int, last: int) -> bytes:
    return b"".join(b"%06d some text that a program prints\n" % at for at in range(first, last))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 120), min_size=1, max_size=30))
def test_of_a_long_log_the_end_is_kept_in_bounded_space(tmp_path_factory, pieces):
    root = tmp_path_factory.mktemp("logs")
    folder, at = LogFolder(root, keep_bytes=KEEP), 0
    for piece in pieces:
        folder.append("p1", lines(at, at + piece))
        at += piece
        whole, end = lines(0, at), folder.read("p1")
        assert whole.endswith(end.data)
        assert end.cut == (end.data != whole)
        assert len(end.data) > KEEP - 100 or end.data == whole
        assert len(end.data) <= KEEP
    assert len(list((root / "p1").iterdir())) <= FULL_SEGMENTS + 1


def test_nothing_is_remembered_of_logs_that_were_read_to_their_end(tmp_path):
    folder = LogFolder(tmp_path, keep_bytes=KEEP)
    for pod in range(100):
        folder.append(f"p{pod}", lines(0, 5))
        folder.finish(f"p{pod}")
    assert folder._whole == set()
    folder.append("p1", lines(5, 6))
    assert folder.read("p1").data == lines(0, 6)


def test_another_process_goes_on_and_drops_the_half_line_of_a_killed_one(tmp_path):
    LogFolder(tmp_path, keep_bytes=KEEP).append("p1", lines(0, 5))
    with (tmp_path / "p1" / "00000001.log").open("ab") as file:
        file.write(b"000005 some te")
    again = LogFolder(tmp_path, keep_bytes=KEEP)
    assert again.read("p1").data == lines(0, 5)
    again.append("p1", lines(5, 9))
    assert again.read("p1").data == lines(0, 9)


def test_a_kill_between_the_compressed_segment_and_the_end_of_the_plain_one_doubles_nothing(tmp_path):
    folder = LogFolder(tmp_path, keep_bytes=KEEP)
    segment = lines(0, KEEP // 4 // 30)
    folder.append("p1", segment)
    assert [path.name for path in (tmp_path / "p1").iterdir()] == ["00000001.z"]
    (tmp_path / "p1" / "00000001.log").write_bytes(segment)
    again = LogFolder(tmp_path, keep_bytes=KEEP)
    assert again.read("p1").data == segment
    again.append("p1", lines(1000, 1001))
    assert again.read("p1").data == segment + lines(1000, 1001)
    assert sorted(path.name for path in (tmp_path / "p1").iterdir()) == ["00000001.z", "00000002.log"]


@pytest.mark.parametrize("key", ["", "..", "../x", "a/b", ".hidden", "x" * 200])
def test_a_key_names_no_other_folder(tmp_path, key):
    with pytest.raises(StorageError, match="invalid key"):
        LogFolder(tmp_path, keep_bytes=KEEP).append(key, b"x\n")


@pytest.mark.parametrize("uid", ["0f7c1a52-6a3e-4c55-9d0e-2f1b7a1c9e11", "u.1", "u_"])
@pytest.mark.parametrize("container", ["", "a", "a-b", "c" * 63])
def test_a_key_tells_its_pod_and_is_no_other_logs(tmp_path, uid, container):
    key = log_key(uid, container)
    assert pod_of(key) == uid
    folder = LogFolder(tmp_path, keep_bytes=KEEP)
    folder.append(key, b"x\n")
    assert [size.key for size in folder.sizes()] == [key]
    assert (folder.read(key).data, folder.read(log_key(uid, "other")).data) == (b"x\n", b"")


def test_what_the_disk_refuses_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not write the stored logs"):
        LogFolder(tmp_path / "file", keep_bytes=KEEP).append("p1", b"x\n")
