"""Decide the contents of a Tenant's namespace, and the steps to reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from moorage.model.manifests import RBAC, ROLEBINDINGS, TENANT_OBJECT, TENANT_ROLES
from moorage.model.names import (
    GPU_PRESENT_LABEL,
    GUARD_LABEL,
    INGRESS_CLASS_ANNOTATION,
    INGRESS_DOMAIN_ANNOTATION,
    POD_SECURITY,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
)
from moorage.model.people import groups_in, is_disabled, person_in, subjects_of
from moorage.model.tenant import is_reserved
from moorage.model.tenantquota import read_quota
from moorage_kube.errors import Problems, QuantityError
from moorage_kube.meta import annotations_of, is_deleting, labels_of, owner_reference
from moorage_kube.quantity import parse_milli
from moorage_kube.resources import NAMESPACES, NODES, Obj, Resource
from moorage_kube.scheduling import is_gpu

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
CLAIMS = "count/resourceclaims.resource.k8s.io"  # https://kubernetes.io/docs/concepts/policy/resource-quotas/
CLAIMED_DEVICES = ".deviceclass.resource.k8s.io/devices"  # behind the name of a DeviceClass
# Each has up to 1 MiB: one team could fill the API server's store with them. A tenant's own quota overrides these.
# Pods that have ended count, too, until Kubernetes deletes the oldest: it keeps 12,500 of them in a cluster. So a
# team has room for 7,500 pods that wait or run at the same time, and its ended pods alone never use up the quota.
COUNTS = {
    "count/configmaps": "200",
    "count/persistentvolumeclaims": "5k",
    "count/pods": "20k",
    "count/secrets": "2k",
}
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
OURS = TENANT_OBJECT


class Observed(Struct, frozen=True, kw_only=True):
    """A Tenant and all data that was read about it."""

    tenant: Obj
    others: Sequence[Obj] = ()  # the other Tenants
    namespace: Obj | None = None
    held: Mapping[tuple[str, str], Obj] = field(
        default_factory=dict
    )  # our objects in the namespace, by kind and name
    accounts: Sequence[Obj] = ()  # of people
    nodes: Sequence[Obj] = ()


class Create(Struct, frozen=True):
    resource: Resource
    obj: Obj


class Replace(Struct, frozen=True):
    """Replace an existing object with `obj`, which is complete."""

    resource: Resource
    obj: Obj


class Remove(Struct, frozen=True):
    resource: Resource
    name: str
    namespace: str


class Patch(Struct, frozen=True):
    """A merge patch of a namespace or a node."""

    resource: Resource
    name: str
    patch: Obj


Action = Create | Replace | Remove | Patch


class Plan(Struct, frozen=True, kw_only=True):
    """Steps in order, and the Tenant's status after them."""

    actions: tuple[Action, ...] = ()
    ready: bool = True
    reason: str = "Ready"
    message: str = "The namespace is as the Tenant says"
    people: int = 0
    nodes: int = 0


def plan(seen: Observed) -> Plan:
    """The steps that make a Tenant's namespace match its spec; none if it does.

    Safe to stop after any step. Objects that others made in the namespace are left alone.
    """
    tenant, spec = seen.tenant, seen.tenant.get("spec") or {}
    name, namespace = str(tenant["metadata"]["name"]), str(spec["namespace"])
    if is_deleting(tenant):
        return Plan(actions=tuple(clean_nodes(name, seen.nodes)), ready=False, reason="Deleted", message="Going")
    if (wrong := _refusal(seen, name, namespace)) is not None:
        return Plan(actions=tuple(clean_nodes(name, seen.nodes)), ready=False, reason=wrong[0], message=wrong[1])
    if seen.namespace is not None and is_deleting(seen.namespace):
        return Plan(ready=False, reason="NamespaceGoing", message=f"The namespace {namespace} is being deleted")
    try:
        wanted, people = objects_of(tenant, seen.accounts)
    except Problems as error:
        return Plan(ready=False, reason="InvalidQuota", message=f"spec.quota: {error.message}")
    actions: list[Action] = list(_namespace(seen, name, namespace))
    for key, (resource, obj) in wanted.items():
        actions += _bring(resource, obj, seen.held.get(key))
    for (kind, held_name), obj in sorted(seen.held.items()):
        if (kind, held_name) not in wanted:
            resource = next(
                resource_kind for resource_kind in (ROLEBINDINGS, QUOTAS, POLICIES) if resource_kind.kind == kind
            )
            actions.append(Remove(resource, held_name, str(obj["metadata"]["namespace"])))
    mine = own_nodes(spec, seen.nodes)
    actions += _taint_nodes(name, mine, seen.nodes)
    if (spec.get("cpuNodes") or {}).get("selector") and not mine:
        message = "No node without GPUs has the labels of cpuNodes: pods without GPUs wait"
        return Plan(actions=tuple(actions), ready=False, reason="NoNodes", message=message, people=len(people))
    return Plan(actions=tuple(actions), people=len(people), nodes=len(mine))


