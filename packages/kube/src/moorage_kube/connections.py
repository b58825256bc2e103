"""Limits on the connections of a service, in total and per client address.

At a limit, a new connection may close another that waits for its client (for a request, for the rest of a request,
or for the client to read). The longest wait ends first. A connection whose request is being answered is never
closed for another connection.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

CLIENT_CERTIFICATE = "client_certificate"  # in the state of a scope: the accepted certificate of the client
FILES = 65_536  # open files that a service asks for, if the hard limit allows as many
SPARE_FILES = 256  # of a service: databases, logs, standard streams, its own connections
REFUSED = (
    64  # refused connections that get an answer at a time; others are closed without one. They are spare files
)
MOST_CONNECTIONS = 10_000  # of one service; with 64 KiB of buffers each way they hold 1.3 GB at worst


class Refusal(Enum):
    """Reason to refuse a connection, with the HTTP status for it."""

    ADDRESS = 429
    ALL = 503


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on connections: in all, and of one client address. The difference is left for other addresses."""

    total: int
    of_address: int


def bounds(files: int, *, files_of_connection: int = 1) -> Bounds:
    """Return the bounds for a process that may open `files` files.

    One address may hold three quarters: behind a load balancer or on one machine all clients have the same
    address.
    """
    total = max(16, min(MOST_CONNECTIONS, (files - SPARE_FILES) // files_of_connection))
    return Bounds(total, max(1, total * 3 // 4))


def file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, at most to `FILES`; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return file_limit()


@dataclass(eq=False, slots=True)
class ClientConnection:
    """One connection; `close` closes it at once."""

    address: str
    close: Callable[[], None]


@dataclass(eq=False)
class Connections:
    """All connections of one service. Every method takes constant time."""

    bounds: Bounds
    _connections: set[ClientConnection] = field(default_factory=set)
    _refused: set[ClientConnection] = field(default_factory=set)
    _of_address: dict[str, int] = field(default_factory=dict)
    _waiting: OrderedDict[ClientConnection, None] = field(default_factory=OrderedDict)
    _waiting_of: dict[str, OrderedDict[ClientConnection, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._connections)

    def enter(self, connection: ClientConnection) -> Refusal | None:
        """Add a connection, which first waits for its client.

        It may close another connection; the result is a refusal or None.
        """
        if self._of_address.get(connection.address, 0) >= self.bounds.of_address:
            if not self._close_first(self._waiting_of.get(connection.address)):
                return Refusal.ADDRESS
        elif len(self._connections) >= self.bounds.total and not self._close_first(self._waiting):
            return Refusal.ALL
        self._connections.add(connection)
        self._of_address[connection.address] = self._of_address.get(connection.address, 0) + 1
        self.waits(connection)
        return None

    def may_send_refusal(self, connection: ClientConnection) -> bool:
        """Whether a refused connection may stay open until its client has read the refusal.

        If so, call `leave` afterwards.
        """
        if len(self._refused) >= REFUSED:
            return False
        self._refused.add(connection)
        return True

    def waits(self, connection: ClientConnection) -> None:
        """Mark the connection as waiting for its client."""
        if connection not in self._connections:
            return
        self._waiting[connection] = None
        self._waiting.move_to_end(connection)
        of_address = self._waiting_of.setdefault(connection.address, OrderedDict())
        of_address[connection] = None
        of_address.move_to_end(connection)

    def works(self, connection: ClientConnection) -> None:
        """Mark the connection as answering a request: it is not closed for another connection."""
        if self._waiting.pop(connection, connection) is None:
            of_address = self._waiting_of[connection.address]
            del of_address[connection]
            if not of_address:
                del self._waiting_of[connection.address]

    def leave(self, connection: ClientConnection) -> None:
        """Remove the connection; a second call does nothing."""
        self._refused.discard(connection)
        if connection not in self._connections:
            return
        self.works(connection)
        self._connections.discard(connection)
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]

    def _close_first(self, waiting: OrderedDict[ClientConnection, None] | None) -> bool:
        if not waiting:
            return False
        connection = next(iter(waiting))
        self.leave(connection)
        connection.close()
        return True
