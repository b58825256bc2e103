"""MapJobs in a backup: a map without its MapJob has no workers, and cannot be changed by `kubectl`.

A backup of etcd has MapJobs too. Where it is lost, or older than a map, a restore creates the
missing ones. Objects that a MapJob mounts, such as uploaded code, are only in etcd.
"""

from __future__ import annotations

import contextlib
import tarfile
from functools import partial
from pathlib import Path

import msgspec

from moorage.model.mapjob import MAPJOBS
from moorage.model.names import MAP_REQUEST_ANNOTATION, OWNER_ANNOTATION
from moorage.model.people import PEOPLE_NAMESPACE, account_name, account_user
from moorage.queue.store import Store, Stored
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.namespaces import records_since
from moorage.server.problems import Problem
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError, NotFound
from moorage_kube.meta import annotations_of
from moorage_kube.resources import SERVICEACCOUNTS, Obj

FILE = "objects/mapjobs.jsonl"  # in the archive
_KEPT_OF_QUEUE = ("uid", "round", "marks")  # the map, and which notices were sent


async def save_mapjobs(context: Context, folder: Path) -> None:
    """Write the MapJobs that have a map into a folder, as an archive has it. Raises ApiError.

    Called after the databases were read: a MapJob that is missing by then was deleted by its owner.
    """
    try:
        mapjobs = (await context.api.list(MAPJOBS)).items
    except NotFound:  # a cluster without the kind
        return
    with_map = [_kept(obj) for obj in mapjobs if ((obj.get("status") or {}).get("queue") or {}).get("uid")]
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_bytes(b"".join(msgspec.json.encode(obj) + b"\n" for obj in with_map))


def _kept(obj: Obj) -> Obj:
    meta, queue = obj["metadata"], obj["status"]["queue"]
    return {
        "apiVersion": MAPJOBS.api_version,
        "kind": MAPJOBS.kind,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": meta.get("labels") or {},
            "annotations": {MAP_REQUEST_ANNOTATION: meta["uid"]} | (meta.get("annotations") or {}),
        },
        "spec": obj.get("spec") or {},
        "status": {"queue": {name: queue[name] for name in _KEPT_OF_QUEUE if name in queue}},
    }


def read_mapjobs(archive: Path) -> list[Obj]:
    """Read the MapJobs of a checked archive; empty if the archived cluster did not have the kind."""
    with tarfile.open(archive) as tar:
        try:
            file = tar.extractfile(FILE)
        except KeyError:
            return []
        assert file is not None  # a plain file
        return [msgspec.json.decode(line) for line in file]


async def create_missing(context: Context, user: User, mapjobs: list[Obj]) -> list[str]:
    """Create the MapJobs of restored maps that are missing; return the maps that still have none, with the
    reason.

    Each is created as its owner, by the owner's rights; if the owner is not an account, `user` creates
    and owns it.
    """
    problems = []
    for obj in mapjobs:
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        stored = await context.queue.read(partial(_find, namespace, name))
        if stored is None or stored.uid != obj["status"]["queue"]["uid"]:
            continue  # created while the backup was made
        try:
            problem = await _create(context, user, obj, stored)
        except (MoorageError, Problem) as error:
            problem = error.message
        if problem:
            problems.append(f"{namespace}/{name}: {problem}")
    return problems


def _find(namespace: str, name: str, store: Store) -> Stored | None:
    return store.find_map(namespace, name)


async def _create(context: Context, user: User, obj: Obj, stored: Stored) -> str:
    """Create a MapJob; return the reason why it could not be created, "" if it exists now."""
    namespace, name = stored.namespace, stored.name
    since = await records_since(context.api, namespace)
    if since is None:
        return f"namespace {namespace} not found"
    if stored.created_at < since.timestamp() * 1000:
        return f"namespace {namespace} is newer than the map, so it may be another team's"
    api = context.acting(await _owner_of(context, obj) or user)
    try:
        await api.create(MAPJOBS, {key: value for key, value in obj.items() if key != "status"}, namespace)
    except AlreadyExists:
        existing = await context.api.get(MAPJOBS, name, namespace)
        queue = (existing.get("status") or {}).get("queue") or {}
        is_same = queue.get("uid") == stored.uid or (
            annotations_of(existing).get(MAP_REQUEST_ANNOTATION)
            == obj["metadata"]["annotations"][MAP_REQUEST_ANNOTATION]
        )
        return "" if is_same else "another MapJob has its name"
    with contextlib.suppress(ApiError):  # without it, notices are sent again
        status = {"status": {"queue": obj["status"]["queue"]}}
        await context.api.patch(MAPJOBS, name, status, namespace, subresource="status")
    return ""


async def _owner_of(context: Context, obj: Obj) -> User | None:
    """The owner of the MapJob, as a user; None if the owner has no account."""
    owner = annotations_of(obj).get(OWNER_ANNOTATION, "")
    try:
        await context.api.get(SERVICEACCOUNTS, account_name(owner), PEOPLE_NAMESPACE)
    except (NotFound, ValueError):
        return None
    return User(owner, account=account_user(owner))