def objects_of(
    tenant: Mapping[str, Any], accounts: Sequence[Obj]
) -> tuple[dict[tuple[str, str], tuple[Resource, Obj]], set[str]]:
    """The desired objects of the namespace, by kind and name; and all people with a role.

    Raises Problems for an invalid quota.
    """
    spec = tenant.get("spec") or {}
    name, namespace = str(tenant["metadata"]["name"]), str(spec["namespace"])
    objects: dict[tuple[str, str], tuple[Resource, Obj]] = {}
    everybody: set[str] = set()

    def add(resource: Resource, obj_name: str, **fields: Any) -> None:
        owner = fields.pop("owner", None)
        meta: Obj = {"name": obj_name, "namespace": namespace, "labels": {TENANT_LABEL: name}}
        if owner:
            meta["ownerReferences"] = [owner]
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta} | fields
        objects[resource.kind, obj_name] = (resource, obj)

    for role, cluster_role in TENANT_ROLES.items():
        members = spec.get(f"{role}s") or {}
        people = people_of(members, accounts)
        everybody |= people
        subjects = [dict(subject) for person in sorted(people) for subject in subjects_of(person)]
        subjects += [
            {"kind": "Group", "name": group, "apiGroup": RBAC}
            for group in sorted(set(members.get("groups") or ()))
            if not group.startswith("system:")
        ]
        if subjects:
            reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": cluster_role}
            owner = owner_reference(tenant) if tenant["metadata"].get("uid") else None
            add(ROLEBINDINGS, cluster_role, roleRef=reference, subjects=subjects, owner=owner)
    hard = COUNTS | with_claims(read_quota(spec.get("quota") or {}))
    add(QUOTAS, OURS, spec={"hard": dict(sorted(hard.items()))})
    if (spec.get("network") or {}).get("isolated", True):
        add(POLICIES, OURS, spec=_policy(spec))
    return objects, everybody


def with_claims(hard: Mapping[str, str]) -> dict[str, str]:
    """A quota with limits on device claims, so that claims cannot bypass the limit on GPUs.

    Kubernetes counts claims separately from GPUs. So if GPUs are limited, claims are forbidden unless the
    quota itself limits them.
    """
    limits_gpus = any(is_gpu(key.removeprefix("requests.")) for key in hard)
    limits_claims = any(key == CLAIMS or key.endswith(CLAIMED_DEVICES) for key in hard)
    return dict(hard) | ({CLAIMS: "0"} if limits_gpus and not limits_claims else {})


def people_of(members: Mapping[str, Any], accounts: Sequence[Obj]) -> set[str]:
    """The people named, and the members of the groups named.

    Members of a group with a disabled account are left out; people named directly are not.
    """
    groups = set(members.get("groups") or ())
    by_group = {
        person_in(account)
        for account in accounts
        if not is_disabled(account) and groups & set(groups_in(account)) and person_in(account)
    }
    return {person for person in members.get("people") or () if not person.startswith("system:")} | by_group


def own_nodes(spec: Mapping[str, Any], nodes: Sequence[Obj]) -> list[str]:
    """The dedicated nodes of a tenant: the nodes without GPUs that have its labels."""
    wanted = (spec.get("cpuNodes") or {}).get("selector") or {}
    if not wanted:
        return []
    return sorted(
        str(node["metadata"]["name"])
        for node in nodes
        if not has_gpus(node) and wanted.items() <= dict(labels_of(node)).items()
    )


def has_gpus(node: Mapping[str, Any]) -> bool:
    status = node.get("status") or {}
    amounts = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    offered = any(is_gpu(name) and str(value) != "0" for name, value in amounts.items())
    return offered or labels_of(node).get(GPU_PRESENT_LABEL) == "true"


def clean_nodes(tenant: str, nodes: Sequence[Obj]) -> list[Action]:
    """Remove a tenant's taint from all nodes."""
    return _taint_nodes(tenant, [], nodes)


def taint_of(tenant: str) -> Obj:
    return {"key": TENANT_LABEL, "value": tenant, "effect": "NoSchedule"}


def _refusal(seen: Observed, name: str, namespace: str) -> tuple[str, str] | None:
    if is_reserved(namespace):
        return "NamespaceReserved", f"The namespace {namespace} is reserved: choose another"
    before = [
        str(other["metadata"]["name"])
        for other in seen.others
        if (other.get("spec") or {}).get("namespace") == namespace and str(other["metadata"]["name"]) < name
    ]
    if before:
        return "NamespaceTaken", f"The namespace {namespace} is that of Tenant {min(before)}"
    return None


