"""The guardrails on disks, annotations and commands of pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moorage.decide.admission.amounts import can_set, is_more
from moorage.decide.admission.fields import at, mapping, sequence, shown_value
from moorage.decide.admission.findings import Filled, Finding, Subject

# annotations that Kubernetes does not read any more, and their replacements
DEAD_ANNOTATIONS: Mapping[str, str] = {
    "scheduler.alpha.kubernetes.io/critical-pod": "priorityClassName (removed in 1.16)",
    "scheduler.alpha.kubernetes.io/affinity": "spec.affinity (removed in 1.8)",
    "scheduler.alpha.kubernetes.io/tolerations": "spec.tolerations (removed in 1.8)",
    "scheduler.alpha.kubernetes.io/name": "spec.schedulerName (removed in 1.8)",
    "pod.alpha.kubernetes.io/init-containers": "spec.initContainers (removed in 1.8)",
    "pod.beta.kubernetes.io/init-containers": "spec.initContainers (removed in 1.8)",
    "security.alpha.kubernetes.io/sysctls": "spec.securityContext.sysctls (removed in 1.11)",
    "security.alpha.kubernetes.io/unsafe-sysctls": "spec.securityContext.sysctls (removed in 1.11)",
    "seccomp.security.alpha.kubernetes.io/pod": "spec.securityContext.seccompProfile (removed in 1.27)",
    "container.seccomp.security.alpha.kubernetes.io/*": "securityContext.seccompProfile (removed in 1.27)",
    "container.apparmor.security.beta.kubernetes.io/*": "securityContext.appArmorProfile (since 1.30)",
    "alpha.kubernetes.io/nvidia-gpu-driver": "resources.limits with nvidia.com/gpu (removed in 1.11)",
}


def ephemeral_storage(subject: Subject) -> Iterator[Finding]:
    for path, container in subject.template.containers:
        if subject.template.asked(container, "limits", "ephemeral-storage") is None:
            message = "is not set: its files can fill the node's disk, and all pods there are evicted"
            yield Finding("ephemeralStorage", (*path, "resources", "limits", "ephemeral-storage"), "", message)


def fill_ephemeral_storage(subject: Subject) -> Iterator[Filled]:
    default = subject.settings.get("default")
    for path, container in subject.template.containers:
        if subject.template.asked(container, "limits", "ephemeral-storage") is not None:
            continue
        asked = at(container, ("resources", "requests", "ephemeral-storage"))
        value = default if asked is None or is_more(default, asked) else asked
        if value is not None and can_set(container, "limits"):
            where = (*path, "resources", "limits", "ephemeral-storage")
            yield Filled(Finding("ephemeralStorage", where, "", f"set to {value}"), str(value))


def unsupported_annotations(subject: Subject) -> Iterator[Finding]:
    dead = dict(DEAD_ANNOTATIONS) | {str(pattern): "" for pattern in sequence(subject.settings.get("annotations"))}
    for path, meta in subject.template.metadata:
        for key, value in mapping(meta.get("annotations")).items():
            for pattern, instead in dead.items():
                matches = str(key).startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern
                if matches:
                    message = "does nothing here" + (f"; use {instead}" if instead else "")
                    yield Finding(
                        "unsupportedAnnotations", (*path, "annotations", str(key)), shown_value(value), message
                    )
                    break


def missing_command(subject: Subject) -> Iterator[Finding]:
    for path, container in subject.template.containers:
        if "initContainers" in path or container.get("command"):
            continue
        message = "is not set: the program depends on the image only, and changes with it"
        yield Finding("missingCommand", (*path, "command"), "", message)
