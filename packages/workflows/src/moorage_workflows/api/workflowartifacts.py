"""Artifacts of a workflow in the REST API."""

from __future__ import annotations

from typing import Annotated

from moorage.api.fields import Answer, Query, Text, about


class WhichRun(Query):
    """Selects one of several runs with the same name."""

    uid: Annotated[Text, about("Uid of the run; left out: the newest run of this name.")] = ""


class WorkflowArtifact(Answer, frozen=True):
    """An artifact that a step of a workflow left."""

    node: Annotated[str, about("Id of the node that left it.")]
    step: Annotated[str, about("Name of that node, as the workflow shows it.")]
    name: Annotated[str, about("Name of the artifact.")]
    size_bytes: Annotated[int, about("Bytes as they are stored; 0: stored elsewhere.")]
    digest: Annotated[str, about("Digest of the stored bytes, sha256:…; empty: unknown.")]
    archive: Annotated[str, about("tar: a .tgz; zip; none: the file itself.")]
    key: Annotated[str, about("Where it is stored: key in the store of its namespace, or in the bucket.")]
    location: Annotated[str, about("Where else it is stored, such as s3; empty: in the store of the server.")]
    is_deleted: Annotated[bool, about("Whether the workflow has deleted it.")]
    files: Annotated[int, about("Files of a folder, each stored below the key; 0: it is one file.")] = 0


class WorkflowArtifactList(Answer, frozen=True):
    """Artifacts of one run of a workflow."""

    uid: Annotated[str, about("Uid of the run.")]
    artifacts: Annotated[tuple[WorkflowArtifact, ...], about("Artifacts by step and name.")]
