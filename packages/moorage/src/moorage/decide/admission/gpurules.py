"""The guardrails on GPUs: users of GPU nodes, and types and counts that all nodes lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moorage.decide.admission.fields import Path, at, listed, mapping, sequence, shown_value
from moorage.decide.admission.findings import Filled, Finding, Subject
from moorage.decide.admission.gpufacts import Facts
from moorage.decide.admission.templates import Template, wants_gpu
from moorage.model.names import GPU_PRESENT_LABEL, GPU_TYPE_LABELS
from moorage_kube.resources import Obj
from moorage_kube.scheduling import is_gpu, pod_requests

_REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
_REQUIRED: Path = ("affinity", "nodeAffinity", _REQUIRED_TERMS)


def keeping_off(affinity: Any, away: Sequence[Obj]) -> Obj:
    """A node affinity with the label expressions added to each alternative that it requires."""
    required = mapping(mapping(affinity).get(_REQUIRED_TERMS))
    terms = required.get("nodeSelectorTerms") or [{"matchExpressions": ()}]
    # terms are alternatives: each must keep off; an empty one matches no node
    kept = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *away]} if term else term
        for term in terms
    ]
    return {**mapping(affinity), _REQUIRED_TERMS: {**required, "nodeSelectorTerms": kept}}


def gpu_nodes(subject: Subject) -> Iterator[Finding]:
    template = subject.template
    if template.is_guest or wants_gpu(container for _, container in template.containers):
        return  # a guest is sent to the node of its machine
    for where, value in _chosen_gpu_nodes(template):
        yield Finding("gpuNodes", where, value, "chooses GPU nodes, but no container asks for a GPU")
        return
    if subject.away and not template.spec.get("nodeName") and not _keeps_off(template.spec, subject.away):
        message = "nothing keeps it off GPU nodes, and no container asks for a GPU"
        yield Finding("gpuNodes", (*template.path, "affinity", "nodeAffinity"), "", message)


def fill_gpu_nodes(subject: Subject) -> Iterator[Filled]:
    template = subject.template
    if template.is_guest or template.spec.get("nodeName"):
        return
    if wants_gpu(container for _, container in template.containers):
        return
    if not subject.away or _keeps_off(template.spec, subject.away) or any(_chosen_gpu_nodes(template)):
        return
    affinity = keeping_off(at(template.spec, ("affinity", "nodeAffinity")), subject.away)
    where = (*template.path, "affinity", "nodeAffinity")
    yield Filled(Finding("gpuNodes", where, "", "keeps off GPU nodes"), affinity)


def _keeps_off(spec: Mapping[str, Any], away: Sequence[Obj]) -> bool:
    terms = sequence(at(spec, (*_REQUIRED, "nodeSelectorTerms")))
    return bool(terms) and all(
        all(expression in sequence(mapping(term).get("matchExpressions")) for expression in away)
        for term in terms
        if term
    )


def _chosen_gpu_nodes(template: Template) -> Iterator[tuple[Path, str]]:
    """The fields that demand a node with GPUs, each with its value."""
    for key, value in mapping(template.spec.get("nodeSelector")).items():
        if key in GPU_TYPE_LABELS or (key == GPU_PRESENT_LABEL and value == "true"):
            yield (*template.path, "nodeSelector", key), shown_value(value)
    terms = sequence(at(template.spec, (*_REQUIRED, "nodeSelectorTerms")))
    for number, term in enumerate(terms):
        for index, expression in enumerate(sequence(mapping(term).get("matchExpressions"))):
            label, wanted = mapping(expression).get("key"), mapping(expression).get("operator")
            positive = wanted == "Exists" or (wanted == "In" and sequence(expression.get("values")) != ["false"])
            if positive and (label in GPU_TYPE_LABELS or label == GPU_PRESENT_LABEL):
                path = (*_REQUIRED, "nodeSelectorTerms", number, "matchExpressions", index)
                yield (*template.path, *path), str(label)


def gpu_type(subject: Subject) -> Iterator[Finding]:
    if subject.facts is None:
        return
    for key, value in mapping(subject.template.spec.get("nodeSelector")).items():
        if key in GPU_TYPE_LABELS and str(value) not in (known := subject.facts.gpu_types.get(key, frozenset())):
            path = (*subject.template.path, "nodeSelector", key)
            yield Finding(
                "gpuType", path, shown_value(value), f"must be the GPU type of a node; available: {listed(known)}"
            )
    terms = sequence(at(subject.template.spec, (*_REQUIRED, "nodeSelectorTerms")))
    missing = [finding for number, term in enumerate(terms) if (finding := _missing_type(subject, number, term))]
    if missing and len(missing) == len(terms):  # terms are alternatives: one that can be met is enough
        yield missing[0]


def _missing_type(subject: Subject, number: int, term: Any) -> Finding | None:
    facts = subject.facts or Facts()
    for index, expression in enumerate(sequence(mapping(term).get("matchExpressions"))):
        key, values = mapping(expression).get("key"), sequence(mapping(expression).get("values"))
        if key in GPU_TYPE_LABELS and mapping(expression).get("operator") == "In":
            known = facts.gpu_types.get(str(key), frozenset())
            if not any(str(value) in known for value in values):
                steps = (*_REQUIRED, "nodeSelectorTerms", number, "matchExpressions", index, "values")
                message = f"must be the GPU type of a node; available: {listed(known)}"
                return Finding("gpuType", (*subject.template.path, *steps), ", ".join(map(str, values)), message)
    return None


def gpu_count(subject: Subject) -> Iterator[Finding]:
    if subject.facts is None:
        return
    template = subject.template
    try:
        asked = pod_requests(_as_pod(template))
    except (ValueError, TypeError, AttributeError):
        return  # `misshapen` reports it
    selected = mapping(template.spec.get("nodeSelector"))
    chosen = {key: selected[key] for key in GPU_TYPE_LABELS if key in selected}
    for resource, count in asked.items():
        if not is_gpu(str(resource)) or count <= 0:
            continue
        fitting = [shape for shape in subject.facts.shapes if shape.resource == resource]
        of_type = [shape for shape in fitting if chosen.items() <= shape.labels.items()]
        most = max((shape.count for shape in of_type or fitting), default=0)
        if count > most:
            path = next(
                (*path, "resources", "limits", resource)
                for path, container in template.containers
                for table in ("limits", "requests")
                if resource in mapping(at(container, ("resources", table)))
            )
            message = f"the largest node has {most}" if most else "no node offers any"
            yield Finding("gpuCount", path, str(count), f"can never be placed: {message}")


def _as_pod(template: Template) -> Obj:
    if not template.is_workflow:
        return template.spec
    return {"containers": [container for _, container in template.containers]}
