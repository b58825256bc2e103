"""Decide whether `moorage-default` is the class of all pods that name none.

A pod without a class has priority 0 and may preempt: it pushes out reservation pods. `moorage-default` has the
same value and does not preempt. Kubernetes allows one default: another default and the admin's choice are not
changed.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#priorityclass
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.priority import pushes_out, stand_in_of
from moorage.model.names import CLUSTER_DEFAULT_ANNOTATION, DEFAULT_PRIORITY
from moorage_kube.meta import annotations_of


class SetDefault(Struct, frozen=True):
    """Make our class the cluster's default, or stop that."""

    is_default: bool


class Warn(Struct, frozen=True):
    """Warn that pods of this class, the cluster's default, preempt reservations."""

    name: str
    message: str


Action = SetDefault | Warn


def plan(classes: Iterable[Mapping[str, Any]]) -> tuple[Action, ...]:
    """Return the changes to the cluster's PriorityClasses; none if ours is missing."""
    classes = list(classes)
    ours = next((each for each in classes if each["metadata"]["name"] == DEFAULT_PRIORITY), None)
    if ours is None:
        return ()
    others = [each for each in classes if each.get("globalDefault") and each is not ours]
    wanted = not others and annotations_of(ours).get(CLUSTER_DEFAULT_ANNOTATION) != "false"
    actions: list[Action] = []
    if wanted != bool(ours.get("globalDefault")):
        actions.append(SetDefault(wanted))
    for other in others:
        if pushes_out(other) and stand_in_of(other, classes) is None:
            name, value = other["metadata"]["name"], int(other.get("value") or 0)
            text = f"pods of {name}, the cluster's default, push out the reservations of machines: "
            text += f"create a PriorityClass of the value {value} with preemptionPolicy Never and the label "
            text += "moorage.dev/stand-in=true, and guarded namespaces use it instead"
            actions.append(Warn(name, text))
    return tuple(actions)
