"""Each service of ours may do what its manifest says, and nothing else: every right is tried, on any cluster.

The cluster answers (SubjectAccessReview); what it should answer is read from `deploy/`, which is reviewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from moorage.cli.manifests import objects
from moorage.model.manifests import CLUSTERROLEBINDINGS, ROLEBINDINGS
from moorage.model.names import GROUP, KUBELETS_ACCOUNT, SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage_kube.errors import Forbidden
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES as NAMESPACE_KIND
from moorage_kube.resources import NODES, SECRETS, SUBJECTACCESSREVIEWS
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

ACCOUNTS = ("moorage-operator", "moorage-webhook", "moorage-extender", "moorage-server", KUBELETS_ACCOUNT)
ELSEWHERE = "somebodys-namespace"
NAMESPACES = ("", ELSEWHERE, SYSTEM_NAMESPACE, PEOPLE_NAMESPACE, "kube-system")
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RBAC = "rbac.authorization.k8s.io"
# (group, resource/subresource): what leads to the rights of others, or to their data
RESOURCES = (
    ("", "nodes"), ("", "nodes/proxy"), ("", "nodes/stats"), ("", "nodes/log"), ("", "nodes/metrics"),
    ("", "nodes/status"), ("", "pods"), ("", "pods/exec"), ("", "pods/attach"), ("", "pods/portforward"),
    ("", "pods/proxy"), ("", "pods/ephemeralcontainers"), ("", "pods/log"), ("", "pods/binding"),
    ("", "pods/eviction"), ("", "services"), ("", "services/proxy"), ("", "secrets"), ("", "configmaps"),
    ("", "serviceaccounts"), ("", "serviceaccounts/token"), ("", "namespaces"), ("", "namespaces/finalize"),
    ("", "persistentvolumes"), ("", "persistentvolumeclaims"), ("", "resourcequotas"), ("", "endpoints"),
    ("apps", "deployments"), ("apps", "daemonsets"), ("apps", "statefulsets"), ("batch", "jobs"),
    ("batch", "cronjobs"), ("networking.k8s.io", "ingresses"), ("networking.k8s.io", "networkpolicies"),
    ("discovery.k8s.io", "endpointslices"), ("scheduling.k8s.io", "priorityclasses"),
    ("storage.k8s.io", "storageclasses"), ("coordination.k8s.io", "leases"), (RBAC, "roles"),
    (RBAC, "rolebindings"), (RBAC, "clusterroles"), (RBAC, "clusterrolebindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "customresourcedefinitions"), ("certificates.k8s.io", "certificatesigningrequests"),
    ("certificates.k8s.io", "certificatesigningrequests/approval"), ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"), (GROUP, "tenants"), (GROUP, "machines"),
    (GROUP, "guardrailpolicies"), (GROUP, "idlepolicies"), (GROUP, "budgets"),
    (GROUP, "workspaces"), (GROUP, "datasets"),
    (GROUP, "mapjobs"),
)  # fmt: skip
MORE = (  # verbs that stand alone
    ("impersonate", "", "users"), ("impersonate", "", "groups"), ("impersonate", "", "serviceaccounts"),
    ("bind", RBAC, "clusterroles"), ("escalate", RBAC, "clusterroles"), ("bind", RBAC, "roles"),
    ("escalate", RBAC, "roles"), ("open", GROUP, "workspaces"),
    ("approve", "certificates.k8s.io", "signers"), ("sign", "certificates.k8s.io", "signers"),
)  # fmt: skip
Right = tuple[str, str, str, str]  # verb, group, resource, namespace
RIGHTS: tuple[Right, ...] = (
    *((verb, group, name, where) for verb in VERBS for group, name in RESOURCES for where in NAMESPACES),
    *((verb, group, name, where) for verb, group, name in MORE for where in NAMESPACES),
)
# no service of ours, whatever its manifest says one day
NEVER = (
    *((verb, "", f"nodes/{part}") for verb in VERBS for part in ("proxy", "log")),
    *((verb, "", f"pods/{part}") for verb in VERBS
      for part in ("exec", "attach", "portforward", "proxy", "ephemeralcontainers", "binding")),
    *((verb, "", "services/proxy") for verb in VERBS),
    *(("impersonate", "", name) for name in ("users", "groups")),
    *(("escalate", RBAC, name) for name in ("roles", "clusterroles")),
    *((verb, RBAC, "clusterrolebindings") for verb in VERBS if verb not in ("get", "list", "watch")),
    *((verb, "", "namespaces/finalize") for verb in VERBS),
    ("approve", "certificates.k8s.io", "signers"),
    ("sign", "certificates.k8s.io", "signers"),
    ("delete", "", "namespaces"),
    ("delete", "", "nodes"),
    *((verb, "", "nodes/status") for verb in VERBS),
    *((verb, RBAC, name) for verb in VERBS[3:] for name in ("roles", "clusterroles")),
    *((verb, RBAC, "rolebindings") for verb in ("update", "patch", "delete", "deletecollection")),
    *((verb, "apiextensions.k8s.io", "customresourcedefinitions") for verb in VERBS),
    *((verb, "certificates.k8s.io", "certificatesigningrequests/approval") for verb in VERBS),
    *((verb, "", "pods/eviction") for verb in VERBS),
    *((verb, "apps", "daemonsets") for verb in VERBS),
    *(("deletecollection", group, name) for group, name in RESOURCES),
)  # fmt: skip


def granted(account: str) -> list[tuple[str, Any]]:
    """(namespace or "" for everywhere, rule) of an account, by the manifests."""
    made = [obj for found in objects().values() for obj in found]
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one["rules"]
        for one in made
        if one["kind"] in ("Role", "ClusterRole")
    }
    found = []
    for binding in made:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        subjects = {(one["kind"], one["name"]) for one in binding["subjects"]}
        if not subjects & {("ServiceAccount", account), ("Group", "system:authenticated")}:
            continue
        where = binding["metadata"].get("namespace", "")
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        found += [(where, rule) for rule in roles[kind, where if kind == "Role" else "", name]]
    return found


def is_granted(rules: Iterable[tuple[str, Any]], right: Right) -> bool:
    """Whether rules without names of objects allow it."""
    verb, group, resource, namespace = right
    return any(
        (not where or where == namespace)
        and not rule.get("resourceNames")
        and verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        for where, rule in rules
    )


async def may(api: KubeClient, account: str, right: Right, name: str = "") -> bool:
    verb, group, resource, namespace = right
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
        "namespace": namespace,
    }
    spec = {
        "user": f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"],
        "resourceAttributes": attributes | ({"name": name} if name else {}),
    }
    made = await api.create(SUBJECTACCESSREVIEWS, {"spec": spec})
    return bool(made["status"]["allowed"])


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_a_service_has_the_rights_of_its_manifest_and_no_other(cluster: Cluster, account: str) -> None:
    rules = granted(account)
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        answers = []
        for first in range(0, len(RIGHTS), 64):
            answers += await asyncio.gather(*(may(api, account, one) for one in RIGHTS[first : first + 64]))
    allowed = {right for right, answer in zip(RIGHTS, answers, strict=True) if answer}
    assert allowed == {right for right in RIGHTS if is_granted(rules, right)}
    never = {(verb, group, name, where) for verb, group, name in NEVER for where in NAMESPACES}
    assert allowed & never == set()
    written = {(where, name) for verb, _, name, where in allowed if verb == "get" and name == "secrets"}
    # passwords are there, and the server checks them; of all other Secrets only those it names can be read
    assert written == ({(PEOPLE_NAMESPACE, "secrets")} if account == "moorage-server" else set())


async def test_the_server_takes_tokens_of_the_account_that_reads_statistics_and_of_people_alone(
    cluster: Cluster,
) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        for namespace, name, want in (
            (SYSTEM_NAMESPACE, KUBELETS_ACCOUNT, True),
            (SYSTEM_NAMESPACE, "moorage-operator", False),
            (SYSTEM_NAMESPACE, "default", False),
            ("kube-system", "clusterrole-aggregation-controller", False),
            (ELSEWHERE, "default", False),
        ):
            right = ("create", "", "serviceaccounts/token", namespace)
            assert await may(api, "moorage-server", right, name) is want, (namespace, name)


POD_ANYWHERE = "start a pod among Kubernetes' own"
# what an account needs for its work all the same: RBAC knows no "every namespace but these"
TENANT_RULES = "change the rules of a tenant"
NEEDED = {
    "moorage-operator": [POD_ANYWHERE],  # steps of workflows, as before them the Jobs of maps
    "moorage-server": [TENANT_RULES],  # for admins of a team, who may not change the Tenant themselves
}
# (what somebody could do with it, verb, group, resource, namespace, name): nobody of ours may, whatever its rules
HARM: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("run commands in any pod", "create", "", "pods/exec", "kube-system", "etcd"),
    ("run commands in any pod, by its kubelet", "create", "", "nodes/proxy", "", "node-1"),
    ("reach ports of any pod", "create", "", "pods/portforward", ELSEWHERE, "x"),
    ("read somebody's Secret", "get", "", "secrets", ELSEWHERE, "aws"),
    ("read Kubernetes' Secrets", "list", "", "secrets", "kube-system", ""),
    ("read the Secrets of the services at once", "list", "", "secrets", SYSTEM_NAMESPACE, ""),
    ("read any configuration", "list", "", "configmaps", ELSEWHERE, ""),
    (POD_ANYWHERE, "create", "", "pods", "kube-system", ""),
    ("put a pod past the scheduler", "create", "", "pods/binding", ELSEWHERE, "x"),
    ("be anybody", "impersonate", "", "users", "", "admin"),
    ("be the masters", "impersonate", "", "groups", "", "system:masters"),
    ("be a controller", "impersonate", "", "serviceaccounts", "kube-system", "namespace-controller"),
    ("be another service", "impersonate", "", "serviceaccounts", SYSTEM_NAMESPACE, "moorage-operator"),
    ("get a controller's token", "create", "", "serviceaccounts/token", "kube-system", "namespace-controller"),
    ("get another service's token", "create", "", "serviceaccounts/token", SYSTEM_NAMESPACE, "moorage-operator"),
    ("give all rights in a namespace", "bind", RBAC, "clusterroles", ELSEWHERE, "cluster-admin"),
    ("give all rights", "bind", RBAC, "clusterroles", "", "cluster-admin"),
    ("write more rights than it has", "escalate", RBAC, "clusterroles", "", "moorage-operator"),
    ("change its own rights", "patch", RBAC, "clusterroles", "", "moorage-operator"),
    ("take others' rights", "delete", RBAC, "rolebindings", ELSEWHERE, "theirs"),
    ("lift somebody's quota", "update", "", "resourcequotas", ELSEWHERE, "theirs"),
    ("open somebody's network", "delete", "networking.k8s.io", "networkpolicies", ELSEWHERE, "theirs"),
    (
        "see all that is written",
        "update",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "",
        "x",
    ),
    ("switch off a check", "update", "admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "x"),
    ("register a webhook", "create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", ""),
    ("say that a node is well", "patch", "", "nodes/status", "", "node-1"),
    ("remove a node", "delete", "", "nodes", "", "node-1"),
    ("remove a namespace", "delete", "", "namespaces", "", ELSEWHERE),
    ("remove all volumes at once", "deletecollection", "", "persistentvolumes", "", ""),
    ("change somebody's priority", "patch", "scheduling.k8s.io", "priorityclasses", "", "theirs"),
    ("change a kind", "update", "apiextensions.k8s.io", "customresourcedefinitions", "", "tenants.moorage.dev"),
    (TENANT_RULES, "patch", GROUP, "tenants", "", "lab"),
    ("switch off guardrails", "delete", GROUP, "guardrailpolicies", "", "gpu-cluster"),
    ("sign a certificate", "update", "certificates.k8s.io", "certificatesigningrequests/approval", "", "x"),
)


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_no_service_may_do_harm_that_its_work_does_not_need(cluster: Cluster, account: str) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        allowed = [
            harm
            for harm, verb, group, resource, namespace, name in HARM
            if await may(api, account, (verb, group, resource, namespace), name)
        ]
    assert allowed == NEEDED.get(account, [])


async def test_what_the_operator_may_not_do_is_refused_when_it_is_tried(cluster: Cluster, unique: str) -> None:
    """Real requests in the name of the account that may most; RBAC refuses an escalation beyond the verbs, too."""
    name = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-operator"
    subject = {"kind": "ServiceAccount", "name": "moorage-operator", "namespace": SYSTEM_NAMESPACE}
    binding = {
        "metadata": {"name": unique, "namespace": "default"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [subject],
    }
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        operator = api.as_user(name, ("system:serviceaccounts", "system:authenticated"))
        assert (await operator.list(TENANTS)).items is not None  # it is the account, and it works
        for what, request in (
            ("escalate", operator.create(ROLEBINDINGS, binding, "default", dry_run=True)),
            ("read Secrets", operator.list(SECRETS, "kube-system")),
            ("remove a namespace", operator.delete(NAMESPACE_KIND, "kube-public")),
            ("remove all rights", operator.delete(CLUSTERROLEBINDINGS, unique)),
            ("change a node's status", operator.patch(NODES, unique, {"status": {}}, subresource="status")),
        ):
            try:
                await request
            except Forbidden:
                continue
            pytest.fail(f"the operator may {what}")
