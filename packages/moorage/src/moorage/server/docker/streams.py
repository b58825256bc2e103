"""Docker's frames for the output of a container without a terminal."""

from __future__ import annotations

import struct


def frame(stream: int, data: bytes) -> bytes:
    """Bytes of one stream among several, as Docker's clients take them apart: 8 bytes of head, then the bytes."""
    return struct.pack(">BxxxL", stream, len(data)) + data if data else b""
