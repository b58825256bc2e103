"""Datasets: volumes that are filled once, from any source, and read by many pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from moorage.actions.objects import Kind, create_object, get_object, refuse
from moorage.actions.volumes import PodsEnded, end_pods, pods_that_hold, pods_with
from moorage.api.datasets import Dataset, NewDataset, Progress, Reader, Use
from moorage.api.errors import ErrorCode
from moorage.model.dataset import (
    AUTO,
    DATASET_OF_LABEL,
    DATASETS,
    READY,
    REFILL_ANNOTATION,
    BadDataset,
    claim_name,
    clone_name,
    parse_dataset,
)
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, RUN_LABEL, owned_by
from moorage.present.credentials import secret_command
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, NotFound, UsageError
from moorage_kube.integers import integer_or
from moorage_kube.meta import annotations_of, condition, is_deleting, labels_of
from moorage_kube.moments import moment
from moorage_kube.resources import PVCS, SECRETS, Obj

DATASET = Kind(DATASETS, "dataset")
DEFAULTS: Mapping[str, tuple[Any, ...]] = {"access": (AUTO,), "readers": ([],)}  # stored as if left out
NAME_LABEL = "moorage.dev/dataset"
SHARED = "Shared"  # reason of a dataset that another namespace shares
SHARED_PAGE = "shared/"  # begins the token of a page of shared datasets; those of Kubernetes are base64


class Users(Struct, frozen=True):
    """Runs and pods that mount a dataset now: in its own namespace, and `elsewhere` those of its readers."""

    here: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.here + self.elsewhere


async def list_datasets(
    api: Api, namespace: str | None, *, limit: int | None = None, after: str | None = None
) -> tuple[list[Dataset], str | None]:
    """The datasets of a namespace (None: all) and those shared with it, and the token of the next page.

    Raises ApiError, and NotReady if the cluster does not have the kind.
    """
    if namespace is not None and after is not None and after.startswith(SHARED_PAGE):
        return _page_of(await list_shared(api, namespace), limit, integer_or(after.removeprefix(SHARED_PAGE), 0))
    try:
        page = await api.list(DATASETS, namespace, limit=limit, cont=after)
    except NotFound as error:
        raise DATASET.unknown(error) from error
    own = [dataset_of(obj) for obj in page.items]
    if namespace is None or page.cont is not None:
        return own, page.cont
    shared = await list_shared(api, namespace)
    if limit is not None and shared and len(own) >= limit:
        return own, f"{SHARED_PAGE}0"
    more, token = _page_of(shared, None if limit is None else limit - len(own), 0)
    return own + more, token


async def list_shared(api: Api, namespace: str) -> list[Dataset]:
    """Datasets of other namespaces that this namespace may read, from the claims in it.

    Empty without the right.
    """
    try:
        claims = await api.list(PVCS, namespace, label_selector=DATASET_OF_LABEL)
    except Forbidden:
        return []
    shared = (shared_of(claim) for claim in claims.items)
    return sorted(shared, key=lambda dataset: (dataset.namespace, dataset.name))


def _page_of(datasets: Sequence[Dataset], limit: int | None, first: int) -> tuple[list[Dataset], str | None]:
    """One page of datasets: at most `limit` from number `first`, and the token of the next page."""
    end = len(datasets) if limit is None else first + limit
    return list(datasets[first:end]), f"{SHARED_PAGE}{end}" if end < len(datasets) else None


def plan_dataset(request: NewDataset, owner: str) -> Obj:
    """Convert a request to a Dataset. Raises UsageError."""
    obj: Obj = {
        "apiVersion": DATASETS.api_version,
        "kind": DATASETS.kind,
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            **owned_by(owner),
        },
        "spec": {key: value for key, value in request.spec.items() if value not in DEFAULTS.get(key, ())},
    }
    _check(obj)
    return obj


async def create_dataset(api: Api, obj: Obj, *, mark: str = "", dry_run: bool = False) -> Dataset:
    """Create a planned dataset, once for each idempotency mark; it starts to fill at once.

    Raises AlreadyExists, and UsageError if the Secret with its credentials is missing.
    """
    await _check_secret(api, obj)
    return dataset_of(await create_object(api, DATASET, obj, mark=mark, dry_run=dry_run))


async def _check_secret(api: Api, obj: Obj) -> None:
    """Raise UsageError if the Secret of a dataset is missing; do nothing if the caller may not check that."""
    source, namespace = obj["spec"]["source"], obj["metadata"]["namespace"]
    name, url = str(source.get("secret") or ""), str(source["url"])
    if not name:
        return
    try:  # members may create Secrets and not read them
        await api.create(SECRETS, {"metadata": {"name": name}}, namespace, dry_run=True)
    except (AlreadyExists, Forbidden):
        return
    raise UsageError(
        f"Secret {name!r} not found in namespace {namespace}: it must hold the credentials for {url}",
        hint=f"create it, then try again: {secret_command(name, namespace, url)}",
        code=ErrorCode.INVALID,
        field="spec.source.secret",
    )


async def get_dataset(api: Api, namespace: str, name: str) -> Dataset:
    """Raises NotFound."""
    return dataset_of(await get_object(api, DATASET, namespace, name))


async def set_readers(api: Api, namespace: str, name: str, readers: Sequence[str]) -> Dataset:
    """Set the tenants that may read a dataset; all others lose access. Raises NotFound, and UsageError."""
    return await _set_readers(api, namespace, name, lambda _: readers)


async def change_readers(
    api: Api, namespace: str, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
) -> tuple[str, ...]:
    """Add and remove readers of a dataset; return all its readers. Raises the same errors as `set_readers`."""
    gone, added = set(remove), tuple(add)

    def plan(before: Sequence[str]) -> Sequence[str]:
        return tuple(dict.fromkeys([*(tenant for tenant in before if tenant not in gone), *added]))

    changed = await _set_readers(api, namespace, name, plan)
    return tuple(reader.tenant for reader in changed.readers)


async def _set_readers(
    api: Api, namespace: str, name: str, plan: Callable[[Sequence[str]], Sequence[str]]
) -> Dataset:
    async def read() -> tuple[Obj, Obj]:
        obj = await get_object(api, DATASET, namespace, name)
        spec = obj.get("spec") or {}
        readers = list(plan(spec.get("readers") or ()))
        _check({**obj, "spec": {**spec, "readers": readers}})
        return obj, {"spec": {"readers": readers}}

    return dataset_of(await change_as_read(api, DATASETS, read))


async def refill_dataset(api: Api, namespace: str, name: str, now: datetime) -> None:
    """Fill a dataset again after its fill failed or its source changed.

    Raises NotFound, and Conflict if the dataset is ready: a ready dataset cannot change.
    """
    obj = await get_object(api, DATASET, namespace, name)
    if (obj.get("status") or {}).get("phase") == READY:
        raise Conflict(
            f"dataset {name!r} is ready and cannot change any more",
            hint="create another one: moor dataset create",
            code=ErrorCode.CONFLICT,
        )
    patch = {"metadata": {"annotations": {REFILL_ANNOTATION: now.isoformat()}}}
    await api.patch(DATASETS, name, patch, namespace)


async def check_delete(api: Api, namespace: str, names: Iterable[str], *, force: bool) -> dict[str, Users]:
    """The users that lose each dataset. Raises NotFound, and Conflict (`in_use`) unless `force`."""
    losers: dict[str, Users] = {}
    for name in names:
        users = await users_of(api, await get_object(api, DATASET, namespace, name))
        if users.all and not force:
            raise Conflict(
                f"dataset {name!r} is in use by {', '.join(users.all)}",
                hint="wait for those, or delete the dataset by force: their pods end",
                code=ErrorCode.IN_USE,
            )
        losers[name] = users
    return losers


async def delete_dataset(api: Api, namespace: str, name: str, *, force: bool) -> PodsEnded:
    """Delete a dataset with its volume.

    With `force` also while it is in use: then its pods in this namespace end, and it is deleted when its readers
    elsewhere have ended. Finished pods of this namespace are deleted too. Deletes only the dataset that was read,
    not a new one of the same name. Raises NotFound, and Conflict (`in_use`) without force.
    """
    await check_delete(api, namespace, [name], force=force)
    obj = await get_object(api, DATASET, namespace, name)
    await api.delete(DATASETS, name, namespace, uid=obj["metadata"]["uid"])
    return await end_pods(api, await pods_that_hold(api, namespace, _claims(name), force=force))


async def users_of(api: Api, obj: Obj) -> Users:
    """The users of a dataset: in its namespace from the pods there, elsewhere from its status."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    pods = await pods_with(api, namespace, _claims(name))
    here = (labels_of(pod).get(RUN_LABEL) or str(pod["metadata"]["name"]) for pod in pods)
    elsewhere = (
        f"{use['namespace']}/{use['name']}"
        for use in (obj.get("status") or {}).get("usedBy") or ()
        if use.get("active") and use["namespace"] != namespace
    )
    return Users(tuple(dict.fromkeys(here)), tuple(dict.fromkeys(elsewhere)))


