"""What a cluster needs to run Moorage's services: pure builders of plain objects.

`moor manifests` puts them together with the CustomResourceDefinitions, the registration of the webhook and the
scheduler configuration. Each service has an account of its own with only the verbs it uses. One file: rights,
Deployments and Services of a service are reviewed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moorage.apimachinery.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    NAMESPACES,
    PDBS,
    PRIORITYCLASSES,
    PVCS,
    SERVICEACCOUNTS,
    SERVICES,
    Obj,
    Resource,
)
from moorage.model.names import (
    AUDIT_CONFIGURATION,
    AUDIT_TOKEN,
    DEFAULT_PRIORITY,
    EXTENDER_SECRET,
    GROUP,
    GUEST_PRIORITY,
    INFO_CONFIGMAP,
    KEPT,
    KUBELETS_ACCOUNT,
    METRICS_ROLE,
    PAGE_SECRET,
    RESERVATION_BUDGET,
    RESERVATION_LABEL,
    RESERVATION_PRIORITY,
    SYSTEM_NAMESPACE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_TLS_SECRET,
)
from moorage.model.people import PEOPLE_NAMESPACE, account_name
from moorage.model.workspace import GATEWAY_SECRET, OPEN_VERB

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTERROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
NETWORKPOLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CLUSTERROLEBINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)

IMAGE = "moorage"  # set by whoever deploys: `kustomize edit set image moorage=registry/moorage:tag`
USER_ID = 65532  # as the Containerfile makes it
OPERATOR_LEASE = "moorage-operator"
SERVER_SERVICE = "moorage-server"
EXTENDER_SERVICE = "moorage-extender"
SCHEDULER_CONFIGMAP = "moorage-scheduler"
TOKEN = "TOKEN"  # in that ConfigMap, where whoever copies it puts the extender's
USAGE_CLAIM = "moorage-usage"
LOCAL_ADMIN = "moorage-local-admin"  # binds who started a local cluster
RESERVE_ROLE = "moorage-reserve"  # may write in the calendar
BUDGET_MIN = 1_000_000  # reservations that must stay: more than there can be
QUEUE_SECRET = "moorage-queue"  # in SYSTEM_NAMESPACE, may be missing; its `url`: postgresql://…
USAGE_SIZE = "5Gi"  # kept logs, at most 2Gi; intervals of GPU use, some 200 bytes each; the queue of maps
PART_OF = {"app.kubernetes.io/part-of": "moorage"}

LIST, READ = ("list", "watch"), ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
TENANT_ROLES = {role: f"moorage:tenant-{role}" for role in ("admin", "member", "viewer")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Verbs on resources of one API group; `names` empty: all objects. Creation cannot be tied to a name."""

    group: str = ""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def to_obj(self) -> Obj:
        rule: Obj = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One of our processes as a Deployment. `args` follow `moor NAME`; without a port nothing listens."""

    name: str
    replicas: int
    memory: str
    port: int | None = None
    service_port: int | None = None
    https: bool = False
    args: tuple[str, ...] = ()
    env: tuple[Obj, ...] = ()
    volumes: tuple[Obj, ...] = ()
    mounts: tuple[Obj, ...] = ()
    recreate: bool = False  # one at a time, for a volume that only one may write
    everywhere: tuple[Rule, ...] = ()  # in all namespaces, and on what lives in none
    at_home: tuple[Rule, ...] = ()  # in our own namespace
    among_people: tuple[Rule, ...] = ()  # in the namespace of people's accounts
    for_tenants: bool = False  # makes tenants' namespaces what they should be

    @property
    def full_name(self) -> str:
        return f"moorage-{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        return PART_OF | {"app.kubernetes.io/name": self.full_name}


def host_names(service: str) -> tuple[str, ...]:
    """The names under which pods reach one of our Services."""
    return (
        service,
        f"{service}.{SYSTEM_NAMESPACE}",
        f"{service}.{SYSTEM_NAMESPACE}.svc",
        f"{service}.{SYSTEM_NAMESPACE}.svc.cluster.local",
    )


# quotas and policies of tenants, and their people's roles: those three, and no other, may it give
TENANT_RULES = (
    Rule(group=GROUP, resources=("tenants",), verbs=LIST),
    Rule(group=GROUP, resources=("tenants/status",), verbs=("patch",)),
    Rule(group=GROUP, resources=("tenants/finalizers",), verbs=("update",)),
    Rule(resources=("namespaces",), verbs=("get", "create", "patch")),
    Rule(resources=("resourcequotas",), verbs=(*READ, "create", "update", "delete")),
    Rule(group="networking.k8s.io", resources=("networkpolicies",), verbs=(*READ, "create", "update", "delete")),
    Rule(group=RBAC, resources=("rolebindings",), verbs=(*READ, "create", "update", "delete")),
    Rule(group=RBAC, resources=("clusterroles",), verbs=("bind",), names=tuple(TENANT_ROLES.values())),
)

OPERATOR = Service(
    name="operator",
    replicas=2,
    memory="256Mi",
    everywhere=(
        Rule(group="batch", resources=("jobs",), verbs=(*READ, "create", "patch")),
        # owner references that block deletion, where OwnerReferencesPermissionEnforcement is on
        Rule(group="batch", resources=("jobs/finalizers",), verbs=("update",)),
        Rule(resources=("pods",), verbs=(*LIST, "delete", "patch")),  # patch: gates are lifted
        Rule(resources=("pods/status",), verbs=("patch",)),
        Rule(resources=("nodes",), verbs=(*READ, "patch")),
        Rule(resources=("namespaces",), verbs=LIST),
        # what happened to their pods is noted on them; get: read anew before it is
        Rule(group="apps", resources=("replicasets", "statefulsets"), verbs=(*READ, "patch")),
        Rule(group=GROUP, resources=("machines", "guardrailpolicies"), verbs=LIST),
        Rule(group=GROUP, resources=("machines/status", "machinenodepools/status"), verbs=("patch",)),
        Rule(group=GROUP, resources=("reservations",), verbs=LIST),
        Rule(group=GROUP, resources=("reservations/status",), verbs=("patch",)),
        Rule(group=GROUP, resources=("machines/finalizers", "mapjobs/finalizers"), verbs=("update",)),
        Rule(group=GROUP, resources=("mapjobs",), verbs=LIST),
        Rule(group=GROUP, resources=("mapjobs/status",), verbs=("patch",)),
        Rule(group="batch", resources=("jobs",), verbs=("delete",)),  # of maps, some time after their end
        Rule(resources=("configmaps",), verbs=("create",)),  # with the worker of maps
        Rule(group=GROUP, resources=("workspaces",), verbs=(*LIST, "patch")),  # patch: what their schedule says
        Rule(group=GROUP, resources=("workspaces/status",), verbs=("patch",)),
        Rule(group=GROUP, resources=("workspaces/finalizers",), verbs=("update",)),
        Rule(group="apps", resources=("deployments",), verbs=(*READ, "create", "update")),
        Rule(resources=("services",), verbs=(*READ, "create", "patch", "delete")),
        Rule(group="networking.k8s.io", resources=("ingresses",), verbs=(*READ, "create", "patch", "delete")),
        Rule(group="discovery.k8s.io", resources=("endpointslices",), verbs=(*READ, "create", "patch", "delete")),
        Rule(resources=("persistentvolumeclaims",), verbs=(*LIST, "create")),
        Rule(resources=("secrets",), verbs=("create",)),  # with tokens of workspaces; none can be read
        Rule(resources=("resourcequotas",), verbs=("list",)),
        # datasets: finalizers; volumes and claims, in the namespaces of readers too; the progress of fillers
        Rule(group=GROUP, resources=("datasets",), verbs=(*LIST, "patch")),
        Rule(group=GROUP, resources=("tenants",), verbs=LIST),
        Rule(group=GROUP, resources=("datasets/status",), verbs=("patch",)),
        Rule(group=GROUP, resources=("datasets/finalizers", "volumebackups/finalizers"), verbs=("update",)),
        Rule(group=GROUP, resources=("volumebackups",), verbs=LIST),
        Rule(group=GROUP, resources=("volumebackups/status",), verbs=("patch",)),
        Rule(resources=("persistentvolumeclaims",), verbs=(*READ, "create", "delete")),
        Rule(resources=("persistentvolumes",), verbs=("get", "create", "patch", "delete")),
        Rule(group="storage.k8s.io", resources=("storageclasses",), verbs=("list",)),
        Rule(resources=("pods/log",), verbs=("get",)),
        Rule(group=GROUP, resources=("machinenodepools",), verbs=(*LIST, "create", "patch")),
        Rule(resources=("events",), verbs=("create", "get", "patch")),
        Rule(
            group="admissionregistration.k8s.io",
            resources=("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
            verbs=("get", "update"),
            names=(WEBHOOK_CONFIGURATION, AUDIT_CONFIGURATION),  # they trust the certificate that it makes
        ),
    ),
    among_people=(Rule(resources=("serviceaccounts",), verbs=LIST),),  # who is in which group
    for_tenants=True,
    at_home=(
        Rule(resources=("pods",), verbs=("create",)),  # reservations
        Rule(group="coordination.k8s.io", resources=("leases",), verbs=("create",)),
        Rule(group="coordination.k8s.io", resources=("leases",), verbs=("get", "update"), names=(OPERATOR_LEASE,)),
        Rule(resources=("secrets",), verbs=("create",)),
        Rule(resources=("secrets",), verbs=("get", "update"), names=(WEBHOOK_TLS_SECRET,)),
        Rule(resources=("secrets",), verbs=("get",), names=(PAGE_SECRET, EXTENDER_SECRET, GATEWAY_SECRET)),
        Rule(resources=("configmaps",), verbs=LIST),  # templates of workspaces, and where they are reached
    ),
)

WEBHOOK = Service(
    name="webhook",
    replicas=2,
    memory="512Mi",  # objects of 4.5 MiB, all small tables, take 150 MiB as they are read (measured)
    port=8443,
    service_port=443,
    https=True,
    args=("--tls-cert", "/tls/tls.crt", "--tls-key", "/tls/tls.key", "--audit-token-file", f"/tls/{AUDIT_TOKEN}"),
    # not optional: the kubelet starts the pod once the operator has made the Secret
    volumes=({"name": "tls", "secret": {"secretName": WEBHOOK_TLS_SECRET}},),
    mounts=({"name": "tls", "mountPath": "/tls", "readOnly": True},),
    among_people=(Rule(resources=("serviceaccounts",), verbs=READ),),  # owners bear people's names
    everywhere=(
        Rule(resources=("nodes", "namespaces", "pods"), verbs=LIST),
        # pods that failed, and the owners on which it is noted why
        Rule(group="apps", resources=("replicasets", "statefulsets"), verbs=LIST),
        Rule(group="batch", resources=("jobs",), verbs=LIST),
        Rule(group=GROUP, resources=("tenants", "guardrailpolicies", "machines", "reservations"), verbs=LIST),
        Rule(group="networking.k8s.io", resources=("ingresses",), verbs=LIST),  # which hosts are taken
        Rule(group="scheduling.k8s.io", resources=("priorityclasses",), verbs=LIST),
    ),
    # which hosts are the platform's
    at_home=(Rule(resources=("configmaps",), verbs=LIST, names=(INFO_CONFIGMAP,)),),
)

EXTENDER = Service(
    name="extender",
    replicas=2,
    memory="1Gi",
    port=8888,
    service_port=8888,
    args=("--token-file", "/token/token"),
    volumes=({"name": "token", "secret": {"secretName": EXTENDER_SECRET}},),
    mounts=({"name": "token", "mountPath": "/token", "readOnly": True},),
    everywhere=(Rule(resources=("nodes", "pods"), verbs=LIST),),
)

SERVER = Service(
    name="server",
    replicas=1,
    memory="1Gi",
    port=8080,
    service_port=80,
    args=(
        "--data",
        "/data",
        "--page-token-file",
        "/page/token",
        *(f"--allowed-host={name}" for name in (*host_names(SERVER_SERVICE), "$(POD_IP)")),
    ),
    env=(
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},  # Prometheus asks by address
        {"name": "SQLITE_TMPDIR", "value": "/data"},
        # where it is there: a PostgreSQL for the queue of maps, else queue.db on the volume
        {
            "name": "MOORAGE_QUEUE_URL",
            "valueFrom": {"secretKeyRef": {"name": QUEUE_SECRET, "key": "url", "optional": True}},
        },
    ),
    volumes=(
        {"name": "data", "persistentVolumeClaim": {"claimName": USAGE_CLAIM}},
        {"name": "page", "secret": {"secretName": PAGE_SECRET}},
    ),
    mounts=(
        {"name": "data", "mountPath": "/data"},
        {"name": "page", "mountPath": "/page", "readOnly": True},
    ),
    recreate=True,
    everywhere=(
        Rule(resources=("nodes", "pods"), verbs=LIST),
        # the end of the log of each pod of a run is kept: it goes with the pod, and with its node
        Rule(resources=("pods/log",), verbs=("get",)),
        # a namespace that was made anew must not show what is kept of the old one of its name
        Rule(resources=("namespaces",), verbs=("get",)),
        Rule(group="batch", resources=("jobs",), verbs=(*READ, "patch")),
        Rule(resources=("persistentvolumeclaims", "persistentvolumes", "events"), verbs=("list",)),
        Rule(group="storage.k8s.io", resources=("storageclasses",), verbs=("list",)),
        Rule(group=GROUP, resources=("machines",), verbs=("list",)),
        Rule(group=GROUP, resources=("mapjobs",), verbs=(*READ, "patch")),  # patch: its finalizer
        Rule(group=GROUP, resources=("mapjobs/status",), verbs=("patch",)),
        Rule(resources=("secrets",), verbs=("create",)),  # with the token of a map's workers; none can be read
        Rule(group=GROUP, resources=("workspaces",), verbs=LIST),
        Rule(group=GROUP, resources=("tenants",), verbs=("list",)),  # what they fill in, for their own people
        Rule(group="discovery.k8s.io", resources=("endpointslices",), verbs=LIST),  # where workspaces answer
        Rule(group="authorization.k8s.io", resources=("subjectaccessreviews",), verbs=("create",)),
        Rule(group="authentication.k8s.io", resources=("tokenreviews",), verbs=("create",)),
    ),
    at_home=(
        # what volumes hold, as kubelets tell it to an account that may ask for nothing else
        Rule(resources=("serviceaccounts/token",), verbs=("create",), names=(KUBELETS_ACCOUNT,)),
        Rule(resources=("secrets",), verbs=("get",), names=(GATEWAY_SECRET,)),
        Rule(resources=("configmaps",), verbs=LIST),  # templates of workspaces, and where they are reached
    ),
    among_people=(
        # what is done for people is done as them, and for nobody else
        Rule(resources=("serviceaccounts",), verbs=(*READ, "create", "patch", "impersonate")),
        Rule(resources=("serviceaccounts/token",), verbs=("create",)),
        Rule(resources=("secrets",), verbs=("get", "list", "create", "patch", "delete")),
    ),
)

ALL = (OPERATOR, WEBHOOK, EXTENDER, SERVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of the tree: its path in the folder, and the objects in it."""

    path: str
    objects: Sequence[Obj] = field(default_factory=tuple)


