"""Addresses of pods: each its own out of 127.64.0.0/10, which Linux answers on without any setting up.

Pods still share the machine's network: a process that binds to `$(POD_IP)` disturbs nobody, one that binds to
0.0.0.0 or 127.0.0.1 takes the port from all. Nothing keeps a pod from connecting anywhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket

HOST_IP = "127.0.0.1"  # of the node, and of pods with hostNetwork
NETWORK = ipaddress.IPv4Network("127.64.0.0/10")


def can_bind() -> bool:
    """Whether this machine answers on the whole of 127.0.0.0/8 (macOS answers on 127.0.0.1 alone)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((str(NETWORK[1]), 0))
        except OSError:
            return False
    return True


class Addresses:
    """Who has which address. One instance for all nodes of a cluster; nothing here is written down.

    An address is looked for from a place that the pod's uid gives, so that two clusters on one machine hardly
    ever choose the same; within one cluster no two pods that live have the same.
    """

    def __init__(self, *, own: bool | None = None, network: ipaddress.IPv4Network = NETWORK) -> None:
        """`own` False: every pod has `HOST_IP`. None: as this machine allows."""
        self._own = can_bind() if own is None else own
        self._network = network
        self._of: dict[str, str] = {}  # uid → address
        self._holder: dict[str, str] = {}  # address → uid

    def take(self, uid: str) -> str:
        """The pod's address, chosen now if it has none; `HOST_IP` when no address is free."""
        if not self._own:
            return HOST_IP
        if uid in self._of:
            return self._of[uid]
        size = self._network.num_addresses
        start = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")
        for step in range(size):
            address = self._network[(start + step) % size]
            if int(address) & 0xFF in (0, 255) or str(address) in self._holder:
                continue
            self.keep(uid, str(address))
            return str(address)
        return HOST_IP

    def keep(self, uid: str, address: str) -> None:
        """A pod that was here before has this address."""
        if address != HOST_IP:
            self._of[uid] = address
            self._holder.setdefault(address, uid)

    def give_back(self, uid: str) -> None:
        """The pod has ended. Safe to call again."""
        address = self._of.pop(uid, None)
        if address is not None and self._holder.get(address) == uid:
            del self._holder[address]
