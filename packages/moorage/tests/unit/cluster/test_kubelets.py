"""Kubelets are asked directly, by a token that opens nothing else, where their certificate is the cluster's."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from moorage.cluster.kubelets import SUMMARY_MAX_BYTES, TOKEN_LIFE, Kubelets, address_of
from moorage_kube.clock import rfc3339
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.config import Connection
from moorage_kube.testing.clock import FakeClock
from moorage_local.apiserver.pki import ensure_pki

pytestmark = pytest.mark.anyio


def a_node(port: int = 0, **addresses: str) -> Any:
    found = [{"type": kind, "address": text} for kind, text in addresses.items()]
    status = {"addresses": found, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
    return {"metadata": {"name": "n"}, "status": status}


class Api(KubeClient):
    """Gives tokens, and remembers who asked the API server for what."""

    def __init__(self, ca_pem: bytes, clock: FakeClock) -> None:
        super().__init__(Connection(server="https://127.0.0.1:1", ca_pem=ca_pem, token="the-servers-own"))
        self.clock, self.given, self.asked = clock, 0, []

    async def create_subresource(self, resource: Any, name: str, subresource: str, body: Any, *where: Any) -> Any:
        assert (resource.plural, name, subresource, *where) == (
            "serviceaccounts", "moorage-kubelets", "token", "moorage-system",
        )  # fmt: skip
        self.given += 1
        number = self.given
        await asyncio.sleep(0)  # others may ask meanwhile
        until = self.clock.now() + timedelta(seconds=body["spec"]["expirationSeconds"])
        return {"status": {"token": f"narrow-{number}", "expirationTimestamp": rfc3339(until)}}

    def with_token(self, token: str, user: str = "") -> Any:
        api = self

        class Other:
            async def raw(self, method: str, path: str) -> bytes:
                api.asked.append((token, method, path))
                return b'{"pods": []}'

        return Other()


class Kubelet:
    """A kubelet's port. `body` is its summary; `headers`: of the requests that came."""

    def __init__(self, body: bytes = b'{"pods": []}', status: int = 200) -> None:
        self.body, self.status, self.seen, self.port = body, status, [], 0

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, request.headers.get("Authorization")))
        return web.Response(body=self.body, status=self.status, headers={"Location": "/elsewhere"})


@asynccontextmanager
async def serving(kubelet: Kubelet, folder: Path) -> AsyncIterator[bytes]:
    """Serve it over TLS; gives the authority of its certificate."""
    pki = ensure_pki(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki.certificate, pki.key)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", kubelet.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        kubelet.port = runner.addresses[0][1]
        yield pki.ca_pem.encode()
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_reader(ca_pem: bytes, clock: FakeClock | None = None) -> AsyncIterator[tuple[Kubelets, Api]]:
    api = Api(ca_pem, clock or FakeClock())
    kubelets = Kubelets(api, clock=api.clock)
    try:
        yield kubelets, api
    finally:
        await kubelets.close()


async def test_many_nodes_at_once_are_asked_with_one_token() -> None:
    api = Api(b"", FakeClock())
    kubelets = Kubelets(api, clock=api.clock)
    await asyncio.gather(*(kubelets.summary(a_node()) for _ in range(32)))
    assert api.given == 1
    assert {token for token, _, _ in api.asked} == {"narrow-1"}
    api.clock.advance(TOKEN_LIFE)
    await asyncio.gather(*(kubelets.summary(a_node()) for _ in range(32)))
    assert api.given == 2


async def test_a_kubelet_is_asked_by_a_token_of_its_own_kind_which_is_renewed_in_time(tmp_path: Path) -> None:
    kubelet, clock = Kubelet(json.dumps({"pods": [1]}).encode()), FakeClock()
    async with serving(kubelet, tmp_path) as authority, a_reader(authority, clock) as (kubelets, api):
        node = a_node(kubelet.port, InternalIP="127.0.0.1")
        for _ in range(3):
            assert await kubelets.summary(node) == {"pods": [1]}
        clock.advance(TOKEN_LIFE.total_seconds() - 60)
        await kubelets.summary(node)
    assert kubelet.seen == [("/stats/summary", "Bearer narrow-1")] * 3 + [("/stats/summary", "Bearer narrow-2")]
    assert api.asked == []


async def test_a_kubelet_that_is_not_the_clusters_learns_no_token(tmp_path: Path) -> None:
    kubelet = Kubelet()
    other = ensure_pki(tmp_path / "other").ca_pem.encode()
    async with serving(kubelet, tmp_path / "its"), a_reader(other) as (kubelets, _):
        with pytest.raises(ServerError, match="not trusted"):
            await kubelets.summary(a_node(kubelet.port, InternalIP="127.0.0.1"))
    assert kubelet.seen == []


@pytest.mark.parametrize(
    ("kubelet", "why"),
    [
        (Kubelet(b" " * (SUMMARY_MAX_BYTES + 1)), "longer"),
        (Kubelet(status=307), "307"),
        (Kubelet(status=403), "403"),
    ],
    ids=["long", "elsewhere", "forbidden"],
)
async def test_other_answers_are_errors_and_lead_nowhere(kubelet: Kubelet, why: str, tmp_path: Path) -> None:
    async with serving(kubelet, tmp_path) as authority, a_reader(authority) as (kubelets, _):
        with pytest.raises(ServerError, match=why):
            await kubelets.summary(a_node(kubelet.port, InternalIP="127.0.0.1"))
    assert [path for path, _ in kubelet.seen] == ["/stats/summary"]


async def test_without_the_clusters_authority_nobody_is_trusted(tmp_path: Path) -> None:
    kubelet = Kubelet()
    async with serving(kubelet, tmp_path), a_reader(b"") as (kubelets, _):
        with pytest.raises(ServerError, match="authority"):
            await kubelets.summary(a_node(kubelet.port, InternalIP="127.0.0.1"))
    assert kubelet.seen == []


async def test_a_node_without_a_port_is_asked_through_the_api_server_by_the_same_token() -> None:
    async with a_reader(b"") as (kubelets, api):
        assert await kubelets.summary(a_node(0, InternalIP="127.0.0.1")) == {"pods": []}
    assert api.asked == [("narrow-1", "GET", "/api/v1/nodes/n/proxy/stats/summary")]


async def test_where_the_account_gets_no_token_that_is_said() -> None:
    async with a_reader(b"") as (kubelets, api):

        async def refuse(*_: Any) -> Any:
            raise Forbidden("no")

        api.create_subresource = refuse  # type: ignore[method-assign]
        with pytest.raises(Forbidden):
            await kubelets.summary(a_node())


@pytest.mark.parametrize(
    ("node", "want"),
    [
        (a_node(10250, InternalIP="10.0.0.7", Hostname="n"), "10.0.0.7:10250"),
        (a_node(10250, Hostname="n"), "n:10250"),
        (a_node(10250, InternalIP="fd00::7"), "[fd00::7]:10250"),
        (a_node(10250, InternalIP="evil.example/x?"), "evil.example%2Fx%3F:10250"),
        (a_node(0, InternalIP="10.0.0.7"), None),
        (a_node(10250), None),
        ({"metadata": {"name": "n"}}, None),
    ],
)
def test_where_a_kubelet_is(node: Any, want: str | None) -> None:
    assert address_of(node) == want
