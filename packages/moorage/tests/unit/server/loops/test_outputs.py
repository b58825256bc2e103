"""The loop that deletes the output of deleted maps."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from moorage.decide.maps.leasing import Policy
from moorage.queue.manager import Queue
from moorage.queue.outputs import ROW_BYTES, Outputs
from moorage.queue.quota import NONE
from moorage.queue.store import open_store
from moorage.server.loops.outputs import SWEEP_SECONDS, sweep_outputs
from moorage_kube.errors import StorageError
from moorage_kube.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(tmp_path):
    made = Queue(lambda: open_store(tmp_path / "queue.db"), clock=FakeClock())
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def outputs(tmp_path):
    made = Outputs(tmp_path / "outputs.db")
    yield made
    made.close()


async def add_map(queue, outputs, namespace, name):
    """A map of which one item has printed a hundred bytes; its number."""
    made = await queue.create_map(namespace=namespace, name=name, owner="ada", policy=Policy(), request=name)
    await outputs.add(made.map.id, "pod", [(0, 1, 0, b"x" * 100)])
    return made.map.id


async def sweep(queue, outputs, quota=NONE):
    """One round."""
    rounds = 0

    class Once(FakeClock):
        async def sleep(self, seconds):
            nonlocal rounds
            assert seconds == SWEEP_SECONDS
            if rounds:
                raise asyncio.CancelledError
            rounds += 1

    with contextlib.suppress(asyncio.CancelledError):
        await sweep_outputs(queue, outputs, quota, clock=Once())


async def test_output_goes_with_its_map(queue, outputs):
    kept, deleted = [await add_map(queue, outputs, "lab", name) for name in ("a", "b")]
    await queue.delete_map(deleted)
    await sweep(queue, outputs)
    assert [len(await outputs.page(of)) for of in (kept, deleted)] == [1, 0]


async def test_the_oldest_output_of_a_namespace_goes_first(queue, outputs):
    maps = [await add_map(queue, outputs, "lab", name) for name in ("a", "b")]
    other = await add_map(queue, outputs, "other", "c")
    await sweep(queue, outputs, replace(NONE, output_bytes=100 + ROW_BYTES))
    assert [len(await outputs.page(of)) for of in (*maps, other)] == [0, 1, 1]


class Away:
    """A queue whose database does not answer."""

    async def read(self, _):
        raise StorageError("the disk is away")


async def test_nothing_goes_while_maps_cannot_be_read(queue, outputs, caplog):
    of = await add_map(queue, outputs, "lab", "a")
    await sweep(Away(), outputs)
    assert len(await outputs.page(of)) == 1
    assert "output of deleted maps stays" in caplog.text
