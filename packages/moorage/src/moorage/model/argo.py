"""Argo's kinds and labels, as the platform finds them on pods and their owners. The engine is in another package.

The kinds are `argoproj.io/v1alpha1`: https://argo-workflows.readthedocs.io/en/latest/fields/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moorage_kube.meta import labels_of
from moorage_kube.resources import Resource

GROUP, VERSION = "argoproj.io", "v1alpha1"
WORKFLOWS = Resource(GROUP, VERSION, "workflows", "Workflow")
WORKFLOW_TEMPLATES = Resource(GROUP, VERSION, "workflowtemplates", "WorkflowTemplate")
CLUSTER_WORKFLOW_TEMPLATES = Resource(
    GROUP, VERSION, "clusterworkflowtemplates", "ClusterWorkflowTemplate", namespaced=False
)
CRON_WORKFLOWS = Resource(GROUP, VERSION, "cronworkflows", "CronWorkflow")
KINDS = (WORKFLOWS, WORKFLOW_TEMPLATES, CLUSTER_WORKFLOW_TEMPLATES, CRON_WORKFLOWS)

# Argo's own words, on workflows and their pods
INSTANCE_LABEL = "workflows.argoproj.io/controller-instanceid"  # its controller; others ignore it
OUR_INSTANCE = "moorage"
WORKFLOW_LABEL = "workflows.argoproj.io/workflow"  # on a pod: its Workflow
PHASE_LABEL = "workflows.argoproj.io/phase"
COMPLETED_LABEL = "workflows.argoproj.io/completed"  # "true" when it has ended
CRON_LABEL = "workflows.argoproj.io/cron-workflow"  # on a Workflow: the CronWorkflow it is of
SCHEDULED_ANNOTATION = "workflows.argoproj.io/scheduled-time"  # with it, RFC 3339: its slot
NODE_NAME_ANNOTATION = "workflows.argoproj.io/node-name"
NODE_ID_ANNOTATION = "workflows.argoproj.io/node-id"

POD_FINALIZER = "moorage.dev/workflow"  # on a step's pod, until its end is recorded
FINALIZER = "moorage.dev/workflow"  # on a Workflow, until its pods are released
ARTIFACT_FINALIZER = "workflows.argoproj.io/artifact-gc"  # Argo's, on a Workflow until its artifacts are deleted


_GROUP = re.compile(r"\[\d+\]$")  # of steps that begin together, in the name of a node


def is_ours(obj: Mapping[str, Any]) -> bool:
    """Whether Moorage has adopted a Workflow or CronWorkflow. Argo's controller ignores it then."""
    return labels_of(obj).get(INSTANCE_LABEL) == OUR_INSTANCE


def is_free(obj: Mapping[str, Any]) -> bool:
    """Whether the object has no controller yet.

    Argo's controller adopts it where it is installed, else Moorage does.
    """
    return not labels_of(obj).get(INSTANCE_LABEL)


def step_path(node_name: str, workflow: str) -> str:
    """The readable path of a node: without the workflow's name and the numbers of step groups.

    `train-x7[0].fit(1:b)[0].eval` of `train-x7` becomes `fit(1:b).eval`. The workflow's root node has the
    workflow's name.
    """
    parts = [_GROUP.sub("", part) for part in _parts(node_name.removeprefix(workflow))]
    return ".".join(part for part in parts if part) or node_name


def is_step(path: str, wanted: str) -> bool:
    """Whether `wanted` names this step: by the whole path, its last part, or either without the parentheses."""
    last = _parts(path)[-1]
    return wanted in (path, last) or wanted in (bare_path(path), bare_path(last))


def _parts(path: str) -> list[str]:
    """Split a path at its dots. A dot in parentheses belongs to the item of a loop."""
    parts, depth = [""], 0
    for character in path:
        depth += (character == "(") - (character == ")")
        if character == "." and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def bare_path(path: str) -> str:
    """A step's path without loop items and attempt numbers."""
    return ".".join(part.partition("(")[0] for part in _parts(path))
