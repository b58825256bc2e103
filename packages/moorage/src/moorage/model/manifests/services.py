"""Our four services: their arguments, and the verbs that they use."""

from __future__ import annotations

from moorage.model.argo import GROUP as ARGO
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
    VERSION,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_TLS_SECRET,
)
from moorage.model.workspace import GATEWAY_SECRET
from moorage_kube.meta import variable_of
from moorage_kube.resources import Resource

OPERATOR_LEASE = "moorage-operator"
LEASES = "coordination.k8s.io"
SERVER_SERVICE = "moorage-server"
EXTENDER_SERVICE = "moorage-extender"
USAGE_CLAIM = "moorage-usage"
QUEUE_SECRET = "moorage-queue"  # in SYSTEM_NAMESPACE, may be missing; its `url`: postgresql://…
RECORDS_RIGHT = Resource(GROUP, VERSION, "workflownodes", "WorkflowNode", namespaced=False)
"""No kind, only a name in RBAC: whoever may `update` these writes the records that the server keeps."""


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
    memory="512Mi",  # 13 MB for 1,000 pods more (benchmarks/scale.py)
    port=8085,  # of probes and metrics alone
    service_port=8085,
    # the pod's, so it outlives a container that hung; an emptyDir would forbid drains of the node
    env=({"name": "MOORAGE_WORK_FOLDER", "value": "/dev/shm"},),
    everywhere=(
        Rule(
            group="batch",
            resources=("jobs",),
            verbs=(*READ, "create", "patch", "delete"),
            why="attempts of runs, workers of maps, fillers and backups, in the namespaces of their owners",
        ),
        Rule(
            resources=("pods",),
            verbs=(*READ, "create", "patch", "delete"),
            why="steps of workflows; drains, restarts, places, gates",
        ),
        Rule(resources=("pods/status",), verbs=("patch",), why="why a pod of a run was ended"),
        Rule(resources=("pods/log",), verbs=("get",), why="the progress of fillers and backups"),
        Rule(
            resources=("nodes",), verbs=(*READ, "patch"), why="labels, taints and cordons of drains and machines"
        ),
        Rule(resources=("namespaces",), verbs=LIST, why="which namespaces are guarded"),
        Rule(
            group="apps",
            resources=("replicasets", "statefulsets"),
            verbs=(*READ, "patch"),
            why="kills for memory are noted on the owner of the pod",
        ),
        Rule(
            group=GROUP,
            resources=("machines", "guardrailpolicies", "reservations", "volumebackups", "tenants"),
            verbs=LIST,
            why="controllers reconcile and enforce them",
        ),
        Rule(
            group=GROUP,
            resources=("mapjobs", "workspaces", "datasets"),
            verbs=(*LIST, "patch"),
            why="controllers reconcile them; patch: finalizers, schedules of workspaces",
        ),
        Rule(
            group=GROUP,
            resources=("machinenodepools",),
            verbs=(*LIST, "create", "patch"),
            why="one for each Machine; patch: finalizers",
        ),
        Rule(
            group=GROUP,
            resources=(
                "machines/status",
                "machinenodepools/status",
                "reservations/status",
                "mapjobs/status",
                "workspaces/status",
                "datasets/status",
                "volumebackups/status",
            ),
            verbs=("patch",),
            why="status of its objects",
        ),
        Rule(
            group=GROUP,
            resources=(
                "machines/finalizers",
                "mapjobs/finalizers",
                "workspaces/finalizers",
                "datasets/finalizers",
                "volumebackups/finalizers",
            ),
            verbs=("update",),
            why="owner references to them: OwnerReferencesPermissionEnforcement requires it",
        ),
        Rule(group="batch", resources=("jobs/finalizers",), verbs=("update",), why="as above, of pods of runs"),
        Rule(
            group=ARGO,
            resources=("workflows",),
            verbs=(*READ, "create", "patch", "delete"),
            why="they are run; create: by schedules; delete: when their time to live is over",
        ),
        Rule(
            group=ARGO,
            resources=("cronworkflows",),
            verbs=(*LIST, "patch"),
            why="controllers reconcile them; patch: finalizers and status, which is no subresource",
        ),
        Rule(
            group=ARGO,
            resources=("cronworkflows/status",),
            verbs=("patch",),
            why="as above, where a definition that is not ours has it as a subresource",
        ),
        Rule(
            group=ARGO,
            resources=("workflowtemplates", "clusterworkflowtemplates"),
            verbs=READ,
            why="workflows are made of them",
        ),
        Rule(
            group=ARGO,
            resources=("workflows/finalizers", "cronworkflows/finalizers"),
            verbs=("update",),
            why="as above, for the objects of workflows and schedules",
        ),
        Rule(
            group=RECORDS_RIGHT.group,
            resources=(RECORDS_RIGHT.plural,),
            verbs=("update",),
            why="no kind: holders of this right may write the records of workflows at the server",
        ),
        Rule(
            resources=("configmaps",),
            verbs=("create", "get"),
            why="the worker of maps; get: parameters and semaphores of workflows that name one",
        ),
        Rule(
            group="authorization.k8s.io",
            resources=("subjectaccessreviews",),
            verbs=("create",),
            why="whether a submitter may use the objects of another namespace",
        ),
        Rule(
            group="policy",
            resources=("poddisruptionbudgets",),
            verbs=("get", "create", "delete"),
            why="those of workflows, each over the workflow's own pods",
        ),
        Rule(group=LEASES, resources=("leases",), verbs=LIST, why="whether Argo's controller runs the workflows"),
        Rule(
            resources=("secrets",), verbs=("create",), why="tokens of workspaces and workflows; none can be read"
        ),
        Rule(
            group="apps",
            resources=("deployments",),
            verbs=(*READ, "create", "update"),
            why="workspaces; they are deleted by their owner",
        ),
        Rule(
            resources=("services",),
            verbs=(*READ, "create", "patch", "delete"),
            why="of workspaces, and the gateway's in their namespaces",
        ),
        Rule(
            group="networking.k8s.io",
            resources=("ingresses",),
            verbs=(*READ, "create", "patch", "delete"),
            why="of workspaces and of the server; those of others that name a taken host are reported",
        ),
        Rule(
            group="discovery.k8s.io",
            resources=("endpointslices",),
            verbs=(*READ, "create", "patch", "delete"),
            why="where the gateway is, in the namespaces of workspaces",
        ),
        Rule(resources=("resourcequotas",), verbs=("list",), why="how many workers a map may have"),
        Rule(
            resources=("persistentvolumeclaims",),
            verbs=(*READ, "create", "delete"),
            why="homes of workspaces; claims of datasets, in the namespaces of readers too",
        ),
        Rule(
            resources=("persistentvolumes",),
            verbs=("get", "create", "patch", "delete"),
            why="the volumes of a dataset's readers",
        ),
        Rule(
            group="storage.k8s.io", resources=("storageclasses",), verbs=("list",), why="how a dataset is shared"
        ),
        Rule(
            group="scheduling.k8s.io",
            resources=("priorityclasses",),
            verbs=LIST,
            why="whether the cluster has a default class",
        ),
        Rule(
            group="scheduling.k8s.io",
            resources=("priorityclasses",),
            verbs=("patch",),
            names=(DEFAULT_PRIORITY,),
            why="ours is made the default where there is no other",
        ),
        Rule(
            group=KUEUE,
            resources=("workloads",),
            verbs=("list", "patch"),
            why="where Kueue is installed: why it holds workspaces and maps; cancelled runs are not started again",
        ),
        Rule(resources=("events",), verbs=("create", "get", "patch"), why="events of its objects"),
        Rule(
            group="admissionregistration.k8s.io",
            resources=("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
            verbs=("get", "update"),
            names=(WEBHOOK_CONFIGURATION, AUDIT_CONFIGURATION),
            why="they trust the certificate that it makes",
        ),
    ),
    among_people=(
        Rule(resources=("serviceaccounts",), verbs=READ, why="members of groups; pull secrets of steps"),
    ),
    for_tenants=True,
    at_home=(
        Rule(resources=("pods",), verbs=("create",), why="reservations"),
        Rule(group=LEASES, resources=("leases",), verbs=("create",), why="one replica leads"),
        Rule(
            group=LEASES, resources=("leases",), verbs=("get", "update"), names=(OPERATOR_LEASE,), why="as above"
        ),
        Rule(resources=("secrets",), verbs=("create",), why="certificates and tokens of the services"),
        Rule(
            resources=("secrets",),
            verbs=("get", "update"),
            names=(WEBHOOK_TLS_SECRET, SCHEDULER_SECRET),
            why="certificates are renewed; the configuration for kube-scheduler follows the extender's token",
        ),
        Rule(
            resources=("secrets",),
            verbs=("get",),
            names=(PAGE_SECRET, EXTENDER_SECRET, GATEWAY_SECRET),
            why="whether they are made",
        ),
        Rule(resources=("configmaps",), verbs=LIST, why="templates of workspaces, and where they are reached"),
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
    among_people=(Rule(resources=("serviceaccounts",), verbs=READ, why="owners have people's names"),),
    everywhere=(
        Rule(resources=("nodes", "namespaces"), verbs=LIST, why="GPU types, and which policy holds where"),
        Rule(resources=("pods",), verbs=LIST, why="pods that failed"),
        Rule(group="apps", resources=("replicasets", "statefulsets"), verbs=LIST, why="kills noted on owners"),
        Rule(group="batch", resources=("jobs",), verbs=LIST, why="as above"),
        Rule(
            group="apps",
            resources=("deployments", "replicasets", "statefulsets"),
            verbs=("get",),
            why="whether more pods of it ask for GPUs: its scale does not say",
        ),
        Rule(resources=("replicationcontrollers",), verbs=("get",), why="as above"),
        Rule(
            group=GROUP,
            resources=("tenants", "guardrailpolicies", "budgets", "machines", "reservations"),
            verbs=LIST,
            why="the rules of admission",
        ),
        Rule(group="networking.k8s.io", resources=("ingresses",), verbs=LIST, why="which hosts are taken"),
        Rule(
            group="scheduling.k8s.io",
            resources=("priorityclasses",),
            verbs=LIST,
            why="which classes pods may name",
        ),
    ),
    at_home=(
        Rule(
            resources=("configmaps",),
            verbs=LIST,
            names=(INFO_CONFIGMAP, SCHEDULER_CONFIGMAP),
            why="which hosts are the platform's, and which scheduler places GPU pods",
        ),
    ),
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
    everywhere=(Rule(resources=("nodes", "pods"), verbs=LIST, why="free and used resources"),),
)

SERVER = Service(
    name="server",
    replicas=1,
    memory="1Gi",  # 40 MB for 1,000 pods more (benchmarks/scale.py)
    memory_request="256Mi",
    cpu_request="100m",
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
        variable_of("POD_IP", "status.podIP"),  # Prometheus asks by address
        {"name": "TMPDIR", "value": "/data"},  # of SQLite and of uploads: the root file system is read-only
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
        Rule(resources=("nodes", "pods"), verbs=LIST, why="holders of GPUs"),
        Rule(
            resources=("pods/log",),
            verbs=("get",),
            why="the end of logs of runs and steps is stored: the pod's log is deleted with it",
        ),
        Rule(
            resources=("namespaces",),
            verbs=("get", "list"),
            why="a new one shows no data of a deleted one of the same name",
        ),
        Rule(
            group="batch", resources=("jobs",), verbs=(*READ, "patch"), why="runs; patch: checkpoints, idle ones"
        ),
        Rule(
            resources=("persistentvolumeclaims", "persistentvolumes", "events"),
            verbs=("list",),
            why="why a run waits, in public words",
        ),
        Rule(group="storage.k8s.io", resources=("storageclasses",), verbs=("list",), why="as above"),
        Rule(group=GROUP, resources=("machines",), verbs=("list",), why="as above"),
        Rule(group=KUEUE, resources=("workloads",), verbs=("list",), why="why Kueue holds a run or a pod"),
        Rule(group=GROUP, resources=("mapjobs",), verbs=(*READ, "patch"), why="maps; patch: their finalizer"),
        Rule(group=GROUP, resources=("mapjobs/status",), verbs=("patch",), why="counts of items"),
        Rule(
            group=ARGO,
            resources=("workflows",),
            verbs=("get", "list", "patch"),
            why="the history of deleted ones ends; patch: marks of idle ones",
        ),
        Rule(group=LEASES, resources=("leases",), verbs=("list",), why="whether Argo's controller runs workflows"),
        Rule(resources=("secrets",), verbs=("create",), why="the token of a map's workers; none can be read"),
        Rule(
            group=GROUP,
            resources=("workspaces",),
            verbs=(*READ, "patch"),
            why="where the gateway leads; patch: when they were used, and the stop of idle ones",
        ),
        Rule(group=GROUP, resources=("idlepolicies",), verbs=LIST, why="rules for idle work"),
        Rule(resources=("events",), verbs=("get", "create", "patch"), why="warnings of idle work"),
        Rule(group=GROUP, resources=("budgets",), verbs=("list",), why="limits of use"),
        Rule(group=GROUP, resources=("budgets/status",), verbs=("patch",), why="use"),
        Rule(
            group=GROUP,
            resources=("tenants",),
            verbs=("get", "list", "patch"),
            why="defaults for their members; patch: members, for admins of the tenant",
        ),
        Rule(
            group="discovery.k8s.io",
            resources=("endpointslices",),
            verbs=LIST,
            why="where workspaces and exporters of GPUs answer",
        ),
        Rule(
            group="metrics.k8s.io",
            resources=("pods",),
            verbs=("list",),
            why="usage of pods, if the kubelets do not report it",
        ),
        Rule(
            group="authorization.k8s.io",
            resources=("subjectaccessreviews",),
            verbs=("create",),
            why="the rights of users",
        ),
        Rule(
            group="authentication.k8s.io", resources=("tokenreviews",), verbs=("create",), why="owners of tokens"
        ),
        Rule(
            group="certificates.k8s.io",
            resources=("certificatesigningrequests",),
            verbs=("get",),
            why="proof of identity: the creators have client certificates",
        ),
    ),
    at_home=(
        Rule(
            resources=("serviceaccounts/token",),
            verbs=("create",),
            names=(KUBELETS_ACCOUNT,),
            why="kubelets report the use of volumes to that account; it has no other rights",
        ),
        Rule(
            resources=("secrets",), verbs=("get",), names=(GATEWAY_SECRET,), why="the key of the gateway's cookies"
        ),
        Rule(resources=("configmaps",), verbs=LIST, why="templates of workspaces, and where they are reached"),
    ),
    among_people=(
        Rule(
            resources=("serviceaccounts",),
            verbs=(*READ, "create", "patch", "impersonate"),
            why="requests of users are made with their identity, only for such accounts",
        ),
        Rule(resources=("serviceaccounts/token",), verbs=("create",), why="kubeconfigs and tokens of people"),
        Rule(
            resources=("secrets",),
            verbs=("get", "list", "create", "patch", "delete"),
            why="passwords, as hashes",
        ),
    ),
)

ALL = (OPERATOR, WEBHOOK, EXTENDER, SERVER)


def extender_url(address: str = "") -> str:
    """The URL of the extender for kube-scheduler.

    `address`: its cluster IP, for hosts, which cannot resolve Services.
    """
    host = f"[{address}]" if ":" in address else address or f"{EXTENDER_SERVICE}.{SYSTEM_NAMESPACE}.svc"
    return f"http://{host}:{EXTENDER.service_port}"
