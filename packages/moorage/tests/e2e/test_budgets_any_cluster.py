"""A Budget that refuses is not evaded by the `scale` subresource, nor by templates that a workflow names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.actions import people
from moorage.model.argo import WORKFLOW_TEMPLATES, WORKFLOWS
from moorage.model.budget import BUDGETS
from moorage.model.people import LOCAL, account_user
from moorage.model.tenant import TENANTS
from moorage_kube.access import service_account_groups
from moorage_kube.errors import Conflict, Invalid
from moorage_kube.meta import condition
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import DEPLOYMENTS, NAMESPACES
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

GPU = {"limits": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": "1"}}


async def use_up(api: KubeClient, budget: str, person: str) -> None:
    """Have a budget used up for the next look of the server: as if GPUs had run."""
    uses = [{"name": person, "used": "120", "percent": 120}]
    status = {"start": "2020-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z", "uses": uses}
    await api.patch(BUDGETS, budget, {"status": status}, subresource="status")


@pytest.fixture
async def team(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[tuple[str, str, KubeClient]]:
    """A tenant, a person of it, and a client of theirs."""
    name, person = f"{unique}-t", f"ada-{unique}"
    await people.create_account(api, person, [], LOCAL)
    cluster.moor("tenant", "create", name, "--admin", person)

    async def is_ready() -> bool:
        return (condition(await api.get(TENANTS, name), "Ready") or {}).get("status") == "True"

    await until("the condition of the budget", is_ready)
    user = account_user(person)
    budget = {
        "apiVersion": BUDGETS.api_version,
        "kind": BUDGETS.kind,
        "metadata": {"name": name},
        "spec": {"users": [person], "gpuHours": "100", "whenOver": "refuse"},
    }
    await api.create(BUDGETS, budget)
    yield name, person, api.as_user(user, service_account_groups(user))
    await api.delete(BUDGETS, name)
    await api.delete(TENANTS, name)
    await api.delete(NAMESPACES, name)
    await people.delete_account(api, person)


async def test_more_replicas_by_scale_are_refused(api: KubeClient, team: tuple[str, str, KubeClient]) -> None:
    namespace, person, ada = team
    labels = {"app": "serve"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": GPU}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    made = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "metadata": {"name": "serve"}}
    await ada.create(DEPLOYMENTS, {**made, "spec": spec}, namespace)
    refusals: list[str] = []

    async def scale(replicas: int) -> None:
        patch = {"spec": {"replicas": replicas}}
        await ada.patch(DEPLOYMENTS, "serve", patch, namespace, subresource="scale")

    async def is_refused() -> bool:
        await use_up(api, namespace, person)
        try:
            await scale(5)
            await scale(1)  # the webhook has not seen the budget yet
        except Conflict:  # the controller has written its status
            return False
        except Invalid as error:
            refusals.append(error.message)
        return bool(refusals)

    await until("a refusal", is_refused)
    assert "120 of 100 GPU-hours used" in refusals[0]
    assert (await ada.get(DEPLOYMENTS, "serve", namespace))["spec"]["replicas"] == 1


async def test_steps_with_gpus_of_a_template_are_refused(
    api: KubeClient, team: tuple[str, str, KubeClient]
) -> None:
    namespace, person, ada = team
    step = {"name": "main", "container": {"image": "busybox", "command": ["true"], "resources": GPU}}
    template: Any = {
        "apiVersion": WORKFLOW_TEMPLATES.api_version,
        "kind": WORKFLOW_TEMPLATES.kind,
        "metadata": {"name": "train"},
        "spec": {"entrypoint": "main", "templates": [step]},
    }
    await ada.create(WORKFLOW_TEMPLATES, template, namespace)
    made: Any = {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "spec": {"workflowTemplateRef": {"name": "train"}},
    }

    async def sees_the_budget() -> bool:
        await use_up(api, namespace, person)
        direct = {**made, "metadata": {"name": "direct"}, "spec": template["spec"] | {"suspend": True}}
        try:
            await ada.create(WORKFLOWS, direct, namespace)
        except Invalid:
            return True
        await ada.delete(WORKFLOWS, "direct", namespace)
        return False

    await until("a refusal by the budget", sees_the_budget)
    await ada.create(WORKFLOWS, {**made, "metadata": {"name": "named"}}, namespace)

    async def has_ended() -> bool:
        await use_up(api, namespace, person)
        phase = ((await ada.get(WORKFLOWS, "named", namespace)).get("status") or {}).get("phase")
        return phase in ("Failed", "Error", "Succeeded")

    await until("the end of the workflow", has_ended)
    status = (await ada.get(WORKFLOWS, "named", namespace))["status"]
    assert status["phase"] != "Succeeded"
    assert "120 of 100 GPU-hours used" in str(status)
