"""`spec.workflowMetadata`: the labels and annotations that a run gives to its Workflow.

https://argo-workflows.readthedocs.io/en/latest/fields/#workflowmetadata
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moorage.decide.admission.fields import Path, mapping
from moorage.decide.evaluation import TextError
from moorage.model.argo import COMPLETED_LABEL, CRON_LABEL, INSTANCE_LABEL, PHASE_LABEL, SCHEDULED_ANNOTATION
from moorage_kube.resources import Obj
from moorage_kube.selectors import is_label_key, is_label_value
from moorage_workflows.decide.workflows.graph.scopes import globals_of
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.model.cronworkflow import is_monitor_key
from moorage_workflows.model.workflow import WorkflowRecord

_OURS = frozenset((PHASE_LABEL, COMPLETED_LABEL, INSTANCE_LABEL, CRON_LABEL, SCHEDULED_ANNOTATION))


def is_reserved(key: str) -> bool:
    """Whether only the services set a label or annotation of a Workflow."""
    return key in _OURS or (key.startswith("moorage.dev/") and not is_monitor_key(key))


def reserved_keys(spec: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths, below the spec, of labels and annotations that a run does not set."""
    for field, table in mapping(spec.get("workflowMetadata")).items():
        yield from (("workflowMetadata", str(field), str(key)) for key in mapping(table) if is_reserved(str(key)))


def with_metadata(document: Mapping[str, Any]) -> Obj:
    """A stored document whose metadata has the labels and annotations of `spec.workflowMetadata`.

    As in Argo, tags are replaced, and an expression of `labelsFrom` may read the labels. Raises TextError.
    """
    made, meta = dict(document), dict(mapping(document.get("metadata")))
    given = mapping(mapping(document.get("spec")).get("workflowMetadata"))
    record = WorkflowRecord(
        uid=str(meta.get("uid") or ""),
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        created_at=str(meta.get("creationTimestamp") or ""),
        document=document,
    )
    scope = globals_of(record)
    # fixed values first: expressions may read them
    for word in ("labels", "annotations"):
        own = substitute(_allowed(given.get(word)), scope)
        scope |= {f"workflow.{word}.{key}": value for key, value in own.items()}
        if own:
            meta[word] = {**mapping(meta.get(word)), **own}
    computed = {key: _computed(key, source, scope) for key, source in mapping(given.get("labelsFrom")).items()}
    if labels := _allowed(computed):
        meta["labels"] = {**mapping(meta.get("labels")), **labels}
    # the API server would refuse the whole status
    for key in written(made | {"metadata": meta}).get("labels", ()):
        if not is_label_key(key) or not is_label_value(value := str(meta["labels"][key])):
            raise TextError(f"spec.workflowMetadata: {key}={value!r} is not a label that Kubernetes allows")
    return made | {"metadata": meta}


def written(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the labels and annotations that `with_metadata` set in a document."""
    given, meta = mapping(mapping(document.get("spec")).get("workflowMetadata")), mapping(document.get("metadata"))
    named = {"labels": [*mapping(given.get("labels")), *mapping(given.get("labelsFrom"))]}
    named["annotations"] = list(mapping(given.get("annotations")))
    tables = {
        word: {
            key: str(value)
            for key, value in mapping(meta.get(word)).items()
            if key in keys and not is_reserved(key)
        }
        for word, keys in named.items()
    }
    return {word: table for word, table in tables.items() if table}


def _allowed(table: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in mapping(table).items() if not is_reserved(str(key))}


def _computed(key: str, source: Any, scope: Mapping[str, str]) -> str:
    value = evaluate(str(mapping(source).get("expression") or ""), scope)
    if not isinstance(value, str):
        raise TextError(
            f"spec.workflowMetadata.labelsFrom.{key}: the expression must return a string, not {value!r}"
        )
    return value
