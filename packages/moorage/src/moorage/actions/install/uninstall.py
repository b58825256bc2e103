"""Remove an installation, even if its services are down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from moorage.actions.install.cluster import (
    RESOURCES,
    InstallApi,
    apply,
    check_rights,
    read,
    read_record,
    refuse_local_cluster,
)
from moorage.actions.people import list_accounts
from moorage.controllers.machinenodepool.plan import unmark
from moorage.decide.install.record import REMOVED, InstallRecord, Ref, make_record, refs_of
from moorage.decide.install.removal import (
    ADMIN_PREFIX,
    AwaitServices,
    CleanNode,
    Delete,
    LiftGates,
    Present,
    Release,
    Removal,
    plan_removal,
)
from moorage.decide.install.steps import needed_rights
from moorage.decide.install.values import adopted, merged
from moorage.model.argo import CRON_WORKFLOWS, INSTANCE_LABEL, OUR_INSTANCE, WORKFLOWS
from moorage.model.crds import KINDS
from moorage.model.dataset import DATASET_OF_LABEL
from moorage.model.definitions import is_anothers
from moorage.model.manifests import ALL, CLUSTERROLEBINDINGS, OPERATOR_LEASE, PART_OF
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage_kube.access import Right
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.meta import is_condition_true
from moorage_kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    PVCS,
    PVS,
    STATEFULSETS,
    Obj,
    Resource,
)

Progress = Callable[[str], None]
LOOK_SECONDS = 1.0
OURS = {kind.resource.kind: kind.resource for kind in KINDS}
ADOPTED = {resource.kind: resource for resource in (WORKFLOWS, CRON_WORKFLOWS)}  # ours by a label
CRONJOBS = Resource("batch", "v1", "cronjobs", "CronJob")
DELETABLE = RESOURCES | OURS | ADOPTED | {resource.kind: resource for resource in (PODS, PVCS, PVS)}


async def look_at_present(api: InstallApi, shipped: Sequence[Obj]) -> tuple[Present, InstallRecord | None]:
    """All that a removal depends on. `shipped`: the objects of which an installation may consist.

    Raises NotFound if no object of ours exists, and NotReady on a local cluster.
    """
    await refuse_local_cluster(api)
    kept = await read_record(api)
    lease = Ref(LEASES.api_version, LEASES.kind, SYSTEM_NAMESPACE, OPERATOR_LEASE)
    written = await read(api, (*refs_of(shipped), *(kept.objects if kept else ()), lease))
    ours_by_ref = {Ref.of(obj): obj for obj in shipped}
    written = {ref: obj for ref, obj in written.items() if not is_anothers(obj, ours_by_ref.get(ref))}
    if not written:
        raise NotFound("Moorage is not installed on this cluster: nothing of it is there")
    ours = [obj for kind in OURS.values() for obj in await _listed(api, kind)]
    adopted_by = f"{INSTANCE_LABEL}={OUR_INSTANCE}"
    ours += [obj for kind in ADOPTED.values() for obj in await _listed(api, kind, label_selector=adopted_by)]
    pods, nodes, shared, users = await asyncio.gather(
        _listed(api, PODS), _listed(api, NODES), _shared(api), _class_users(api)
    )
    bindings = await _listed(api, CLUSTERROLEBINDINGS)
    try:
        accounts = len(await list_accounts(api))
    except NotFound:
        accounts = 0
    ours_named = {ref.name for ref in written if ref.kind == "PriorityClass"}
    present = Present(
        written=sorted(written),
        ours=ours,
        pods=pods,
        nodes=nodes,
        shared=shared,
        class_users={name: users[name] for name in sorted(users) if name in ours_named},
        admin_bindings=[
            Ref.of(obj) for obj in bindings if obj["metadata"]["name"].startswith(ADMIN_PREFIX) and _is_ours(obj)
        ],
        accounts=accounts,
    )
    return present, kept


async def check_removal_rights(api: Api, shipped: Sequence[Obj], *, delete_data: bool) -> None:
    """Raise Forbidden that names every missing right."""
    plurals = {kind: resource.plural for kind, resource in RESOURCES.items()}
    rights = {*needed_rights(shipped, plurals, removing=True), Right("patch", "", "pods")}
    kinds = (*OURS.values(), *ADOPTED.values())
    rights |= {Right(verb, kind.group, kind.plural) for kind in kinds for verb in ("list", "patch")}
    if delete_data:
        rights |= {Right("delete", kind.group, kind.plural) for kind in kinds}
        rights |= {Right("delete", "", "persistentvolumeclaims"), Right("delete", "", "persistentvolumes")}
        rights.add(Right("patch", "", "nodes"))
    await check_rights(api, sorted(rights))


async def remove(
    api: InstallApi,
    removal: Removal,
    kept: InstallRecord | None,
    *,
    delete_data: bool,
    progress: Progress,
    clock: Clock,
    timeout: float,
) -> list[Ref]:
    """Carry it out; return the objects not yet deleted at the timeout. Safe to interrupt and to run again."""
    if not delete_data:
        await _remember(api, kept)
    waited: list[Ref] = []
    for step in removal.steps:
        match step:
            case Delete(ref):
                if await _delete(api, ref) and _is_waited_for(ref):
                    waited.append(ref)
            case AwaitServices():
                await _await_services(api, progress=progress, clock=clock, timeout=timeout)
            case LiftGates(namespace, name, left):
                patch = {"spec": {"schedulingGates": [{"name": gate} for gate in left]}}
                await _patch(api, PODS, name, namespace, patch)
            case Release(ref, left):
                finalizers = {"metadata": {"finalizers": list(left) or None}}
                await _patch(api, DELETABLE[ref.kind], ref.name, ref.namespace, finalizers)
            case CleanNode(name):
                await _clean(api, name)
            case _:
                assert_never(step)
    return await _await_gone(api, waited, clock=clock, timeout=timeout)


async def _remember(api: InstallApi, kept: InstallRecord | None) -> None:
    """Save the values, with the admin's changes to the info ConfigMap, for a later installation."""
    try:
        info = (await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)).get("data") or {}
    except NotFound:
        info = {}
    if kept is None and not info:
        return
    values = merged(kept.values if kept else {}, adopted(info))
    version = kept.version if kept else str(info.get("version") or "")
    try:
        record = InstallRecord(values=values, version=version, objects=(), state=REMOVED)
        await apply(api, make_record(record), force=True)
    except NotFound:  # the namespace does not exist
        return