def _namespace(seen: Observed, name: str, namespace: str) -> list[Action]:
    spec = seen.tenant.get("spec") or {}
    ingress = spec.get("ingress") or {}
    labels = {GUARD_LABEL: "enabled", TENANT_LABEL: name}
    notes: dict[str, str | None] = {
        INGRESS_DOMAIN_ANNOTATION: ingress.get("domain") or None,
        INGRESS_CLASS_ANNOTATION: ingress.get("className") or None,
    }
    goes = spec.get("onDelete") == "Delete" and bool(seen.tenant["metadata"].get("uid"))
    mine = owner_reference(seen.tenant) if goes else None
    if seen.namespace is None:
        # hostPath and host networking would lead around every wall there is
        meta: Obj = {"name": namespace, "labels": labels | {POD_SECURITY: "baseline"}}
        if given := {key: value for key, value in notes.items() if value}:
            meta["annotations"] = given
        if mine:
            meta["ownerReferences"] = [mine]
        return [Create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})]
    had, changed = seen.namespace["metadata"], {}
    if differing := {key: value for key, value in labels.items() if labels_of(seen.namespace).get(key) != value}:
        changed["labels"] = dict(differing)
    noted = annotations_of(seen.namespace)
    if differing_notes := {key: value for key, value in notes.items() if noted.get(key) != value}:
        changed["annotations"] = dict(differing_notes)  # type: ignore[arg-type]
    owners = had.get("ownerReferences") or []
    kept = [owner for owner in owners if owner.get("uid") != seen.tenant["metadata"].get("uid")]
    if [*kept, *([mine] if mine else [])] != owners:
        changed["ownerReferences"] = [*kept, *([mine] if mine else [])]  # type: ignore[assignment]
        changed["resourceVersion"] = had["resourceVersion"]
    return [Patch(NAMESPACES, namespace, {"metadata": changed})] if changed else []


def _policy(spec: Mapping[str, Any]) -> Obj:
    network, ingress = spec.get("network") or {}, spec.get("ingress") or {}
    namespaces = {SYSTEM_NAMESPACE, *(network.get("allowFrom") or ())}
    if ingress.get("controllerNamespace"):
        namespaces.add(str(ingress["controllerNamespace"]))
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(namespaces)}
    allowed = [{"podSelector": {}}, {"namespaceSelector": {"matchExpressions": [names]}}]
    return {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": allowed}]}


def _bring(resource: Resource, wanted: Obj, held: Obj | None) -> list[Action]:
    if held is None:
        return [Create(resource, wanted)]
    meta = held["metadata"]
    if held.get("roleRef") and _reference(held) != _reference(wanted):  # it cannot be changed
        return [Remove(resource, str(meta["name"]), str(meta["namespace"])), Create(resource, wanted)]
    if _face(held) == _face(wanted):
        return []
    merged = {**held, **{key: value for key, value in wanted.items() if key != "metadata"}}
    merged["metadata"] = {**meta, "labels": {**(meta.get("labels") or {}), **wanted["metadata"]["labels"]}}
    if owners := wanted["metadata"].get("ownerReferences"):
        merged["metadata"]["ownerReferences"] = owners
    return [Replace(resource, merged)]


def _reference(obj: Mapping[str, Any]) -> tuple[Any, Any]:
    reference = obj.get("roleRef") or {}
    return reference.get("kind"), reference.get("name")


def _face(obj: Mapping[str, Any]) -> Any:
    """The fields of an object that we decide, normalized to compare with the API server's form."""
    spec = dict(obj.get("spec") or {})
    if "hard" in spec:
        spec["hard"] = {key: _amount(value) for key, value in (spec["hard"] or {}).items()}
    subjects = {
        (subject.get("kind"), subject.get("namespace") or "", subject.get("name"))
        for subject in obj.get("subjects") or ()
    }
    owners = {reference.get("uid") for reference in obj["metadata"].get("ownerReferences") or ()}
    return spec, subjects, owners, labels_of(obj).get(TENANT_LABEL)


def _amount(value: Any) -> Any:
    try:
        return parse_milli(str(value))
    except QuantityError:
        return str(value)


def _taint_nodes(tenant: str, mine: Sequence[str], nodes: Sequence[Obj]) -> list[Action]:
    actions: list[Action] = []
    for node in nodes:
        meta = node["metadata"]
        taints = list((node.get("spec") or {}).get("taints") or ())
        has = any(taint.get("key") == TENANT_LABEL and taint.get("value") == tenant for taint in taints)
        if has == (meta["name"] in mine):
            continue
        left = [
            taint for taint in taints if not (taint.get("key") == TENANT_LABEL and taint.get("value") == tenant)
        ]
        new = left if has else [*left, taint_of(tenant)]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"taints": new or None}}
        actions.append(Patch(NODES, str(meta["name"]), patch))
    return actions
