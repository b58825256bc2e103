"""What admission does with a new pod that replaces one killed for its memory: pass, hold, or give it more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from moorage.apimachinery.quantity import format_bytes
from moorage.apimachinery.resources import Obj
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a slot when a new pod of it comes: kills not forgiven, and how many pods are held."""

    kills: tuple[Kill, ...] = ()
    held: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """The pod goes as it is."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The pod waits behind the gate, for this kill."""

    kill: Kill


@dataclass(frozen=True, slots=True)
class Raise:
    """The pod gets more memory: by container name, bytes of (request, limit)."""

    kill: Kill
    memory: Mapping[str, tuple[int, int]]


Answer = Pass | Hold | Raise


# --- at admission


def answer(pod: Mapping[str, Any], known: Known, rule: BombRule, *, may_raise: bool = True) -> Answer:
    """What becomes of a new pod. Never holds one with more memory than was killed, nor more than one per kill."""
    if not rule.holds or not known.kills:
        return Pass()
    mine = [one for one in known.kills if not has_grown(pod, one)]
    if len(mine) < rule.allowed:
        return Pass()
    newest = max(mine, key=_newest)
    if rule.level == "fill" and rule.escalation is not None and may_raise:
        memory = _raised(pod, mine, rule.escalation)
        if memory:
            return Raise(newest, memory)
    if known.held > len(mine) - rule.allowed:
        return Pass()
    return Hold(newest)


def hold(pod: Obj, kill: Kill) -> None:
    """Put the gate, and why, on a new pod; changed in place."""
    spec = pod["spec"]
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), {"name": MEMORY_GATE}]
    _mark(pod, "held", kill, f"held: {kill}; made again with the same memory it would only take the next node")


def give_more(pod: Obj, raised: Raise) -> str:
    """Write more memory into a new pod, in place; returns what was done, for people."""
    said = []
    for container in containers_of(pod["spec"]):
        if (more := raised.memory.get(str(container.get("name")))) is None:
            continue
        limit, request = memory_of(pod["spec"], container)
        had = limit if limit is not None else request
        resources = container.get("resources") or {}
        container["resources"] = resources
        for table, value in zip(("requests", "limits"), more, strict=True):
            resources[table] = dict(resources.get(table) or {}) | {"memory": _text(value)}
        was = format_bytes(had) if had is not None else "no limit"
        said.append(f"memory of {container.get('name')} raised from {was} to {format_bytes(more[1])}")
    text = f"{', '.join(said)}: {raised.kill}"
    _mark(pod, "raised", raised.kill, text)
    return text


def _mark(pod: Obj, state: Literal["held", "raised"], kill: Kill, text: str) -> None:
    meta = pod["metadata"]
    meta["labels"] = dict(meta.get("labels") or {}) | {MEMORY_LABEL: state}
    meta["annotations"] = dict(meta.get("annotations") or {}) | {
        MEMORY_HELD_ANNOTATION: text,
        MEMORY_KILL_ANNOTATION: json.dumps(kill_to_json(kill), separators=(",", ":")),
    }


def _newest(kill: Kill) -> tuple[str, int, str]:
    """Of those of one second, the one that had most memory came last."""
    return kill.at, max((hit.limit or 0 for hit in kill.hits), default=0), kill.uid


def _raised(
    pod: Mapping[str, Any], kills: Sequence[Kill], escalation: Escalation
) -> dict[str, tuple[int, int]] | None:
    """Requests and limits above all that was killed; None where that cannot be."""
    spec = pod.get("spec") or {}
    if (spec.get("resources") or {}).get("limits"):
        return None  # limited as a whole: which container may have more is not ours to say
    found = {one.get("name"): one for one in containers_of(spec)}
    memory: dict[str, tuple[int, int]] = {}
    for kill in kills:
        for hit in kill.hits:
            if hit.container not in found:
                continue
            bound = hit.limit if kill.by == OOM_KILLED else hit.request
            floor = max(bound or 0, hit.used or 0)
            limit, request = memory_of(spec, found[hit.container])
            if floor <= 0:
                return None  # it had no bound, and nobody measured it
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
