"""When browsers were connected to workspaces, and when a person was last active in a workspace.

Every server that forwards traffic records this, and writes it to the Workspace at most once a minute. So any
server can evaluate it, and a restart loses at most a minute.
"""

from __future__ import annotations

import logging
from datetime import datetime

from moorage.decide.idle.evidence import Connection
from moorage.decide.idle.work import read_used, write_used
from moorage.model.names import USED_ANNOTATION
from moorage.model.workspace import WORKSPACES
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import MoorageError
from moorage_kube.informer import Informer
from moorage_kube.meta import annotations_of

log = logging.getLogger(__name__)

FLUSH_SECONDS = 60.0
ACTION_BYTES = 64  # a message of a browser that is larger is something done; keep-alives of VS Code have 13 bytes

_Key = tuple[str, str]  # namespace, name


class Traffic:
    """Notes the traffic of workspaces; `run` writes it to the Workspaces."""

    def __init__(self, api: Api, workspaces: Informer, *, clock: Clock) -> None:
        self._api, self._workspaces, self._clock = api, workspaces, clock
        self._noted: dict[_Key, tuple[str, Connection]] = {}  # with the uid

    def note(self, namespace: str, name: str, uid: str, *, acted: bool) -> None:
        """Record that a browser is connected now; `acted`: a person was active."""
        now = self._clock.now().replace(microsecond=0)
        _, before = self._noted.get((namespace, name), ("", Connection()))
        self._noted[namespace, name] = uid, Connection(seen_at=now, acted_at=now if acted else before.acted_at)

    def connection_of(self, namespace: str, name: str, stored: Connection) -> Connection:
        """The newest of the stored moments and those that this server has noted since."""
        _, noted = self._noted.get((namespace, name), ("", Connection()))
        return newest(stored, noted)

    async def run(self) -> None:
        """Write the noted moments, until cancelled."""
        while True:
            await self._clock.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write moments that are newer than those of the Workspaces. Those that cannot be written stay noted."""
        for (namespace, name), (uid, noted) in list(self._noted.items()):
            workspace = self._workspaces.get(name, namespace)
            if workspace is None or workspace["metadata"]["uid"] != uid:
                del self._noted[namespace, name]
                continue
            stored = read_used(annotations_of(workspace).get(USED_ANNOTATION))
            after = newest(stored, noted)
            if after == stored:
                del self._noted[namespace, name]
                continue
            patch = {"metadata": {"uid": uid, "annotations": {USED_ANNOTATION: write_used(after)}}}
            try:
                await self._api.patch(WORKSPACES, name, patch, namespace)
            except MoorageError as error:
                log.warning(
                    "the use of a workspace cannot be written down",
                    extra={"workspace": f"{namespace}/{name}", "error": error.message},
                )


def newest(first: Connection, second: Connection) -> Connection:
    """A connection with the later moments of two."""

    def later(at: datetime | None, other: datetime | None) -> datetime | None:
        return max((moment for moment in (at, other) if moment is not None), default=None)

    return Connection(
        seen_at=later(first.seen_at, second.seen_at), acted_at=later(first.acted_at, second.acted_at)
    )
