"""The wire format and the configuration of scheduler extenders, against a server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moorage_kube.errors import UsageError
from moorage_kube.serving import serve
from moorage_kube.testing import builders
from moorage_local.scheduler.extenders import (
    Extender,
    ExtenderConfig,
    ExtenderError,
    ManagedResource,
    load_extenders,
    parse_extenders,
    parse_go_duration,
)
from moorage_local.scheduler.preemption import Candidate
from moorage_local.scheduler.snapshot import NodeState, Snapshot, parse_pod_view
from moorage_local.testing.builders import a_node_state


def a_pod(name: str = "p", **resources: Any) -> dict[str, Any]:
    return builders.a_pod(name, uid=f"uid-{name}", container={"resources": resources})


def a_node(name: str, *pods: dict[str, Any]) -> NodeState:
    return a_node_state(name, *map(parse_pod_view, pods))


class Server:
    """Answers every call with `answer` and keeps the bodies."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.hangs = False
        self.seen: list[tuple[str, Any]] = []

    async def __call__(self, request: Request) -> Response:
        self.seen.append((request.url.path, json.loads(await request.body())))
        if self.hangs:
            await asyncio.Event().wait()
        return JSONResponse(self.answer, status_code=self.status)


@contextlib.asynccontextmanager
async def an_extender(**config: Any) -> AsyncIterator[tuple[Extender, Server]]:
    server = Server()
    app = Starlette(routes=[Route("/{path:path}", server.__call__, methods=["POST"])])
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(app, sock, stop=stop))
    extender = Extender(
        ExtenderConfig(
            url_prefix=f"http://127.0.0.1:{sock.getsockname()[1]}/x/",
            filter_verb="filter",
            prioritize_verb="prioritize",
            preempt_verb="preempt",
            bind_verb="bind",
            **config,
        )
    )
    try:
        yield extender, server
    finally:
        await extender.close()
        stop.set()
        await task
        sock.close()


@pytest.mark.anyio
async def test_a_caching_extender_is_sent_names_only():
    async with an_extender(node_cache_capable=True) as (extender, server):
        server.answer = {"NodeNames": ["b"], "FailedNodes": {"a": "no"}, "Error": ""}
        kept, failed, hopeless = await extender.filter(a_pod(), [a_node("a"), a_node("b")])
    assert server.seen == [("/x/filter", {"Pod": a_pod(), "Nodes": None, "NodeNames": ["a", "b"]})]
    assert [node.name for node in kept] == ["b"]
    assert (failed, hopeless) == ({"a": "no"}, {})


@pytest.mark.anyio
async def test_any_other_extender_is_sent_the_nodes():
    async with an_extender() as (extender, server):
        server.answer = {"nodes": {"items": [a_node("a").obj]}, "failedAndUnresolvableNodes": {"b": "never"}}
        kept, failed, hopeless = await extender.filter(a_pod(), [a_node("a"), a_node("b")])
    (_, body) = server.seen[0]
    assert body["NodeNames"] is None
    assert [one["metadata"]["name"] for one in body["Nodes"]["items"]] == ["a", "b"]
    assert [node.name for node in kept] == ["a"]
    assert (failed, hopeless) == ({}, {"b": "never"})


@pytest.mark.anyio
async def test_points_are_weighed_and_scaled_from_ten_to_a_hundred():
    async with an_extender(node_cache_capable=True, weight=3) as (extender, server):
        server.answer = [{"Host": "a", "Score": 10}, {"host": "b", "score": 5}]
        assert await extender.prioritize(a_pod(), [a_node("a"), a_node("b")]) == {"a": 300, "b": 150}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"Error": "no"}, id="an error"),
        pytest.param({"NodeNames": ["stranger"]}, id="a node it was not asked about"),
        pytest.param({}, id="nothing"),
        pytest.param([], id="a list"),
    ],
)
async def test_an_unusable_answer_to_filter_is_an_error(answer):
    async with an_extender(node_cache_capable=True) as (extender, server):
        server.answer = answer
        with pytest.raises(ExtenderError):
            await extender.filter(a_pod(), [a_node("a")])


@pytest.mark.anyio
async def test_a_refusal_of_every_node_is_an_answer():
    async with an_extender(node_cache_capable=True) as (extender, server):
        server.answer = {"NodeNames": None, "FailedNodes": {"a": "no"}}
        assert await extender.filter(a_pod(), [a_node("a")]) == ([], {"a": "no"}, {})


@pytest.mark.anyio
async def test_failures_are_logged_once_until_it_answers_again(caplog):
    caplog.set_level("INFO", "moorage_local.scheduler.extenders")
    async with an_extender(node_cache_capable=True) as (extender, server):
        server.status = 500
        for _ in range(3):
            with pytest.raises(ExtenderError, match="code 500"):
                await extender.prioritize(a_pod(), [a_node("a")])
        server.status, server.answer = 200, []
        await extender.prioritize(a_pod(), [a_node("a")])
    assert [record.message for record in caplog.records] == [
        "a scheduler extender fails",
        "a scheduler extender answers again",
    ]


@pytest.mark.anyio
async def test_a_slow_extender_is_given_up_after_its_timeout():
    async with an_extender(http_timeout=timedelta(milliseconds=50)) as (extender, server):
        server.hangs = True
        with pytest.raises(ExtenderError):
            await extender.prioritize(a_pod(), [a_node("a")])


