"""Our four services: what each is started with, and the verbs that it uses."""

from __future__ import annotations

from moorage.model.kueue import KUEUE
from moorage.model.manifests.parts import LIST, READ, Rule, Service
from moorage.model.names import (
    AUDIT_CONFIGURATION,
    AUDIT_TOKEN,
    DEFAULT_PRIORITY,
    EXTENDER_SECRET,
    GROUP,
    INFO_CONFIGMAP,
    KUBELETS_ACCOUNT,
    PAGE_SECRET,
    SCHEDULER_CONFIGMAP,
    SCHEDULER_SECRET,
    SYSTEM_NAMESPACE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_TLS_SECRET,
)
from moorage.model.workspace import GATEWAY_SECRET

OPERATOR_LEASE = "moorage-operator"
SERVER_SERVICE = "moorage-server"
EXTENDER_SERVICE = "moorage-extender"
USAGE_CLAIM = "moorage-usage"
QUEUE_SECRET = "moorage-queue"  # in SYSTEM_NAMESPACE, may be missing; its `url`: postgresql://…


def host_names(service: str) -> tuple[str, ...]:
    """The names under which pods reach one of our Services."""
    return (
        service,
        f"{service}.{SYSTEM_NAMESPACE}",
        f"{service}.{SYSTEM_NAMESPACE}.svc",
        f"{service}.{SYSTEM_NAMESPACE}.svc.cluster.local",
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
        Rule(group=GROUP, resources=("mapjobs",), verbs=(*LIST, "patch")),  # patch: both names of renamed fields
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
        # which class pods have that name none; ours is made the default where there is no other
        Rule(group="scheduling.k8s.io", resources=("priorityclasses",), verbs=LIST),
        Rule(
            group="scheduling.k8s.io", resources=("priorityclasses",), verbs=("patch",), names=(DEFAULT_PRIORITY,)
        ),
        Rule(group="storage.k8s.io", resources=("storageclasses",), verbs=("list",)),
        Rule(resources=("pods/log",), verbs=("get",)),
        # where Kueue is installed: it starts cancelled runs no more
        Rule(group=KUEUE, resources=("workloads",), verbs=("list", "patch")),
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
        Rule(resources=("secrets",), verbs=("get", "update"), names=(WEBHOOK_TLS_SECRET, SCHEDULER_SECRET)),
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
    # which hosts are the platform's, and which scheduler places GPU pods
    at_home=(Rule(resources=("configmaps",), verbs=LIST, names=(INFO_CONFIGMAP, SCHEDULER_CONFIGMAP)),),
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
        Rule(group=KUEUE, resources=("workloads",), verbs=("list",)),  # why Kueue holds a run
        Rule(group=GROUP, resources=("mapjobs",), verbs=(*READ, "patch")),  # patch: its finalizer
        Rule(group=GROUP, resources=("mapjobs/status",), verbs=("patch",)),
        Rule(resources=("secrets",), verbs=("create",)),  # with the token of a map's workers; none can be read
        Rule(group=GROUP, resources=("workspaces",), verbs=LIST),
        Rule(group=GROUP, resources=("tenants",), verbs=("list",)),  # what they fill in, for their own people
        Rule(group="discovery.k8s.io", resources=("endpointslices",), verbs=LIST),  # where workspaces answer
        Rule(group="authorization.k8s.io", resources=("subjectaccessreviews",), verbs=("create",)),
        Rule(group="authentication.k8s.io", resources=("tokenreviews",), verbs=("create",)),
        # who made one has shown who they are: people with client certificates
        Rule(group="certificates.k8s.io", resources=("certificatesigningrequests",), verbs=("get",)),
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


def extender_url(address: str = "") -> str:
    """Where kube-scheduler reaches the extender; `address`: its cluster IP, for hosts, which know no Services."""
    host = f"[{address}]" if ":" in address else address or f"{EXTENDER_SERVICE}.{SYSTEM_NAMESPACE}.svc"
    return f"http://{host}:{EXTENDER.service_port}"
