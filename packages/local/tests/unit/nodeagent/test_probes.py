"""Probes: what they say of an answer, and what a machine that sleeps does to them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.awaketime import AwakeTime
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.ports import dead_port
from moorage_local.nodeagent import probes
from moorage_local.nodeagent.execs import RunningContainer

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
        main=RunningContainer(Path("/nowhere"), 1, is_privileged=False),
        started=clock.now(),
        clock=clock,
        slept_since=AwakeTime(clock).slept_since,
        ready=True,
        started_before=True,
        changed=lambda *_: None,
        failed_liveness=failed.append,
        unhealthy=lambda kind, _: unhealthy.append(kind),
    )
    server.close()
    await server.wait_closed()
    assert (len(failed), len(unhealthy), port.asked) == (1, 1, tries)


MAIN = RunningContainer(Path("/nowhere"), 1, is_privileged=False)


def a_probe(**action: Any) -> probes.Probe:
    (probe,) = probes.probes_of({"name": "c", "livenessProbe": {"timeoutSeconds": 30, **action}})
    return probe


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", (True, "")),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", (False, "HTTP probe failed with statuscode: 503")),
        (b"", (False, 'Get "URL": EOF')),
        (
            b"SSH-2.0\r\n",
            (
                False,
                'Get "URL": net/http: HTTP/1.x transport connection broken: malformed HTTP response "SSH-2.0"',
            ),
        ),
    ],
)
async def test_an_answer_is_judged_in_a_kubelets_words(answer: bytes, want: tuple[bool, str]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    success, text = await probes.run_once({}, a_probe(httpGet={"port": port, "path": "healthz"}), MAIN)
    server.close()
    await server.wait_closed()
    assert (success, text.replace(f"http://127.0.0.1:{port}/healthz", "URL")) == want


async def test_a_port_that_nobody_serves_is_named() -> None:
    with dead_port() as port:
        refused = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
        assert await probes.run_once({}, a_probe(tcpSocket={"port": port}), MAIN) == (False, refused)
        assert await probes.run_once({}, a_probe(httpGet={"port": port}), MAIN) == (
            False,
            f'Get "http://127.0.0.1:{port}/": {refused}',
        )
    assert await probes.run_once({}, a_probe(tcpSocket={"port": "web"}), MAIN) == (False, "port web not found")


async def test_an_answer_that_does_not_come_is_a_timeout() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the probe gives up
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probe = a_probe(httpGet={"port": port}, timeoutSeconds=0.01)
    late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert await probes.run_once({}, probe, MAIN) == (False, f'Get "http://127.0.0.1:{port}/": {late}')
    server.close()
    await server.wait_closed()
