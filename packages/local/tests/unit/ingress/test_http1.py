"""Heads of messages, as the ingress reads and writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.ingress.http1 import (
    FIELDS_MAX,
    BadHead,
    answer_head,
    chunk_size,
    parse_answer,
    parse_request,
    request_head,
)


def request(*fields: str, first: str = "GET / HTTP/1.1", host: str = "web.localhost:8081") -> bytes:
    return "\r\n".join([first, *([f"Host: {host}"] if host else []), *fields]).encode("latin-1")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(request("Content-Length: 3", "Transfer-Encoding: chunked"), 400, id="both framings"),
        pytest.param(request("Transfer-Encoding: chunked", "Content-Length: 3"), 400, id="both, the other way"),
        pytest.param(request("Content-Length: 3", "Content-Length: 4"), 400, id="two lengths"),
        pytest.param(request("Content-Length: 3", "Content-Length: 3"), 400, id="the same length twice"),
        pytest.param(request("Content-Length: 3, 3"), 400, id="a list of lengths"),
        pytest.param(request("Content-Length: +3"), 400, id="a signed length"),
        pytest.param(request("Content-Length: 0x3"), 400, id="a hexadecimal length"),
        pytest.param(request("Content-Length:"), 400, id="an empty length"),
        pytest.param(request("Content-Length: " + "9" * 30), 400, id="an endless length"),
        pytest.param(request("Transfer-Encoding: gzip, chunked"), 501, id="another coding"),
        pytest.param(request("Transfer-Encoding: xchunked"), 501, id="nearly chunked"),
        pytest.param(request("Transfer-Encoding: chunked", "Transfer-Encoding: x"), 501, id="two codings"),
        pytest.param(request("Transfer-Encoding: chunked", first="POST / HTTP/1.0"), 400, id="chunked in 1.0"),
        pytest.param(request("Transfer-Encoding : chunked"), 400, id="a space before the colon"),
        pytest.param(request("X: a", " folded"), 400, id="a folded line"),
        pytest.param(request("X: a\nTransfer-Encoding: chunked"), 400, id="a bare line feed"),
        pytest.param(request("X: a\rb"), 400, id="a bare carriage return"),
        pytest.param(request("X: a\x00b"), 400, id="a null"),
        pytest.param(request("no colon"), 400, id="no colon"),
        pytest.param(request(": nameless"), 400, id="no name"),
        pytest.param(request("Host: two"), 400, id="two hosts"),
        pytest.param(request(host=""), 400, id="no host"),
        pytest.param(request(host="a b"), 400, id="a host with a space"),
        pytest.param(request(host="a/../b"), 400, id="a host with a path"),
        pytest.param(request(host="user@a"), 400, id="a host with a user"),
        pytest.param(request(first="GET /"), 400, id="HTTP/0.9"),
        pytest.param(request(first="GET / HTTP/2.0"), 400, id="another version"),
        pytest.param(request(first="GET  / HTTP/1.1"), 400, id="two spaces"),
        pytest.param(request(first="GET /a b HTTP/1.1"), 400, id="a space in the target"),
        pytest.param(request(first="CONNECT a:443 HTTP/1.1"), 400, id="CONNECT"),
        pytest.param(request(first="GET ftp://a/ HTTP/1.1"), 400, id="another scheme"),
        pytest.param(request(*[f"X{n}: 1" for n in range(FIELDS_MAX)]), 431, id="too many fields"),
        pytest.param(
            request("Connection: Upgrade", "Upgrade: websocket", "Content-Length: 5"),
            400,
            id="upgrade + body",
        ),
    ],
)
def test_what_two_programs_could_read_differently_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(BadHead) as caught:
        parse_request(head)
    assert caught.value.status == status


def test_a_request_is_passed_on_without_what_ends_at_a_proxy_and_with_what_a_proxy_adds() -> None:
    parsed = parse_request(
        request(
            "Connection: keep-alive, X-Secret-Hop",
            "X-Secret-Hop: 1",
            "Keep-Alive: 5",
            "Proxy-Authorization: x",
            "TE: trailers",
            "Upgrade: h2c",
            "X-Forwarded-For: 1.2.3.4",
            "x_forwarded_for: 1.2.3.4",
            "X-Forwarded-Host: evil",
            "Forwarded: for=1.2.3.4",
            "X-Real-IP: 1.2.3.4",
            "Content_Length: 7",
            "Cookie: a=b",
            "Accept: */*",
            "Accept: text/html",
            first="POST /a?b=c HTTP/1.1",
        )
    )
    assert (parsed.host, parsed.path, parsed.length, parsed.keep_alive) == ("web.localhost", "/a", 0, True)
    assert request_head(parsed, client="127.0.0.1", port=8081).decode().split("\r\n") == [
        "POST /a?b=c HTTP/1.1",
        "Host: web.localhost:8081",
        "Cookie: a=b",
        "Accept: */*",
        "Accept: text/html",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Host: web.localhost:8081",
        "X-Forwarded-Port: 8081",
        "X-Forwarded-Proto: http",
        "X-Real-IP: 127.0.0.1",
        "",
        "",
    ]


def test_a_websocket_keeps_its_upgrade_and_nothing_else_does() -> None:
    parsed = parse_request(
        request("Connection: keep-alive, Upgrade", "Upgrade: WebSocket", "Sec-WebSocket-Key: x")
    )
    assert parsed.websocket
    head = request_head(parsed, client="127.0.0.1", port=1).decode()
    assert "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" in head
    assert "Sec-WebSocket-Key: x" in head
    assert not parse_request(request("Connection: Upgrade", "Upgrade: h2c")).websocket
    assert not parse_request(request("Upgrade: websocket")).websocket


def test_an_address_as_target_counts_before_the_host() -> None:
    parsed = parse_request(request(first="GET http://b.localhost:8081/x?y HTTP/1.1"))
    assert (parsed.host, parsed.target, parsed.authority) == ("b.localhost", b"/x?y", b"b.localhost:8081")


@pytest.mark.parametrize(
    ("head", "method", "length", "chunked", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3", b"GET", 3, False, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"GET", None, True, True),
        (b"HTTP/1.1 200 OK", b"GET", None, False, False),
        (b"HTTP/1.1 200", b"GET", None, False, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3", b"GET", 3, False, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3", b"HEAD", 0, False, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3", b"GET", 0, False, True),
        (b"HTTP/1.1 204 No Content\r\nConnection: close", b"GET", 0, False, False),
    ],
)
def test_how_long_an_answer_is(head: bytes, method: bytes, length: int | None, chunked: bool, keep: bool) -> None:
    answer = parse_answer(head, method)
    assert (answer.length, answer.chunked, answer.keep_alive) == (length, chunked, keep)


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4",
        b"HTTP/1.1 200 OK\r\nX: a\nSet-Cookie: b",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
    ],
)
def test_an_answer_that_could_be_read_differently_is_a_bad_gateway(head: bytes) -> None:
    with pytest.raises(BadHead) as caught:
        parse_answer(head, b"GET")
    assert caught.value.status == 502


def test_an_answer_is_framed_by_the_proxy() -> None:
    answer = parse_answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nSet-Cookie: a\r\nSet-Cookie: b", b"GET")
    assert answer_head(answer, chunked=True, close=False) == (
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


@pytest.mark.parametrize(("line", "size"), [(b"0", 0), (b"fF", 255), (b"10;name=value", 16), (b"1 ", 1)])
def test_sizes_of_chunks(line: bytes, size: int) -> None:
    assert chunk_size(line) == size


@pytest.mark.parametrize("line", [b"", b"-1", b"0x1", b"1g", b"f" * 16, b"1\n", b"1;\x00"])
def test_odd_sizes_of_chunks_are_refused(line: bytes) -> None:
    with pytest.raises(BadHead):
        chunk_size(line)


pieces = st.sampled_from(
    [b"GET", b" ", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b"Host", b":", b"a", b"Content-Length", b"3", b"\x00",
     b"Transfer-Encoding", b"chunked", b",", b"\t", b"\xff", b"X"]
)  # fmt: skip


@given(st.lists(pieces, max_size=30).map(b"".join))
def test_whatever_is_accepted_is_written_as_one_head_that_reads_the_same(tail: bytes) -> None:
    try:
        parsed = parse_request(b"GET / HTTP/1.1\r\nHost: a\r\n" + tail)
    except BadHead:
        return
    head = request_head(parsed, client="127.0.0.1", port=80)
    assert head.count(b"\r\n\r\n") == 1
    assert b"\n" not in head.replace(b"\r\n", b"")
    again = parse_request(head[:-4])
    assert (again.host, again.length, again.method) == (parsed.host, parsed.length, parsed.method)