def make_namespace() -> Obj:
    """Our own namespace, under the strictest Pod Security standard."""
    labels = PART_OF | {"pod-security.kubernetes.io/enforce": "restricted"}
    return _object(NAMESPACES, SYSTEM_NAMESPACE, None, labels=labels)


def make_tenant_roles() -> list[Obj]:
    """The roles of a tenant's people, to be bound in its namespace, and that of who reads metrics."""
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
        Rule(group=GROUP, resources=("volumebackups",), verbs=READ),
        Rule(group=GROUP, resources=("workspaces", "datasets", "mapjobs", "reservations"), verbs=READ),
    )  # fmt: skip
    working = (
        Rule(
            resources=("pods", "services", "configmaps", "secrets", "persistentvolumeclaims"),
            verbs=(*READ, *WRITE),
        ),
        Rule(resources=("pods/exec", "pods/attach", "pods/portforward"), verbs=("get", "create")),
        Rule(resources=("pods/eviction",), verbs=("create",)),
        Rule(
            group="apps",
            resources=("deployments", "statefulsets", "replicasets", "deployments/scale", "statefulsets/scale"),
            verbs=WRITE,
        ),
        Rule(group="batch", resources=("jobs", "cronjobs"), verbs=WRITE),
        Rule(group="networking.k8s.io", resources=("ingresses",), verbs=WRITE),
        Rule(group="policy", resources=("poddisruptionbudgets",), verbs=WRITE),
        Rule(group=GROUP, resources=("workspaces", "datasets", "volumebackups", "mapjobs"), verbs=WRITE),
        Rule(group=GROUP, resources=("workspaces",), verbs=("open",)),
    )
    ruling = (
        Rule(group=GROUP, resources=("reservations",), verbs=WRITE),
        Rule(group=RBAC, resources=("roles", "rolebindings"), verbs=(*READ, *WRITE)),
        Rule(resources=("serviceaccounts",), verbs=WRITE),
    )
    chosen = {"viewer": looking, "member": looking + working, "admin": looking + working + ruling}
    metrics = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}  # to be bound to Prometheus' account
    roles = [
        _object(CLUSTERROLES, TENANT_ROLES[role], None, rules=[rule.to_obj() for rule in rules])
        for role, rules in chosen.items()
    ]
    return [*roles, _object(CLUSTERROLES, METRICS_ROLE, None, rules=[metrics])]


