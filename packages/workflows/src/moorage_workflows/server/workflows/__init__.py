"""What the programs of workflows ask: the operator for records, steps for a place of artifacts and reports.

Belongs here: these routes, and who may use them. Does not belong here: what people ask (`server.rest`), and how it
is kept (`workflows`).
"""

from moorage.features import Feature

FEATURE = Feature(
    name="workflows",
    parts="moorage_workflows.server.workflows.parts:make_parts",
    routes="moorage_workflows.server.workflows.feature:routes",
    recording="moorage_workflows.server.workflows.parts:recording",
    pages="moorage_workflows.server.workflows.feature:PAGES",
    templates="moorage_workflows.server.pages",
    glance="moorage_workflows.server.pages.workflowpages:glance",
    metrics="moorage_workflows.server.workflows.measures:measure",
    controllers="moorage_workflows.controllers.workflow.feature:controllers",
    explain="moorage_workflows.cli.workflowexplain:explain",
    crds="moorage_workflows.model.workflowcrds:workflow_crds",
    databases="moorage_workflows.server.workflows.databases:DATABASES",
)
