"""The controller that runs workflows on a cluster: Argo's own, or Moorage. docs/design/0017-workflows.md"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from moorage_kube.meta import labels_of

NAME = "workflow-controller"  # of the Deployment in Argo's own manifests
LABELS = (("app.kubernetes.io/name", NAME), ("app", NAME))  # one of them: Helm's and Argo's


class Controller(StrEnum):
    """The controller that runs the workflows of a cluster. UNKNOWN: the objects that show it may not be read."""

    MOORAGE = "moorage"
    ARGO = "argo"
    UNKNOWN = "unknown"


def is_live_deployment(deployment: Mapping[str, Any]) -> bool:
    """Whether a Deployment runs Argo's controller and has a ready pod."""
    labels = labels_of(deployment)
    is_argos = (deployment.get("metadata") or {}).get("name") == NAME or any(
        labels.get(key) == value for key, value in LABELS
    )
    return is_argos and int((deployment.get("status") or {}).get("readyReplicas") or 0) > 0
