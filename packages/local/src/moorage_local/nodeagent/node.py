"""Build the Node object and its Lease, in the form that a kubelet writes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_kube import __version__
from moorage_kube.images import ImageRule
from moorage_kube.quantity import format_bytes, format_milli
from moorage_kube.resources import Obj
from moorage_local.nodeagent.gpus import RESOURCE

PODS_MAX = 110  # kubelet's default
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40  # kubelet's nodeLeaseDurationSeconds; renewed every quarter of it
RENEW_SECONDS = 10.0
HEALTHY = (  # the conditions that a kubelet posts while all is well: type, status, reason, message
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "pods run as processes of this machine"),
)
DISK_BYTES = 1 << 30  # the disk is under pressure with less free than this, or than a kubelet's
DISK_SHARE = 0.1  # evictionHard nodefs.available<10%, which is 100 GB of a disk of 1 TB
DISK_RELIEF = 1.5  # times as much must be free before the pressure ends
PRESSURE = ("DiskPressure", "True", "KubeletHasDiskPressure", "the disk of the data folder has little free space")
IMAGES_ANNOTATION = "localcluster.moorage.dev/images"
ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The resources and labels of one node. `gpu_type` is the product label as given; empty without GPUs."""

    name: str
    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory_bytes: int = 0  # of each GPU; 0: not known
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()  # `v1.Taint` objects, set when the node is first registered
    real_gpu_uuids: Sequence[str] | None = None  # None: the GPUs are simulated
    images: Sequence[ImageRule] = ()  # that run as processes of this machine


def capacity(spec: NodeSpec, *, storage_bytes: int) -> dict[str, str]:
    """The resources of the node, as quantities; all of them are allocatable."""
    out = {
        "cpu": format_milli(spec.cpu_milli),
        "memory": f"{spec.memory_bytes // 1024}Ki",
        "ephemeral-storage": format_bytes(storage_bytes // 1024 * 1024) if storage_bytes else "0",
        "pods": str(PODS_MAX),
    }
    if spec.gpus:
        out[RESOURCE] = str(spec.gpus)
    return out


def labels(spec: NodeSpec) -> dict[str, str]:
    """Return the labels of Kubernetes and of GPU feature discovery, overridden by the configured labels."""
    out = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCH.get(platform.machine(), platform.machine()),
    }
    if spec.gpus:
        out["nvidia.com/gpu.present"] = "true"
        out["nvidia.com/gpu.count"] = str(spec.gpus)
        if spec.gpu_type:
            out["nvidia.com/gpu.product"] = spec.gpu_type
        if spec.gpu_memory_bytes:
            out["nvidia.com/gpu.memory"] = str(spec.gpu_memory_bytes // 2**20)  # MiB, as GPU feature discovery
    return out | dict(spec.labels)


def own_annotations(spec: NodeSpec) -> dict[str, str]:
    """The node's annotations about the images that run here."""
    if not spec.images:
        return {}
    commands = [
        {"image": rule.image, "entrypoint": list(rule.entrypoint), "cmd": list(rule.cmd)} for rule in spec.images
    ]
    return {IMAGES_ANNOTATION: json.dumps(commands)}


def node_object(spec: NodeSpec) -> Obj:
    """Return the Node for its first registration, without status."""
    obj: Obj = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels(spec)},
        "spec": {},
    }
    if noted := own_annotations(spec):
        obj["metadata"]["annotations"] = noted
    if spec.taints:
        obj["spec"]["taints"] = [dict(taint) for taint in spec.taints]
    return obj


def node_status(
    spec: NodeSpec,
    before: Mapping[str, Any],
    *,
    now: str,
    storage_bytes: int,
    pressure: bool = False,
    ready: bool = True,
    why: str = "",
) -> Obj:
    """Return the status of the node. The times of its conditions come from the previous status, `before`.

    `pressure`: the disk is under pressure.
    """
    # its own conditions, with the time of their last change
    old = {condition["type"]: condition for condition in before.get("conditions") or ()}
    own = [PRESSURE if pressure and posted[0] == PRESSURE[0] else posted for posted in HEALTHY[:-1]]
    own.append(HEALTHY[-1] if ready else ("Ready", "False", "KubeletNotReady", why))
    conditions = []
    for kind, status, reason, message in own:
        known = old.get(kind, {})
        is_same = known.get("status") == status
        conditions.append(
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": now,
                "lastTransitionTime": known.get("lastTransitionTime", now) if is_same else now,
                "reason": reason,
                "message": message,
            }
        )
    # conditions of other writers are not changed
    conditions += [condition for kind, condition in old.items() if kind not in {new["type"] for new in conditions}]
    offers = capacity(spec, storage_bytes=storage_bytes)
    return dict(before) | {
        "capacity": offers,
        "allocatable": dict(offers),
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": spec.name},
        ],
        "nodeInfo": _node_info(),
    }


def is_disk_pressure(*, free_bytes: int, total_bytes: int, before: bool) -> bool:
    """Whether the disk is under pressure.

    `before`: it was under pressure, which ends when 1.5 times the limit is free.
    """
    limit = min(DISK_BYTES, DISK_SHARE * total_bytes)
    return free_bytes < limit * (DISK_RELIEF if before else 1)


def is_doubted(node: Mapping[str, Any] | None, *, pressure: bool = False) -> bool:
    """Whether the API has no such node, or other conditions than those of a live node.

    `pressure`: its disk is under pressure.

    A kubelet also compares them at each check. So a node that was declared lost recovers as soon as its agent runs
    again, not after the five minutes between two unchanged reports.
    """
    status_of = {
        condition["type"]: condition.get("status")
        for condition in ((node or {}).get("status") or {}).get("conditions") or ()
    }
    wanted = {kind: status for kind, status, _, _ in HEALTHY} | {PRESSURE[0]: str(pressure)}
    return any(status_of.get(kind) != status for kind, status in wanted.items())


def lease_object(spec: NodeSpec, node_uid: str, *, now: str) -> Obj:
    """Return the Lease that shows that the node is alive; `now` is a MicroTime."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": spec.name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": spec.name, "uid": node_uid}],
        },
        "spec": {"holderIdentity": spec.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now},
    }


def _node_info() -> Obj:
    uname = os.uname()
    return {
        "machineID": _line("/etc/machine-id"),
        "systemUUID": _line("/etc/machine-id"),
        "bootID": _line("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": uname.release,
        "osImage": _os_image(),
        "containerRuntimeVersion": f"process://{__version__}",
        "kubeletVersion": f"v1.32.0-moorage.{__version__}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": ARCH.get(uname.machine, uname.machine),
    }


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