def make_people_namespace() -> Obj:
    """Where people's accounts are; no pods run there."""
    labels = PART_OF | {"pod-security.kubernetes.io/enforce": "restricted"}
    return _object(NAMESPACES, PEOPLE_NAMESPACE, None, labels=labels)


def make_info(
    version: str,
    server_url: str = f"http://{SERVER_SERVICE}.{SYSTEM_NAMESPACE}.svc",
    *,
    public_url: str = "",
    workspace_url: str = "",
    ingress_class: str = "",
) -> list[Obj]:
    """The ConfigMap by which clients find the server, and everybody's right to read it.

    `public_url`: where people find it; `workspace_url` (`https://*.apps.example.org`): where their workspaces are,
    behind `ingress_class`. An admin fills them in; see `moorage.model.workspace.parse_platform`.
    """
    reading = Rule(resources=("configmaps",), verbs=("get",), names=(INFO_CONFIGMAP,))
    data = {
        "serverUrl": server_url,
        "version": version,
        "publicUrl": public_url,
        "workspaceUrl": workspace_url,
        "ingressClass": ingress_class,
        "ingressTlsSecret": "",
    }
    everybody = {"kind": "Group", "apiGroup": RBAC, "name": "system:authenticated"}
    return [
        _object(CONFIGMAPS, INFO_CONFIGMAP, data=data),
        _object(ROLES, "moorage-info", rules=[reading.to_obj()]),
        _binding(ROLEBINDINGS, "moorage-info", "Role", "moorage-info", everybody),
    ]


