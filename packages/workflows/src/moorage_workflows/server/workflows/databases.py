"""The database of workflows."""

from moorage.server.databases import ServerDatabase
from moorage_workflows.workflows.store import SCHEMA

FILE = "workflows.db"
DATABASES = (
    ServerDatabase(
        name="workflows",
        file=FILE,
        schema=SCHEMA,
        tables=(
            "workflow_runs",
            "workflow_nodes",
            "workflow_reports",
            "workflow_memos",
            "workflow_metrics",
            "workflow_sizes",
        ),
        counted=("workflow_runs",),
        content=("workflow_runs",),
    ),
)
