"""Pod Security admission: the requirements that a namespace's labels set for pods.

https://kubernetes.io/docs/concepts/security/pod-security-admission/. `enforce` rejects pods; `warn` adds warnings
to writes of pods and of the pod templates of workloads. `audit` is only checked as a label: this server has no
audit log. Versions are only checked as labels, too; pods are always checked against the newest standard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.podsecurity import APPARMOR, CONTAINER_FIELDS, LEVELS, PREFIX, PRIVILEGED, violations
from moorage_kube.resources import NAMESPACES, PODS, Obj
from moorage_local.apiserver.pipeline.calls import Admission
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.pipeline.refusals import forbidden
from moorage_local.apiserver.types.fields import FieldErrors

MODES = ("enforce", "audit", "warn")
_LEVEL = re.compile("|".join(LEVELS))
_VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]*)")
TEMPLATES = {  # kinds with a pod template → its path
    ("", "podtemplates"): ("template",),
    ("", "replicationcontrollers"): ("spec", "template"),
    ("apps", "replicasets"): ("spec", "template"),
    ("apps", "deployments"): ("spec", "template"),
    ("apps", "statefulsets"): ("spec", "template"),
    ("apps", "daemonsets"): ("spec", "template"),
    ("batch", "jobs"): ("spec", "template"),
    ("batch", "cronjobs"): ("spec", "jobTemplate", "spec", "template"),
}


class PodSecurity:
    """Implements `pipeline.Admitter`.

    It comes after all admitters that change pods, so that it checks pods in the form that is stored.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def mutate(self, asked: Admission) -> Obj | None:
        return asked.obj

    async def validate(self, asked: Admission) -> None:
        """Raise Forbidden for a pod that its namespace does not allow, Invalid for a label with an unknown
        level.
        """
        obj, where = asked.obj, asked.kind.resource
        if obj is None or asked.operation not in ("CREATE", "UPDATE"):
            return
        if where == NAMESPACES and asked.subresource is None:
            _check_labels(asked, obj)
        elif where == PODS and _is_judged(asked):
            self._judge(asked, obj, enforced=True)
        elif (path := TEMPLATES.get((where.group, where.plural))) is not None and asked.subresource is None:
            template: Any = obj
            for field in path:
                template = (template or {}).get(field)
            if template:
                self._judge(asked, template, enforced=False)

    def _judge(self, asked: Admission, pod: Mapping[str, Any], *, enforced: bool) -> None:
        labels = self._labels(asked.namespace)
        metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
        level = labels.get(PREFIX + "enforce", PRIVILEGED)
        if enforced and (broken := violations(level, metadata, spec)):
            text = f'violates PodSecurity "{level}:latest": {", ".join(map(str, broken))}'
            raise forbidden(asked.kind.resource, asked.name, text)
        level = labels.get(PREFIX + "warn", PRIVILEGED)
        if broken := violations(level, metadata, spec):
            asked.call.warn(f'would violate PodSecurity "{level}:latest": {", ".join(map(str, broken))}')

    def _labels(self, namespace: str | None) -> Mapping[str, str]:
        kind = self._pipeline.kinds.of(NAMESPACES)
        obj = self._pipeline.peek(kind, namespace, None) if kind is not None and namespace else None
        return labels_of(obj) if obj is not None else {}


def _is_judged(asked: Admission) -> bool:
    """Whether to check the write: a new pod, an ephemeral container, another image or AppArmor profile.

    Other changes are harmless.

    As upstream, a changed image is checked: the pod may be older than the namespace's label.
    """
    if asked.operation == "CREATE":
        return asked.subresource is None
    if asked.subresource == "ephemeralcontainers":
        return True
    if asked.subresource is not None or asked.obj is None or asked.old is None:
        return False

    def profiles(pod: Obj) -> dict[str, str]:
        return {key: value for key, value in annotations_of(pod).items() if key.startswith(APPARMOR)}

    def images(pod: Obj) -> list[Any]:
        spec = pod.get("spec") or {}
        return [container.get("image") for field in CONTAINER_FIELDS[:2] for container in spec.get(field) or ()]

    return profiles(asked.obj) != profiles(asked.old) or images(asked.obj) != images(asked.old)


def _check_labels(asked: Admission, namespace: Obj) -> None:
    """Check new labels only.

    A namespace that has an older invalid label can still be changed; it counts as `restricted`.
    """
    labels, before = labels_of(namespace), labels_of(asked.old) if asked.old is not None else {}
    errors = FieldErrors()
    for mode in MODES:
        for key, pattern, allowed in (
            (PREFIX + mode, _LEVEL, f"must be one of {', '.join(LEVELS)}"),
            (f"{PREFIX}{mode}-version", _VERSION, 'must be "latest" or "v1.x"'),
        ):
            value = labels.get(key)
            if value is not None and value != before.get(key) and not pattern.fullmatch(value):
                errors.invalid(f"metadata.labels[{key}]", value, allowed)
    errors.raise_if_any(asked.kind.resource, asked.name)
