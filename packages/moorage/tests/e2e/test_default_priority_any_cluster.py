"""Pods that name no PriorityClass do not push out reservations, whatever the cluster's default is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.model.manifests.machines import make_machine_objects
from moorage.model.names import CLUSTER_DEFAULT_ANNOTATION, DEFAULT_PRIORITY
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, PRIORITYCLASSES
from moorage_kube.testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

PATIENCE_SECONDS = 180.0  # bounds a hang
OURS = next(
    obj
    for obj in make_machine_objects()
    if obj["kind"] == "PriorityClass" and obj["metadata"]["name"] == DEFAULT_PRIORITY
)


@pytest.fixture
async def guarded(api: KubeClient, unique: str) -> AsyncIterator[str]:
    name = f"{unique}-g"
    await api.create(NAMESPACES, {"metadata": {"name": name, "labels": {"moorage.dev/guard": "enabled"}}})
    yield name
    await api.delete(NAMESPACES, name)


async def is_default(api: KubeClient, name: str) -> bool:
    return bool((await api.get(PRIORITYCLASSES, name)).get("globalDefault"))


async def priority_of(api: KubeClient, namespace: str, **spec: Any) -> tuple[str | None, int, str]:
    """Class, value and preemption policy that a pod would be stored with."""
    pod = {
        "metadata": {"generateName": "p-"},
        "spec": {"containers": [{"name": "c", "image": "example.test/none:1"}]} | spec,
    }
    made = (await api.create(PODS, pod, namespace, dry_run=True))["spec"]
    return made.get("priorityClassName"), made["priority"], made["preemptionPolicy"]


async def test_the_operator_makes_ours_the_default_of_a_cluster_without_one(api, namespace):
    async def it_is() -> bool:
        return await is_default(api, DEFAULT_PRIORITY)

    await until("moorage-default to be the default", it_is, patience=PATIENCE_SECONDS)
    assert await priority_of(api, namespace) == (DEFAULT_PRIORITY, 0, "Never")


async def test_a_cluster_with_a_default_of_its_own_keeps_it(api, namespace, guarded, unique):
    house = {"metadata": {"name": unique}, "value": 0, "globalDefault": True, "description": "a test's"}
    try:
        # the admin wants no default of ours, and makes another one
        await api.patch(
            PRIORITYCLASSES, DEFAULT_PRIORITY, {"metadata": {"annotations": {CLUSTER_DEFAULT_ANNOTATION: "false"}}}
        )

        async def ours_is_not() -> bool:
            return not await is_default(api, DEFAULT_PRIORITY)

        await until("moorage-default to step back", ours_is_not, patience=PATIENCE_SECONDS)
        await api.create(PRIORITYCLASSES, house)

        async def is_theirs() -> bool:
            return (await priority_of(api, namespace))[0] == unique

        await until("their class to be the default", is_theirs, patience=PATIENCE_SECONDS)

        # what we ship applies, with the admin's word or without it
        await api.patch(PRIORITYCLASSES, DEFAULT_PRIORITY, {"metadata": {"annotations": None}})
        applied = await api.patch(
            PRIORITYCLASSES, DEFAULT_PRIORITY, OURS, kind="apply", field_manager=unique, force=True
        )
        assert not applied.get("globalDefault")

        # in guarded namespaces pods keep the value and do not preempt; elsewhere nothing is changed
        async def stands_in() -> bool:
            return await priority_of(api, guarded) == (DEFAULT_PRIORITY, 0, "Never")

        await until("the webhook to know their class", stands_in, patience=PATIENCE_SECONDS)
        assert await priority_of(api, guarded, priorityClassName=unique) == (DEFAULT_PRIORITY, 0, "Never")
        assert await priority_of(api, namespace) == (unique, 0, "PreemptLowerPriority")
    finally:
        await api.delete(PRIORITYCLASSES, unique)
        await api.patch(PRIORITYCLASSES, DEFAULT_PRIORITY, {"metadata": {"annotations": None}})

    async def ours_is_again() -> bool:
        return await is_default(api, DEFAULT_PRIORITY)

    await until("moorage-default to be the default again", ours_is_again, patience=PATIENCE_SECONDS)