def make_machine_objects() -> list[Obj]:
    """What reservations stand on: priorities and their budget; and everybody's right to see machines.

    The budget never allows a disruption; a reservation that is promised to a guest is not under it. Everybody sees
    the calendar too; the role that writes in it is for the admin to bind.
    """
    descriptions = {
        RESERVATION_PRIORITY: "Holds a place for a machine's guest. Autoscalers ignore what is lower.",
        GUEST_PRIORITY: "Takes the place of a machine's reservation.",
        DEFAULT_PRIORITY: "Pods that name no class: they do not push out what holds a machine's place.",
    }
    classes = [
        _object(
            PRIORITYCLASSES,
            name,
            None,
            value=-10 if name == RESERVATION_PRIORITY else 0,
            preemptionPolicy="PreemptLowerPriority" if name == GUEST_PRIORITY else "Never",
            globalDefault=name == DEFAULT_PRIORITY,
            description=text,
        )
        for name, text in descriptions.items()
    ]
    kept = {"matchLabels": {RESERVATION_LABEL: KEPT}}
    budget = {"minAvailable": BUDGET_MIN, "selector": kept, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}
    seeing = Rule(group=GROUP, resources=("machines", "reservations"), verbs=READ)
    booking = Rule(group=GROUP, resources=("reservations",), verbs=("create", "update", "patch", "delete"))
    everybody = {"kind": "Group", "apiGroup": RBAC, "name": "system:authenticated"}
    return [
        *classes,
        _object(PDBS, RESERVATION_BUDGET, spec=budget),
        _object(CLUSTERROLES, "moorage-machines", None, rules=[seeing.to_obj()]),
        _object(CLUSTERROLES, RESERVE_ROLE, None, rules=[booking.to_obj()]),
        _binding(CLUSTERROLEBINDINGS, "moorage-machines", "ClusterRole", "moorage-machines", everybody),
    ]


