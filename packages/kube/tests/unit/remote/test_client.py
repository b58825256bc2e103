"""How the client speaks and what it makes of answers, against a server that answers as told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.api import ObjList, WatchEvent
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import (
    BadRequest,
    Conflict,
    Expired,
    LeaseLost,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from moorage_kube.remote.client import KubeClient, _decode, _event, _lines, _retry_after
from moorage_kube.remote.config import Connection
from moorage_kube.resources import CONFIGMAPS, NODES, PODS, Obj, Resource
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.testing.waiting import soon

pytestmark = pytest.mark.anyio

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scene:
    """A server whose answers are queued; it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: list[Handler] = []
        self.url = ""

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(body=json.dumps(body).encode(), status=status, headers=names)

        self.answers.append(handler)

    def stream(self, *chunks: bytes, broken: bool = False) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            if broken and request.transport is not None:
                request.transport.abort()
            return response

        self.answers.append(handler)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(
            {
                "method": request.method,
                "path": request.path,
                "query": dict(request.query),
                "headers": request.headers,
                "body": json.loads(text) if (text := await request.text()) else None,
            }
        )
        return await self.answers.pop(0)(request)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{tail:.*}", scene.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scene.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield scene
    await runner.cleanup()


@contextlib.asynccontextmanager
async def client_of(scene: Scene, *, clock: Clock = SYSTEM, **more: Any) -> AsyncIterator[KubeClient]:
    async with KubeClient(Connection(server=scene.url, token="t", **more), clock=clock) as client:
        yield client


def status(code: int, reason: str, message: str = "no") -> Obj:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


# --- requests


async def test_a_request_says_who_asks_and_for_whom(scene: Scene) -> None:
    scene.answer({"metadata": {}})
    async with client_of(scene) as client:
        await client.as_user("bob", ["red", "blue"]).get(PODS, "p", "lab")
    asked = scene.asked[0]
    assert (asked["method"], asked["path"]) == ("GET", "/api/v1/namespaces/lab/pods/p")
    assert asked["headers"]["Authorization"] == "Bearer t"
    assert asked["headers"]["Impersonate-User"] == "bob"
    assert asked["headers"].getall("Impersonate-Group") == ["red", "blue"]


async def test_acting_for_another_leaves_the_first_as_it_was(scene: Scene) -> None:
    scene.answer({})
    async with client_of(scene) as client:
        client.as_user("bob")
        await client.get(NODES, "n")
    assert "Impersonate-User" not in scene.asked[0]["headers"]


async def test_each_patch_has_its_content_type(scene: Scene) -> None:
    kinds = {
        "merge": "application/merge-patch+json",
        "json": "application/json-patch+json",
        "strategic": "application/strategic-merge-patch+json",
        "apply": "application/apply-patch+yaml",
    }
    async with client_of(scene) as client:
        for kind in kinds:
            scene.answer({})
            await client.patch(NODES, "n", {}, kind=kind, subresource="status", force=kind == "apply")  # type: ignore[arg-type]
    assert [asked["headers"]["Content-Type"] for asked in scene.asked] == list(kinds.values())
    assert {asked["path"] for asked in scene.asked} == {"/api/v1/nodes/n/status"}
    assert scene.asked[-1]["query"] == {"fieldManager": "moorage", "force": "true"}


async def test_writes_are_marked_and_told_before_they_are_sent(scene: Scene) -> None:
    writes: list[tuple[str, str]] = []
    pod = {"metadata": {"name": "p", "namespace": "lab"}}
    async with KubeClient(Connection(server=scene.url, token="t"), field_manager="moor") as first:
        client = first.as_user("ada")
        client.writing = lambda method, path: writes.append((method, path))
        for _ in range(6):
            scene.answer({})
        await first.create(PODS, pod, dry_run=True)
        await first.update(PODS, pod)
        await first.patch(NODES, "n", {})
        await client.create(PODS, pod)
        await client.delete(PODS, "p", "lab")
        await client.create_subresource(PODS, "p", "eviction", {}, "lab")
    assert [asked["query"] for asked in scene.asked] == [
        {"fieldManager": "moor", "dryRun": "All"},
        {"fieldManager": "moor"},
        {"fieldManager": "moor"},
        {},  # who acts for another does not speak for the program of the other
        {},
        {},
    ]
    path = "/api/v1/namespaces/lab/pods/p"
    assert writes == [("POST", path), ("DELETE", path), ("POST", f"{path}/eviction")]


