"""GET /api/v1/workflows/{namespace}/{name}/explain: which steps run, and why the others wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage.api.explain import LockHolder, StepQuery, WorkflowExplanation
from moorage.decide.explain.types import Explanation
from moorage.model.argo import WORKFLOWS, step_path
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.explaining import explained
from moorage.server.identity.auth import User
from moorage.server.namespaces import is_too_old, oldest_for
from moorage_kube.errors import StorageError
from moorage_kube.moments import moment, whole_seconds
from moorage_workflows.actions.workflowwaits import ExplainPod, FindHolders, explain_workflow
from moorage_workflows.server.rest.workflows import ONE, records_of
from moorage_workflows.workflows.records import LocalRecords


async def explain(call: Call[None, StepQuery]) -> WorkflowExplanation:
    """Explain which steps of a workflow run, and why the others wait. `@latest` is the newest workflow.

    Users who may get the workflow get the answer; details of its pods as in `/api/v1/explain` for this user.
    """
    context, user = call.context, call.user
    return await explain_workflow(
        call.api,
        call.namespace,
        call.name,
        call.query.step,
        records=records_of(context, user),
        explain_pod=pods_of(context, call.namespace, user),
        find_holders=holders_for(context, user),
        now=context.now(),
    )


def pods_of(context: Context, namespace: str, user: User) -> ExplainPod:
    """Return a function that explains pods of a namespace, with the user's rights."""

    async def explain_pod(pod: str) -> Explanation:
        return await explained(context, namespace, pod, user)

    return explain_pod


def holders_for(context: Context, user: User) -> FindHolders:
    """Return a function that finds the holders of locks. Workflows that the user may not get have no names."""

    async def find(locks: Sequence[str]) -> Sequence[LockHolder]:
        try:
            held = await context.part(LocalRecords).holders(locks)
        except StorageError:
            return ()
        since: dict[str, datetime | None] = {}  # of the namespaces whose workflows the user may get
        for namespace in {run.namespace for run, _ in held}:
            if await context.auth.may(user, "get", WORKFLOWS.plural, group=WORKFLOWS.group, namespace=namespace):
                since[namespace] = await oldest_for(context, user, "get", WORKFLOWS, namespace)
        known = {
            run.uid
            for run, _ in held
            if run.namespace in since and not is_too_old(moment(run.created_at), since[run.namespace])
        }
        return [
            LockHolder(
                lock=lock,
                namespace=run.namespace if run.uid in known else "",
                workflow=run.name if run.uid in known else "",
                step=step_path(node.name, run.name) if node is not None and run.uid in known else "",
                since=whole_seconds(moment((node or run).started_at or None)),
            )
            for run, node in held
            for lock in (node or run).locks
            if lock in locks
        ]

    return find


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=f"{ONE}/explain", handler=explain, query=StepQuery, answer=WorkflowExplanation),
)
