"""Probes while the machine sleeps."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from moorage.apimachinery.awake import Awake
from moorage.localcluster.nodeagent import probes
from moorage.localcluster.nodeagent.execs import Beside
from moorage.testing.clock import FakeClock

pytestmark = pytest.mark.anyio


class Unanswered:
    """A port that takes connections and never answers, on a machine that may sleep during the first of them."""

    def __init__(self, clock: FakeClock, slept: timedelta) -> None:
        self._clock = clock
        self._slept = slept
        self.asked = 0

    async def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        if self.asked == 1:
            self._clock.advance(self._slept)
        writer.close()


@pytest.mark.parametrize(
    ("slept", "tries"), [(timedelta(0), 1), (timedelta(hours=8), 2)], ids=["awake", "asleep during the first"]
)
async def test_a_probe_during_which_the_machine_slept_does_not_count(slept, tries):
    clock = FakeClock()
    port = Unanswered(clock, slept)
    server = await asyncio.start_server(port.serve, "127.0.0.1", 0)
    number = server.sockets[0].getsockname()[1]
    container = {"name": "c", "livenessProbe": {"httpGet": {"port": number}, "failureThreshold": 1}}
    failed: list[str] = []
    unhealthy: list[str] = []
    await probes.watch(
        container,
        main=Beside(Path("/nowhere"), 1, is_privileged=False),
        started=clock.now(),
        clock=clock,
        slept_since=Awake(clock).slept_since,
        ready=True,
        started_before=True,
        changed=lambda *_: None,
        failed_liveness=failed.append,
        unhealthy=lambda kind, _: unhealthy.append(kind),
    )
    server.close()
    await server.wait_closed()
    assert (len(failed), len(unhealthy), port.asked) == (1, 1, tries)
