"""Checks before a workflow or a template is created: fields, meaning, and features that Moorage supports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moorage.api.errors import ErrorCode
from moorage.decide.admission.fields import mapping
from moorage.evaluator.pool import Evaluation
from moorage.model.argo import CLUSTER_WORKFLOW_TEMPLATES, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Forbidden, NotFound, Problems
from moorage_kube.resources import CONFIGMAPS, Obj
from moorage_workflows.actions.workflows import Check
from moorage_workflows.decide.workflows.findings import Finding
from moorage_workflows.decide.workflows.images import unrunnable_images
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.semaphores import limit_findings, semaphore_limits
from moorage_workflows.decide.workflows.templates import TemplateKey, missing

PROBLEMS_MAX = 20  # in one answer; the others are counted
CONFIG_MAPS_MAX = 50  # that are looked at for limits of semaphores
TEMPLATES_MAX = 200  # that one workflow may need, directly and through others


def checks_of(
    api: Api,
    namespace: str,
    known: Sequence[Mapping[str, Any]] = (),
    *,
    evaluation: Evaluation,
    nodes: Iterable[Obj] = (),
) -> Check:
    """Return a check for documents of this namespace.

    The check reads the templates that a document refers to, except for the `known` ones, which come with the
    documents. `evaluation`: the process that runs it, because a user's text controls the work. `nodes`: those of
    the cluster; empty: images are not checked.
    """
    given = {
        TemplateKey(each.get("kind") == CLUSTER_WORKFLOW_TEMPLATES.kind, str(each["metadata"]["name"])): normalise(
            each
        )
        for each in known
        if isinstance(each.get("metadata"), Mapping) and each["metadata"].get("name")
    }

    async def check(document: Obj) -> Sequence[str]:
        from moorage_workflows.actions.workflowcheck import check_document

        others, knows_others = await _templates(api, namespace, document, given)
        is_run = document.get("kind") == WORKFLOWS.kind
        what = f"{document.get('kind')} {namespace}/{mapping(document.get('metadata')).get('name') or ''}"
        # first the text alone, then its images on this cluster
        findings = await evaluation.call(
            namespace, what, check_document, document, others, knows_others=knows_others, is_run=is_run
        )
        findings = [*findings, *unrunnable_images(document, nodes)]
        errors = [finding for finding in findings if finding.is_error]
        if errors:
            problems: list[tuple[str, str | None]] = [(str(finding), None) for finding in errors[:PROBLEMS_MAX]]
            if len(errors) > PROBLEMS_MAX:
                problems.append((f"and {len(errors) - PROBLEMS_MAX} more", "moor workflow lint FILE shows all"))
            fields = [finding.field for finding in errors[:PROBLEMS_MAX]]
            raise Problems(problems, code=ErrorCode.INVALID, field=fields[0], fields=fields)
        return [str(finding) for finding in [*findings, *await _limits(api, namespace, document)]]

    return check


async def _limits(api: Api, namespace: str, document: Obj) -> list[Finding]:
    """Return warnings for semaphores without a limit, if this user may read their ConfigMaps."""
    limits = list(semaphore_limits(document))[:CONFIG_MAPS_MAX]
    read: dict[tuple[str, str], Mapping[str, Any] | None] = {}
    for place, name in {(limit.namespace, limit.config_map) for limit in limits}:
        with contextlib.suppress(ApiError):
            try:
                read[place, name] = (await api.get(CONFIGMAPS, name, place or namespace)).get("data") or {}
            except NotFound:
                read[place, name] = None
    return limit_findings(limits, read)


async def _templates(
    api: Api, namespace: str, document: Obj, given: Mapping[TemplateKey, Mapping[str, Any]]
) -> tuple[dict[TemplateKey, Mapping[str, Any]], bool]:
    """Return the existing templates that a document needs, and whether all of them could be read."""
    others = dict(given)
    absent: set[TemplateKey] = set()
    knows_others, plain = True, normalise(document)
    while (wanted := missing(plain, others) - absent) and len(others) + len(absent) < TEMPLATES_MAX:
        for key in sorted(wanted):
            try:
                if key.cluster:
                    stored = await api.get(CLUSTER_WORKFLOW_TEMPLATES, key.name)
                else:
                    stored = await api.get(WORKFLOW_TEMPLATES, key.name, namespace)
            except NotFound:
                absent.add(key)
            except Forbidden:
                absent.add(key)
                knows_others = False
            else:
                others[key] = normalise(stored)
    return others, knows_others
