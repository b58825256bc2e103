from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.examples import examples
from moorage_local.nodeagent.logs import Reader, attempts, parse_line, read_log
from moorage_local.nodeagent.shim.logs import Log


async def text_of(path: Path, **options: Any) -> bytes:
    chunks = read_log(path, clock=FakeClock(), is_over=lambda: True, **options)
    return b"".join([chunk async for chunk in chunks])


@settings(max_examples=examples(20, full=40), deadline=None)
@given(st.lists(st.binary(max_size=200).filter(lambda data: b"\0" not in data), max_size=20))
def test_whatever_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, writes: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = Log(str(path), 1000, 100)
    for data in writes:
        log.feed(b"stdout", data)
    log.close()
    want = b"".join(writes)
    if want and not want.endswith(b"\n"):
        want += b"\n"
    assert asyncio.run(text_of(path)) == want


def a_log(path: Path, lines: int, max_bytes: int = 10**6) -> None:
    log = Log(str(path), max_bytes, 5)
    for number in range(lines):
        log.feed(b"stdout", f"line {number}\n".encode())
    log.close()


@pytest.mark.anyio
async def test_tail_reaches_into_rotated_files(tmp_path: Path) -> None:
    a_log(tmp_path / "0.log", 100, max_bytes=500)
    assert (tmp_path / "0.log.4").exists()
    got = (await text_of(tmp_path / "0.log", tail_lines=30)).decode().splitlines()
    assert got == [f"line {number}" for number in range(70, 100)]


@pytest.mark.anyio
async def test_since_leaves_out_what_is_older(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(
        "2026-11-21T12:00:00.000000001Z stdout F old\n"
        "2026-11-21T12:00:05.5Z stdout F new\n"
        "2026-11-21T12:00:06.123456789Z stderr F newer\n"
    )
    assert await text_of(path, since=datetime(2026, 11, 21, 12, 0, 5, tzinfo=UTC)) == b"new\nnewer\n"


@pytest.mark.anyio
async def test_parts_are_joined_and_stamped_once(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("2026-11-21T12:00:00Z stdout P ab\n2026-11-21T12:00:01Z stdout F cd\n")
    assert await text_of(path) == b"abcd\n"
    assert await text_of(path, timestamps=True) == b"2026-11-21T12:00:00Z abcd\n"
    assert await text_of(path, tail_lines=1) == b"abcd\n"


@pytest.mark.anyio
async def test_limit_of_bytes_cuts(tmp_path: Path) -> None:
    a_log(tmp_path / "0.log", 10)
    assert await text_of(tmp_path / "0.log", limit_bytes=9) == b"line 0\nli"


def test_reader_goes_on_through_rotations(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log, reader, got = Log(str(path), 300, 5), Reader(path), []
    for number in range(200):
        log.feed(b"stdout", f"line {number}\n".encode())
        if number % 7 == 0:
            got += [line.text.decode() for line in reader.lines()]
    log.close()
    got += [line.text.decode() for line in reader.lines()]
    reader.close()
    assert got == [f"line {number}" for number in range(200)]


@pytest.mark.parametrize("raw", [b"", b"x", b"a b c", b"2026-11-21T12:00:00Z stdout X text"])
def test_what_is_no_line_is_left_out(raw: bytes) -> None:
    assert parse_line(raw) is None


def test_attempts_are_numbered(tmp_path: Path) -> None:
    for name in ("0.log", "0.log.1", "2.log", "10.log"):
        (tmp_path / name).touch()
    assert attempts(tmp_path) == [0, 2, 10]
    assert attempts(tmp_path / "none") == []
