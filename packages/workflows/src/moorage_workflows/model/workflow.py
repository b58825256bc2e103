"""Workflows in Argo's format: their annotations, and the server's records of each run.

The kinds are Argo's own (`argoproj.io/v1alpha1`). Their specs are read as plain documents: Argo defines its
templates by substituting text in them. docs/design/0017-workflows.md
https://argo-workflows.readthedocs.io/en/latest/fields/
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from moorage.model.moves import Moves
from moorage_kube.meta import annotations_of

# requests of users for an active run; the operator does them and removes the annotation
RESUME_ANNOTATION = "moorage.dev/workflow-resume"  # on a Workflow: JSON, a list of `Resume`
RETRY_ANNOTATION = "moorage.dev/workflow-retry"  # on a Workflow that has ended: JSON, a `Retry`

TAKE_OVER_ANNOTATION = "moorage.dev/workflow-takes-over"  # on a new Workflow: uid of a run whose results it has

STRICT_ANNOTATION = "moorage.dev/strict"  # on a Workflow, "true": as Argo does, also where Moorage does better

# on a step's pod, shown to its containers by the downward API
ORDER_ANNOTATION = "moorage.dev/workflow-order"  # JSON: the order for the executor
SOURCE_ANNOTATION = "moorage.dev/workflow-source"  # the source of a script
REPORTS_ANNOTATION = "moorage.dev/workflow-reports"  # "true": the container main sends the report

ENDED_PHASES = ("Succeeded", "Failed", "Error")  # of a Workflow

NAME_MAX = 63  # of a Workflow
CRON_NAME_MAX = 52  # of a CronWorkflow: its Workflows add "-" and ten digits
RECURSION_MAX = 100  # templates within templates, as Argo's controller allows
RESULT_BYTES = 256 * 1024  # of `outputs.result`: the end of the step's output


def is_strict(obj: Mapping[str, Any]) -> bool:
    """Whether a Workflow asks for Argo's behaviour everywhere. docs/explanation/workflows.md"""
    return str(annotations_of(obj).get(STRICT_ANNOTATION, "")).lower() == "true"


class NodeType(StrEnum):
    """The type of a node in a workflow's graph, in Argo's words."""

    POD = "Pod"
    STEPS = "Steps"
    STEP_GROUP = "StepGroup"
    DAG = "DAG"
    TASK_GROUP = "TaskGroup"
    RETRY = "Retry"
    SKIPPED = "Skipped"
    SUSPEND = "Suspend"
    HTTP = "HTTP"
    CONTAINER = "Container"

    @property
    def has_pod(self) -> bool:
        """Whether a node of this type has a pod. In Argo one pod sends the requests of all HTTP nodes."""
        return self in (NodeType.POD, NodeType.HTTP)


class NodePhase(StrEnum):
    """The state of a node. `NODE_MOVES` has the allowed changes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    ERROR = "Error"
    SKIPPED = "Skipped"
    OMITTED = "Omitted"

    @property
    def is_completed(self) -> bool:
        """Whether the node ran and has ended."""
        return self in (NodePhase.SUCCEEDED, NodePhase.FAILED, NodePhase.ERROR)

    @property
    def is_fulfilled(self) -> bool:
        """Whether the phase is final."""
        return not NODE_MOVES.after(self)


NODE_MOVES = Moves(
    "a node",
    {
        (None, NodePhase.PENDING): "a step with a pod, or one that waits for locks",
        (None, NodePhase.RUNNING): "a node without a pod",
        (None, NodePhase.SUCCEEDED): "its outputs are memoized",
        (None, NodePhase.SKIPPED): "when is false, or there are no items",
        (None, NodePhase.OMITTED): "depends is false",
        (None, NodePhase.ERROR): "it cannot begin",
        (NodePhase.PENDING, NodePhase.RUNNING): "its pod runs, or its locks are free",
        (NodePhase.PENDING, NodePhase.SUCCEEDED): "its pod ended before it was seen running",
        (NodePhase.PENDING, NodePhase.FAILED): "a deadline, a shutdown, or its pod failed",
        (NodePhase.PENDING, NodePhase.ERROR): "the pod is refused, or its locks are not available",
        (NodePhase.RUNNING, NodePhase.PENDING): "its pod was lost and is started again",
        (NodePhase.RUNNING, NodePhase.SUCCEEDED): "",
        (NodePhase.RUNNING, NodePhase.FAILED): "",
        (NodePhase.RUNNING, NodePhase.ERROR): "",
    },
)


class Artifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An input or output artifact of a step.

    `location`: as in the manifest, one of `s3`, `gcs`, `http`, `git`, `raw`; empty: `key` in our own store.
    """

    name: str
    key: str = ""
    size_bytes: int = 0
    digest: str = ""  # "sha256:…" of the stored bytes
    archive: str = "tar"  # "tar" (a .tgz), "none", "zip"
    files: int = 0  # of a folder, each stored below the key; 0: it is one file
    location: Mapping[str, Any] = {}
    is_deleted: bool = False
    version: str = ""  # as its store has it: another write, of the same bytes too, gives another
    collection: Mapping[str, Any] = {}  # `artifactGC` of the template's output; empty: it has none


