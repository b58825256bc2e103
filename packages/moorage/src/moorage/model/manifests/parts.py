"""The parts of all manifests: rules, the shape of a service, labels, and the builder of one object."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from moorage.model.names import SYSTEM_NAMESPACE
from moorage_kube.resources import Obj, Resource

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTERROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CLUSTERROLEBINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)

USER_ID = 65532  # as the Containerfile makes it
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"  # labels of nodes

PART_OF = {"app.kubernetes.io/part-of": "moorage"}

LIST, READ = ("list", "watch"), ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")


class Rule(Struct, frozen=True, kw_only=True):
    """Verbs on resources of one API group.

    `names`: if empty, all objects; `create` cannot be limited to a name.
    """

    group: str = ""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    why: str = ""  # its purpose; every rule of a service's account has one

    def to_obj(self) -> Obj:
        rule: Obj = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


class Service(Struct, frozen=True, kw_only=True):
    """One of our processes as a Deployment. `args` follow `moor NAME`.

    A service without a port does not listen.
    """

    name: str
    replicas: int
    memory: str  # limit
    memory_request: str = "128Mi"  # at rest with 1,000 pods: 56 to 103 MB (benchmarks/scale.py)
    cpu_request: str = "50m"  # at rest at most 1.2 % of a core with 3,000 pods; 1 to 2 ms for a new pod
    port: int | None = None
    service_port: int | None = None
    https: bool = False
    args: tuple[str, ...] = ()
    env: tuple[Obj, ...] = ()
    volumes: tuple[Obj, ...] = ()
    mounts: tuple[Obj, ...] = ()
    recreate: bool = False  # one at a time, for a volume that only one may write
    everywhere: tuple[Rule, ...] = ()  # in all namespaces, and on cluster-scoped objects
    at_home: tuple[Rule, ...] = ()  # in our own namespace
    among_people: tuple[Rule, ...] = ()  # in the namespace of people's accounts
    for_tenants: bool = False  # makes tenants' namespaces match their specs

    @property
    def full_name(self) -> str:
        return f"moorage-{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        return PART_OF | {"app.kubernetes.io/name": self.full_name}


def make_binding(
    resource: Resource, name: str, kind: str, role: str, subject: Obj, namespace: str = SYSTEM_NAMESPACE
) -> Obj:
    return make_object(
        resource,
        name,
        namespace if resource.namespaced else None,
        roleRef={"apiGroup": RBAC, "kind": kind, "name": role},
        subjects=[subject],
    )


def make_object(
    resource: Resource,
    name: str,
    namespace: str | None = SYSTEM_NAMESPACE,
    *,
    labels: Mapping[str, str] = PART_OF,
    **fields: object,
) -> Obj:
    meta: Obj = {"name": name} | ({"namespace": namespace} if namespace else {}) | {"labels": dict(labels)}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta} | fields


def pod_security() -> Obj:
    """The security context of a pod of our image: not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Obj:
    """The security context of its containers: no privileges, and only volumes are writable."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def spread(labels: Mapping[str, str], by: str = HOSTNAME, *, strictly: bool = False) -> Obj:
    """A topology spread constraint: pods with these labels on different nodes, or in different zones.

    Where that is impossible, a pod waits (`strictly`) or is placed anywhere.
    """
    return {
        "maxSkew": 1,
        "topologyKey": by,
        "whenUnsatisfiable": "DoNotSchedule" if strictly else "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }
