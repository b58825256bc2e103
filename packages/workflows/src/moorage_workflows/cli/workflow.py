"""`moor workflow`: workflows in Argo's format. Each command has its own module."""

from __future__ import annotations

from moorage.cli import console
from moorage_workflows.cli.workflowartifacts import artifacts
from moorage_workflows.cli.workflowchange import delete, node, resume, retry, stop, suspend, terminate
from moorage_workflows.cli.workflowconvert import convert
from moorage_workflows.cli.workflowget import get, wait, watch
from moorage_workflows.cli.workflowlint import lint
from moorage_workflows.cli.workflowlist import list_
from moorage_workflows.cli.workflowlogs import logs
from moorage_workflows.cli.workflowsubmit import resubmit, submit
from moorage_workflows.cli.workflowtemplate import template


@console.group(
    examples={
        "moor workflow lint train.yaml": "check a workflow before you submit it",
        "moor workflow submit train.yaml --watch": "submit a workflow, and watch its steps",
        "moor workflow get @latest": "show the newest workflow",
        "moor workflow convert nightly.yaml > cron.yaml": "convert a CronJob, and list the changes",
    }
)
def workflow() -> None:
    """Run workflows in Argo's format."""


for command in (
    submit,
    list_,
    get,
    watch,
    wait,
    logs,
    stop,
    terminate,
    suspend,
    resume,
    node,
    retry,
    resubmit,
    delete,
    artifacts,
    template,
    convert,
    lint,
):
    workflow.add_command(command)
