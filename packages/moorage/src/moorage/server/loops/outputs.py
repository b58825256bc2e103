"""Delete the output of deleted maps, and the oldest output of a namespace that exceeds its quota."""

from __future__ import annotations

import logging

from moorage.queue.manager import Queue
from moorage.queue.outputs import Outputs
from moorage.queue.quota import Quota
from moorage_kube.clock import Clock
from moorage_kube.errors import MoorageError

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0  # between two looks


async def sweep_outputs(queue: Queue, outputs: Outputs, quota: Quota, *, clock: Clock) -> None:
    """Delete output in rounds until cancelled. A failure is logged, and the next round retries."""
    while True:
        await clock.sleep(SWEEP_SECONDS)
        try:
            maps = await queue.read(lambda store: store.list_maps(None))
            await outputs.keep_only(stored.map.id for stored in maps)
            if quota.output_bytes:
                groups: dict[str, list[int]] = {}
                for stored in maps:
                    groups.setdefault(stored.namespace, []).append(stored.map.id)
                await outputs.bound(groups.values(), quota.output_bytes)
        except MoorageError as error:
            log.warning("output of deleted maps stays for now", extra={"error": error.message})
