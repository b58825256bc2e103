"""Report actions to users, as Kubernetes Events that `kubectl describe` shows.

Repeated events on one object are one Event with a count. Events are optional: a failure to
write one never disturbs the work that it reports.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import Clock, rfc3339
from moorage_kube.errors import AlreadyExists, ApiError, NotFound
from moorage_kube.remote.objects import EventType, make_event
from moorage_kube.resources import EVENTS

log = logging.getLogger(__name__)

REMEMBERED = 4096  # events whose count is known without asking


class EventRecorder:
    """Writes events on behalf of one component."""

    def __init__(self, api: Api, *, component: str, clock: Clock) -> None:
        self._api, self._component, self._clock = api, component, clock
        self._counts: BoundedCache[tuple[str, str], int] = BoundedCache(REMEMBERED)

    async def record(self, about: Mapping[str, Any], type_: EventType, reason: str, message: str) -> None:
        """Write an event about an object that was read from the API, or count it again. Never raises ApiError."""
        event = make_event(
            about, type_=type_, reason=reason, message=message, component=self._component, now=self._clock.now()
        )
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            await self._write(event, namespace, name)
        except ApiError as error:
            log.warning("cannot write an event", extra={"about": name, "reason": reason, "error": str(error)})

    async def _write(self, event: Mapping[str, Any], namespace: str, name: str) -> None:
        count = self._counts.get((namespace, name))
        if count is None:
            try:
                await self._api.create(EVENTS, dict(event))
                self._remember(namespace, name, 1)
                return
            except AlreadyExists:
                stored = await self._api.get(EVENTS, name, namespace)
                count = int(stored.get("count") or 1)
        more = {"count": count + 1, "lastTimestamp": rfc3339(self._clock.now())}
        try:
            await self._api.patch(EVENTS, name, more, namespace)
            self._remember(namespace, name, count + 1)
        except NotFound:  # they are stored for an hour only
            await self._api.create(EVENTS, dict(event))
            self._remember(namespace, name, 1)

    def _remember(self, namespace: str, name: str, count: int) -> None:
        self._counts.put((namespace, name), count)
