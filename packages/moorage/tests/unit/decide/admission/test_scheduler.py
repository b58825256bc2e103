"""GPU pods go to the second scheduler where one is installed; all others stay with theirs."""

from __future__ import annotations

import pytest

from moorage.decide.admission.scheduler import choose_scheduler
from moorage_kube.resources import Obj

CHOSEN = ({"op": "add", "path": "/spec/schedulerName", "value": "moorage-scheduler"},)


def a_pod(scheduler: str | None = "default-scheduler", table: str = "containers", **limits: str) -> Obj:
    spec: Obj = {table: [{"name": "main", "resources": {"limits": dict(limits)}}]}
    return {"metadata": {"name": "p"}, "spec": spec | ({"schedulerName": scheduler} if scheduler else {})}


GPU = {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("pod", "name", "want"),
    [
        pytest.param(a_pod(**GPU), "moorage-scheduler", CHOSEN, id="a GPU pod"),
        pytest.param(a_pod(None, **GPU), "moorage-scheduler", CHOSEN, id="before defaults are filled in"),
        pytest.param(a_pod(table="initContainers", **GPU), "moorage-scheduler", CHOSEN, id="only at its start"),
        pytest.param(a_pod(**GPU), "", (), id="none is installed"),
        pytest.param(a_pod(cpu="1"), "moorage-scheduler", (), id="without GPUs"),
        pytest.param(a_pod("volcano", **GPU), "moorage-scheduler", (), id="its author chose another"),
        pytest.param(a_pod("moorage-scheduler", **GPU), "moorage-scheduler", (), id="again: nothing more"),
        pytest.param({"metadata": {}, "spec": {"containers": None}}, "moorage-scheduler", (), id="no containers"),
    ],
)
def test_the_scheduler_of_a_new_pod(pod: Obj, name: str, want: tuple[Obj, ...]) -> None:
    assert choose_scheduler(pod, name) == want
