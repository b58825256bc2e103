"""Workflows over REST, in the shapes of Argo's server, so that Argo's clients can use this server.

https://argo-workflows.readthedocs.io/en/latest/swagger/
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Natural, Query, Request, Text, about
from moorage_kube.moments import parse_rfc3339

ENDED = ("Succeeded", "Failed", "Error")
Words = tuple[Text, ...]


class ArgoObject(Answer, frozen=True):
    """An object in the format of Argo's API."""

    api_version: str = "argoproj.io/v1alpha1"
    kind: str = ""
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def created(self) -> datetime | None:
        text = self.metadata.get("creationTimestamp")
        return parse_rfc3339(text) if isinstance(text, str) else None


class Workflow(ArgoObject, frozen=True):
    """A Workflow as Argo writes it; `status.nodes` holds the nodes that the server stores."""

    kind: str = "Workflow"

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Error."""
        return str(self.status.get("phase") or "Pending")

    @property
    def message(self) -> str:
        return str(self.status.get("message") or "")

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED

    @property
    def outputs(self) -> dict[str, str]:
        """The output parameters of the workflow."""
        parameters = (self.status.get("outputs") or {}).get("parameters") or ()
        return {str(each["name"]): str(each["value"]) for each in parameters if "name" in each and "value" in each}


class WorkflowTemplate(ArgoObject, frozen=True):
    """A WorkflowTemplate, or a ClusterWorkflowTemplate."""

    kind: str = "WorkflowTemplate"


class CronWorkflow(ArgoObject, frozen=True):
    """A CronWorkflow in the format of Argo's API."""

    kind: str = "CronWorkflow"


class CronWorkflowList(Answer, frozen=True):
    """CronWorkflows."""

    items: tuple[CronWorkflow, ...]
    metadata: dict[str, Any] = {}
    api_version: str = "argoproj.io/v1alpha1"
    kind: str = "CronWorkflowList"


class Named(Request):
    """Fields of Argo's clients, which repeat the path in the body."""

    name: Annotated[Text, about("Argo's; the path's name counts.")] = ""
    namespace: Annotated[Text, about("Argo's; the path's namespace counts.")] = ""


class CronWorkflowBody(Named, kw_only=True):
    """A CronWorkflow to create or to replace, in the format of Argo's clients."""

    cron_workflow: Annotated[dict[str, Any], about("Manifest.")]
    create_options: Annotated[dict[str, Any], about("Argo's; only `dryRun` is supported.")] = {}


class WorkflowList(Answer, frozen=True):
    """Workflows, newest first, without their nodes."""

    items: tuple[Workflow, ...]
    metadata: dict[str, Any] = {}
    api_version: str = "argoproj.io/v1alpha1"
    kind: str = "WorkflowList"


class WorkflowTemplateList(Answer, frozen=True):
    """Templates, sorted by name."""

    items: tuple[WorkflowTemplate, ...]
    metadata: dict[str, Any] = {}
    api_version: str = "argoproj.io/v1alpha1"
    kind: str = "WorkflowTemplateList"


class WorkflowChoice(Query):
    """Filters for a list of workflows."""

    status: Annotated[Words, about("Only these phases, such as Failed; may repeat.")] = ()
    running: Annotated[bool, about("Only workflows that have not ended.")] = False
    completed: Annotated[bool, about("Only workflows that have ended.")] = False
    prefix: Annotated[Text, about("Only names that begin so.")] = ""
    cron: Annotated[Text, about("Only workflows of this CronWorkflow.")] = ""
    since: Annotated[Text | None, about("Only workflows created since: 2h or 7d ago, a day, or a time.")] = None
    selector: Annotated[Text | None, about("Only workflows whose labels match, such as project=vision.")] = None
    limit: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None, about("At most this number of workflows.")
    ] = None


class ListedByArgo(WorkflowChoice):
    """Filters for a list of workflows, with the parameters of Argo's clients."""

    label_selector: Annotated[Text | None, about("Argo's name of `selector`.")] = msgspec.field(
        default=None, name="listOptions.labelSelector"
    )
    limit_by_argo: Annotated[Text | None, about("Argo's name of `limit`.")] = msgspec.field(
        default=None, name="listOptions.limit"
    )
    name_filter: Annotated[Text | None, about("Argo's; not supported: use `prefix`.")] = msgspec.field(
        default=None, name="nameFilter"
    )
    watch: Annotated[bool, about("Argo's: not supported; get a workflow again instead.")] = msgspec.field(
        default=False, name="listOptions.watch"
    )


