"""Decide the next steps for one pod of this node. Pure: all inputs are in `Seen`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GONE_GRACE_SECONDS = 1.0  # an object leaves the API before its pod has ended only by a forced deletion


class Body(Enum):
    """The state of the pod on this machine."""

    NONE = "none"  # no folder
    ADMITTED = "admitted"  # a folder, GPUs chosen; containers were never started
    REFUSED = "refused"  # a folder that says: refused at admission
    ALIVE = "alive"  # the shim runs
    ENDED = "ended"  # the shim wrote the outcome
    LOST = "lost"  # the shim is dead and wrote no outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of one pod in the API and on this machine.

    `phase` is None if the API does not have the pod (any more).
    """

    body: Body
    phase: str | None
    deleting: bool = False
    grace_seconds: float = 30.0  # for a stop
    shutting_down: bool = False


@dataclass(frozen=True, slots=True)
class Admit:
    """Check the free resources of the node; record the GPUs, or the refusal."""


@dataclass(frozen=True, slots=True)
class Start:
    """Prepare volumes and environment, write the order, start the shim."""


@dataclass(frozen=True, slots=True)
class Stop:
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class DeclareLost:
    """Kill the remaining processes and record since when they are lost."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Update the pod's status in the API. `is_over`: its containers never ran and never will."""

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the pod in the API, because none of its processes run any more."""


@dataclass(frozen=True, slots=True)
class RemoveFolder:
    """Kill remaining processes and remove the folder."""


Action = Admit | Start | Stop | DeclareLost | Publish | DeleteObject | RemoveFolder


def plan(seen: Seen) -> tuple[Action, ...]:
    """Return the next steps, in order. Check the pod again after them. It is safe to stop after any step."""
    if seen.phase is None:
        return _without_object(seen)
    if seen.deleting:
        return _deleting(seen)
    if seen.phase in ("Succeeded", "Failed"):
        match seen.body:
            case Body.ALIVE:  # set to Failed by another writer (pod garbage collection): it must not run on
                return (Stop(seen.grace_seconds),)
            case Body.ENDED:
                return (Publish(),)
            case _:
                return ()
    match seen.body:
        case Body.NONE if seen.phase == "Running":
            return (DeclareLost(), Publish())
        case Body.NONE:
            return () if seen.shutting_down else (Admit(), Start(), Publish())
        case Body.ADMITTED:
            return (Publish(),) if seen.shutting_down else (Start(), Publish())
        case Body.LOST:
            return (DeclareLost(), Publish())
        case Body.ALIVE | Body.ENDED | Body.REFUSED:
            return (Publish(),)


def _without_object(seen: Seen) -> tuple[Action, ...]:
    match seen.body:
        case Body.NONE:
            return ()
        case Body.ALIVE:
            return (Stop(GONE_GRACE_SECONDS),)
        case _:
            return (RemoveFolder(),)


def _deleting(seen: Seen) -> tuple[Action, ...]:
    match seen.body:
        case Body.ALIVE:
            return (Stop(seen.grace_seconds), Publish())
        case Body.ENDED:
            return (Publish(), DeleteObject())
        case Body.LOST:
            return (DeclareLost(), Publish(), DeleteObject())
        case _ if seen.phase in ("Succeeded", "Failed"):
            return (DeleteObject(),)
        case Body.NONE if seen.phase == "Running":
            return (DeclareLost(), Publish(), DeleteObject())
        case Body.REFUSED:
            return (Publish(), DeleteObject())
        case Body.NONE | Body.ADMITTED:  # the owner of a finalizer waits for the end of the pod
            return (Publish(is_over=True), DeleteObject())
