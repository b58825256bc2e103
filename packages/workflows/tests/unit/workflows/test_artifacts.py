"""Artifacts in a folder and in a bucket: one suite for both, and what a folder alone does."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import random
from collections import namedtuple
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.bodies import BodyTooLong, ClientLeft
from moorage_kube.errors import BadRequest, NotFound, QuotaExceeded, StorageError, StorageFull
from moorage_workflows.executor.folders import sum_of
from moorage_workflows.model.workflow import Artifact
from moorage_workflows.workflows.artifacts import CHUNK, Artifacts, Folder, check_key, make_key, open_artifacts

pytestmark = pytest.mark.anyio
MOST = 32 << 20
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    if request.param == "folder":
        return open_artifacts(tmp_path / "artifacts", most_bytes=MOST)
    import boto3
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": request.getfixturevalue("s3"),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{random.randrange(10**9)}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return open_artifacts(f"s3://{bucket}/prefix/", most_bytes=MOST)


async def stream(*parts: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def whole(store: Artifacts, key: str) -> bytes:
    content = await store.open(key)
    data = b"".join([part async for part in content.parts])
    assert len(data) == content.size_bytes
    return data


SIZES = [
    pytest.param(0, id="nothing"),
    pytest.param(1, id="a byte"),
    pytest.param(CHUNK, id="a chunk"),
    pytest.param((20 << 20) + 7, id="more than one part of an upload"),
]


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_stored_is_read_again(store: Artifacts, size: int) -> None:
    data = random.Random(size).randbytes(size)
    parts = [data[at : at + 300_000] for at in range(0, size, 300_000)]
    stored = await store.put(stream(*parts), "lab/train/pod-1/model.tgz", name="model", archive="tar")
    assert stored == Artifact(
        name="model",
        key="lab/train/pod-1/model.tgz",
        size_bytes=size,
        digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
        archive="tar",
        version=stored.version,
    )
    assert await whole(store, "lab/train/pod-1/model.tgz") == data


async def test_the_newest_of_two_under_one_key_counts(store: Artifacts) -> None:
    await store.put(stream(b"old and long"), "lab/a", name="a")
    await store.put(stream(b"new"), "lab/a", name="a")
    assert await whole(store, "lab/a") == b"new"


@pytest.mark.parametrize("size", [100, 20 << 20])
async def test_of_a_stream_that_breaks_nothing_is_stored(store: Artifacts, size: int) -> None:
    await store.put(stream(b"before"), "lab/a", name="a")
    for key in ("lab/a", "lab/b"):
        with pytest.raises(ClientLeft):
            await store.put(stream(b"x" * size, error=ClientLeft()), key, name="a")
    assert await whole(store, "lab/a") == b"before"
    with pytest.raises(NotFound, match="there is no artifact 'lab/b'"):
        await store.open("lab/b")


async def test_more_than_the_limit_is_refused_and_not_stored(store: Artifacts) -> None:
    part = b"x" * CHUNK
    with pytest.raises(BodyTooLong):
        await store.put(stream(*[part] * (MOST // CHUNK), b"x"), "lab/a", name="a")
    with pytest.raises(NotFound):
        await store.open("lab/a")


async def test_a_namespace_has_a_quota_of_bytes_and_what_is_deleted_makes_room(store: Artifacts) -> None:
    part = b"x" * CHUNK
    quota = Artifacts(store._use(), most_bytes=MOST, namespace_bytes=2 * CHUNK)
    await quota.put(stream(part), "lab/a", name="a")
    await quota.put(stream(part), "lab/b", name="b")
    for key in ("lab/a", "lab/c"):
        with pytest.raises(
            QuotaExceeded, match="namespace lab have 2,097,152 bytes; 1,048,576 more exceed"
        ) as raised:
            await quota.put(stream(part), key, name="c")
        assert "MOORAGE_ARTIFACT_BYTES_PER_NAMESPACE" in (raised.value.hint or "")
    assert await quota.below("lab") == ["a", "b"]
    await quota.put(stream(part), "other/a", name="a")
    await quota.delete("lab/a")
    await quota.put(stream(part), "lab/c", name="c")
    assert await whole(quota, "lab/c") == part
    assert not quota._coming


async def test_uploads_at_once_share_the_quota_of_their_namespace(store: Artifacts) -> None:
    part = b"x" * CHUNK
    quota = Artifacts(store._use(), most_bytes=MOST, namespace_bytes=2 * CHUNK)
    puts = (quota.put(stream(part), f"lab/{name}", name=name) for name in "abcd")
    ended = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(each, Artifact) for each in ended) <= 2
    assert all(isinstance(each, Artifact | QuotaExceeded) for each in ended)
    assert sum([len(await whole(quota, f"lab/{name}")) for name in await quota.below("lab")]) <= 2 * CHUNK


async def test_what_is_deleted_is_gone(store: Artifacts) -> None:
    await store.put(stream(b"1"), "lab/a/b", name="a")
    assert await store.delete("lab/a/b") is True
    assert await store.delete("lab/a/b") is False
    with pytest.raises(NotFound):
        await store.open("lab/a/b")


async def test_a_folder_of_artifacts_is_no_artifact(store: Artifacts) -> None:
    await store.put(stream(b"1"), "lab/a/b", name="a")
    for key in ("lab/a", "lab", "lab/a/b/c"):
        with pytest.raises(NotFound):
            await store.open(key)
        assert await store.delete(key) is False
    assert await whole(store, "lab/a/b") == b"1"


async def test_what_is_below_a_key_is_listed(store: Artifacts) -> None:
    for key in ("lab/a/1", "lab/a/b/2", "lab/ab/3"):
        await store.put(stream(b"x"), key, name="a")
    assert await store.below("lab/a") == ["1", "b/2"]
    assert await store.below("lab/no") == []


async def test_what_is_old_is_collected(store: Artifacts) -> None:
    await store.put(stream(b"1"), "lab/a/b", name="a")
    await store.put(stream(b"2"), "lab/c", name="c")
    assert await store.collect(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert await whole(store, "lab/a/b") == b"1"
    assert await store.collect(FUTURE) == 2
    for key in ("lab/a/b", "lab/c"):
        with pytest.raises(NotFound):
            await store.open(key)


KEYS = [
    pytest.param("", id="empty"),
    pytest.param("/etc/passwd", id="absolute"),
    pytest.param("../secret", id="up"),
    pytest.param("lab/../../secret", id="up from below"),
    pytest.param("lab//a", id="an empty part"),
    pytest.param("lab/./a", id="a dot"),
    pytest.param("lab/a/", id="a folder"),
    pytest.param("lab\\..\\a", id="backslashes"),
    pytest.param("lab/a\0b", id="NUL"),
    pytest.param("lab/a\nb", id="a line break"),
    pytest.param(".coming/x", id="the folder of what is not whole"),
    pytest.param("lab/" + "x" * 256, id="a long part"),
    pytest.param("a/" * 500 + "a", id="a long key"),
    pytest.param("lab/\udcff", id="no text"),
]


@pytest.mark.parametrize("key", KEYS)
async def test_keys_that_could_lead_out_are_refused(tmp_path: Path, key: str) -> None:
    store = open_artifacts(tmp_path / "artifacts", most_bytes=MOST)
    for attempt in (store.open(key), store.delete(key), store.put(stream(b"1"), key, name="a")):
        with pytest.raises(BadRequest, match="key"):
            await attempt
    assert below(tmp_path) == ["artifacts"]


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "~", "b c", "\0"])).map("/".join))
def test_a_key_that_is_taken_stays_below_its_root(key: str) -> None:
    try:
        check_key(key)
    except BadRequest:
        return
    root = Path("/root/of/artifacts")
    path = Path(os.path.normpath(root / key))
    assert root in path.parents
    assert str(path) == f"{root}/{key}"


def test_a_usual_key_is_argos() -> None:
    assert make_key("train", "train-1", "model", "tar") == "train/train-1/model.tgz"
    assert make_key("train", "train-1", "model", "none") == "train/train-1/model"


# --- a folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_key_in_the_way_of_another_is_refused(folder: Path) -> None:
    store = open_artifacts(folder, most_bytes=MOST)
    await store.put(stream(b"1"), "lab/a", name="a")
    await store.put(stream(b"2"), "lab/b/c", name="c")
    for key in ("lab/a/x", "lab/b"):
        with pytest.raises(BadRequest, match="is a folder of another key"):
            await store.put(stream(b"3"), key, name="x")
    assert files(folder) == ["lab/a", "lab/b/c"]


async def test_a_full_disk_is_one_error_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_artifacts(folder, most_bytes=MOST)
    real, written = os.write, []

    def write(descriptor: int, data: bytes) -> int:
        written.append(len(data))
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageFull, match="its disk is full") as full:
        await store.put(stream(*[b"x" * CHUNK] * 8), "lab/a", name="a")
    assert "MOORAGE_ARTIFACTS" in (full.value.hint or "")
    assert files(folder) == []


async def test_room_is_left_for_the_databases_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    free = iter([1 << 30, 1 << 30, 100 << 20])
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1 << 40, 0, next(free)))
    store = open_artifacts(folder, most_bytes=1 << 30)
    with pytest.raises(StorageFull, match="100 MiB are free; 256 MiB are reserved"):
        await store.put(stream(*[b"x" * CHUNK] * 64), "lab/a", name="a")
    assert files(folder) == []


async def test_what_a_killed_server_left_half_made_is_collected(folder: Path) -> None:
    store = open_artifacts(folder, most_bytes=MOST)
    await store.put(stream(b"1"), "lab/a", name="a")
    upload = Folder(folder).create("lab/b")
    upload.write(b"half")
    assert [name for name in files(folder) if name.startswith(".coming/")] != []
    assert await store.collect(datetime.now(UTC) - timedelta(hours=1)) == 0
    assert await store.collect(FUTURE) == 1  # the artifact; what was not whole is not an artifact
    assert files(folder) == []
    upload.discard()


async def test_files_are_for_the_server_alone(folder: Path) -> None:
    store = open_artifacts(folder, most_bytes=MOST)
    await store.put(stream(b"1"), "lab/a", name="a")
    assert (mode(folder / "lab" / "a"), mode(folder)) == (0o600, 0o700)


async def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be made"):
        open_artifacts(f"file://{tmp_path}/file/artifacts", most_bytes=MOST)


async def test_a_server_without_a_place_says_what_to_set() -> None:
    store = Artifacts(None, most_bytes=MOST, refusal="set MOORAGE_ARTIFACTS")
    for attempt in (store.open("a"), store.put(stream(b""), "a", name="a"), store.delete("a")):
        with pytest.raises(StorageError, match="does not store artifacts") as refused:
            await attempt
        assert refused.value.hint == "set MOORAGE_ARTIFACTS"
    assert await store.collect(FUTURE) == 0


async def test_what_was_written_again_since_is_not_deleted_by_its_version(store: Artifacts) -> None:
    first = await store.put(stream(b"x"), "lab/a", name="a")
    second = await store.put(stream(b"other"), "lab/a", name="a")
    assert first.version
    assert await store.delete("lab/a", version=first.version) is False
    assert await store.delete("lab/a", version=second.version) is True
    assert await store.delete("lab/a", version=second.version) is False


async def test_a_folder_goes_as_a_whole_unless_something_was_written_into_it_since(store: Artifacts) -> None:
    files = {name: await store.put(stream(b"x"), f"lab/dir/{name}", name="a") for name in ("1", "b/2")}
    version = sum_of({name: artifact.version for name, artifact in files.items()})
    await store.put(stream(b"y"), "lab/dir/3", name="a")
    assert await store.delete_folder("lab/dir", version=version) is False
    await store.delete("lab/dir/3")
    assert await store.delete_folder("lab/dir", version=version) is True
    assert await store.below("lab/dir") == []
