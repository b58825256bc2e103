"""Write why pods wait into their status, in the background: thousands of writes must not delay decisions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from moorage_kube.api import Api
from moorage_kube.clock import Clock, rfc3339
from moorage_kube.errors import ApiError, Conflict, NotFound
from moorage_kube.meta import Key, condition
from moorage_kube.resources import PODS, Obj
from moorage_local.scheduler.snapshot import Cache, PodView

log = logging.getLogger(__name__)

WRITERS = 4  # writes at once: the API server has others to answer


@dataclass(frozen=True, slots=True)
class Report:
    """The status of a waiting pod. `nominated` None: the nomination stays as it is."""

    uid: str
    reason: str
    message: str
    nominated: str | None = None


class Reporter:
    """Writes the newest report of each waiting pod, the oldest first. `run` works until cancelled.

    Best effort: a failed write is repeated when the pod is tried again.
    """

    def __init__(self, api: Api, cache: Cache, clock: Clock) -> None:
        self._api, self._cache, self._clock = api, cache, clock
        self._unwritten: dict[Key, Report] = {}
        self._under_way: dict[Key, asyncio.Future[None]] = {}
        self._more = asyncio.Event()

    def report(self, pod: PodView, reason: str, message: str, *, nominated: str | None = None) -> None:
        """Queue a report, in place of an earlier one that is not yet written."""
        report = Report(pod.info.uid, reason, message, nominated)
        earlier = self._unwritten.get(pod.key)
        if nominated is None and earlier is not None and earlier.uid == report.uid:
            report = replace(report, nominated=earlier.nominated)
        self._unwritten[pod.key] = report
        self._more.set()

    async def settle(self, key: Key) -> None:
        """Drop waiting writes for this pod, and return after a running write has ended."""
        self._unwritten.pop(key, None)
        if (writing := self._under_way.get(key)) is not None:
            await asyncio.shield(writing)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._write_for_ever())

    async def _write_for_ever(self) -> None:
        while True:
            key = next((key for key in self._unwritten if key not in self._under_way), None)
            if key is None:
                self._more.clear()
                await self._more.wait()
                continue
            done = self._under_way[key] = asyncio.get_running_loop().create_future()
            try:
                await self._write(key, self._unwritten.pop(key))
            finally:
                del self._under_way[key]
                done.set_result(None)
                self._more.set()  # another report of this pod may have come meanwhile

    async def _write(self, key: Key, report: Report) -> None:
        pod = self._cache.pending.get(key)
        if pod is None or pod.info.uid != report.uid or self._cache.is_assumed(key):
            return
        changes = scheduled_false(pod, report.reason, report.message, rfc3339(self._clock.now()))
        if report.nominated is not None and report.nominated != pod.info.nominated_node:
            changes["nominatedNodeName"] = report.nominated or None
        if not changes:
            return
        try:
            await self._api.patch(
                PODS,
                key.name,
                {"metadata": {"uid": report.uid}, "status": changes},
                key.namespace,
                kind="strategic",
                subresource="status",
            )
        except (NotFound, Conflict):
            pass  # deleted, or another pod of that name
        except ApiError as error:
            log.warning("cannot write a pod's status", extra={"pod": str(key), "error": error.message})


def scheduled_false(pod: PodView, reason: str, message: str, now: str) -> Obj:
    """Return the change with the reason why the pod is not scheduled; empty if the pod already has it."""
    known = condition(pod.obj, "PodScheduled") or {}
    if known.get("status") == "False" and known.get("reason") == reason and known.get("message") == message:
        return {}
    since = known.get("lastTransitionTime") if known.get("status") == "False" else None
    return {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastTransitionTime": since or now,
                "reason": reason,
                "message": message,
            }
        ]
    }
