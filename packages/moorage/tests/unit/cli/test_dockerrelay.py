"""The way of Docker's command line to a server behind a proxy that ends a connection with its first half."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from moorage.cli.dockerrelay import one_request, relayed, types_into

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("words", "wanted"), [
    pytest.param(["run", "--rm", "-it", "image"], False, id="run: its input is refused anyway"),
    pytest.param(["exec", "c", "ls"], False, id="exec of a command"),
    pytest.param(["exec", "-it", "c", "sh"], True, id="exec in a terminal"),
    pytest.param(["exec", "--interactive", "c", "cat"], True, id="exec with a pipe"),
    pytest.param(["container", "exec", "-i", "c", "cat"], True, id="the longer name"),
])  # fmt: skip
def test_what_is_typed_needs_its_end(words, wanted):
    assert types_into(words) is wanted


def test_a_request_names_the_server_and_asks_for_the_end_of_its_connection():
    head = b"GET /_ping HTTP/1.1\r\nHost: 127.0.0.1:4000\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n"
    assert one_request(head, "moor.example.org:8443") == (
        b"GET /_ping HTTP/1.1\r\nHost: moor.example.org:8443\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )


def test_an_upgrade_stays_one():
    head = b"POST /attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    assert one_request(head, "moor") == head.replace(b"Host: x", b"Host: moor")


class Proxy:
    """Ends both sides of a connection when one ends, as nginx does. `release` lets the container print."""

    def __init__(self):
        self.heads = []
        self.release = asyncio.Event()

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if b"Upgrade" in head:
            writer.write(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
            ended, released = asyncio.create_task(reader.read()), asyncio.create_task(self.release.wait())
            await asyncio.wait([ended, released], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                writer.write(b"hello\n")
            for task in (ended, released):
                task.cancel()
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()
        await writer.wait_closed()


async def ask(near, head):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(near.rpartition(":")[2]))
    writer.write(head)
    return reader, writer


async def test_output_arrives_although_the_client_has_said_all():
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, relayed(f"http://127.0.0.1:{port}") as near:
        attach = b"POST /attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        attached, attaching = await ask(near, attach)
        attaching.write_eof()
        assert await attached.readuntil(b"\r\n\r\n") == b"HTTP/1.1 101 UPGRADED\r\n\r\n"
        started, starting = await ask(near, b"POST /start HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await started.read() == b"HTTP/1.1 204 No Content\r\n\r\n"  # the end has long been read
        proxy.release.set()
        assert await attached.read() == b"hello\n"
        for writer in (attaching, starting):
            writer.close()
            await writer.wait_closed()
    assert [f"Host: 127.0.0.1:{port}\r\n".encode() in head for head in proxy.heads] == [True, True]


async def test_a_server_that_is_away_ends_the_connection():
    async with relayed("http://127.0.0.1:9") as near:
        reader, writer = await ask(near, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