class ArtifactName(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An output artifact of a run. `node`: the id of the node that created it."""

    node: str
    name: str


class Outputs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The outputs of a node. A missing parameter was not written (its producer was skipped)."""

    parameters: Mapping[str, str] = {}
    artifacts: tuple[Artifact, ...] = ()
    result: str | None = None
    exit_code: str | None = None


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One node of one workflow: a row. Its id is computed from its name; names are unique.

    Times are RFC 3339. `boundary_id`: the node of the enclosing steps or DAG template. `parents`: ids of
    the nodes before it, for drawing. `template`: name of the template, as in the manifest.
    `template_ref`: the WorkflowTemplate with the template; "cluster/" precedes a ClusterWorkflowTemplate.
    """

    id: str
    name: str
    display_name: str
    type: NodeType
    phase: NodePhase
    template: str = ""
    template_ref: str = ""
    boundary_id: str = ""
    parents: tuple[str, ...] = ()
    started_at: str = ""
    finished_at: str = ""
    message: str = ""
    pod_name: str = ""
    host: str = ""
    inputs: Mapping[str, Any] = {}  # {"parameters": {name: value}, "artifacts": {name: Artifact as a document}}
    outputs: Outputs | None = None
    is_daemon: bool = False
    is_memoized: bool = False
    locks: tuple[str, ...] = ()  # mutexes and semaphores that it holds until it has ended
    resources_seconds: Mapping[str, int] = {}  # requests of its pod, times its duration
    infrastructure_retries: int = 0  # attempts lost to nodes, not to the step; they do not count against its limit


class WorkflowRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One run of a workflow; the record outlives the object.

    `document`: the Workflow with the templates at its start; later edits do not change it.
    """

    uid: str
    namespace: str
    name: str
    document: Mapping[str, Any]
    phase: str = ""  # "", Pending, Running, Succeeded, Failed, Error
    message: str = ""
    started_at: str = ""
    finished_at: str = ""
    created_at: str = ""
    owner: str = ""  # the user who submitted it
    cron: str = ""  # the CronWorkflow it is of
    parameters: Mapping[str, str] = {}  # workflow.outputs.parameters
    artifacts: tuple[Artifact, ...] = ()
    token_digest: str = ""  # "sha256:…" of the token of its pods
    done: int = 0  # pods that have ended
    total: int = 0  # pods that were decided on
    retries: int = 0  # how often it was retried as a whole; the names of pods carry it
    gone_at: str = ""  # when its object was deleted
    locks: tuple[str, ...] = ()  # mutexes and semaphores that the run as a whole holds
    metrics_error: str = ""  # the last reason why a value of its `metrics` was not taken


class MetricPoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A value of a metric that a workflow defines.

    `kind`: counter, gauge or histogram. `operation`: Set, Add or Sub; ignored for a histogram. `node`: the id
    of the node whose end gives the value; "": the end of the run. `since`: RFC 3339; if set, the value is not
    final, and is the number of seconds since then.
    """

    name: str
    help: str
    kind: str
    value: float = 0.0
    operation: str = "Set"
    labels: Mapping[str, str] = {}
    buckets: tuple[float, ...] = ()
    node: str = ""
    since: str = ""


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The current state of a metric with one set of labels in one namespace.

    `counts`: observations in each bucket, and above the last one; not cumulative. `since`: as for
    MetricPoint. `uid`: the run of a real-time value; else "".
    """

    namespace: str
    name: str
    help: str
    kind: str
    labels: Mapping[str, str] = {}
    value: float = 0.0  # of a histogram: the sum
    buckets: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    since: str = ""
    uid: str = ""


class StepReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The report of the executor in a step's pod after the step has ended; the first report of a pod counts.

    `error`: why outputs could not be saved (then the node is in Error with any exit code).
    """

    pod: str
    outputs: Outputs = Outputs()
    error: str = ""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All records of one run."""

    workflow: WorkflowRecord
    nodes: tuple[NodeRecord, ...] = ()
    reports: tuple[StepReport, ...] = ()


class Memo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Outputs of a memoized template under one key of a cache. `at`: the time, RFC 3339."""

    outputs: Outputs
    at: str
    node_id: str = ""  # of the node that left them


class Resume(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A request to resume suspended nodes, or to let them fail.

    `selector`: as for Argo's `--node-field-selector` ("displayName=approve"); "": every suspended node.
    `parameters`: values of output parameters that the template declares as `supplied`.
    """

    selector: str = ""
    parameters: Mapping[str, str] = {}
    message: str = ""
    is_failure: bool = False


class Retry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Run failed nodes again, and the nodes after them.

    `selector`: nodes that run again although they succeeded, with all that came after them; needs
    `restart_successful`.
    """

    selector: str = ""
    restart_successful: bool = False
