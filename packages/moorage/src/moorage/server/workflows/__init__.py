"""What the programs of workflows ask: the operator for records, steps for a place of artifacts and reports.

Belongs here: these routes, and who may use them. Does not belong here: what people ask (`server.rest`), and how it
is kept (`workflows`).
"""

from moorage.features import Feature

FEATURE = Feature(
    name="workflows",
    parts="moorage.server.workflows.parts:make_parts",
    routes="moorage.server.workflows.feature:routes",
    pages="moorage.server.workflows.feature:PAGES",
    glance="moorage.server.pages.workflowpages:glance",
    metrics="moorage.server.workflows.measures:measure",
    controllers="moorage.controllers.workflow.feature:controllers",
    explain="moorage.cli.workflowexplain:explain",
    crds="moorage.model.workflowcrds:workflow_crds",
    databases="moorage.server.workflows.databases:DATABASES",
)
