"""Cluster-wide objects of which an administrator sets single fields: create one, change fields, delete it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.actions.objects import check_name, no_kind, refuse
from moorage.api.errors import ErrorCode
from moorage.model.machine import Fault
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, UsageError
from moorage_kube.mergepatch import merge_patch
from moorage_kube.resources import Obj, Resource

Changes = Mapping[str, Any]
"""A merge patch of a spec: None removes a field."""


class Set(Struct, frozen=True, kw_only=True):
    """An object after its fields were set, and whether it is new."""

    obj: Obj
    is_new: bool

    @property
    def document(self) -> Obj:
        """The object as a file for `kubectl apply`."""
        return {
            "apiVersion": self.obj["apiVersion"],
            "kind": self.obj["kind"],
            "metadata": {"name": self.obj["metadata"]["name"]},
            "spec": self.obj["spec"],
        }


async def set_spec(
    api: Api,
    resource: Resource,
    name: str,
    plan: Callable[[Obj], Changes],
    *,
    check: Callable[[Obj], Sequence[Fault]] = lambda _: (),
    dry_run: bool = False,
    creates: bool = True,
    seen: int | None = None,
) -> Set:
    """Create the object, or change its spec by the merge patch that `plan` makes from the present spec.

    `creates`: whether a missing object is created. `seen`: the generation that the caller has seen, 0 without an
    object; another one is not changed. Raises InvalidName, UsageError without a change, InvalidObject for the
    faults that `check` returns, Conflict, NotFound, and NotReady without the kind.
    """
    check_name(name)

    def planned(obj: Obj) -> tuple[Obj, Changes]:
        if seen is not None and seen != (obj["metadata"].get("generation") or 0):
            raise changed_meanwhile(resource, name) if seen else taken(resource, name)
        changes = plan(obj["spec"])
        if not changes:
            raise UsageError("nothing to change: give at least one option", code=ErrorCode.INVALID)
        after = {**obj, "spec": merge_patch(obj["spec"], changes)}
        refuse(check(after))
        return after, changes

    async def read() -> tuple[Obj, Obj]:
        obj = await api.get(resource, name)
        return obj, {"spec": planned(obj)[1]}

    try:
        if dry_run:
            return Set(obj=planned(await api.get(resource, name))[0], is_new=False)
        return Set(obj=await change_as_read(api, resource, read), is_new=False)
    except NotFound as error:
        if seen or not creates:
            raise missing(resource, name) from error
    # it does not exist: the same plan for an empty spec
    empty: Obj = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        "spec": {},
    }
    obj = planned(empty)[0]
    try:
        return Set(obj=obj if dry_run else await api.create(resource, obj), is_new=True)
    except NotFound as error:
        raise no_kind(resource) from error


async def delete_object(api: Api, resource: Resource, name: str) -> None:
    """Raises NotFound."""
    try:
        await api.delete(resource, name)
    except NotFound as error:
        raise missing(resource, name) from error


async def list_objects(api: Api, resource: Resource) -> list[Obj]:
    """All objects of the kind, sorted by name. Raises NotReady without the kind."""
    try:
        objs = (await api.list(resource)).items
    except NotFound as error:
        raise no_kind(resource) from error
    return sorted(objs, key=lambda obj: str(obj["metadata"]["name"]))


def only_changes(spec: Mapping[str, Any], wanted: Changes) -> dict[str, Any]:
    """The part of a merge patch that changes the spec."""
    changes: dict[str, Any] = {}
    for field, value in wanted.items():
        present = spec.get(field)
        if isinstance(value, Mapping):
            value = only_changes(present or {}, value)
            if value:
                changes[field] = value
        elif value != present:
            changes[field] = value
    return changes


def taken(resource: Resource, name: str) -> AlreadyExists:
    message = f"the name {name!r} is taken: another {resource.kind} has it"
    return AlreadyExists(message, hint="choose another name", code=ErrorCode.EXISTS, field="name")


def changed_meanwhile(resource: Resource, name: str) -> Conflict:
    message = f"{resource.kind} {name} was changed while the form was open"
    hint = "look at its present values, and make your change again"
    return Conflict(message, hint=hint, code=ErrorCode.CONFLICT)


def missing(resource: Resource, name: str) -> NotFound:
    return NotFound(f"{resource.kind} {name!r} not found", code=ErrorCode.NOT_FOUND)
