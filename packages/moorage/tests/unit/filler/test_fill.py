"""A fill: whole, checked, resumed after kills, and never of two states of the source."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from moorage.filler.errors import (
    BadArchive,
    BadSource,
    Corrupt,
    FillError,
    SourceChanged,
    SourceDenied,
    SourceEmpty,
    SourceFailed,
    SourceNotFound,
    TooLarge,
    TooManyFiles,
    UnsafePath,
    VolumeFailed,
)
from moorage.filler.fill import Order, checksum, fill
from moorage.filler.progress import Progress
from moorage.filler.sources import Entry, FolderSource, links_of, open_source
from moorage.filler.tree import Tree

pytestmark = pytest.mark.anyio


class MemorySource:
    """A source of which a test changes what it likes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.versions = dict.fromkeys(files, "1")
        self.reads: list[tuple[str, int]] = []
        self.listings = 0
        self.fail: dict[str, int] = {}  # path → reads that break half-way
        self.tell_size = True
        self.before_listing = lambda number: None

    async def entries(self, *, most: int) -> list[Entry]:
        self.listings += 1
        self.before_listing(self.listings)
        return [
            Entry(path, len(data) if self.tell_size else None, self.versions.get(path, "1"), path)
            for path, data in sorted(self.files.items())
        ]

    async def read(self, entry: Entry, start: int = 0) -> AsyncIterator[bytes]:
        self.reads.append((entry.path, start))
        data = self.files[entry.where][start:]
        if self.fail.get(entry.path, 0):
            self.fail[entry.path] -= 1
            yield data[: len(data) // 2]
            raise SourceFailed("the line broke")
        for first in range(0, len(data), 1 << 20):
            yield data[first : first + (1 << 20)]

    async def close(self) -> None:
        return None


FILES = {"a.bin": b"a" * 1000, "d/b.bin": b"b" * 70_000, "d/e/empty": b"", "odd \n名/c": b"c"}


def order(**given) -> Order:
    return Order(revision=given.pop("revision", "r1"), **given)


async def filled(source, root: Path, *, open_tree=Tree, **given):
    return await fill(source, root, order(**given), Progress(every=1e9), retry_seconds=0.0, open_tree=open_tree)


def data_of(root: Path) -> dict[str, bytes]:
    folder = root / "data"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_fill_is_whole_and_checked(tmp_path):
    source = MemorySource(FILES)
    result = await filled(source, tmp_path)
    assert data_of(tmp_path) == FILES
    lines = sorted(FILES.items(), key=lambda item: os.fsencode(item[0]))
    text = b"".join(
        hashlib.sha256(data).hexdigest().encode() + b"  " + path.encode() + b"\n" for path, data in lines
    )
    assert result == {
        "phase": "ready",
        "revision": "r1",
        "files": 4,
        "bytes": 71_001,
        "sha256": hashlib.sha256(text).hexdigest(),
        "versions": checksum((path, "1") for path in FILES),
    }
    assert sorted(path.name for path in (tmp_path / ".moorage").iterdir()) == [
        "lock",
        "manifest.jsonl",
        "ready.json",
    ]
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in (tmp_path / "data").rglob("*") if path.is_file())


async def test_a_fill_that_is_done_only_tells_its_result(tmp_path):
    first = await filled(MemorySource(FILES), tmp_path)
    again = MemorySource({})
    assert await filled(again, tmp_path) == first
    assert again.listings == 0


async def test_another_dataset_is_not_filled_over_one_that_is_ready(tmp_path):
    await filled(MemorySource(FILES), tmp_path)
    with pytest.raises(VolumeFailed, match="another dataset"):
        await filled(MemorySource({"x": b"y"}), tmp_path, revision="r2")
    assert data_of(tmp_path) == FILES


async def test_another_revision_of_an_unfinished_fill_begins_anew(tmp_path):
    source = MemorySource(FILES)
    source.fail = {"a.bin": 99}
    with pytest.raises(SourceFailed):
        await filled(source, tmp_path)
    result = await filled(MemorySource({"only": b"this"}), tmp_path, revision="r2")
    assert data_of(tmp_path) == {"only": b"this"}
    assert result["revision"] == "r2"


