"""What `moor explain` says of a guest that waits because a place is reserved."""

from __future__ import annotations

from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.snapshot import snapshot
from moorage.present.explanation import explain_text, short_reason
from moorage.present.explanationanswer import make_explanation
from moorage_kube.testing.clock import NOON

SIZE = {"cpu": 1, "memory": "1Gi"}
MACHINE = {
    "metadata": {"name": "m", "labels": {"moorage.dev/machine-group": "gpu"}},
    "spec": {"nodePool": [], "machineTypes": [{"name": "big", "spec": SIZE, "available": 4}]},
}
NODE = {
    "metadata": {"name": "n", "labels": {}},
    "spec": {},
    "status": {"allocatable": {"cpu": "8", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
WHY = "2 big are reserved for namespace lab by the reservation lab/course"
POD = {
    "metadata": {
        "name": "p",
        "namespace": "other",
        "labels": {"moorage.dev/machine-group": "gpu", "moorage.dev/machine-type": "big"},
        "annotations": {"moorage.dev/waits-for": f"2026-11-22T12:00:00Z {WHY}"},
    },
    "spec": {"schedulingGates": [{"name": "moorage.dev/machine"}], "containers": [{"name": "main"}]},
}


def test_a_guest_held_back_by_the_calendar_is_told_for_whom_and_until_when() -> None:
    found = Explainer(snapshot([NODE], [POD], machines=[MACHINE])).explain(POD, now=NOON)
    assert found.state == "gated"
    assert found.earliest is not None
    assert found.earliest.at.isoformat() == "2026-11-22T12:00:00+00:00"
    assert short_reason(found) == "the free machines gpu/big are reserved until 2026-11-22T12:00:00Z"
    assert WHY in explain_text(found).splitlines()
    machine = make_explanation(found).machine
    assert machine is not None
    assert machine.waits_for == WHY
