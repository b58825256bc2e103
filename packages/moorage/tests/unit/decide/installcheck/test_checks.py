"""Each check of `moor doctor install`, over clusters made up field by field."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.cli.doctortext import verdicts_json, verdicts_text
from moorage.decide.installcheck.checks import CHECKS, Stage, Verdict, judge
from moorage.decide.installcheck.facts import NEEDED_RIGHTS, Facts, Probe, Site, Unread
from moorage.decide.installcheck.results import Outcome
from moorage.features import feature_crds
from moorage.model.crds import all_crds
from moorage.model.manifests import ALL, make_service
from moorage.model.secondscheduler import make_second_scheduler
from moorage_kube.access import EVERYTHING

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
GIB = 2**30
SECRETS = frozenset({"moorage-webhook-tls", "moorage-extender", "moorage-page"})  # before there is a workspace
INFO = {"serverUrl": "http://moorage-server.moorage-system.svc", "version": "0.1.0"}


def a_node(
    name: str = "n1", *, ready: bool = True, labels: Any = None, runtime: str = "containerd://2", **more: str
):
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110"} | {
        key.replace("__", "/").replace("_", "."): value for key, value in more.items()
    }
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    info = {"containerRuntimeVersion": runtime}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "status": {"allocatable": allocatable, "conditions": conditions, "nodeInfo": info},
    }


def a_class(name: str = "fast", *, provisioner: str = "nfs.csi.k8s.io", default: bool = True, modes: str = ""):
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    if modes:
        notes["moorage.dev/access-modes"] = modes
    return {"metadata": {"name": name, "annotations": notes}, "provisioner": provisioner}


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}} | more


def a_lease(node: str = "n1", *, late: timedelta = timedelta(seconds=4)):
    return named(node, spec={"renewTime": (NOON - late).strftime("%Y-%m-%dT%H:%M:%S.%fZ")})


def a_pod_of(service: str, *, waiting: Any = None, conditions: Any = (), last: Any = None):
    status = {"image": "r/moorage:0.1.0", "state": {"waiting": waiting} if waiting else {"running": {}}}
    if last:
        status["lastState"] = {"terminated": last}
    return {
        "metadata": {
            "name": f"{service}-1",
            "namespace": "moorage-system",
            "labels": {"app.kubernetes.io/name": service},
        },
        "spec": {"containers": []},
        "status": {"containerStatuses": [status], "conditions": list(conditions)},
    }


def our_deployments(image: str = "r/moorage:0.1.0", **available: int):
    made = []
    for service in ALL:
        [deployment] = [obj for obj in make_service(service, version="0.1.0") if obj["kind"] == "Deployment"]
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image
        deployment["status"] = {"availableReplicas": available.get(service.name, service.replicas)}
        made.append(deployment)
    return tuple(made)


def a_second_scheduler():
    made = make_second_scheduler("v1.36.2")
    return next(obj for obj in made if obj["kind"] == "Deployment")


def our_crds():
    established = {"conditions": [{"type": "Established", "status": "True"}]}
    return tuple(crd | {"status": established} for crd in (*all_crds(), *feature_crds()))


FIRST_CRD = our_crds()[0]["metadata"]["name"]


def our_webhooks(bundle: str = "Q0E="):
    return tuple(
        named("moorage", kind=kind, webhooks=[{"clientConfig": {"caBundle": bundle}}])
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    )


BARE = Facts(
    now=NOON,
    cli_version="0.1.0",
    server_date=NOON,
    kubernetes="v1.34.1",
    rights={EVERYTHING: True},
    nodes=(a_node(),),
    leases=(a_lease(),),
    storage_classes=(a_class(),),
    ingress_classes=(
        {"metadata": {"name": "traefik", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}}},
    ),
    daemonsets=(named("cilium"), named("nvidia-device-plugin-daemonset")),
    kubelets={"n1": {"kubeletconfig": {"serverTLSBootstrap": True}}},
)
ASKED = "moorage_extender_last_request_timestamp_seconds"
WHOLE = replace(
    BARE,
    info=INFO | {"publicUrl": "https://m.example.org", "workspaceUrl": "https://*.apps.example.org"},
    nodes=(a_node(labels={"nvidia.com/gpu.product": "H200"}, nvidia_com__gpu="8"),),
    priority_classes=(named("moorage-default", globalDefault=True),),
    namespace=named("moorage-system") | {
        "metadata": {
            "name": "moorage-system", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}
        }
    },
    crds=our_crds(),
    added_crds=tuple(feature_crds()),
    deployments=our_deployments(),
    pods=tuple(a_pod_of(service.full_name) for service in ALL),
    secrets=SECRETS,
    webhooks=our_webhooks(),
    webhook_refusal='admission webhook "kinds.moorage.dev" denied the request: no group',
    server="ok",
    extenders=(f"{ASKED} {NOON.timestamp() - 30}\n",),
    public=Site(url="https://m.example.org", status=200, expires=NOON + timedelta(days=60)),
    workspace_host="x.apps.example.org",
    workspace_addresses=("192.0.2.1",),
)  # fmt: skip
LOCAL = replace(
    WHOLE,
    nodes=(a_node(runtime="process://1"),),
    deployments=(),
    pods=(),
    secrets=frozenset(),
    extenders=Unread("none"),
    kubelets={},
    public=None,
)


def verdict_of(facts: Facts, name: str) -> Verdict | None:
    return next((verdict for verdict in judge(facts) if verdict.check.name == name), None)


CASES = [
    # cluster
    ("kubernetes-version", {"kubernetes": "v1.29.9"}, "wrong!", "v1.29.9; Moorage needs v1.30 or newer"),
    ("kubernetes-version", {"kubernetes": "v1.33.1-gke.100"}, "found", "v1.33.1-gke.100"),
    ("kubernetes-version", {"kubernetes": "v1.99.0"}, "found", "was not tested on a version this new"),
    ("kubernetes-version", {"kubernetes": "what"}, "unknown", "'what'"),
    ("permissions", {"rights": {EVERYTHING: True}}, "found", "cluster-admin"),
    ("permissions", {"rights": dict.fromkeys(NEEDED_RIGHTS, True)}, "found", "all that the installation needs"),
    (
        "permissions",
        {"rights": dict.fromkeys(NEEDED_RIGHTS, True) | {NEEDED_RIGHTS[1]: False}},
        "wrong!",
        "create customresourcedefinitions.apiextensions.k8s.io",
    ),
    ("permissions", {"rights": dict.fromkeys(NEEDED_RIGHTS, False)}, "wrong!", "and "),
    ("permissions", {"rights": dict.fromkeys(NEEDED_RIGHTS, False), "info": INFO}, "wrong", "create namespaces"),
    ("nodes", {"nodes": ()}, "missing!", "no node"),
    ("nodes", {"nodes": (a_node(ready=False),)}, "wrong!", "none of 1 nodes is Ready"),
    ("nodes", {"nodes": (a_node(), a_node("n2", ready=False))}, "wrong", "1 of 2 nodes are Ready; not Ready: n2"),
    ("nodes", {"nodes": Unread("forbidden")}, "unknown", "forbidden"),
    ("requests-fit", {}, "found", "the pods of all services fit"),
    ("requests-fit", {"nodes": (a_node(cpu="300m"),)}, "wrong!", "fits on no node: n1: too little cpu"),
    ("requests-fit", {"nodes": ()}, "wrong!", "there is no node"),
    (
        "requests-fit",
        {
            "pods": (
                {
                    "metadata": {"name": "big", "namespace": "x"},
                    "spec": {
                        "nodeName": "n1",
                        "containers": [{"name": "c", "resources": {"requests": {"memory": "31.5Gi"}}}],
                    },
                },
            )
        },
        "wrong!",
        "too little memory",
    ),
    ("default-storage-class", {"storage_classes": ()}, "missing!", "no StorageClass"),
    ("default-storage-class", {"storage_classes": (a_class(default=False),)}, "missing!", "available: fast"),
    (
        "default-storage-class",
        {
            "storage_classes": (a_class(default=False),),
            "claims": (named("moorage-usage", spec={"storageClassName": "fast"}, status={"phase": "Bound"}),),
        },
        "missing",
        "the cluster has no default StorageClass",
    ),
    (
        "default-storage-class",
        {"claims": (named("moorage-usage", spec={}, status={"phase": "Pending"}),)},
        "wrong!",
        "the claim moorage-usage of moorage-system waits",
    ),
    (
        "default-storage-class",
        {"storage_classes": (a_class("a"), a_class("b"))},
        "wrong",
        "the newest counts: a, b",
    ),
    ("shared-storage", {}, "found", "ReadWriteMany: fast"),
    (
        "shared-storage",
        {"storage_classes": (a_class(provisioner="ebs.csi.aws.com"),)},
        "missing",
        "no StorageClass",
    ),
    ("shared-storage", {"storage_classes": (a_class(provisioner="acme/x"),)}, "unknown", "whether fast offers"),
    (
        "shared-storage",
        {"storage_classes": (a_class(provisioner="acme/x", modes="ReadWriteMany"),)},
        "found",
        "fast",
    ),
    ("default-priority-class", {}, "found", "the cluster has no other default"),
    (
        "default-priority-class",
        {"priority_classes": (named("normal", globalDefault=True),)},
        "wrong",
        "normal, which may preempt",
    ),
    (
        "default-priority-class",
        {"priority_classes": (named("calm", globalDefault=True, preemptionPolicy="Never"),)},
        "found",
        "calm is the default, and does not preempt",
    ),
    ("network-policies", {}, "found", "Cilium"),
    ("network-policies", {"daemonsets": (named("kube-flannel-ds"),)}, "wrong", "Flannel does not"),
    ("network-policies", {"daemonsets": (), "kubernetes": "v1.33.1+k3s1"}, "found", "k3s"),
    ("network-policies", {"daemonsets": ()}, "unknown", "not one that is known"),
    ("network-policies", {"daemonsets": (named("aws-node"),)}, "wrong", "Amazon VPC CNI"),
    (
        "network-policies",
        {
            "daemonsets": (
                named(
                    "aws-node",
                    spec={"template": {"spec": {"containers": [{"args": ["--enable-network-policy=true"]}]}}},
                ),
            )
        },
        "found",
        "Amazon VPC CNI enforces",
    ),
    ("pod-security", {"namespace": named("moorage-system"), "info": INFO}, "wrong", "enforces no level"),
    ("pod-security", {"namespace": None}, None, ""),
    # gpus
    ("gpus", {"daemonsets": ()}, "missing", "no device plugin was found"),
    ("gpus", {}, "missing", "although nvidia-device-plugin-daemonset is installed"),
    ("gpus", {"nodes": (a_node(nvidia_com__gpu="8"),)}, "found", "8 GPUs on 1 nodes"),
    (
        "gpus",
        {"nodes": (a_node(labels={"nvidia.com/gpu.present": "true"}),)},
        "wrong",
        "offer none: n1; the device",
    ),
    (
        "gpus",
        {"nodes": (a_node(labels={"feature.node.kubernetes.io/pci-10de.present": "true"}),), "daemonsets": ()},
        "wrong",
        "no device plugin was found",
    ),
    ("gpu-labels", {}, None, ""),
    ("gpu-labels", {"nodes": (a_node(nvidia_com__gpu="8"),)}, "missing", "no label of their type: n1"),
    (
        "gpu-labels",
        {"nodes": (a_node(nvidia_com__gpu="8", labels={"cloud.google.com/gke-accelerator": "nvidia-l4"}),)},
        "found",
        "nvidia-l4",
    ),
    ("gpu-sharing", {"nodes": (a_node(nvidia_com__gpu="8"),)}, None, ""),
    (
        "gpu-sharing",
        {"nodes": (a_node(labels={"nvidia.com/gpu.replicas": "4"}),)},
        "found",
        "shared in time on n1",
    ),
    (
        "gpu-sharing",
        {"nodes": (a_node(nvidia_com__gpu="8", labels={"nvidia.com/mig.strategy": "single"}),)},
        "found",
        "MIG, strategy single",
    ),
    # clock
    ("clock", {}, "found", "1 nodes agree within"),
    ("clock", {"now": NOON + timedelta(seconds=30)}, "wrong", "30 s ahead of the API server's"),
    ("clock", {"now": NOON - timedelta(minutes=5)}, "wrong!", "300 s behind"),
    ("clock", {"leases": (a_lease(late=timedelta(seconds=-20)),)}, "wrong", "node n1 is about 20 s ahead"),
    ("clock", {"leases": (a_lease(late=timedelta(minutes=10)),)}, "wrong!", "node n1 is about 600 s behind"),
    ("clock", {"leases": (a_lease("gone", late=timedelta(minutes=10)),)}, "found", "agree"),
    ("clock", {"leases": (named("n1", spec={"renewTime": "soon"}),)}, "found", "agree"),
    ("clock", {"server_date": Unread("no date")}, "unknown", "no date"),
    # kubelets
    ("kubelet-certificates", {}, "found", "1 nodes"),
    ("kubelet-certificates", {"kubelets": {"n1": {"kubeletconfig": {}}}}, "wrong", "own certificates on n1"),
    ("kubelet-certificates", {"kubelets": {"n1": Unread("forbidden")}}, "unknown", "forbidden"),
    (
        "kubelet-certificates",
        {"signing_requests": (named("csr-1", spec={"signerName": "kubernetes.io/kubelet-serving"}),)},
        "wrong",
        "wait for approval: csr-1",
    ),
    ("neighbours", {}, None, ""),
    ("neighbours", {"crds": (named("x", spec={"group": "kueue.x-k8s.io"}),)}, "found", "Kueue"),
    # image
    ("image", {}, "unknown", "the image was not tested"),
    ("image", {"probe": Probe(image="r/m:1", node="n1")}, "found", "r/m:1 was pulled on n1"),
    ("image", {"probe": Probe(image="r/m:1", error="not found")}, "wrong!", "r/m:1 was not pulled: not found"),
    # ways in
    ("ingress-class", {"ingress_classes": ()}, "missing", "no IngressClass"),
    (
        "ingress-class",
        {"ingress_classes": (named("a"),)},
        "wrong",
        "the cluster has no default IngressClass; available: a",
    ),
    (
        "ingress-class",
        {"info": INFO | {"ingressClass": "b"}},
        "wrong",
        "ingressClass 'b' not found; available: traefik",
    ),
    ("ingress-class", {"info": INFO | {"ingressClass": "traefik"}}, "found", "workspaces use traefik"),
]
AFTER = [
    ("image", {}, "found", "pulled: r/moorage:0.1.0"),
    (
        "image",
        {"pods": (a_pod_of("moorage-server", waiting={"reason": "ImagePullBackOff", "message": "no such host"}),)},
        "wrong!",
        "r/moorage:0.1.0 is not pulled: no such host",
    ),
    ("image", {"pods": (a_pod_of("moorage-server", waiting={"reason": "ContainerCreating"}),)}, "found", "pulled"),
    (
        "requests-fit",
        {
            "pods": (
                a_pod_of(
                    "moorage-server",
                    conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}],
                ),
            )
        },
        "wrong!",
        "pod moorage-server-1 waits for a node: 0/1 nodes",
    ),
    ("crds", {"crds": our_crds()[1:]}, "missing!", f"there is no {FIRST_CRD}"),
    (
        "crds",
        {"crds": (our_crds()[0] | {"spec": {"versions": []}}, *our_crds()[1:])},
        "wrong!",
        f"lack fields of this version: {FIRST_CRD}",
    ),
    ("crds", {"crds": tuple(all_crds())}, "wrong!", "not established"),
    ("workflow-kinds", {}, "found", "4 definitions are made by Moorage"),
    ("workflow-kinds", {"crds": all_crds()}, "missing", "there is no clusterworkflowtemplates.argoproj.io"),
    (
        "workflow-kinds",
        {"crds": (*our_crds()[:-1], our_crds()[-1] | {"spec": {"group": "argoproj.io", "versions": []}})},
        "found",
        "not made by Moorage, and left as they are: workflowtemplates.argoproj.io",
    ),
    ("versions", {}, "found", "all are 0.1.0"),
    ("versions", {"deployments": (*our_deployments(), a_second_scheduler())}, "found", "all are 0.1.0"),
    ("versions", {"info": INFO | {"version": "0.2.0"}}, "wrong", "moor 0.1.0, ConfigMap 0.2.0"),
    (
        "versions",
        {"deployments": (*our_deployments()[:1], *our_deployments("r:5000/moorage:0.2.0")[1:])},
        "wrong",
        "moorage-operator 0.1.0, moorage-server 0.2.0",
    ),
    ("versions", {"deployments": our_deployments("r:5000/moorage@sha256:0a")}, "found", "all are"),
    ("secrets", {"secrets": SECRETS - {"moorage-page"}}, "missing!", "not created moorage-page"),
    ("services", {"deployments": our_deployments()[1:]}, "missing!", "no Deployment moorage-operator"),
    ("services", {"deployments": our_deployments(webhook=1)}, "wrong", "moorage-webhook 1 of 2"),
    (
        "services",
        {
            "deployments": our_deployments(server=0),
            "pods": (a_pod_of("moorage-server", waiting={"reason": "CrashLoopBackOff"}, last={"exitCode": 1}),),
        },
        "wrong!",
        "moorage-server 0 of 1; moorage-server-1: CrashLoopBackOff, exit 1",
    ),
    ("server-ready", {"server": Unread("503")}, "wrong!", "503"),
    ("database", {}, "found", "files on the server's volume"),
    ("database", {"secrets": SECRETS | {"moorage-queue"}}, "found", "PostgreSQL answers"),
    ("database", {"secrets": SECRETS | {"moorage-queue"}, "server": Unread("503")}, "unknown", "server's log"),
    (
        "database",
        {"deployments": tuple(obj | {"spec": obj["spec"] | {"replicas": 2}} for obj in our_deployments())},
        "missing!",
        "the server needs PostgreSQL, and there is no Secret moorage-queue",
    ),
    ("webhook", {"webhooks": our_webhooks()[1:]}, "missing!", "no MutatingWebhookConfiguration moorage"),
    ("webhook", {"webhooks": our_webhooks("")}, "wrong!", "caBundle"),
    ("webhook", {"webhook_refusal": ""}, "wrong!", "does not reach the webhook"),
    ("webhook", {"webhook_refusal": Unread("forbidden")}, "unknown", "forbidden"),
    ("scheduler", {}, "found", "asked the extender 30 s ago"),
    ("scheduler", {"extenders": (f"{ASKED} 0.0\n", f"{ASKED} {NOON.timestamp()}")}, "found", "0 s ago"),
    ("scheduler", {"extenders": (f"{ASKED} 0.0\n",)}, "missing", "the extender got no request"),
    (
        "scheduler",
        {"extenders": (f'{ASKED} 0.0\nmoorage_extender_requests_total{{code="401",verb="prioritize"}} 7.0\n',)},
        "wrong",
        "wrong token (7 times)",
    ),
    ("public-url", {"public": None}, "missing", "publicUrl is not set"),
    (
        "public-url",
        {"public": Site(url="https://m", untrusted=True, error="self-signed")},
        "wrong!",
        "self-signed",
    ),
    ("public-url", {"public": Site(url="https://m", error="no route")}, "wrong!", "does not answer: no route"),
    ("public-url", {"public": Site(url="https://m", status=404)}, "wrong!", "answers 404, not 200"),
    (
        "public-url",
        {"public": Site(url="https://m", status=200, expires=NOON + timedelta(days=3))},
        "wrong",
        "ends at 2026-11-26 12:00 UTC",
    ),
    ("public-url", {"public": Site(url="http://m", status=200)}, "wrong", "no TLS"),
    ("workspace-url", {"info": INFO}, "missing", "workspaceUrl is not set"),
    ("workspace-url", {"info": INFO | {"workspaceUrl": "apps"}}, "wrong!", "workspaceUrl is 'apps'"),
    ("workspace-url", {"workspace_addresses": Unread("NXDOMAIN")}, "wrong!", "does not resolve: NXDOMAIN"),
    ("workspace-url", {"info": INFO | {"workspaceUrl": "http://*.x.localhost"}}, "found", "browsers resolve"),
]


@pytest.mark.parametrize(
    ("base", "name", "changes", "outcome", "words"),
    [
        pytest.param(base, *case, id=f"{case[0]}: {case[3] or 'does not apply'}")
        for base, cases in ((BARE, CASES), (WHOLE, AFTER))
        for case in cases
    ],
)
def test_a_check_says_what_it_found(base, name, changes, outcome, words):
    """`outcome`: a "!" says that the whole fails because of it; None: the check does not apply."""
    verdict = verdict_of(replace(base, **changes), name)
    shown = verdict and f"{verdict.result.outcome}{'!' if verdict.failed else ''}"
    assert shown == outcome, verdict
    assert verdict is None or words in verdict.result.message


def test_a_whole_installation_fails_no_check():
    assert [verdict for verdict in judge(WHOLE) if verdict.result.outcome is not Outcome.FOUND] == []
    assert {verdict.check.name for verdict in judge(WHOLE)} == {check.name for check in CHECKS} - {
        "gpu-sharing",
        "neighbours",
    }


def test_before_the_installation_only_the_cluster_is_judged():
    names = {verdict.check.name for verdict in judge(BARE)}
    assert names.isdisjoint(check.name for check in CHECKS if check.stage is Stage.AFTER)


def test_a_local_cluster_is_not_asked_for_what_it_does_not_need():
    names = {verdict.check.name for verdict in judge(LOCAL)}
    assert names.isdisjoint(check.name for check in CHECKS if not check.on_local)
    assert [verdict for verdict in judge(LOCAL) if verdict.failed] == []


READ = [name for name, kind in Facts.__annotations__.items() if "Reading" in kind or "Objects" in kind]


@given(st.sets(st.sampled_from(READ)))
def test_what_cannot_be_read_is_said_and_never_called_in_order(unread):
    facts = replace(WHOLE, **{name: Unread("forbidden") for name in unread - {"info", "deployments", "kubelets"}})
    verdicts = judge(facts)
    whole = {verdict.check.name: verdict for verdict in judge(WHOLE)}
    for verdict in verdicts:
        assert verdict == whole.get(verdict.check.name) or (
            verdict.result.outcome is not Outcome.FOUND or verdict.check.name in ("gpus", "clock", "requests-fit")
        )
    assert list(verdicts_text(facts, verdicts))


def test_every_fault_says_why_it_matters_and_what_to_do():
    for base, cases in ((BARE, CASES), (WHOLE, AFTER)):
        for name, changes, outcome, _ in cases:
            verdict = verdict_of(replace(base, **changes), name)
            if verdict is not None and outcome and outcome.rstrip("!") in ("missing", "wrong"):
                assert verdict.result.fix, name
                assert verdict.check.why


def test_the_report_for_people_and_for_programs():
    facts = replace(BARE, nodes=(a_node(ready=False),), kubelets={})
    verdicts = judge(facts)
    lines = list(verdicts_text(facts, verdicts))
    assert lines[0] == "Moorage is not installed: these checks are of the cluster"
    at = next(number for number, line in enumerate(lines) if line.startswith("wrong    nodes "))
    assert lines[at + 1 : at + 3] == [
        "         why: pods run on nodes that are Ready (required)",
        "         fix: kubectl describe node n1",
    ]
    document = verdicts_json(facts, verdicts)
    assert (document["installed"], document["failed"]) == (False, 2)
    assert document["checks"][2] == {
        "name": "nodes",
        "outcome": "wrong",
        "required": True,
        "message": "none of 1 nodes is Ready",
        "why": "pods run on nodes that are Ready",
        "fix": ["kubectl describe node n1"],
    }


def test_every_page_that_a_fix_names_exists():
    root = Path(__file__).parents[6]
    named = {
        page
        for path in (root / "packages/moorage/src/moorage/decide/installcheck").glob("*.py")
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }
    assert named
    assert {page for page in named if not (root / page).is_file()} == set()


def test_the_page_of_symptoms_names_checks_that_there_are():
    page = (Path(__file__).parents[6] / "docs" / "howto" / "troubleshoot-an-installation.md").read_text()
    named = {
        name
        for words in re.findall(r"checks? ((?:`[a-z-]+`(?:, )?)+)", page)
        for name in re.findall(r"`([a-z-]+)`", words)
    }
    assert len(named) > 10
    assert named <= {check.name for check in CHECKS}
