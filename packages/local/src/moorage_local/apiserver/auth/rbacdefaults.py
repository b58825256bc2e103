"""The roles and bindings that every cluster starts with, for users and their workloads.

Those of a real cluster's own components are left out: here they are members of system:masters.
https://kubernetes.io/docs/reference/access-authn-authz/rbac/#default-roles-and-role-bindings
"""

from __future__ import annotations

from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.rbac import CLUSTERROLEBINDINGS, CLUSTERROLES, EVERYTHING, GROUP, Rule
from moorage_local.apiserver.auth.users import AUTHENTICATED, MASTERS, UNAUTHENTICATED

CREATE, READ = ("create",), ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")
ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
AGGREGATE = f"{GROUP}/aggregate-to-"
BOOTSTRAPPING = {"kubernetes.io/bootstrapping": "rbac-defaults"}
AUTOUPDATE = {"rbac.authorization.kubernetes.io/autoupdate": "true"}

_HEALTH = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", *_HEALTH[2:])


def _on(group: str | tuple[str, ...], resources: str, verbs: tuple[str, ...]) -> Rule:
    groups = (group,) if isinstance(group, str) else group
    return Rule(groups=groups, resources=tuple(resources.split()), verbs=verbs)


_APPS = "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale"
_APPS_READ = (
    "daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets replicasets/scale"
    " replicasets/status"
)
_INTERACTIVE = "pods/attach pods/exec pods/portforward pods/proxy"

_EDIT = (
    _on("", f"{_INTERACTIVE} secrets services/proxy", READ),
    _on("", "serviceaccounts", ("impersonate",)),
    _on("", f"pods {_INTERACTIVE}", WRITE),
    _on("", "pods/eviction", CREATE),
    _on(
        "",
        "configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets"
        " serviceaccounts services services/proxy",
        WRITE,
    ),
    _on("", "serviceaccounts/token", CREATE),
    _on(("", "events.k8s.io"), "events", WRITE),
    _on("apps", f"{_APPS} statefulsets statefulsets/scale", WRITE),
    _on("autoscaling", "horizontalpodautoscalers", WRITE),
    _on("batch", "cronjobs jobs", WRITE),
    _on(
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets"
        " replicasets/scale replicationcontrollers/scale",
        WRITE,
    ),
    _on("policy", "poddisruptionbudgets", WRITE),
    _on("networking.k8s.io", "ingresses networkpolicies", WRITE),
    _on("coordination.k8s.io", "leases", ALL),
    _on("resource.k8s.io", "resourceclaims resourceclaimtemplates", WRITE),
)
_VIEW = (
    _on(
        "",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers"
        " replicationcontrollers/scale serviceaccounts services services/status",
        READ,
    ),
    _on(
        "",
        "bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas"
        " resourcequotas/status",
        READ,
    ),
    _on("", "namespaces", READ),
    _on(("", "events.k8s.io"), "events", READ),
    _on("discovery.k8s.io", "endpointslices", READ),
    _on("apps", f"controllerrevisions {_APPS_READ} statefulsets statefulsets/scale statefulsets/status", READ),
    _on("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status", READ),
    _on("batch", "cronjobs cronjobs/status jobs jobs/status", READ),
    _on(
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status"
        " networkpolicies replicasets replicasets/scale replicasets/status replicationcontrollers/scale",
        READ,
    ),
    _on("policy", "poddisruptionbudgets poddisruptionbudgets/status", READ),
    _on("networking.k8s.io", "ingresses ingresses/status networkpolicies", READ),
    _on("resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates", READ),
)
_ADMIN = (
    _on("authorization.k8s.io", "localsubjectaccessreviews", CREATE),
    _on(GROUP, "rolebindings roles", ALL),
)
_BASIC = (
    _on("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", CREATE),
    _on("authentication.k8s.io", "selfsubjectreviews", CREATE),
)
_CLUSTER_ADMIN = (
    Rule(groups=(EVERYTHING,), resources=(EVERYTHING,), verbs=(EVERYTHING,)),
    Rule(paths=(EVERYTHING,), verbs=(EVERYTHING,)),
)


def default_objects() -> list[tuple[Resource, Obj]]:
    """Return the default ClusterRoles and their bindings. Aggregation fills `admin`, `edit` and `view`."""
    roles = [
        _role("cluster-admin", _CLUSTER_ADMIN),
        _role("system:basic-user", _BASIC),
        _role("system:discovery", (Rule(paths=_DISCOVERY, verbs=("get",)),)),
        _role("system:public-info-viewer", (Rule(paths=_HEALTH, verbs=("get",)),)),
        _role("system:aggregate-to-admin", _ADMIN, to="admin"),
        _role("system:aggregate-to-edit", _EDIT, to="edit"),
        _role("system:aggregate-to-view", _VIEW, to="view"),
        _role("admin", (), of="admin"),
        _role("edit", (), of="edit", to="admin"),
        _role("view", (), of="view", to="edit"),
    ]
    bindings = [
        _binding("cluster-admin", MASTERS),
        _binding("system:basic-user", AUTHENTICATED),
        _binding("system:discovery", AUTHENTICATED),
        _binding("system:public-info-viewer", AUTHENTICATED, UNAUTHENTICATED),
    ]
    return [(CLUSTERROLES, role) for role in roles] + [(CLUSTERROLEBINDINGS, binding) for binding in bindings]


def _role(name: str, rules: tuple[Rule, ...], *, to: str = "", of: str = "") -> Obj:
    labels = BOOTSTRAPPING | ({f"{AGGREGATE}{to}": "true"} if to else {})
    out: Obj = {
        "metadata": {"name": name, "labels": labels, "annotations": AUTOUPDATE},
        "rules": [rule.to_obj() for rule in rules],
    }
    if of:
        out["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {f"{AGGREGATE}{of}": "true"}}]}
    return out


def _binding(role: str, *groups: str) -> Obj:
    return {
        "metadata": {"name": role, "labels": BOOTSTRAPPING, "annotations": AUTOUPDATE},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups],
    }
