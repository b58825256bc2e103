"""The extender's HTTP service, called by kube-scheduler.

    POST /scheduler/TOKEN/filter       refuses nodes whose GPUs are too few or of another type, held or not
    POST /scheduler/TOKEN/prioritize   points per node, by the policy of the cache
    GET  /healthz                200 while the process runs
    GET  /readyz                 200 once the cache is whole, 503 before
    GET  /metrics                Prometheus
    GET  /asked                  of these, when a scheduler asked last, and how many requests were answered

Without a token in the settings the verbs are at /scheduler/filter and /scheduler/prioritize, for all clients.
Their answers are counted, so a caller can make nodes count as full that are not; a token restricts that to
the scheduler (why it is in the path: `model.schedulerconfig.verbs_path`).

Field names on the wire are those of the Go types, which have no JSON tags (`Pod`, `NodeNames`, `Host`, …);
requests are read without regard to case, so older schedulers' lower-case names do too.
https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kube-scheduler/extender/v1/types.go

For a pod that asks for GPUs one node gets points that nothing outvotes (`decide.winner`), and is the whole
answer: a list of every node's costs kube-scheduler more to read than it costs us to choose. The pod is
counted there at once (`extender.ledger`), so that the next answer is right before the binding is seen. Not so
when the pod has preferences that plugins of the scheduler judge (preferred affinity, spreading): the policy's
points are unchanged, preferences may outvote them, and the best node is a guess, corrected when the binding
is seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from hmac import compare_digest
from typing import Any

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorage import __version__
from moorage.decide.packing.policies import Ask, gpus_asked
from moorage.decide.packing.winner import OUTVOTES, winner
from moorage.extender.cache import ExtenderCache, ask_of, host_head, version_of, why_never
from moorage.extender.ledger import Hold
from moorage.metrics.caches import FAMILIES as CACHES
from moorage.metrics.caches import measure_caches
from moorage.metrics.families import measured
from moorage.metrics.page import BUILD, MEDIA_TYPE, exposition
from moorage.model.schedulerconfig import VERBS_PATH, verbs_path
from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body
from moorage_kube.errors import BadRequest, MoorageError, NotReady, TooLarge
from moorage_kube.meta import Key, key_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import Toleration, parse_node

ASKED = ("moorage_extender_last_request_timestamp_seconds", "moorage_extender_requests_total")
FAMILIES = (*CACHES, BUILD)  # in addition to those of `make_metrics`
OUTCOMES = ("right", "wrong", "again", "refused", "gone", "expired")
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds; the timeout is 0.5
# of one question. A scheduler may send whole nodes: a cluster has at most 5,000, of some 15 kB each
# https://kubernetes.io/docs/setup/best-practices/cluster-large/
BODY_BYTES = 5_000 * 16 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Arguments(msgspec.Struct, rename={"pod": "Pod", "names": "NodeNames", "nodes": "Nodes"}):
    """ExtenderArgs in the JSON format of kube-scheduler."""

    pod: dict[str, Any]
    names: list[str] | None = None
    nodes: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Arguments)
_encoder = msgspec.json.Encoder()
_stranger = PlainTextResponse(
    "the token in the path is missing or wrong; docs/howto/pack-gpus-with-kube-scheduler.md says where it is\n",
    401,
)


class Arguments(Struct, frozen=True, kw_only=True):
    """ExtenderArgs: the pod, and the nodes by name or as objects."""

    key: Key
    uid: str
    version: int
    ask: Ask
    pod: Obj
    names: Sequence[str]
    totals: Mapping[str, Mapping[str, int]] | None  # GPUs of the nodes sent; None: only names were
    node_list: msgspec.Raw | None  # as sent, to be sent back


def parse_arguments(body: bytes) -> Arguments:
    """Parse ExtenderArgs. Raises BadRequest."""
    try:
        sent = _decode(body)
        pod, names, totals = sent.pod, sent.names, None
        if names is None:
            listed = msgspec.json.decode(sent.nodes, type=dict[str, Any] | None) or {}
            nodes = [parse_node(item) for item in listed.get("items") or ()]
            totals = {node.name: gpus_asked(node.allocatable) for node in nodes}
            names = list(totals)
        return Arguments(
            key=key_of(pod),
            uid=pod["metadata"].get("uid") or "",
            version=version_of(pod),
            ask=ask_of(pod),
            pod=pod,
            names=names,
            totals=totals,
            node_list=None if totals is None else sent.nodes,
        )
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid ExtenderArgs: {error!r}") from error


def _decode(body: bytes) -> _Arguments:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:  # or an older scheduler's names
        fields = {
            name.lower(): raw for name, raw in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()
        }
        return _Arguments(
            pod=msgspec.json.decode(fields["pod"], type=dict[str, Any]),
            names=msgspec.json.decode(fields.get("nodenames", b"null"), type=list[str] | None),
            nodes=fields.get("nodes", msgspec.Raw(b"null")),
        )


def prioritize(arguments: Arguments, cache: ExtenderCache) -> bytes:
    """Score the nodes: a HostPriorityList as JSON. Unknown nodes get 0 points.

    If the pod requests GPUs and has no preferences, the list has the best node only: nothing else matters
    then, and kube-scheduler scores missing nodes as 0. A pod that requests GPUs is counted on the best node.
    """
    ask, key, names = arguments.ask, arguments.key, arguments.names
    failed = cache.asked_about(key) if ask.gpus else None
    if not names:
        return b"[]"
    points = _points(arguments, cache)
    if ask.gpus:
        at = winner(points, arguments.uid or str(key), shunned=_shunned(arguments, cache, failed))
        hold = Hold(names[at], dict(ask.gpus), ask.cpu)
        cache.assume(key, arguments.uid, hold, version=arguments.version)
        if not has_wishes(arguments.pod):
            return b"[%b%d}]" % (host_head(names[at]), OUTVOTES)
    heads = cache.heads
    return b"[%b]" % b",".join(
        [b"%b%d}" % (heads.get(name) or host_head(name), score) for name, score in zip(names, points, strict=True)]
    )


def _points(arguments: Arguments, cache: ExtenderCache) -> list[int]:
    names = arguments.names
    if arguments.totals is not None:
        return [_special(name, arguments, cache) for name in names]
    table = cache.board.table(arguments.ask)
    try:
        points = list(map(table.__getitem__, names))
    except KeyError:
        points = [table.get(name, 0) for name in names]
    counted = cache.ledger.counted(arguments.key)  # nominated there
    if counted is not None and counted.node in table and counted.node in names:
        points[names.index(counted.node)] = _special(counted.node, arguments, cache)
    return points


def _special(name: str, arguments: Arguments, cache: ExtenderCache) -> int:
    """Points of a node with the sent GPUs, or without this pod, if the node already counts the pod."""
    total = arguments.totals[name] if arguments.totals is not None else None
    rooms = cache.rooms(name, without=arguments.key, total=total)
    return cache.policy.points(arguments.ask, rooms)


def _shunned(arguments: Arguments, cache: ExtenderCache, failed: str | None) -> set[int]:
    """Indexes of nodes to use only if there are no others.

    They are the node of the failed attempt before, and nodes with a PreferNoSchedule taint that the pod does not
    tolerate.
    """
    names, taints = arguments.names, cache.soft_taints
    if not taints:
        return {names.index(failed)} if failed in names else set()
    tolerations = [
        Toleration(
            toleration.get("key") or "",
            toleration.get("operator") or "Equal",
            toleration.get("value") or "",
            toleration.get("effect") or "",
        )
        for toleration in (arguments.pod.get("spec") or {}).get("tolerations") or ()
    ]
    hard = {
        name
        for name, node_taints in taints.items()
        if any(not any(toleration.tolerates(taint) for toleration in tolerations) for taint in node_taints)
    }
    return {at for at, name in enumerate(names) if name == failed or name in hard}


def has_wishes(pod: Obj) -> bool:
    """Whether the pod states preferences, which the scheduler's own plugins judge."""
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    return any(
        (affinity.get(kind) or {}).get("preferredDuringSchedulingIgnoredDuringExecution")
        for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    ) or any(
        constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
        for constraint in spec.get("topologySpreadConstraints") or ()
    )


