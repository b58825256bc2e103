"""Kept output: everything comes back in order, by item or all; a map keeps to its bound and costs no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorage.queue.outputs import ROW_BYTES, Outputs
from moorage_kube.errors import StorageError

pytestmark = pytest.mark.anyio
BOUND = 100_000


@pytest.fixture
async def outputs(database: Path | str) -> AsyncIterator[Outputs]:
    made = Outputs(database, map_bytes=BOUND)
    yield made
    made.close()


async def everything(outputs: Outputs, of: int, item: int | None = None) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    after = 0
    while page := await outputs.page(of, item=item, after=after):
        found += [(one.item, one.output) for one in page]
        after = page[-1].id
    return found


async def test_what_was_printed_comes_back_in_order(outputs: Outputs) -> None:
    await outputs.add(1, "p1", [(0, 1, 5, b"a\n"), (1, 1, 6, b"\xff\x00")])
    await outputs.add(2, "p1", [(0, 1, 7, b"of another map\n")])
    await outputs.add(1, "p2", [(0, 2, 8, b"b\n")])
    assert await everything(outputs, 1) == [(0, b"a\n"), (1, b"\xff\x00"), (0, b"b\n")]
    assert await everything(outputs, 1, item=0) == [(0, b"a\n"), (0, b"b\n")]
    assert (await outputs.page(1, item=0))[1].pod == "p2"


async def test_a_map_keeps_its_newest_output_within_its_bound(outputs: Outputs) -> None:
    await outputs.add(2, "p", [(0, 1, 0, b"kept")])
    for number in range(300):
        await outputs.add(1, "p", [(number, 1, 0, b"x" * 1000)])
    found = await everything(outputs, 1)
    assert [item for item, _ in found] == list(range(300 - len(found), 300))
    assert BOUND // 2 < len(found) * (1000 + ROW_BYTES) <= BOUND
    assert await everything(outputs, 2) == [(0, b"kept")]


async def test_maps_that_come_and_go_leave_nothing_in_memory(outputs: Outputs) -> None:
    for of in range(50):
        follower = asyncio.create_task(outputs.news(of))
        await asyncio.sleep(0)
        follower.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await follower
        if of % 2:
            await outputs.add(of, "p", [(0, 1, 0, b"x")])
    for of in range(50, 60):
        await outputs.add(of, "p", [(0, 1, 0, b"")])
    await outputs.keep_only([59])
    assert outputs._news == {}
    assert await everything(outputs, 59) == [(0, b"")]


async def test_a_large_output_comes_in_pages(database: Path | str) -> None:
    large = Outputs(database)
    await large.add(1, "p", [(0, 1, 0, b"x" * 700_000)] * 4)
    assert len(await large.page(1)) == 2
    assert len(await everything(large, 1)) == 4
    large.close()


async def test_the_output_of_maps_that_are_gone_is_forgotten(outputs: Outputs) -> None:
    for of in (1, 2, 3):
        await outputs.add(of, "p", [(0, 1, 0, b"x")])
    await outputs.keep_only([2])
    assert [bool(await outputs.page(of)) for of in (1, 2, 3)] == [False, True, False]
    await outputs.add(1, "p", [(7, 1, 0, b"again")])
    assert await everything(outputs, 1) == [(7, b"again")]


async def test_who_waits_for_news_hears_of_it(outputs: Outputs) -> None:
    waiting = asyncio.create_task(outputs.news(1))
    await asyncio.sleep(0)
    await outputs.add(2, "p", [(0, 1, 0, b"x")])
    assert not waiting.done()
    await outputs.add(1, "p", [(0, 1, 0, b"x")])
    await asyncio.wait_for(waiting, 120)


async def test_a_restart_finds_everything_and_keeps_the_bound(outputs: Outputs, database: Path | str) -> None:
    await outputs.add(1, "p", [(0, 1, 0, b"x" * 60_000)])
    second = Outputs(database, map_bytes=BOUND)
    await second.add(1, "p", [(1, 1, 0, b"y" * 60_000)])
    assert [item for item, _ in await everything(second, 1)] == [1]
    second.close()


async def test_parts_become_visible_in_the_order_of_their_ids(postgres_url: str) -> None:
    """A follower that has read part N never misses a smaller one that another server was about to add."""
    servers = [Outputs(postgres_url) for _ in range(3)]

    async def add(server: int) -> None:
        for at in range(40):
            await servers[server].add(1, f"p{server}", [(at, 1, 0, b"x")])

    async def follow() -> int:
        after = count = 0
        while count < 80:
            page = await servers[2].page(1, after=after)
            count += len(page)
            after = page[-1].id if page else after
        return count

    _, _, count = await asyncio.gather(add(0), add(1), follow())
    assert count == 80
    for server in servers:
        server.close()


async def test_what_another_server_adds_is_news_and_counts(postgres_url: str) -> None:
    first, second = (Outputs(postgres_url, map_bytes=BOUND) for _ in range(2))
    await first.add(1, "p", [(0, 1, 0, b"x" * 60_000)])
    last = (await second.page(1))[-1].id
    waiting = asyncio.create_task(second.news(1, after=last))
    await first.add(1, "p", [(1, 1, 0, b"y" * 30_000)])
    await asyncio.wait_for(waiting, 120)
    await second.add(1, "p", [(2, 1, 0, b"z" * 30_000)])
    assert [item for item, _ in await everything(first, 1)] == [1, 2]
    first.close()
    second.close()


async def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    path.write_bytes(b"no database, but long enough to be looked at as one" * 100)
    outputs = Outputs(path)
    with pytest.raises(StorageError, match=r"outputs.db: it is damaged \(file is not a database\)"):
        await outputs.add(1, "p", [(0, 1, 0, b"x")])
    outputs.close()
