"""The PriorityClasses that pods of a guarded namespace may name.

A pod of a higher class preempts others; one of Kubernetes' own classes (`system-node-critical`) preempts any pod.
So a tenant's pods may use the classes that its Tenant lists, the cluster's default, and our public ones. Classes
that begin with `system-`, and those by which machines are held and handed over, are reserved, even where a Tenant
lists them. Guests get theirs from the webhook. Pods of the cluster's default class get one in its place that does
not preempt (`stand_in`).

Judged on every pod of any creator, since the templates of unknown kinds are not seen; and on known templates, so
that the error comes at once. Total: never raises for an object that the API server accepted.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.decide.admission.fields import at, mapping
from moorage.decide.admission.review import Refusal
from moorage.decide.admission.templates import WORKLOADS, is_guest
from moorage.model.names import (
    DEFAULT_PRIORITY,
    GUEST_PRIORITY,
    MACHINE_GATE,
    OVER_BUDGET_PRIORITY,
    RESERVATION_PRIORITY,
    RESERVATION_VALUE,
    STAND_IN_LABEL,
)
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate

SYSTEM_PREFIX = "system-"  # only Kubernetes' own classes may begin so
OURS = frozenset({GUEST_PRIORITY, RESERVATION_PRIORITY})
_NEVER = "Never"
_NO_CLASS: Mapping[str, Any] = {"value": 0}  # of a pod without a class: it may preempt


def judge_priority(
    kind: str,
    obj: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    *,
    tenant: Mapping[str, Any] | None,
    classes: Iterable[Mapping[str, Any]],
) -> tuple[Refusal, ...]:
    """Refusals of the class of a pod or pod template; `kind` is one of WORKLOADS.

    `tenant` None: the namespace is guarded and has no tenant; all classes but the reserved ones are allowed.
    `classes`: the cluster's PriorityClasses. Values that an update does not change are not judged again.
    """
    template = _template(kind, obj)
    spec = mapping(template.get("spec"))
    if old is not None and _face(mapping(_template(kind, old).get("spec"))) == _face(spec):
        return ()
    path = ".".join((*map(str, WORKLOADS[kind]), "spec"))
    known = {str(item["metadata"]["name"]): item for item in classes}
    name = spec.get("priorityClassName") or ""
    if reason := _why_not(name, kind, template, tenant, known):
        return (Refusal(f"{path}.priorityClassName", repr(name), reason),)
    if kind == "Pod":
        if name and name not in known:  # a class newer than our copy is Kubernetes' to judge
            return ()
        return tuple(_judge_numbers(path, spec, known[name] if name else _default(known.values())))
    if spec.get("priority") is not None and (name not in known or spec["priority"] != _value(known[name])):
        reason = "must be left to Kubernetes, which takes it from the PriorityClass"
        return (Refusal(f"{path}.priority", repr(spec["priority"]), reason),)
    return ()


def stand_in(
    pod: Mapping[str, Any], *, tenant: Mapping[str, Any] | None, classes: Iterable[Mapping[str, Any]]
) -> tuple[Obj, ...]:
    """JSON patches that prevent preemption by a new pod, if the cluster's default class would allow it.

    Kubernetes sets the default class before it calls webhooks. So a pod that names the default class looks
    like a pod that names none, and is treated alike, unless its Tenant lists the class. The priority value
    does not change.
    https://github.com/kubernetes/kubernetes/blob/v1.36.0/plugin/pkg/admission/priority/admission.go
    """
    spec, known = mapping(pod.get("spec")), {str(item["metadata"]["name"]): item for item in classes}
    name = spec.get("priorityClassName") or ""
    listed = ((tenant or {}).get("spec") or {}).get("priorityClasses") or ()
    chosen = known.get(name) if name else _NO_CLASS
    if chosen is None or name in listed or is_guest(pod) or not (name == "" or chosen.get("globalDefault")):
        return ()
    other = stand_in_of(chosen, known.values()) if pushes_out(chosen) else None
    if other is None:
        return ()
    values = {
        "priorityClassName": other["metadata"]["name"],
        "priority": _value(other),
        "preemptionPolicy": _NEVER,
    }
    return tuple({"op": "add", "path": f"/spec/{key}", "value": value} for key, value in values.items())


def pushes_out(chosen: Mapping[str, Any]) -> bool:
    """Whether pods of a class preempt the reservation pods of machines."""
    return chosen.get("preemptionPolicy") != _NEVER and _value(chosen) > RESERVATION_VALUE


def stand_in_of(chosen: Mapping[str, Any], classes: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A class with the same value that does not preempt: the first with STAND_IN_LABEL, else moorage-default."""
    fit = [
        item
        for item in classes
        if item.get("preemptionPolicy") == _NEVER
        and _value(item) == _value(chosen)
        and (item["metadata"]["name"] == DEFAULT_PRIORITY or labels_of(item).get(STAND_IN_LABEL) == "true")
    ]
    return min(
        fit,
        key=lambda item: (item["metadata"]["name"] == DEFAULT_PRIORITY, item["metadata"]["name"]),
        default=None,
    )


