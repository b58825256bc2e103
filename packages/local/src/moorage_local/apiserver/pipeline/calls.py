"""Inputs and results of the pipeline: a call and its options, pages, events, admission."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from moorage_kube.resources import Obj
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.storage import Record

Settle = list[Callable[[], None]]
"""Called once a write is over, done or not."""

Stored = Callable[[Kind, Obj | None, Obj | None], None]
"""Called with (kind, before, after) once a write is durable."""

Made = Callable[[Obj], Awaitable[Obj]]
"""Makes the wanted object from the stored one, of which it gets a copy."""

Propagation = Literal["Background", "Foreground", "Orphan"]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(slots=True, kw_only=True)
class Call:
    """One request: its user, and the values that all verbs share. `warnings` are shown to the client."""

    user: User
    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Ignore"  # of unknown fields: Ignore, Warn or Strict
    applying: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: Propagation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    label_selector: str | None = None
    field_selector: str | None = None
    limit: int | None = None
    cont: str | None = None
    resource_version: str | None = None
    resource_version_match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A page of a list. The objects are shared: never change them."""

    items: list[Obj]
    resource_version: str
    cont: str | None = None
    remaining: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A page of a list, as stored records."""

    records: list[Record]
    resource_version: str
    cont: str | None = None
    remaining: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The input of admission: the operation, and the object before and after."""

    operation: Operation
    kind: Kind
    namespace: str | None
    name: str
    subresource: str | None
    obj: Obj | None
    old: Obj | None
    call: Call
    options: Obj
    settle: Settle = field(default_factory=list)  # for admitters that count the requests under way


class Admitter(Protocol):
    """A check of writes: it may change the object (`mutate`) or refuse the write with an ApiError."""

    async def mutate(self, asked: Admission) -> Obj | None:
        """Return the changed object, or None for no change.

        It may change and return the object that it received.
        """
        ...

    async def validate(self, asked: Admission) -> None: ...


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a watch. The object is shared."""

    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK
    obj: Obj
