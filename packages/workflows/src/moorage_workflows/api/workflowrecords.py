"""The operator's requests to the server's records of workflows: POST to `RECORDS_PATH`/verb, JSON both ways.

Not part of the public API: the operator and the server have the same version, or successive ones.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Time
from moorage_workflows.model.workflow import (
    ArtifactName,
    Memo,
    MetricPoint,
    NodeRecord,
    StepReport,
    WorkflowRecord,
)

RECORDS_PATH = "/api/v1/internal/workflows"
RECORDS_BYTES = 64 << 20  # of one request: a save of 10,000 nodes has some 6 MB

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=512, pattern="^[^\\x00]*$")]


class _Body(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of requests and answers. Fields that a newer operator sends are ignored."""


class Begin(_Body, frozen=True):
    record: WorkflowRecord


class Load(_Body, frozen=True):
    uid: Key
    holder: Key


class Save(_Body, frozen=True):
    uid: Key
    holder: Key
    nodes: tuple[NodeRecord, ...] = ()
    workflow: WorkflowRecord | None = None
    metrics: tuple[MetricPoint, ...] = ()


class Saved(_Body, frozen=True):
    """The answer to Save. `problems`: why some metric values were refused."""

    problems: tuple[str, ...] = ()


class ForgetNodes(_Body, frozen=True):
    uid: Key
    holder: Key
    ids: tuple[Key, ...] = ()
    workflow: WorkflowRecord | None = None


class DeleteArtifacts(_Body, frozen=True):
    uid: Key
    holder: Key
    artifacts: tuple[ArtifactName, ...] = ()


class Left(_Body, frozen=True):
    """The answer to DeleteArtifacts: a sentence for each artifact that could not be deleted."""

    failures: tuple[str, ...] = ()


class AskReports(_Body, frozen=True):
    uid: Key
    pods: tuple[Key, ...] = ()


class Nothing(_Body, frozen=True):
    """The empty body of a request or an answer."""


class Gone(_Body, frozen=True):
    uid: Key
    at: Time


class Remember(_Body, frozen=True):
    namespace: Key
    cache: Key
    key: Key
    memo: Memo


class Recall(_Body, frozen=True):
    namespace: Key
    cache: Key
    key: Key
    since: Time | None = None


class Reports(_Body, frozen=True):
    reports: tuple[StepReport, ...] = ()


class Uids(_Body, frozen=True):
    uids: tuple[str, ...] = ()


class Recalled(_Body, frozen=True):
    memo: Memo | None = None
