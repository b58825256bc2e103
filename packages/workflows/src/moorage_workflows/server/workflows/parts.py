"""The server's parts for workflows: their records and artifacts, and the task that deletes old ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from moorage.model.argo import WORKFLOWS
from moorage.server.context import Context
from moorage.server.databases import ARTIFACTS_FOLDER
from moorage.server.fileimport import set_aside
from moorage.server.parts import Base, Parts, Work
from moorage_kube.api import Api
from moorage_kube.errors import NotFound
from moorage_workflows.server.workflows.databases import FILE
from moorage_workflows.workflows.artifacts import Artifacts, open_artifacts
from moorage_workflows.workflows.records import LocalRecords
from moorage_workflows.workflows.retention import Retention, retention_settings, sweep
from moorage_workflows.workflows.store import WorkflowStore, open_workflows

log = logging.getLogger(__name__)

LISTED_AT_ONCE = 100  # Workflows, of at most some MB each


def make_parts(base: Base) -> Parts:
    """Return the parts of the server for workflows. Raises UsageError for an invalid setting, and StorageError."""
    retention = retention_settings(base.env)
    place = base.place
    artifacts = _open_artifacts(place.folder, retention, is_shared=bool(place.url))
    records = LocalRecords(
        place.url or place.folder / FILE,
        prepare=partial(move_workflows, place.folder) if place.url else None,
        artifacts=artifacts,
        quota=retention.record_bytes,
    )
    return Parts(values=(records, artifacts, retention), close=(records.close,))


def recording(context: Context) -> Iterator[Work]:
    kept = context.part(LocalRecords), context.part(Artifacts), context.part(Retention)
    yield partial(sweep, *kept, present=partial(_present, context.api), clock=context.clock)


def _open_artifacts(folder: Path, retention: Retention, *, is_shared: bool) -> Artifacts:
    """`is_shared`: there are other servers, with other folders: they would not find artifacts of this one's
    folder.
    """
    if is_shared and not retention.artifacts:
        hint = "servers that share a database keep artifacts in a bucket: set MOORAGE_ARTIFACTS"
        return Artifacts(None, most_bytes=retention.artifact_bytes, refusal=hint)
    where = retention.artifacts or folder / ARTIFACTS_FOLDER
    return open_artifacts(where, most_bytes=retention.artifact_bytes, namespace_bytes=retention.namespace_bytes)


def move_workflows(folder: Path, to: WorkflowStore) -> None:
    """Move `workflows.db` of a folder into PostgreSQL. Raises StorageError, and then nothing is renamed.

    It is moved before the first read or write of records: a run without its records would begin again.
    """
    path = folder / FILE
    if not path.exists():
        return
    before = open_workflows(path)
    try:
        runs = to.take_over(before)
    finally:
        before.close()
    set_aside(path)
    log.info("moved the records of workflows into PostgreSQL", extra={"runs": runs})


async def _present(api: Api) -> frozenset[str]:
    """Return the uids of all Workflows."""
    uids: set[str] = set()
    cont: str | None = None
    try:
        while True:  # they are large: a page at a time
            page = await api.list(WORKFLOWS, limit=LISTED_AT_ONCE, cont=cont)
            uids.update(str(workflow["metadata"]["uid"]) for workflow in page.items)
            if not (cont := page.cont):
                return frozenset(uids)
    except NotFound:  # no such kind here
        return frozenset()