class NewWorkflow(Request):
    """A workflow to submit: a manifest in `workflow`, or a source in `from`, and additions to it."""

    workflow: Annotated[dict[str, Any] | None, about("Manifest of the Workflow.")] = None
    source: Annotated[
        Text | None,
        about("Source: workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME."),
    ] = msgspec.field(default=None, name="from")
    parameters: Annotated[tuple[str, ...], about("Arguments, each NAME=VALUE.")] = ()
    name: Annotated[Text, about("Name; left out: the manifest's.")] = ""
    generate_name: Annotated[Text, about("Beginning of the name; 5 characters are added.")] = ""
    labels: Annotated[Words, about("Labels of the workflow, each NAME=VALUE.")] = ()
    entrypoint: Annotated[Text, about("Template to begin with; left out: the manifest's.")] = ""
    service_account: Annotated[Text, about("ServiceAccount of its pods; left out: the manifest's.")] = ""
    priority: Annotated[int | None, about("Higher starts first among workflows that wait.")] = None
    priority_class: Annotated[Text, about("PriorityClass of its pods.")] = ""
    host_env: Annotated[bool, about("On a local cluster: run images' commands in its own environment.")] = False
    dry_run: Annotated[bool, about("Check the workflow; create nothing.")] = False
    namespace: Annotated[Text, about("Argo's; the path's namespace counts.")] = ""
    server_dry_run: Annotated[bool, about("Argo's name of `dryRun`.")] = False
    create_options: Annotated[dict[str, Any], about("Argo's; only `dryRun` is supported.")] = {}
    instance_id: Annotated[Text, about("Argo's; Moorage sets its own.")] = msgspec.field(
        default="", name="instanceID"
    )


class SubmitOptions(Request):
    """Argo's options for a workflow from a template."""

    name: Text = ""
    generate_name: Text = ""
    parameters: tuple[str, ...] = ()
    labels: Annotated[Text, about("NAME=VALUE, separated by commas.")] = ""
    annotations: Annotated[Text, about("NAME=VALUE, separated by commas.")] = ""
    entry_point: Text = ""
    service_account: Text = ""
    priority: int | None = None
    pod_priority_class_name: Text = ""
    dry_run: bool = False
    server_dry_run: bool = False
    owner_reference: Annotated[dict[str, Any] | None, about("Not supported.")] = None


class SubmittedFrom(Request):
    """A workflow from a template, in Argo's format; same as `POST /api/v1/workflows/{namespace}` with `from`."""

    resource_kind: Annotated[Text, about("WorkflowTemplate, ClusterWorkflowTemplate or CronWorkflow.")]
    resource_name: Text
    submit_options: SubmitOptions = msgspec.field(default_factory=SubmitOptions)
    namespace: Text = ""


class StopWorkflow(Named):
    """Options for stopping a workflow; a selector chooses suspended nodes, which fail."""

    node_field_selector: Annotated[Text, about("Fail these suspended nodes, such as displayName=approve.")] = ""
    message: Annotated[Text, about("Why; it is shown at the workflow.")] = ""


class ResumeWorkflow(Named):
    """The suspended nodes to resume; without a selector, all."""

    node_field_selector: Annotated[Text, about("Only these nodes, such as displayName=approve.")] = ""
    message: Annotated[Text, about("Why; it is shown at the nodes.")] = ""


class SetNode(Named):
    """Values for a suspended node, and whether the node continues."""

    node_field_selector: Annotated[Text, about("Which nodes, such as displayName=approve.")] = ""
    output_parameters: Annotated[
        Mapping[str, str] | str, about("Outputs that the template declares as supplied; Argo: a JSON text.")
    ] = {}
    message: Annotated[Text, about("Shown at the node.")] = ""
    phase: Annotated[Text, about("Succeeded (the default) or Failed.")] = ""


class RetryWorkflow(Named):
    """Nodes that run again: failed nodes, and selected nodes that succeeded."""

    restart_successful: Annotated[bool, about("Also run chosen nodes again that succeeded.")] = False
    node_field_selector: Annotated[Text, about("Which of them, such as displayName=train.")] = ""
    parameters: Annotated[tuple[str, ...], about("Not supported: use resubmit.")] = ()


