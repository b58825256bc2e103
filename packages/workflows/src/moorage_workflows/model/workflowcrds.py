"""CustomResourceDefinitions of Argo's kinds, for clusters where Argo is not installed.

Names, scopes and columns are Argo's, so that kubectl and its manifests work the same. The schema keeps every
field: the meaning of a field is checked when a workflow is submitted and when it runs, not here.
https://github.com/argoproj/argo-workflows/tree/main/manifests/base/crds/minimal
"""

from __future__ import annotations

from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, CRON_WORKFLOWS, KINDS, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.resources import Obj, Resource

OWN_LABELS = {"app.kubernetes.io/managed-by": "moorage", "app.kubernetes.io/part-of": "moorage"}
OWN_DESCRIPTION = "Kind of Argo Workflows, as Moorage runs it. Fields: https://argo-workflows.readthedocs.io"

_SHORT_NAMES = {
    WORKFLOWS: ("wf",),
    WORKFLOW_TEMPLATES: ("wftmpl",),
    CLUSTER_WORKFLOW_TEMPLATES: ("clusterwftmpl", "cwft"),
    CRON_WORKFLOWS: ("cwf", "cronwf"),
}
_AGE = ("Age", "date", ".metadata.creationTimestamp", "")
_COLUMNS = {
    WORKFLOWS: (
        ("Status", "string", ".status.phase", "Phase of the run."),
        ("Age", "date", ".status.startedAt", "When it began."),
        ("Message", "string", ".status.message", "Why it is in this phase."),
    ),
    WORKFLOW_TEMPLATES: (_AGE,),
    CLUSTER_WORKFLOW_TEMPLATES: (_AGE,),
    CRON_WORKFLOWS: (
        ("Schedules", "string", ".spec.schedules", "When it starts a workflow."),
        ("Timezone", "string", ".spec.timezone", "Time zone of the schedules."),
        ("Suspended", "boolean", ".spec.suspend", "Whether it starts nothing for now."),
        ("Last", "date", ".status.lastScheduledTime", "When it last started one."),
        _AGE,
    ),
}


def workflow_crds() -> list[Obj]:
    """Return the four definitions, ready to create, sorted by name. They have no status subresource."""
    return sorted((_crd(resource) for resource in KINDS), key=lambda crd: str(crd["metadata"]["name"]))


def _crd(resource: Resource) -> Obj:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}", "labels": dict(OWN_LABELS)},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": list(_SHORT_NAMES[resource]),
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS[resource]],
                    "schema": {"openAPIV3Schema": _schema(resource)},
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, description: str) -> Obj:
    column = {"name": name, "type": kind, "jsonPath": path}
    return column | ({"description": description} if description else {})


def _schema(resource: Resource) -> Obj:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    parts = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": free,
    }
    if resource in (WORKFLOWS, CRON_WORKFLOWS):
        parts["status"] = free
    return {
        "type": "object",
        "description": OWN_DESCRIPTION,
        "required": ["metadata", "spec"],
        "properties": parts,
        "x-kubernetes-preserve-unknown-fields": True,
    }
