"""Permissions of the service accounts, of tenants' members, and of users who edit a namespace."""

from __future__ import annotations

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage.model.argo import GROUP as ARGO
from moorage.model.argo import KINDS as WORKFLOW_KINDS
from moorage.model.kueue import KUEUE
from moorage.model.manifests.parts import (
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    LIST,
    PART_OF,
    RBAC,
    READ,
    ROLEBINDINGS,
    ROLES,
    WRITE,
    Rule,
    Service,
    make_binding,
    make_object,
)
from moorage.model.names import FORWARD_ROLE, GROUP, KUBELETS_ACCOUNT, METRICS_ROLE, SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE, account_name
from moorage.model.proofs import PROOF_ROLE
from moorage.model.workspace import OPEN_VERB
from moorage_kube.resources import SERVICEACCOUNTS, Obj

IN_NAMESPACES = tuple(resource.plural for resource in (WORKFLOWS, WORKFLOW_TEMPLATES, CRON_WORKFLOWS))
INTO = "rbac.authorization.k8s.io/aggregate-to-"

METRICS_REVIEW_ROLE = "moorage-metrics-review"  # of services: accounts that may read their metrics
LOCAL_ADMIN = "moorage-local-admin"  # binds who started a local cluster
TENANT_ROLES = {role: f"moorage:tenant-{role}" for role in ("admin", "member", "viewer")}

TENANT_OBJECT = "moorage-tenant"  # name of a tenant's ResourceQuota and NetworkPolicy
_NETWORKING = "networking.k8s.io"
# creation cannot be limited to a name; objects of others can be neither changed nor deleted
TENANT_RULES = (
    Rule(group=GROUP, resources=("tenants/status",), verbs=("patch",), why="status of its objects"),
    Rule(
        group=GROUP,
        resources=("tenants/finalizers",),
        verbs=("update",),
        why="owner references of namespaces that are deleted with their Tenant",
    ),
    Rule(resources=("namespaces",), verbs=("get", "create", "patch"), why="tenants' namespaces, and their labels"),
    Rule(resources=("resourcequotas",), verbs=(*LIST, "create"), why="a tenant's quota"),
    Rule(
        resources=("resourcequotas",),
        verbs=("update", "delete"),
        names=(TENANT_OBJECT,),
        why="as above, by its name",
    ),
    Rule(group=_NETWORKING, resources=("networkpolicies",), verbs=(*LIST, "create"), why="a tenant's isolation"),
    Rule(
        group=_NETWORKING,
        resources=("networkpolicies",),
        verbs=("update", "delete"),
        names=(TENANT_OBJECT,),
        why="as above, by its name",
    ),
    Rule(group=RBAC, resources=("rolebindings",), verbs=(*LIST, "create"), why="roles of a tenant's people"),
    Rule(
        group=RBAC,
        resources=("rolebindings",),
        verbs=("update", "delete"),
        names=tuple(TENANT_ROLES.values()),
        why="as above, by their names",
    ),
    Rule(
        group=RBAC,
        resources=("clusterroles",),
        verbs=("bind",),
        names=tuple(TENANT_ROLES.values()),
        why="those three roles, and no other, may it give",
    ),
)


def make_rights(service: Service) -> list[Obj]:
    """The roles and bindings of a service's account."""
    name = service.full_name
    account = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    rights: list[Obj] = []
    if service.everywhere:
        rules = [rule.to_obj() for rule in (*service.everywhere, *(TENANT_RULES if service.for_tenants else ()))]
        rights.append(make_object(CLUSTERROLES, name, None, labels=service.labels, rules=rules))
        rights.append(make_binding(CLUSTERROLEBINDINGS, name, "ClusterRole", name, account))
    if service.at_home:
        rules = [rule.to_obj() for rule in service.at_home]
        rights.append(make_object(ROLES, name, labels=service.labels, rules=rules))
        rights.append(make_binding(ROLEBINDINGS, name, "Role", name, account))
    if service.among_people:
        rules = [rule.to_obj() for rule in service.among_people]
        rights.append(make_object(ROLES, name, PEOPLE_NAMESPACE, labels=service.labels, rules=rules))
        rights.append(make_binding(ROLEBINDINGS, name, "Role", name, account, PEOPLE_NAMESPACE))
    return rights


