"""The extender's HTTP service, called by kube-scheduler.

    POST /scheduler/filter       every node passes: the scheduler's own filters know more than our cache
    POST /scheduler/prioritize   points 0-10 per node, by `decide.packing`
    GET  /healthz                200 while the process runs
    GET  /readyz                 200 once the cache is whole, 503 before
    GET  /metrics                Prometheus

Field names on the wire are those of the Go types, which bear no JSON tags (`Pod`, `NodeNames`, `Host`, …);
requests are read without regard to case, so older schedulers' lower-case names do too.
https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kube-scheduler/extender/v1/types.go
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorage.apimachinery.meta import Key, key_of
from moorage.apimachinery.scheduling import parse_node, pod_requests
from moorage.decide.packing import GpuNode, gpus_asked, pack
from moorage.errors import BadRequest, MoorageError, NotReady
from moorage.extender.cache import ExtenderCache

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds; the timeout is 0.5


class HostPriority(msgspec.Struct, rename="pascal"):
    """The points of one node."""

    host: str
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """ExtenderArgs: the pod, and the nodes by name or whole."""

    key: Key
    uid: str
    asked: Mapping[str, int]  # GPUs
    names: tuple[str, ...]
    totals: Mapping[str, Mapping[str, int]] | None  # GPUs of the nodes sent; None: only names were
    node_list: msgspec.Raw | None  # as sent, to be sent back


def parse_arguments(body: bytes) -> Arguments:
    """Read ExtenderArgs. Raises BadRequest."""
    try:
        fields = {
            name.lower(): raw for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()
        }
        pod = msgspec.json.decode(fields["pod"], type=dict[str, Any])
        names = msgspec.json.decode(fields.get("nodenames", b"null"), type=list[str] | None)
        totals = None
        if names is None:
            sent = msgspec.json.decode(fields.get("nodes", b"null"), type=dict[str, Any] | None) or {}
            nodes = [parse_node(one) for one in sent.get("items") or ()]
            totals = {node.name: gpus_asked(node.allocatable) for node in nodes}
            names = list(totals)
        return Arguments(
            key=key_of(pod),
            uid=pod["metadata"].get("uid") or "",
            asked=gpus_asked(pod_requests(pod.get("spec") or {})),
            names=tuple(names),
            totals=totals,
            node_list=None if totals is None else fields.get("nodes"),
        )
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadRequest(f"the body is no ExtenderArgs: {error!r}") from error


def prioritize(arguments: Arguments, cache: ExtenderCache) -> list[HostPriority]:
    """Points for each node asked about; a node that is not known yet gets 0."""
    found = []
    for name in arguments.names:
        node = cache.gpu_node(name, without=arguments.key)
        if arguments.totals is not None:
            node = GpuNode(name=name, total=arguments.totals[name], used=node.used if node is not None else {})
        found.append(HostPriority(host=name, score=0 if node is None else pack(arguments.asked, node)))
    return found


class _Gpus(Collector):
    """GPUs by node and type, and the age of the cache, read when Prometheus asks."""

    def __init__(self, cache: ExtenderCache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        labels = ("node", "type")
        total = GaugeMetricFamily("moorage_gpus_total", "GPUs that the node offers.", labels=labels)
        used = GaugeMetricFamily("moorage_gpus_used", "GPUs held by pods on the node.", labels=labels)
        for node, kind in self._cache.nodes():
            total.add_metric((node.name, kind), sum(node.total.values()))
            used.add_metric((node.name, kind), sum(node.used.values()))
        yield total
        yield used
        yield GaugeMetricFamily(
            "moorage_extender_cache_age_seconds",
            "Seconds since a change of nodes or pods was last heard of.",
            value=self._cache.age_seconds(),
        )
        yield GaugeMetricFamily(
            "moorage_extender_cache_synced",
            "1 when the cache is whole, 0 while requests are refused.",
            value=int(self._cache.synced.is_set()),
        )


def create_app(cache: ExtenderCache) -> Starlette:
    """The service over one cache, which the caller runs."""
    registry = CollectorRegistry()
    registry.register(_Gpus(cache))
    requests = Counter("moorage_extender_requests", "Requests answered.", ("verb", "code"), registry=registry)
    errors = Counter("moorage_extender_errors", "Requests refused or failed.", ("verb",), registry=registry)
    unsettled = Counter(
        "moorage_extender_unsettled",
        "Pods scored before an earlier one was seen placed.",
        registry=registry,
    )
    seconds = Histogram(
        "moorage_extender_request_seconds", "Time to answer.", ("verb",), buckets=BUCKETS, registry=registry
    )
    encoder = msgspec.json.Encoder()

    def verb(name: str, answer: Callable[[Arguments], Awaitable[Any]]) -> Route:
        async def endpoint(request: Request) -> Response:
            began = cache.clock.monotonic()
            code = 200
            try:
                if not cache.synced.is_set():
                    raise NotReady("the extender does not know the cluster yet")
                content = encoder.encode(await answer(parse_arguments(await request.body())))
                return Response(content, media_type="application/json")
            except MoorageError as error:
                code = error.status if isinstance(error, BadRequest) else 503
                errors.labels(name).inc()
                return PlainTextResponse(error.message, status_code=code)
            finally:
                requests.labels(name, str(code)).inc()
                seconds.labels(name).observe(cache.clock.monotonic() - began)

        return Route(f"/scheduler/{name}", endpoint, methods=["POST"])

    async def filtered(arguments: Arguments) -> dict[str, Any]:
        whole = arguments.totals is not None
        return {
            "Nodes": arguments.node_list if whole else None,
            "NodeNames": None if whole else arguments.names,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }

    async def prioritized(arguments: Arguments) -> list[HostPriority]:
        if not arguments.asked:
            return prioritize(arguments, cache)  # holds no GPU: nobody waits for it, and it for nobody
        if not await cache.settled(arguments.uid):
            unsettled.inc()
        found = prioritize(arguments, cache)
        cache.asked_about(arguments.uid)
        return found

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        if cache.synced.is_set():
            return PlainTextResponse("ok")
        return PlainTextResponse("the cache is not whole yet", status_code=503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            verb("filter", filtered),
            verb("prioritize", prioritized),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
