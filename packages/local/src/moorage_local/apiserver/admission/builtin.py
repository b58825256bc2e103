"""Built-in admission: the default plugins of a kube-apiserver.

NamespaceLifecycle, Priority, ServiceAccount, DefaultTolerationSeconds, DefaultStorageClass,
StorageObjectInUseProtection (the volume controller removes the finalizers) and the allocation of
service addresses. Left out: the not-ready taint on new nodes, because no controller here would remove it.
Service account tokens are not mounted into pods.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from moorage_kube.errors import Forbidden, Invalid
from moorage_kube.meta import annotations_of
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import (
    INGRESSCLASSES,
    NAMESPACES,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
    SERVICES,
    STORAGECLASSES,
    Obj,
)
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.kinds.podspec.defaults import default_tolerations
from moorage_local.apiserver.pipeline.calls import Admission
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.pipeline.refusals import forbidden, not_found
from moorage_local.apiserver.types.fields import FieldErrors

IMMORTAL = ("default", "kube-system", "kube-public")
SERVICE_NETWORK = ipaddress.IPv4Network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_UNNAMESPACED_BY_NATURE = frozenset({"localsubjectaccessreviews"})


class BuiltinAdmission:
    """Implements `pipeline.Admitter`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def mutate(self, asked: Admission) -> Obj | None:
        obj = asked.obj
        if obj is None:
            return None
        where = asked.kind.resource
        if asked.operation == "CREATE" and asked.subresource is None:
            self.check_namespace(asked.kind, asked.namespace, asked.name)
            match (where.group, where.plural):
                case ("", "pods"):
                    self._pod(asked, obj)
                case ("", "persistentvolumeclaims"):
                    self._claim(obj)
                    _protect(obj, "kubernetes.io/pvc-protection")
                case ("", "persistentvolumes"):
                    _protect(obj, "kubernetes.io/pv-protection")
                case ("networking.k8s.io", "ingresses"):
                    self._ingress_class(obj)
        if (where.group, where.plural) == ("scheduling.k8s.io", "priorityclasses"):
            self._one_default_priority(asked, obj)
        if where.group == "" and asked.subresource is None:
            if where.plural == "services":
                self._service(asked, obj)
            elif where.plural == "persistentvolumeclaims" and asked.old is not None:
                self._resize(asked, obj, asked.old)
            elif where.plural == "pods":
                default_tolerations(obj.setdefault("spec", {}))
        return obj

    async def validate(self, asked: Admission) -> None:
        if asked.operation == "DELETE" and asked.kind.resource == NAMESPACES and asked.name in IMMORTAL:
            raise forbidden(NAMESPACES, asked.name, "this namespace may not be deleted")

    def _peek(self, resource: Any, name: str, namespace: str | None = None) -> Obj | None:
        kind = self._pipeline.kinds.of(resource)
        assert kind is not None
        return self._pipeline.peek(kind, name, namespace)

    def _every(self, resource: Any) -> list[Obj]:
        kind = self._pipeline.kinds.of(resource)
        assert kind is not None
        return self._pipeline.every(kind)

    def check_namespace(self, kind: Kind, namespace: str | None, name: str) -> None:
        """Refuse a creation if its namespace is missing (NotFound) or is being deleted (Forbidden)."""
        where = kind.resource
        if not where.namespaced or not namespace or where.plural in _UNNAMESPACED_BY_NATURE:
            return
        stored = self._peek(NAMESPACES, namespace)
        if stored is None:
            raise not_found(NAMESPACES, namespace)
        if (
            stored["metadata"].get("deletionTimestamp")
            or (stored.get("status") or {}).get("phase") == "Terminating"
        ):
            raise forbidden(
                where,
                name,
                f"unable to create new content in namespace {namespace} because it is being terminated",
                causes=[
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    def _ingress_class(self, obj: Obj) -> None:
        """Set the default class of an Ingress without a class; if there are several, the newest default."""
        spec, notes = obj.setdefault("spec", {}), annotations_of(obj)
        if spec.get("ingressClassName") or "kubernetes.io/ingress.class" in notes:
            return
        defaults = [
            ingress_class["metadata"]
            for ingress_class in self._every(INGRESSCLASSES)
            if (ingress_class["metadata"].get("annotations") or {}).get(
                "ingressclass.kubernetes.io/is-default-class"
            )
            == "true"
        ]
        if defaults:
            defaults.sort(key=lambda meta: str(meta["name"]))
            newest = max(defaults, key=lambda meta: str(meta.get("creationTimestamp")))
            spec["ingressClassName"] = newest["name"]

    def _pod(self, asked: Admission, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        if spec.get("overhead"):  # no RuntimeClass here sets one; a negative one makes room in quotas and on nodes
            reason = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise forbidden(asked.kind.resource, asked.name, reason)
        if not spec.get("serviceAccountName"):
            spec["serviceAccountName"] = "default"
        spec["serviceAccount"] = spec["serviceAccountName"]
        name = spec["serviceAccountName"]
        if name != "default" and self._peek(SERVICEACCOUNTS, name, asked.namespace) is None:
            raise forbidden(
                asked.kind.resource,
                asked.name,
                f'error looking up service account {asked.namespace}/{name}: serviceaccount "{name}" not found',
            )
        self._priority(asked, spec)

    def _priority(self, asked: Admission, spec: Obj) -> None:
        wanted = spec.get("priorityClassName")
        priority_class: Obj | None = None
        if wanted:
            priority_class = self._peek(PRIORITYCLASSES, wanted)
            if priority_class is None:
                raise Forbidden(
                    f'pods "{asked.name}" is forbidden: no PriorityClass with name {wanted} was found',
                    details={"name": asked.name, "kind": "pods"},
                )
        else:
            defaults = [
                priority_class
                for priority_class in self._every(PRIORITYCLASSES)
                if priority_class.get("globalDefault")
            ]
            if defaults:
                priority_class = min(defaults, key=lambda default: int(default.get("value", 0)))
                spec["priorityClassName"] = priority_class["metadata"]["name"]
        value = int(priority_class.get("value", 0)) if priority_class else 0
        policy = (priority_class or {}).get("preemptionPolicy", "PreemptLowerPriority")
        if spec.get("priority") is not None and spec["priority"] != value:
            raise forbidden(
                asked.kind.resource,
                asked.name,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod"
                " spec; priority admission"
                f" controller computed {value} from the given PriorityClass name",
            )
        if spec.get("preemptionPolicy") not in (None, policy):
            raise forbidden(
                asked.kind.resource,
                asked.name,
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be"
                " provided in pod spec;"
                f" priority admission controller computed {policy} from the given PriorityClass name",
            )
        spec["priority"] = value
        spec["preemptionPolicy"] = policy

    def _one_default_priority(self, asked: Admission, obj: Obj) -> None:
        if not obj.get("globalDefault"):
            return
        for other in self._every(PRIORITYCLASSES):
            # kube-apiserver checks this before the name: creating the same one again is refused so, too
            if other.get("globalDefault") and (
                asked.operation == "CREATE" or other["metadata"]["name"] != asked.name
            ):
                raise forbidden(
                    asked.kind.resource,
                    asked.name,
                    f"PriorityClass {other['metadata']['name']} is already marked as default."
                    " Only one default can exist",
                )

    def _claim(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        notes = obj["metadata"].get("annotations") or {}
        if spec.get("storageClassName") is not None or "volume.beta.kubernetes.io/storage-class" in notes:
            return
        defaults = [
            storage_class
            for storage_class in self._every(STORAGECLASSES)
            if (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        ]
        if defaults:
            newest = max(
                defaults,
                key=lambda default: (default["metadata"]["creationTimestamp"], default["metadata"]["name"]),
            )
            spec["storageClassName"] = newest["metadata"]["name"]

    def _resize(self, asked: Admission, obj: Obj, old: Obj) -> None:
        """Refuse to grow a claim if its class does not allow it."""

        def size(claim: Obj) -> Any:
            return ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage")

        new, was = size(obj), size(old)
        if new is None or was is None or parse_quantity(new) <= parse_quantity(was):
            return
        if (old.get("status") or {}).get("phase") != "Bound":
            return  # the check of the spec refuses it
        name = old["spec"].get("storageClassName")
        storage_class = self._peek(STORAGECLASSES, name) if name else None
        if storage_class is None or not storage_class.get("allowVolumeExpansion"):
            raise forbidden(
                asked.kind.resource,
                asked.name,
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must"
                " support resize",
            )

    def _service(self, asked: Admission, obj: Obj) -> None:
        """Assign addresses and node ports.

        Two services that are created at the same time may need the same address: only reads and writes in
        memory have no pause in between. So the next free address is chosen at random.
        """
        spec = obj.setdefault("spec", {})
        name = obj["metadata"].get("name", "")
        if spec.get("type") == "ExternalName":
            return
        others = [
            service
            for service in self._every(SERVICES)
            if (service["metadata"].get("namespace"), service["metadata"]["name"]) != (asked.namespace, name)
        ]
        plain_headless = spec.get("clusterIP") == "None" and not spec.get("selector")
        spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if plain_headless else ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "RequireDualStack" if plain_headless else "SingleStack")
        if not spec.get("clusterIP"):
            given = spec.get("clusterIPs") or ()
            taken = {(other.get("spec") or {}).get("clusterIP") for other in others}
            spec["clusterIP"] = given[0] if given else _free_address(taken)
        elif spec["clusterIP"] != "None":
            _check_address(asked, spec["clusterIP"], others)
        spec["clusterIPs"] = [spec["clusterIP"]]
        if spec.get("type") in ("NodePort", "LoadBalancer"):
            used = {
                port.get("nodePort")
                for other in others
                for port in (other.get("spec") or {}).get("ports") or ()
                if port.get("nodePort")
            }
            for port in spec.get("ports") or ():
                if not port.get("nodePort"):
                    port["nodePort"] = _free_port(used)
                used.add(port["nodePort"])


def _free_address(taken: set[Any]) -> str:
    import random

    for _ in range(100):
        address = str(SERVICE_NETWORK[random.randint(10, SERVICE_NETWORK.num_addresses - 2)])
        if address not in taken:
            return address
    for host in SERVICE_NETWORK.hosts():
        if str(host) not in taken:
            return str(host)
    raise Forbidden(f"no address of {SERVICE_NETWORK} is free")


def _free_port(taken: set[Any]) -> int:
    import random

    start = random.randrange(len(NODE_PORTS))
    for offset in range(len(NODE_PORTS)):
        port = NODE_PORTS[(start + offset) % len(NODE_PORTS)]
        if port not in taken:
            return port
    raise Forbidden("all node ports are in use: delete a Service of type NodePort or LoadBalancer")


def _check_address(asked: Admission, address: str, others: list[Obj]) -> None:
    errors = FieldErrors()
    try:
        inside = ipaddress.IPv4Address(address) in SERVICE_NETWORK
    except ValueError:
        errors.invalid(
            "spec.clusterIPs[0]", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        )
    else:
        if not inside:
            errors.invalid(
                "spec.clusterIPs",
                [address],
                f"failed to allocate IP {address}: the provided network does not match the current range",
            )
        elif any((other.get("spec") or {}).get("clusterIP") == address for other in others):
            errors.invalid(
                "spec.clusterIPs", [address], f"failed to allocate IP {address}: provided IP is already allocated"
            )
    errors.raise_if_any(asked.kind.resource, asked.name)


__all__ = ["BuiltinAdmission", "Invalid"]


def _protect(obj: Obj, finalizer: str) -> None:
    had = obj["metadata"].get("finalizers") or []
    if finalizer not in had:
        obj["metadata"]["finalizers"] = [*had, finalizer]
