"""A member of one tenant does not reach another namespace through what the operator reads for workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from moorage.actions import people
from moorage.model.argo import WORKFLOWS
from moorage.model.people import LOCAL, account_user
from moorage.model.tenant import TENANTS
from moorage_kube.access import service_account_groups
from moorage_kube.meta import condition
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, NAMESPACES
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

SECRET = "ada-keeps-this"


async def is_ready(api: KubeClient, tenant: str) -> bool:
    return (condition(await api.get(TENANTS, tenant), "Ready") or {}).get("status") == "True"


@pytest.fixture
async def tenants(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[tuple[str, str]]:
    """Two tenants; mallory is a member of the second, and a ConfigMap of the first has a secret."""
    mine, theirs, person = f"{unique}-b", f"{unique}-a", f"mallory-{unique}"
    await people.create_account(api, person, [], LOCAL)
    cluster.moor("tenant", "create", theirs, "--admin", f"ada-{unique}")
    cluster.moor("tenant", "create", mine, "--admin", person)
    for name in (mine, theirs):
        await until(f"tenant {name}", partial(is_ready, api, name))
    await api.create(CONFIGMAPS, {"metadata": {"name": "limits"}, "data": {"train": SECRET}}, theirs)
    yield mine, theirs
    for name in (mine, theirs):
        await api.delete(TENANTS, name)
        await api.delete(NAMESPACES, name)
    await people.delete_account(api, person)


@pytest.mark.parametrize("kind", ["semaphores", "mutexes"])
async def test_a_lock_of_another_tenant_is_refused(api, tenants, unique, kind) -> None:
    mine, theirs = tenants
    lock: Any = {"namespace": theirs, "name": "m"}
    if kind == "semaphores":
        lock = {"namespace": theirs, "configMapKeyRef": {"name": "limits", "key": "train"}}
    user = account_user(f"mallory-{unique}")
    mallory = api.as_user(user, service_account_groups(user))
    step = {"name": "main", "container": {"image": "busybox", "command": ["true"]}}
    spec = {"entrypoint": "main", "templates": [step], "synchronization": {kind: [lock]}}
    made = {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"name": "reach"},
        "spec": spec,
    }
    await mallory.create(WORKFLOWS, made, mine)

    async def has_failed() -> bool:
        return ((await mallory.get(WORKFLOWS, "reach", mine)).get("status") or {}).get("phase") == "Failed"

    await until("the failure", has_failed)
    seen = await mallory.get(WORKFLOWS, "reach", mine)
    assert "belongs to another namespace" in seen["status"]["message"]
    assert SECRET not in str(seen)
