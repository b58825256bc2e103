"""Pauses of a random length: for tests of a random moment, such as a kill, a late event or an uneven load.

All other tests wait for a state: see `moorage_kube.testing.waiting`.
"""

from __future__ import annotations

import asyncio
import random


async def pause(chance: random.Random, shortest: float, longest: float) -> None:
    """Wait for a random time between these limits, in seconds."""
    await asyncio.sleep(chance.uniform(shortest, longest))
