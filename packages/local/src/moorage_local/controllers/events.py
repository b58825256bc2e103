"""Record events about objects, without waiting for the write. A repeated event is counted, not repeated.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.errors import MoorageError, NotFound
from moorage_kube.resources import EVENTS, Obj

log = logging.getLogger(__name__)

REMEMBERED = 4096  # distinct events whose count is known; the oldest is forgotten
WAITING_MAX = 1000  # events not yet written; more are dropped, as events are only advice
MESSAGE_MAX = 1024  # characters, the limit of the API


@dataclass(slots=True)
class _Recorded:
    namespace: str
    name: str
    count: int


class EventRecorder:
    """Writes `v1.Event` objects as `component`. `event` never waits and never raises.

    The same (object, type, reason, message) again raises `count` and moves `lastTimestamp`. Needs a running
    event loop; `close` waits for the events not yet written.
    """

    def __init__(self, api: Api, component: str, clock: Clock = SYSTEM, *, host: str = "") -> None:
        self._api = api
        self._component = component
        self._clock = clock
        self._host = host
        self._known: BoundedCache[bytes, _Recorded] = BoundedCache(REMEMBERED)  # by digest: short
        self._waiting: asyncio.Queue[tuple[bytes, Obj]] = asyncio.Queue(WAITING_MAX)
        self._writer: asyncio.Task[None] | None = None
        self._serial = 0

    def event(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> None:
        """Write an event about `obj`: `type` is Normal or Warning, `reason` one CamelCase word."""
        try:
            self._waiting.put_nowait(self._make(obj, type, reason, message))
            if self._writer is None or self._writer.done():
                self._writer = asyncio.get_running_loop().create_task(self._write_all(), name="events")
        except asyncio.QueueFull:
            log.debug("event dropped, too many are waiting", extra={"reason": reason})
        except (KeyError, RuntimeError) as error:  # an object without metadata, or no loop any more
            log.debug("event dropped", extra={"reason": reason, "error": str(error)})

    async def close(self) -> None:
        """Wait until all events are written or dropped."""
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)

    def _make(self, obj: Mapping[str, Any], type: str, reason: str, message: str) -> tuple[bytes, Obj]:
        meta = obj["metadata"]
        # events about cluster-scoped objects live in the default namespace
        namespace = meta.get("namespace") or "default"
        now = rfc3339(self._clock.now())
        message = message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 3] + "..."
        involved = {
            "apiVersion": obj.get("apiVersion"),
            "kind": obj.get("kind"),
            "namespace": meta.get("namespace"),
            "name": meta["name"],
            "uid": meta.get("uid"),
            "resourceVersion": meta.get("resourceVersion"),
        }
        text = (str(involved["kind"]), namespace, meta["name"], str(meta.get("uid")), type, reason, message)
        same = hashlib.sha256(repr(text).encode()).digest()[:16]
        self._serial += 1
        digest = hashlib.sha256(repr((same, self._component, now, self._serial, id(self))).encode()).hexdigest()
        return same, {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{meta['name'][:236]}.{digest[:16]}", "namespace": namespace},
            "involvedObject": {name: value for name, value in involved.items() if value},
            "type": type,
            "reason": reason,
            "message": message,
            "source": {"component": self._component} | ({"host": self._host} if self._host else {}),
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    async def _write_all(self) -> None:
        while not self._waiting.empty():
            same, event = self._waiting.get_nowait()
            try:
                await self._write(same, event)
            except (MoorageError, OSError) as error:
                log.debug("event not written", extra={"reason": event["reason"], "error": str(error)})

    async def _write(self, same: bytes, event: Obj) -> None:
        known = self._known.get(same)
        if known is not None:
            change = {"count": known.count + 1, "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._api.patch(EVENTS, known.name, change, known.namespace)
            except NotFound:
                self._known.drop(same)  # expired meanwhile: it starts again
            else:
                known.count += 1
                self._known.put(same, known)
                return
        made = await self._api.create(EVENTS, event)
        recorded = _Recorded(sys.intern(event["metadata"]["namespace"]), made["metadata"]["name"], 1)
        self._known.put(same, recorded)
