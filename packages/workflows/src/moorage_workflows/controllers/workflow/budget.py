"""The PodDisruptionBudget of a workflow. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from moorage.model.argo import WORKFLOW_LABEL
from moorage_kube.resources import PDBS, Obj
from moorage_workflows.model.workflow import WorkflowRecord


def make_budget(record: WorkflowRecord, owner: Mapping[str, Any]) -> Obj | None:
    """The PodDisruptionBudget of `spec.podDisruptionBudget`; None if there is none.

    With any selector, it is for pods of this workflow only: a user who may submit a workflow need not have
    the right to protect other pods from eviction.
    """
    given = (record.document.get("spec") or {}).get("podDisruptionBudget")
    if not given:
        return None
    spec: Obj = copy.deepcopy(dict(given))
    selector = spec.get("selector") or {}
    labels = {**(selector.get("matchLabels") or {}), WORKFLOW_LABEL: record.name}
    spec["selector"] = {**selector, "matchLabels": labels}
    return {
        "apiVersion": PDBS.api_version,
        "kind": PDBS.kind,
        "metadata": {
            "name": record.name,
            "namespace": record.namespace,
            "labels": {WORKFLOW_LABEL: record.name},
            "ownerReferences": [dict(owner)],
        },
        "spec": spec,
    }
