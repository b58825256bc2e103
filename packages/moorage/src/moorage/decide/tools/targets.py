"""Targets: places to run pods that have special rules, and those rules as tables. Another one is one more row.

Each rule names its source: such rules change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct, field

from moorage_kube.errors import UsageError

# when the pages below were read: stored copies, which end before the tables of bounds. `minimums`, `maximums`,
# `ratio` and `eviction_since` are as they were published in 2025
READ = "2026-11-23"
_FORM = re.compile(r"([a-z0-9-]+)(?::([0-9]+)\.([0-9]+))?")

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
GIB = 2**30


class Target(Struct, frozen=True, kw_only=True):
    """The rules of one place for pods. Amounts are quantities; an empty table has no rule.

    `defaults`: those for a container without a request; `are_defaults_shared`: all containers of a pod share it.
    `minimums`, `maximums`: of the sum over a pod. `ratio`: GiB of memory for one vCPU, least and most.
    `sizes`: (vCPU, GiB least, GiB most, GiB step): a pod gets the next larger one; `overhead_bytes` come on top.
    `capabilities`: those that may be added. `host_paths`: prefixes that may be mounted, read-only.
    `node_labels`: keys and prefixes (ending in *) that selectors may name.
    """

    name: str
    title: str
    sources: Mapping[str, str]  # rule → address
    defaults: Mapping[str, str] = field(default_factory=dict)
    are_defaults_shared: bool = False
    minimums: Mapping[str, str] = field(default_factory=dict)
    maximums: Mapping[str, str] = field(default_factory=dict)
    daemon_defaults: Mapping[str, str] = field(default_factory=dict)
    ratio: tuple[Fraction, Fraction] | None = None
    sizes: tuple[tuple[Fraction, int, int, int], ...] = ()
    overhead_bytes: int = 0
    are_limits_requests: bool = False  # requests must equal limits
    capabilities: frozenset[str] = frozenset()
    host_paths: tuple[str, ...] = ()
    volumes_refused: frozenset[str] = frozenset()
    node_labels: tuple[str, ...] = ()
    labels_refused: Mapping[str, str] = field(default_factory=dict)  # key → why
    namespaces_refused: tuple[str, ...] = ()
    takes_daemon_sets: bool = True
    takes_gpus: bool = True
    gpu_label: str = ""  # the node label that a pod with GPUs must choose
    arm: str = "yes"  # "yes", "no", or the node label that must be chosen with it
    eviction_since: tuple[int, int] | None = None  # first version that honours safe-to-evict "false"


_GKE = "https://cloud.google.com/kubernetes-engine/docs"
_EKS = "https://docs.aws.amazon.com/eks/latest/userguide"

AUTOPILOT = Target(
    name="gke-autopilot",
    title="GKE Autopilot, general-purpose",
    sources={
        "": f"{_GKE}/concepts/autopilot-resource-requests",
        "targetRights": f"{_GKE}/concepts/autopilot-security",
        "targetVolumes": f"{_GKE}/concepts/autopilot-security",
        "targetEviction": f"{_GKE}/how-to/extended-duration-pods",
        "targetNodes": f"{_GKE}/how-to/workload-separation",
        "targetGpus": f"{_GKE}/how-to/autopilot-gpus",
        "targetArm": f"{_GKE}/how-to/autopilot-arm-workloads",
        "targetCommand": "https://argo-workflows.readthedocs.io/en/latest/workflow-executors/",
    },
    defaults={"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"},
    daemon_defaults={"cpu": "50m", "memory": "100Mi", "ephemeral-storage": "100Mi"},
    minimums={"cpu": "50m", "memory": "52Mi", "ephemeral-storage": "10Mi"},  # where bursting is supported
    maximums={"cpu": "30", "memory": "110Gi", "ephemeral-storage": "10Gi"},
    ratio=(Fraction(1), Fraction(13, 2)),
    # as its admission names them: https://github.com/CrowdStrike/falcon-helm/issues/310 (2024-09)
    capabilities=frozenset(
        {
            "AUDIT_WRITE",
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "FSETID",
            "KILL",
            "MKNOD",
            "NET_BIND_SERVICE",
            "NET_RAW",
            "SETFCAP",
            "SETGID",
            "SETPCAP",
            "SETUID",
            "SYS_CHROOT",
            "SYS_PTRACE",
        }
    ),
    host_paths=("/var/log/",),
    # https://github.com/fluxcd/flux/issues/3470 (2021-04), and Google's own labels since
    node_labels=(
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "cloud.google.com/*",
    ),
    labels_refused={
        "cloud.google.com/gke-nodepool": "Autopilot has no custom node pools",
        "kubernetes.io/hostname": "nodes come and go",
        "node.kubernetes.io/instance-type": "choose cloud.google.com/machine-family",
        "beta.kubernetes.io/instance-type": "choose cloud.google.com/machine-family",
        "beta.kubernetes.io/os": "write kubernetes.io/os",
        "beta.kubernetes.io/arch": "write kubernetes.io/arch",
    },
    namespaces_refused=("kube-system",),
    gpu_label="cloud.google.com/gke-accelerator",
    arm="cloud.google.com/compute-class",
    eviction_since=(1, 27),
)
FARGATE = Target(
    name="eks-fargate",
    title="EKS on AWS Fargate",
    sources={
        "": f"{_EKS}/fargate-pod-configuration.html",
        "targetRights": f"{_EKS}/fargate.html",
        "targetVolumes": f"{_EKS}/fargate.html",
        "targetGpus": f"{_EKS}/fargate.html",
        "targetArm": "https://github.com/aws/containers-roadmap/issues/1629",
        "targetKind": f"{_EKS}/fargate.html",
        "targetNodes": f"{_EKS}/fargate-profile.html",
        "targetCommand": "https://argo-workflows.readthedocs.io/en/latest/workflow-executors/",
    },
    defaults={"cpu": "250m", "memory": "256Mi"},  # of the smallest size, 512 MiB, half is Fargate's own
    are_defaults_shared=True,
    maximums={"cpu": "16", "memory": "120Gi", "ephemeral-storage": "175Gi"},
    sizes=(
        (Fraction(1, 4), 0, 2, 0),  # 0.5, 1 or 2 GB
        (Fraction(1, 2), 1, 4, 1),
        (Fraction(1), 2, 8, 1),
        (Fraction(2), 4, 16, 1),
        (Fraction(4), 8, 30, 1),
        (Fraction(8), 16, 60, 4),
        (Fraction(16), 32, 120, 8),
    ),
    overhead_bytes=256 * 2**20,
    are_limits_requests=True,
    volumes_refused=frozenset({"hostPath", "awsElasticBlockStore", "ephemeral"}),
    labels_refused={
        "kubernetes.io/hostname": "each pod has a separate node",
        "node.kubernetes.io/instance-type": "Fargate has no instance types",
        "beta.kubernetes.io/instance-type": "Fargate has no instance types",
        "eks.amazonaws.com/nodegroup": "Fargate has no node groups",
    },
    takes_daemon_sets=False,
    takes_gpus=False,
    arm="no",
)
TARGETS: Mapping[str, Target] = {target.name: target for target in (AUTOPILOT, FARGATE)}


class Place(Struct, frozen=True):
    """A target, and its Kubernetes version (None: a recent one)."""

    target: Target
    version: tuple[int, int] | None = None


def parse_target(text: str) -> Place:
    """Parse `gke-autopilot` or `gke-autopilot:1.26`. Raises UsageError."""
    match = _FORM.fullmatch(text)
    target = TARGETS.get(match[1]) if match else None
    if match is None or target is None:
        raise UsageError(
            f"unknown target {text!r}",
            hint=f"use one of {', '.join(TARGETS)}, with :VERSION where it matters, such as gke-autopilot:1.26",
        )
    return Place(target, (int(match[2]), int(match[3])) if match[2] else None)


def billed_size(target: Target, cpu_milli: int, memory_bytes: int) -> tuple[Fraction, Fraction] | None:
    """The size (vCPU, GiB) that a pod gets and is billed for. None if the pod is larger than every size."""
    needed = Fraction(memory_bytes + target.overhead_bytes, GIB)
    for cpu, least, most, step in target.sizes:
        if cpu * 1000 < cpu_milli or needed > most:
            continue
        if not step:
            return cpu, next(size for size in (Fraction(1, 2), Fraction(1), Fraction(2)) if size >= needed)
        steps = -((least - needed) // step) if needed > least else 0
        return cpu, Fraction(least + max(0, steps) * step)
    return None
