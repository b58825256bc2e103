"""Checks of the cluster itself: the requirements for installing Moorage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moorage.decide.installcheck.facts import Facts, Unread
from moorage.decide.installcheck.results import Result, in_order, missing, some, unknown, unread, wrong
from moorage.model.definitions import is_anothers
from moorage.model.manifests import ALL, make_deployment
from moorage.model.names import DEFAULT_PRIORITY, POD_SECURITY, SYSTEM_NAMESPACE
from moorage.model.storageclass import ACCESS_MODES_ANNOTATION, DEFAULT_CLASS_ANNOTATION, RWX, parse_class
from moorage_kube.access import EVERYTHING
from moorage_kube.meta import condition, labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo, parse_node, parse_pod, refusals

OLDEST = (1, 30)  # ValidatingAdmissionPolicy and match conditions are stable from here on
NEWEST = (1, 36)  # on which the suite runs
SKEW = timedelta(seconds=5)  # of two clocks; a larger one is reported
SKEW_MAX = timedelta(seconds=60)  # more breaks tokens and leases
LEASE_AGE_MAX = timedelta(seconds=60)  # a kubelet renews its node's lease every 10 s
ENFORCING = {  # a part of a DaemonSet's name → the network plugin that enforces NetworkPolicies
    "calico-node": "Calico",
    "canal": "Canal",
    "cilium": "Cilium",
    "anetd": "GKE Dataplane V2",
    "antrea-agent": "Antrea",
    "kube-router": "kube-router",
    "ovnkube-node": "OVN-Kubernetes",
    "azure-npm": "Azure Network Policy Manager",
    "kindnet": "kindnet",
    "weave-net": "Weave Net",
    "kube-network-policies": "kube-network-policies",
}
NEIGHBOURS = {  # API group → its product
    "kueue.x-k8s.io": "Kueue",
    "argoproj.io": "Argo Workflows",
    "cert-manager.io": "cert-manager",
    "karpenter.sh": "Karpenter",
    "monitoring.coreos.com": "Prometheus Operator",
    "gateway.networking.k8s.io": "Gateway API",
}


def kubernetes_version(facts: Facts) -> Result:
    if isinstance(facts.kubernetes, Unread):
        return unread("the version of the API server", facts.kubernetes)
    match = re.match(r"v?(\d+)\.(\d+)", facts.kubernetes)
    if match is None:
        return unknown(f"version {facts.kubernetes!r} is not in the form v1.30.0")
    version = (int(match[1]), int(match[2]))
    if version < OLDEST:
        return wrong(
            f"the API server is {facts.kubernetes}; Moorage needs v{OLDEST[0]}.{OLDEST[1]} or newer",
            "upgrade the control plane",
        )
    newer = "; Moorage was not tested on a version this new" if version > NEWEST else ""
    return in_order(f"the API server is {facts.kubernetes}{newer}")


def permissions(facts: Facts) -> Result:
    """Check permissions. They are an error only before the installation: later, members run the checks too."""
    if isinstance(facts.rights, Unread):
        return unread("your permissions", facts.rights)
    if facts.rights.get(EVERYTHING):
        return in_order("you may do everything (cluster-admin)")
    lacking = [str(right) for right, allowed in facts.rights.items() if not allowed and right != EVERYTHING]
    if not lacking:
        return in_order("you may create all that the installation needs")
    return wrong(
        f"you may not: {some(lacking)}",
        "kubectl create clusterrolebinding moorage-installer --clusterrole=cluster-admin --user=YOUR_USER",
        bearable=facts.installed,
    )


def nodes(facts: Facts) -> Result:
    if isinstance(facts.nodes, Unread):
        return unread("nodes", facts.nodes)
    infos = [parse_node(node) for node in facts.nodes]
    unready = sorted(node.name for node in infos if not node.ready)
    ready = len(infos) - len(unready)
    if not infos:
        return missing("the cluster has no node", "add a node")
    if not ready:
        return wrong(f"none of {len(infos)} nodes is Ready", f"kubectl describe node {unready[0]}")
    if unready:
        return wrong(
            f"{ready} of {len(infos)} nodes are Ready; not Ready: {some(unready)}",
            f"kubectl describe node {unready[0]}",
            bearable=True,
        )
    return in_order(f"{len(infos)} nodes are Ready" if len(infos) > 1 else "1 node is Ready")


def requests_fit(facts: Facts) -> Result | None:
    """Check that our pods fit on the nodes.

    Before the installation: place all pods one after another. After it: use the scheduler's messages.
    """
    if isinstance(facts.nodes, Unread):
        return unread("nodes", facts.nodes)
    if isinstance(facts.pods, Unread):
        return unread("pods", facts.pods)
    if facts.installed:
        return _waiting(facts.pods)
    infos = [parse_node(node) for node in facts.nodes]
    held: dict[str, list[PodInfo]] = {node.name: [] for node in infos}
    for pod in map(parse_pod, facts.pods):
        if pod.node in held and not pod.finished:
            held[pod.node].append(pod)
    for service in ALL:
        template = make_deployment(service, version=facts.cli_version)["spec"]["template"]
        pod = parse_pod({"metadata": {"name": service.full_name, "namespace": SYSTEM_NAMESPACE}} | template)
        for _ in range(service.replicas):
            refused = _place(pod, infos, held)
            if refused is not None:
                return wrong(
                    f"a pod of {service.full_name} fits on no node: {refused}",
                    "add a node, or free CPU and memory on one without taints",
                )
    return in_order("the pods of all services fit on the nodes")


def _place(pod: PodInfo, infos: list[NodeInfo], held: dict[str, list[PodInfo]]) -> str | None:
    """Place the pod on the first node that accepts it. Returns the reason if none does."""
    reasons: list[str] = []
    for node in infos:
        why = refusals(pod, node, held[node.name])
        if not why:
            held[node.name].append(pod)
            return None
        reasons.append(f"{node.name}: {why[0]}")
    return "; ".join(reasons[:3]) or "there is no node"


def _waiting(pods: tuple[Obj, ...]) -> Result:
    for pod in pods:
        refused = condition(pod, "PodScheduled", status="False")
        if refused is not None and pod["metadata"].get("namespace") == SYSTEM_NAMESPACE:
            name = pod["metadata"]["name"]
            return wrong(
                f"pod {name} waits for a node: {refused.get('message') or refused.get('reason')}",
                f"kubectl -n {SYSTEM_NAMESPACE} describe pod {name}",
            )
    return in_order("the pods of all services are on nodes")


def default_storage_class(facts: Facts) -> Result:
    if isinstance(facts.storage_classes, Unread):
        return unread("StorageClasses", facts.storage_classes)
    if isinstance(facts.claims, Unread):
        return unread("volume claims", facts.claims)
    pending = [claim for claim in facts.claims if (claim.get("status") or {}).get("phase") == "Pending"]
    classes = sorted((parse_class(obj) for obj in facts.storage_classes), key=lambda view: view.name)
    defaults = [view.name for view in classes if view.default]
    named = all((claim.get("spec") or {}).get("storageClassName") for claim in facts.claims)
    if not classes and not facts.claims:
        return missing(
            "the cluster has no StorageClass",
            "install a CSI driver; docs/howto/choose-storage.md names one for each kind of cluster",
        )
    if not defaults:
        name = classes[0].name if classes else "CLASS"
        return missing(
            "the cluster has no default StorageClass; available:"
            f" {some([view.name for view in classes]) or 'none'}",
            f"kubectl annotate storageclass {name} {DEFAULT_CLASS_ANNOTATION}=true",
            bearable=bool(facts.claims) and named and not pending,
        )
    if pending:
        name = pending[0]["metadata"]["name"]
        return wrong(
            f"the claim {name} of {SYSTEM_NAMESPACE} waits for its volume",
            f"kubectl -n {SYSTEM_NAMESPACE} describe pvc {name}",
        )
    if len(defaults) > 1:
        return wrong(
            f"{len(defaults)} StorageClasses are the default, and the newest counts: {some(defaults)}",
            f"kubectl annotate storageclass {defaults[1]} {DEFAULT_CLASS_ANNOTATION}-",
            bearable=True,
        )
    return in_order(f"{defaults[0]} is the default")


def shared_storage(facts: Facts) -> Result:
    if isinstance(facts.storage_classes, Unread):
        return unread("StorageClasses", facts.storage_classes)
    classes = sorted((parse_class(obj) for obj in facts.storage_classes), key=lambda view: view.name)
    shared = [view.name for view in classes if view.offers(RWX)]
    if shared:
        return in_order(f"ReadWriteMany: {some(shared)}")
    unclear = [view.name for view in classes if view.offers(RWX) is None]
    if unclear:
        return unknown(
            f"it is not known whether {some(unclear)} offers ReadWriteMany",
            f"kubectl annotate storageclass {unclear[0]} {ACCESS_MODES_ANNOTATION}=ReadWriteOnce,ReadWriteMany",
        )
    return missing(
        "no StorageClass offers ReadWriteMany",
        "install a driver for shared files, such as NFS, CephFS, EFS or Filestore: docs/howto/choose-storage.md",
    )


def default_priority_class(facts: Facts) -> Result:
    if isinstance(facts.priority_classes, Unread):
        return unread("PriorityClasses", facts.priority_classes)
    defaults = [obj for obj in facts.priority_classes if obj.get("globalDefault")]
    foreign = [obj for obj in defaults if obj["metadata"]["name"] != DEFAULT_PRIORITY]
    if not foreign:
        return in_order(f"{DEFAULT_PRIORITY} is the default" if defaults else "the cluster has no other default")
    names = some(sorted(str(obj["metadata"]["name"]) for obj in foreign))
    preempts = any(obj.get("preemptionPolicy") != "Never" for obj in foreign)
    if preempts:
        return wrong(
            f"pods that name no class get {names}, which may preempt: they preempt reservations",
            f"leave it, and set a class in pods that use machines; or make {DEFAULT_PRIORITY} the default",
        )
    return in_order(f"{names} is the default, and does not preempt; Moorage leaves it")


def network_policies(facts: Facts) -> Result:
    if isinstance(facts.daemonsets, Unread):
        return unread("DaemonSets", facts.daemonsets)
    names = [str(obj["metadata"]["name"]) for obj in facts.daemonsets]
    plugins = sorted({plugin for name in names for part, plugin in ENFORCING.items() if part in name})
    if plugins:
        return in_order(f"{some(plugins)} enforces them")
    if isinstance(facts.kubernetes, str) and "+k3s" in facts.kubernetes:
        return in_order("k3s enforces them, unless it was started with --disable-network-policy")
    if any("aws-node" in name for name in names):
        return _amazon(facts.daemonsets)
    if any("flannel" in name for name in names):
        return wrong("Flannel does not enforce them", "install Calico or Cilium, or Canal in addition to Flannel")
    return unknown(
        "the network plugin is not one that is known to enforce them",
        "try it: a pod of another namespace must not reach port 9999 of a pod in " + SYSTEM_NAMESPACE,
    )


def _amazon(daemonsets: tuple[Obj, ...]) -> Result:
    """https://docs.aws.amazon.com/eks/latest/userguide/cni-network-policy.html"""
    for obj in daemonsets:
        if "aws-node" in obj["metadata"]["name"]:
            containers = ((obj.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or ()
            words = [word for container in containers for word in container.get("args") or ()]
            if any(word == "--enable-network-policy=true" for word in words):
                return in_order("the Amazon VPC CNI enforces them")
    return wrong(
        "the Amazon VPC CNI does not enforce them as it is configured",
        "aws eks update-addon --cluster-name CLUSTER --addon-name vpc-cni"
        """ --configuration-values '{"enableNetworkPolicy": "true"}'""",
    )


def pod_security(facts: Facts) -> Result | None:
    if isinstance(facts.namespace, Unread):
        return unread(f"the namespace {SYSTEM_NAMESPACE}", facts.namespace)
    if facts.namespace is None:
        return None
    level = labels_of(facts.namespace).get(POD_SECURITY)
    if level == "restricted":
        return in_order(f"{SYSTEM_NAMESPACE} enforces restricted")
    return wrong(
        f"{SYSTEM_NAMESPACE} enforces {level or 'no level'}, not restricted",
        f"kubectl label namespace {SYSTEM_NAMESPACE} {POD_SECURITY}=restricted --overwrite",
    )


def clock(facts: Facts) -> Result:
    """The API server's date has whole seconds; a lease reveals a clock that is ahead, or far behind."""
    if isinstance(facts.server_date, Unread):
        return unread("the date of the API server", facts.server_date)
    error = facts.round_trip / 2 + timedelta(seconds=1)
    ahead = facts.now - facts.server_date
    if abs(ahead) > SKEW + error:
        how = "ahead of" if ahead > timedelta() else "behind"
        return wrong(
            f"this machine's clock is {_seconds(abs(ahead))} {how} the API server's",
            "start time synchronisation on both: timedatectl set-ntp true",
            bearable=abs(ahead) <= SKEW_MAX,
        )
    if isinstance(facts.leases, Unread):
        return unread("the leases of nodes", facts.leases)
    nodes_read = () if isinstance(facts.nodes, Unread) else facts.nodes
    ready = {node.name for node in map(parse_node, nodes_read) if node.ready}
    for lease in facts.leases:
        renewed = _moment((lease.get("spec") or {}).get("renewTime"))
        name = str(lease["metadata"]["name"])
        if renewed is None or name not in ready:
            continue
        late = facts.server_date - renewed
        if late < -SKEW - error:
            return _node_clock(name, -late, "ahead of")
        if late > LEASE_AGE_MAX + error:
            return _node_clock(name, late, "behind")
    return in_order(f"this machine, the API server and {len(ready)} nodes agree within {_seconds(SKEW + error)}")


def _node_clock(node: str, skew: timedelta, how: str) -> Result:
    return wrong(
        f"the clock of node {node} is about {_seconds(skew)} {how} the API server's",
        f"on {node}: timedatectl set-ntp true",
        bearable=skew <= SKEW_MAX,
    )


def kubelet_certificates(facts: Facts) -> Result | None:
    """https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/#certificate-rotation"""
    if not isinstance(facts.signing_requests, Unread):
        waiting = sorted(
            str(obj["metadata"]["name"])
            for obj in facts.signing_requests
            if (obj.get("spec") or {}).get("signerName") == "kubernetes.io/kubelet-serving"
            and not (obj.get("status") or {}).get("conditions")
        )
        if waiting:
            return wrong(
                f"{len(waiting)} certificates of kubelets wait for approval: {some(waiting)}",
                f"kubectl certificate approve {' '.join(waiting)}",
            )
    if not facts.kubelets:
        return None
    known = {node: obj for node, obj in facts.kubelets.items() if not isinstance(obj, Unread)}
    if not known:
        reason = next(reason for reason in facts.kubelets.values() if isinstance(reason, Unread))
        return unread("the configuration of kubelets", reason)
    own = sorted(node for node, obj in known.items() if not _signed(obj))
    if own:
        return wrong(
            f"kubelets sign their own certificates on {some(own)}; `moor volume list` shows no use there",
            "set serverTLSBootstrap: true in the kubelets' configuration, restart them, approve their requests",
        )
    return in_order(f"the kubelets of {len(known)} nodes have certificates that the cluster can sign")


def _signed(config: Mapping[str, Any]) -> bool:
    kubelet = config.get("kubeletconfig") or {}
    return bool(kubelet.get("serverTLSBootstrap") or kubelet.get("tlsCertFile"))


def neighbours(facts: Facts) -> Result | None:
    if isinstance(facts.crds, Unread):
        return unread("CustomResourceDefinitions", facts.crds)
    added = {str(crd["metadata"]["name"]): crd for crd in facts.added_crds}
    others = [
        obj
        for obj in facts.crds
        if (shipped := added.get(str(obj["metadata"]["name"]))) is None or is_anothers(obj, shipped)
    ]
    groups = {str((obj.get("spec") or {}).get("group") or "") for obj in others}
    names = [name for group, name in NEIGHBOURS.items() if group in groups]
    return in_order(f"installed here: {', '.join(names)}") if names else None


def _moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.0f} s"
