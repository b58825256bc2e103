"""Addresses of pods: each its own out of 127.64.0.0/10, which Linux answers on without any setup.

Pods still share the machine's network: a process that binds to `$(POD_IP)` disturbs no other pod, one that binds
to 0.0.0.0 or 127.0.0.1 takes the port from all. Pods may connect to any address.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket

HOST_IP = "127.0.0.1"  # of the node, and of pods with hostNetwork
NETWORK = ipaddress.IPv4Network("127.64.0.0/10")


def can_bind() -> bool:
    """Whether this machine accepts all addresses of 127.0.0.0/8 (macOS only accepts 127.0.0.1)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((str(NETWORK[1]), 0))
        except OSError:
            return False
    return True


class Addresses:
    """The addresses of all pods. One instance for all nodes of a cluster; it is not stored.

    The search for a free address starts at a hash of the pod's uid, so that two clusters on one machine hardly
    ever choose the same; within one cluster the addresses of running pods differ.
    """

    def __init__(self, *, own: bool | None = None, network: ipaddress.IPv4Network = NETWORK) -> None:
        """`own` False: all pods have `HOST_IP`. None: pods have their own addresses if this machine allows it."""
        self._own = can_bind() if own is None else own
        self._network = network
        self._of: dict[str, str] = {}  # uid → address
        self._holder: dict[str, str] = {}  # address → uid

    def take(self, uid: str) -> str:
        """Return the pod's address, chosen now if it has none; `HOST_IP` when all addresses are in use."""
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
        """Record the address of a pod that already has one."""
        if address != HOST_IP:
            self._of[uid] = address
            self._holder.setdefault(address, uid)

    def give_back(self, uid: str) -> None:
        """Release the address of a pod that has ended. It is safe to call this twice."""
        address = self._of.pop(uid, None)
        if address is not None and self._holder.get(address) == uid:
            del self._holder[address]
