"""Objects that machines and reservations need: priorities, their budget, and the rights to see and book."""

from __future__ import annotations

from moorage.model.manifests.parts import (
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    RBAC,
    READ,
    Rule,
    make_binding,
    make_object,
)
from moorage.model.names import (
    DEFAULT_PRIORITY,
    GROUP,
    GUEST_PRIORITY,
    KEPT,
    OVER_BUDGET_PRIORITY,
    OVER_BUDGET_VALUE,
    RESERVATION_BUDGET,
    RESERVATION_LABEL,
    RESERVATION_PRIORITY,
    RESERVATION_VALUE,
)
from moorage_kube.resources import PDBS, PRIORITYCLASSES, Obj

RESERVE_ROLE = "moorage-reserve"  # may write in the calendar
BUDGET_MIN = 1_000_000  # reservations that must stay: more than there can be


def make_machine_objects() -> list[Obj]:
    """Objects that reservations need: priorities and their budget; and the right of all users to see machines.

    None of the classes is the cluster's default: a cluster that already has a default refuses a second. The
    operator makes `moorage-default` the default where there is none. The budget never allows a disruption; it
    does not cover a reservation that is promised to a guest. All users see the calendar too; an administrator
    binds the role that writes in it.
    """
    # only guests preempt, and only reservations, which have the lower value
    descriptions = {
        RESERVATION_PRIORITY: "Holds a place for a machine's guest. Autoscalers ignore lower priorities.",
        GUEST_PRIORITY: "Takes the place of a machine's reservation.",
        DEFAULT_PRIORITY: "Pods that name no class: they do not preempt the reservation pods of machines.",
        OVER_BUDGET_PRIORITY: "Work of those whose budget is used up: it waits behind that of others.",
    }
    values = {RESERVATION_PRIORITY: RESERVATION_VALUE, OVER_BUDGET_PRIORITY: OVER_BUDGET_VALUE}
    classes = [
        make_object(
            PRIORITYCLASSES,
            name,
            None,
            value=values.get(name, 0),
            preemptionPolicy="PreemptLowerPriority" if name == GUEST_PRIORITY else "Never",
            description=text,
        )
        for name, text in descriptions.items()
    ]
    # the scheduler respects this budget while it chooses the pods to preempt
    kept = {"matchLabels": {RESERVATION_LABEL: KEPT}}
    budget = {"minAvailable": BUDGET_MIN, "selector": kept, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}
    # all users may read machines; reservations need a role
    seeing = (
        Rule(group=GROUP, resources=("machines", "reservations"), verbs=READ),
        Rule(
            group="storage.k8s.io", resources=("storageclasses",), verbs=READ
        ),  # a user who makes a volume chooses one
    )
    booking = Rule(group=GROUP, resources=("reservations",), verbs=("create", "update", "patch", "delete"))
    everybody = {"kind": "Group", "apiGroup": RBAC, "name": "system:authenticated"}
    return [
        *classes,
        make_object(PDBS, RESERVATION_BUDGET, spec=budget),
        make_object(CLUSTERROLES, "moorage-machines", None, rules=[rule.to_obj() for rule in seeing]),
        make_object(CLUSTERROLES, RESERVE_ROLE, None, rules=[booking.to_obj()]),
        make_binding(CLUSTERROLEBINDINGS, "moorage-machines", "ClusterRole", "moorage-machines", everybody),
    ]