def make_tenant_roles() -> list[Obj]:
    """The roles of a tenant's users, to be bound in its namespace, and the role of readers of metrics."""
    looking = (
        Rule(
            resources=(
                "pods", "pods/log", "pods/status", "services", "endpoints", "configmaps", "persistentvolumeclaims",
                "events", "resourcequotas", "limitranges", "serviceaccounts", "replicationcontrollers",
            ),
            verbs=READ,
        ),
        Rule(group="apps", resources=("deployments", "replicasets", "statefulsets", "daemonsets"), verbs=READ),
        Rule(group="batch", resources=("jobs", "cronjobs"), verbs=READ),
        Rule(group="networking.k8s.io", resources=("ingresses", "networkpolicies"), verbs=READ),
        Rule(group="discovery.k8s.io", resources=("endpointslices",), verbs=READ),
        Rule(group="policy", resources=("poddisruptionbudgets",), verbs=READ),
        Rule(group=KUEUE, resources=("localqueues", "workloads"), verbs=READ),
        Rule(group="resource.k8s.io", resources=("resourceclaims", "resourceclaimtemplates"), verbs=READ),
        Rule(group=GROUP, resources=("volumebackups",), verbs=READ),
        Rule(group=GROUP, resources=("workspaces", "datasets", "mapjobs", "reservations"), verbs=READ),
        Rule(group=ARGO, resources=IN_NAMESPACES, verbs=READ),
    )  # fmt: skip
    working = (
        Rule(resources=("pods", "services", "configmaps", "persistentvolumeclaims"), verbs=(*READ, *WRITE)),
        # responses to all other verbs may contain a Secret's data: also those to a patch and to a delayed deletion
        Rule(resources=("secrets",), verbs=("create", "update")),
        Rule(resources=("pods/exec", "pods/attach", "pods/portforward"), verbs=("get", "create")),
        Rule(resources=("pods/eviction",), verbs=("create",)),
        Rule(
            group="apps",
            resources=("deployments", "statefulsets", "replicasets", "deployments/scale", "statefulsets/scale"),
            verbs=WRITE,
        ),
        Rule(group="batch", resources=("jobs", "cronjobs"), verbs=WRITE),
        Rule(group="networking.k8s.io", resources=("ingresses",), verbs=WRITE),
        Rule(group="resource.k8s.io", resources=("resourceclaims", "resourceclaimtemplates"), verbs=WRITE),
        Rule(group="policy", resources=("poddisruptionbudgets",), verbs=WRITE),
        Rule(group=GROUP, resources=("workspaces", "datasets", "volumebackups", "mapjobs"), verbs=WRITE),
        Rule(group=ARGO, resources=IN_NAMESPACES, verbs=WRITE),
        Rule(group=GROUP, resources=("workspaces",), verbs=("open",)),
    )
    ruling = (
        Rule(group=GROUP, resources=("reservations",), verbs=WRITE),
        Rule(group=RBAC, resources=("roles", "rolebindings"), verbs=(*READ, *WRITE)),
        Rule(resources=("serviceaccounts",), verbs=WRITE),
        Rule(resources=("secrets",), verbs=(*READ, *WRITE)),
    )
    chosen = {"viewer": looking, "member": looking + working, "admin": looking + working + ruling}
    metrics = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}  # to be bound to Prometheus' account
    roles = [
        make_object(CLUSTERROLES, TENANT_ROLES[role], None, rules=[rule.to_obj() for rule in rules])
        for role, rules in chosen.items()
    ]
    proving = Rule(group="certificates.k8s.io", resources=("certificatesigningrequests",), verbs=("create",))
    forwarding = (
        Rule(resources=("pods",), verbs=("get", "list")),
        Rule(resources=("pods/portforward",), verbs=("get", "create")),  # get: by WebSocket
    )
    reviewing = (
        Rule(group="authentication.k8s.io", resources=("tokenreviews",), verbs=("create",)),
        Rule(group="authorization.k8s.io", resources=("subjectaccessreviews",), verbs=("create",)),
    )
    asking = [
        {"kind": "ServiceAccount", "name": f"moorage-{name}", "namespace": SYSTEM_NAMESPACE}
        for name in ("operator", "webhook", "extender")
    ]
    return [
        *roles,
        make_object(CLUSTERROLES, METRICS_ROLE, None, rules=[metrics]),
        make_object(CLUSTERROLES, METRICS_REVIEW_ROLE, None, rules=[rule.to_obj() for rule in reviewing]),
        make_object(
            CLUSTERROLEBINDINGS,
            METRICS_REVIEW_ROLE,
            None,
            roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": METRICS_REVIEW_ROLE},
            subjects=asking,
        ),
        make_object(CLUSTERROLES, PROOF_ROLE, None, rules=[proving.to_obj()]),
        make_object(ROLES, FORWARD_ROLE, rules=[rule.to_obj() for rule in forwarding]),
    ]