def make_server_address(port: int) -> list[Obj]:
    """The server's Service and where it is, for a server that is a process beside a local cluster."""
    name, labels = SERVER_SERVICE, PART_OF | {"kubernetes.io/service-name": SERVER_SERVICE}
    spec = {"ports": [{"name": "http", "port": SERVER.service_port, "targetPort": port, "protocol": "TCP"}]}
    endpoints = [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}]
    return [
        _object(SERVICES, name, spec=spec),
        _object(
            ENDPOINTSLICES,
            name,
            labels=labels,
            addressType="IPv4",
            ports=[{"name": "http", "port": port, "protocol": "TCP"}],
            endpoints=endpoints,
        ),
    ]


def make_workspace_roles() -> list[Obj]:
    """What the roles of namespaces may do with workspaces: who may edit there makes and opens them.

    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles
    """
    changing = Rule(
        group=GROUP,
        resources=("workspaces",),
        verbs=("create", "update", "patch", "delete", "deletecollection", OPEN_VERB),
    )
    seeing = Rule(group=GROUP, resources=("workspaces",), verbs=READ)
    into = "rbac.authorization.k8s.io/aggregate-to-"
    return [
        _object(
            CLUSTERROLES,
            "moorage-workspaces-edit",
            None,
            labels=PART_OF | {f"{into}edit": "true", f"{into}admin": "true"},
            rules=[changing.to_obj()],
        ),
        _object(
            CLUSTERROLES,
            "moorage-workspaces-view",
            None,
            labels=PART_OF | {f"{into}view": "true", f"{into}edit": "true", f"{into}admin": "true"},
            rules=[seeing.to_obj()],
        ),
    ]


