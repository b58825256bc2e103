"""The admission endpoints: `POST /mutate`, `POST /validate`, `GET /healthz`, `GET /readyz`.

Stateless but for caches of tenants and nodes, so any number of replicas may run.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorage.apimachinery.api import Api
from moorage.apimachinery.informer import Informer, wait_synced
from moorage.apimachinery.resources import NODES, Obj
from moorage.apimachinery.scheduling import parse_node
from moorage.decide.guardrails import Request, Verdict, admit
from moorage.errors import QuantityError
from moorage.model.tenant import TENANTS, defaults_of, tenant_of

log = logging.getLogger(__name__)

SYNC_SECONDS = 2.0  # a request that comes before the caches are full waits this long; the API server allows 5 s
_BODY_MAX_BYTES = 8 * 2**20  # an object has at most 1.5 MiB, and an UPDATE brings two


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of admission.k8s.io/v1 AdmissionReview that are used."""

    request: _Asked


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Kind(msgspec.Struct, frozen=True):
    kind: str


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    kind: _Kind
    operation: str
    namespace: str = ""
    sub_resource: str = ""
    user_info: _User = _User()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class Webhook:
    """The service: `app` to serve over TLS, `run` to keep its caches current."""

    def __init__(self, api: Api) -> None:
        self._tenants = Informer(api, TENANTS)
        self._nodes = Informer(api, NODES)
        self._gpu_free: bool | None = None
        self._nodes.on_change(self._node_changed)
        self.app = Starlette(
            routes=[
                Route("/mutate", self._mutate, methods=["POST"]),
                Route("/validate", self._validate, methods=["POST"]),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
            ]
        )

    async def run(self) -> None:
        """Keep the caches current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tenants.run(), name="informer tenants")
            tasks.create_task(self._nodes.run(), name="informer nodes")

    async def wait_synced(self) -> None:
        """Return when requests can be judged."""
        await wait_synced(self._tenants, self._nodes)

    def judge(self, asked: _Asked) -> Verdict:
        """Apply the guardrails to one request; subresources and other kinds pass."""
        if asked.object is None or asked.sub_resource or asked.kind.kind not in ("Job", "Pod"):
            return Verdict()
        tenant = tenant_of(asked.namespace, self._tenants.all())
        most = ((tenant or {}).get("spec") or {}).get("restartLimit")
        return admit(
            Request(
                kind=asked.kind.kind,
                operation=asked.operation,
                user=asked.user_info.username,
                obj=asked.object,
                old=asked.old_object,
                defaults=defaults_of(tenant),
                restart_limit_max=most,
                has_gpu_free_nodes=self._has_gpu_free_nodes(),
            )
        )

    async def _mutate(self, http: HttpRequest) -> Response:
        return await self._answer(http, mutating=True)

    async def _validate(self, http: HttpRequest) -> Response:
        return await self._answer(http, mutating=False)

    async def _healthz(self, _: HttpRequest) -> Response:
        return PlainTextResponse("ok")

    async def _readyz(self, _: HttpRequest) -> Response:
        synced = self._tenants.synced.is_set() and self._nodes.synced.is_set()
        return PlainTextResponse("ok" if synced else "the caches are not filled yet", 200 if synced else 503)

    async def _answer(self, http: HttpRequest, *, mutating: bool) -> Response:
        body = await http.body()
        if len(body) > _BODY_MAX_BYTES:
            return PlainTextResponse(f"more than {_BODY_MAX_BYTES} bytes", 413)
        try:
            asked = msgspec.json.decode(body, type=_Review).request
        except msgspec.DecodeError as error:
            return PlainTextResponse(f"no AdmissionReview: {error}", 400)
        try:
            await asyncio.wait_for(self.wait_synced(), SYNC_SECONDS)
        except TimeoutError:
            # judged without the tenants' defaults it might be refused for nothing: let the failure policy decide
            return PlainTextResponse("the caches are not filled yet", 503)
        answer = _response(asked, self.judge(asked), mutating=mutating)
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return Response(msgspec.json.encode(review), media_type="application/json")

    def _node_changed(self, _before: Obj | None, _after: Obj | None) -> None:
        self._gpu_free = None

    def _has_gpu_free_nodes(self) -> bool:
        if self._gpu_free is None:
            self._gpu_free = any(_takes_cpu_work(node) for node in self._nodes.all())
        return self._gpu_free


def _takes_cpu_work(obj: Obj) -> bool:
    """A node without GPUs that ordinary pods may use: a control-plane node alone does not make a place to run."""
    try:
        node = parse_node(obj)
    except QuantityError:
        return False
    shut = any(taint.effect != "PreferNoSchedule" for taint in node.taints)
    return not node.gpus and not node.unschedulable and not shut


def _response(asked: _Asked, verdict: Verdict, *, mutating: bool) -> Obj:
    answer: Obj = {"uid": asked.uid, "allowed": not verdict.refusals}
    if verdict.refusals:
        # the API server passes code, reason and causes on to the caller, and puts our name before the message
        causes = [
            {
                "reason": "FieldValueInvalid",
                "message": one.message + (f" (found {one.value})" if one.value else ""),
                "field": one.field,
            }
            for one in verdict.refusals
        ]
        answer["status"] = {
            "code": 422,
            "reason": "Invalid",
            "message": "; ".join(str(one) for one in verdict.refusals),
            "details": {"causes": causes},
        }
        log.info(
            "refused",
            extra={"namespace": asked.namespace, "kind": asked.kind.kind, "user": asked.user_info.username},
        )
    elif mutating and verdict.patches:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(msgspec.json.encode(verdict.patches)).decode()
    if verdict.warnings and mutating:  # said once, not by both endpoints
        answer["warnings"] = [text[:256] for text in verdict.warnings]
    return answer