def refusals(arguments: Arguments, cache: ExtenderCache) -> dict[str, str]:
    """The reasons why nodes can never run the pod, even if empty: too few GPUs, or another GPU type.

    Unknown nodes are not refused.
    """
    ask, totals = arguments.ask, arguments.totals
    if not ask.gpus:
        return {}
    if totals is None:
        never = cache.never(ask)
        return {name: never[name] for name in arguments.names if name in never} if never else {}
    return {
        name: why
        for name in arguments.names
        if (why := why_never(ask, totals[name], cache.kind(name))) is not None
    }


class _Gpus(Collector):
    """Collects GPUs by node and type, and the age of the cache, when Prometheus reads the metrics."""

    def __init__(self, cache: ExtenderCache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        labels = ("node", "type")
        total = GaugeMetricFamily("moorage_node_gpus", "GPUs that the node offers.", labels=labels)
        used = GaugeMetricFamily("moorage_node_gpus_used", "GPUs held by pods on the node.", labels=labels)
        for node, kind in self._cache.nodes():
            total.add_metric((node.name, kind), sum(node.total.values()))
            used.add_metric((node.name, kind), sum(node.used.values()))
        yield total
        yield used
        yield GaugeMetricFamily(
            "moorage_extender_cache_age_seconds",
            "Seconds since the last change of nodes or pods arrived.",
            value=self._cache.age_seconds(),
        )
        yield GaugeMetricFamily(
            "moorage_extender_cache_synced",
            "1 when nodes and pods are known, 0 while requests are refused.",
            value=int(self._cache.synced.is_set()),
        )
        ledger = self._cache.ledger
        yield GaugeMetricFamily(
            "moorage_extender_assumed_pods",
            "Pods counted on the node chosen for them, not yet seen there.",
            len(ledger),
        )
        outcomes = CounterMetricFamily(
            "moorage_extender_assumptions",
            "How these ended: right, wrong (on another node), again, refused, gone, expired.",
            labels=("outcome",),
        )
        for outcome in OUTCOMES:
            outcomes.add_metric((outcome,), ledger.outcomes[outcome])
        yield outcomes


def make_metrics(cache: ExtenderCache) -> tuple[CollectorRegistry, Counter, Counter, Histogram, Gauge]:
    """The registry, and the metrics of requests: answered, refused or failed, seconds, and the time."""
    registry = CollectorRegistry()
    registry.register(_Gpus(cache))
    return (
        registry,
        Counter("moorage_extender_requests", "Requests answered.", ("verb", "code"), registry=registry),
        Counter("moorage_extender_errors", "Requests refused or failed.", ("verb",), registry=registry),
        Histogram(
            "moorage_extender_request_seconds", "Time to answer.", ("verb",), buckets=BUCKETS, registry=registry
        ),
        Gauge(
            "moorage_extender_last_request_timestamp_seconds",
            "When a scheduler last asked with the right token, in Unix time; 0: never.",
            registry=registry,
        ),
    )


def filter_nodes(arguments: Arguments, cache: ExtenderCache) -> bytes:
    """The nodes that may run the pod, in the format that the scheduler sent, and the reasons for the others."""
    refused = refusals(arguments, cache)
    node_list: Any = arguments.node_list
    names: Any = None if node_list is not None else arguments.names
    if refused and node_list is not None:
        sent = msgspec.json.decode(node_list)
        node_list = sent | {"items": [item for item in sent["items"] if item["metadata"]["name"] not in refused]}
    elif refused:
        names = [name for name in names if name not in refused]
    return _encoder.encode(
        {
            "Nodes": node_list,
            "NodeNames": names,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": refused,
            "Error": "",
        }
    )


async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok")


async def readyz(cache: ExtenderCache, _: Request) -> Response:
    if cache.synced.is_set():
        return PlainTextResponse("ok")
    return PlainTextResponse("the cache is not complete yet", status_code=503)


async def metrics(registry: CollectorRegistry, cache: ExtenderCache, _: Request) -> Response:
    rows = [*measure_caches(cache.informers), measured(BUILD, [((__version__,), 1)])]
    return Response(generate_latest(registry) + exposition(rows, process=True), media_type=MEDIA_TYPE)


async def scheduler_requests(registry: CollectorRegistry, _: Request) -> Response:
    """Metrics for `moor doctor install`: the API server's pod proxy sends no token, which /metrics requires."""
    return Response(generate_latest(registry.restricted_registry(ASKED)), media_type=MEDIA_TYPE)


def create_app(cache: ExtenderCache, *, token: str = "") -> Asgi:
    """The service over one cache, which the caller runs. `token`: required from a scheduler; "": none."""
    return _App(cache, token)


_Verb = tuple[Callable[["Arguments", ExtenderCache], bytes], Any, Any, str]
"""The answer, the counter of answers, the histogram of seconds, the name."""


class _App:
    """Handles the scheduler's requests directly, because every pod causes some. Starlette handles other paths."""

    def __init__(self, cache: ExtenderCache, token: str) -> None:
        registry, requests, errors, seconds, asked = make_metrics(cache)
        self._cache, self._requests, self._errors, self._asked = cache, requests, errors, asked
        self._path = verbs_path(token).encode()
        self._verbs = {
            name: (answer, requests.labels(name, "200"), seconds.labels(name), name)
            for name, answer in (("filter", filter_nodes), ("prioritize", prioritize))
        }
        self._others = Starlette(
            routes=[
                Route("/healthz", healthz),
                Route("/readyz", partial(readyz, cache)),
                Route("/metrics", partial(metrics, registry, cache)),
                Route("/asked", partial(scheduler_requests, registry)),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, _, name = scope["path"].rpartition("/")
        known = self._verbs.get(name) if scope["type"] == "http" and scope["method"] == "POST" else None
        if known is None:
            await self._others(scope, receive, send)
        elif compare_digest(path.encode("utf-8", "replace"), self._path):
            await self._answer(known, receive, send)
        elif path == VERBS_PATH or path.startswith(f"{VERBS_PATH}/"):
            self._errors.labels(name).inc()
            self._requests.labels(name, "401").inc()
            await _stranger(scope, receive, send)
        else:
            await self._others(scope, receive, send)

    async def _answer(self, known: _Verb, receive: Receive, send: Send) -> None:
        answer, answered, took, verb = known
        cache = self._cache
        began = cache.clock.monotonic()
        self._asked.set(cache.clock.now().timestamp())
        closes = False
        try:
            try:
                body = await read_body(receive, BODY_BYTES)
            except BodyTooLong as error:
                closes = True
                raise TooLarge(str(error)) from error
            except ClientLeft:
                body = b""  # the client has left: empty is not valid ExtenderArgs
            began = cache.clock.monotonic()
            if not cache.synced.is_set():
                raise NotReady("the extender does not know the cluster yet")
            code, kind, content = 200, b"application/json", answer(parse_arguments(body), cache)
            answered.inc()
        except MoorageError as error:
            code = error.status if isinstance(error, BadRequest | TooLarge) else 503
            kind, content = b"text/plain; charset=utf-8", error.message.encode()
            self._errors.labels(verb).inc()
            self._requests.labels(verb, str(code)).inc()
        took.observe(cache.clock.monotonic() - began)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
        if closes:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": content})