def make_scheduler_config(text: str) -> Obj:
    """The ConfigMap that holds a KubeSchedulerConfiguration as YAML, for whoever runs kube-scheduler."""
    note = (
        "# For kube-scheduler's --config. One that runs as a static pod does not resolve names of the cluster:\n"
        f"# put the cluster IP of the Service {EXTENDER_SERVICE} in the place of its name.\n"
        f"# In the place of {TOKEN} put what this prints:\n"
        f"# kubectl -n {SYSTEM_NAMESPACE} get secret {EXTENDER_SECRET} -o jsonpath='{{.data.token}}' | base64 -d\n"
    )
    return _object(CONFIGMAPS, SCHEDULER_CONFIGMAP, data={"scheduler.yaml": note + text})


def extender_url() -> str:
    """Where kube-scheduler reaches the extender, if it can resolve names of the cluster."""
    return f"http://{EXTENDER_SERVICE}.{SYSTEM_NAMESPACE}.svc:{EXTENDER.service_port}"


def make_kubelets_account() -> list[Obj]:
    """The account under which kubelets are asked what volumes hold. No pod runs as it; see `kube.kubelets`.

    `nodes/stats` lets it read statistics at a kubelet. `nodes/proxy` would let it run commands in every pod.
    https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/#kubelet-authorization
    """
    name, reading = KUBELETS_ACCOUNT, Rule(resources=("nodes/stats",), verbs=("get",))
    account = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    return [
        _object(SERVICEACCOUNTS, name, automountServiceAccountToken=False),
        _object(CLUSTERROLES, name, None, rules=[reading.to_obj()]),
        _binding(CLUSTERROLEBINDINGS, name, "ClusterRole", name, account),
    ]


def make_network_policies() -> list[Obj]:
    """Who may connect to our pods: anybody to the ports that are served, nobody to anything else.

    The ports are open to every source because those who call cannot be told by selectors: the API server and
    kube-scheduler run in the hosts' network, people come through an ingress, workers from tenants' namespaces.
    The extender and the server tell callers apart by tokens; the webhook answers anybody, and records only
    what comes with the API server's token.
    """
    closed: Obj = {"podSelector": {}, "policyTypes": ["Ingress"]}
    policies = [
        _object(NETWORKPOLICIES, "moorage-closed", namespace, spec=closed)
        for namespace in (SYSTEM_NAMESPACE, PEOPLE_NAMESPACE)
    ]
    for service in ALL:
        if service.port is not None:
            selector = {"matchLabels": {"app.kubernetes.io/name": service.full_name}}
            opened = [{"ports": [{"protocol": "TCP", "port": service.port}]}]
            spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": opened}
            policies.append(_object(NETWORKPOLICIES, service.full_name, labels=service.labels, spec=spec))
    return policies


