"""Routes for the programs of workflows: records for the operator, artifacts and reports for steps.

Belongs here: these routes, and their access rights. Does not belong here: routes for users
(`server.rest`), and the store (`workflows`).
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
