"""Mutexes and semaphores: their holders, and the order of waiting nodes.

A node gets all its locks at once or none, so that two never wait for each other. Of those that wait the one with
the higher priority is first, then the older workflow.
https://argo-workflows.readthedocs.io/en/latest/synchronization/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from moorage.model.argo import WORKFLOWS
from moorage_workflows.decide.workflows.graph.events import Locks
from moorage_workflows.model.workflow import NodeRecord, WorkflowRecord

# kinds of locks: prefixes of their names
MUTEX, SEMAPHORE = "Mutex/", "Semaphore/"
DATABASE_MUTEX = "DatabaseMutex/"  # `database: true`: another lock than the plain one of its name
LIMITS_CONFIGMAP = "workflow-limits"  # of a namespace: how many may hold its semaphores with `database`
_WHOLE = re.compile(r"[0-9]{1,9}")
SHOWN_MAX = 50  # locks that are held, and as many that are waited for, in an object's status


def locks_held(record: WorkflowRecord, nodes: Iterable[NodeRecord]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(holder, locks) for the run and each of its nodes that holds locks by its record."""
    if record.locks:
        yield record.name, record.locks
    for node in nodes:
        if node.locks and not node.phase.is_fulfilled:
            yield node.id, node.locks


class Limit(Struct, frozen=True):
    """How many may hold a semaphore. `fault`: why the number is unknown or zero."""

    count: int
    fault: str = ""


def limit_of(name: str, entry: str, data: Mapping[str, Any] | None) -> Limit:
    """Read a limit from the data of a ConfigMap; None: there is no such ConfigMap.

    A fault shows no key and no value: it is in the status, and readers of that may not read the ConfigMap.
    """
    if data is None:
        return Limit(0, f"the ConfigMap {name} does not exist")
    if entry not in data:
        return Limit(0, f"the ConfigMap {name} has no key {entry}")
    text = str(data[entry]).strip()
    if not _WHOLE.fullmatch(text):
        return Limit(
            0, f"the key {entry} of the ConfigMap {name} has an invalid value: use a whole number, at least 1"
        )
    count = int(text)
    return Limit(
        count, "" if count else f"the key {entry} of the ConfigMap {name} is 0: the semaphore cannot be held"
    )


def lock_namespace(lock: str) -> str:
    return lock.split("/", 2)[1]


def right_to_hold(lock: str) -> dict[str, str]:
    """The attributes of a SubjectAccessReview for the right to hold a lock of another namespace.

    For a semaphore: to read its limit there. A mutex has no object, so for a mutex: to create a Workflow
    there, which could hold it, too.
    """
    if lock.startswith(SEMAPHORE):
        _, namespace, name, _ = lock.split("/", 3)
        return {"verb": "get", "resource": "configmaps", "namespace": namespace, "name": name}
    return {
        "verb": "create", "group": WORKFLOWS.group, "resource": WORKFLOWS.plural, "namespace": lock_namespace(lock)
    }  # fmt: skip


def lock_name(lock: str) -> str:
    """Return the name of a lock in Argo's format."""
    kind, _, rest = lock.partition("/")
    namespace, _, name = rest.partition("/")
    if kind == "DatabaseMutex":
        return f"mtx/{namespace}/{name}"
    if kind == "Mutex":
        return f"{namespace}/Mutex/{name}"
    if name.startswith(f"{LIMITS_CONFIGMAP}/"):
        return f"sem/{namespace}/{name.partition('/')[2]}"
    return f"{namespace}/ConfigMap/{name}"


class Waiting(Struct, frozen=True):
    """A node of a workflow that waits for locks."""

    workflow: str  # uid
    asked: Locks
    number: int  # the order of asking


def _places(lock: str, limits: Mapping[str, int]) -> int:
    return limits.get(lock, 0 if lock.startswith(SEMAPHORE) else 1)


