"""Volumes: persistent volume claims, under their usual name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec import Struct, field

from moorage.actions.objects import Kind, check_name, create_object, get_object
from moorage.api.errors import ErrorCode
from moorage.api.volumes import NewVolume, StorageClass, Volume
from moorage.decide.runs.claims import make_claim
from moorage.model.dataset import CLONE, SHARED
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, RUN_LABEL
from moorage.model.storageclass import ROX, RWX, SHORT, ClassView, parse_class
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, Conflict, Forbidden, NotFound, QuantityError, UsageError
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.moments import moment
from moorage_kube.quantity import parse_quantity, problem_of_bytes
from moorage_kube.resources import PODS, PVCS, STORAGECLASSES, Obj
from moorage_kube.scheduling import parse_pod

VOLUME = Kind(PVCS, "volume")
CONTROLLERS = "system:"  # begins the names of users that are no persons
NOBODY: Mapping[tuple[str, str], str] = {}
Used = Mapping[tuple[str, str], int]
"""(namespace, claim) → bytes in use, of the volumes that a node reported."""


class PodsEnded(Struct, frozen=True):
    """The pods that used a deleted object: names of the ended ones, and why some remain."""

    ended: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)


async def list_volumes(
    api: Api, namespace: str | None, used: Used, *, limit: int | None = None, after: str | None = None
) -> tuple[list[Volume], str | None]:
    """The volumes of a namespace (None: all), and the token of the next page. Raises ApiError."""
    claims = await api.list(PVCS, namespace, limit=limit, cont=after)
    pods = (await api.list(PODS, namespace)).items
    users, owners = users_by_claim(pods), owners_by_claim(pods)
    return [volume_of(claim, users, used, owners) for claim in claims.items], claims.cont


async def get_volume(api: Api, namespace: str, name: str) -> Volume:
    """One volume with the runs and pods that mount it. Raises NotFound."""
    claim = await get_object(api, VOLUME, namespace, name)
    pods = (await api.list(PODS, namespace)).items
    return volume_of(claim, users_by_claim(pods), {}, owners_by_claim(pods))


def plan_volume(request: NewVolume, owner: str) -> Obj:
    """Convert a request to a PersistentVolumeClaim. Raises UsageError for an invalid name or size."""
    check_name(request.name, "volume name")
    parse_size(request.size)
    return make_claim(
        request.name,
        request.namespace,
        request.size,
        owner,
        mode=request.access_mode,
        storage_class=request.storage_class or None,
    )


async def create_volume(api: Api, claim: Obj, *, mark: str = "", dry_run: bool = False) -> Volume:
    """Create a planned volume, once for each idempotency mark. Raises AlreadyExists."""
    return volume_of(await create_object(api, VOLUME, claim, mark=mark, dry_run=dry_run), {}, {})


async def resize_volume(api: Api, namespace: str, name: str, size: str) -> tuple[Volume, str]:
    """Make a volume larger; return the volume and its previous requested size. An equal size changes nothing.

    Raises UsageError for an invalid or a smaller size, NotFound, and Conflict for a StorageClass that cannot
    expand volumes.
    """
    wanted = parse_size(size)
    claim = await get_object(api, VOLUME, namespace, name)
    spec = claim.get("spec") or {}
    before = str(((spec.get("resources") or {}).get("requests") or {}).get("storage") or "0")
    if wanted < parse_quantity(before):
        raise UsageError(
            f"cannot make volume {name!r} smaller: it has {before}, {size} was asked for",
            hint="create another volume, and copy the files: moor volume cp",
            code=ErrorCode.CONFLICT,
            field="size",
        )
    if wanted > parse_quantity(before):
        await _check_expands(api, name, str(spec.get("storageClassName") or ""))
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        claim = await api.patch(PVCS, name, patch, namespace)
    return volume_of(claim, {}, {}), before


async def _check_expands(api: Api, name: str, storage_class: str) -> None:
    """Raise Conflict if a StorageClass does not expand volumes.

    If the class cannot be read, the API server decides.
    """
    if not storage_class:
        return
    try:
        view = parse_class(await api.get(STORAGECLASSES, storage_class))
    except (Forbidden, NotFound):
        return
    if not view.expands:
        raise Conflict(
            f"cannot resize volume {name!r}: its StorageClass {storage_class} does not allow expansion",
            hint="list the classes that do: moor volume classes",
            code=ErrorCode.CONFLICT,
            field="size",
        )


async def check_delete(api: Api, namespace: str, names: Iterable[str], *, force: bool) -> dict[str, list[str]]:
    """The runs and pods that lose each volume. Raises NotFound, and Conflict (`in_use`) unless `force`."""
    users = users_by_claim((await api.list(PODS, namespace)).items)
    losers: dict[str, list[str]] = {}
    for name in names:
        await get_object(api, VOLUME, namespace, name)
        using = users.get((namespace, name), [])
        if using and not force:
            raise Conflict(
                f"volume {name!r} is in use by {', '.join(using)}",
                hint="cancel those first, or delete the volume by force: their pods end",
                code=ErrorCode.IN_USE,
            )
        losers[name] = using
    return losers


async def delete_volume(api: Api, namespace: str, name: str, *, force: bool) -> PodsEnded:
    """Delete a volume and its data; with `force` also while it is in use: then its pods end.

    Finished pods are deleted too, because Kubernetes retains a volume as long as a pod names it. Deletes only the
    volume that was read, not a new one of the same name. Raises NotFound, and Conflict (`in_use`) without force.
    """
    await check_delete(api, namespace, [name], force=force)
    claim = await get_object(api, VOLUME, namespace, name)
    await api.delete(PVCS, name, namespace, uid=claim["metadata"]["uid"])  # deleted when no pod uses it any more
    return await end_pods(api, await pods_that_hold(api, namespace, {name}, force=force))


async def list_storage_classes(api: Api) -> list[StorageClass]:
    """The storage classes for volumes, by name."""
    views = [parse_class(obj) for obj in (await api.list(STORAGECLASSES)).items]
    return [storage_class_of(view) for view in sorted(views, key=lambda view: view.name)]


async def pods_with(api: Api, namespace: str, claims: set[str]) -> list[Obj]:
    """Pods of the namespace that mount one of the claims, without ended pods."""
    pods = []
    for obj in (await api.list(PODS, namespace)).items:
        pod = parse_pod(obj)
        if not pod.finished and claims & set(pod.claims):
            pods.append(obj)
    return pods


async def pods_that_hold(api: Api, namespace: str, claims: set[str], *, force: bool) -> list[Obj]:
    """Pods that block the deletion of claims: finished pods and, with `force`, all others.

    https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection
    """
    holders = []
    for obj in (await api.list(PODS, namespace)).items:
        pod = parse_pod(obj)
        if (force or pod.finished) and claims & set(pod.claims):
            holders.append(obj)
    return holders


async def end_pods(api: Api, pods: Iterable[Obj]) -> PodsEnded:
    """Delete pods; `kept` has those that could not be deleted, with the reason."""
    ended, kept = [], {}
    for pod in pods:
        meta = pod["metadata"]
        try:
            await api.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"])
        except NotFound:
            continue
        except ApiError as error:
            kept[str(meta["name"])] = error.message
        else:
            ended.append(str(meta["name"]))
    return PodsEnded(tuple(ended), kept)


def parse_size(text: str) -> Fraction:
    """The size of a volume. Raises UsageError for an invalid or non-positive quantity."""
    try:
        size = parse_quantity(text)
    except QuantityError as error:
        raise UsageError(error.message, hint=error.hint, code=ErrorCode.INVALID, field="size") from error
    if size <= 0:
        raise UsageError(
            f"invalid size {text!r}: use more than zero, such as 10Gi", code=ErrorCode.INVALID, field="size"
        )
    if slip := problem_of_bytes(text):
        raise UsageError(f"invalid size {text!r}: {slip[0]}", hint=slip[1], code=ErrorCode.INVALID, field="size")
    return size


def users_by_claim(pods: Iterable[Obj]) -> dict[tuple[str, str], list[str]]:
    """The active runs and pods that mount each claim, by (namespace, claim).

    A pod without a controller that is being deleted does not count, such as the pod of `moor volume cp`.
    """
    users: dict[tuple[str, str], set[str]] = {}
    for obj in pods:
        pod = parse_pod(obj)
        is_leaving = is_deleting(obj) and not obj["metadata"].get("ownerReferences")
        if not pod.finished and not is_leaving:
            for claim in pod.claims:
                users.setdefault((pod.namespace, claim), set()).add(pod.labels.get(RUN_LABEL) or pod.name)
    return {claim: sorted(names) for claim, names in users.items()}


def owners_by_claim(pods: Iterable[Obj]) -> dict[tuple[str, str], str]:
    """The owner of the pods that mount each claim, by (namespace, claim); only if they have a single owner."""
    owners: dict[tuple[str, str], set[str]] = {}
    for obj in pods:
        pod = parse_pod(obj)
        owner = _named_owner(obj)
        for claim in pod.claims:
            owners.setdefault((pod.namespace, claim), set()).add(owner)
    return {claim: next(iter(names)) for claim, names in owners.items() if len(names) == 1}


def _named_owner(obj: Obj) -> str:
    return annotations_of(obj).get(OWNER_ANNOTATION) or labels_of(obj).get(OWNER_LABEL) or ""


def owner_of_claim(claim: Obj, of_pods: str) -> str:
    """The owner of a claim. If a controller such as a StatefulSet made it: the owner of the pods that mount it."""
    named = _named_owner(claim)
    return of_pods or named if not named or named.startswith(CONTROLLERS) else named


def volume_of(
    claim: Obj,
    users: Mapping[tuple[str, str], list[str]],
    used: Used,
    owners: Mapping[tuple[str, str], str] = NOBODY,
) -> Volume:
    """Convert a claim to an answer. `owners`: the result of `owners_by_claim`."""
    meta, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    key = (meta.get("namespace") or "", meta["name"])
    return Volume(
        namespace=key[0],
        name=key[1],
        size=str((status.get("capacity") or {}).get("storage") or asked or ""),
        used_bytes=used.get(key),
        modes=tuple(spec.get("accessModes") or ()),
        storage_class=spec.get("storageClassName") or "",
        state="Terminating" if meta.get("deletionTimestamp") else status.get("phase") or "Pending",
        owner=owner_of_claim(claim, owners.get(key, "")),
        used_by=tuple(users.get(key, ())),
        created=moment(meta.get("creationTimestamp")),
    )


def storage_class_of(view: ClassView) -> StorageClass:
    modes = view.modes
    return StorageClass(
        name=view.name,
        default=view.default,
        modes=None if modes is None else tuple(mode for mode in SHORT if mode in modes),
        expands=view.expands,
        datasets="?" if modes is None else SHARED if RWX in modes else CLONE if ROX in modes else "no",
        provisioner=view.provisioner,
        reclaim_policy=view.reclaim,
    )
