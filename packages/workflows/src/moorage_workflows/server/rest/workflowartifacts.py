"""/api/v1/workflows/{namespace}/{name}/artifacts: the artifacts of a workflow's steps, for users.

Users who may get Workflows of a namespace may read their artifacts.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from moorage.api.errors import ErrorCode
from moorage.model.argo import WORKFLOWS
from moorage.server.endpoint import Call, Endpoint
from moorage.server.namespaces import oldest_for
from moorage.server.problems import Problem
from moorage_kube.errors import NotFound, StorageError
from moorage_workflows.api.workflowartifacts import WhichRun, WorkflowArtifact, WorkflowArtifactList
from moorage_workflows.model.workflow import Artifact, NodeRecord, WorkflowRecord
from moorage_workflows.workflows.artifacts import Artifacts
from moorage_workflows.workflows.records import LocalRecords

PATH = "/api/v1/workflows/{namespace}/{name}/artifacts"
_SUFFIXES = {"tar": ".tgz", "zip": ".zip"}


async def list_artifacts(call: Call[None, WhichRun]) -> WorkflowArtifactList:
    """List the artifacts of a workflow, for users who may get workflows in its namespace."""
    await _check(call)
    run = await _run(call)
    artifacts = [
        _shown(node, artifact)
        for node in await _nodes(call, run)
        for artifact in (node.outputs.artifacts if node.outputs else ())
    ]
    return WorkflowArtifactList(
        uid=run.uid, artifacts=tuple(sorted(artifacts, key=lambda artifact: (artifact.step, artifact.name)))
    )


async def get_artifact(call: Call[None, WhichRun]) -> Response:
    """Download the stored bytes of an artifact. `node` is the id or the name of a node, or the name of its pod."""
    await _check(call)
    run, wanted, name = await _run(call), str(call.path["node"]), str(call.path["artifact"])
    candidates = [
        artifact
        for node in await _nodes(call, run)
        if wanted in (node.id, node.name, node.display_name, node.pod_name)
        for artifact in (node.outputs.artifacts if node.outputs else ())
        if artifact.name == name
    ]
    if not candidates:
        raise NotFound(
            f"step {wanted!r} of workflow {call.name} has no artifact {name!r}",
            hint="list them: moor workflow artifacts list",
            code=ErrorCode.NOT_FOUND,
        )
    stored = {(artifact.key, *artifact.location) for artifact in candidates}
    if len(stored) > 1:
        raise Problem(
            400,
            ErrorCode.AMBIGUOUS,
            f"{len(stored)} steps are named {wanted!r}",
            "give the id of the node",
            "node",
        )
    return await _download(call, run, candidates[0])


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=PATH, handler=list_artifacts, query=WhichRun, answer=WorkflowArtifactList),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{node}}/{{artifact}}",
        handler=get_artifact,
        query=WhichRun,
        media_type="application/octet-stream",
    ),
)


async def _download(call: Call[None, WhichRun], run: WorkflowRecord, artifact: Artifact) -> Response:
    if artifact.location:
        kind = ", ".join(artifact.location)
        raise NotFound(
            f"artifact {artifact.name} is not stored here but by {kind}",
            hint=f"read it there: {artifact.key}" if artifact.key else None,
            code=ErrorCode.NOT_FOUND,
        )
    if artifact.files:
        return await _download_folder(call, run, artifact)
    try:
        content = await call.context.part(Artifacts).open(f"{run.namespace}/{artifact.key}", await _oldest(call))
    except StorageError as error:
        raise Problem(503, ErrorCode.UNAVAILABLE, error.message, error.hint) from error
    file = quote(artifact.name + _SUFFIXES.get(artifact.archive, ""))
    return StreamingResponse(
        content.parts,
        media_type="application/octet-stream",
        headers={
            "content-length": str(content.size_bytes),
            "content-disposition": f"attachment; filename*=utf-8''{file}",
        },
    )


async def _download_folder(call: Call[None, WhichRun], run: WorkflowRecord, artifact: Artifact) -> Response:
    """Send the files of a folder as one tar file."""
    store, key = call.context.part(Artifacts), f"{run.namespace}/{artifact.key}"
    try:
        names = await store.below(key, await _oldest(call))
    except StorageError as error:
        raise Problem(503, ErrorCode.UNAVAILABLE, error.message, error.hint) from error
    if not names:
        raise NotFound(f"there is no artifact {artifact.key!r}", hint="it was deleted", code=ErrorCode.NOT_FOUND)

    async def parts() -> AsyncIterator[bytes]:
        for name in names:
            content = await store.open(f"{key}/{name}")
            entry = tarfile.TarInfo(name)
            entry.size = content.size_bytes
            yield entry.tobuf(tarfile.PAX_FORMAT)
            async for part in content.parts:
                yield part
            yield bytes(-content.size_bytes % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    file = quote(f"{artifact.name}.tar")
    return StreamingResponse(
        parts(),
        media_type="application/x-tar",
        headers={"content-disposition": f"attachment; filename*=utf-8''{file}"},
    )


async def _check(call: Call[None, WhichRun]) -> None:
    """Raises Problem 403."""
    auth = call.context.auth
    if not await auth.may(
        call.user, "get", WORKFLOWS.plural, group=WORKFLOWS.group, namespace=call.namespace, name=call.name
    ):
        raise Problem(
            403, ErrorCode.FORBIDDEN, f"{call.user.name} may not get workflows in namespace {call.namespace}"
        )


async def _run(call: Call[None, WhichRun]) -> WorkflowRecord:
    """Return the run of the request. Raises NotFound, and Problem 503."""
    try:
        runs = await call.context.part(LocalRecords).history(call.namespace, call.name, await _oldest(call))
    except StorageError as error:
        raise Problem(503, ErrorCode.UNAVAILABLE, error.message, error.hint) from error
    for run in runs:
        if call.query.uid in ("", run.uid):
            return run
    raise NotFound(
        f"there are no records of workflow {call.namespace}/{call.name}",
        hint="it has not begun, or Argo runs it",
        code=ErrorCode.NOT_FOUND,
    )


async def _oldest(call: Call[None, WhichRun]) -> datetime | None:
    return await oldest_for(call.context, call.user, "get", WORKFLOWS, call.namespace)


async def _nodes(call: Call[None, WhichRun], run: WorkflowRecord) -> list[NodeRecord]:
    nodes: list[NodeRecord] = []
    after = ""
    try:
        while True:
            page = await call.context.part(LocalRecords).nodes(run.uid, after=after)
            nodes += page.nodes
            if not (after := page.after):
                return nodes
    except StorageError as error:
        raise Problem(503, ErrorCode.UNAVAILABLE, error.message, error.hint) from error


def _shown(node: NodeRecord, artifact: Artifact) -> WorkflowArtifact:
    return WorkflowArtifact(
        node=node.id,
        step=node.display_name or node.name,
        name=artifact.name,
        size_bytes=artifact.size_bytes,
        digest=artifact.digest,
        archive=artifact.archive,
        files=artifact.files,
        key=artifact.key,
        location=", ".join(artifact.location),
        is_deleted=artifact.is_deleted,
    )
