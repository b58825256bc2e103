"""A tenant from one resource, on whichever cluster the environment chose."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.actions import people
from moorage.controllers.tenant.plan import COUNTS, OURS, POLICIES, QUOTAS, taint_of
from moorage.model.manifests import ROLEBINDINGS, TENANT_ROLES
from moorage.model.people import LOCAL, account_user
from moorage.model.tenant import TENANTS
from moorage_kube.errors import ApiError, Forbidden, Invalid, NotFound
from moorage_kube.meta import condition, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, NODES, PODS, SECRETS, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

INGRESSES = Resource("networking.k8s.io", "v1", "ingresses", "Ingress")


@pytest.fixture
async def tenant(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A tenant of the test's name with a quota, a domain and two people: one by name and one by a group."""
    for person, groups in ((f"ada-{unique}", []), (f"grace-{unique}", [f"ml-{unique}"])):
        await people.create_account(api, person, groups, LOCAL)
    cluster.moor(
        "tenant", "create", unique, "--admin", f"ada-{unique}", "--group", f"ml-{unique}", "--quota", "pods=5",
        "--domain", f"{unique}.example.org",
    )  # fmt: skip
    await until("the tenant", lambda: is_ready(api, unique))
    yield unique
    try:
        await api.delete(TENANTS, unique)
    except NotFound:
        pass
    await api.delete(NAMESPACES, unique)
    for person in (f"ada-{unique}", f"grace-{unique}"):
        await people.delete_account(api, person)


async def is_ready(api: KubeClient, name: str) -> bool:
    found = await api.get(TENANTS, name)
    seen = (found.get("status") or {}).get("observedGeneration") == found["metadata"]["generation"]
    return seen and (condition(found, "Ready") or {}).get("status") == "True"


async def there(api: KubeClient, resource: Resource, name: str, namespace: str) -> Any:
    try:
        return await api.get(resource, name, namespace)
    except NotFound:
        return None


async def test_its_people_work_there_and_nowhere_else(api: KubeClient, tenant: str) -> None:
    labels = labels_of(await api.get(NAMESPACES, tenant))
    assert labels["moorage.dev/guard"] == "enabled"
    assert labels["moorage.dev/tenant"] == tenant
    for person in (f"ada-{tenant}", f"grace-{tenant}"):
        acting = api.as_user(account_user(person))
        await acting.create(CONFIGMAPS, {"metadata": {"name": person}}, tenant)
        await acting.create(SECRETS, {"metadata": {"name": person}}, tenant)
        with pytest.raises(Forbidden):
            await acting.list(PODS, "default")
        with pytest.raises(Forbidden):
            await acting.get(TENANTS, tenant)
    assert len((await api.as_user(account_user(f"ada-{tenant}")).list(SECRETS, tenant)).items) >= 2
    for resource in (ROLEBINDINGS, SECRETS):
        with pytest.raises(Forbidden):
            await api.as_user(account_user(f"grace-{tenant}")).list(resource, tenant)


async def test_what_somebody_changes_is_put_right(api: KubeClient, tenant: str) -> None:
    ada = api.as_user(account_user(f"ada-{tenant}"))
    binding = TENANT_ROLES["member"]
    await ada.delete(ROLEBINDINGS, binding, tenant)
    await until("the role binding", lambda: there(api, ROLEBINDINGS, binding, tenant))
    await api.patch(QUOTAS, OURS, {"spec": {"hard": {"pods": "500"}}}, tenant)
    await api.delete(POLICIES, OURS, tenant)
    await api.patch(NAMESPACES, tenant, {"metadata": {"labels": {"moorage.dev/guard": None}}})

    async def right() -> bool:
        quota = await api.get(QUOTAS, OURS, tenant)
        policy = await there(api, POLICIES, OURS, tenant)
        guarded = "moorage.dev/guard" in labels_of(await api.get(NAMESPACES, tenant))
        return quota["spec"]["hard"] == COUNTS | {"pods": "5"} and policy is not None and guarded

    await until("the right quota", right)


async def test_who_leaves_the_group_or_the_tenant_is_out(cluster: Cluster, api: KubeClient, tenant: str) -> None:
    grace = api.as_user(account_user(f"grace-{tenant}"))
    await people.set_groups(api, f"grace-{tenant}", [])
    await until("the end of the right", lambda: forbidden(grace, tenant))
    cluster.moor("tenant", "add", tenant, "--user", f"grace-{tenant}", "--role", "viewer")
    await until("the right", lambda: allowed(grace, tenant))
    with pytest.raises(Forbidden):
        await grace.list(SECRETS, tenant)
    cluster.moor("tenant", "remove", tenant, "--user", f"grace-{tenant}", "--role", "viewer")
    await until("the end of the right", lambda: forbidden(grace, tenant))


