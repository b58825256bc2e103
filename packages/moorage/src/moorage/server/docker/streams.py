"""Docker's frames for the output of a container without a terminal."""

from __future__ import annotations

import struct


def frame(stream: int, data: bytes) -> bytes:
    """Frame the bytes of one stream in Docker's multiplexed format: a head of 8 bytes, then the bytes."""
    return struct.pack(">BxxxL", stream, len(data)) + data if data else b""


def frame_lines(stream: int, data: bytes) -> bytes:
    """Frame each line, as Docker's log does: its Python package returns one frame at a time."""
    return b"".join(frame(stream, line) for line in data.splitlines(keepends=True))
