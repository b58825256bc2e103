"""What happens while our webhook is away: tenants stay apart, others work on."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from moorage.model.names import GUARD_LABEL, TENANT_LABEL
from moorage.webhooks.config import webhook_configurations
from moorage_kube.errors import AlreadyExists, ApiError, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import (
    INGRESSES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICEACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    Resource,
)
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

GUARDED, OF_TENANT = {GUARD_LABEL: "enabled"}, {GUARD_LABEL: "enabled", TENANT_LABEL: "lab"}
POD = {"containers": [{"name": "m", "image": "x"}], "nodeSelector": {"no": "node"}}
BACKEND = {"service": {"name": "x", "port": {"number": 80}}}
MADE: Mapping[Resource, Any] = {
    PODS: {"spec": POD},
    SERVICES: {"spec": {"ports": [{"port": 80}], "selector": {"app": "x"}}},
    INGRESSES: {"spec": {"rules": [{"host": "x.example.net", "http": {"paths": [
        {"path": "/", "pathType": "Prefix", "backend": BACKEND}]}}]}},
    SECRETS: {"stringData": {"a": "b"}},
}  # fmt: skip


@contextlib.asynccontextmanager
async def without_a_webhook(api: KubeClient, labels: Mapping[str, str]) -> AsyncIterator[str]:
    """A namespace whose registrations, as we ship them, lead to nobody; other namespaces are left alone."""
    name = "away" + secrets.token_hex(4)
    meta = {"name": name, "labels": {"team": name} | dict(labels)}
    try:
        await api.create(NAMESPACES, {"metadata": meta})
        with contextlib.suppress(AlreadyExists):  # a control plane without controllers has none
            await api.create(SERVICEACCOUNTS, {"metadata": {"name": "default"}}, name)
        made = webhook_configurations(url="https://127.0.0.1:1")
        for resource, config in zip((MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS), made, strict=True):
            config["metadata"]["name"] = name
            config["webhooks"] = [one for one in config["webhooks"] if "namespaceSelector" in one]
            for one in config["webhooks"]:
                one["namespaceSelector"].setdefault("matchLabels", {})["team"] = name  # of this test alone
            await api.create(resource, config)
        yield name
    finally:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, NAMESPACES):
            with contextlib.suppress(NotFound):
                await api.delete(resource, name)


async def is_made(api: KubeClient, resource: Resource, namespace: str) -> bool:
    obj = {"metadata": {"name": "x"}} | MADE[resource]
    try:
        await api.create(resource, obj, namespace, dry_run=True)
    except ApiError as error:
        if "failed calling webhook" not in error.message:
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("labels", "passes"),
    [
        pytest.param(OF_TENANT, {SECRETS}, id="tenant"),
        pytest.param(GUARDED, {SECRETS, PODS}, id="guarded"),
        pytest.param({}, set(MADE), id="free"),
    ],
)
async def test_while_the_webhook_is_away_nothing_gets_past_what_keeps_tenants_apart(
    cluster: Cluster, labels: Mapping[str, str], passes: set[Resource]
) -> None:
    async with (
        KubeClient.from_kubeconfig(cluster.kubeconfig) as api,
        without_a_webhook(api, labels) as namespace,
    ):

        async def is_so() -> bool:
            return {kind for kind in MADE if await is_made(api, kind, namespace)} == passes

        await until("what passes", is_so)  # a real API server takes up registrations a moment later
