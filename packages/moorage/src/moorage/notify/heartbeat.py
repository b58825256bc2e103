"""Heartbeats: one request to an address of a monitoring service."""

from __future__ import annotations

from moorage.notify.outbound import Outbound
from moorage.notify.webhook import request


async def beat(address: str, outbound: Outbound) -> None:
    """Send a heartbeat. Raises NotDelivered; its message does not contain the address."""
    await request("GET", address, outbound, what="heartbeat")
