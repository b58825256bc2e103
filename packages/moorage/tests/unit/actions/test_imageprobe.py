"""A pod that tries whether an image can be pulled, over a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.actions.imageprobe import PROBE_SECONDS, probe_image, probe_pod
from moorage.decide.installcheck.facts import Probe
from moorage_kube.podsecurity import RESTRICTED, violations
from moorage_kube.resources import PODS, Obj
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

IMAGE = "registry.example.org/moorage:0.1.0"


class Kubelet(FakeClock):
    """Writes a pod's status whenever the probe waits."""

    def __init__(self, api: FakeApi, *statuses: Obj) -> None:
        super().__init__()
        self._api, self._statuses = api, list(statuses)

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        [pod] = (await self._api.list(PODS, "lab")).items
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        self._api.put(PODS, pod | {"spec": pod["spec"] | {"nodeName": "n1"}, "status": status})


def state(**fields: Any) -> Obj:
    return {"containerStatuses": [{"name": "probe", "state": fields}]}


CREATING = state(waiting={"reason": "ContainerCreating"})


@pytest.mark.parametrize(
    ("statuses", "want"),
    [
        pytest.param([CREATING, state(running={})], Probe(image=IMAGE, node="n1"), id="it runs"),
        pytest.param([state(terminated={"exitCode": 2})], Probe(image=IMAGE, node="n1"), id="it ended"),
        pytest.param(
            [state(waiting={"reason": "CreateContainerError"})],
            Probe(image=IMAGE, node="n1"),
            id="pulled, no start",
        ),
        pytest.param(
            [CREATING, state(waiting={"reason": "ErrImagePull", "message": "no basic auth credentials"})],
            Probe(image=IMAGE, node="n1", error="no basic auth credentials"),
            id="refused by the registry",
        ),
        pytest.param(
            [{"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}],
            Probe(image=IMAGE, node="n1", error=f"nothing within {PROBE_SECONDS:.0f} s; 0/3 nodes are available"),
            id="never scheduled",
        ),
    ],
)
async def test_a_probe_says_whether_the_image_was_pulled_and_leaves_nothing(statuses, want):
    api = FakeApi()
    clock = Kubelet(api, *statuses)
    assert await probe_image(api, IMAGE, "lab", clock=clock) == want
    assert (await api.list(PODS, "lab")).items == []


def test_the_pod_of_a_probe_is_allowed_under_the_restricted_standard():
    pod = probe_pod("p", IMAGE, ("registry",))
    assert list(violations(RESTRICTED, pod["metadata"], pod["spec"])) == []
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