async def test_a_guard_keeps_writes_back_at_each_try_and_reads_pass(scene: Scene) -> None:
    asked: list[int] = []

    def guard() -> None:
        asked.append(len(scene.asked))
        if len(asked) > 2:
            raise LeaseLost("no longer ours")

    pod = {"metadata": {"name": "p", "namespace": "lab"}}
    async with client_of(scene) as client:
        ours = client.guarded(guard)
        scene.answer({})
        await ours.get(PODS, "p", "lab")
        scene.answer(status(503, "Unavailable"), 503, Retry_After="0")
        with pytest.raises(LeaseLost):
            await ours.update(PODS, pod)  # the second try is kept back
        for write in (
            ours.create(PODS, pod),
            ours.patch(PODS, "p", {}, "lab"),
            ours.delete(PODS, "p", "lab"),
            ours.create_subresource(PODS, "p", "eviction", {}, "lab"),
            ours.raw("POST", "/x", body={}),
            ours.as_user("bob").create(PODS, pod),
            ours.with_token("hers").create(PODS, pod),
        ):
            with pytest.raises(LeaseLost):
                await write
        scene.answer({})
        await client.create(PODS, pod)  # the client itself has no guard
    assert [request["method"] for request in scene.asked] == ["GET", "PUT", "POST"]
    assert asked == [1, 1, *[2] * 8]  # before the head and before the body


