"""SPDY/3.1 frames."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import BadRequest
from moorage_kube.spdy import (
    DICTIONARY,
    FRAME_MAX,
    HEADERS_MAX,
    Data,
    Frame,
    Opened,
    Ping,
    Reader,
    Reset,
    SpdyError,
    Writer,
)
from moorage_local.apiserver.subresources.portforward import _port

HEADERS = {"streamtype": "data", "port": "8080", "requestid": "0"}


def read(*parts: bytes) -> list[Frame]:
    reader = Reader()
    return [frame for part in parts for frame in reader.feed(part)]


def test_the_dictionary_is_the_one_of_the_specification() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


@given(st.lists(st.integers(0, 400), max_size=8), st.binary(max_size=200))
def test_frames_are_read_however_the_bytes_are_cut(cuts: list[int], data: bytes) -> None:
    writer = Writer()
    sent = writer.opened(1, HEADERS) + writer.opened(3, HEADERS | {"port": "1"}) + writer.data(1, data)
    sent += writer.data(1, b"", fin=True) + writer.ping(7) + writer.reset(3) + writer.reply(1)
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    assert read(*(sent[a:b] for a, b in zip(edges, edges[1:], strict=False))) == [
        Opened(1, HEADERS, False),
        Opened(3, HEADERS | {"port": "1"}, False),
        Data(1, data, False),
        Data(1, b"", True),
        Ping(7),
        Reset(3),
    ]


def test_oversized_frames_and_header_bombs_are_refused() -> None:
    with pytest.raises(SpdyError):
        read(struct.pack(">II", 1, FRAME_MAX + 1))
    with pytest.raises(SpdyError):
        read(Writer().opened(1, {"a": "b" * (HEADERS_MAX + 1)}))


@given(st.binary(max_size=300))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    try:
        read(data)
    except SpdyError:
        return


@pytest.mark.parametrize("text", ["", "0", "+80", "-1", " 80", "65536", "9" * 5000, "http"])
def test_a_port_to_forward_is_digits_from_1_to_65535(text):
    assert _port("80") == 80
    with pytest.raises(BadRequest, match="unable to parse"):
        _port(text)
