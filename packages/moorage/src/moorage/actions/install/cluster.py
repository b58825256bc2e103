"""Reads and writes of an installation: server-side apply, objects by their names, rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from moorage.decide.install.record import RECORD_CONFIGMAP, InstallRecord, Ref, parse_record
from moorage.decide.install.steps import FIELD_MANAGER
from moorage.model.manifests.parts import CLUSTERROLEBINDINGS, CLUSTERROLES, NETWORKPOLICIES, ROLEBINDINGS, ROLES
from moorage.model.names import PROCESS_RUNTIME, SYSTEM_NAMESPACE
from moorage_kube.access import EVERYTHING, Right, may
from moorage_kube.api import CONTENT_TYPES, Api
from moorage_kube.documents import parse_json
from moorage_kube.errors import Conflict, Forbidden, NotFound, NotReady, Problems
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    INGRESSES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PDBS,
    PRIORITYCLASSES,
    PVCS,
    SECRETS,
    SERVICEACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    Obj,
)

R = TypeVar("R")

AT_ONCE = 8  # requests side by side
RESOURCES = {
    resource.kind: resource
    for resource in (
        NAMESPACES, CRDS, CONFIGMAPS, SECRETS, SERVICES, SERVICEACCOUNTS, PVCS, DEPLOYMENTS, PDBS, PRIORITYCLASSES,
        INGRESSES, LEASES, ROLES, ROLEBINDINGS, CLUSTERROLES, CLUSTERROLEBINDINGS, NETWORKPOLICIES,
        MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS,
    )
}  # fmt: skip


class InstallApi(Api, Protocol):
    """An `Api` that can also request any path of the API server."""

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> bytes: ...

    async def version(self) -> Obj: ...


async def several(calls: Iterable[Any]) -> list[Any]:
    """Await all calls, at most AT_ONCE at the same time; return the results in order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def behind(call: Any) -> Any:
        async with gate:
            return await call

    return list(await asyncio.gather(*(behind(call) for call in calls)))


async def apply(api: InstallApi, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
    """Server-side apply. Raises Conflict if another manager owns a field, unless `force`.

    CustomResourceDefinitions depend only on the version, so they are always forced.
    https://kubernetes.io/docs/reference/using-api/server-side-apply/
    """
    meta = obj["metadata"]
    path = RESOURCES[obj["kind"]].path(namespace=meta.get("namespace"), name=meta["name"])
    params = {"fieldManager": FIELD_MANAGER}
    params |= {"force": "true"} if force or obj["kind"] == CRDS.kind else {}
    params |= {"dryRun": "All"} if dry_run else {}
    answer = await api.raw("PATCH", path, params=params, body=obj, content_type=CONTENT_TYPES["apply"])
    applied: Obj = parse_json(answer)
    return applied


async def read(api: Api, refs: Iterable[Ref]) -> dict[Ref, Obj]:
    """Read the objects that exist."""
    chosen = [ref for ref in dict.fromkeys(refs) if ref.kind in RESOURCES]
    objects = await several(_get(api, ref) for ref in chosen)
    return {ref: obj for ref, obj in zip(chosen, objects, strict=True) if obj is not None}


async def _get(api: Api, ref: Ref) -> Obj | None:
    try:
        return await api.get(RESOURCES[ref.kind], ref.name, ref.namespace or None)
    except NotFound:
        return None


async def read_record(api: Api) -> InstallRecord | None:
    """The record of the last installation; None if there was none by `moor install`."""
    try:
        return parse_record(await api.get(CONFIGMAPS, RECORD_CONFIGMAP, SYSTEM_NAMESPACE))
    except NotFound:
        return None


async def try_all(api: InstallApi, objects: Sequence[Obj], *, force: bool) -> dict[Ref, Obj]:
    """The objects as they would be after an apply. Raises Problems with all conflicts and refusals at once."""
    problems: list[tuple[str, str | None]] = []

    async def attempt(obj: Obj) -> Obj | None:
        try:
            return await apply(api, obj, dry_run=True, force=force)
        except Conflict as error:
            problems.extend(conflicts(obj, error))
            return None

    tried = await several(attempt(obj) for obj in objects)
    if problems:
        raise Problems(problems)
    return {Ref.of(obj): after for obj, after in zip(objects, tried, strict=True) if after is not None}


def conflicts(obj: Obj, error: Conflict) -> list[tuple[str, str | None]]:
    """The conflicts of a server-side apply, as pairs of message and hint."""
    hint = "keep it: give the same value by an option or --values FILE. Take it over: --force-conflicts"
    causes = (getattr(error, "details", None) or {}).get("causes") or ()
    sentences = []
    for cause in causes:
        if cause.get("reason") == "FieldManagerConflict":
            manager = str(cause.get("message") or "").removeprefix("conflict with ").partition(" using ")[0]
            field = str(cause.get("field") or "").lstrip(".")
            sentences.append(f"{Ref.of(obj)}: {manager} has set {field} to another value")
    return [(sentence, hint) for sentence in sentences] or [(f"{Ref.of(obj)}: {error.message}", hint)]


async def check_rights(api: Api, rights: Sequence[Right]) -> None:
    """Raise Forbidden that names every missing right."""
    if await may(api, EVERYTHING):
        return
    allowed = await several(may(api, right) for right in rights)
    missing = [str(right) for right, is_allowed in zip(rights, allowed, strict=True) if not is_allowed]
    if missing:
        shown = "; ".join(missing[:20]) + (f"; and {len(missing) - 20} more" if len(missing) > 20 else "")
        raise Forbidden(
            f"nothing was written: your account lacks rights on this cluster: {shown}",
            hint="use an account of a cluster administrator: --context NAME, or --kubeconfig FILE",
        )


async def refuse_local_cluster(api: Api) -> None:
    """Raise NotReady on a cluster of `moor up`, which runs the services as processes."""
    nodes = (await api.list(NODES)).items
    runtimes = [
        ((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion", "") for node in nodes
    ]
    if any(str(runtime).startswith(PROCESS_RUNTIME) for runtime in runtimes):
        raise NotReady(
            "this is a local cluster: `moor up` has installed Moorage on it, and `moor down` stops it",
            hint="choose another cluster: --context NAME, or --kubeconfig FILE",
        )
