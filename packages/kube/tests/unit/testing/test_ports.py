"""Free ports of tests stay free of others' outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

from moorage_kube.testing.ports import free_ports


def test_ports_are_free_different_and_not_those_of_connections():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first <= 12_000 or all(1024 <= port < first for port in ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
