"""The scheduler and the extender over real HTTP: seed 003's scene, and an extender that fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moorage.extender.app import create_app
from moorage.extender.cache import ExtenderCache
from moorage.model.schedulerconfig import kube_scheduler_configuration
from moorage_kube.informer import Informer, wait_synced
from moorage_kube.meta import condition
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.serving import serve
from moorage_kube.testing.ports import dead_port
from moorage_local.scheduler.extenders import parse_extenders
from moorage_local.scheduler.scheduler import Scheduler
from moorage_local.testing.fakepods import FakePodApi

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 180.0


def a_node(name: str, gpus: int = 2, cpu: str = "16") -> Obj:
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def a_pod(name: str, gpus: int = 0, cpu: str = "1") -> Obj:
    resources = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "metadata": {"name": name, "namespace": "lab"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": resources, "limits": resources}}]},
        "status": {"phase": "Pending"},
    }


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, sock, stop=stop))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        stop.set()
        await task
        sock.close()


@contextlib.asynccontextmanager
async def running(*parts: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome


class Watched:
    """The pods as the API shows them; waits for a state of all."""

    def __init__(self, api: FakePodApi) -> None:
        self.api = api
        self.informer = Informer(api, PODS)

    async def until(self, done: Callable[[dict[str, Obj]], bool]) -> dict[str, Obj]:
        changed = asyncio.Event()
        self.informer.on_change(lambda *_: changed.set())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                changed.clear()
                pods = {pod["metadata"]["name"]: pod for pod in self.informer.all()}
                if done(pods):
                    return pods
                await changed.wait()


def is_decided(pod: Obj) -> bool:
    told = condition(pod, "PodScheduled")
    return bool(pod["spec"].get("nodeName")) or (told is not None and told["status"] == "False")


async def played(
    pods: list[Obj], *, url: str | None, nodes: list[Obj], one_by_one: bool, timeout: str = "30s", seed: int = 0
) -> dict[str, Obj]:
    """Make the nodes, then the pods; return the pods once each is bound or said to be unschedulable."""
    api = FakePodApi()
    for node in nodes:
        api.put(NODES, node)
    extenders = ()
    if url is not None:
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0]["httpTimeout"] = timeout
        extenders = parse_extenders(configuration)
    return await played_on(api, pods, extenders=extenders, one_by_one=one_by_one, seed=seed)


async def played_on(
    api: FakePodApi, pods: list[Obj], *, extenders: tuple = (), one_by_one: bool, seed: int = 0
) -> dict[str, Obj]:
    watched = Watched(api)
    scheduler = Scheduler(api, extenders=extenders, seed=seed)
    async with running(scheduler.run(), watched.informer.run()):
        await wait_synced(watched.informer)
        names = set()
        for pod in pods:
            api.put(PODS, pod)
            names.add(pod["metadata"]["name"])
            if one_by_one:
                await watched.until(lambda seen: names <= seen.keys() and all(map(is_decided, seen.values())))
        return await watched.until(lambda seen: names <= seen.keys() and all(map(is_decided, seen.values())))


SCENE = [a_pod("one", 1), a_pod("another", 1), a_pod("large", 2)]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "all at once"])
async def test_with_the_extender_all_three_pods_of_the_scene_find_room(one_by_one: bool, seed: int) -> None:
    api = FakePodApi()
    for name in ("node-1", "node-2"):
        api.put(NODES, a_node(name))
    cache = ExtenderCache(api)
    async with running(cache.run()), served(create_app(cache)) as url:
        await cache.synced.wait()
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0]["httpTimeout"] = "60s"
        pods = await played_on(
            api, SCENE, extenders=parse_extenders(configuration), one_by_one=one_by_one, seed=seed
        )
    where = {name: pod["spec"].get("nodeName") for name, pod in pods.items()}
    assert where["one"] == where["another"]
    assert {where["one"], where["large"]} == {"node-1", "node-2"}


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_without_the_extender_the_third_pod_of_the_scene_waits(seed: int) -> None:
    pods = await played(SCENE, url=None, nodes=[a_node("node-1"), a_node("node-2")], one_by_one=True, seed=seed)
    where = {name: pod["spec"].get("nodeName") for name, pod in pods.items()}
    assert {where["one"], where["another"]} == {"node-1", "node-2"}
    assert where["large"] is None
    told = condition(pods["large"], "PodScheduled")
    assert told is not None
    assert told["reason"] == "Unschedulable"
    assert told["message"] == (
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available:"
        " 2 No preemption victims found for incoming pod."
    )


async def test_packing_outvotes_the_free_space_of_an_empty_node() -> None:
    api = FakePodApi()
    for name in ("node-1", "node-2"):
        api.put(NODES, a_node(name))
    api.put(
        PODS, a_pod("standing", 1, cpu="12") | {"spec": a_pod("x", 1, cpu="12")["spec"] | {"nodeName": "node-2"}}
    )
    cache = ExtenderCache(api)
    async with running(cache.run()), served(create_app(cache)) as url:
        await cache.synced.wait()
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0]["httpTimeout"] = "60s"
        pods = await played_on(
            api, [a_pod("next", 1, cpu="4")], extenders=parse_extenders(configuration), one_by_one=True
        )
    assert pods["next"]["spec"]["nodeName"] == "node-2"


async def test_a_pod_without_gpus_stays_off_the_gpu_node() -> None:
    api = FakePodApi()
    api.put(NODES, a_node("gpu", 2, cpu="64"))
    api.put(NODES, a_node("plain", 0, cpu="4"))
    cache = ExtenderCache(api)
    async with running(cache.run()), served(create_app(cache)) as url:
        await cache.synced.wait()
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0]["httpTimeout"] = "60s"
        pods = await played_on(api, [a_pod("cpu")], extenders=parse_extenders(configuration), one_by_one=True)
    assert pods["cpu"]["spec"]["nodeName"] == "plain"


async def _hanging(_: Request) -> Response:
    await asyncio.Event().wait()
    return Response()


async def _failing(_: Request) -> Response:
    return Response("no", status_code=500)


async def _babbling(_: Request) -> Response:
    return JSONResponse({"what": "is this"})


@pytest.mark.parametrize(
    ("endpoint", "timeout"),
    [
        pytest.param(_hanging, "100ms", id="hanging"),
        pytest.param(_failing, "30s", id="answering 500"),
        pytest.param(_babbling, "30s", id="answering something else"),
    ],
)
@pytest.mark.parametrize("verbs", [("prioritize",), ("filter", "prioritize")], ids="+".join)
async def test_scheduling_goes_on_when_an_ignorable_extender_fails(
    endpoint: Callable[[Request], Awaitable[Response]], timeout: str, verbs: tuple[str, ...]
) -> None:
    app = Starlette(routes=[Route(f"/scheduler/{verb}", endpoint, methods=["POST"]) for verb in verbs])
    async with served(app) as url:
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0] |= {f"{verb}Verb": verb for verb in verbs} | {"httpTimeout": timeout}
        api = FakePodApi()
        for name in ("node-1", "node-2"):
            api.put(NODES, a_node(name))
        pods = await played_on(
            api, [a_pod("a", 1), a_pod("b", 1)], extenders=parse_extenders(configuration), one_by_one=True
        )
    assert all(pod["spec"].get("nodeName") for pod in pods.values())


async def test_scheduling_goes_on_when_an_ignorable_extender_is_down() -> None:
    with dead_port() as port:
        pods = await played(
            [a_pod("a", 1)],
            url=f"http://127.0.0.1:{port}",
            nodes=[a_node("node-1"), a_node("node-2")],
            one_by_one=True,
        )
    assert pods["a"]["spec"].get("nodeName")


async def test_an_extender_that_does_not_know_the_cluster_yet_is_passed_over() -> None:
    api = FakePodApi()
    cache = ExtenderCache(api)  # never run
    async with served(create_app(cache)) as url:
        pods = await played([a_pod("a", 1)], url=url, nodes=[a_node("node-1"), a_node("node-2")], one_by_one=True)
    assert pods["a"]["spec"].get("nodeName")


async def test_a_filter_that_may_not_be_ignored_holds_the_pod_back_until_it_answers() -> None:
    answers = {"ok": False}

    async def filtered(request: Request) -> Response:
        if not answers["ok"]:
            return Response("no", status_code=500)
        body = await request.json()
        return JSONResponse({"NodeNames": body["NodeNames"][:1]})

    app = Starlette(routes=[Route("/scheduler/filter", filtered, methods=["POST"])])
    api = FakePodApi()
    for name in ("node-1", "node-2"):
        api.put(NODES, a_node(name))
    async with served(app) as url:
        configuration = kube_scheduler_configuration(url)
        configuration["extenders"][0] |= {"filterVerb": "filter", "prioritizeVerb": "", "ignorable": False}
        watched = Watched(api)
        scheduler = Scheduler(api, extenders=parse_extenders(configuration))
        async with running(scheduler.run(), watched.informer.run()):
            api.put(PODS, a_pod("a", 1))
            pods = await watched.until(lambda seen: bool(seen) and all(map(is_decided, seen.values())))
            told = condition(pods["a"], "PodScheduled")
            assert told is not None
            assert told["reason"] == "SchedulerError"
            answers["ok"] = True
            pods = await watched.until(lambda seen: bool(seen["a"]["spec"].get("nodeName")))
    assert pods["a"]["spec"]["nodeName"] == "node-1"
