"""The user and group that a run's command runs as: `UID` or `UID:GID`, and those in a pod's spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import ClusterFacts, RunRequest
from moorage_kube.resources import Obj

ID_MAX = 2**31 - 1  # of Kubernetes
HOME = {"HOME": "/tmp", "USER": "moorage", "LOGNAME": "moorage"}  # no image knows such a user
_FORM = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")


class RunUser(Struct, frozen=True):
    """Numbers, since a cluster cannot look up names."""

    uid: int
    gid: int

    @property
    def context(self) -> Obj:
        """The pod's security context. Volumes get the group: otherwise only root could write to them.

        https://kubernetes.io/docs/tasks/configure-pod-container/security-context/
        """
        if self.uid == 0:
            return {"runAsUser": 0, "runAsGroup": self.gid}
        context: Obj = {"runAsUser": self.uid, "runAsGroup": self.gid, "runAsNonRoot": True}
        return context | ({"fsGroup": self.gid, "fsGroupChangePolicy": "OnRootMismatch"} if self.gid else {})

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for programs that look for their user; root has its own home."""
        return HOME if self.uid else {}


def user_of_request(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> RunUser | None:
    """The requested user. None: the image's, or admission's choice."""
    text = request.user
    if text is None:
        return None
    match = _FORM.fullmatch(text)
    numbers = [int(number) for number in match.groups() if number is not None] if match else []
    if not numbers or max(numbers) > ID_MAX:
        hint = "write UID or UID:GID, such as 1000 or 1000:100; `docker run IMAGE id` prints those of a user"
        remarks.refuse("user", f"invalid user {text!r}: use numbers from 0 to {ID_MAX}", hint)
        return None
    if facts.process_runtime:
        remarks.note("user has no effect on this cluster: commands run as the user who started it")
        return None
    return RunUser(numbers[0], numbers[-1])


def user_of_pod(spec: Mapping[str, Any]) -> str:
    """The user in a pod's spec, as `UID:GID`; "" if it has none."""
    context = spec.get("securityContext") or {}
    uid, gid = context.get("runAsUser"), context.get("runAsGroup")
    if uid is None:
        return ""
    return str(uid) if gid is None else f"{uid}:{gid}"
