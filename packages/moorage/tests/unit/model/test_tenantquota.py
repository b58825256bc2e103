"""Quotas of tenants: the names that limit something, and their short forms."""

from __future__ import annotations

import pytest

from moorage.model.tenantquota import read_quota
from moorage_kube.errors import Problems


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param({"gpu": "2"}, {"requests.nvidia.com/gpu": "2"}, id="a short form"),
        pytest.param({"GPUs": 2}, {"requests.nvidia.com/gpu": "2"}, id="the plural, as a number"),
        pytest.param({"nvidia.com/gpu": 2}, {"requests.nvidia.com/gpu": "2"}, id="a device needs the prefix"),
        pytest.param({"amd.com/gpu": 2}, {"requests.amd.com/gpu": "2"}, id="of any vendor"),
        pytest.param(
            {"requests.nvidia.com/mig-1g.10gb": 2}, {"requests.nvidia.com/mig-1g.10gb": "2"}, id="in full"
        ),
        pytest.param(
            {"cpu": "1.5", "limits.memory": "64Gi"}, {"cpu": "1.5", "limits.memory": "64Gi"}, id="amounts"
        ),
        pytest.param({"count/jobs.batch": 5}, {"count/jobs.batch": "5"}, id="numbers of objects"),
        pytest.param(
            {"fast.storageclass.storage.k8s.io/requests.storage": "1Ti", "storage": "2Ti"},
            {"fast.storageclass.storage.k8s.io/requests.storage": "1Ti", "requests.storage": "2Ti"},
            id="storage",
        ),
        pytest.param({"gpu.deviceclass.resource.k8s.io/devices": 1}, None, id="device claims"),
    ],
)
def test_a_quota_gets_the_names_that_kubernetes_enforces(given, want):
    assert read_quota(given) == (want or {name: str(amount) for name, amount in given.items()})


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"cpus": "8"}, "invalid quota cpus=8: 'cpus' is not a resource of quotas", "did you mean cpu?"),
        ({"requests.gpu": "8"}, "'requests.gpu' is not a resource of quotas", "did you mean gpu?"),
        ({"limits.nvidia.com/gpu": "8"}, "'limits.nvidia.com/gpu' is not a resource of quotas", "use gpu, cpu"),
        ({"/gpu": "8"}, "'/gpu' is not a resource of quotas", "gpu"),
        ({"gpu": "two"}, "invalid quota gpu=two: use a number", ""),
        ({"gpu": "0.5"}, "invalid quota gpu=0.5: use a whole number", ""),
        ({"gpu": "-1"}, "invalid quota gpu=-1: use zero or more", ""),
        ({"memory": "400m"}, "invalid quota memory=400m: the suffix m means thousandths of a byte", ""),
        ({"gpu": "1", "nvidia.com/gpu": "2"}, "requests.nvidia.com/gpu has a quota of 1 already", ""),
    ],
)
def test_a_quota_that_limits_nothing_is_refused(given, message, hint):
    with pytest.raises(Problems) as caught:
        read_quota(given)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_all_problems_are_reported_at_once():
    with pytest.raises(Problems) as caught:
        read_quota({"cpus": "8", "gpu": "x"})
    assert len(caught.value.problems) == 2
