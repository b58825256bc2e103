"""Waiting of requests until the server has listed the cluster."""

from __future__ import annotations

import asyncio

from moorage.api.errors import ErrorCode
from moorage.server.problems import Problem
from moorage_kube.informer import Informer, wait_synced

SYNC_WAIT_SECONDS = 5.0


async def listed_once(*informers: Informer) -> None:
    """Wait until each informer has listed its objects once. Raises Problem 503 if that takes too long."""
    try:
        async with asyncio.timeout(SYNC_WAIT_SECONDS):
            await wait_synced(*informers)
    except TimeoutError as error:
        raise Problem(
            503, ErrorCode.STARTING, "the server has not read the cluster yet", "try again in a moment"
        ) from error
