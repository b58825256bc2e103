"""LimitRange admission: defaults for containers, and limits for containers, pods and claims.

https://kubernetes.io/docs/concepts/policy/limit-range/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Admission
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.pipeline.refusals import forbidden

LIMITRANGES = Resource("", "v1", "limitranges", "LimitRange")
NOTE = "kubernetes.io/limit-ranger"


class LimitRanger:
    """Implements `pipeline.Admitter`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._ranges: dict[str, set[str]] = {}  # by namespace

    def load(self) -> None:
        """Read the stored limit ranges."""
        for limit_range in self._pipeline.every(self._kind()):
            self._ranges.setdefault(limit_range["metadata"]["namespace"], set()).add(
                limit_range["metadata"]["name"]
            )

    def stored(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        """Called after every write."""
        if kind.resource != LIMITRANGES:
            return
        if after is not None:
            self._ranges.setdefault(after["metadata"]["namespace"], set()).add(after["metadata"]["name"])
        elif before is not None:
            namespace = before["metadata"]["namespace"]
            self._ranges.get(namespace, set()).discard(before["metadata"]["name"])
            if not self._ranges.get(namespace):
                self._ranges.pop(namespace, None)

    async def mutate(self, asked: Admission) -> Obj | None:
        """Set the values that containers leave out, from each limit range in turn."""
        if asked.obj is None or not self._concerns(asked) or asked.kind.resource.plural != "pods":
            return None
        for limit_range in self._of(asked):
            fill_in(asked.obj, limit_range)
        return asked.obj

    async def validate(self, asked: Admission) -> None:
        """Check the object against the limit ranges. Raises Forbidden with the real server's message."""
        if asked.obj is None or not self._concerns(asked):
            return
        check = pod_problems if asked.kind.resource.plural == "pods" else claim_problems
        for limit_range in self._of(asked):
            problems = list(dict.fromkeys(check(asked.obj, limit_range)))
            if problems:
                name = asked.name or asked.obj["metadata"].get("name") or ""
                text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
                raise forbidden(asked.kind.resource, name, text)

    def _concerns(self, asked: Admission) -> bool:
        if not asked.namespace or asked.namespace not in self._ranges or asked.subresource:
            return False
        where = asked.kind.resource
        if where.group or asked.operation not in ("CREATE", "UPDATE"):
            return False
        if where.plural == "pods":
            return asked.operation == "CREATE"
        going = asked.old is not None and asked.old["metadata"].get("deletionTimestamp")
        return where.plural == "persistentvolumeclaims" and not going

    def _of(self, asked: Admission) -> list[Obj]:
        return self._pipeline.every(self._kind(), asked.namespace)

    def _kind(self) -> Kind:
        kind = self._pipeline.kinds.of(LIMITRANGES)
        assert kind is not None
        return kind


def fill_in(pod: Obj, limit_range: Mapping[str, Any]) -> None:
    """Set the missing defaults of the pod's containers, and list them in an annotation of the pod."""
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for limit in (limit_range.get("spec") or {}).get("limits") or ():
        if limit.get("type") == "Container":
            limits |= limit.get("default") or {}
            requests |= limit.get("defaultRequest") or {}
    spec = pod.setdefault("spec", {})
    changes = []
    for field, what in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(field) or ():
            resources = dict(container.get("resources") or {})
            for side, word, defaults in (("requests", "request", requests), ("limits", "limit", limits)):
                missing = {name: text for name, text in defaults.items() if name not in resources.get(side, {})}
                if missing:
                    resources[side] = {**resources.get(side, {}), **missing}
                    changes.append(f"{', '.join(sorted(missing))} {word} for {what} {container['name']}")
            if resources:
                container["resources"] = resources
    if changes:
        notes = pod["metadata"].setdefault("annotations", {})
        notes[NOTE] = f"LimitRanger plugin set: {'; '.join(changes)}"


def pod_problems(pod: Mapping[str, Any], limit_range: Mapping[str, Any]) -> list[str]:
    """Return the values of the pod that are outside the limit range."""
    from moorage_local.quota import pod_amounts, read_amounts

    spec = pod.get("spec") or {}
    problems: list[str] = []
    for limit in (limit_range.get("spec") or {}).get("limits") or ():
        if limit.get("type") == "Container":
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                resources = container.get("resources") or {}
                requests, limits = (read_amounts(resources.get(side)) for side in ("requests", "limits"))
                problems += _problems(limit, requests, limits)
        elif limit.get("type") == "Pod":
            bare = {key: value for key, value in spec.items() if key != "overhead"}
            problems += _problems(limit, pod_amounts(bare, "requests"), pod_amounts(bare, "limits"))
    return problems


def claim_problems(claim: Mapping[str, Any], limit_range: Mapping[str, Any]) -> list[str]:
    """Return the values of the claim that are outside the limit range; only its request counts."""
    from moorage_local.quota import read_amounts

    requests = read_amounts(((claim.get("spec") or {}).get("resources") or {}).get("requests"))
    problems: list[str] = []
    for limit in (limit_range.get("spec") or {}).get("limits") or ():
        if limit.get("type") != "PersistentVolumeClaim":
            continue
        for name, bound in read_amounts(limit.get("min")).items():
            problems += _too_little(limit["type"], name, bound, requests, {})
        for name, bound in read_amounts(limit.get("max")).items():
            what = f"maximum {name} usage per {limit['type']} is {bound}"
            if name not in requests:
                problems.append(f"{what}.  No request is specified")
            elif requests[name].value > bound.value:
                problems.append(f"{what}, but request is {requests[name]}")
    return problems


def _problems(limit: Mapping[str, Any], requests: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    from moorage_local.quota import read_amounts

    kind = limit["type"]
    problems: list[str] = []
    for name, bound in read_amounts(limit.get("min")).items():
        problems += _too_little(kind, name, bound, requests, limits)
    for name, bound in read_amounts(limit.get("max")).items():
        what = f"maximum {name} usage per {kind} is {bound}"
        if name not in limits:
            problems.append(f"{what}.  No limit is specified")
        elif limits[name].value > bound.value:
            problems.append(f"{what}, but limit is {limits[name]}")
        elif name in requests and requests[name].value > bound.value:
            problems.append(f"{what}, but request is {requests[name]}")
    for name, bound in read_amounts(limit.get("maxLimitRequestRatio")).items():
        what = f"{name} max limit to request ratio per {kind} is {bound}"
        if name not in requests or not requests[name].value:
            problems.append(f"{what}, but no request is specified or request is 0")
        elif name not in limits or not limits[name].value:
            problems.append(f"{what}, but no limit is specified or limit is 0")
        elif (ratio := limits[name].value / requests[name].value) > bound.value:
            problems.append(f"{what}, but provided ratio is {float(ratio):f}")
    return problems


def _too_little(
    kind: str, name: str, bound: Any, requests: Mapping[str, Any], limits: Mapping[str, Any]
) -> list[str]:
    what = f"minimum {name} usage per {kind} is {bound}"
    if name not in requests:
        return [f"{what}.  No request is specified"]
    if requests[name].value < bound.value:
        return [f"{what}, but request is {requests[name]}"]
    if name in limits and limits[name].value < bound.value:
        return [f"{what}, but limit is {limits[name]}"]
    return []