class LockTable:
    """The locks of one cluster."""

    def __init__(self) -> None:
        self._holders: dict[str, set[tuple[str, str]]] = {}
        self._waiting: list[Waiting] = []
        self._number = 0

    def restore(self, workflow: str, node: str, locks: Iterable[str]) -> None:
        """Add a node that holds these locks according to its saved record."""
        for lock in locks:
            self._holders.setdefault(lock, set()).add((workflow, node))

    def ask(self, workflow: str, asked: Locks) -> None:
        if any(row.workflow == workflow and row.asked.node == asked.node for row in self._waiting):
            return
        self._number += 1
        self._waiting.append(Waiting(workflow, asked, self._number))
        self._waiting.sort(key=lambda row: (-row.asked.priority, row.asked.created_at, row.number))

    def release(self, workflow: str, node: str = "") -> None:
        """Remove a node as holder of and waiter for locks; without `node`, remove all nodes of the workflow."""
        for holders in self._holders.values():
            holders -= {holder for holder in holders if holder[0] == workflow and node in ("", holder[1])}
        self._waiting = [
            row for row in self._waiting if not (row.workflow == workflow and node in ("", row.asked.node))
        ]

    def is_waiting(self, workflow: str) -> bool:
        """Whether a node of this workflow waits for a lock."""
        return any(row.workflow == workflow for row in self._waiting)

    def asked_by(self, workflow: str) -> list[Locks]:
        """The requests for locks of nodes of this workflow that wait."""
        return [row.asked for row in self._waiting if row.workflow == workflow]

    def wanted(self) -> set[str]:
        """The locks that at least one node waits for."""
        return {lock for row in self._waiting for lock in row.asked.locks}

    def grant(self, limits: Mapping[str, int]) -> list[Waiting]:
        """Grant free locks, in order: an earlier request for the same lock comes first.

        A holder without a saved record asks again, and gets its locks before earlier requests of others.
        `limits`: how many may hold a lock. A mutex that it does not name has one holder. A semaphore has none:
        its limit has not been read.
        """
        granted, left, kept = [], [], set[str]()
        for row in self._waiting:
            is_free = all(
                (row.workflow, row.asked.node) in self._holders.get(lock, ())
                or (lock not in kept and len(self._holders.get(lock, ())) < _places(lock, limits))
                for lock in row.asked.locks
            )
            if is_free:
                self.restore(row.workflow, row.asked.node, row.asked.locks)
                granted.append(row)
            else:
                kept |= set(row.asked.locks)
                left.append(row)
        self._waiting = left
        return granted

    def status_of(self, workflow: str) -> dict[str, Any]:
        """`status.synchronization` of a workflow: the locks that its nodes hold and wait for, in Argo's shape.

        https://argo-workflows.readthedocs.io/en/latest/fields/#synchronizationstatus
        """
        held = [
            (lock, node)
            for lock, holders in self._holders.items()
            for uid, node in sorted(holders)
            if uid == workflow
        ]
        wanted = [
            (lock, row.asked.node) for row in self._waiting if row.workflow == workflow for lock in row.asked.locks
        ]
        status: dict[str, Any] = {}
        for word, rows in (("holding", sorted(held)[:SHOWN_MAX]), ("waiting", wanted[:SHOWN_MAX])):
            for lock, node in rows:
                kind = "mutex" if lock.startswith((MUTEX, DATABASE_MUTEX)) else "semaphore"
                entries = status.setdefault(kind, {}).setdefault(word, [])
                if kind == "mutex":
                    entries.append({kind: lock_name(lock), "holder": node})
                    continue
                entry = next((row for row in entries if row[kind] == lock_name(lock)), None)
                if entry is None:
                    entries.append(entry := {kind: lock_name(lock), "holders": []})
                entry["holders"].append(node)
        return status

    def holders(self, lock: str) -> frozenset[tuple[str, str]]:
        """Return the holders of a lock: (uid of the workflow, id of the node)."""
        return frozenset(self._holders.get(lock, ()))
