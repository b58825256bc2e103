"""Nodes that are dedicated to a tenant, or to the guests of a machine group: other pods are refused there.

A taint guards both: `moorage.dev/tenant=TENANT`, and `moorage.dev/machine-group=GROUP` (`taint: true` of a
Machine), each with the effect NoSchedule. A taint repels only pods that do not tolerate it, and that the
scheduler places. So a pod is refused that tolerates the taint of others' nodes, by name or with all taints, or
that names such a node. Only the scheduler has the right to bind pods: our roles do not include it.

A pod of a tenant must not keep pods of other namespaces off nodes either. A required anti-affinity works in both
directions, so one pod with `topologyKey: kubernetes.io/os` would leave all others without a node.
https://kubernetes.io/docs/concepts/policy/resource-quotas/#cross-namespace-pod-affinity-scope
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.decide.admission.fields import at, field_of, mapping, sequence
from moorage.decide.admission.review import Draft, Refusal
from moorage.decide.admission.tenancy import own_selector
from moorage.model.machine import Pool
from moorage.model.names import MACHINE_GROUP_LABEL, TENANT_LABEL
from moorage_kube.meta import controller_ref, labels_of

Guard = tuple[str, str]  # key and value of a taint


def judge_nodes(draft: Draft) -> None:
    """Refuse a pod that could run on dedicated nodes of other tenants or machine groups."""
    request = draft.request
    if request.kind != "Pod" or request.is_mirror:
        return
    is_of_daemons = request.is_copy and (controller_ref(draft.obj) or {}).get("kind") == "DaemonSet"
    if is_of_daemons and request.tenant is None:
        return  # an administrator's, for every node; in a team's namespace, its members may make one
    if request.tenant is not None and request.old is None:
        draft.refusals += judge_apart(draft.obj)
    # a pod does not become a guest by a label that is added later
    guest = draft.obj if request.old is None or request.is_copy else request.old
    guards = guards_of(request.tenants, (request.pools or {}).values()) - own_guards(guest, request.tenant)
    draft.refusals += judge_pod(draft.obj, guards, request.node_taints, old=request.old)


def judge_apart(pod: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """Refusals of required anti-affinity terms that select pods of other namespaces.

    These terms cannot be changed after the creation of the pod.
    """
    own = at(pod, ("metadata", "namespace"))
    path = ("spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    reason = "must not select other namespaces: the pod would keep those of other teams off nodes"
    return tuple(
        Refusal(field_of((*path, index, field)), repr(value), reason)
        for index, term in enumerate(map(mapping, sequence(at(pod, path))))
        for field, value in (
            ("namespaceSelector", term.get("namespaceSelector")),
            ("namespaces", [name for name in sequence(term.get("namespaces")) if name != own] or None),
        )
        if value is not None
    )


def guards_of(tenants: Iterable[Mapping[str, Any]], pools: Iterable[Pool]) -> frozenset[Guard]:
    """The taints of all nodes that are dedicated to a tenant or to the guests of a machine group."""
    of_tenants = {(TENANT_LABEL, str(tenant["metadata"]["name"])) for tenant in tenants if own_selector(tenant)}
    return frozenset(of_tenants | {(MACHINE_GROUP_LABEL, pool.group) for pool in pools if pool.is_tainted})


def own_guards(pod: Mapping[str, Any], tenant: Mapping[str, Any] | None) -> frozenset[Guard]:
    """The taints that a pod may tolerate: those of its tenant's nodes and of its machine group."""
    own = {(MACHINE_GROUP_LABEL, str(labels_of(pod).get(MACHINE_GROUP_LABEL)))}
    return frozenset(own | ({(TENANT_LABEL, str(tenant["metadata"]["name"]))} if tenant is not None else set()))


def judge_pod(
    pod: Mapping[str, Any],
    guards: frozenset[Guard],
    node_taints: Mapping[str, frozenset[Guard]],
    *,
    old: Mapping[str, Any] | None = None,
) -> tuple[Refusal, ...]:
    """Refusals of a pod that could run on nodes with one of the taints `guards`.

    Empty if there are no such nodes.

    `node_taints`: the taints of every node. A node that is not in this table counts as guarded. `old`: the
    pod before an update. An update may add tolerations; nothing else that matters here can change.
    """
    if not guards:
        return ()
    spec, refusals = pod.get("spec") or {}, []
    before = {_fields(toleration) for toleration in ((old or {}).get("spec") or {}).get("tolerations") or ()}
    node = spec.get("nodeName")
    if node and old is None and guards & node_taints.get(node, guards):
        reason = "must be left to the scheduler: the node is dedicated to another team or to machines"
        refusals.append(Refusal("spec.nodeName", repr(node), reason))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        if _fields(toleration) not in before and any(_tolerates(toleration, guard) for guard in guards):
            reason = "must not tolerate the taint of nodes that are dedicated to other teams or to machines"
            refusals.append(Refusal(f"spec.tolerations[{index}]", repr(toleration.get("value") or "*"), reason))
    return tuple(refusals)


def _tolerates(toleration: Mapping[str, Any], guard: Guard) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
    if toleration.get("effect") not in (None, "", "NoSchedule") or toleration.get("key") not in (
        None,
        "",
        guard[0],
    ):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("key"), toleration.get("value")) == guard


def _fields(toleration: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    return frozenset(toleration.items())
