"""The nodes on which a run may be placed: with GPUs of the requested type, or away from GPUs (R7, R8).

Impossible requests are refused: an unknown type or resource, more GPUs, CPU or memory than the largest node has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from moorage.decide.admission.gpunodes import away_from_gpus, gpu_free
from moorage.decide.runs.deviceclaims import claim_problem
from moorage.decide.runs.gputypes import DEFAULT_GPU_RESOURCE, gpu_label_of, gpu_types, matches_type
from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import ClusterFacts, RunRequest
from moorage.model.names import GPU_PRESENT_LABEL, GPU_TYPE_LABELS
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import amount, format_amount
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, is_gpu


class Placement(Struct, frozen=True):
    """The node affinity of a run (None: any node), and the resource name of its GPUs."""

    affinity: Obj | None
    gpu_resource: str = DEFAULT_GPU_RESOURCE


def place(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> Placement:
    """Choose nodes for the request. Faults are added to `remarks`."""
    wishes = (("gpuType", "GPU type", request.gpu_type), ("gpuResource", "GPU resource", request.gpu_resource))
    for field, noun, value in wishes:
        if value is not None and not request.gpus:
            hint = "give the number of GPUs too, such as --gpus 1"
            remarks.refuse(field, f"{noun} {value!r} without GPUs", hint)
            return Placement(None)
    if request.gpu_claim is not None:
        if request.gpus:
            hint = "the claim says how many GPUs it takes: leave out the number"
            remarks.refuse("gpuClaim", f"GPU claim {request.gpu_claim!r} together with a number of GPUs", hint)
        elif problem := claim_problem(request.gpu_claim, facts.claim_templates, request.namespace):
            remarks.refuse("gpuClaim", *problem)
        return Placement(None)  # its devices choose the node
    if request.gpus > 0:
        resource, terms = _with_gpus(request, facts, remarks)
        return Placement(_required(terms), resource)
    if facts.nodes is None:
        return Placement(_preferred_away_from_gpus())
    return Placement(_required(_away_from_gpus(request, facts, facts.nodes, remarks)))


def _required(terms: Sequence[Obj]) -> Obj | None:
    return (
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}} if terms else None
    )


# -- with GPUs


def _with_gpus(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> tuple[str, list[Obj]]:
    """The GPU resource, and the node selector terms for the GPU type.

    Without terms: any node with the resource.
    """
    nodes = facts.nodes if facts.nodes is not None else facts.gpu_nodes
    if nodes is None:
        if request.gpu_type is not None:
            remarks.refuse(
                "gpuType",
                f"GPU type {request.gpu_type!r} cannot be looked up: you may not list this cluster's nodes,"
                " and no Moorage server answered",
            )
        return request.gpu_resource or DEFAULT_GPU_RESOURCE, []  # the API server and the scheduler judge it
    offered = [node for node in nodes if node.gpus]
    if not offered:
        remarks.refuse("gpus", f"{_gpus(request.gpus)} asked for, but no node of this cluster has GPUs")
        return DEFAULT_GPU_RESOURCE, []
    named = None
    if request.gpu_resource is not None:
        named = _named_resource(request.gpu_resource, offered, remarks)
        if named is None:
            return DEFAULT_GPU_RESOURCE, []
        offered = [node for node in offered if node.allocatable.get(named)]
    terms: list[Obj] = []
    if request.gpu_type is not None:
        types = _types_meant(request.gpu_type, nodes, facts, remarks)
        if not types:
            return DEFAULT_GPU_RESOURCE, []
        terms = _terms_of(types, labels_known=facts.nodes is not None)
        values = [value for of_label in types.values() for value in of_label]
        if len(values) > 1:
            remarks.note(f"GPU type {request.gpu_type} allows {', '.join(values)}")
        offered = [node for node in offered if (label := gpu_label_of(node)) and label[1] in values]
    resource = named or _usual_resource(offered)
    _check_gpus(request, facts, offered, resource, remarks)
    return resource, terms


def _named_resource(asked: str, nodes: Sequence[NodeInfo], remarks: Remarks) -> str | None:
    """The GPU resource that a user named, in full or by the part after the "/"; refused when all nodes lack it."""
    known = sorted({name for node in nodes for name, count in node.allocatable.items() if is_gpu(name) and count})
    matching = [name for name in known if asked in (name, name.partition("/")[2])]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(matching)
        remarks.refuse("gpuResource", f"GPU resource {asked!r} is ambiguous: {names}", "write it in full")
    else:
        remarks.refuse(
            "gpuResource", f"GPU resource {asked!r} not found on any node", f"available: {', '.join(known)}"
        )
    return None


def _types_meant(
    asked: str, nodes: Sequence[NodeInfo], facts: ClusterFacts, remarks: Remarks
) -> dict[str, list[str]]:
    """The GPU types that the user's text matches: label → values. Empty, with a problem, if there are none."""
    types = gpu_types(nodes, facts.pods)
    exact = [gpu_type for gpu_type in types if gpu_type.value.lower() == asked.lower()]
    chosen = exact or [gpu_type for gpu_type in types if matches_type(asked, gpu_type.value)]
    if not chosen:
        known = ", ".join(str(gpu_type) for gpu_type in types)
        remarks.refuse(
            "gpuType",
            f"GPU type {asked!r} not found on any node",
            f"this cluster has {known}" if known else "its GPU nodes have no type label; leave out the GPU type",
        )
    values: dict[str, list[str]] = {}
    for gpu_type in chosen:
        if gpu_type.value not in values.setdefault(gpu_type.label, []):
            values[gpu_type.label].append(gpu_type.value)
    return values


