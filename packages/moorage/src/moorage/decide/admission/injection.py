"""The fields that a guest of a Machine gets at admission, and the later removal of its gate.

A pod that names a machine type and group gets the resources of one machine, node selector terms for the nodes that
offer it, the priority to preempt a reservation, and a scheduling gate until it has a place. The author's fields
are unchanged, as long as they fit into one machine.

Each of the author's node selector terms is written twice, because a gate may be removed together with more
requirements in a term, but not with more terms. The first copies are tied to the node of the guest's place, the
second ones to a label that a node gets only when that place was lost.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/#mutable-pod-scheduling-directives
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.decide.admission.review import Draft, Refusal
from moorage.decide.admission.templates import is_guest
from moorage.model.machine import READY, MachineType, Pool
from moorage.model.names import (
    DEFAULT_PRIORITY,
    GUEST_PRIORITY,
    MACHINE_CONTAINER_LABEL,
    MACHINE_GATE,
    MACHINE_GROUP_LABEL,
    MACHINE_MODE_LABEL,
    MACHINE_TYPE_LABEL,
    MACHINE_TYPE_PREFIX,
    OVER_BUDGET_ANNOTATION,
    OVER_BUDGET_PRIORITY,
    PLACE_ANNOTATION,
    PLACE_AT_ANNOTATION,
    PLACE_PREFIX,
    WAITS_ANNOTATION,
)
from moorage_kube.errors import QuantityError
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.quantity import amount, format_milli
from moorage_kube.resources import Obj
from moorage_kube.scheduling import has_gate, is_extended, pod_requests

FREE_OF_CHARGE = frozenset({"pods", "ephemeral-storage"})  # requested in addition to a machine's size
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OURS = (PLACE_ANNOTATION, PLACE_AT_ANNOTATION)


class Injected(Struct, frozen=True):
    """The pod after the injection. It is unchanged if the pod is refused."""

    pod: Obj
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()


def make_guest(draft: Draft) -> None:
    """Make a new pod that names a machine a guest of that machine."""
    if draft.request.pools is None:
        return
    injected = inject(draft.obj, draft.request.pools)
    draft.obj = injected.pod
    draft.refusals += injected.refusals
    draft.warnings += injected.warnings


def inject(pod: Obj, pools: Mapping[str, Pool]) -> Injected:
    """Make a new pod a guest of its machine. Other pods are unchanged.

    `pools`: the pools by machine group. A second injection changes nothing.
    """
    if not is_guest(pod):
        return Injected(pod)
    pool, kind, refusals = _find(pod, pools)
    if pool is None or kind is None:
        return Injected(pod, refusals=tuple(refusals))
    made: Obj = json.loads(json.dumps(pod))
    spec = made["spec"]
    warnings: list[str] = []
    for key in _OURS:
        (made["metadata"].get("annotations") or {}).pop(key, None)  # only the operator gives places
    if spec.get("nodeName"):
        message = "must not be set: the node of a machine's guest is chosen by the place it is given"
        refusals.append(Refusal("spec.nodeName", repr(spec["nodeName"]), message))
    refusals += _fill(made, kind)
    _tie(spec, pool, kind)
    spec["tolerations"] = _tolerations(spec.get("tolerations") or (), pool, kind)
    if not has_gate(spec, MACHINE_GATE):
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": MACHINE_GATE}]
    if not spec.get("priorityClassName") or spec.get("preemptionPolicy") == "Never":
        had = spec.get("priorityClassName")
        if had == OVER_BUDGET_PRIORITY:  # a guest waits by its gate, not by its class
            made["metadata"]["annotations"] = {**annotations_of(made), OVER_BUDGET_ANNOTATION: "true"}
        elif had not in (None, "", DEFAULT_PRIORITY):
            warnings.append(f"spec.priorityClassName {had} may not preempt; {GUEST_PRIORITY} takes its place")
        spec |= {"priorityClassName": GUEST_PRIORITY, "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    if refusals:
        return Injected(pod, refusals=tuple(refusals))
    return Injected(made, warnings=tuple(warnings))


def judge_update(old: Mapping[str, Any], new: Mapping[str, Any], *, ours: bool) -> list[Refusal]:
    """Refuse forbidden changes of a pod: of its machine; of its place and gate, unless by the operator."""
    refusals = []
    for key in (MACHINE_TYPE_LABEL, MACHINE_GROUP_LABEL):
        if labels_of(old).get(key) != labels_of(new).get(key):
            message = f"must stay {labels_of(old).get(key)!r}: a place is counted by it; make another pod instead"
            refusals.append(Refusal(f"metadata.labels[{key}]", repr(labels_of(new).get(key)), message))
    for key in () if ours else _OURS:
        if annotations_of(old).get(key) != annotations_of(new).get(key):
            message = "is set by Moorage's operator only"
            refusals.append(Refusal(f"metadata.annotations[{key}]", repr(annotations_of(new).get(key)), message))
    if not ours and has_gate(old["spec"], MACHINE_GATE) and not has_gate(new["spec"], MACHINE_GATE):
        reason = f"must keep {MACHINE_GATE}: the operator removes it when the pod has a place"
        refusals.append(Refusal("spec.schedulingGates", repr(new["spec"].get("schedulingGates")), reason))
    return refusals


def lift(pod: Mapping[str, Any], node: str, at: str) -> Obj:
    """The merge patch that ungates a guest for a node; it is valid only for the version of the pod that was read.

    `at` (RFC 3339) is recorded with the place; the annotation with the reason to wait is removed.
    """
    meta, spec = pod["metadata"], pod["spec"]
    notes: Obj = {PLACE_ANNOTATION: node, PLACE_AT_ANNOTATION: at}
    if WAITS_ANNOTATION in annotations_of(pod):
        notes[WAITS_ANNOTATION] = None
    terms = []
    for term in _terms(spec):
        term = dict(term)
        if _is_second(term):
            mark = {"key": PLACE_PREFIX + meta["uid"], "operator": "Exists"}
            term["matchExpressions"] = [*(term.get("matchExpressions") or ()), mark]
        else:
            tie = {"key": "metadata.name", "operator": "In", "values": [node]}
            term["matchFields"] = [*(term.get("matchFields") or ()), tie]
        terms.append(term)
    if not terms:  # gated by hand
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {
        "metadata": {
            "resourceVersion": meta["resourceVersion"],
            "annotations": notes,
        },
        "spec": {
            "schedulingGates": [
                gate for gate in spec.get("schedulingGates") or () if gate["name"] != MACHINE_GATE
            ],
            "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}},
        },
    }


def tolerations_of(pool: Pool, kind: MachineType) -> list[Obj]:
    """The tolerations of a guest, and of a reservation, for nodes tainted for the group or for devices."""
    mine: list[Obj] = [
        {"key": MACHINE_GROUP_LABEL, "operator": "Equal", "value": pool.group, "effect": "NoSchedule"}
    ]
    devices = [name for name in kind.size if is_extended(name)]
    return mine + [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices]


def _find(pod: Obj, pools: Mapping[str, Pool]) -> tuple[Pool | None, MachineType | None, list[Refusal]]:
    labels = labels_of(pod)
    group, name = labels.get(MACHINE_GROUP_LABEL), labels.get(MACHINE_TYPE_LABEL)
    pool = pools.get(group or "")
    where = f"metadata.labels[{MACHINE_GROUP_LABEL}]"
    if pool is None:
        known = ", ".join(sorted(pools)) or "none"
        what = "must be set together with the machine type" if not group else "is not a machine group"
        return None, None, [Refusal(where, repr(group) if group else "", f"{what}; available: {known}")]
    kind = pool.types.get(name or "")
    if kind is None:
        what = "must be set together with the machine group" if not name else f"is not a machine type of {group}"
        message = f"{what}; available: {', '.join(sorted(pool.types)) or 'none'}"
        return pool, None, [Refusal(f"metadata.labels[{MACHINE_TYPE_LABEL}]", repr(name) if name else "", message)]
    return pool, kind, []


def _fill(pod: Obj, kind: MachineType) -> list[Refusal]:
    """Give the chosen container the part of the machine that the other containers leave free."""
    containers = pod["spec"].get("containers") or [{}]
    labels, notes = labels_of(pod), annotations_of(pod)
    wanted = labels.get(MACHINE_CONTAINER_LABEL) or notes.get(MACHINE_CONTAINER_LABEL)
    at = next(
        (at for at, container in enumerate(containers) if container.get("name") == wanted), None if wanted else 0
    )
    if at is None:
        names = ", ".join(str(container.get("name")) for container in containers)
        message = f"is not a container of the pod; available: {names}"
        return [Refusal(f"metadata.labels[{MACHINE_CONTAINER_LABEL}]", repr(wanted), message)]
    chosen = containers[at]
    try:
        others = pod_requests(
            pod["spec"]
            | {"containers": [*containers[:at], *containers[at + 1 :]], "initContainers": _sidecars(pod)}
        )
        for name, size in kind.size.items():
            _give(chosen, name, size - others.get(name, 0), kind)
        asked = pod_requests(pod["spec"])
    except QuantityError:
        return []  # the API server refuses it with a better message than ours
    refusals = []
    for name, value in sorted(asked.items()):
        if name not in FREE_OF_CHARGE and value > kind.size.get(name, 0):
            has = kind.texts.get(name, "0")
            message = f"a {kind.name} has {has} of it, for all containers together"
            where = f"spec.containers[{at}].resources.requests[{name}]"
            refusals.append(Refusal(where, _text(name, value), message))
    return refusals


def _sidecars(pod: Obj) -> list[Obj]:
    return [
        container
        for container in pod["spec"].get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    ]


def _give(container: Obj, name: str, left: int, kind: MachineType) -> None:
    resources = container.get("resources") or {}
    limit, request = (resources.get("limits") or {}).get(name), (resources.get("requests") or {}).get(name)
    if limit is None and request is None and left <= 0:
        return
    whole = kind.texts[name] if left == kind.size[name] else _text(name, left)
    if limit is None:
        is_given = request is not None and (is_extended(name) or amount(name, request) > left)
        limit = request if is_given else whole
    container["resources"] = resources
    resources["limits"] = (resources.get("limits") or {}) | {name: limit}
    resources["requests"] = (resources.get("requests") or {}) | {name: limit if request is None else request}


def _text(name: str, value: int) -> str:
    return format_milli(value) if name == "cpu" else str(value)


def _tie(spec: Obj, pool: Pool, kind: MachineType) -> None:
    """Add the machine type to the node selector terms of a pod.

    Each term appears twice: see the module's docstring.
    """
    offers = {"key": MACHINE_TYPE_PREFIX + kind.name, "operator": "In", "values": [pool.group]}
    second = {"key": MACHINE_MODE_LABEL, "operator": "In", "values": [READY]}
    bare: list[Obj] = []
    for term in _terms(spec):
        mine = dict(term)
        others = [
            expression for expression in mine.get("matchExpressions") or () if expression not in (offers, second)
        ]
        mine.pop("matchExpressions", None)
        if others:
            mine["matchExpressions"] = others
        if mine not in bare:
            bare.append(mine)
    terms = [
        term | {"matchExpressions": [*(term.get("matchExpressions") or ()), *more]}
        for more in ((offers,), (offers, second))
        for term in bare or [{}]
    ]
    if not spec.get("affinity"):
        spec["affinity"] = {}
    if not spec["affinity"].get("nodeAffinity"):
        spec["affinity"]["nodeAffinity"] = {}
    spec["affinity"]["nodeAffinity"][_REQUIRED] = {"nodeSelectorTerms": terms}


def _tolerations(had: Sequence[Obj], pool: Pool, kind: MachineType) -> list[Obj]:
    return [*had, *(toleration for toleration in tolerations_of(pool, kind) if toleration not in had)]


def _terms(spec: Mapping[str, Any]) -> list[Obj]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return list(required.get("nodeSelectorTerms") or ())


def _is_second(term: Mapping[str, Any]) -> bool:
    return any(expression.get("key") == MACHINE_MODE_LABEL for expression in term.get("matchExpressions") or ())
