"""`moor workflow`: workflows in Argo's format. Each command has a module of its own."""

from __future__ import annotations

from moorage.cli import console
from moorage.cli.workflowconvert import convert


@console.group(
    examples={
        "moor workflow convert nightly.yaml > cron.yaml": "convert a CronJob, and read what changes",
        "moor workflow convert nightly.yaml --explain": "see what becomes of each field",
    }
)
def workflow() -> None:
    """Run workflows in Argo's format."""


workflow.add_command(convert)
