"""/api/v1/volumes: listed with real use, made, resized, deleted as the asker: cluster rights decide."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import PODS, PVCS, STORAGECLASSES, Obj
from moorage.apimachinery.scheduling import parse_pod
from moorage.decide.runs.job import make_claim
from moorage.errors import ApiError, QuantityError
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, RUN_LABEL
from moorage.model.storageclass import RWO, SHORT, parse_class
from moorage.server.context import Context
from moorage.server.identity.loginroutes import read_json
from moorage.server.problems import Json, Problem
from moorage.server.rest.idempotency import create_once, request_mark
from moorage.server.rest.workspaces import Name, as_problem, page_of

ALL = "/api/v1/volumes"
ONE = f"{ALL}/{{namespace}}/{{name}}"
CLASSES = "/api/v1/storageclasses"
USED_SECONDS = 30.0  # so long what nodes told of volumes is believed
NODE_SECONDS = 5.0  # patience with one node


class NewVolume(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a POST."""

    name: Name
    namespace: Name
    size: str
    mode: Annotated[str, msgspec.Meta(pattern="^(ReadWriteOnce|ReadWriteMany)$")] = RWO
    storage_class: Annotated[str, msgspec.Meta(max_length=253)] = ""


class Resized(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PATCH."""

    size: str


def routes(context: Context) -> list[Route]:
    async def listed(request: Request) -> Response:
        """Volumes with what they hold, where a node told; `limit` and `continue` page."""
        namespace = request.query_params.get("namespace") or None
        api = context.acting(request.state.user)
        limit, cont = page_of(request)
        try:
            found = await api.list(PVCS, namespace, limit=limit, cont=cont)
            pods = (await api.list(PODS, namespace)).items
        except ApiError as error:
            raise as_problem(error) from error
        used = await used_by_volumes(context)
        volumes = [volume_json(one, pods, used) for one in found.items]
        return Json({"volumes": volumes, "continue": found.cont})

    async def create(request: Request) -> Response:
        """Make a volume. `Idempotency-Key`: asking twice is as once."""
        asked = await read_json(request, NewVolume)
        mark = request_mark(request, asked)
        size_of(asked.size)
        user = request.state.user
        claim = make_claim(
            asked.name,
            asked.namespace,
            asked.size,
            user.name,
            mode=asked.mode,
            storage_class=asked.storage_class or None,
        )
        context.audit(request, "create volume", f"{asked.namespace}/{asked.name}")
        try:
            stored = await create_once(context.acting(user), PVCS, claim, asked.namespace, mark)
        except ApiError as error:
            raise as_problem(error) from error
        return Json(volume_json(stored, (), {}), 201)

    async def resize(request: Request) -> Response:
        """Make a volume larger. 409 for a smaller size."""
        asked = await read_json(request, Resized)
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        api = context.acting(request.state.user)
        wanted = size_of(asked.size)
        context.audit(request, "resize volume", f"{namespace}/{name} to {asked.size}")
        try:
            found = await api.get(PVCS, name, namespace)
            now = (((found.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage") or "0"
            if wanted < parse_quantity(now):
                raise Problem(
                    409, "conflict", f"the volume has {now}, and no volume becomes smaller", field="size"
                )
            patch = {"spec": {"resources": {"requests": {"storage": asked.size}}}}
            stored = await api.patch(PVCS, name, patch, namespace)
        except ApiError as error:
            raise as_problem(error) from error
        return Json(volume_json(stored, (), {}))

    async def delete(request: Request) -> Response:
        """Delete a volume. 409 while it is in use, unless `force=true`."""
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        api = context.acting(request.state.user)
        try:
            found = await api.get(PVCS, name, namespace)
            using = users_of(name, (await api.list(PODS, namespace)).items)
            if using and request.query_params.get("force") != "true":
                raise Problem(
                    409, "in_use", f"the volume is in use by {', '.join(using)}", "they break with ?force=true"
                )
            context.audit(request, "delete volume", f"{namespace}/{name}")
            await api.delete(PVCS, name, namespace, uid=found["metadata"]["uid"])
        except ApiError as error:
            raise as_problem(error) from error
        return Response(status_code=204)

    async def classes(request: Request) -> Response:
        """The kinds of storage, and what each can do."""
        api = context.acting(request.state.user) if request.state.user.account else context.api
        try:
            found = [parse_class(one) for one in (await api.list(STORAGECLASSES)).items]
        except ApiError:
            found = [parse_class(one) for one in (await context.api.list(STORAGECLASSES)).items]
        told = [
            {
                "name": one.name,
                "default": one.default,
                "modes": None if one.modes is None else [mode for mode in SHORT if mode in one.modes],
                "expands": one.expands,
                "provisioner": one.provisioner,
            }
            for one in sorted(found, key=lambda one: one.name)
        ]
        return Json({"storageClasses": told})

    return [
        Route(ALL, listed, methods=["GET"]),
        Route(ALL, create, methods=["POST"]),
        Route(ONE, resize, methods=["PATCH"]),
        Route(ONE, delete, methods=["DELETE"]),
        Route(CLASSES, classes, methods=["GET"]),
    ]


def size_of(text: str) -> Any:
    """Raises Problem 422 for a size that is none."""
    try:
        size = parse_quantity(text)
    except QuantityError as error:
        raise Problem(422, "invalid", error.message, field="size") from error
    if size <= 0:
        raise Problem(422, "invalid", "a volume has more than nothing", field="size")
    return size


def users_of(claim: str, pods: Iterable[Obj]) -> list[str]:
    """The runs and pods that mount a claim and have not ended."""
    found = set()
    for obj in pods:
        pod = parse_pod(obj)
        if not pod.finished and claim in pod.claims:
            found.add(pod.labels.get(RUN_LABEL) or pod.name)
    return sorted(found)


def volume_json(claim: Obj, pods: Iterable[Obj], used: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """A volume as listings give it. `usedBytes` null: no node told."""
    meta, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    namespace = meta.get("namespace") or ""
    mine = [pod for pod in pods if pod["metadata"].get("namespace") == namespace]
    return {
        "name": meta["name"],
        "namespace": namespace,
        "size": str((status.get("capacity") or {}).get("storage") or asked or ""),
        "usedBytes": used.get((namespace, meta["name"])),
        "modes": list(spec.get("accessModes") or ()),
        "class": spec.get("storageClassName") or "",
        "state": "Terminating" if meta.get("deletionTimestamp") else status.get("phase") or "Pending",
        "owner": annotations_of(claim).get(OWNER_ANNOTATION) or labels_of(claim).get(OWNER_LABEL) or "",
        "usedBy": users_of(meta["name"], mine),
        "created": meta.get("creationTimestamp"),
    }


async def used_by_volumes(context: Context) -> dict[tuple[str, str], int]:
    """(namespace, claim) → bytes in use, as kubelets tell; of volumes that are mounted somewhere alone.

    https://kubernetes.io/docs/reference/instrumentation/node-metrics/#summary-api-source
    """
    kubelets = context.kubelets
    if kubelets is None:
        return {}
    kept = context.memory.get("volumes used")
    now = context.clock.monotonic()
    if kept is not None and now - kept[0] < USED_SECONDS:
        found: dict[tuple[str, str], int] = kept[1]
        return found
    nodes = context.cluster.nodes.all()

    async def ask(node: Obj) -> dict[tuple[str, str], int]:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return used_of(await kubelets.summary(node))
        except (ApiError, ValueError, TimeoutError, OSError):
            return {}

    used: dict[tuple[str, str], int] = {}
    for first in range(0, len(nodes), 32):
        for one in await asyncio.gather(*(ask(node) for node in nodes[first : first + 32])):
            for key, size in one.items():
                used[key] = max(size, used.get(key, 0))
    context.memory["volumes used"] = (now, used)
    return used


def used_of(summary: Any) -> dict[tuple[str, str], int]:
    """The claims in a kubelet's summary. Parts that are not as they should be are left out."""
    found: dict[tuple[str, str], int] = {}
    for pod in (summary.get("pods") or ()) if isinstance(summary, dict) else ():
        for volume in pod.get("volume") or ():
            ref, size = volume.get("pvcRef") or {}, volume.get("usedBytes")
            if ref.get("name") and isinstance(size, int) and size >= 0:
                found[str(ref.get("namespace") or ""), str(ref["name"])] = size
    return found
