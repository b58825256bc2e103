"""Stored records and logs of runs and of steps of workflows with deleted pods, as the caller may read them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from moorage.api.storedrecords import StoredLog, StoredPod, StoredRun
from moorage.attempts.reading import stamp_of, without_stamp
from moorage.decide.runs.state import RunView
from moorage.decide.runs.storedruns import needs_records
from moorage_kube.errors import ServerError


class RunRecords(Protocol):
    """The records that Moorage's server stores. Raises ApiError if it refuses."""

    async def run(self, namespace: str, name: str) -> StoredRun:
        """The newest run of this name; empty if nothing is stored, or there is no server to ask."""
        ...

    async def log(self, namespace: str, name: str, uid: str) -> StoredLog:
        """The last part of a pod's log; empty under the same conditions as `run`. Raises Forbidden."""
        ...


class StepRecords(Protocol):
    """The records of steps of workflows that Moorage's server stores. Raises ApiError if it refuses."""

    async def steps(self, namespace: str, workflow: str, uid: str, *, pod: str = "") -> tuple[StoredPod, ...]:
        """The pods of the Workflow with this uid, sorted by their start. `pod`: only pods with this name."""
        ...

    async def step_log(
        self, namespace: str, workflow: str, uid: str, pod: str, *, container: str = ""
    ) -> StoredLog:
        """The last part of the log of a step's pod, chosen by the pod's uid; empty as in `RunRecords.run`.

        Raises Forbidden.

        `container`: a container of the pod; "" for the container whose log represents the pod.
        """
        ...


async def record_of(records: RunRecords, run: RunView) -> StoredRun:
    """The record of a run, if the run needs it; otherwise the server is not asked.

    A store that cannot be read does not hide a run that exists.
    """
    try:
        return await records.run(run.namespace, run.name) if needs_records(run, peaks=True) else StoredRun()
    except ServerError:
        return StoredRun()


def lines_of(
    log: StoredLog, *, now: datetime, tail: int | None = None, since_seconds: int | None = None
) -> tuple[list[bytes], bool]:
    """The wanted lines of a stored log, without times and line ends; and whether earlier lines are missing."""
    lines = log.lines.split(b"\n")[:-1]
    cut = log.cut
    if since_seconds is not None:
        since = now - timedelta(seconds=since_seconds)
        first = next((at for at, line in enumerate(lines) if (stamp_of(line) or since) >= since), len(lines))
        cut, lines = cut and first == 0, lines[first:]
    if tail is not None and tail < len(lines):
        cut, lines = False, lines[len(lines) - tail :]
    return [without_stamp(line) for line in lines], cut