def dataset_of(obj: Obj) -> Dataset:
    """Convert a Dataset object to an answer."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready = condition(obj, "Ready") or {}
    readers = status.get("readers") or [{"tenant": tenant} for tenant in spec.get("readers") or ()]
    progress: Mapping[str, Any] | None = status.get("progress")
    return Dataset(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        phase="Terminating" if is_deleting(obj) else status.get("phase") or "Pending",
        reason=ready.get("reason") or "",
        message=ready.get("message") or "",
        files=status.get("files"),
        bytes=status.get("bytes"),
        checksum=status.get("checksum") or "",
        progress=msgspec.convert(progress, Progress) if progress else None,
        filled_at=status.get("filledAt") or "",
        source=(spec.get("source") or {}).get("url") or "",
        size=str(spec.get("size") or ""),
        storage_class=spec.get("storageClass") or "",
        access=status.get("access") or "",
        claim=status.get("claim") or "",
        attempts=status.get("attempts") or 0,
        owner=annotations_of(obj).get(OWNER_ANNOTATION) or labels_of(obj).get(OWNER_LABEL) or "",
        readers=tuple(msgspec.convert(reader, Reader) for reader in readers),
        used_by=tuple(msgspec.convert(use, Use) for use in status.get("usedBy") or ()),
        created=moment(meta.get("creationTimestamp")),
    )


def shared_of(claim: Obj) -> Dataset:
    """A dataset of another namespace, from its claim in this namespace."""
    labels, meta, status = labels_of(claim), claim["metadata"], claim.get("status") or {}
    return Dataset(
        namespace=labels[DATASET_OF_LABEL],
        name=labels.get(NAME_LABEL, ""),
        phase=READY if status.get("phase") == "Bound" else "Pending",
        reason=SHARED,
        size=str((status.get("capacity") or {}).get("storage") or ""),
        access="shared",
        claim=meta["name"],
        created=moment(meta.get("creationTimestamp")),
    )


def _check(obj: Obj) -> None:
    """Raise UsageError for an invalid Dataset."""
    try:
        faults = parse_dataset(obj).faults
    except BadDataset as error:
        raise UsageError(error.message, code=ErrorCode.INVALID, field="spec") from error
    refuse(faults)


def _claims(name: str) -> set[str]:
    return {claim_name(name), clone_name(name)}