async def test_a_line_that_breaks_is_gone_on_with(tmp_path):
    big = {"big": random.Random(1).randbytes(20 << 20), "small": b"s" * 1000}
    source = MemorySource(big)
    source.fail = {"big": 2, "small": 2}
    await filled(source, tmp_path)
    assert data_of(tmp_path) == big
    starts = [start for path, start in source.reads if path == "big"]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert starts[1] > 0  # from where it broke off


async def test_a_source_that_tells_no_sizes_is_read_too(tmp_path):
    source = MemorySource(FILES)
    source.tell_size = False
    result = await filled(source, tmp_path)
    assert result["bytes"] == 71_001
    assert data_of(tmp_path) == FILES


def change(source: MemorySource, what: str) -> None:
    if what == "version":
        source.versions["a.bin"] = "2"
    elif what == "size":
        source.files["a.bin"] += b"more"
    elif what == "gone":
        del source.files["a.bin"]
    elif what == "new":
        source.files["zz"] = b"new"


@pytest.mark.parametrize("what", ["version", "size", "gone", "new"])
async def test_a_source_that_changes_meanwhile_is_told_of_and_not_mixed_in(tmp_path, what):
    source = MemorySource(FILES)
    source.before_listing = lambda number: change(source, what) if number == 2 else None
    with pytest.raises(SourceChanged, match=r"a\.bin|zz"):
        await filled(source, tmp_path)
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / ".moorage" / "ready.json").exists()


async def test_a_source_that_changed_between_two_processes_is_told_of(tmp_path):
    source = MemorySource(FILES)
    source.fail = {"d/b.bin": 99}
    with pytest.raises(SourceFailed):
        await filled(source, tmp_path)
    source.fail = {}
    source.files["a.bin"] = b"z" * 1000
    source.versions["a.bin"] = "2"
    with pytest.raises(SourceChanged):
        await filled(source, tmp_path)
    assert not (tmp_path / "data").exists()


async def test_what_the_disk_spoilt_is_fetched_again(tmp_path):
    source = MemorySource(FILES)

    spoilt = []

    class Spoiling(Tree):
        def open(self, path):
            if path == ".moorage/filling/a.bin" and not spoilt:
                spoilt.append(path)
                (tmp_path / path).chmod(0o644)
                (tmp_path / path).write_bytes(b"x" * 1000)
            return super().open(path)

    await filled(source, tmp_path, open_tree=Spoiling)
    assert spoilt
    assert data_of(tmp_path) == FILES
    assert [path for path, _ in source.reads].count("a.bin") == 2


async def test_what_cannot_be_kept_whole_is_never_ready(tmp_path):
    class Empty(Tree):
        def open(self, path):
            return os.open(os.devnull, os.O_RDONLY) if path.startswith(".moorage/filling/") else super().open(path)

    with pytest.raises(Corrupt):
        await filled(MemorySource(FILES), tmp_path, open_tree=Empty)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("files", "given", "error"),
    [
        ({}, {}, SourceEmpty),
        ({"a": b"1", "a/b": b"2"}, {}, UnsafePath),
        (FILES, {"most_bytes": 1000}, TooLarge),
        (FILES, {"unpack": True}, BadArchive),
        ({"x.bin": b"1"}, {"unpack": True}, BadArchive),
        ({"x.zip": b"no zip"}, {"unpack": True}, BadArchive),
    ],
)
async def test_what_cannot_be_filled_is_told_at_once(tmp_path, files, given, error):
    with pytest.raises(error):
        await filled(MemorySource(files), tmp_path, **given)
    assert not (tmp_path / "data").exists()


async def test_a_source_larger_than_it_told_ends_at_the_volumes_size(tmp_path):
    source = MemorySource({"a": b"x" * 5000})
    source.tell_size = False
    with pytest.raises(TooLarge):
        await filled(source, tmp_path, most_bytes=1000)


