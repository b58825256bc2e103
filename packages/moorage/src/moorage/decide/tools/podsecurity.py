"""The parts of a manifest that a tenant's namespace refuses: Pod Security's judgement, by field.

Nothing of a cluster is read. Namespaces that can never be a tenant's are skipped: their pods may need the host, as
device plugins do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.decide.admission.fields import Path, at, mapping, sequence, shown_value
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.templates import WORKFLOWS, Template, templates_of
from moorage_kube.podsecurity import BASELINE, CAPABILITIES, violations
from moorage_kube.resources import Obj

RULE = "podSecurity"
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
FIX = "remove the field, or apply it in a namespace that is not a tenant's; for data, use a volume: moor volume"


def refused_by_tenants(kind: str, obj: Obj, level: str = BASELINE) -> Iterator[Finding]:
    """The fields that the Pod Security level refuses; a Finding of rule `shape` if a field cannot be checked."""
    for template in templates_of(kind, obj):
        pod, places = _pod_of(kind, obj, template)
        metadata = template.metadata[0][1] if template.metadata else {}
        try:
            for violation in violations(level, metadata, pod):
                message = f'a tenant\'s namespace refuses it: violates PodSecurity "{level}:latest": {violation}'
                paths = list(_fields(violation.reason, template, pod, places)) or [template.path]
                for path in paths:
                    field = at(obj, path)
                    value = "" if isinstance(field, (dict, list)) else shown_value(field)
                    yield Finding(RULE, path, value, message)
        except (AttributeError, TypeError, ValueError, OverflowError):
            message = "has a field of a wrong type among volumes, ports or security contexts"
            yield Finding("shape", template.path, "", message)


def _pod_of(kind: str, obj: Obj, template: Template) -> tuple[Obj, Mapping[str, Path]]:
    """The pod that a template creates, and the paths of its fields; a workflow's own fields apply to each pod."""
    if kind not in WORKFLOWS:
        return template.spec, {}
    root = WORKFLOWS[kind]
    spec = mapping(at(obj, root))
    pod: dict[str, Any] = {"containers": [container for _, container in template.containers]}
    places: dict[str, Path] = {}
    for name in (*HOST_NAMESPACES, "securityContext"):
        for owner, path in ((spec, root), (template.spec, template.path)):
            if owner.get(name) is not None:
                pod[name], places[name] = owner[name], (*path, name)
    pod["volumes"] = [*sequence(spec.get("volumes")), *sequence(template.spec.get("volumes"))]
    return pod, places


def _fields(reason: str, template: Template, pod: Obj, places: Mapping[str, Path]) -> Iterator[Path]:
    """The paths of the fields of a violation; none for those that many fields can break."""
    if reason == "host namespaces":
        yield from (places.get(name, (*template.path, name)) for name in HOST_NAMESPACES if pod.get(name))
    elif reason == "hostPath volumes" and not template.is_workflow:
        for index, volume in enumerate(sequence(pod.get("volumes"))):
            if volume.get("hostPath") is not None:
                yield (*template.path, "volumes", index, "hostPath")
    for path, container in template.containers:
        if reason == "hostPort":
            for index, port in enumerate(sequence(container.get("ports"))):
                if port.get("hostPort"):
                    yield (*path, "ports", index, "hostPort")
        elif reason == "privileged" and at(container, ("securityContext", "privileged")):
            yield (*path, "securityContext", "privileged")
        elif reason == "non-default capabilities":
            for index, name in enumerate(sequence(at(container, ("securityContext", "capabilities", "add")))):
                if name not in CAPABILITIES:
                    yield (*path, "securityContext", "capabilities", "add", index)