@pytest.mark.anyio
async def test_victims_travel_as_uids_and_come_back_as_pods():
    low, lower = a_pod("low"), a_pod("lower")
    node = a_node("n", low, lower)
    candidate = Candidate(node="n", victims=node.pods, violations=1)
    async with an_extender(node_cache_capable=True) as (extender, server):
        server.answer = {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "uid-lower"}], "NumPDBViolations": 0}}}
        found = await extender.preempt(a_pod("new"), [candidate], Snapshot(nodes={"n": node}))
        assert server.seen[0][1] == {
            "Pod": a_pod("new"),
            "NodeNameToVictims": None,
            "NodeNameToMetaVictims": {
                "n": {"Pods": [{"UID": "uid-low"}, {"UID": "uid-lower"}], "NumPDBViolations": 1}
            },
        }
        assert found == [Candidate(node="n", victims=node.pods[1:], violations=0)]
        server.answer = {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "nobody"}]}}}
        with pytest.raises(ExtenderError, match="nobody"):
            await extender.preempt(a_pod("new"), [candidate], Snapshot(nodes={"n": node}))


@pytest.mark.anyio
async def test_an_extender_that_binds_is_told_pod_and_node():
    async with an_extender() as (extender, server):
        await extender.bind(namespace="lab", name="p", uid="u", node="n")
        server.answer = {"Error": "taken"}
        with pytest.raises(ExtenderError, match="taken"):
            await extender.bind(namespace="lab", name="p", uid="u", node="n")
    assert server.seen[0] == (
        "/x/bind",
        {"PodName": "p", "PodNamespace": "lab", "PodUID": "u", "Node": "n"},
    )


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        (a_pod(requests={"nvidia.com/gpu": 1}), True),
        (a_pod(limits={"nvidia.com/gpu": 1}), True),
        (a_pod(limits={"cpu": 1}), False),
    ],
)
def test_an_extender_with_resources_of_its_own_hears_only_of_pods_that_ask_for_them(pod, want):
    managed = (ManagedResource("nvidia.com/gpu"),)
    assert Extender(ExtenderConfig(url_prefix="http://x", managed_resources=managed)).is_interested(pod) is want
    assert Extender(ExtenderConfig(url_prefix="http://x")).is_interested(pod)


CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "extenders": [
        {
            "urlPrefix": "http://127.0.0.1:9/scheduler",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "weight": 7,
            "httpTimeout": "1m0.5s",
            "nodeCacheCapable": True,
            "managedResources": [{"name": "example.com/x", "ignoredByScheduler": True}],
            "ignorable": True,
        }
    ],
}


def test_a_scheduler_configuration_gives_its_extenders(tmp_path):
    want = ExtenderConfig(
        url_prefix="http://127.0.0.1:9/scheduler",
        filter_verb="filter",
        prioritize_verb="prioritize",
        weight=7,
        http_timeout=timedelta(seconds=60.5),
        node_cache_capable=True,
        managed_resources=(ManagedResource("example.com/x", True),),
        ignorable=True,
    )
    assert parse_extenders(CONFIGURATION) == (want,)
    (tmp_path / "scheduler.yaml").write_text(json.dumps(CONFIGURATION))
    assert load_extenders(tmp_path / "scheduler.yaml") == (want,)
    assert parse_extenders(CONFIGURATION | {"extenders": None}) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"urlPrefix": "ftp://x"}, "invalid extenders[0].urlPrefix 'ftp://x': use an http:// or https:// URL"),
        ({"weight": 0}, "invalid extenders[0].weight 0: use a positive integer"),
        ({"weight": True}, "invalid extenders[0].weight True: use a positive integer"),
        ({"httpTimeout": "5 minutes"}, "extenders[0].httpTimeout: invalid duration '5 minutes'"),
        ({"prioritiseVerb": "x"}, 'unknown field "extenders[0].prioritiseVerb"'),
        ({"tlsConfig": {"caData": "%"}}, "invalid extenders[0].tlsConfig.caData: use a PEM certificate in base64"),
        ({"tlsConfig": {"caData": 5}}, "invalid extenders[0].tlsConfig.caData: use a PEM certificate in base64"),
        ({"tlsConfig": "x"}, "invalid extenders[0].tlsConfig: use an object"),
        (
            {"managedResources": ["example.com/x"]},
            "invalid extenders[0].managedResources: use a list of objects, each with a name",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_field(change, message):
    with pytest.raises(UsageError) as caught:
        parse_extenders(CONFIGURATION | {"extenders": [CONFIGURATION["extenders"][0] | change]})
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("extenders", "message"), [("x", "invalid extenders: "), (["x"], r"invalid extenders\[0\]")]
)
def test_extenders_are_a_list_of_objects(extenders, message):
    with pytest.raises(UsageError, match=message):
        parse_extenders(CONFIGURATION | {"extenders": extenders})


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="apiVersion"):
        parse_extenders({"apiVersion": "v1", "kind": "Pod"})
    with pytest.raises(UsageError, match="cannot read"):
        load_extenders(tmp_path / "missing.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="is not valid YAML: line 2"):
        load_extenders(tmp_path / "broken.yaml")
    (tmp_path / "broken.yaml").write_text("[1")
    with pytest.raises(UsageError, match="is not valid YAML: (?!line)"):
        load_extenders(tmp_path / "broken.yaml")
    (tmp_path / "broken.yaml").write_text("- a")
    with pytest.raises(UsageError, match="must be a YAML or JSON object"):
        load_extenders(tmp_path / "broken.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1m30s", 90), ("1.5s", 1.5), ("2h", 7200), ("0", 0), ("100us", 0.0001)],
)
def test_durations_are_read_as_go_writes_them(text, seconds):
    assert parse_go_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5d"])
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match="invalid duration"):
        parse_go_duration(text)
