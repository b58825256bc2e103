"""Checks of GPUs: the device plugin, the labels of GPU types, and shared GPUs.

https://github.com/NVIDIA/k8s-device-plugin, https://github.com/NVIDIA/gpu-feature-discovery
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.installcheck.facts import Facts, Unread
from moorage.decide.installcheck.results import Result, in_order, missing, some, unread, wrong
from moorage.model.names import GPU_PRESENT_LABEL, GPU_TYPE_LABELS
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_node

PLUGINS = ("nvidia-device-plugin", "nvidia-gpu-device-plugin", "amdgpu-device-plugin", "amd-gpu")
HARDWARE_LABELS = (  # that say a GPU is in the node, whether or not a plugin offers it
    GPU_PRESENT_LABEL,
    "feature.node.kubernetes.io/pci-10de.present",  # Node Feature Discovery: NVIDIA's vendor id
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "cloud.google.com/gke-accelerator",
)
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"  # time-slicing or mps
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
MIG_LABEL = "nvidia.com/mig.strategy"  # none, single or mixed
MIG_PREFIX = "nvidia.com/mig-"
INSTALL_PLUGIN = (
    "helm install nvdp nvdp/nvidia-device-plugin --namespace nvidia-device-plugin --create-namespace"
    " --set gfd.enabled=true"
)


def devices(facts: Facts) -> Result:
    if isinstance(facts.nodes, Unread):
        return unread("nodes", facts.nodes)
    offering = [node for node in facts.nodes if _gpus(node)]
    silent = sorted(
        str(node["metadata"]["name"])
        for node in facts.nodes
        if not _gpus(node) and any(labels_of(node).get(name) not in (None, "false") for name in HARDWARE_LABELS)
    )
    plugins = (
        []
        if isinstance(facts.daemonsets, Unread)
        else sorted(
            str(obj["metadata"]["name"])
            for obj in facts.daemonsets
            if any(plugin in obj["metadata"]["name"] for plugin in PLUGINS)
        )
    )
    if silent:
        how = f"the device plugin {plugins[0]} runs" if plugins else "no device plugin was found"
        fix = f"kubectl get pods -A -o wide | grep {plugins[0]}" if plugins else INSTALL_PLUGIN
        return wrong(f"nodes with GPUs offer none: {some(silent)}; {how}", fix)
    if not offering:
        if plugins:
            return missing(f"no node offers GPUs, although {plugins[0]} is installed", "add a node with GPUs")
        return missing("no node offers GPUs, and no device plugin was found", INSTALL_PLUGIN)
    total = sum(_gpus(node) for node in offering)
    by = f", by {some(plugins)}" if plugins else ""
    return in_order(f"{total} GPUs on {len(offering)} nodes{by}")


def labels(facts: Facts) -> Result | None:
    """Check the GPU type labels of nodes. None if no node offers GPUs."""
    if isinstance(facts.nodes, Unread):
        return unread("nodes", facts.nodes)
    offering = [node for node in facts.nodes if _gpus(node)]
    if not offering:
        return None
    bare = sorted(str(node["metadata"]["name"]) for node in offering if not _type(node))
    if bare:
        return missing(
            f"nodes with GPUs have no label of their type: {some(bare)}",
            f"{INSTALL_PLUGIN}  # GPU feature discovery sets the labels",
            f"kubectl label node {bare[0]} {GPU_TYPE_LABELS[0]}=TYPE",
        )
    types = sorted({_type(node) for node in offering})
    return in_order(f"types: {some(types)}")


def sharing(facts: Facts) -> Result | None:
    """Report shared GPUs and MIG slices. None if all GPUs are whole."""
    if isinstance(facts.nodes, Unread):
        return None
    words = []
    sliced = sorted(
        str(node["metadata"]["name"])
        for node in facts.nodes
        if labels_of(node).get(SHARING_LABEL) not in (None, "none") or _replicas(node) > 1
    )
    if sliced:
        words.append(f"GPUs are shared in time on {some(sliced)}: several pods count one GPU each, on one device")
    parts = sorted(
        {
            name
            for node in facts.nodes
            for name, amount in parse_node(node).allocatable.items()
            if name.startswith(MIG_PREFIX) and amount > 0
        }
    )
    if parts:
        words.append(f"parts of GPUs (MIG) have separate resources: {some(parts)}")
    single = sorted(
        str(node["metadata"]["name"]) for node in facts.nodes if labels_of(node).get(MIG_LABEL) == "single"
    )
    if single:
        words.append(f"each GPU of {some(single)} is a part of one (MIG, strategy single)")
    return in_order("; ".join(words)) if words else None


def _gpus(node: Obj) -> int:
    return parse_node(node).gpus


def _type(node: Mapping[str, Any]) -> str:
    return next((value for name in GPU_TYPE_LABELS if (value := labels_of(node).get(name))), "")


def _replicas(node: Mapping[str, Any]) -> int:
    text = labels_of(node).get(REPLICAS_LABEL, "")
    return int(text) if text.isdecimal() else 1
