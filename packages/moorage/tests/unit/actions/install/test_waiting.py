"""Waiting for the services of an installation."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from moorage.actions.install.waiting import wait_for_rollouts
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.secondscheduler import NAME as SCHEDULER
from moorage_kube.errors import NotReady
from moorage_kube.resources import DEPLOYMENTS, PODS
from moorage_kube.testing import builders
from moorage_kube.testing.builders import a_container_status
from moorage_kube.testing.clock import FakeClock
from moorage_local.testing.fakeapi import FakeApi


class TurningClock(FakeClock):
    """Sleeps that are over at once. At each the kubelet says the same cause in its other way."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__()
        self._api = api
        self._ways = itertools.cycle((("ImagePullBackOff", "Back-off pulling image"), ("ErrImagePull", "no host")))

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        self._api.put(PODS, a_pod(*next(self._ways)))


def a_pod(reason: str, message: str) -> dict[str, Any]:
    made = {"namespace": SYSTEM_NAMESPACE, "labels": {"app.kubernetes.io/name": SCHEDULER}, "image": "none:1"}
    return builders.a_pod("pod", statuses=[a_container_status(reason=reason, message=message)], **made)


@pytest.mark.anyio
async def test_a_cause_is_printed_once_in_all_wordings_of_the_kubelet():
    api, lines = FakeApi(), list[str]()
    api.put(DEPLOYMENTS, builders.a_deployment(SCHEDULER, namespace=SYSTEM_NAMESPACE, status={"replicas": 0}))
    api.put(PODS, a_pod("ErrImagePull", "no host"))
    with pytest.raises(NotReady) as raised:
        await wait_for_rollouts(api, [SCHEDULER], clock=TurningClock(api), timeout=60, progress=lines.append)
    assert lines == [f"{SCHEDULER} waits (0/1): image none:1 cannot be pulled: no host"]
    assert "schedulerImage" in str(raised.value.hint)  # --image is of our own services
