"""Write the state of a run to its object, and remove annotations of finished requests."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from moorage.controllers.base import Shared
from moorage.model.argo import WORKFLOWS
from moorage_kube.errors import BadRequest, Invalid, NotFound
from moorage_kube.meta import Key
from moorage_kube.remote.objects import EventType
from moorage_kube.resources import Obj
from moorage_workflows.controllers.workflow.live import Live
from moorage_workflows.controllers.workflow.locks import RunLocks
from moorage_workflows.controllers.workflow.observe import IMAGE_WAITS
from moorage_workflows.controllers.workflow.summary import summary_patch, typed
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.model.workflow import ENDED_PHASES, WorkflowRecord

STATUS_EVERY = timedelta(seconds=2)


class Reports:
    """Writes the state of runs into their Workflow objects."""

    def __init__(self, shared: Shared, locks: RunLocks) -> None:
        self._api, self._clock, self._events, self._locks = shared.api, shared.clock, shared.events, locks

    async def report(
        self, key: Key, obj: Obj, record: WorkflowRecord, *, live: Live | None = None, force: bool = False
    ) -> timedelta | None:
        """Write the summary into the object if it changed. Returns when to write it later."""
        locks = self._locks.table.status_of(record.uid) if record.phase not in ENDED_PHASES else {}
        patch = summary_patch(obj, record, locks, waiting=_image_wait(live.run) if live is not None else "")
        if patch is None or (live is not None and patch == live.reported):
            return None
        now = self._clock.monotonic()
        phase_changed = (obj.get("status") or {}).get("phase") != record.phase
        if live is not None and not force and not phase_changed:
            left = live.reported_at + STATUS_EVERY.total_seconds() - now
            if left > 0:
                return timedelta(seconds=left)
        with contextlib.suppress(NotFound):
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace)
        if live is not None:
            live.reported_at, live.reported = now, patch
        if phase_changed and record.phase:
            kind: EventType = "Normal" if record.phase in ("Running", "Succeeded") else "Warning"
            words = record.message or f"workflow is {record.phase}"
            await self._events.record(typed(obj), kind, f"Workflow{record.phase}", words)
        return None

    async def take_off(self, key: Key, annotation: str, text: str) -> bool:
        """Remove an annotation, unless it has changed since; return whether it was removed."""
        path = f"/metadata/annotations/{annotation.replace('/', '~1')}"
        patch = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        try:
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace, kind="json")
        except (NotFound, Invalid, BadRequest):  # a test that fails is one of these
            return False
        return True


def _image_wait(run: Run) -> str:
    """Why the image of a pod that a node waits for cannot be used; empty: all can, as far as is known.

    The pod waits, as in Kubernetes: an image that is pushed later, or a changed node, lets it start.
    """
    nodes = filter(None, map(run.node_of_pod, run.awaited_pods))
    return next((node.message for node in nodes if node.message.startswith(IMAGE_WAITS)), "")