def allowed_classes(tenant: Mapping[str, Any] | None, classes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The priority classes that pods of a tenant may use, sorted by name."""
    classes = list(classes)
    listed = ((tenant or {}).get("spec") or {}).get("priorityClasses") or ()
    default = {str(known["metadata"]["name"]) for known in classes if known.get("globalDefault")}
    stand_ins = {
        str(known["metadata"]["name"]) for known in classes if labels_of(known).get(STAND_IN_LABEL) == "true"
    }
    every = {*listed, *default, *stand_ins, DEFAULT_PRIORITY}
    return tuple(sorted(name for name in every if not _is_reserved(name)))


def _why_not(
    name: Any,
    kind: str,
    template: Mapping[str, Any],
    tenant: Mapping[str, Any] | None,
    known: Mapping[str, Mapping[str, Any]],
) -> str:
    if not name:
        return ""
    if not isinstance(name, str):
        return "must be the name of a PriorityClass"
    if name == OVER_BUDGET_PRIORITY or (name == GUEST_PRIORITY and _is_let_wait(kind, template)):
        return ""
    allowed = allowed_classes(tenant, known.values())
    if _is_reserved(name):
        return f"is reserved: use one of {', '.join(allowed)}, or leave it empty"
    if tenant is not None and name not in allowed:
        more = "an administrator can add others in spec.priorityClasses of the Tenant"
        return f"must be one of {', '.join(allowed)}; {more}"
    return ""


def _is_reserved(name: str) -> bool:
    return name.startswith(SYSTEM_PREFIX) or name in OURS


def _is_let_wait(kind: str, template: Mapping[str, Any]) -> bool:
    """Whether it is a machine's guest that waits for a place; the class of guests is for these."""
    if not is_guest({"metadata": template.get("metadata") or {}}):
        return False
    return kind != "Pod" or has_gate(mapping(template.get("spec")), MACHINE_GATE)


def _judge_numbers(path: str, spec: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> Iterable[Refusal]:
    """Refusals of the values that Kubernetes sets from the class; a later webhook could have changed them."""
    value, policy = spec.get("priority"), spec.get("preemptionPolicy")
    if value is not None and int(value) > _value(chosen):
        yield Refusal(f"{path}.priority", repr(value), f"must be {_value(chosen)}, that of its PriorityClass")
    if policy not in (None, _NEVER) and (chosen or {}).get("preemptionPolicy") == _NEVER:
        yield Refusal(f"{path}.preemptionPolicy", repr(policy), "must be Never, as its PriorityClass says")


def _value(chosen: Mapping[str, Any] | None) -> int:
    return int((chosen or {}).get("value") or 0)


def _default(classes: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return min((each for each in classes if each.get("globalDefault")), key=_value, default=None)


def _template(kind: str, obj: Mapping[str, Any] | None) -> Obj:
    template = at(obj, WORKLOADS[kind])
    return template if isinstance(template, dict) else {}


def _face(spec: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return spec.get("priorityClassName") or "", spec.get("priority"), spec.get("preemptionPolicy")
