"""The controller of the cluster's default PriorityClass: the reads and writes around `plan`."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_never

from moorage.controllers.base import Controller, Shared
from moorage.controllers.priorityclass.plan import SetDefault, Warn, plan
from moorage.model.names import DEFAULT_PRIORITY
from moorage_kube.errors import NotFound
from moorage_kube.meta import Key
from moorage_kube.resources import PRIORITYCLASSES

REASON = "PushesOutReservations"


class PriorityClassController(Controller):
    """The controller of the default priority class; one per operator. It has a single key."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, "priorityclass")
        self._classes = self._follow(PRIORITYCLASSES)
        self.loop.hear(self._classes, lambda _: [Key("", DEFAULT_PRIORITY)])

    async def reconcile(self, key: Key) -> timedelta | None:
        """Make our class the cluster's default if there is no other.

        Report another default class that preempts.
        """
        for action in plan(self._classes.all()):
            match action:
                case SetDefault(is_default):
                    ours = self._classes.get(key.name)
                    if ours is None:
                        return None
                    version = ours["metadata"]["resourceVersion"]
                    body = {"metadata": {"resourceVersion": version}, "globalDefault": is_default}
                    try:
                        await self._api.patch(PRIORITYCLASSES, key.name, body)
                    except NotFound:
                        return None  # deleted meanwhile
                case Warn(name, message):
                    other = self._classes.get(name)
                    if other is not None:
                        await self._events.record(other, "Warning", REASON, message)
                case _:
                    assert_never(action)
        return None