async def test_a_write_that_waited_for_its_connection_asks_the_guard_when_it_has_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be held while it connects, and wakes with a lease that ran out."""
    is_held = False

    def guard() -> None:
        if is_held:
            raise LeaseLost("no longer ours")

    async with client_of(scene) as client:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def held(*args: Any, **options: Any) -> Any:
            nonlocal is_held
            made = await connect(*args, **options)
            is_held = True
            return made

        monkeypatch.setattr(loop, "create_connection", held)
        with pytest.raises(LeaseLost):
            await client.guarded(guard).delete(PODS, "p", "lab")
    assert scene.asked == []


async def test_a_guard_is_asked_again_right_before_the_body_with_which_the_head_is_sent(scene: Scene) -> None:
    answers = iter((None, LeaseLost("no longer ours")))

    def guard() -> None:
        error = next(answers)
        if error is not None:
            raise error

    async with client_of(scene) as client:
        with pytest.raises(LeaseLost):
            await client.guarded(guard).delete(PODS, "p", "lab")
    assert scene.asked == []


async def test_a_deletion_carries_its_options(scene: Scene) -> None:
    scene.answer({})
    async with client_of(scene) as client:
        await client.delete(PODS, "p", "lab", grace_period_seconds=0, uid="u", propagation="Foreground")
    assert scene.asked[0]["body"] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Foreground",
    }


async def test_one_object_without_its_namespace_is_refused_before_asking(scene: Scene) -> None:
    async with client_of(scene) as client:
        with pytest.raises(BadRequest, match="pods are namespaced"):
            await client.get(PODS, "p")
    assert scene.asked == []


async def test_names_are_quoted(scene: Scene) -> None:
    scene.answer({})
    async with client_of(scene) as client:
        await client.get(
            Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False), "a/b c"
        )
    assert scene.asked[0]["path"] == "/apis/rbac.authorization.k8s.io/v1/clusterroles/a/b c"


async def test_log_options_are_passed_on_and_pieces_come_as_they_are(scene: Scene) -> None:
    scene.stream(b"one\ntw", b"o\n")
    async with client_of(scene) as client:
        stream = client.logs(
            "p", "lab", container="c", follow=True, tail_lines=0, since_seconds=9, timestamps=True, previous=True
        )
        assert b"".join([chunk async for chunk in stream]) == b"one\ntwo\n"
    assert scene.asked[0]["query"] == {
        "container": "c",
        "follow": "true",
        "tailLines": "0",
        "sinceSeconds": "9",
        "timestamps": "true",
        "previous": "true",
    }


# --- lists


async def test_every_page_of_a_list_is_read(scene: Scene) -> None:
    scene.answer(
        {"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]}
    )
    scene.answer({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]})
    async with client_of(scene) as client:
        pods = await client.list(PODS, label_selector="x", field_selector="y=z")
    what = {"apiVersion": "v1", "kind": "Pod"}
    assert pods == ObjList([{"metadata": {"name": "a"}} | what, {"metadata": {"name": "b"}} | what], "7")
    first, second = (asked["query"] for asked in scene.asked)
    assert first == {"limit": "500", "labelSelector": "x", "fieldSelector": "y=z"}
    assert second == first | {"continue": "more"}


async def test_a_list_whose_pages_expire_is_read_at_once(scene: Scene) -> None:
    scene.answer({"metadata": {"resourceVersion": "7", "continue": "old"}, "items": [{"metadata": {"name": "a"}}]})
    scene.answer(status(410, "Expired"), 410)
    scene.answer({"metadata": {"resourceVersion": "9"}, "items": None})
    async with client_of(scene) as client:
        assert await client.list(PODS, "lab") == ObjList([], "9")
    assert scene.asked[-1]["query"] == {}


async def test_a_page_that_was_asked_for_is_given_with_its_token(scene: Scene) -> None:
    scene.answer({"metadata": {"resourceVersion": "7", "continue": "next"}, "items": []})
    async with client_of(scene) as client:
        assert await client.list(PODS, "lab", limit=2, cont="this") == ObjList([], "7", "next")
    assert scene.asked[0]["query"] == {"limit": "2", "continue": "this"}


# --- watches


def line(kind: str, obj: Obj) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


async def watch(client: KubeClient) -> list[WatchEvent]:
    return [event async for event in client.watch(PODS, "lab", resource_version="5")]


async def test_a_watch_gives_its_events_and_ends_with_the_stream(scene: Scene) -> None:
    first, second = line("ADDED", {"a": 1}), line("BOOKMARK", {"b": "x" * 300_000})
    scene.stream(first[:5], first[5:] + second[:100_000], second[100_000:], b'{"type": "ADDED", "obj')
    async with client_of(scene) as client:
        found = await watch(client)
    assert found == [WatchEvent("ADDED", {"a": 1}), WatchEvent("BOOKMARK", {"b": "x" * 300_000})]
    query = scene.asked[0]["query"]
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"watch": "true", "resourceVersion": "5", "allowWatchBookmarks": "true"}


async def test_a_version_too_old_is_told_in_the_stream_or_before_it(scene: Scene) -> None:
    scene.stream(line("ADDED", {}), line("ERROR", status(410, "Expired", "too old")))
    scene.answer(status(410, "Expired", "too old"), 410)
    async with client_of(scene) as client:
        for _ in range(2):
            with pytest.raises(Expired, match="too old"):
                await watch(client)


async def test_other_errors_in_a_stream_keep_their_kind(scene: Scene) -> None:
    scene.stream(line("ERROR", status(500, "InternalError", "etcd is away")))
    async with client_of(scene) as client:
        with pytest.raises(ServerError, match="etcd is away"):
            await watch(client)


async def test_a_connection_that_breaks_is_a_server_error_without_status(scene: Scene) -> None:
    scene.stream(line("ADDED", {"a": 1}), broken=True)
    async with client_of(scene) as client:
        with pytest.raises(ServerError) as caught:
            await watch(client)
    assert caught.value.status == 0


async def test_an_answer_that_was_an_error_is_freed_at_once(scene: Scene) -> None:
    gc.collect()
    gc.disable()
    try:
        async with client_of(scene) as client:
            for _ in range(20):
                scene.answer(status(404, "NotFound"), 404)
                with pytest.raises(NotFound):
                    await client.get(PODS, "p", "lab")
            answers = sum(isinstance(each, aiohttp.ClientResponse) for each in gc.get_objects())
    finally:
        gc.enable()
    assert answers < 10


async def test_leaving_a_watch_closes_it(scene: Scene) -> None:
    left = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(line("ADDED", {"a": 1}))
                await asyncio.sleep(0)
        except ConnectionError:
            left.set()
            raise
        return response

    scene.answers.append(endless)
    async with client_of(scene) as client:
        async with contextlib.aclosing(client.watch(PODS, resource_version="1")) as events:  # type: ignore[type-var]
            async for _ in events:
                break
        await asyncio.wait_for(left.wait(), 120)


@given(lines=st.lists(st.binary(min_size=1).filter(lambda one: b"\n" not in one and one.strip())), cuts=st.data())
def test_lines_come_whole_however_the_stream_is_cut(lines: list[bytes], cuts: st.DataObject) -> None:
    text = b"".join(one + b"\n" for one in lines) + b"half a line"
    at = sorted(cuts.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[first:last] for first, last in zip([0, *at], [*at, len(text)], strict=True)]

    async def read() -> list[bytes]:
        async def stream() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return [one async for one in _lines(stream())]

    assert asyncio.run(read()) == lines


# --- errors


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (429, "TooManyRequests", TooManyRequests),
        (503, "ServiceUnavailable", ServerError),
    ],
)
async def test_a_status_becomes_its_error(scene: Scene, code: int, reason: str, kind: type[Exception]) -> None:
    scene.answer(status(code, reason, "because"), code)
    async with client_of(scene) as client:
        with pytest.raises(kind, match="because"):
            await client.get(NODES, "n")


async def test_an_answer_that_is_no_status_is_told_with_its_text(scene: Scene) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text="Bad gateway of the proxy", status=502)

    scene.answers.append(handler)
    async with client_of(scene) as client:
        with pytest.raises(ServerError, match="HTTP 502: Bad gateway of the proxy"):
            await client.get(NODES, "n")


async def test_an_answer_that_is_no_json_is_a_server_error(scene: Scene) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>", status=200)

    scene.answers.append(handler)
    async with client_of(scene) as client:
        with pytest.raises(ServerError, match="not JSON"):
            await client.get(NODES, "n")


async def test_nobody_listening_is_told_with_the_address_and_what_to_do() -> None:
    connection = Connection(server="http://127.0.0.1:1", context="lab")
    async with KubeClient(connection) as client:
        with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1 \(context 'lab'\) gave no answer") as caught:
            await client.version()
    assert caught.value.status == 0
    assert caught.value.hint is not None
    assert "moor up" in caught.value.hint


async def test_a_redirect_is_not_followed_with_our_token(scene: Scene) -> None:
    scene.answer({}, 302, Location="http://evil.example/")
    async with client_of(scene) as client:
        with pytest.raises(Exception, match="302"):
            await client.get(NODES, "n")
    assert len(scene.asked) == 1


# --- busy servers


async def test_a_busy_server_is_asked_again_when_it_says(scene: Scene) -> None:
    clock = FakeClock()
    for code in (429, 503):
        scene.answer(status(code, "Busy"), code, Retry_After="3")
    scene.answer({"ok": True})
    async with client_of(scene, clock=clock) as client:
        getting = asyncio.create_task(client.get(NODES, "n"))
        await soon("the answer", getting.done, tick=lambda: clock.advance(3))
        assert await getting == {"ok": True}
    assert len(scene.asked) == 3


async def test_patience_with_a_busy_server_ends(scene: Scene) -> None:
    for _ in range(10):
        scene.answer(status(429, "TooManyRequests"), 429, Retry_After="0")
    async with client_of(scene) as client:
        with pytest.raises(TooManyRequests):
            await client.get(NODES, "n")
    assert len(scene.asked) == 5


async def test_what_must_not_be_repeated_is_not(scene: Scene) -> None:
    scene.answer(status(429, "TooManyRequests", "budget"), 429, Retry_After="0")
    async with client_of(scene) as client:
        with pytest.raises(TooManyRequests, match="budget"):
            await client.create_subresource(PODS, "p", "eviction", {}, "lab")
    assert len(scene.asked) == 1


async def test_a_refused_token_file_is_read_again_once(scene: Scene, tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("old")

    async def refuse(_: web.Request) -> web.StreamResponse:
        path.write_text("new")
        return web.json_response(status(401, "Unauthorized"), status=401)

    scene.answers.append(refuse)
    scene.answer({"ok": True})
    scene.answer(status(401, "Unauthorized"), 401)
    scene.answer(status(401, "Unauthorized"), 401)
    async with client_of(scene, token_file=path) as client:
        assert await client.get(NODES, "n") == {"ok": True}
        with pytest.raises(Unauthorized):
            await client.get(NODES, "n")
    assert [asked["headers"]["Authorization"] for asked in scene.asked[:2]] == ["Bearer old", "Bearer new"]
    assert len(scene.asked) == 4


@pytest.mark.parametrize(
    ("header", "want"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        ("soon", None),
        ("Sat, 21 Nov 2026 12:00:09 GMT", 9.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
    ],
)
def test_both_forms_of_retry_after_are_read(header: str | None, want: float | None) -> None:
    assert _retry_after(header, FakeClock(NOON)) == want


# --- discovery


async def test_discovery_reads_the_aggregated_form(scene: Scene) -> None:
    def group(name: str, plural: str, kind: str, scope: str) -> Obj:
        resource = {"resource": plural, "responseKind": {"kind": kind}, "scope": scope}
        return {"metadata": {"name": name}, "versions": [{"version": "v1", "resources": [resource]}]}

    def document(*groups: Obj) -> Obj:
        return {"kind": "APIGroupDiscoveryList", "items": list(groups)}

    scene.answer(document(group("", "pods", "Pod", "Namespaced")))
    scene.answer(document(group("x.dev", "nodes", "Node", "Cluster"), {"metadata": {"name": "empty"}}))
    async with client_of(scene) as client:
        assert await client.discover() == [PODS, Resource("x.dev", "v1", "nodes", "Node", False)]


async def test_discovery_falls_back_to_one_request_a_group(scene: Scene) -> None:
    scene.answer({"kind": "APIVersions", "versions": ["v1"]})
    pod = {"name": "pods", "kind": "Pod", "namespaced": True}
    scene.answer({"resources": [pod, {"name": "pods/log", "kind": "Pod", "namespaced": True}]})
    versions = [{"groupVersion": "a.dev/v2"}, {"groupVersion": "away.dev/v1"}]
    scene.answer({"kind": "APIGroupList", "groups": [{"preferredVersion": version} for version in versions]})
    scene.answer({"resources": [{"name": "things", "kind": "Thing", "namespaced": False}]})
    scene.answer(status(503, "ServiceUnavailable"), 503)
    async with client_of(scene) as client:
        assert await client.discover() == [PODS, Resource("a.dev", "v2", "things", "Thing", False)]


async def test_configmaps_are_created_in_the_namespace_of_the_object(scene: Scene) -> None:
    scene.answer({})
    async with client_of(scene) as client:
        await client.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "lab"}}, dry_run=True)
    assert scene.asked[0]["path"] == "/api/v1/namespaces/lab/configmaps"
    assert scene.asked[0]["query"] == {"dryRun": "All"}


async def test_warnings_that_come_with_a_write_are_heard(scene: Scene) -> None:
    heard: list[str] = []
    connection = Connection(server=scene.url, token="t")
    async with KubeClient(connection, warned=heard.append) as api:
        scene.answer({"metadata": {"name": "x"}}, Warning='299 - "spec.x: says \\"no\\" limit", 299 - "second"')
        await api.create(CONFIGMAPS, {"metadata": {"name": "x"}}, "lab")
        scene.answer({"metadata": {"name": "x"}}, Warning='299 - "deprecated"')
        await api.get(CONFIGMAPS, "x", "lab")
    assert heard == ['spec.x: says "no" limit', "second"]


async def test_an_object_that_is_too_deep_does_not_keep_a_list_from_being_read():
    deep = b"[" * 20_000 + b"]" * 20_000
    answer = (
        b'{"kind":"PodList","items":[{"metadata":{"name":"a"},"deep":' + deep + b'},{"metadata":{"name":"b"}}]}'
    )
    assert [item["metadata"]["name"] for item in _decode(answer)["items"]] == ["a", "b"]
    assert _event(b'{"type":"ADDED","object":{"metadata":{"name":"a"},"deep":' + deep + b"}}").type == "ADDED"
    with pytest.raises(ServerError, match="not JSON"):
        _decode(b"[" * 20_000)