def make_workspace_roles() -> list[Obj]:
    """The rights to workspaces that the roles of namespaces get: editors create and open them.

    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles
    """
    changing = Rule(
        group=GROUP,
        resources=("workspaces",),
        verbs=("create", "update", "patch", "delete", "deletecollection", OPEN_VERB),
    )
    seeing = Rule(group=GROUP, resources=("workspaces",), verbs=READ)
    return [
        make_object(
            CLUSTERROLES,
            "moorage-workspaces-edit",
            None,
            labels=PART_OF | {f"{INTO}edit": "true", f"{INTO}admin": "true"},
            rules=[changing.to_obj()],
        ),
        make_object(
            CLUSTERROLES,
            "moorage-workspaces-view",
            None,
            labels=PART_OF | {f"{INTO}view": "true", f"{INTO}edit": "true", f"{INTO}admin": "true"},
            rules=[seeing.to_obj()],
        ),
    ]


def make_workflow_roles() -> list[Obj]:
    """The rights to workflows, schedules and templates that the roles of namespaces get."""
    kinds = tuple(resource.plural for resource in WORKFLOW_KINDS)
    reading, writing = (Rule(group=ARGO, resources=kinds, verbs=verbs) for verbs in (READ, WRITE))
    return [
        make_object(
            CLUSTERROLES,
            f"moorage-workflows-{role}",
            None,
            labels=PART_OF | {f"{INTO}{into}": "true" for into in roles},
            rules=[rule.to_obj()],
        )
        for role, rule, roles in (
            ("edit", writing, ("edit", "admin")),
            ("view", reading, ("view", "edit", "admin")),
        )
    ]


KUBELETS_RULE = Rule(resources=("nodes/stats",), verbs=("get",), why="usage of pods and volumes")


def make_kubelets_account() -> list[Obj]:
    """The account that asks kubelets for the use of pods. It is the account of no pod; see `kube.kubelets`.

    `nodes/stats` lets it read statistics at a kubelet. `nodes/proxy` would let it run commands in every pod.
    https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/#kubelet-authorization
    """
    name, reading = KUBELETS_ACCOUNT, KUBELETS_RULE
    account = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    return [
        make_object(SERVICEACCOUNTS, name, automountServiceAccountToken=False),
        make_object(CLUSTERROLES, name, None, rules=[reading.to_obj()]),
        make_binding(CLUSTERROLEBINDINGS, name, "ClusterRole", name, account),
    ]


def make_local_admin(person: str) -> Obj:
    """All rights for the user who started a local cluster; for `moor up`."""
    account = {"kind": "ServiceAccount", "name": account_name(person), "namespace": PEOPLE_NAMESPACE}
    return make_binding(CLUSTERROLEBINDINGS, LOCAL_ADMIN, "ClusterRole", "cluster-admin", account)


def make_admin_binding(person: str) -> Obj:
    """A binding with all permissions for the first user of an installation."""
    account = account_name(person)
    subject = {"kind": "ServiceAccount", "name": account, "namespace": PEOPLE_NAMESPACE}
    return make_binding(CLUSTERROLEBINDINGS, f"moorage-admin-{account}", "ClusterRole", "cluster-admin", subject)
