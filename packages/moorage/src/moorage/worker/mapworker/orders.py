"""The orders of a worker: its environment, read once and checked."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

MEBI = 1024 * 1024
OWN_BYTES = 40 * MEBI  # held by the worker itself; items may not use them
LEAVING_SECONDS = 5.0  # of the grace period, reserved for the last request


class BadOrders(Exception):
    """The worker cannot work here: the message says how to repair it."""


class Orders:
    """Everything a worker was started with.

    MOORAGE_SERVER     http(s)://host[:port] of the server
    MOORAGE_MAP_TOKEN  the map's token
    MOORAGE_MAP        JSON: {"command": [...]} or {"function": "/path/of.zip"}; "slots", "preflight", "timeout"
    MOORAGE_POD        name of the pod; MOORAGE_MEMORY bytes the pod may use (0: not limited)
    MOORAGE_GRACE      seconds between SIGTERM and SIGKILL
    MOORAGE_PARENT     a process id: the worker ends when that is not its parent any more (maps on one machine)
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.server = _needed(env, "MOORAGE_SERVER").rstrip("/")
        self.token = _needed(env, "MOORAGE_MAP_TOKEN")
        try:
            document: dict[str, Any] = json.loads(_needed(env, "MOORAGE_MAP"))
        except ValueError as error:
            raise BadOrders(f"MOORAGE_MAP is no JSON: {error}") from error
        self.command: list[str] | None = document.get("command")
        self.function: str | None = document.get("function")
        if (self.command is None) == (self.function is None):
            raise BadOrders(f"MOORAGE_MAP needs one of command and function, it has {sorted(document)}")
        self.slots = int(document.get("slots") or 1)
        preflight = document.get("preflight") or {}
        self.reads: list[str] = list(preflight.get("read") or ())
        self.writes: list[str] = list(preflight.get("write") or ())
        self.pod = env.get("MOORAGE_POD") or os.uname().nodename
        self.memory = int(env.get("MOORAGE_MEMORY") or 0)
        self.grace = float(env.get("MOORAGE_GRACE") or 30.0)
        self.parent = int(env.get("MOORAGE_PARENT") or 0)
        self.session = f"{self.pod[-47:]}/{secrets.token_hex(8)}"

    @property
    def item_memory(self) -> int:
        """Bytes that one item may use; 0: not limited."""
        if not self.memory:
            return 0
        return max(self.memory // 2, self.memory - OWN_BYTES) // self.slots


def preflight(orders: Orders) -> None:
    """Test the needs of the items before any is started. Raises BadOrders."""
    for path in orders.reads:
        try:
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    next(entries, None)
            else:
                with open(path, "rb") as file:
                    file.read(1)
        except OSError as error:
            raise BadOrders(f"input {path} cannot be read: {error.strerror}") from error
    for path in orders.writes:
        probe = os.path.join(path, ".moorage-preflight-{}".format(orders.session.replace("/", "-")))
        try:
            os.makedirs(path, exist_ok=True)
            with open(probe, "wb") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
            os.unlink(probe)
        except OSError as error:
            raise BadOrders(f"output {path} cannot be written: {error.strerror}") from error


def _needed(env: Mapping[str, str], name: str) -> str:
    value = env.get(name)
    if not value:
        raise BadOrders(f"{name} is not set: this program is started by Moorage in a map's pods")
    return value
