"""Decide whether to delete an object because of its owners, and an owner because of its dependents.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from moorage_kube.meta import is_deleting
from moorage_kube.resources import Obj

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"

Propagation = Literal["Background", "Foreground", "Orphan"]


class Owner(Enum):
    """The state of an owner."""

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
            uid = seen.obj["metadata"]["uid"]
            if not any(uid in blocked_owners(dependent) for dependent in seen.dependents):
                return (RemoveFinalizer(FOREGROUND),)
            return (Visit(tuple(dependent for dependent in seen.dependents if not is_deleting(dependent))),)
        return ()
    refs = seen.obj["metadata"].get("ownerReferences") or ()
    if not refs:
        return ()
    states = {ref["uid"]: seen.owners.get(ref["uid"], Owner.SOLID) for ref in refs}
    gone = frozenset(uid for uid, state in states.items() if state is not Owner.SOLID)
    if not gone:
        return ()
    if len(gone) < len(states):
        return (DropOwners(gone),)  # another owner still exists
    if Owner.WAITING in states.values() and seen.dependents:
        circle = any(waits_for_dependents(dependent) for dependent in seen.dependents)
        return (*((Unblock(),) if circle else ()), Delete("Foreground"))
    if ORPHAN in finalizers:
        return (Delete("Orphan"),)
    return (Delete("Foreground" if FOREGROUND in finalizers else "Background"),)


def owners_of(obj: Mapping[str, Any] | None) -> set[str]:
    """The uids of its owners."""
    return {ref["uid"] for ref in _references(obj)}


def blocked_owners(obj: Mapping[str, Any] | None) -> set[str]:
    """The uids of the owners that wait for this object when they are deleted in the foreground."""
    return {ref["uid"] for ref in _references(obj) if ref.get("blockOwnerDeletion")}


def _references(obj: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return (obj["metadata"].get("ownerReferences") or ()) if obj is not None else ()


def waits_for_dependents(obj: Mapping[str, Any] | None) -> bool:
    """Whether it is being deleted in the foreground."""
    return obj is not None and is_deleting(obj) and FOREGROUND in (obj["metadata"].get("finalizers") or ())