@pytest.mark.parametrize("point", ["begun", "manifest", "moved"])
async def test_a_death_at_the_end_is_finished_by_the_next(tmp_path, point):
    class Died(BaseException):
        pass

    class Dying(Tree):
        def move(self, source, target):
            super().move(source, target)
            if point == "moved" and target == "data":
                raise Died

        def write_whole(self, path, data):
            super().write_whole(path, data)
            if path.endswith((f"{point}.json", f"{point}.jsonl")):
                raise Died

    with pytest.raises((Died, BaseExceptionGroup)):
        await filled(MemorySource(FILES), tmp_path, open_tree=Dying)
    assert not (tmp_path / ".moorage" / "ready.json").exists()
    result = await filled(MemorySource(FILES), tmp_path)
    assert data_of(tmp_path) == FILES
    assert result["files"] == 4


# --- folders


async def test_a_folder_is_a_source_and_its_links_inside_are_read(tmp_path):
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "real").write_text("x")
    (source / "link").symlink_to("d/real")
    (tmp_path / "root").mkdir()
    await filled(FolderSource(source), tmp_path / "root")
    assert data_of(tmp_path / "root") == {"d/real": b"x", "link": b"x"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "nothing", "d", "."])
async def test_a_link_out_of_a_folder_is_refused(tmp_path, target):
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (tmp_path / "outside").write_text("secret")
    (source / "link").symlink_to(target)
    (tmp_path / "root").mkdir()
    with pytest.raises(UnsafePath):
        await filled(FolderSource(source), tmp_path / "root")
    assert not (tmp_path / "root" / "data").exists()


@pytest.mark.parametrize("url", ["file:///etc", "ftp://x/y", "/etc", "", "s3://", "https:///x", "folder"])
async def test_other_sources_are_refused(url):
    with pytest.raises(BadSource):
        open_source(url)


# --- web servers


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def a_folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


async def test_a_web_servers_folder_is_filled(tmp_path):
    files = {"a.bin": b"a" * 1000, "d/e/f.bin": b"b" * 9_000_000, "d/with blank 名 %41.txt": b"x"}
    app = web.Application()
    app.router.add_static("/files", a_folder(tmp_path / "www", files), show_index=True)
    (tmp_path / "root").mkdir()
    async with serving(app) as url:
        result = await filled(open_source(f"{url}/files/"), tmp_path / "root")
    assert data_of(tmp_path / "root") == files
    assert result["files"] == 3


