"""The extender's HTTP service, called by kube-scheduler.

    POST /scheduler/filter       every node passes: the scheduler's own filters know more than our cache
    POST /scheduler/prioritize   points per node, by the policy of the cache
    GET  /healthz                200 while the process runs
    GET  /readyz                 200 once the cache is whole, 503 before
    GET  /metrics                Prometheus

Field names on the wire are those of the Go types, which bear no JSON tags (`Pod`, `NodeNames`, `Host`, …);
requests are read without regard to case, so older schedulers' lower-case names do too.
https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kube-scheduler/extender/v1/types.go
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
from moorage.apimachinery.scheduling import parse_node
from moorage.decide.packing import Ask, gpus_asked
from moorage.errors import BadRequest, MoorageError, NotReady
from moorage.extender.cache import ExtenderCache, ask_of, host_priority

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds; the timeout is 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """ExtenderArgs: the pod, and the nodes by name or whole."""

    key: Key
    uid: str
    ask: Ask
    names: Sequence[str]
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
            ask=ask_of(pod),
            names=names,
            totals=totals,
            node_list=None if totals is None else fields.get("nodes"),
        )
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadRequest(f"the body is no ExtenderArgs: {error!r}") from error


def prioritize(arguments: Arguments, cache: ExtenderCache) -> bytes:
    """HostPriorityList: points for each node asked about, as JSON; a node that is not known yet gets 0."""
    if arguments.totals is not None:
        found = [_special(name, arguments, cache) for name in arguments.names]
    else:
        table = cache.board.table(arguments.ask)
        try:
            found = [table[name] for name in arguments.names]
        except KeyError:
            found = [table.get(name) or host_priority(name, 0) for name in arguments.names]
        counted = cache.nominated_to(arguments.key)
        if counted is not None and counted in table:
            found = [
                _special(name, arguments, cache) if name == counted else one
                for name, one in zip(arguments.names, found, strict=True)
            ]
    return b"[%b]" % b",".join(found)


def _special(name: str, arguments: Arguments, cache: ExtenderCache) -> bytes:
    """Points of a node as it was sent, or without the pod asked about, which is counted there already."""
    total = arguments.totals[name] if arguments.totals is not None else None
    rooms = cache.rooms(name, without=arguments.key, total=total)
    return host_priority(name, cache.policy.points(arguments.ask, rooms))


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

    def verb(name: str, answer: Callable[[Arguments], Awaitable[bytes]]) -> Route:
        async def endpoint(request: Request) -> Response:
            began = cache.clock.monotonic()
            code = 200
            try:
                if not cache.synced.is_set():
                    raise NotReady("the extender does not know the cluster yet")
                content = await answer(parse_arguments(await request.body()))
                return Response(content, media_type="application/json")
            except MoorageError as error:
                code = error.status if isinstance(error, BadRequest) else 503
                errors.labels(name).inc()
                return PlainTextResponse(error.message, status_code=code)
            finally:
                requests.labels(name, str(code)).inc()
                seconds.labels(name).observe(cache.clock.monotonic() - began)

        return Route(f"/scheduler/{name}", endpoint, methods=["POST"])

    async def filtered(arguments: Arguments) -> bytes:
        whole = arguments.totals is not None
        return encoder.encode(
            {
                "Nodes": arguments.node_list if whole else None,
                "NodeNames": None if whole else arguments.names,
                "FailedNodes": {},
                "FailedAndUnresolvableNodes": {},
                "Error": "",
            }
        )

    async def prioritized(arguments: Arguments) -> bytes:
        if not arguments.ask.gpus:
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
