"""What every component of the local cluster reads from a pod."""

from typing import Any

import pytest

from moorage_local.podspecs import container_statuses_of, containers_of, qos_class, sidecar_names

ALL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("limits", "requests", "want"),
    [
        pytest.param({}, {}, "BestEffort", id="nothing"),
        pytest.param(ALL, {"cpu": "1000m", "memory": "1024Mi"}, "Guaranteed", id="equal"),
        pytest.param(ALL, {"cpu": "500m", "memory": "1Gi"}, "Burstable", id="a lower request"),
        pytest.param(ALL, {}, "Burstable", id="no requests: the API server fills them in before"),
        pytest.param({"memory": "1Gi"}, {"memory": "1Gi"}, "Burstable", id="memory alone"),
        pytest.param({}, {"cpu": "1"}, "Burstable", id="a request alone"),
        pytest.param({"nvidia.com/gpu": "1"}, {}, "BestEffort", id="neither cpu nor memory"),
    ],
)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_quality_of_service_follows_cpu_and_memory(limits: Any, requests: Any, want: str, field: str) -> None:
    assert qos_class({field: [{"name": "c", "resources": {"limits": limits, "requests": requests}}]}) == want


def test_what_the_pod_itself_sets_decides_its_quality_of_service() -> None:
    containers = [{"name": "c"}, {"name": "d", "resources": {"requests": {"cpu": "1"}}}]

    assert qos_class({"containers": containers}) == "Burstable"
    assert qos_class({"containers": containers, "resources": {"limits": ALL, "requests": ALL}}) == "Guaranteed"


def test_init_containers_come_first_and_those_that_always_restart_are_sidecars() -> None:
    spec = {
        "containers": [{"name": "main", "restartPolicy": "Always"}],
        "initContainers": [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}],
    }

    assert [container["name"] for container in containers_of(spec)] == ["fetch", "proxy", "main"]
    assert sidecar_names(spec) == {"proxy"}


def test_a_status_without_entries_has_none() -> None:
    assert list(container_statuses_of(None)) == list(container_statuses_of({"phase": "Pending"})) == []
