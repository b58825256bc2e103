"""/api/v1/datasets: made, listed, shown, deleted as the asker: cluster rights decide."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.api.fields import Name
from moorage.apimachinery.resources import Obj
from moorage.errors import ApiError
from moorage.model.dataset import DATASETS, BadDataset, dataset_json, parse_dataset
from moorage.server.context import Context
from moorage.server.idempotency import create_once, request_mark
from moorage.server.identity.loginroutes import read_json
from moorage.server.problems import Json, Problem, as_problem, refuse
from moorage.server.rest.workspaces import page_of

ALL = "/api/v1/datasets"
ONE = f"{ALL}/{{namespace}}/{{name}}"


class NewDataset(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a POST; `spec` as in the kind Dataset."""

    name: Name
    namespace: Name
    spec: dict[str, Any]
    dry_run: bool = False


class Shared(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PATCH: the tenants that may read it, all of them."""

    readers: Annotated[list[str], msgspec.Meta(max_length=100)]


def routes(context: Context) -> list[Route]:
    async def listed(request: Request) -> Response:
        """Datasets of a namespace, or of all where the asker may; `limit` and `continue` page."""
        namespace = request.query_params.get("namespace") or None
        limit, cont = page_of(request)
        try:
            found = await context.acting(request.state.user).list(DATASETS, namespace, limit=limit, cont=cont)
        except ApiError as error:
            raise as_problem(error) from error
        return Json({"datasets": [dataset_json(one) for one in found.items], "continue": found.cont})

    async def create(request: Request) -> Response:
        """Make a dataset, which begins to fill at once; `dryRun`: only judged.

        `Idempotency-Key`: asking twice is as once.
        """
        asked = await read_json(request, NewDataset)
        mark = request_mark(request, asked)
        made: Obj = {
            "apiVersion": DATASETS.api_version,
            "kind": DATASETS.kind,
            "metadata": {"name": asked.name, "namespace": asked.namespace},
            "spec": asked.spec,
        }
        try:
            faults = parse_dataset(made).faults
        except BadDataset as error:
            raise Problem(422, "invalid", error.message, field="spec") from error
        refuse(faults)
        context.audit(request, "create dataset", f"{asked.namespace}/{asked.name}")
        try:
            api = context.acting(request.state.user)
            stored = await create_once(api, DATASETS, made, asked.namespace, mark, dry_run=asked.dry_run)
        except ApiError as error:
            raise as_problem(error) from error
        return Json(dataset_json(stored), 200 if asked.dry_run else 201)

    async def show(request: Request) -> Response:
        """How far a dataset is, what is in it, who may read it, who used it."""
        return Json(dataset_json(await get(request)))

    async def share(request: Request) -> Response:
        """Say which tenants may read a dataset."""
        asked = await read_json(request, Shared)
        found = await get(request)
        meta = found["metadata"]
        context.audit(request, "share dataset", f"{meta['namespace']}/{meta['name']}")
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"readers": asked.readers}}
        try:
            stored = await context.acting(request.state.user).patch(
                DATASETS, meta["name"], patch, meta["namespace"]
            )
        except ApiError as error:
            raise as_problem(error) from error
        return Json(dataset_json(stored))

    async def delete(request: Request) -> Response:
        """Delete a dataset. 409 while it is in use, unless `force=true`."""
        found = await get(request)
        meta = found["metadata"]
        using = [one for one in dataset_json(found)["usedBy"] if one.get("active")]
        if using and request.query_params.get("force") != "true":
            names = ", ".join(f"{one['namespace']}/{one['name']}" for one in using)
            raise Problem(409, "in_use", f"the dataset is in use by {names}", "they break with ?force=true")
        context.audit(request, "delete dataset", f"{meta['namespace']}/{meta['name']}")
        try:
            await context.acting(request.state.user).delete(
                DATASETS, meta["name"], meta["namespace"], uid=meta["uid"]
            )
        except ApiError as error:
            raise as_problem(error) from error
        return Response(status_code=204)

    async def get(request: Request) -> Obj:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        try:
            return await context.acting(request.state.user).get(DATASETS, name, namespace)
        except ApiError as error:
            raise as_problem(error) from error

    return [
        Route(ALL, listed, methods=["GET"]),
        Route(ALL, create, methods=["POST"]),
        Route(ONE, show, methods=["GET"]),
        Route(ONE, share, methods=["PATCH"]),
        Route(ONE, delete, methods=["DELETE"]),
    ]
