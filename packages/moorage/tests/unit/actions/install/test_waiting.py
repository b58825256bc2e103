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
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    labels = {"app.kubernetes.io/name": SCHEDULER}
    return {
        "metadata": {"name": "pod", "namespace": SYSTEM_NAMESPACE, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "none:1"}]},
        "status": {"containerStatuses": [waiting]},
    }


@pytest.mark.anyio
async def test_a_cause_is_told_once_however_the_kubelet_words_it():
    api, lines = FakeApi(), list[str]()
    meta = {"name": SCHEDULER, "namespace": SYSTEM_NAMESPACE}
    api.put(DEPLOYMENTS, {"metadata": meta, "spec": {"replicas": 1}, "status": {}})
    api.put(PODS, a_pod("ErrImagePull", "no host"))
    with pytest.raises(NotReady) as raised:
        await wait_for_rollouts(api, [SCHEDULER], clock=TurningClock(api), timeout=60, progress=lines.append)
    assert lines == [f"{SCHEDULER} waits (0/1): image none:1 cannot be pulled: no host"]
    assert "schedulerImage" in str(raised.value.hint)  # --image is of our own services
