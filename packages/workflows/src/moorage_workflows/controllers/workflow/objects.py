"""The objects of a run other than pods: the Secret with its token, its volumes and its PodDisruptionBudget."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.controllers.base import Shared
from moorage.decide.evaluation import TextError
from moorage.model.argo import WORKFLOW_LABEL
from moorage_kube.errors import AlreadyExists, ApiError, BadRequest, Forbidden, Invalid, NotFound
from moorage_kube.meta import Key, owner_reference
from moorage_kube.resources import PDBS, PVCS, SECRETS, Obj
from moorage_workflows.controllers.workflow.budget import make_budget
from moorage_workflows.controllers.workflow.observe import is_of
from moorage_workflows.controllers.workflow.summary import typed
from moorage_workflows.decide.workflows.graph.scopes import globals_of
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.workflow import WorkflowRecord

DIGEST_CHARACTERS = 12  # of a token's digest, in the name of its Secret


class RunObjects:
    """Creates the objects of a run when it starts, and deletes them when it has ended. Safe to repeat."""

    def __init__(self, shared: Shared) -> None:
        self._api, self._events, self._evaluation = shared.api, shared.events, shared.evaluation

    async def make_token(self, key: Key, obj: Obj) -> str:
        """Create a Secret with a new token for the reports of the run's pods; return the token's digest.

        The Secret is named by the digest. If the operator is killed before the record is stored, an unused
        Secret stays, and the next operator need not read it. It is deleted with the Workflow.
        """
        token = secrets.token_urlsafe(32)
        digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {
                "name": secret_name(key.name, digest),
                "namespace": key.namespace,
                "labels": {WORKFLOW_LABEL: key.name},
                "ownerReferences": [owner_reference(typed(obj))],
            },
            "stringData": {"token": token},
        }
        await self._api.create(SECRETS, secret, key.namespace)
        return digest

    async def make_claims(self, key: Key, obj: Obj, record: WorkflowRecord) -> str:
        """Make the volumes of `spec.volumeClaimTemplates`. Returns why one can never be made; empty: all are made.

        Raises ApiError for temporary errors, such as a quota.
        """
        try:
            templates = await self.claim_templates(key, record)
        except TextError as error:
            return error.message
        for name, template in templates.items():
            claim: Obj = {
                "apiVersion": "v1",
                "kind": PVCS.kind,
                "metadata": {
                    **{
                        field: (template.get("metadata") or {}).get(field) or {}
                        for field in ("labels", "annotations")
                    },
                    "name": f"{key.name}-{name}",
                    "namespace": key.namespace,
                    "ownerReferences": [owner_reference(typed(obj))],
                },
                "spec": dict(template.get("spec") or {}),
            }
            claim["metadata"]["labels"] = claim["metadata"]["labels"] | {WORKFLOW_LABEL: key.name}
            try:
                await self._api.create(PVCS, claim, key.namespace)
            except AlreadyExists:
                continue
            except (Invalid, BadRequest, Forbidden) as error:
                if is_quota(error):
                    raise
                return error.message
        return ""

    async def claim_templates(self, key: Key, record: WorkflowRecord) -> dict[str, Mapping[str, Any]]:
        """Raises TextError."""
        if not (record.document.get("spec") or {}).get("volumeClaimTemplates"):
            return {}
        return await self._evaluation.think(key.namespace, f"Workflow {key}", _claim_templates, record)

    async def _claim_names(self, key: Key, record: WorkflowRecord) -> Sequence[str]:
        """Return the names of claims that may exist; empty if the templates are unreadable."""
        try:
            return list(await self.claim_templates(key, record))
        except TextError:
            return ()

    async def make_budget(self, key: Key, obj: Obj, record: WorkflowRecord) -> None:
        """Create the PodDisruptionBudget of `spec.podDisruptionBudget`."""
        budget = make_budget(record, owner_reference(typed(obj)))
        if budget is None:
            return
        try:
            await self._api.create(PDBS, budget, key.namespace)
        except AlreadyExists:
            return
        except (Invalid, BadRequest, Forbidden) as error:
            words = f"the PodDisruptionBudget is not made: {error.message}"
            await self._events.record(typed(obj), "Warning", "PodDisruptionBudgetRefused", words)

    async def _end_budget(self, key: Key, record: WorkflowRecord) -> None:
        """Delete the PodDisruptionBudget of a run that has ended; one that this run has not made stays."""
        if not (record.document.get("spec") or {}).get("podDisruptionBudget"):
            return
        with contextlib.suppress(NotFound):
            budget = await self._api.get(PDBS, key.name, key.namespace)
            if is_of(budget, record.uid):
                await self._api.delete(PDBS, key.name, key.namespace, uid=budget["metadata"]["uid"])

    async def end(self, key: Key, record: WorkflowRecord) -> None:
        """Delete the budget, and the volumes as `spec.volumeClaimGC` says."""
        await self._end_budget(key, record)
        gc = (record.document.get("spec") or {}).get("volumeClaimGC") or {}
        if str(gc.get("strategy") or "") == "OnWorkflowCompletion" or record.phase == "Succeeded":
            for claim in await self._claim_names(key, record):
                await self._delete_claim(f"{key.name}-{claim}", key.namespace, record.uid)

    async def _delete_claim(self, name: str, namespace: str, uid: str) -> None:
        """Delete a volume that this run has made; one that another has made stays."""
        with contextlib.suppress(NotFound):
            claim = await self._api.get(PVCS, name, namespace)
            if is_of(claim, uid):
                await self._api.delete(PVCS, name, namespace, uid=claim["metadata"]["uid"])


def secret_name(workflow: str, token_digest: str) -> str:
    """Return the name of the Secret with the token of a workflow's pods. Another token has another Secret."""
    return f"{workflow}-token-{token_digest.removeprefix('sha256:')[:DIGEST_CHARACTERS]}"


def is_quota(error: ApiError) -> bool:
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


def _claim_templates(record: WorkflowRecord) -> dict[str, Mapping[str, Any]]:
    """The volume claim templates by name; tags in them are filled with values of the workflow. Raises
    TextError.
    """
    templates = record.document["spec"]["volumeClaimTemplates"]
    return {
        str((template.get("metadata") or {}).get("name")): template
        for template in substitute(list(templates), globals_of(record))
    }
