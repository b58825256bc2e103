"""Secrets of a team: create, list and delete them with the rights of the user. No function returns a value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import Struct

from moorage.actions.atomic import all_or_none
from moorage.actions.objects import Kind, check_name
from moorage.actions.runfacts import or_none
from moorage.api.errors import ErrorCode
from moorage.api.secrets import Secret
from moorage.decide.runs.state import view_runs
from moorage.model.mapjob import COMPLETE, FAILED, MAPJOBS
from moorage.model.names import OWNER_ANNOTATION, RUN_LABEL, SECRET_LABEL
from moorage.model.secrets import keys_name, make_secret, used_secrets
from moorage.model.workspace import WORKSPACES
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, UsageError
from moorage_kube.meta import annotations_of, is_condition_true, labels_of, owner_reference
from moorage_kube.moments import moment
from moorage_kube.resources import CONFIGMAPS, JOBS, PODS, SECRETS, Obj

SECRET = Kind(CONFIGMAPS, "secret")
GARBAGE_SECONDS = 10.0  # in which the garbage collector deletes the Secret of a deleted secret; usually below 1 s
POLL_SECONDS = 0.5


class NewValues(Struct, frozen=True, kw_only=True):
    """A secret to create. `replace`: whether it takes the place of the values of one that exists."""

    name: str
    namespace: str
    values: Mapping[str, bytes]
    replace: bool = False


async def list_secrets(api: Api, namespace: str | None) -> list[Secret]:
    """The secrets of a namespace (None: all) with their keys and users, by name. Raises ApiError."""
    listed, users = await asyncio.gather(
        api.list(CONFIGMAPS, namespace, label_selector=SECRET_LABEL), _users(api, namespace)
    )
    rows = [_secret_of(obj, users) for obj in listed.items]
    return sorted(rows, key=lambda row: (row.namespace, row.name))


async def create_secret(api: Api, request: NewValues, owner: str, clock: Clock) -> Secret:
    """Create a secret, or replace its values.

    Raises UsageError for an invalid name or key, AlreadyExists, and NotFound if there is none to replace.
    """
    name, namespace = request.name, request.namespace
    _check(request)
    keys, secret = make_secret(name, namespace, owner, request.values)
    if request.replace:
        stored = await _stored(api, namespace, name)
        secret["metadata"]["ownerReferences"] = [owner_reference(stored, controller=False)]
        await api.update(SECRETS, secret)
        return _secret_of(await api.update(CONFIGMAPS, stored | {"data": keys["data"]}), {})
    async with all_or_none(api, namespace) as batch:
        try:
            stored = await batch.create(CONFIGMAPS, keys)
        except AlreadyExists as error:
            raise SECRET.taken(namespace, name) from error
        secret["metadata"]["ownerReferences"] = [owner_reference(stored, controller=False)]
        await _create(api, secret, clock)
    return _secret_of(stored, {})


async def delete_secret(api: Api, namespace: str, name: str, *, force: bool) -> tuple[str, ...]:
    """Delete a secret; return the runs and others that used it.

    Raises NotFound, and Conflict (`in_use`) for a secret in use, unless `force`.
    """
    stored = await _stored(api, namespace, name)
    users = tuple(sorted((await _users(api, namespace)).get((namespace, name), ())))
    if users and not force:
        raise Conflict(
            f"secret {name!r} is in use by {', '.join(users)}",
            hint="cancel those first, or delete the secret by force: pods that start later do not find it",
            code=ErrorCode.IN_USE,
        )
    meta = stored["metadata"]
    await api.delete(CONFIGMAPS, meta["name"], namespace, uid=meta["uid"], propagation="Background")
    return users


async def _stored(api: Api, namespace: str, name: str) -> Obj:
    """The ConfigMap with the keys of a secret. Raises NotFound with a message for users."""
    try:
        return await api.get(CONFIGMAPS, keys_name(name), namespace)
    except NotFound as error:
        raise SECRET.missing(namespace, name) from error


async def _create(api: Api, secret: Obj, clock: Clock) -> None:
    """Create a Secret; wait while the garbage collector deletes an earlier one of this name."""
    meta, end = secret["metadata"], clock.monotonic() + GARBAGE_SECONDS
    while True:
        try:
            await api.create(SECRETS, secret, meta["namespace"])
            return
        except AlreadyExists as error:
            if clock.monotonic() >= end:
                raise AlreadyExists(
                    f"a Kubernetes Secret {meta['name']!r} exists that `moor secret` did not create",
                    hint="choose another name",
                    code=ErrorCode.EXISTS,
                    field="name",
                ) from error
        await clock.sleep(POLL_SECONDS)


def _check(request: NewValues) -> None:
    check_name(request.name, "secret name")
    if not request.values:
        raise UsageError("a secret needs at least one value", code=ErrorCode.INVALID, field="values")
    for key, value in request.values.items():
        plain = key.replace("-", "").replace(".", "").replace("_", "")
        if not (plain.isascii() and plain.isalnum()) or len(key) > 253:
            raise UsageError(
                f"invalid key {key!r}: use at most 253 of A-Z, a-z, 0-9, '-', '_' and '.'",
                code=ErrorCode.INVALID,
                field="values",
            )
        if not value:
            raise UsageError(f"the value of {key} is empty", code=ErrorCode.INVALID, field="values")


async def _users(api: Api, namespace: str | None) -> dict[tuple[str, str], set[str]]:
    """The runs, maps, workspaces and pods that use each Secret and have not ended, by (namespace, Secret)."""
    pods, jobs, maps, workspaces = await asyncio.gather(
        *(or_none(api.list(resource, namespace)) for resource in (PODS, JOBS, MAPJOBS, WORKSPACES))
    )
    runs = {(run.namespace, run.name): run for run in view_runs(jobs.items if jobs else (), ())}
    active = list(workspaces.items) if workspaces else []
    for obj in (obj for listed in (pods, jobs, maps) if listed for obj in listed.items):
        run = runs.get((obj["metadata"]["namespace"], labels_of(obj).get(RUN_LABEL, "")))
        if not (run.state.ended if run else _has_ended(obj)):
            active.append(obj)
    users: dict[tuple[str, str], set[str]] = {}
    for obj in active:
        meta = obj["metadata"]
        for name in used_secrets(obj.get("spec")):
            users.setdefault((meta["namespace"], name), set()).add(labels_of(obj).get(RUN_LABEL) or meta["name"])
    return users


def _has_ended(obj: Obj) -> bool:
    phase = (obj.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed") or any(is_condition_true(obj, kind) for kind in (COMPLETE, FAILED))


def _secret_of(keys: Obj, users: Mapping[tuple[str, str], Iterable[str]]) -> Secret:
    meta = keys["metadata"]
    name = labels_of(keys)[SECRET_LABEL]
    return Secret(
        namespace=meta["namespace"],
        name=name,
        keys=tuple(sorted(keys.get("data") or ())),
        owner=annotations_of(keys).get(OWNER_ANNOTATION, ""),
        used_by=tuple(sorted(users.get((meta["namespace"], name), ()))),
        created=moment(meta.get("creationTimestamp")),
    )