async def test_one_file_is_fetched_and_unpacked(tmp_path):
    import io
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("in/side.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    app = web.Application()
    app.router.add_static("/", a_folder(tmp_path / "www", {"x.tar.gz": out.getvalue()}))
    async with serving(app) as url:
        (tmp_path / "one").mkdir()
        await filled(open_source(f"{url}/x.tar.gz"), tmp_path / "one")
        (tmp_path / "two").mkdir()
        await filled(open_source(f"{url}/x.tar.gz"), tmp_path / "two", unpack=True)
    assert data_of(tmp_path / "one") == {"x.tar.gz": out.getvalue()}
    assert data_of(tmp_path / "two") == {"in/side.txt": b"hello"}


@pytest.mark.parametrize(
    ("status", "error"), [(404, SourceNotFound), (403, SourceDenied), (401, SourceDenied), (400, BadSource)]
)
async def test_what_a_web_server_refuses_is_told(tmp_path, status, error):
    async def refuse(request):
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/x", refuse)
    async with serving(app) as url:
        with pytest.raises(error):
            await filled(open_source(f"{url}/x"), tmp_path)


async def test_a_page_that_is_no_listing_is_refused(tmp_path):
    async def page(request):
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/x/", page)
    async with serving(app) as url:
        with pytest.raises(BadSource, match="not a listing"):
            await filled(open_source(f"{url}/x/"), tmp_path)


async def test_listings_that_lead_in_circles_end(tmp_path):
    async def page(request):
        return web.Response(text='<a href="x/">x</a><a href="../y/">y</a>', content_type="text/html")

    app = web.Application()
    app.router.add_get("/{tail:.*}", page)
    async with serving(app) as url:
        with pytest.raises(FillError):
            await filled(open_source(f"{url}/x/"), tmp_path, most_files=50)


async def test_more_files_than_allowed_are_not_fetched(tmp_path):
    async def page(request):
        return web.Response(text="".join(f'<a href="{n}">' for n in range(101)), content_type="text/html")

    app = web.Application()
    app.router.add_get("/x/", page)
    async with serving(app) as url:
        with pytest.raises(TooManyFiles):
            await filled(open_source(f"{url}/x/"), tmp_path, most_files=100)


async def test_the_authorization_goes_to_the_sources_own_host_alone(tmp_path, monkeypatch):
    seen: list[tuple[str, str | None]] = []

    async def own(request):
        seen.append(("own", request.headers.get("Authorization")))
        raise web.HTTPFound(f"{other}/file")

    async def foreign(request):
        seen.append(("other", request.headers.get("Authorization")))
        return web.Response(body=b"x")

    app, elsewhere = web.Application(), web.Application()
    app.router.add_get("/file", own)
    elsewhere.router.add_get("/file", foreign)
    async with serving(elsewhere) as other, serving(app) as url:
        source = open_source(f"{url}/file", env={"MOORAGE_HTTP_AUTHORIZATION": "Bearer secret"})
        await filled(source, tmp_path)
    assert ("own", "Bearer secret") in seen
    assert {authorization for who, authorization in seen if who == "other"} == {None}


@pytest.mark.parametrize(
    ("href", "want"),
    [
        ("a.txt", [("a.txt", "http://h/base/a.txt")]),
        ("/base/d/", [("d/", "http://h/base/d/")]),
        ("http://h/base/x", [("x", "http://h/base/x")]),
        ("a%20b", [("a b", "http://h/base/a%20b")]),
        ("../up", []),
        ("/etc/passwd", []),
        ("http://other/base/x", []),
        ("//other/base/x", []),
        ("?C=N;O=D", []),
        ("a.txt?download=1", []),
        ("#top", []),
        ("javascript:alert(1)", []),
        ("d/../../../up", []),
        ("http://[bad", []),
        ("", []),
    ],
)
async def test_a_listings_links_are_followed_downwards_alone(href, want):
    page = f'<html><a href="{href}">x</a></html>'
    assert list(links_of(page, "http://h/base/", "http://h/base/")) == want


@pytest.mark.parametrize(
    "href", ["..%2f..%2fetc%2fpasswd", "a%2f..%2f..%2fb", "a%00b", "%2fetc", "a%2fb", "%2e%2e/%2e%2e/x"]
)
async def test_a_listing_that_attacks_is_refused_or_passed_over(href):
    try:
        links = list(links_of(f'<a href="{href}">', "http://h/base/", "http://h/base/"))
    except UnsafePath:
        return
    assert links == []


# --- S3


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """A server that speaks S3, with a bucket."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    env = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        yield env
    finally:
        server.stop()


@pytest.fixture
def bucket(s3, monkeypatch):
    import boto3

    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    name = f"bucket-{random.randrange(10**9)}"
    client.create_bucket(Bucket=name)
    return client, name


async def test_a_bucket_is_filled_and_its_folder_markers_left_out(tmp_path, bucket):
    client, name = bucket
    files = {"a.bin": b"a" * 1000, "d/e.bin": random.Random(3).randbytes(17 << 20), "d/f 名.txt": b"x"}
    for path, data in files.items():
        client.put_object(Bucket=name, Key=f"set/{path}", Body=data)
    client.put_object(Bucket=name, Key="set/d/", Body=b"")
    client.put_object(Bucket=name, Key="other", Body=b"not this")
    result = await filled(open_source(f"s3://{name}/set"), tmp_path)
    assert data_of(tmp_path) == files
    assert result["files"] == 3


async def test_a_bucket_that_changes_meanwhile_is_told_of(tmp_path, bucket):
    client, name = bucket
    client.put_object(Bucket=name, Key="set/a", Body=b"1")
    source = open_source(f"s3://{name}/set/")
    entries = source.entries
    asked = []

    async def changing(*, most):
        asked.append(1)
        if len(asked) == 2:
            client.put_object(Bucket=name, Key="set/a", Body=b"2")
        return await entries(most=most)

    source.entries = changing
    with pytest.raises(SourceChanged):
        await filled(source, tmp_path)


@pytest.mark.parametrize("key", ["set/../evil", "set//x", "set/./x", "set/a/../b"])
async def test_a_key_that_leads_out_is_refused(tmp_path, bucket, key):
    client, name = bucket
    client.put_object(Bucket=name, Key=key, Body=b"1")
    client.put_object(Bucket=name, Key="set/fine", Body=b"1")
    with pytest.raises(FillError):
        await filled(open_source(f"s3://{name}/set"), tmp_path)
    assert not (tmp_path / "data").exists()


async def test_a_bucket_that_is_not_there_is_told(tmp_path, bucket):
    with pytest.raises(SourceNotFound):
        await filled(open_source("s3://no-such-bucket-here/x"), tmp_path)


# --- killed


def _filler(code: str, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)


def _die_at(process: subprocess.Popen[str], done: threading.Event, bytes_seen: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        progress = json.loads(line)
        if progress.get("phase") == "ready":
            done.set()
        if progress.get("phase") == "filling" and progress["bytes"] >= bytes_seen:
            process.send_signal(signal.SIGKILL)
            break
    process.stdout.read()


@pytest.mark.processes
async def test_a_filler_killed_five_times_fills_the_rest_and_nothing_twice(tmp_path):
    chance = random.Random(7)
    files = {f"d{n % 7}/{n}.bin": chance.randbytes(chance.randrange(30_000)) for n in range(600)}
    files["big.bin"] = chance.randbytes(12 << 20)
    held = "d6/594.bin"  # until the last kill: else, on a busy machine, a filler may be done before it is killed
    kills, last_kill = 0, asyncio.Event()
    asked: dict[str, int] = {}
    folder = a_folder(tmp_path / "www", files)

    async def tell(request):
        path = request.match_info["path"]
        if request.method == "GET" and not path.endswith("/") and path:
            asked[path] = asked.get(path, 0) + 1
        if request.method == "GET" and path == held:
            await last_kill.wait()
        there = folder / path
        if there.is_dir():
            links = "".join(f'<a href="{child.name}{"/" if child.is_dir() else ""}">' for child in there.iterdir())
            return web.Response(text=links, content_type="text/html")
        return web.FileResponse(there)

    app = web.Application()
    app.router.add_get("/{path:.*}", tell)
    (tmp_path / "root").mkdir()
    total = sum(len(data) for data in files.values())
    done = threading.Event()
    code = (
        "import sys; from moorage.filler import progress; progress.EVERY_SECONDS = 0.0;"
        "progress.Progress.__init__.__kwdefaults__['every'] = 0.0;"
        "from moorage.filler.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    async with serving(app) as url:
        while not done.is_set():
            words = [
                "fill",
                "--source",
                f"{url}/",
                "--root",
                str(tmp_path / "root"),
                "--revision",
                "r",
                "--workers",
                "4",
            ]
            with _filler(code, words) as process:
                goal = total * (kills + 1) // 7 if kills < 5 else 1 << 60
                await asyncio.to_thread(_die_at, process, done, goal)
            if not done.is_set():
                assert process.returncode == -signal.SIGKILL
                kills += 1
                if kills == 5:
                    last_kill.set()
                assert not (tmp_path / "root" / "data").exists()
    assert kills == 5
    assert data_of(tmp_path / "root") == files
    again = sum(times - 1 for path, times in asked.items() if path != "big.bin")
    assert again < 600  # most files came once
