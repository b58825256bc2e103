"""A second kube-scheduler that asks our extender, for clusters whose own cannot be configured: pure builders.

`kubectl apply -k deploy/scheduler` applies the objects of `make_second_scheduler`, and so does
`moor install --scheduler second`. The operator writes its configuration into the Secret SCHEDULER_SECRET; its pods
start once that is there. The ConfigMap SCHEDULER_CONFIGMAP turns it on: where it is, the webhook names this
scheduler in new GPU pods, and the operator in reservations of machines with GPUs.
https://kubernetes.io/docs/tasks/extend-kubernetes/configure-multiple-schedulers/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.model.manifests import (
    CLUSTERROLEBINDINGS,
    NETWORKPOLICIES,
    PART_OF,
    ROLEBINDINGS,
    ROLES,
    Rule,
    container_security,
    make_binding,
    make_object,
    pod_security,
    spread,
)
from moorage.model.names import (
    SCHEDULER_CONFIGMAP,
    SCHEDULER_LEASE,
    SCHEDULER_NAME,
    SCHEDULER_SECRET,
    SYSTEM_NAMESPACE,
)
from moorage.model.schedulerconfig import DEFAULT_SCHEDULER, NODES_TO_SCORE_PERCENT, SECOND_KEY
from moorage_kube.resources import CONFIGMAPS, DEPLOYMENTS, PDBS, SERVICEACCOUNTS, Obj

SCHEDULER_IMAGE = "registry.k8s.io/kube-scheduler"
SCHEDULER_VERSION = (
    "v1.34.0"  # in deploy/; at most the cluster's: a newer scheduler than its API server is not supported
)
NAME = "moorage-scheduler"  # of its account, Deployment and the rest
LABELS = PART_OF | {"app.kubernetes.io/name": NAME}
PORT = 10259  # /healthz is public, /metrics needs a right
NAME_KEY = "schedulerName"  # in SCHEDULER_CONFIGMAP
PERCENTAGE_KEY = "percentageOfNodesToScore"  # in SCHEDULER_CONFIGMAP
FOLDER = "/etc/moorage"
KUBE_SYSTEM = "kube-system"

_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


def scheduler_image(version: str, image: str = SCHEDULER_IMAGE) -> str:
    """The kube-scheduler image for a cluster's `gitVersion`: "v1.33.5-gke.1080000" gives …:v1.33.5.

    Raises ValueError for a text that does not start with a version.
    """
    match = _VERSION.match(version)
    if match is None:
        raise ValueError(f"{version!r} is no version of Kubernetes; write it as v1.34.0")
    return f"{image}:v{match[1]}"


def make_second_scheduler(
    version: str = SCHEDULER_VERSION, *, image: str = SCHEDULER_IMAGE, replicas: int = 2
) -> list[Obj]:
    """The objects of the second kube-scheduler: account, rights, Deployment, NetworkPolicy, budget and switch.

    `version`: the cluster's version (`gitVersion` of /version); `image`: the repository, for a mirror.
    """
    return [
        make_object(SERVICEACCOUNTS, NAME, labels=LABELS, automountServiceAccountToken=False),
        *_make_rights(),
        make_scheduler_switch(),
        _make_deployment(scheduler_image(version, image), replicas),
        make_object(
            PDBS,
            NAME,
            labels=LABELS,
            spec={"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}}},
        ),
        make_object(
            NETWORKPOLICIES,
            NAME,
            labels=LABELS,
            spec={
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
            },
        ),
    ]


def make_scheduler_switch(percentage: int = NODES_TO_SCORE_PERCENT) -> Obj:
    """The ConfigMap that switches on the second scheduler for new GPU pods."""
    data = {NAME_KEY: SCHEDULER_NAME, PERCENTAGE_KEY: str(percentage)}
    return make_object(CONFIGMAPS, SCHEDULER_CONFIGMAP, labels=LABELS, data=data)


def make_kubeadm_patch() -> list[Obj]:
    """A JSON patch for kubeadm: the static pod of the cluster's own kube-scheduler gets our configuration.

    https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/control-plane-flags/#patches
    """
    folder = "/etc/kubernetes/moorage"
    volume = {"name": "moorage", "hostPath": {"path": folder, "type": "Directory"}}
    mount = {"name": "moorage", "mountPath": folder, "readOnly": True}
    first = "/spec/containers/0"
    return [
        {"op": "add", "path": f"{first}/command/-", "value": f"--config={folder}/scheduler.yaml"},
        {"op": "add", "path": f"{first}/volumeMounts/-", "value": mount},
        {"op": "add", "path": "/spec/volumes/-", "value": volume},
    ]


def scheduler_name(switch: Mapping[str, Any] | None) -> str:
    """The scheduler for GPU pods in SCHEDULER_CONFIGMAP; "": the cluster's own."""
    return str(((switch or {}).get("data") or {}).get(NAME_KEY) or "").strip()


