"""The workflows feature of the server."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import BaseRoute

from moorage.server.context import Context
from moorage_workflows.server.pages import cronpages, workflowchanges, workflowpages
from moorage_workflows.server.rest import (
    crons,
    cronworkflows,
    workflowartifacts,
    workflowpodrecords,
    workflows,
    workflowtemplates,
    workflowuse,
    workflowwaits,
)
from moorage_workflows.server.workflows import records, steps

PAGES = (*workflowpages.PAGES, *workflowchanges.PAGES, *cronpages.PAGES)


def routes(context: Context) -> Iterator[BaseRoute]:
    yield from records.routes(context)
    yield from steps.routes(context)
    for endpoints in (
        workflowuse.ENDPOINTS,
        workflowpodrecords.ENDPOINTS,
        workflowartifacts.ENDPOINTS,
        workflows.ENDPOINTS,
        workflowwaits.ENDPOINTS,
        crons.ENDPOINTS,
        cronworkflows.ENDPOINTS,
        workflowtemplates.ENDPOINTS,
    ):
        for endpoint in endpoints:
            yield endpoint.route(context)
