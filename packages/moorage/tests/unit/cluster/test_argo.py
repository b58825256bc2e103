"""Argo's controller runs while its Lease is renewed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from moorage.cluster.argo import argo_controller
from moorage_kube.meta import Key
from moorage_kube.moments import rfc3339_micro
from moorage_kube.resources import LEASES
from moorage_kube.testing.clock import NOON
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


def a_lease(name="workflow-controller", *, age=timedelta(seconds=3), holder="pod-1", seconds=15):
    spec = {"holderIdentity": holder, "renewTime": rfc3339_micro(NOON - age), "leaseDurationSeconds": seconds}
    return {"metadata": {"name": name, "namespace": "argo"}, "spec": spec}


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        pytest.param(a_lease(), "workflow-controller", id="renewed"),
        pytest.param(a_lease("workflow-controller-team"), "workflow-controller-team", id="with an instance id"),
        pytest.param(a_lease(age=timedelta(minutes=2)), None, id="not renewed for two minutes"),
        pytest.param(a_lease(age=timedelta(minutes=2), seconds=300), "workflow-controller", id="a long lease"),
        pytest.param(a_lease(holder=""), None, id="given back"),
        pytest.param(a_lease("moorage-operator"), None, id="a lease of another program"),
    ],
)
async def test_argo_runs_while_its_lease_is_renewed(lease, expected):
    api = FakeApi()
    api.put(LEASES, lease)
    assert await argo_controller(api, NOON) == (Key("argo", expected) if expected else None)
