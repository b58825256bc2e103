"""Ports for programs that cannot receive a socket: they are free now and probably until the program listens."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different free ports of 127.0.0.1, outside the range from which the kernel assigns ports to connections.

    So none is taken by an outgoing connection or by a bind to port 0 before its program listens. Another
    program that wants this very port may still be faster: the caller must try again then.
    """
    try:
        first = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768  # Linux' own
    chance = random.SystemRandom()
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            port = chance.randrange(min(20_000, first - 10_000), first) if first > 12_000 else 0
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(listener.getsockname()[1])
    return ports


@contextmanager
def dead_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that no other program gets in the meantime."""
    with socket.socket() as bound:  # and never listens
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])
