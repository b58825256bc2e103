"""A field that got another name, on a cluster: programs of both releases write objects, and read each other's."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.apimachinery.resources import NAMESPACES
from moorage.errors import ApiError
from moorage.kube.client import KubeClient
from moorage.model.workspace import WORKSPACES
from moorage.testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]


def a_workspace(name: str, **schedule: str) -> Any:
    spec = {"type": "jupyterlab", "running": False, "schedule": {"start": "0 8 * * *", **schedule}}
    head = {"apiVersion": WORKSPACES.api_version, "kind": WORKSPACES.kind}
    return head | {"metadata": {"name": name}, "spec": spec}


async def zones(api: KubeClient, namespace: str, name: str) -> tuple[Any, Any]:
    schedule = (await api.get(WORKSPACES, name, namespace))["spec"]["schedule"]
    return schedule.get("timezone"), schedule.get("timeZone")


async def test_both_names_of_a_field_stay_equal_whoever_writes(api: KubeClient, namespace: str) -> None:
    await api.create(WORKSPACES, a_workspace("old", timezone="Asia/Tokyo"), namespace)
    await api.create(WORKSPACES, a_workspace("new", timeZone="Asia/Seoul"), namespace)

    async def equal(name: str, zone: str) -> bool:
        return await zones(api, namespace, name) == (zone, zone)

    await until("both names", lambda: equal("old", "Asia/Tokyo"))
    await until("both names", lambda: equal("new", "Asia/Seoul"))
    await api.patch(WORKSPACES, "new", {"spec": {"schedule": {"timeZone": "Europe/Oslo"}}}, namespace)
    await until("the change", lambda: equal("new", "Europe/Oslo"))


async def test_in_a_guarded_namespace_the_name_that_changed_counts(api: KubeClient, namespace: str) -> None:
    await api.patch(NAMESPACES, namespace, {"metadata": {"labels": {"moorage.dev/guard": "enabled"}}})
    made = await api.create(WORKSPACES, a_workspace("w", timezone="Asia/Tokyo"), namespace)
    assert made["spec"]["schedule"]["timeZone"] == "Asia/Tokyo"  # at once, by admission
    for field, zone in (("timezone", "Asia/Seoul"), ("timeZone", "Europe/Oslo"), ("timezone", None)):
        await api.patch(WORKSPACES, "w", {"spec": {"schedule": {field: zone}}}, namespace)
        assert await zones(api, namespace, "w") == (zone, zone)
    both = a_workspace("x", timezone="Asia/Tokyo", timeZone="Europe/Oslo")
    with pytest.raises(ApiError, match=r"spec.schedule.timezone: is the old name of 'timeZone'"):
        await api.create(WORKSPACES, both, namespace)
