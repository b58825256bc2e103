"""What `moor explain` says of a workflow and of its steps."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from moorage.actions.explain import explain_run
from moorage.api.explain import WorkflowExplanation
from moorage.cli.session import Session
from moorage_kube.errors import NotReady, ServerError, Unauthorized
from moorage_workflows.actions.workflows import NoRecords
from moorage_workflows.actions.workflowwaits import explain_workflow


async def explain(session: Session, name: str, step: str) -> WorkflowExplanation:
    """Raises NotFound."""
    path = f"/api/v1/workflows/{session.namespace}/{quote(name, safe='')}/explain"
    try:
        return await session.server.ask(WorkflowExplanation, "GET", path, params={"step": step or None})
    except (NotReady, ServerError, Unauthorized):
        return await _explain_here(session, name, step)


async def _explain_here(session: Session, name: str, step: str) -> WorkflowExplanation:
    """The same answer from what this user may read; without the server no step is known. Raises NotFound."""

    async def explain_pod(pod: str) -> Any:
        return await explain_run(session.api, session.namespace, pod, session.clock.now)

    now = session.clock.now()
    return await explain_workflow(
        session.api, session.namespace, name, step, records=NoRecords(), explain_pod=explain_pod, now=now
    )
