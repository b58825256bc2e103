from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from moorage.decide.packing.winner import OUTVOTES
from moorage.extender.app import create_app
from moorage.extender.cache import ExtenderCache
from moorage.model.schedulerconfig import kube_scheduler_configuration, local_scheduler_configuration
from moorage_kube.resources import NODES, PODS, Obj
from moorage_local.scheduler.extenders import Extender, parse_extenders
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

GPU = "nvidia.com/gpu"
WISHES = {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}


def a_node(name: str, gpus: int = 2) -> Obj:
    allocatable = {"cpu": "8"} | ({GPU: str(gpus)} if gpus else {})
    labels = {"nvidia.com/gpu.product": "a100"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def a_pod(name: str = "p", gpus: int = 1, node: str = "") -> Obj:
    limits = {GPU: str(gpus)} if gpus else {"cpu": "1"}
    return {
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}"},
        "spec": {"containers": [{"resources": {"limits": limits}}], **({"nodeName": node} if node else {})},
    }


class Client:
    """Calls an ASGI application as a server would."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def call(self, path: str, body: Any = None) -> tuple[int, str]:
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [],
            "server": ("127.0.0.1", 80),
            "scheme": "http",
        }
        answers: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            answers.append(message)

        await self._app(scope, receive, send)
        text = b"".join(answer.get("body", b"") for answer in answers).decode()
        return answers[0]["status"], text

    async def json(self, path: str, body: Any) -> Any:
        status, text = await self.call(path, body)
        assert status == 200, text
        return json.loads(text)


@contextlib.asynccontextmanager
async def a_cache(*objects: Obj) -> AsyncIterator[ExtenderCache]:
    api = FakeApi()
    for obj in objects:
        api.put(PODS if "spec" in obj else NODES, obj)
    cache = ExtenderCache(api)
    task = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        yield cache
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def a_client(*objects: Obj) -> AsyncIterator[Client]:
    async with a_cache(*objects) as cache:
        yield Client(create_app(cache))


async def test_the_best_node_is_named_from_its_own_cache():
    async with a_client(a_node("n"), a_node("m"), a_pod("standing", 1, "m")) as client:
        body = {"Pod": a_pod(), "Nodes": None, "NodeNames": ["n", "m", "stranger"]}
        assert await client.json("/scheduler/prioritize", body) == [{"Host": "m", "Score": OUTVOTES}]


async def test_the_lower_case_names_of_older_schedulers_are_read_too():
    async with a_client(a_node("n")) as client:
        assert await client.json("/scheduler/prioritize", {"pod": a_pod(), "nodenames": ["n"]}) == [
            {"Host": "n", "Score": OUTVOTES}
        ]


async def test_whole_nodes_are_taken_as_they_were_sent():
    async with a_client(a_node("n"), a_pod("standing", 1, "n")) as client:
        body = {"Pod": a_pod(), "Nodes": {"metadata": {}, "items": [a_node("n", 4), a_node("new", 4)]}}
        wishing = a_pod() | {"spec": a_pod()["spec"] | WISHES}
        assert await client.json("/scheduler/prioritize", body | {"Pod": wishing, "NodeNames": None}) == [
            {"Host": "n", "Score": 5},
            {"Host": "new", "Score": 2},
        ]
        assert await client.json("/scheduler/filter", body) == {
            "Nodes": body["Nodes"],
            "NodeNames": None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }


async def test_filter_lets_nodes_pass_that_are_full_or_not_known():
    async with a_client(a_node("n"), a_pod("standing", 2, "n")) as client:
        assert await client.json("/scheduler/filter", {"Pod": a_pod(), "NodeNames": ["n", "m"]}) == {
            "Nodes": None,
            "NodeNames": ["n", "m"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }


async def test_filter_says_why_a_node_can_never_take_the_pod():
    other = a_node("other", 8)
    other["metadata"]["labels"] = {"nvidia.com/gpu.product": "t4"}
    pod = a_pod(gpus=8)
    pod["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "a100"}
    async with a_client(a_node("small"), a_node("fits", 8), a_node("cpu", 0), other) as client:
        sent = {"Pod": pod, "NodeNames": ["small", "fits", "cpu", "other", "stranger"]}
        reasons = {
            "small": "the node is too small: 8 nvidia.com/gpu asked for, 2 there",
            "cpu": "the node is too small: 8 nvidia.com/gpu asked for, 0 there",
            "other": "its GPUs are t4, the pod asks for a100",
        }
        assert await client.json("/scheduler/filter", sent) == {
            "Nodes": None,
            "NodeNames": ["fits", "stranger"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": reasons,
            "Error": "",
        }
        nodes = {"metadata": {}, "items": [a_node("small"), a_node("fits", 8)]}
        answer = await client.json("/scheduler/filter", {"Pod": pod, "Nodes": nodes, "NodeNames": None})
    assert answer["Nodes"] == {"metadata": {}, "items": [a_node("fits", 8)]}
    assert answer["FailedAndUnresolvableNodes"] == {"small": reasons["small"]}


async def test_the_next_pod_of_a_burst_is_scored_beside_those_not_seen_yet():
    async with a_client(a_node("n"), a_node("m")) as client:
        places = []
        names = ["n", "m"]
        for number in range(4):  # no binding is ever seen
            body = {"Pod": a_pod(f"p{number}"), "NodeNames": names}
            answer = await client.json("/scheduler/prioritize", body)
            places.append(max(answer, key=lambda one: one["Score"])["Host"])
            names = [name for name in names if places.count(name) < 2]  # the scheduler knows where no room is
        status, text = await client.call("/metrics")
    assert places[0] == places[1]
    assert places[2] == places[3]
    assert {places[0], places[2]} == {"n", "m"}
    assert "moorage_extender_assumed_pods 4.0" in text.splitlines()


async def test_a_pod_asked_about_again_is_tried_elsewhere_and_counted_once():
    async with a_client(a_node("n"), a_node("m"), a_pod("standing", 1, "m")) as client:
        best = []
        for _ in range(3):
            answer = await client.json("/scheduler/prioritize", {"Pod": a_pod(), "NodeNames": ["n", "m"]})
            best.append(max(answer, key=lambda one: one["Score"])["Host"])
        only = await client.json("/scheduler/prioritize", {"Pod": a_pod(), "NodeNames": ["m"]})
        status, text = await client.call("/metrics")
    assert best == ["m", "n", "m"]
    assert only == [{"Host": "m", "Score": OUTVOTES}]
    assert "moorage_extender_assumed_pods 1.0" in text.splitlines()
    assert 'moorage_extender_assumptions_total{outcome="again"} 3.0' in text.splitlines()


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
    ids=["node affinity", "pod anti-affinity", "spreading"],
)
async def test_wishes_of_a_pod_are_not_outvoted(spec):
    async with a_client(a_node("n"), a_node("m"), a_pod("standing", 1, "m")) as client:
        pod = a_pod()
        pod["spec"] |= spec
        assert await client.json("/scheduler/prioritize", {"Pod": pod, "NodeNames": ["n", "m", "new"]}) == [
            {"Host": "n", "Score": 5},
            {"Host": "m", "Score": 10},
            {"Host": "new", "Score": 0},
        ]


@pytest.mark.parametrize(
    ("tolerations", "best"),
    [([], "n"), ([{"key": "old", "operator": "Exists"}], "m"), ([{"key": "old", "value": "no"}], "n")],
)
async def test_a_node_that_is_better_left_alone_is_taken_last(tolerations, best):
    tainted = a_node("m") | {"spec": {"taints": [{"key": "old", "effect": "PreferNoSchedule"}]}}
    api = FakeApi()
    api.put(NODES, a_node("n"))
    api.put(NODES, tainted)
    api.put(PODS, a_pod("standing", 1, "m"))
    cache = ExtenderCache(api)
    task = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        client = Client(create_app(cache))
        pod = a_pod()
        pod["spec"]["tolerations"] = tolerations
        answer = await client.json("/scheduler/prioritize", {"Pod": pod, "NodeNames": ["n", "m"]})
        assert max(answer, key=lambda one: one["Score"])["Host"] == best
        only = await client.json("/scheduler/prioritize", {"Pod": a_pod("q"), "NodeNames": ["m"]})
        assert only == [{"Host": "m", "Score": OUTVOTES}]
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_client_that_left_before_its_question_came_is_assumed_nothing():
    api = FakeApi()
    api.put(NODES, a_node("n"))
    cache = ExtenderCache(api)
    task = asyncio.create_task(cache.run())
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        await cache.synced.wait()
        scope: Any = {"type": "http", "method": "POST", "path": "/scheduler/prioritize"}
        await create_app(cache)(scope, receive, send)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert sent[0]["status"] == 400
    assert len(cache.ledger) == 0


async def test_pods_without_gpus_are_sent_to_nodes_without():
    async with a_client(a_node("gpu"), a_node("cpu", 0)) as client:
        body = {"Pod": a_pod(gpus=0), "NodeNames": ["gpu", "cpu"]}
        assert await client.json("/scheduler/prioritize", body) == [
            {"Host": "gpu", "Score": 0},
            {"Host": "cpu", "Score": 10},
        ]


async def test_until_the_cache_is_whole_nothing_is_answered():
    client = Client(create_app(ExtenderCache(FakeApi())))
    for verb in ("filter", "prioritize"):
        status, text = await client.call(f"/scheduler/{verb}", {"Pod": a_pod(), "NodeNames": []})
        assert (status, text) == (503, "the extender does not know the cluster yet")
    assert (await client.call("/readyz"))[0] == 503
    assert (await client.call("/healthz"))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"Pod": null, "NodeNames": []}',
        b'{"Pod": {"metadata": {}}, "NodeNames": []}',
        b'{"Pod": {"metadata": {"name": "p"}}, "NodeNames": [1]}',
        b'{"Pod": {"metadata": {"name": "p"}}, "Nodes": {"items": [{}]}}',
        json.dumps({"Pod": a_pod(gpus="x"), "NodeNames": []}).encode(),  # type: ignore[arg-type]
    ],
)
async def test_a_body_that_is_no_arguments_is_a_bad_request(body):
    async with a_client() as client:
        status, text = await client.call("/scheduler/prioritize", body)
    assert status == 400
    assert "the body is not valid ExtenderArgs" in text


async def test_metrics_tell_gpus_by_node_and_type_and_what_was_answered():
    async with a_client(a_node("n"), a_node("cpu", 0), a_pod("standing", 1, "n")) as client:
        await client.json("/scheduler/prioritize", {"Pod": a_pod(), "NodeNames": ["n"]})
        await client.call("/scheduler/prioritize", b"")
        status, text = await client.call("/metrics")
    assert status == 200
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'moorage_node_gpus{node="n",type="a100"} 2.0' in lines
    assert 'moorage_node_gpus_used{node="n",type="a100"} 2.0' in lines  # one seen, one assumed
    assert not any('node="cpu"' in line for line in lines)
    assert 'moorage_extender_requests_total{code="200",verb="prioritize"} 1.0' in lines
    assert 'moorage_extender_errors_total{verb="prioritize"} 1.0' in lines
    assert 'moorage_extender_request_seconds_count{verb="prioritize"} 2.0' in lines
    assert "moorage_extender_cache_synced 1.0" in lines
    assert "moorage_extender_last_request_timestamp_seconds 0.0" not in lines
    assert any(line.startswith("moorage_extender_cache_age_seconds ") for line in lines)


async def test_the_configuration_to_ship_is_read_by_the_local_scheduler():
    (extender,) = parse_extenders(kube_scheduler_configuration("http://127.0.0.1:9"))
    assert extender.url_prefix == "http://127.0.0.1:9/scheduler"
    assert (extender.filter_verb, extender.prioritize_verb, extender.weight) == ("", "prioritize", 5)
    assert (extender.ignorable, extender.node_cache_capable, extender.managed_resources) == (True, True, ())
    assert extender.http_timeout.total_seconds() == 0.5


async def test_the_scheduler_of_a_local_cluster_waits_longer_as_pods_keep_the_extenders_processor_busy():
    (usual,) = parse_extenders(kube_scheduler_configuration("http://127.0.0.1:9", token=TOKEN))
    (local,) = parse_extenders(local_scheduler_configuration("http://127.0.0.1:9", token=TOKEN))
    assert local == replace(usual, http_timeout=timedelta(seconds=5))


async def test_a_profile_for_gpu_pods_turns_the_default_resource_scores_off():
    profiles = kube_scheduler_configuration("http://x", gpu_profile="moorage-gpu")["profiles"]
    assert [profile["schedulerName"] for profile in profiles] == ["default-scheduler", "moorage-gpu"]
    assert profiles[1]["plugins"]["score"]["disabled"] == [
        {"name": "NodeResourcesFit"},
        {"name": "NodeResourcesBalancedAllocation"},
    ]


TOKEN = "x" * 32


@pytest.mark.parametrize(
    "path",
    [
        "/scheduler/prioritize",
        f"/scheduler/{'y' * 32}/prioritize",
        f"/scheduler/{TOKEN}y/prioritize",
        f"/scheduler/{TOKEN}/x/prioritize",
        f"/scheduler/{TOKEN.upper()}/prioritize",
        "/scheduler//prioritize",
        "/scheduler/\u00e9/prioritize",
    ],
)
async def test_who_does_not_know_the_token_is_asked_nothing_and_counted_nowhere(path: str) -> None:
    async with a_cache(a_node("a")) as cache:
        client = Client(create_app(cache, token=TOKEN))
        body = {"Pod": a_pod(), "NodeNames": ["a"]}
        status, text = await client.call(path, body)
        assert status == 401
        assert TOKEN not in text
        assert len(cache.ledger) == 0
        assert (await client.json(f"/scheduler/{TOKEN}/prioritize", body))[0]["Host"] == "a"
        assert len(cache.ledger) == 1


def test_the_configuration_calls_the_verbs_where_they_are() -> None:
    (extender,) = parse_extenders(kube_scheduler_configuration("http://127.0.0.1:9/", token=TOKEN))
    assert extender.url_prefix == f"http://127.0.0.1:9/scheduler/{TOKEN}"
    assert Extender(extender).name == "http://127.0.0.1:9", "names stand in logs"


async def test_what_doctor_needs_of_the_metrics_has_a_page_without_the_others():
    async with a_client(a_node("n")) as client:
        await client.json("/scheduler/prioritize", {"Pod": a_pod(), "NodeNames": ["n"]})
        status, text = await client.call("/asked")
    assert status == 200
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(samples.pop("moorage_extender_last_request_timestamp_seconds")) > 0
    requests = 'moorage_extender_requests_total{code="200",verb="%s"}'
    assert samples == {requests % "filter": "0.0", requests % "prioritize": "1.0"}