async def test_a_deleted_tenant_leaves_its_namespace_closed(
    cluster: Cluster, api: KubeClient, tenant: str
) -> None:
    if "controllers" not in cluster.offers:
        pytest.skip("no garbage collector here")
    ada = api.as_user(account_user(f"ada-{tenant}"))
    cluster.moor("tenant", "delete", tenant)
    await until("the end of the right", lambda: forbidden(ada, tenant))
    assert await api.get(NAMESPACES, tenant)
    assert await api.get(POLICIES, OURS, tenant)
    assert await api.get(QUOTAS, OURS, tenant)


async def test_its_nodes_are_its_own_and_its_pods_go_there(cluster: Cluster, api: KubeClient, tenant: str) -> None:
    node = f"{tenant}-cpu"
    await api.create(NODES, {"metadata": {"name": node, "labels": {"pool": tenant}}, "spec": {}})
    try:
        await api.patch(TENANTS, tenant, {"spec": {"cpuNodes": {"selector": {"pool": tenant}}}})

        async def tainted() -> bool:
            return taint_of(tenant) in ((await api.get(NODES, node)).get("spec") or {}).get("taints", [])

        await until("the taint", tainted)
        ada = api.as_user(account_user(f"ada-{tenant}"))
        container = {"name": "m", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
        pod: Any = {
            "metadata": {"name": "x"},
            "spec": {"serviceAccountName": "default", "containers": [container]},
        }

        async def sent() -> bool:
            made = await ada.create(PODS, pod, tenant, dry_run=True)
            return bool((made["spec"].get("nodeSelector") or {}).get("pool") == tenant)

        await until("the pod on its node", sent)
        made = await ada.create(PODS, pod, tenant, dry_run=True)
        assert any(one.get("value") == tenant for one in made["spec"]["tolerations"])
        pod["spec"]["tolerations"] = [{"key": "moorage.dev/tenant", "value": tenant}]
        with pytest.raises(Invalid, match="other teams"):
            await api.create(PODS, pod, "default", dry_run=True)
        await api.patch(TENANTS, tenant, {"spec": {"cpuNodes": None}})

        async def clean() -> bool:
            return not await tainted()

        await until("a node without the taint", clean)
    finally:
        await api.delete(NODES, node)


async def test_its_hosts_are_its_own(api: KubeClient, tenant: str) -> None:
    def an_ingress(host: str) -> Any:
        backend = {"service": {"name": "x", "port": {"number": 80}}}
        paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
        return {"metadata": {"name": "x"}, "spec": {"rules": [{"host": host, "http": {"paths": paths}}]}}

    ada = api.as_user(account_user(f"ada-{tenant}"))
    await ada.create(INGRESSES, an_ingress(f"app.{tenant}.example.org"), tenant, dry_run=True)
    with pytest.raises(Invalid, match="or below it"):
        await ada.create(INGRESSES, an_ingress("elsewhere.example.org"), tenant, dry_run=True)
    with pytest.raises(Invalid, match=f"host of tenant {tenant}"):
        await api.create(INGRESSES, an_ingress(f"app.{tenant}.example.org"), "default", dry_run=True)


async def test_listing_and_showing(cluster: Cluster, tenant: str) -> None:
    listed = json.loads(cluster.moor("tenant", "list", "-o", "json").stdout)
    items = listed["items"] if isinstance(listed, dict) else listed
    assert tenant in {row["name"] for row in items}
    shown = cluster.moor("tenant", "show", tenant).stdout
    assert f"group ml-{tenant}" in shown
    assert "pods 0 of 5 used" in shown
    dry = cluster.moor("tenant", "create", "other", "--priority-class", "a", "--priority-class", "b", "--dry-run")
    assert "priorityClasses:\n  - a\n  - b\n" in dry.stdout
    again = cluster.moor("tenant", "create", tenant, check=False)
    assert again.returncode == 1
    assert f"the name {tenant!r} is taken" in again.stderr


async def allowed(api: KubeClient, namespace: str) -> bool:
    try:
        await api.list(PODS, namespace)
    except ApiError:
        return False
    return True


async def forbidden(api: KubeClient, namespace: str) -> bool:
    return not await allowed(api, namespace)