def make_service(service: Service, *, version: str) -> list[Obj]:
    """Everything of one service: account, rights, Deployment, and what its pods need."""
    name = service.full_name
    objects = [
        _object(SERVICEACCOUNTS, name, labels=service.labels, automountServiceAccountToken=False),
        *make_rights(service),
        make_deployment(service, version=version),
    ]
    if service.port is not None:
        port = {"name": "https" if service.https else "http", "port": service.service_port, "targetPort": "main"}
        spec = {"selector": {"app.kubernetes.io/name": name}, "ports": [port]}
        objects.append(_object(SERVICES, name, labels=service.labels, spec=spec))
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": name}}}
    objects.append(_object(PDBS, name, labels=service.labels, spec=budget))
    if service is SERVER:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": USAGE_SIZE}}}
        objects.append(_object(PVCS, USAGE_CLAIM, labels=service.labels, spec=claim))
    return objects


def make_deployment(service: Service, *, version: str) -> Obj:
    """The Deployment of one service: not root, nothing writable, no privileges, limits equal to requests."""
    selector = {"app.kubernetes.io/name": service.full_name}
    resources = {"cpu": "250m", "memory": service.memory}
    container: Obj = {
        "name": service.name,
        "image": f"{IMAGE}:{version}",
        "args": [service.name, *service.args],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if service.env:
        container["env"] = list(service.env)
    if service.port is not None:
        container["ports"] = [{"name": "main", "containerPort": service.port}]
        container |= _probes(service)
    if service.mounts:
        container["volumeMounts"] = list(service.mounts)
    pod: Obj = {
        "serviceAccountName": service.full_name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if service.replicas > 1:
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ]
    if service.volumes:
        pod["volumes"] = list(service.volumes)
    spec: Obj = {
        "replicas": service.replicas,
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": service.labels}, "spec": pod},
    }
    if service.recreate:
        spec["strategy"] = {"type": "Recreate"}
    return _object(DEPLOYMENTS, service.full_name, labels=service.labels, spec=spec)


def _probes(service: Service) -> Obj:
    def asks(path: str) -> Obj:
        return {"path": path, "port": "main"} | ({"scheme": "HTTPS"} if service.https else {})

    return {
        "startupProbe": {"httpGet": asks("/healthz"), "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {"httpGet": asks("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3},
        "livenessProbe": {
            "httpGet": asks("/healthz"), "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 3
        },
    }  # fmt: skip


def make_rights(service: Service) -> list[Obj]:
    """Roles and bindings of one service's account."""
    name = service.full_name
    account = {"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}
    rights: list[Obj] = []
    if service.everywhere:
        rules = [rule.to_obj() for rule in (*service.everywhere, *(TENANT_RULES if service.for_tenants else ()))]
        rights.append(_object(CLUSTERROLES, name, None, labels=service.labels, rules=rules))
        rights.append(_binding(CLUSTERROLEBINDINGS, name, "ClusterRole", name, account))
    if service.at_home:
        rules = [rule.to_obj() for rule in service.at_home]
        rights.append(_object(ROLES, name, labels=service.labels, rules=rules))
        rights.append(_binding(ROLEBINDINGS, name, "Role", name, account))
    if service.among_people:
        rules = [rule.to_obj() for rule in service.among_people]
        rights.append(_object(ROLES, name, PEOPLE_NAMESPACE, labels=service.labels, rules=rules))
        rights.append(_binding(ROLEBINDINGS, name, "Role", name, account, PEOPLE_NAMESPACE))
    return rights


def make_local_admin(person: str) -> Obj:
    """All rights for who started a cluster of their own; for `moor up`."""
    account = {"kind": "ServiceAccount", "name": account_name(person), "namespace": PEOPLE_NAMESPACE}
    return _binding(CLUSTERROLEBINDINGS, LOCAL_ADMIN, "ClusterRole", "cluster-admin", account)


def _binding(
    resource: Resource, name: str, kind: str, role: str, subject: Obj, namespace: str = SYSTEM_NAMESPACE
) -> Obj:
    return _object(
        resource,
        name,
        namespace if resource.namespaced else None,
        roleRef={"apiGroup": RBAC, "kind": kind, "name": role},
        subjects=[subject],
    )


def _object(
    resource: Resource,
    name: str,
    namespace: str | None = SYSTEM_NAMESPACE,
    *,
    labels: Mapping[str, str] = PART_OF,
    **fields: object,
) -> Obj:
    meta: Obj = {"name": name} | ({"namespace": namespace} if namespace else {}) | {"labels": dict(labels)}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta} | fields
