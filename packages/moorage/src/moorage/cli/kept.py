"""The server's records of runs and workflows, for commands that read the cluster themselves."""

from __future__ import annotations

from urllib.parse import quote

from moorage.api.kept import Erased, KeptLog, KeptPod, KeptRun, KeptSteps
from moorage.cli import console
from moorage.cli.session import Session
from moorage_kube.errors import Forbidden, MoorageError, NotFound, NotReady


class AskedKept:
    """Implements `Kept` and `KeptOfSteps` of `actions.storedrecords` by requests to the server.

    If the server does not answer, one note says so.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._noted = False

    async def run(self, namespace: str, name: str) -> KeptRun:
        try:
            return await self._session.server.ask(KeptRun, "GET", f"/api/v1/jobs/{namespace}/{quote(name)}/kept")
        except NotReady:
            return KeptRun()  # without a server there are no records
        except MoorageError as error:
            self._note(f"records of deleted pods are missing here: {error.message}")
            return KeptRun()

    async def log(self, namespace: str, name: str, uid: str) -> KeptLog:
        return await self._log(f"/api/v1/jobs/{namespace}/{quote(name)}/kept/{quote(uid)}", {})

    async def steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[KeptPod, ...]:
        path = f"/api/v1/workflows/{namespace}/{quote(workflow)}/kept"
        try:
            params = {"uid": uid, "pod": pod or None}
            return (await self._session.server.ask(KeptSteps, "GET", path, params=params)).pods
        except (NotFound, NotReady):
            return ()
        except MoorageError as error:
            self._note(f"records of deleted pods are missing here: {error.message}")
            return ()

    async def step_log(self, namespace: str, workflow: str, uid: str, pod: str, *, container: str = "") -> KeptLog:
        path = f"/api/v1/workflows/{namespace}/{quote(workflow)}/kept/{quote(pod)}"
        return await self._log(path, {"uid": uid, "container": container or None})

    async def _log(self, path: str, params: dict[str, object]) -> KeptLog:
        try:
            return await self._session.server.ask(KeptLog, "GET", path, params=params)
        except (NotFound, NotReady):
            return KeptLog()
        except Forbidden:
            raise
        except MoorageError as error:
            self._note(f"logs of deleted pods are missing here: {error.message}")
            return KeptLog()

    def _note(self, text: str) -> None:
        if not self._noted:
            console.note(text)
        self._noted = True


async def erase_kept_steps(session: Session, workflow: str) -> int:
    """Erase the records of the pods of all workflows of a name. Returns the number of pods.

    Raises ApiError, NotReady.
    """
    path = f"/api/v1/workflows/{session.namespace}/{quote(workflow)}/kept"
    return (await session.server.ask(Erased, "DELETE", path)).pods


async def erase_kept(session: Session, name: str) -> int:
    """Erase the records of all runs of a name. Returns the number of pods. Raises ApiError, NotReady."""
    path = f"/api/v1/jobs/{session.namespace}/{quote(name)}/kept"
    return (await session.server.ask(Erased, "DELETE", path)).pods
