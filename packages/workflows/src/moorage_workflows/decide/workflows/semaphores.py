"""Which ConfigMaps hold the limits of a document's semaphores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage_workflows.decide.workflows.findings import Finding, Severity
from moorage_workflows.decide.workflows.graph.locks import LIMITS_CONFIGMAP, limit_of
from moorage_workflows.decide.workflows.scopes import has_tag

RULE = "lock"


class SemaphoreLimit(Struct, frozen=True):
    """The place of a semaphore's limit. `namespace` "": the namespace of the workflow."""

    path: Path
    namespace: str
    config_map: str
    key: str


def semaphore_limits(document: Mapping[str, Any]) -> Iterator[SemaphoreLimit]:
    """Yield the semaphores of the workflow and of its templates. Names with tags are left out."""
    spec = mapping(document.get("spec"))
    path: Path = ("spec",)
    if document.get("kind") == "CronWorkflow":
        spec, path = mapping(spec.get("workflowSpec")), ("spec", "workflowSpec")
    yield from _of(spec, path)
    yield from _of(mapping(spec.get("templateDefaults")), (*path, "templateDefaults"))
    for index, template in enumerate(sequence(spec.get("templates"))):
        yield from _of(mapping(template), (*path, "templates", index))


def _of(owner: Mapping[str, Any], path: Path) -> Iterator[SemaphoreLimit]:
    locks = mapping(owner.get("synchronization"))
    entries: list[tuple[Path, Any]] = [
        (("semaphores", index), each) for index, each in enumerate(sequence(locks.get("semaphores")))
    ]
    entries += [(("semaphore",), locks["semaphore"])] if locks.get("semaphore") else []
    for place, given in entries:
        semaphore = mapping(given)
        reference, database = mapping(semaphore.get("configMapKeyRef")), mapping(semaphore.get("database"))
        word = "database" if database else "configMapKeyRef"
        name = LIMITS_CONFIGMAP if database else str(reference.get("name") or "")
        key = str((database or reference).get("key") or "")
        namespace = str(semaphore.get("namespace") or "")
        if name and key and not any(map(has_tag, (name, key, namespace))):
            yield SemaphoreLimit((*path, "synchronization", *place, word), namespace, name, key)


def limit_findings(
    limits: Iterable[SemaphoreLimit], config_maps: Mapping[tuple[str, str], Mapping[str, Any] | None]
) -> list[Finding]:
    """Return warnings for missing limits.

    `config_maps`: the data of each ConfigMap that was read; None if missing.
    """
    findings = []
    for limit in limits:
        if (limit.namespace, limit.config_map) not in config_maps:
            continue
        data = config_maps[limit.namespace, limit.config_map]
        if fault := limit_of(limit.config_map, limit.key, data).fault:
            message = f"keeps it waiting until there is a limit: {fault}"
            findings.append(Finding(RULE, limit.path, "", message, Severity.WARNING))
    return findings
