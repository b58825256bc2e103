"""Decide what happens to an object for its owners' sake, and to an owner for its dependents' sake.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from moorage.apimachinery.meta import is_deleting
from moorage.apimachinery.resources import Obj

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"

Propagation = Literal["Background", "Foreground", "Orphan"]


class Owner(Enum):
    """What became of an owner."""

    SOLID = "it is there"
    ABSENT = "no object of that name has that uid"
    WAITING = "it is being deleted in the foreground: it waits for its dependents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One object, the state of each of its owners by uid, and the objects that name it as owner."""

    obj: Obj
    owners: Mapping[str, Owner]
    dependents: Sequence[Obj] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    propagation: Propagation


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove these references from the object itself."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unblock:
    """Set blockOwnerDeletion to false in the object's references: it waits in a circle."""


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove the references to this object from its dependents."""

    dependents: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """Look at these dependents next."""

    dependents: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    finalizer: str


Action = Delete | DropOwners | Unblock | OrphanDependents | Visit | RemoveFinalizer


def plan(seen: Observed) -> tuple[Action, ...]:
    """The next steps; none when the object may stay as it is."""
    finalizers: Collection[str] = seen.obj["metadata"].get("finalizers") or ()
    if is_deleting(seen.obj):
        if ORPHAN in finalizers:
            orphans = (OrphanDependents(tuple(seen.dependents)),) if seen.dependents else ()
            return (*orphans, RemoveFinalizer(ORPHAN))
        if FOREGROUND in finalizers:
            blocking = [one for one in seen.dependents if _blocks(one, seen.obj)]
            if not blocking:
                return (RemoveFinalizer(FOREGROUND),)
            return (Visit(tuple(one for one in seen.dependents if not is_deleting(one))),)
        return ()
    refs = seen.obj["metadata"].get("ownerReferences") or ()
    if not refs:
        return ()
    states = {ref["uid"]: seen.owners.get(ref["uid"], Owner.SOLID) for ref in refs}
    gone = frozenset(uid for uid, state in states.items() if state is not Owner.SOLID)
    if not gone:
        return ()
    if len(gone) < len(states):
        return (DropOwners(gone),)  # somebody still holds it
    if Owner.WAITING in states.values() and seen.dependents:
        circle = any(
            is_deleting(one) and FOREGROUND in (one["metadata"].get("finalizers") or ()) for one in seen.dependents
        )
        return (*((Unblock(),) if circle else ()), Delete("Foreground"))
    if ORPHAN in finalizers:
        return (Delete("Orphan"),)
    return (Delete("Foreground" if FOREGROUND in finalizers else "Background"),)


def _blocks(dependent: Mapping[str, Any], owner: Mapping[str, Any]) -> bool:
    uid = owner["metadata"]["uid"]
    return any(
        ref["uid"] == uid and ref.get("blockOwnerDeletion")
        for ref in dependent["metadata"].get("ownerReferences") or ()
    )
