"""Apply a Job's podFailurePolicy to one failed pod.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a pod failure policy for one failed pod.

    `fail_job`: the message with which the whole Job fails, or None. `counts`: the failure counts towards
    backoffLimit.
    """

    counts: bool = True
    fail_job: str | None = None


def judge(policy: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> Verdict:
    """Apply the first rule that matches the failed pod; without such a rule the failure counts."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        action = rule.get("action")
        cause = _cause(rule, pod)
        if cause is None:
            continue
        match action:
            case "Ignore":
                return Verdict(counts=False)
            case "Count":
                return Verdict()
            case "FailJob":
                return Verdict(fail_job=f"{cause} matching FailJob rule at index {number}")
    return Verdict()


def _cause(rule: Mapping[str, Any], pod: Mapping[str, Any]) -> str | None:
    status, meta = pod.get("status") or {}, pod["metadata"]
    wanted = rule.get("onExitCodes")
    if wanted is not None:
        for container_status in (
            *(status.get("containerStatuses") or ()),
            *(status.get("initContainerStatuses") or ()),
        ):
            ended = (container_status.get("state") or {}).get("terminated")
            if ended is None or (
                wanted.get("containerName") and wanted["containerName"] != container_status.get("name")
            ):
                continue
            code = int(ended.get("exitCode") or 0)
            listed = code in (wanted.get("values") or ())
            if code != 0 and listed is (wanted.get("operator") == "In"):
                pod_name = f"{meta['namespace']}/{meta['name']}"
                return f"Container {container_status['name']} for pod {pod_name} failed with exit code {code}"
        return None
    for condition in status.get("conditions") or ():
        for pattern in rule.get("onPodConditions") or ():
            if condition.get("type") == pattern.get("type") and condition.get("status") == (
                pattern.get("status") or "True"
            ):
                return f"Pod {meta['namespace']}/{meta['name']} has condition {condition['type']}"
    return None
