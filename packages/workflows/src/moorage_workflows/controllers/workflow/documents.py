"""The document of a run: its manifest, and the templates and the repository that it refers to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage.controllers.base import Shared
from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.errors import ApiError, MoorageError, NotFound
from moorage_kube.meta import Key
from moorage_kube.resources import CONFIGMAPS, Obj
from moorage_workflows.decide.workflows.metadata import with_metadata
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.repository import REPOSITORY, read_repository, reference_of
from moorage_workflows.decide.workflows.templates import (
    TemplateKey,
    TemplateMissing,
    choices_of,
    missing,
    named_by_tags,
    stored,
)

CHOICES_MAX = 200  # WorkflowTemplates that a tag may name: a run keeps them all

Check = Callable[[Mapping[str, Any], Mapping[TemplateKey, Mapping[str, Any]]], Sequence[str]]
"""Faults of a document with the templates that it refers to, each as one sentence; none where it may run."""


class Documents:
    """Reads documents of workflows that begin. `check`: finds errors before a run begins."""

    def __init__(self, shared: Shared, check: Check) -> None:
        self._api, self._evaluation, self._check = shared.api, shared.evaluation, check

    async def read(self, key: Key, obj: Obj) -> tuple[Obj, Sequence[str]]:
        """(the manifest with everything that the run needs, the errors in it)."""
        own = {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind} | {
            name: value for name, value in obj.items() if name in ("metadata", "spec")
        }
        own["metadata"] = {name: value for name, value in own["metadata"].items() if name != "managedFields"}
        own = normalise(own)
        others: dict[TemplateKey, Mapping[str, Any]] = {}
        faults: list[str] = []
        looked: set[TemplateKey] = set()
        while wanted := missing(own, others) - looked:
            for template in sorted(wanted):
                looked.add(template)
                resource = CLUSTER_WORKFLOW_TEMPLATES if template.cluster else WORKFLOW_TEMPLATES
                with contextlib.suppress(NotFound):
                    others[template] = normalise(
                        await self._api.get(resource, template.name, None if template.cluster else key.namespace)
                    )
        document = own
        try:
            faults += await self._evaluation.call(key.namespace, f"Workflow {key}", self._check, own, others)
            document = stored(own, others, await self._choices(key, own, others))
            if (document.get("spec") or {}).get("workflowMetadata"):
                document = await self._evaluation.call(key.namespace, f"Workflow {key}", with_metadata, document)
            reference = reference_of(document.get("spec") or {})
            config = await self._config_map(reference.config_map, key.namespace)
            if (repository := read_repository(reference, config)) is not None:
                document[REPOSITORY] = repository
        except ApiError:
            raise
        except (MoorageError, TemplateMissing) as error:
            faults.append(error.message)
        return document, faults

    async def _choices(
        self, key: Key, own: Mapping[str, Any], others: Mapping[TemplateKey, Mapping[str, Any]]
    ) -> Mapping[TemplateKey, Mapping[str, Any]]:
        """The candidates of a `templateRef` with tags: all templates that exist now and can be run."""
        pool: dict[TemplateKey, Mapping[str, Any]] = {}
        for cluster in set().union(*(named_by_tags(document) for document in (own, *others.values()))):
            resource = CLUSTER_WORKFLOW_TEMPLATES if cluster else WORKFLOW_TEMPLATES
            listed = await self._api.list(resource, None if cluster else key.namespace)
            for item in listed.items:
                document = normalise({**item, "apiVersion": resource.api_version, "kind": resource.kind})
                pool[TemplateKey(cluster, item["metadata"]["name"])] = document
        if len(pool) > CHOICES_MAX:
            raise TemplateMissing(
                ("spec", "templates"), "", f"a templateRef is named by tags, and there are {len(pool)} templates:"
                f" at most {CHOICES_MAX} may be chosen from"
            )  # fmt: skip
        what = f"the templates of Workflow {key}"
        return await self._evaluation.call(key.namespace, what, choices_of, pool, others, self._check)

    async def _config_map(self, name: str, namespace: str) -> Obj | None:
        """Return a ConfigMap; None if it does not exist."""
        try:
            return await self._api.get(CONFIGMAPS, name, namespace)
        except NotFound:
            return None