def percentage_of(switch: Mapping[str, Any] | None) -> int:
    """The percentage of nodes to score, 0 to 100 (0: kube-scheduler chooses by size).

    Our default for invalid values.
    """
    text = str(((switch or {}).get("data") or {}).get(PERCENTAGE_KEY) or "").strip()
    value = int(text) if re.fullmatch(r"\d{1,3}", text) else NODES_TO_SCORE_PERCENT
    return value if value <= 100 else NODES_TO_SCORE_PERCENT


def takes_over(pod_spec: Mapping[str, Any]) -> bool:
    """Whether a pod has no specific scheduler. The API server has set the default name by then."""
    return (pod_spec.get("schedulerName") or DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER


def _make_rights() -> list[Obj]:
    """The rights that Kubernetes gives its own scheduler, and the lease.

    The role in kube-system lets it ask the API server about the readers of its metrics.
    """
    rules: Sequence[Rule] = (
        Rule(group="coordination.k8s.io", resources=("leases",), verbs=("create",)),
        Rule(
            group="coordination.k8s.io",
            resources=("leases",),
            verbs=("get", "update"),
            names=(SCHEDULER_LEASE,),
        ),
    )
    reader = "extension-apiserver-authentication-reader"
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": SYSTEM_NAMESPACE}
    return [
        make_binding(CLUSTERROLEBINDINGS, f"{NAME}-pods", "ClusterRole", "system:kube-scheduler", account),
        make_binding(CLUSTERROLEBINDINGS, f"{NAME}-volumes", "ClusterRole", "system:volume-scheduler", account),
        make_binding(ROLEBINDINGS, f"{NAME}-authentication", "Role", reader, account, KUBE_SYSTEM),
        make_object(ROLES, NAME, labels=LABELS, rules=[rule.to_obj() for rule in rules]),
        make_binding(ROLEBINDINGS, NAME, "Role", NAME, account),
    ]


def _make_deployment(image: str, replicas: int) -> Obj:
    """The Deployment: not root, read-only, no privileges. It creates its certificate in memory at each start."""
    selector = {"app.kubernetes.io/name": NAME}
    asks = {"httpGet": {"path": "/healthz", "port": "main", "scheme": "HTTPS"}, "timeoutSeconds": 5}
    container: Obj = {
        "name": "kube-scheduler",
        "image": image,
        "command": ["kube-scheduler", f"--config={FOLDER}/{SECOND_KEY}", f"--secure-port={PORT}", "--v=2"],
        "ports": [{"name": "main", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": container_security(),
        "startupProbe": asks | {"periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": asks | {"periodSeconds": 5},
        "livenessProbe": asks | {"periodSeconds": 20, "failureThreshold": 3},
        "volumeMounts": [{"name": "configuration", "mountPath": FOLDER, "readOnly": True}],
    }
    pod: Obj = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [container],
        "topologySpreadConstraints": [spread(selector)],
        # not optional: the kubelet starts the pod once the operator has made the Secret
        "volumes": [{"name": "configuration", "secret": {"secretName": SCHEDULER_SECRET}}],
    }
    spec: Obj = {
        "replicas": replicas,
        "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }
    return make_object(DEPLOYMENTS, NAME, labels=LABELS, spec=spec)
