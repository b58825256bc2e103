"""A server in memory, and one behind TLS, for the tests of this folder."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.serving import serve
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.pki import ensure_pki
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage import MemoryStorage

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class HeldClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.moment = NOON

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def pass_by(self, **span: float) -> None:
        self.moment += timedelta(**span)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> HeldClock:
    return HeldClock()


TOKENS = {
    "admin-token": {"user": "admin", "groups": ["system:masters"]},
    "alice-token": {"user": "alice", "groups": ["team"]},
}


@pytest.fixture
async def server(clock: HeldClock) -> AsyncIterator[ApiServer]:
    made = ApiServer(MemoryStorage(), tokens=TOKENS, signing_key=b"k" * 32, clock=clock)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def api(server: ApiServer) -> InProcessClient:
    return server.client()


@dataclass(frozen=True)
class Served:
    server: ApiServer
    url: str
    kubeconfig: Path
    ca: Path


@asynccontextmanager
async def over_tls(app: Any, folder: Path) -> AsyncIterator[tuple[str, Path, str]]:
    """Serve an ASGI application; gives its URL, the CA's file and the CA in PEM."""
    pki = ensure_pki(folder)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(64)
    sock.setblocking(False)
    stop = asyncio.Event()
    serving = asyncio.ensure_future(serve(app, sock, certificate=pki.certificate, key=pki.key, stop=stop))
    try:
        yield f"https://127.0.0.1:{sock.getsockname()[1]}", pki.ca, pki.ca_pem
    finally:
        stop.set()
        await serving


@pytest.fixture
def tls() -> Any:
    """`over_tls`, for modules that cannot import this one."""
    return over_tls


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A server on the machine's own clock behind TLS, with a kubeconfig for its admin."""
    made = ApiServer(MemoryStorage(), tokens=TOKENS, signing_key=b"k" * 32)
    await made.start()
    async with over_tls(made.app, tmp_path / "pki") as (url, ca, _):
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(ca)}}],
                    "users": [{"name": "u", "user": {"token": "admin-token"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        yield Served(made, url, kubeconfig, ca)
    await made.stop()