def _is_waited_for(ref: Ref) -> bool:
    return ref.kind in ("Namespace", "CustomResourceDefinition", *OURS, *ADOPTED)


async def _delete(api: Api, ref: Ref) -> bool:
    """Delete an object; return whether it existed."""
    try:
        await api.delete(DELETABLE[ref.kind], ref.name, ref.namespace or None, propagation="Background")
    except NotFound:
        return False
    return True


async def _patch(api: Api, resource: Resource, name: str, namespace: str, patch: Obj) -> None:
    try:
        await api.patch(resource, name, patch, namespace or None)
    except NotFound:
        return  # deleted meanwhile, as intended


async def _clean(api: Api, name: str) -> None:
    for _ in range(3):  # a kubelet writes to its node too
        try:
            if patch := unmark(await api.get(NODES, name)):
                await api.patch(NODES, name, patch)
            return
        except NotFound:
            return
        except Conflict:
            continue


async def _await_services(api: Api, *, progress: Progress, clock: Clock, timeout: float) -> None:
    """Wait for the end of our pods; after the timeout the removal continues, as with pods of a lost node."""
    names = {service.full_name for service in ALL}
    selector = f"app.kubernetes.io/name in ({', '.join(sorted(names))})"
    deadline = clock.monotonic() + timeout
    while True:
        pods = await _listed(api, PODS, SYSTEM_NAMESPACE, label_selector=selector)
        if not pods:
            progress("the services have ended")
            return
        if clock.monotonic() >= deadline:
            left = ", ".join(str(pod["metadata"]["name"]) for pod in pods)
            progress(f"warning: these pods have not ended: {left}")
            return
        await clock.sleep(LOOK_SECONDS)


async def _await_gone(api: Api, refs: Iterable[Ref], *, clock: Clock, timeout: float) -> list[Ref]:
    left, deadline = list(refs), clock.monotonic() + timeout
    while True:
        left = [ref for ref in left if await _is_there(api, ref)]
        if not left or clock.monotonic() >= deadline:
            return left
        await clock.sleep(LOOK_SECONDS)


async def _is_there(api: Api, ref: Ref) -> bool:
    try:
        await api.get(DELETABLE[ref.kind], ref.name, ref.namespace or None)
    except NotFound:
        return False
    return True


async def _listed(
    api: Api, resource: Resource, namespace: str | None = None, *, label_selector: str | None = None
) -> list[Obj]:
    """List objects and add apiVersion and kind, which lists omit; empty if the kind is not served."""
    try:
        items = (await api.list(resource, namespace, label_selector=label_selector)).items
    except NotFound:
        return []
    return [{"apiVersion": resource.api_version, "kind": resource.kind} | item for item in items]


async def _shared(api: Api) -> list[Ref]:
    """Claims and volumes that share datasets with other namespaces; claims come first."""
    listed = [await _listed(api, resource, label_selector=DATASET_OF_LABEL) for resource in (PVCS, PVS)]
    return [Ref.of(obj) for objects in listed for obj in objects]


async def _class_users(api: Api) -> dict[str, list[str]]:
    """By PriorityClass, the workloads that use it in their templates."""
    users: dict[str, list[str]] = {}
    for resource in (DEPLOYMENTS, STATEFULSETS, JOBS, CRONJOBS):
        for obj in await _listed(api, resource):
            if obj["metadata"].get("namespace") == SYSTEM_NAMESPACE or _has_ended(obj):
                continue
            spec = obj.get("spec") or {}
            spec = spec.get("jobTemplate", {}).get("spec") or spec
            name = ((spec.get("template") or {}).get("spec") or {}).get("priorityClassName")
            if name:
                users.setdefault(name, []).append(str(Ref.of(obj)))
    return users


def _has_ended(obj: Obj) -> bool:
    return is_condition_true(obj, "Complete") or is_condition_true(obj, "Failed")


def _is_ours(obj: Obj) -> bool:
    return PART_OF.items() <= ((obj["metadata"].get("labels") or {}).items())


__all__ = ["check_removal_rights", "look_at_present", "plan_removal", "remove"]
