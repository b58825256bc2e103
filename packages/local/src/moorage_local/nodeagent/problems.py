"""Reasons why a pod of this node cannot start, with the kubelet's names."""

from __future__ import annotations

import os

from moorage_kube.resources import Obj
from moorage_local.nodeagent.podstate import Problems
from moorage_local.podspecs import containers_of

DEADLINE_REASON = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


def not_written(pod: Obj, error: OSError) -> Problems:
    """Return the problem of a pod whose folder cannot be written, usually because the disk is full."""
    message = f"the pod's folder cannot be written: {os.strerror(error.errno or 0).lower()}"
    return {container["name"]: ("CreateContainerError", message) for container in containers_of(pod["spec"])}
