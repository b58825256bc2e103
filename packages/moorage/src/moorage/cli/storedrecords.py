"""The server's records of runs and workflows, for commands that read the cluster themselves."""

from __future__ import annotations

from urllib.parse import quote

from moorage.api.storedrecords import Erased, StoredLog, StoredPod, StoredRun, StoredSteps
from moorage.cli import console
from moorage.cli.session import Session
from moorage_kube.errors import Forbidden, MoorageError, NotFound, NotReady


class RecordsOfServer:
    """Implements `RunRecords` and `StepRecords` of `actions.storedrecords` by requests to the server.

    If the server does not answer, one note says so.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noted = False

    async def run(self, namespace: str, name: str) -> StoredRun:
        try:
            return await self._session.server.ask(
                StoredRun, "GET", f"/api/v1/jobs/{namespace}/{quote(name)}/records"
            )
        except NotReady:
            return StoredRun()  # without a server there are no records
        except MoorageError as error:
            self._note(f"records of deleted pods are missing here: {error.message}")
            return StoredRun()

    async def log(self, namespace: str, name: str, uid: str) -> StoredLog:
        return await self._log(f"/api/v1/jobs/{namespace}/{quote(name)}/records/{quote(uid)}", {})

    async def steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[StoredPod, ...]:
        path = f"/api/v1/workflows/{namespace}/{quote(workflow)}/records"
        try:
            params = {"uid": uid, "pod": pod or None}
            return (await self._session.server.ask(StoredSteps, "GET", path, params=params)).pods
        except (NotFound, NotReady):
            return ()
        except MoorageError as error:
            self._note(f"records of deleted pods are missing here: {error.message}")
            return ()

    async def step_log(
        self, namespace: str, workflow: str, uid: str, pod: str, *, container: str = ""
    ) -> StoredLog:
        path = f"/api/v1/workflows/{namespace}/{quote(workflow)}/records/{quote(pod)}"
        return await self._log(path, {"uid": uid, "container": container or None})

    async def _log(self, path: str, params: dict[str, object]) -> StoredLog:
        try:
            return await self._session.server.ask(StoredLog, "GET", path, params=params)
        except (NotFound, NotReady):
            return StoredLog()
        except Forbidden:
            raise
        except MoorageError as error:
            self._note(f"logs of deleted pods are missing here: {error.message}")
            return StoredLog()

    def _note(self, text: str) -> None:
        if not self._noted:
            console.note(text)
        self._noted = True


async def erase_step_records(session: Session, workflow: str) -> int:
    """Erase the records of the pods of all workflows of a name. Returns the number of pods.

    Raises ApiError, NotReady.
    """
    path = f"/api/v1/workflows/{session.namespace}/{quote(workflow)}/records"
    return (await session.server.ask(Erased, "DELETE", path)).pods


async def erase_records(session: Session, name: str) -> int:
    """Erase the records of all runs of a name. Returns the number of pods. Raises ApiError, NotReady."""
    path = f"/api/v1/jobs/{session.namespace}/{quote(name)}/records"
    return (await session.server.ask(Erased, "DELETE", path)).pods