class ResubmitWorkflow(Named):
    """Options for a new workflow with the same spec."""

    parameters: Annotated[tuple[str, ...], about("Arguments that differ, each NAME=VALUE.")] = ()
    memoized: Annotated[bool, about("Reuse the results of nodes that succeeded; run only the rest.")] = False


class LintWorkflow(Request):
    """A manifest to check."""

    workflow: dict[str, Any]
    namespace: Text = ""


class WorkflowLogs(Query):
    """Filters for the log lines of a workflow."""

    follow: Annotated[bool, about("Go on until the workflow has ended.")] = False
    step: Annotated[Text, about("Only steps of this name.")] = ""
    tail: Annotated[Natural | None, about("Only the last lines of each pod.")] = None
    since_seconds: Annotated[Natural | None, about("Only lines of the last seconds.")] = None


class LogsByArgo(WorkflowLogs):
    """Filters for the log lines of a workflow, with the parameters of Argo's clients."""

    pod_name: Annotated[Text, about("Only this pod.")] = ""
    follow_by_argo: Annotated[bool, about("Argo's name of `follow`.")] = msgspec.field(
        default=False, name="logOptions.follow"
    )
    tail_by_argo: Annotated[Natural | None, about("Argo's name of `tail`.")] = msgspec.field(
        default=None, name="logOptions.tailLines"
    )
    container: Annotated[Text, about("Container; left out: main.")] = msgspec.field(
        default="", name="logOptions.container"
    )


class NewTemplate(Request):
    """A WorkflowTemplate or ClusterWorkflowTemplate to create or to replace."""

    template: Annotated[dict[str, Any], about("Manifest.")]
    namespace: Annotated[Text, about("Argo's; the path's namespace counts.")] = ""
    name: Annotated[Text, about("Argo's; the manifest's name counts.")] = ""
    create_options: Annotated[dict[str, Any], about("Argo's; only `dryRun` is supported.")] = {}


class Done(Answer, frozen=True):
    """An empty answer: the request succeeded."""


class ArgoInfo(Answer, frozen=True):
    """The answer to the info request of Argo's clients; `controller` (moorage or argo) runs the workflows."""

    controller: str
    managed_namespace: str = ""
    links: tuple[dict[str, Any], ...] = ()
    columns: tuple[dict[str, Any], ...] = ()
    modals: dict[str, bool] = {}


class ArgoVersion(Answer, frozen=True):
    """The version of this server, in Argo's format."""

    version: str
    build_date: str = ""
    git_commit: str = ""
    git_tag: str = ""
    git_tree_state: str = ""
    go_version: str = ""
    compiler: str = ""
    platform: str = ""


class ArgoUser(Answer, frozen=True):
    """The caller, in Argo's fields."""

    name: str
    subject: str = ""
    groups: tuple[str, ...] = ()
    service_account_name: str = ""


class LogEntry(Answer, frozen=True):
    """One log line of a step. `step`: the step's name without the name of the workflow."""

    content: str
    pod_name: str = ""
    step: str = ""


class LogLine(Answer, frozen=True):
    """A log line in the stream format of Argo's server."""

    result: LogEntry


def as_workflow(obj: Mapping[str, Any]) -> Workflow:
    """Return a Workflow object as an answer; its phase is Pending until a controller sets one."""
    status = dict(obj.get("status") or {})
    status["phase"] = status.get("phase") or "Pending"
    return Workflow(metadata=dict(obj.get("metadata") or {}), spec=dict(obj.get("spec") or {}), status=status)


def as_cron_workflow(obj: Mapping[str, Any]) -> CronWorkflow:
    """Convert a CronWorkflow object to an answer."""
    return CronWorkflow(
        metadata=dict(obj.get("metadata") or {}),
        spec=dict(obj.get("spec") or {}),
        status=dict(obj.get("status") or {}),
    )


def as_template(obj: Mapping[str, Any]) -> WorkflowTemplate:
    """Convert a template object to an answer."""
    return WorkflowTemplate(
        kind=str(obj.get("kind") or "WorkflowTemplate"),
        metadata=dict(obj.get("metadata") or {}),
        spec=dict(obj.get("spec") or {}),
    )
