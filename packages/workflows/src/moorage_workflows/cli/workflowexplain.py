"""The part of `moor explain` for a workflow and its steps."""

from __future__ import annotations

from urllib.parse import quote

from moorage.api.explain import WorkflowExplanation
from moorage.cli.session import Session, ask_server


async def explain(session: Session, name: str, step: str) -> WorkflowExplanation:
    """Raises NotFound."""
    namespace = session.namespace
    path = f"/api/v1/workflows/{namespace}/{quote(name, safe='')}/explain"
    kubectl = f"kubectl describe workflow {name} -n {namespace}"
    return await ask_server(session, WorkflowExplanation, path, {"step": step or None}, kubectl=kubectl)
