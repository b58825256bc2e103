"""Data about the GPUs of a cluster. Guardrail rules compare requests with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from moorage.decide.admission.amounts import is_quantity
from moorage.decide.admission.fields import mapping
from moorage.model.names import GPU_TYPE_LABELS
from moorage.model.policy import Policy
from moorage_kube.quantity import amount
from moorage_kube.scheduling import NodeInfo, is_gpu


class GpuShape(Struct, frozen=True, kw_only=True):
    """GPUs of some node: the number of one GPU resource, and the node's type labels."""

    labels: Mapping[str, str]
    resource: str
    count: int


class Facts(Struct, frozen=True, kw_only=True):
    """The facts about the cluster that a rule may need."""

    gpu_types: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by label
    shapes: tuple[GpuShape, ...] = ()


def facts_of(nodes: Iterable[NodeInfo]) -> Facts:
    """The GPU types of the cluster, and for each type the largest number of GPUs of one node."""
    types: dict[str, set[str]] = {}
    shapes: dict[tuple[Any, ...], GpuShape] = {}
    for node in nodes:
        labels = {key: node.labels[key] for key in GPU_TYPE_LABELS if key in node.labels}
        for key, value in labels.items():
            types.setdefault(key, set()).add(value)
        for resource, count in node.allocatable.items():
            if is_gpu(resource) and count > 0:
                known = (tuple(sorted(labels.items())), resource, count)
                shapes[known] = GpuShape(labels=labels, resource=resource, count=count)
    return Facts(
        gpu_types={key: frozenset(values) for key, values in types.items()},
        shapes=tuple(shapes[key] for key in sorted(shapes)),
    )


def with_expected(facts: Facts | None, policy: Policy) -> Facts | None:
    """The facts with the nodes that a policy expects. Without facts, GPUs were not asked for at all."""
    if facts is None or not policy.expected_nodes:
        return facts
    types = {key: set(values) for key, values in facts.gpu_types.items()}
    shapes = list(facts.shapes)
    for node in policy.expected_nodes:
        stated = mapping(node.get("labels"))
        labels = {key: str(stated[key]) for key in GPU_TYPE_LABELS if key in stated}
        for key, value in labels.items():
            types.setdefault(key, set()).add(value)
        for resource, text in mapping(node.get("resources")).items():
            if is_gpu(str(resource)) and is_quantity(text) and (count := amount(str(resource), text)) > 0:
                shapes.append(GpuShape(labels=labels, resource=str(resource), count=count))
    return Facts(gpu_types={key: frozenset(values) for key, values in types.items()}, shapes=tuple(shapes))