def _terms_of(types: Mapping[str, list[str]], *, labels_known: bool) -> list[Obj]:
    """Alternatives that choose the types. Without `labels_known`, a type may be the value of any type label."""
    if not labels_known:
        every = [value for values in types.values() for value in values]
        types = {label: every for label in GPU_TYPE_LABELS}
    return [
        {"matchExpressions": [{"key": label, "operator": "In", "values": values}]}
        for label, values in types.items()
    ]


def _usual_resource(nodes: Sequence[NodeInfo]) -> str:
    """The resource where the user names none: whole NVIDIA GPUs, whole GPUs, or the most frequent resource."""
    totals: dict[str, int] = {}
    for node in nodes:
        for resource, count in node.allocatable.items():
            if is_gpu(resource):
                totals[resource] = totals.get(resource, 0) + count
    return max(totals, key=lambda name: (name == DEFAULT_GPU_RESOURCE, name.endswith("/gpu"), totals[name], name))


def _check_gpus(
    request: RunRequest, facts: ClusterFacts, nodes: Sequence[NodeInfo], resource: str, remarks: Remarks
) -> None:
    largest = max(nodes, key=lambda node: (node.allocatable.get(resource, 0), node.name))
    most = largest.allocatable.get(resource, 0)
    if request.gpus > most:
        kind = f" of type {request.gpu_type}" if request.gpu_type else ""
        remarks.refuse(
            "gpus",
            f"{_gpus(request.gpus)} asked for; the largest node with GPUs{kind} has {most} ({largest.name})",
            f"ask for at most {most}; `moor gpus` shows every node",
        )
    else:
        fitting = [node for node in nodes if node.allocatable.get(resource, 0) >= request.gpus]
        _check_size(request, facts, fitting, remarks)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


# -- without GPUs


def _preferred_away_from_gpus() -> Obj:
    """A preference for nodes without GPUs, because it is unknown whether such nodes exist."""
    preference = {"matchExpressions": [{"key": GPU_PRESENT_LABEL, "operator": "NotIn", "values": ["true"]}]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": preference}]}


def _away_from_gpus(
    request: RunRequest, facts: ClusterFacts, nodes: Sequence[NodeInfo], remarks: Remarks
) -> list[Obj]:
    away = away_from_gpus(nodes, own=facts.own_nodes)
    if away:
        _check_size(request, facts, gpu_free(nodes, own=facts.own_nodes), remarks, "without GPUs")
        return [{"matchExpressions": list(away)}]
    if any(not node.gpus and node.labels.get(GPU_PRESENT_LABEL) == "true" for node in nodes):
        remarks.note("nodes without GPUs have GPU labels here, so this run may be placed on GPU nodes")
    _check_size(request, facts, nodes, remarks)
    return []


def _check_size(
    request: RunRequest, facts: ClusterFacts, nodes: Sequence[NodeInfo], remarks: Remarks, kind: str = ""
) -> None:
    """Refuse more CPU or memory than the largest of these nodes has in total."""
    asked = {"cpu": request.cpu if request.cpu is not None else facts.defaults.cpu}
    if request.memory is None or request.memory.lower() != "none":
        asked["memory"] = request.memory if request.memory is not None else facts.defaults.memory
    for resource, text in asked.items():
        try:
            wanted = amount(resource, text)
        except QuantityError:
            continue  # refused already
        offering = [node for node in nodes if resource in node.allocatable]
        if not offering:
            continue
        largest = max(offering, key=lambda node: (node.allocatable[resource], node.name))
        most = largest.allocatable[resource]
        if wanted > most:
            noun = "CPUs" if resource == "cpu" else resource
            words = f" {kind}" if kind else (" with the GPUs asked for" if request.gpus else "")
            remarks.refuse(
                resource,
                f"{text} {noun} asked for;"
                f" the largest node{words} has {format_amount(resource, most)} ({largest.name})",
            )
