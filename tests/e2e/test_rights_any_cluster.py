"""Each service of ours may do what its manifest says, and nothing else: every right is tried, on any cluster.

The cluster answers (SubjectAccessReview); what it should answer is read from `deploy/`, which is reviewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from moorage.apimachinery.resources import SUBJECTACCESSREVIEWS
from moorage.cli.manifests import objects
from moorage.kube.client import KubeClient
from moorage.model.names import GROUP, KUBELETS_ACCOUNT, SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.testing.cluster import Cluster

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
    (GROUP, "guardrailpolicies"), (GROUP, "workspaces"), (GROUP, "datasets"), (GROUP, "mapjobs"),
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
