"""What docs/reference/rights.md says of stolen tokens, tried with the account of each service.

Writes are dry runs: admission judges them, and nothing is stored.
"""

# ruff: noqa: E501  (one attempt is one line)

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.actions import people
from moorage.model.manifests import ALL
from moorage.model.manifests.tokenrisks import TOKEN_RISKS
from moorage.model.names import KUBELETS_ACCOUNT, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL, account_name
from moorage.model.tenant import TENANTS
from moorage_kube.access import service_account_groups
from moorage_kube.errors import Forbidden, Invalid
from moorage_kube.remote.client import KubeClient
from moorage_kube.remote.reviews import account_may
from moorage_kube.resources import NAMESPACES

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api"), pytest.mark.xdist_group("stolen")]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
IN, DRY = "/api/v1/namespaces", "?dryRun=All"
CONTAINER = {"name": "m", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
Try = tuple[str, str, Any]


def binding(role: str = "moorage:tenant-admin") -> Any:
    subject = {"kind": "ServiceAccount", "name": "moorage-operator", "namespace": SYSTEM_NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return {"metadata": {"name": "moorage:tenant-admin"}, "subjects": [subject], "roleRef": reference}


def a_pod(**spec: Any) -> Any:
    return {"metadata": {"name": "thief"}, "spec": {"containers": [CONTAINER], "restartPolicy": "Never"} | spec}


def labelled(**labels: str) -> Any:
    return {"metadata": {"labels": labels}}


SECRET_VOLUME = {"volumes": [{"name": "s", "secret": {"secretName": "any"}}]}
LEVEL = {"pod-security.kubernetes.io/enforce": "privileged"}
PV = {
    "metadata": {"name": "thief"},
    "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
}
JOB = {"metadata": {"name": "thief"}, "spec": {"template": {"spec": a_pod()["spec"]}}}
QUOTA = {"metadata": {"name": "moorage-tenant"}, "spec": {"hard": {"pods": "0"}}}
HOOKS = {"group": "admissionregistration.k8s.io"}
WRITES: tuple[Try, ...] = tuple(
    attempt
    for where in ("{tenant}", SYSTEM_NAMESPACE, "kube-system")
    for attempt in (
        ("POST", f"{IN}/{where}/pods{DRY}", a_pod()),
        ("POST", f"{IN}/{where}/configmaps{DRY}", {"metadata": {"name": "thief"}}),
        ("POST", f"{RBAC}/namespaces/{where}/rolebindings{DRY}", binding()),
    )
)
SECRETS: tuple[Try, ...] = tuple(
    ("GET", path, None)
    for path in (
        "/api/v1/secrets",
        f"{IN}/{{tenant}}/secrets",
        f"{IN}/{{tenant}}/secrets/x",
        f"{IN}/kube-system/secrets",
    )
)
READS: tuple[Try, ...] = (("GET", "/api/v1/pods", None), ("GET", "/api/v1/nodes", None))
MAY = "may"  # a right that is asked for instead of a request
EXEC: Try = (MAY, "", {"verb": "create", "resource": "pods", "subresource": "exec", "namespace": "{tenant}"})


def as_other(resource: str, name: str, **where: str) -> Try:
    return MAY, "", {"verb": "impersonate", "resource": resource, "name": name} | where


AS_ADA = as_other("serviceaccounts", "{ada}", namespace="moorage-users")
AS_MASTERS = as_other("groups", "system:masters")
AS_OTHERS = (AS_MASTERS, AS_ADA, as_other("users", "kubernetes-admin"))

# account → statement → what is tried; the statements are those of TOKEN_RISKS, word for word
TRIES: dict[str, tuple[tuple[Try, ...], ...]] = {
    "moorage-operator": (
        (
            ("POST", f"{IN}/{{other}}/pods{DRY}", a_pod(serviceAccountName="default", **SECRET_VOLUME)),
            ("GET", "/api/v1/pods", None),
        ),
        (("POST", f"/api/v1/persistentvolumes{DRY}", PV),),
        ((MAY, "", {"verb": "update", "resource": "mutatingwebhookconfigurations", "name": "moorage"} | HOOKS),),
        (
            (
                "POST",
                f"{RBAC}/namespaces/{{tenant}}/rolebindings{DRY}",
                binding() | {"metadata": {"name": "thief"}},
            ),
        ),
        (
            *SECRETS,
            ("GET", f"{IN}/{SYSTEM_NAMESPACE}/secrets", None),
            ("GET", f"{IN}/moorage-users/secrets", None),
        ),
        tuple(
            ("POST", f"{RBAC}/namespaces/{where}/rolebindings{DRY}", binding())
            for where in ("kube-system", "default", SYSTEM_NAMESPACE, "{other}")
        ),
        (
            ("POST", f"{IN}/kube-system/resourcequotas{DRY}", QUOTA),
            ("POST", f"{IN}/{{other}}/resourcequotas{DRY}", QUOTA),
            (
                "POST",
                f"/apis/networking.k8s.io/v1/namespaces/kube-system/networkpolicies{DRY}",
                {"metadata": {"name": "moorage-tenant"}, "spec": {"podSelector": {}}},
            ),
        ),
        (
            *(
                ("PATCH", f"{IN}/{where}{DRY}", labelled(**{"moorage.dev/tenant": "x"}))
                for where in ("kube-system", "default", SYSTEM_NAMESPACE, "{other}")
            ),
            *(
                ("PATCH", f"{IN}/{where}{DRY}", labelled(**LEVEL))
                for where in ("{tenant}", "kube-system", "{other}")
            ),
            ("POST", f"{IN}{DRY}", {"metadata": {"name": "thiefs", "labels": {"moorage.dev/tenant": "x"}}}),
        ),
        (
            ("POST", f"{IN}/kube-system/pods{DRY}", a_pod()),
            ("POST", f"{IN}/moorage-users/pods{DRY}", a_pod()),
            ("POST", f"/apis/batch/v1/namespaces/kube-system/jobs{DRY}", JOB),
            ("POST", f"{IN}/{SYSTEM_NAMESPACE}/pods{DRY}", a_pod(serviceAccountName="moorage-server")),
            (
                "POST",
                f"{IN}/{SYSTEM_NAMESPACE}/pods{DRY}",
                a_pod(automountServiceAccountToken=False, **SECRET_VOLUME),
            ),
        ),
        (
            ("POST", f"{RBAC}/namespaces/{{tenant}}/rolebindings{DRY}", binding("cluster-admin")),
            ("POST", f"{RBAC}/clusterrolebindings{DRY}", binding()),
            EXEC,
            *AS_OTHERS,
        ),
    ),
    "moorage-webhook": (READS, SECRETS, WRITES, AS_OTHERS),
    "moorage-extender": (READS, SECRETS, WRITES, AS_OTHERS),
    "moorage-server": (
        (AS_ADA,),
        ((MAY, "", {"verb": "get", "resource": "pods", "subresource": "log", "namespace": "{tenant}"}),),
        (
            ("POST", f"{IN}/moorage-users/serviceaccounts{DRY}", {"metadata": {"name": "thief"}}),
            ("GET", f"{IN}/moorage-users/secrets", None),
        ),
        (("PATCH", f"/apis/{TENANTS.api_version}/tenants/{{tenant}}{DRY}", {"spec": {"quota": {"pods": "9"}}}),),
        (AS_MASTERS, as_other("serviceaccounts", "moorage-operator", namespace=SYSTEM_NAMESPACE)),
        SECRETS,
        tuple(attempt for attempt in WRITES if "configmaps" not in attempt[1]),
    ),
    "moorage-kubelets": (
        ((MAY, "", {"verb": "get", "resource": "nodes", "subresource": "stats", "name": "n"}),),
        (*READS, *SECRETS, *WRITES),
        (EXEC, (MAY, "", {"verb": "create", "resource": "nodes", "subresource": "proxy", "name": "n"})),
    ),
}
CASES = [
    pytest.param(account, said in TOKEN_RISKS[account].can, tries, id=f"{account}: {said}".replace(" ", "-"))
    for account, rows in TRIES.items()
    for said, tries in zip((*TOKEN_RISKS[account].can, *TOKEN_RISKS[account].cannot), rows, strict=True)
]


@pytest.fixture
async def names(api: KubeClient, unique: str) -> AsyncIterator[dict[str, str]]:
    """A tenant's namespace with one person, and another namespace."""
    tenant, other, ada = f"{unique}-t", f"{unique}-o", f"ada-{unique}"
    await people.create_account(api, ada, [], LOCAL)
    for name in (tenant, other):
        await api.create(NAMESPACES, {"metadata": {"name": name}})
    kind = {"apiVersion": TENANTS.api_version, "kind": TENANTS.kind}
    await api.create(TENANTS, {**kind, "metadata": {"name": tenant}, "spec": {"namespace": tenant}})
    yield {"tenant": tenant, "other": other, "ada": account_name(ada)}
    await api.delete(TENANTS, tenant)
    for name in (tenant, other):
        await api.delete(NAMESPACES, name)
    await people.delete_account(api, ada)


@pytest.mark.parametrize(("account", "is_allowed", "tries"), CASES)
async def test_a_stolen_token_can_do_what_the_page_says_and_no_more(
    api: KubeClient, names: dict[str, str], account: str, is_allowed: bool, tries: tuple[Try, ...]
) -> None:
    user = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}"
    thief = api.as_user(user, service_account_groups(user))
    for method, path, body in tries:
        if method == MAY:
            right = {key: value.format(**names) for key, value in body.items()}
            assert await account_may(api, user, right) is is_allowed, body
            continue
        merge = {"content_type": "application/merge-patch+json"} if method == "PATCH" else {}
        try:
            await thief._call(method, path.format(**names), body=body, **merge)
            refusal = ""
        except (Forbidden, Invalid) as error:
            refusal = error.message
        assert (not refusal) is is_allowed, (method, path, body, refusal)


def test_all_accounts_of_services_have_their_statements() -> None:
    assert set(TRIES) == set(TOKEN_RISKS) == {*(service.full_name for service in ALL), KUBELETS_ACCOUNT}
