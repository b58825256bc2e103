"""Why a pod can never run on the present cluster. Cordons and node troubles are temporary: they do not count."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.decide.explain.amounts import amount_text, gpus_text
from moorage.decide.explain.nodeconstraints import TRANSIENT_TAINTS, could_use
from moorage.decide.explain.types import Explanation, Refusal
from moorage.decide.usage.gpus import gpu_type
from moorage.model.names import MACHINE_GROUP_LABEL
from moorage_kube.quantity import format_amount
from moorage_kube.scheduling import NodeInfo, PodInfo, is_extended, is_gpu, refusal_by_labels


def refused_for_ever(me: PodInfo, base: Explanation, nodes: Sequence[NodeInfo]) -> tuple[Refusal, ...]:
    """The reasons why the pod can never start on the present cluster; empty if it may start some day."""
    who = base.who
    offered: dict[str, int] = {}  # GPU type → the most on a node
    for node in nodes:
        if node.gpus:
            kind = gpu_type(node.labels)
            offered[kind] = max(offered.get(kind, 0), node.gpus)
    if me.gpus and not offered:
        return (
            Refusal(
                code="no_gpus",
                message=f"{who} asks for {gpus_text(me.gpus)}; no node of this cluster has any",
                hint="run it without `--gpus`, or ask the admin for a node with GPUs",
            ),
        )
    if base.gpu_types and me.gpus and not set(base.gpu_types) & set(offered):
        choices = ", ".join(f"{kind} (up to {most} on a node)" for kind, most in sorted(offered.items()))
        return (
            Refusal(
                code="unknown_gpu_type",
                message=f"{who} asks for GPU type {' or '.join(base.gpu_types)}; the cluster has none",
                hint=f"choose one of: {choices}",
            ),
        )
    possible = [node for node in nodes if could_use(me, node)]
    if not possible:
        return (_refused_by_every_node(me, who, nodes),)
    too_large = (
        _too_large(name, asked, base, who, possible)
        for name, asked in me.requests.items()
        if name != "pods" and asked > 0
    )
    return tuple(refusal for refusal in too_large if refusal is not None)


def _too_large(name: str, asked: int, base: Explanation, who: str, nodes: Sequence[NodeInfo]) -> Refusal | None:
    """A refusal if the pod requests more of a resource than the largest node has.

    None if the largest node has enough.
    """
    largest = min(nodes, key=lambda node: (-node.allocatable.get(name, 0), node.name))
    most = largest.allocatable.get(name, 0)
    if asked <= most:
        return None
    what = amount_text(name, asked)
    if not most and is_extended(name):
        others = sorted({other for node in nodes for other in node.allocatable if is_gpu(other)})
        return Refusal(
            code="unknown_resource",
            message=f"{who} asks for {what}; no node that it may use offers {name}",
            hint=f"available: {', '.join(others)}" if others else "run `moor gpus` to list the GPUs",
        )
    of_type = f" of type {' or '.join(base.gpu_types)}" if is_gpu(name) and base.gpu_types else ""
    return Refusal(
        code="more_than_any_node",
        message=f"{who} asks for {what}{of_type}; the largest node has {format_amount(name, most)}"
        f" ({largest.name})",
        hint=f"ask for at most {format_amount(name, most)}"
        + ("; run `moor gpus` to see each node's GPUs" if is_gpu(name) else ""),
    )


def _refused_by_every_node(me: PodInfo, who: str, nodes: Sequence[NodeInfo]) -> Refusal:
    """A refusal for a pod that labels or permanent taints keep off every node.

    The message names the taints if some node refuses the pod only by taints.
    """
    if not nodes:
        return Refusal(code="no_node_accepts", message=f"{who}: the cluster has no nodes", hint="add a node first")
    taints: dict[str, int] = {}
    for node in nodes:
        if refusal_by_labels(me, node) is not None:
            continue
        for taint in node.taints:
            lasting = taint.effect in ("NoSchedule", "NoExecute") and not taint.key.startswith(TRANSIENT_TAINTS)
            if lasting and not any(toleration.tolerates(taint) for toleration in me.tolerations):
                taints[str(taint)] = taints.get(str(taint), 0) + 1
    if taints:
        named = ", ".join(f"{taint} ({many} node{'s' * (many > 1)})" for taint, many in sorted(taints.items()))
        hint = "the admin decides who may use those nodes: ask for a toleration"
        if any(taint.startswith(f"{MACHINE_GROUP_LABEL}=") for taint in taints):
            hint = (
                "those nodes are dedicated to guests of machines: list them with `moor machines`, and ask for one"
            )
        return Refusal(
            code="no_node_accepts",
            message=f"{who} is repelled by taints of every suitable node: {named}",
            hint=hint,
        )
    hint = "see the reason of each node; change `nodeSelector`, affinity or tolerations"
    return Refusal(code="no_node_accepts", message=f"{who} is refused by every node", hint=hint)
