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
    """One object, the states of its owners by uid, and its dependents."""

    obj: Obj
    owners: Mapping[str, Owner]
    dependents: Sequence[Obj] = ()


@dataclass(frozen=True, slots=True)
class Delete:
    propagation: Propagation


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove these owner references from the object."""

    uids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unblock:
    """Set blockOwnerDeletion to false in the object's owner references, because it waits in a cycle."""


@dataclass(frozen=True, slots=True)
class OrphanDependents:
    """Remove the owner references to this object from its dependents."""

    dependents: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """Check these dependents next."""

    dependents: tuple[Obj, ...]


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    finalizer: str


Action = Delete | DropOwners | Unblock | OrphanDependents | Visit | RemoveFinalizer


def plan(seen: Observed) -> tuple[Action, ...]:
    """Return the next steps; none if the object needs no change."""
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
    """Return the uids of the object's owners."""
    return {ref["uid"] for ref in _references(obj)}


def blocked_owners(obj: Mapping[str, Any] | None) -> set[str]:
    """Return the uids of the owners whose foreground deletion waits for this object."""
    return {ref["uid"] for ref in _references(obj) if ref.get("blockOwnerDeletion")}


def _references(obj: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return (obj["metadata"].get("ownerReferences") or ()) if obj is not None else ()


def waits_for_dependents(obj: Mapping[str, Any] | None) -> bool:
    """Whether the object is being deleted in the foreground."""
    return obj is not None and is_deleting(obj) and FOREGROUND in (obj["metadata"].get("finalizers") or ())
