"""What a look at an address tells, against servers of this machine."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta

import pytest

from moorage.actions.siteprobe import look_at_site, resolve
from moorage.decide.installcheck.facts import Unread
from moorage_kube.certificates import make_authority, make_server_certificate
from moorage_kube.clock import SYSTEM
from moorage_kube.testing.ports import dead_port

pytestmark = pytest.mark.anyio

ANSWER = b"HTTP/1.1 %d x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


async def serve(status: int, context: ssl.SSLContext | None = None) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER % status)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)


@pytest.mark.parametrize("status", [200, 404])
async def test_the_status_of_a_site_is_told(status):
    async with await serve(status) as server:
        port = server.sockets[0].getsockname()[1]
        site = await look_at_site(f"http://127.0.0.1:{port}", "/healthz")
    assert (site.status, site.error, site.untrusted, site.expires) == (status, "", False, None)


async def test_nobody_listening_is_an_error():
    with dead_port() as port:
        site = await look_at_site(f"http://127.0.0.1:{port}", "/healthz")
    assert site.status == 0
    assert site.error


async def test_a_certificate_that_is_not_trusted_is_told(tmp_path):
    now, day = SYSTEM.now(), timedelta(days=1)
    authority = make_authority("nobody", now=now, lifetime=day)
    pair = make_server_certificate(authority, "site", dns_names=[], addresses=["127.0.0.1"], now=now, lifetime=day)
    (tmp_path / "crt").write_bytes(pair.pem)
    (tmp_path / "key").write_bytes(pair.key_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    async with await serve(200, context) as server:
        port = server.sockets[0].getsockname()[1]
        site = await look_at_site(f"https://127.0.0.1:{port}", "/healthz")
        known = await look_at_site(f"https://127.0.0.1:{port}", "/healthz", ca=authority.pem.decode())
    assert (site.status, site.untrusted) == (0, True)
    assert "certificate" in site.error
    assert (known.status, known.untrusted) == (200, False)  # by the authority that a login trusts


async def test_a_name_resolves_or_says_why_not():
    assert "127.0.0.1" in await resolve("localhost")
    assert isinstance(await resolve("no-such-host.invalid"), Unread)
