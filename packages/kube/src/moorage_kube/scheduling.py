"""The rules of the scheduler's filters, as pure functions: on which nodes may a pod run?

The local cluster's scheduler and the product's explanations use the same rules.
https://kubernetes.io/docs/concepts/scheduling-eviction/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moorage_kube.clock import parse_rfc3339
from moorage_kube.meta import is_condition_true
from moorage_kube.quantity import amount, format_amount
from moorage_kube.selectors import LabelSelector, Requirement, label_selector_of, requirement_of

Amounts = Mapping[str, int]
"""Resource name → integer of `quantity.amount`: millicores for cpu, whole units otherwise."""


def is_extended(resource: str) -> bool:
    """Whether the resource is an extended one: it has a domain prefix other than kubernetes.io.

    Extended resources, such as devices, are whole numbers without overcommit.
    """
    return "/" in resource and not resource.startswith("kubernetes.io/")


def is_gpu(resource: str) -> bool:
    """Whether an extended resource counts GPUs: nvidia.com/gpu, amd.com/gpu, intel's gpu.intel.com/i915 and xe,
    MIG slices (nvidia.com/mig-…) and shares in time (nvidia.com/gpu.shared), each counted as one device."""
    return resource.endswith(("/gpu", "/gpu.shared")) or resource.startswith(("nvidia.com/mig-", "gpu.intel.com/"))


def gpus_in(amounts: Mapping[str, int]) -> int:
    """Return the number of GPUs of all kinds among amounts of resources."""
    return sum(count for name, count in amounts.items() if is_gpu(name))


@dataclass(frozen=True, slots=True)
class Toleration:
    key: str
    operator: str  # Equal or Exists
    value: str
    effect: str  # empty: all effects
    seconds: int | None = None  # how long NoExecute is tolerated; None: for ever

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str  # NoSchedule, PreferNoSchedule or NoExecute

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """All of `expressions` (labels) and `fields` (metadata.name) must hold; an empty term matches nothing."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        if not self.expressions and not self.fields:
            return False
        return all(expression.matches(labels) for expression in self.expressions) and all(
            field.key == "metadata.name" and field.matches({"metadata.name": name}) for field in self.fields
        )

    def __str__(self) -> str:
        return ",".join(str(expression) for expression in self.expressions + self.fields)


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    selector: LabelSelector | None  # None matches no pod
    namespaces: frozenset[str]
    topology_key: str
    weight: int = 0  # 1-100 for preferred terms, 0 for required ones
    all_namespaces: bool = False
    namespace_selector: LabelSelector | None = None  # by the namespace's labels, in addition to `namespaces`

    def selects(self, pod: PodInfo, namespace_labels: Mapping[str, str] | None = None) -> bool:
        """Whether the term selects the pod. `namespace_labels`: the labels of the pod's namespace.

        Only a namespace selector needs them.
        """
        return (
            self.selector is not None
            and (
                self.all_namespaces
                or pod.namespace in self.namespaces
                or (self.namespace_selector is not None and self.namespace_selector.matches(namespace_labels))
            )
            and self.selector.matches(pod.labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """The fields of a pod that placement needs."""

    namespace: str
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node: str = ""  # empty: not bound
    nominated_node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    created: datetime | None = None
    started: datetime | None = None
    requests: Amounts = field(default_factory=dict)
    priority: int = 0
    may_preempt: bool = True
    gates: tuple[str, ...] = ()
    scheduler: str = "default-scheduler"
    node_selector: tuple[Requirement, ...] = ()
    node_terms: tuple[NodeSelectorTerm, ...] | None = None  # None: no required node affinity
    preferred_nodes: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    affinity: tuple[PodAffinityTerm, ...] = ()
    anti_affinity: tuple[PodAffinityTerm, ...] = ()
    preferred_affinity: tuple[PodAffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[PodAffinityTerm, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: frozenset[tuple[str, int]] = frozenset()
    claims: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the pod is Succeeded or Failed; it uses no resources any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def gpus(self) -> int:
        return gpus_in(self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The fields of a node that placement needs."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: Amounts = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return gpus_in(self.allocatable)


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """The effective request of a pod: the larger of (sum over containers and restartable init containers)
    and each init container's need, or the pod-level request, plus overhead; one of `pods`.

    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add(total, _container_requests(container))
    sidecars: dict[str, int] = {}
    highest: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        need = dict(_container_requests(container))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, need)
            need = dict(sidecars)
        else:
            _add(need, sidecars)
        for name, value in need.items():
            highest[name] = max(highest.get(name, 0), value)
    _add(total, sidecars)
    for name, value in highest.items():
        total[name] = max(total.get(name, 0), value)
    whole = spec.get("resources") or {}
    for name, text in {**(whole.get("limits") or {}), **(whole.get("requests") or {})}.items():
        if name in (whole.get("requests") or {}) or name not in total:
            total[name] = amount(name, text)
    _add(total, {name: amount(name, text) for name, text in (spec.get("overhead") or {}).items()})
    total["pods"] = 1
    return total


def has_gate(spec: Mapping[str, Any], gate: str) -> bool:
    """Whether a scheduling gate of this name blocks the pod."""
    return any(scheduling_gate.get("name") == gate for scheduling_gate in spec.get("schedulingGates") or ())


def parse_pod(obj: Mapping[str, Any]) -> PodInfo:
    """Read a `v1.Pod`."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    namespace = meta.get("namespace") or "default"
    # the API server leaves out empty fields, at any level
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    together = affinity.get("podAffinity") or {}
    apart = affinity.get("podAntiAffinity") or {}
    ports = {
        (port.get("protocol") or "TCP", int(port["hostPort"]))
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }
    return PodInfo(
        namespace=namespace,
        name=meta.get("name") or "",
        uid=meta.get("uid") or "",
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        node=spec.get("nodeName") or "",
        nominated_node=status.get("nominatedNodeName") or "",
        phase=status.get("phase") or "Pending",
        deleting=bool(meta.get("deletionTimestamp")),
        created=_moment(meta.get("creationTimestamp")),
        started=_moment(status.get("startTime")),
        # fields that decide when the pod is scheduled, and by which scheduler
        requests=pod_requests(spec),
        priority=int(spec.get("priority") or 0),
        may_preempt=spec.get("preemptionPolicy") != "Never",
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        scheduler=spec.get("schedulerName") or "default-scheduler",
        # fields that decide on which nodes: all of the selector, and one of the terms (None: any node)
        node_selector=tuple(
            Requirement(key, "In", (value,)) for key, value in (spec.get("nodeSelector") or {}).items()
        ),
        node_terms=None
        if required is None
        else tuple(_node_term(term) for term in required.get("nodeSelectorTerms") or ()),
        preferred_nodes=tuple(
            (int(preferred["weight"]), _node_term(preferred["preference"]))
            for preferred in node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        ),
        # a term without namespaces means the pod's own
        affinity=_pod_terms(together, namespace),
        anti_affinity=_pod_terms(apart, namespace),
        preferred_affinity=_preferred_pod_terms(together, namespace),
        preferred_anti_affinity=_preferred_pod_terms(apart, namespace),
        tolerations=tuple(
            Toleration(
                toleration.get("key") or "",
                toleration.get("operator") or "Equal",
                toleration.get("value") or "",
                toleration.get("effect") or "",
                toleration.get("tolerationSeconds"),
            )
            for toleration in spec.get("tolerations") or ()
        ),
        # resources of a node or volume that other pods may already use
        host_ports=frozenset(ports),
        claims=tuple(
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec.get("volumes") or ()
            if volume.get("persistentVolumeClaim")
        ),
    )


def parse_node(obj: Mapping[str, Any]) -> NodeInfo:
    """Read a `v1.Node`. A node without a Ready condition counts as not ready."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return NodeInfo(
        name=meta["name"],
        labels=meta.get("labels") or {},
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint["effect"]) for taint in spec.get("taints") or ()
        ),
        unschedulable=bool(spec.get("unschedulable")),
        ready=is_condition_true(obj, "Ready"),
        allocatable={
            name: amount(name, text)
            for name, text in (status.get("allocatable") or status.get("capacity") or {}).items()
        },
    )


def used_on(pods: Iterable[PodInfo]) -> dict[str, int]:
    """The sum of the requests of those pods; finished pods count as zero."""
    total: dict[str, int] = {}
    for pod in pods:
        if not pod.finished:
            _add(total, pod.requests)
    return total


def refusal_by_labels(pod: PodInfo, node: NodeInfo) -> str | None:
    """Return why the pod's node selector or required node affinity excludes the node; None if they do not."""
    for requirement in pod.node_selector:
        if not requirement.matches(node.labels):
            value = node.labels.get(requirement.key, "not set")
            return f"label {requirement.key} is {value!s}, the pod wants {requirement}"
    if pod.node_terms is not None and not any(term.matches(node.labels, node.name) for term in pod.node_terms):
        wanted = " or ".join(str(term) for term in pod.node_terms)
        return f"its labels do not match the pod's node affinity ({wanted})"
    return None


def refusal_by_taints(pod: PodInfo, node: NodeInfo) -> str | None:
    """Return the taint or cordon that excludes the pod from the node, as a reason; None if there is none."""
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    if node.unschedulable and not any(toleration.tolerates(cordon) for toleration in pod.tolerations):
        return "it is cordoned (unschedulable)"
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
            toleration.tolerates(taint) for toleration in pod.tolerations
        ):
            return f"it has the taint {taint}, which the pod does not tolerate"
    return None


def shortages(pod: PodInfo, node: NodeInfo, used: Amounts) -> dict[str, tuple[int, int]]:
    """Return the resources that do not fit: name → (requested, free). Empty if the pod fits."""
    short = {}
    for name, asked in pod.requests.items():
        if asked <= 0:
            continue
        if name == "pods" and name not in node.allocatable:
            continue
        free = node.allocatable.get(name, 0) - used.get(name, 0)
        if asked > free:
            short[name] = (asked, max(0, free))
    return short


def refusal_by_resources(pod: PodInfo, node: NodeInfo, used: Amounts) -> str | None:
    """Return the missing resources of the node, in one sentence; None when the pod fits."""
    short = shortages(pod, node, used)
    if not short:
        return None
    return "too little " + ", ".join(
        f"{name} (asked {format_amount(name, asked)}, free {format_amount(name, free)}"
        f" of {format_amount(name, node.allocatable.get(name, 0))})"
        for name, (asked, free) in sorted(short.items())
    )


def refusals(pod: PodInfo, node: NodeInfo, on_node: Sequence[PodInfo], used: Amounts | None = None) -> list[str]:
    """Return all reasons why the pod cannot run on the node now; empty if it can.

    Checked here: readiness, cordon, taints, node selector and affinity, host ports, resources. Pod affinity and
    volume placement need the whole cluster; the scheduler checks them.
    """
    reasons = []
    if not node.ready:
        reasons.append("it is not Ready")
    for reason in (refusal_by_taints(pod, node), refusal_by_labels(pod, node)):
        if reason:
            reasons.append(reason)
    taken = {port for other in on_node if not other.finished for port in other.host_ports}
    if clash := pod.host_ports & taken:
        reasons.append("host port " + ", ".join(str(port) for _, port in sorted(clash)) + " is taken")
    reason = refusal_by_resources(pod, node, used_on(on_node) if used is None else used)
    if reason:
        reasons.append(reason)
    return reasons


def _container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    # a limit without a request is a request, of every resource: the API server's own default
    asked = dict(resources.get("limits") or {}) | dict(resources.get("requests") or {})
    return {name: amount(name, text) for name, text in asked.items()}


def _add(total: dict[str, int], more: Amounts) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _moment(text: str | None) -> datetime | None:
    return parse_rfc3339(text) if text else None


def _node_term(term: Mapping[str, Any]) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        tuple(requirement_of(expression) for expression in term.get("matchExpressions") or ()),
        tuple(requirement_of(field) for field in term.get("matchFields") or ()),
    )


def _pod_terms(affinity: Mapping[str, Any], namespace: str) -> tuple[PodAffinityTerm, ...]:
    return tuple(
        _pod_term(term, namespace) for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
    )


def _preferred_pod_terms(affinity: Mapping[str, Any], namespace: str) -> tuple[PodAffinityTerm, ...]:
    return tuple(
        _pod_term(preferred["podAffinityTerm"], namespace, int(preferred["weight"]))
        for preferred in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    )


def _pod_term(term: Mapping[str, Any], namespace: str, weight: int = 0) -> PodAffinityTerm:
    selector = term.get("labelSelector")
    spaces = term.get("namespaceSelector")
    return PodAffinityTerm(
        None if selector is None else label_selector_of(selector),
        frozenset(term.get("namespaces") or ((namespace,) if spaces is None else ())),
        term["topologyKey"],
        weight,
        spaces == {},
        None if not spaces else label_selector_of(spaces),
    )
