"""Output of `moor explain` for a guest that waits for a reserved machine."""

from __future__ import annotations

from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.snapshot import snapshot
from moorage.model.machine import MACHINES
from moorage.present.explanation import explain_text, short_reason
from moorage.present.explanationanswer import make_explanation
from moorage_kube.testing.builders import a_node, a_pod, an_object
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import keyed

TYPES = [{"name": "big", "spec": {"cpu": 1, "memory": "1Gi"}, "available": 4}]
MACHINE = an_object(MACHINES, "m", labels=keyed(machine_group="gpu"), spec={"nodePool": [], "machineTypes": TYPES})
WHY = "2 big are reserved for namespace lab by the reservation lab/course"
POD = a_pod(
    namespace="other",
    labels=keyed(machine_group="gpu", machine_type="big"),
    annotations=keyed(waits_for=f"2026-11-22T12:00:00Z {WHY}"),
    gates=["moorage.dev/machine"],
)


def test_a_guest_that_waits_for_a_reservation_learns_its_owner_and_end() -> None:
    found = Explainer(snapshot([a_node(cpu="8")], [POD], machines=[MACHINE])).explain(POD, now=NOON)
    assert found.state == "gated"
    assert found.earliest is not None
    assert found.earliest.at.isoformat() == "2026-11-22T12:00:00+00:00"
    assert short_reason(found) == "the free machines gpu/big are reserved until 2026-11-22T12:00:00Z"
    assert WHY in explain_text(found).splitlines()
    machine = make_explanation(found).machine
    assert machine is not None
    assert machine.waits_for == WHY
