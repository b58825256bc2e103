"""Admission of a new pod that replaces one killed for its memory: pass it, hold it, or give it more memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Literal

from msgspec import Struct

from moorage.decide.admission.fields import Path, with_values
from moorage.decide.runs.memorykills import (
    MIB,
    OOM_KILLED,
    BombRule,
    Escalation,
    Kill,
    containers_of,
    has_grown,
    kill_to_json,
    memory_of,
)
from moorage.model.names import MEMORY_GATE, MEMORY_HELD_ANNOTATION, MEMORY_KILL_ANNOTATION, MEMORY_LABEL
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.quantity import format_bytes
from moorage_kube.resources import Obj


class Known(Struct, frozen=True, kw_only=True):
    """The state of a slot when a new pod of it arrives: kills not forgiven, and the number of held pods."""

    kills: tuple[Kill, ...] = ()
    held: int = 0


class Pass(Struct, frozen=True):
    """The pod is admitted unchanged."""


class Hold(Struct, frozen=True):
    """Hold the pod behind the gate because of this kill."""

    kill: Kill


class Raise(Struct, frozen=True):
    """Give the pod more memory: (request, limit) in bytes, by container name."""

    kill: Kill
    memory: Mapping[str, tuple[int, int]]


Answer = Pass | Hold | Raise


# --- at admission


def answer(pod: Mapping[str, Any], known: Known, rule: BombRule, *, may_raise: bool = True) -> Answer:
    """The decision on a new pod. Never holds one with more memory than was killed, nor more than one per kill."""
    if not rule.holds or not known.kills:
        return Pass()
    mine = [kill for kill in known.kills if not has_grown(pod, kill)]
    if len(mine) < rule.allowed:
        return Pass()
    newest = max(mine, key=_newest)
    if rule.level == "fill" and rule.escalation is not None and may_raise:
        memory = _raised(pod, mine, rule.escalation)
        if memory:
            return Raise(newest, memory)
    if known.held > len(mine) - rule.allowed:
        return Pass()
    if (pod.get("spec") or {}).get("nodeName"):
        return Pass()  # its node is fixed, and the API server refuses a gate together with a node
    return Hold(newest)


def behind_gate(pod: Obj, kill: Kill) -> Obj:
    """The new pod with the gate and the reason for it."""
    gates = [*((pod.get("spec") or {}).get("schedulingGates") or ()), {"name": MEMORY_GATE}]
    text = f"held: {kill}; created again with the same memory, it would only fill the next node"
    return with_values(pod, [(("spec", "schedulingGates"), gates), *_marks(pod, "held", kill, text)])


def with_more_memory(pod: Obj, raised: Raise) -> tuple[Obj, str]:
    """The new pod with more memory, and the change in words."""
    texts, values = [], []
    for table in ("initContainers", "containers"):
        for index, container in enumerate(pod["spec"].get(table) or ()):
            if (more := raised.memory.get(str(container.get("name")))) is None:
                continue
            path: Path = ("spec", table, index, "resources")
            values += [
                ((*path, amounts, "memory"), _text(value))
                for amounts, value in zip(("requests", "limits"), more, strict=True)
            ]
            limit, request = memory_of(pod["spec"], container)
            had = limit if limit is not None else request
            was = format_bytes(had) if had is not None else "no limit"
            texts.append(f"memory of {container.get('name')} raised from {was} to {format_bytes(more[1])}")
    text = f"{', '.join(texts)}: {raised.kill}"
    return with_values(pod, [*values, *_marks(pod, "raised", raised.kill, text)]), text


def _marks(
    pod: Mapping[str, Any], state: Literal["held", "raised"], kill: Kill, text: str
) -> list[tuple[Path, Obj]]:
    """The labels and annotations that record the action on the pod, and the kill."""
    notes = {
        MEMORY_HELD_ANNOTATION: text,
        MEMORY_KILL_ANNOTATION: json.dumps(kill_to_json(kill), separators=(",", ":")),
    }
    return [
        (("metadata", "labels"), {**labels_of(pod), MEMORY_LABEL: state}),
        (("metadata", "annotations"), {**annotations_of(pod), **notes}),
    ]


def _newest(kill: Kill) -> tuple[str, int, str]:
    """The sort key of kills. Of kills in the same second, the one with the most memory counts as the last."""
    return kill.at, max((hit.limit or 0 for hit in kill.hits), default=0), kill.uid


def _raised(
    pod: Mapping[str, Any], kills: Sequence[Kill], escalation: Escalation
) -> dict[str, tuple[int, int]] | None:
    """Requests and limits above those of all kills; None if they cannot be raised."""
    spec = pod.get("spec") or {}
    if (spec.get("resources") or {}).get("limits"):
        return None  # limited as a whole: which container may have more is not ours to say
    by_name = {container.get("name"): container for container in containers_of(spec)}
    memory: dict[str, tuple[int, int]] = {}
    for kill in kills:
        for hit in kill.hits:
            if hit.container not in by_name:
                continue
            bound = hit.limit if kill.by == OOM_KILLED else hit.request
            floor = max(bound or 0, hit.used or 0)
            limit, request = memory_of(spec, by_name[hit.container])
            if floor <= 0:
                return None  # it had no bound, and was not measured
            start = (limit if kill.by == OOM_KILLED else request) or floor
            more = start
            while more <= floor and more < escalation.most:
                more = min(escalation.most, ceil(more * escalation.factor / MIB) * MIB)
            if more <= floor:
                return None
            before = memory.get(hit.container, (0, 0))
            memory[hit.container] = (max(before[0], more), max(before[1], more, limit or 0))
    return memory


def _text(value: int) -> str:
    return f"{value // MIB}Mi" if value % MIB == 0 else str(value)
