"""Tenants: teams with a namespace, roles, quota, nodes and hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage.actions.objects import no_kind
from moorage.actions.specs import Changes, Set, list_objects, set_spec
from moorage.api.errors import ErrorCode
from moorage.cluster.serverurl import platform_info
from moorage.model.tenant import ROLES as ROLES
from moorage.model.tenant import TENANTS
from moorage.model.tenantquota import read_quota
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.errors import AlreadyExists, NotFound, UsageError
from moorage_kube.resources import Obj

LIST = "moor tenant list"  # the command

Names = Mapping[str, Sequence[str]]
"""`people` and `groups` → the names of each."""
Check = Callable[[Obj, Obj], None]
"""Raises an error if a tenant may not change so: before, and after."""


def plan_tenant(name: str, spec: Mapping[str, Any]) -> Obj:
    """A Tenant with that spec; its default namespace has the tenant's name. Raises Problems for a wrong quota."""
    spec = {"namespace": name} | dict(spec)
    if quota := spec.get("quota"):
        spec["quota"] = read_quota(quota)
    return {
        "apiVersion": TENANTS.api_version,
        "kind": TENANTS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def create_tenant(api: Api, obj: Obj) -> Obj:
    """Create a planned tenant; the operator creates its namespace. Raises AlreadyExists.

    A tenant without a default image gets that of the installation.
    """
    name, spec = obj["metadata"]["name"], obj["spec"]
    if image := (await platform_info(api)).run_image:
        obj = obj | {"spec": spec | {"defaults": {"image": image} | (spec.get("defaults") or {})}}
    try:
        return await api.create(TENANTS, obj)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"the name {name!r} is taken: another tenant has it",
            hint=f"choose another name, or look at it: moor tenant show {name}",
            code=ErrorCode.EXISTS,
            field="name",
        ) from error
    except NotFound as error:
        raise no_kind(TENANTS) from error


async def list_tenants(api: Api) -> list[Obj]:
    """All tenants, sorted by name. Raises NotReady without the kind."""
    return await list_objects(api, TENANTS)


async def get_tenant(api: Api, name: str) -> Obj:
    """Raises NotFound."""
    try:
        return await api.get(TENANTS, name)
    except NotFound as error:
        raise missing_tenant(name) from error


def missing_tenant(name: str) -> NotFound:
    return NotFound(f"tenant {name!r} not found", hint=f"list the tenants: {LIST}", code=ErrorCode.NOT_FOUND)


async def add_to_tenant(api: Api, name: str, role: str, names: Names, *, check: Check | None = None) -> Obj:
    """Give people and groups a role in a tenant; present holders keep it.

    Returns the changed tenant. `check` judges each version that would be changed. Raises its errors, UsageError
    without any names, and NotFound.
    """

    def added(held: Names) -> Names:
        return {field: list(dict.fromkeys([*(held.get(field) or ()), *new])) for field, new in names.items()}

    return await _change_role(api, name, role, names, added, check)


async def remove_from_tenant(api: Api, name: str, role: str, names: Names, *, check: Check | None = None) -> Obj:
    """Remove a role in a tenant from users and groups.

    Raises the errors of `add_to_tenant`, and UsageError for a name that does not have the role.
    """

    def left(held: Names) -> Names:
        changed: dict[str, list[str]] = {}
        for field, removed in names.items():
            before = list(held.get(field) or ())
            if missing := [person for person in removed if person not in before]:
                kind = "person" if field == "people" else "group"
                raise UsageError(
                    f"{kind} {missing[0]!r} does not have the role {role} in tenant {name!r}",
                    hint=f"list the members: moor tenant show {name}",
                    code=ErrorCode.INVALID,
                    field=field,
                )
            changed[field] = [person for person in before if person not in removed]
        return changed

    return await _change_role(api, name, role, names, left, check)


async def set_tenant(
    api: Api, name: str, fields: Changes, *, seen: int | None = None, dry_run: bool = False
) -> Set:
    """Change the given fields of a tenant; amounts of a quota that are not given stay. `seen`: see `set_spec`.

    Raises the errors of `set_spec`, and Problems for a wrong quota.
    """

    def plan(spec: Obj) -> Changes:
        changes = dict(fields)
        if given := changes.get("quota"):
            held = spec.get("quota") or {}
            removed = read_quota({key: 0 for key, amount in given.items() if amount is None})
            added = read_quota({key: amount for key, amount in given.items() if amount is not None})
            left = {key: amount for key, amount in read_quota(held).items() if key not in removed}
            changes["quota"] = dict.fromkeys(held) | left | added
        return changes

    return await set_spec(api, TENANTS, name, plan, dry_run=dry_run, creates=False, seen=seen)


async def delete_tenant(api: Api, name: str) -> Obj:
    """Delete a tenant: its users lose their roles. Its namespace stays unless `spec.onDelete` is Delete.

    Returns the deleted tenant. The delete is guarded by the uid that was read, so that a new tenant of the
    same name is not deleted. Raises NotFound.
    """
    obj = await get_tenant(api, name)
    await api.delete(TENANTS, name, uid=obj["metadata"]["uid"])
    return obj


async def _change_role(
    api: Api, name: str, role: str, names: Names, plan: Callable[[Names], Names], check: Check | None
) -> Obj:
    """`plan`: the present holders of the role → the holders among `names` afterwards."""
    if not any(names.values()):
        raise UsageError("no user or group is given: give at least one", code=ErrorCode.INVALID)

    async def read() -> tuple[Obj, Obj]:
        obj = await get_tenant(api, name)
        held = obj["spec"].get(f"{role}s") or {}
        changed = dict(plan(held))
        if check is not None:
            check(obj, {**obj, "spec": {**obj["spec"], f"{role}s": {**held, **changed}}})
        return obj, {"spec": {f"{role}s": changed}}

    return await change_as_read(api, TENANTS, read)
