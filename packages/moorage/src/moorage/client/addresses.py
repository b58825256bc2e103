"""Cached addresses of servers, for later commands.

To find a server, a command reads its ConfigMap from the Kubernetes API and tries addresses. A command that sends
only one request skips this by the cache. Tokens are not stored here.
"""

from __future__ import annotations

import contextlib
import hashlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from moorage.client.files import write_private
from moorage.client.logins import logins_file

if TYPE_CHECKING:
    from moorage_kube.remote.config import Connection as KubeConnection

HOLDS = timedelta(hours=1)  # then the cluster is asked again: a better address may have come
ADDRESSES_MAX = 20


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the server of a kubeconfig.

    `ca`: PEM; `by_login`: requests use the login saved for this address.
    """

    url: str
    ca: str = ""
    by_login: bool = False
    found_at: datetime


def cached_address(connection: KubeConnection, now: datetime) -> Address | None:
    """Return the server address of a kubeconfig that was stored in the last hour.

    None if there is none, or on errors.
    """
    address = _read().get(_key(connection))
    return address if address is not None and timedelta() <= now - address.found_at < HOLDS else None


def keep_address(connection: KubeConnection, address: Address) -> None:
    """Store an address in place of the previous one.

    A newer time does not rewrite the file until half of `HOLDS`.
    """
    known, key = _read(), _key(connection)
    before = known.pop(key, None)
    if (
        before is None
        or msgspec.structs.replace(before, found_at=address.found_at) != address
        or address.found_at - before.found_at > HOLDS / 2
    ):
        _write(dict([*known.items(), (key, address)][-ADDRESSES_MAX:]))


def forget_address(connection: KubeConnection) -> None:
    known = _read()
    if known.pop(_key(connection), None) is not None:
        _write(known)


def _key(connection: KubeConnection) -> str:
    """A key that differs for each kubeconfig: a hash of all its fields except secrets."""
    return hashlib.sha256(repr(connection).encode()).hexdigest()


def _file() -> Path:
    return logins_file().with_name("servers.json")


def _read() -> dict[str, Address]:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, Address])
    except (OSError, ValueError):
        return {}


def _write(known: dict[str, Address]) -> None:
    with contextlib.suppress(OSError):  # the next command looks for the server again
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(_file(), msgspec.json.encode(known).decode() + "\n")
