"""`moorage.Client` and `moorage.AsyncClient` against a small server of their own on loopback."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import moorage
from moorage.api.gpus import Gpus
from moorage.api.reading import read
from moorage.client.errors import decode_error
from moorage.client.sites import Given, find_site
from moorage.sdk import aio, sync
from moorage.sdk.local import loop
from moorage_kube.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    NotReady,
    ServerError,
    TooManyRequests,
    UsageError,
)
from moorage_kube.serving import serve
from moorage_kube.testing.clock import QuickClock
from moorage_kube.testing.ports import dead_port


class Fake:
    """Requests, and answers (status, headers, body) by "METHOD path"; the last answer is repeated."""

    def __init__(self):
        self.asked = []
        self.answers = {}
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/api/v1/containers/c1/logs", self._logs),
                Route("/api/v1/jobs/lab/train/logs", self._logs),
                WebSocketRoute("/api/v1/containers/c1/exec", self._exec),
                Route("/{path:path}", self._any, methods=["GET", "POST", "PATCH", "DELETE"]),
            ]
        )

    def put(self, where, body, status=200, headers=None):
        self.answers.setdefault(where, []).append((status, headers or {}, body))

    async def _any(self, request: Request) -> Response:
        data = await request.body()
        self.asked.append((f"{request.method} {request.url.path}", request, json.loads(data) if data else None))
        answers = self.answers[f"{request.method} {request.url.path}"]
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        return Response(status_code=204) if body is None else JSONResponse(body, status, headers)

    async def _logs(self, _request: Request) -> Response:
        async def parts():
            for part in (b"one\ntw", b"o\n", b"three"):
                yield part

        return StreamingResponse(parts())

    async def _exec(self, websocket) -> None:
        await websocket.accept("v5.channel.k8s.io")
        typed = b""
        while (data := await websocket.receive_bytes())[0] != 255:
            typed += data[1:]
        await websocket.send_bytes(b"\x01" + typed + "|".join(websocket.query_params.getlist("command")).encode())
        await websocket.send_bytes(b"\x02wrong")
        await websocket.send_bytes(b"\x03" + json.dumps({"exitCode": 3}).encode())
        await websocket.close()


@asynccontextmanager
async def serving(fake):
    stop = asyncio.Event()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    fake.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    task = asyncio.create_task(serve(fake.app, sock, stop=stop))
    try:
        yield fake
    finally:
        stop.set()
        await task


@pytest.fixture
def fake():
    """Served by the SDK's own loop, so that a test may be sync."""
    made = Fake()
    context = serving(made)
    loop().run(context.__aenter__())
    yield made
    loop().run(context.__aexit__(None, None, None))


@pytest.fixture
def client(fake):
    with moorage.Client(fake.url, "secret", namespace="lab") as made:
        yield made


def test_a_listing_goes_through_all_pages(fake, client):
    where = "GET /api/v1/workspaces"
    fake.put(where, {"workspaces": [{"namespace": "lab", "name": "a", "node": None, "novel": 1}], "continue": "x"})
    fake.put(where, {"workspaces": [{"namespace": "lab", "name": "b", "createdBy": "x"}], "continue": None})
    assert [(workspace.name, workspace.node) for workspace in client.workspaces.list()] == [("a", ""), ("b", "")]
    assert [request[1].query_params.get("continue") for request in fake.asked] == [None, "x"]
    assert fake.asked[0][1].query_params["namespace"] == "lab"
    assert fake.asked[0][1].headers["authorization"] == "Bearer secret"


def test_a_workspace_is_created_from_its_options(fake, client):
    fake.put("POST /api/v1/workspaces", {"namespace": "lab", "name": "w", "created": "2026-01-31T08:00:00Z"}, 201)
    made = client.workspaces.create("w", cpu=2, volumes=["data:/data:ro"], env={"A": "1"}, key="k1")
    assert made.created.hour == 8
    _, request, body = fake.asked[0]
    assert request.headers["idempotency-key"] == "k1"
    assert body["spec"] == {
        "type": "jupyterlab",
        "resources": {"cpu": 2},
        "env": [{"name": "A", "value": "1"}],
        "volumes": [{"claimName": "data", "mountPath": "/data", "readOnly": True}],
    }
    with pytest.raises(UsageError):
        client.workspaces.create("w", volumes=["data"])


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(409, "exists", AlreadyExists), (409, "in_use", Conflict), (422, "invalid", Invalid)],
)
def test_a_refusal_is_an_error_with_all_fields_of_the_answer(fake, client, status, code, kind):
    fake.put("DELETE /api/v1/volumes/lab/v", {"code": code, "message": "no", "hint": "do", "field": "f"}, status)
    with pytest.raises(kind) as caught:
        client.volumes.delete("v")
    error = caught.value
    assert (error.code, error.message, error.hint, error.field, error.status) == (code, "no", "do", "f", status)


def test_containers_in_dockers_words(fake, client):
    fake.put("POST /api/v1/containers", {"Id": "c1", "Warnings": ["w"], "Name": "job"}, 201)
    shown = {"Id": "c1", "Name": "/job", "Path": "python", "Args": ["x.py"]}
    shown |= {"Config": {"Image": "py", "Labels": None}}
    state = {"Status": "exited", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"}
    fake.put("GET /api/v1/containers/c1/json", shown | {"State": state})
    made = client.containers.create("py", ["python", "x.py"], name="job", cpu=0.5, memory="1Gi", gpus=1)
    assert (made.name, made.command, made.exit_code, made.finished) == ("job", "python x.py", 0, None)
    assert made.warnings == ("w",)
    host = fake.asked[0][2]["HostConfig"]
    assert (host["NanoCpus"], host["Memory"]) == (500_000_000, 2**30)
    assert host["DeviceRequests"][0]["Count"] == 1
    assert fake.asked[0][1].headers["x-moorage-namespace"] == "lab"
    assert list(client.containers.logs("c1", follow=True)) == ["one", "two", "three"]
    done = client.containers.exec("c1", ["cat", "-"], stdin=b"typed ")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"typed cat|-", b"wrong")
    fake.put("POST /api/v1/containers/c1/wait", {"StatusCode": 7, "Error": None})
    assert client.containers.wait("c1") == 7


def test_a_run_is_asked_for_followed_waited_for_and_cancelled(fake, client):
    train = {"namespace": "lab", "name": "train", "created": "2026-01-31T08:00:00Z"}
    fake.put("POST /api/v1/jobs", train | {"state": "Waiting", "notes": ["no memory given"]}, 201)
    options = {"image": "py", "gpus": 1, "gpu_type": "a100", "volumes": ("data:/d:ro",), "env": {"A": "1"}}
    made = client.jobs.run(["python", "train.py"], key="k", **options)
    assert (made.name, made.has_ended, made.notes) == ("train", False, ("no memory given",))
    _, request, body = fake.asked[0]
    assert request.headers["idempotency-key"] == "k"
    defaults = {"datasets": [], "retries": 0, "hostEnv": False, "dryRun": False}
    assert body == defaults | {
        "command": ["python", "train.py"],
        "namespace": "lab",
        "image": "py",
        "gpus": 1,
        "gpuType": "a100",
        "volumes": ["data:/d:ro"],
        "env": {"A": "1"},
    }
    with pytest.raises(UsageError):
        client.jobs.run("python train.py")
    assert list(client.jobs.logs("train", follow=True)) == ["one", "two", "three"]
    fake.put("DELETE /api/v1/jobs/lab/train", train | {"state": "Cancelled"})
    assert client.jobs.cancel("train").state == "Cancelled"
    fake.put("DELETE /api/v1/jobs/lab/train", None, 204)
    client.jobs.delete("train")
    assert [request[1].query_params["delete"] for request in fake.asked[1:]] == ["false", "true"]
    fake.put("DELETE /api/v1/jobs/lab/train/records", {"pods": 1})
    client.jobs.delete("train", forget=True)
    assert [request[0] for request in fake.asked[-2:]] == [
        "DELETE /api/v1/jobs/lab/train",
        "DELETE /api/v1/jobs/lab/train/records",
    ]


def test_idle_work_is_snoozed_and_runs_are_suspended_and_resumed(fake, client):
    idle = {"kind": "workspace", "namespace": "lab", "name": "w", "state": "snoozed", "snoozes": 1}
    fake.put("POST /api/v1/workspaces/lab/w/snooze", idle | {"snoozedUntil": "2026-01-31T12:00:00Z"})
    snoozed = client.workspaces.snooze("w", time="4h")
    assert (snoozed.state, snoozed.snoozes, snoozed.snoozed_until.hour) == ("snoozed", 1, 12)
    fake.put("POST /api/v1/jobs/other/train/snooze", idle | {"kind": "run", "namespace": "other", "name": "train"})
    assert client.jobs.snooze("train", time="90m", namespace="other").kind == "run"
    assert [body for _, _, body in fake.asked] == [{"time": "4h"}, {"time": "90m"}]
    train = {"namespace": "lab", "name": "train", "created": "2026-01-31T08:00:00Z"}
    fake.put("POST /api/v1/jobs/lab/train/suspend", train | {"state": "Suspended"})
    fake.put("POST /api/v1/jobs/lab/train/resume", train | {"state": "Waiting"})
    assert client.jobs.suspend("train").state == "Suspended"
    assert client.jobs.resume("train").state == "Waiting"


def test_budgets_are_those_of_the_user(fake, client):
    row = {"budget": "month", "name": "ada", "used": "4.00", "limit": "5", "unit": "GPU-hours", "percent": 80,
           "period": "month", "until": "2026-12-01T00:00:00Z", "whenOver": "queue"}  # fmt: skip
    fake.put("GET /api/v1/budgets", {"budgets": [row]})
    (budget,) = client.budgets()
    assert (budget.name, budget.percent, budget.when_over) == ("ada", 80, "queue")
    assert fake.asked[-1][0] == "GET /api/v1/budgets"


def test_runs_are_listed_where_the_client_is_or_everywhere(fake, client):
    fake.put("GET /api/v1/jobs", {"now": "x", "jobs": [{"namespace": "lab", "name": "train", "attempts": 2}]})
    assert [job.name for job in client.jobs.list(state="Waiting")] == ["train"]
    assert [job.attempts for job in client.jobs.list(owner="ada", all_namespaces=True)] == [2]
    assert [dict(request[1].query_params) for request in fake.asked] == [
        {"namespace": "lab", "state": "Waiting"},
        {"owner": "ada"},
    ]


@pytest.mark.anyio
async def test_waiting_for_a_run_ends_with_it_and_with_its_exit_code_or_in_time():
    fake = Fake()
    where, train = "GET /api/v1/jobs/default/train", {"namespace": "default", "name": "train"}
    pods = [{"name": "train-x", "phase": "Failed", "exitCode": 3}]
    async with serving(fake), aio.AsyncClient(fake.url, "secret", clock=QuickClock()) as client:
        fake.put(where, train | {"state": "Running"})
        fake.put(where, train | {"state": "Failed", "exitCode": None})
        fake.put(where, train | {"state": "Failed", "exitCode": 3, "history": [{"number": 1, "pods": pods}]})
        done = await client.jobs.wait("train")
        assert (done.exit_code, done.history[0].pods[0].exit_code) == (3, 3)
        fake.answers.clear()
        fake.put(where, train | {"state": "Cancelled"})
        assert (await client.jobs.wait("train")).exit_code is None
        fake.answers.clear()
        fake.put(where, train | {"state": "Waiting", "reason": "Unschedulable"})
        with pytest.raises(TimeoutError, match="Waiting after 60 s: Unschedulable"):
            await client.jobs.wait("train", timeout=60)


def test_a_reader_that_stops_half_way_lets_the_connection_go(client):
    lines = client.containers.logs("c1")
    assert next(lines) == "one"
    lines.close()


@pytest.mark.anyio
async def test_a_get_and_a_change_with_a_key_are_asked_again_and_other_changes_are_not():
    fake = Fake()
    async with serving(fake):
        async with aio.AsyncClient(fake.url, "secret", clock=QuickClock()) as client:
            away = {"code": "starting", "message": "not yet"}
            fake.put("GET /api/v1/gpus", away, 503)
            fake.put("GET /api/v1/gpus", {"now": "2026-01-31T08:00:00Z", "totals": {"total": 4}})
            assert (await client.gpus()).totals.total == 4
            fake.put("POST /api/v1/volumes", away, 503)
            fake.put("POST /api/v1/volumes", {"namespace": "default", "name": "v"}, 201)
            assert (await client.volumes.create("v", "1Gi")).name == "v"
            posts = [request for where, request, _ in fake.asked if where == "POST /api/v1/volumes"]
            assert len({post.headers["idempotency-key"] for post in posts}) == 1
            fake.put("PATCH /api/v1/volumes/default/v", away, 503)
            with pytest.raises(ServerError):
                await client.volumes.resize("v", "2Gi")
            fake.put("DELETE /api/v1/volumes/default/v", {"code": "too_many_requests"}, 429, {"Retry-After": "1"})
            fake.put("DELETE /api/v1/volumes/default/v", None)
            await client.volumes.delete("v")
            fake.put("GET /api/v1/jobs", {"code": "too_many_requests"}, 429, {"Retry-After": "600"})
            with pytest.raises(TooManyRequests):
                _ = [job async for job in client.jobs.list()]
            assert [request[0] for request in fake.asked].count("PATCH /api/v1/volumes/default/v") == 1


@pytest.mark.anyio
async def test_a_server_that_does_not_answer_is_an_error():
    with dead_port() as port:
        async with aio.AsyncClient(f"http://127.0.0.1:{port}", "secret", clock=QuickClock()) as client:
            with pytest.raises(ServerError, match="does not answer"):
                await client.gpus()


def test_the_sync_client_has_every_verb_of_the_async_one():
    for asynchronous, synchronous in (
        (aio.AsyncClient, sync.Client),
        (aio.AsyncWorkspaces, sync.Workspaces),
        (aio.AsyncVolumes, sync.Volumes),
        (aio.AsyncDatasets, sync.Datasets),
        (aio.AsyncContainers, sync.Containers),
        (aio.AsyncJobs, sync.Jobs),
    ):
        verbs = {
            name for name, member in vars(asynchronous).items() if inspect.isfunction(member) and name[0] != "_"
        }
        assert verbs <= set(vars(synchronous))
        for name in verbs:
            assert inspect.getdoc(getattr(synchronous, name)) == inspect.getdoc(getattr(asynchronous, name))


THERE = {"url": "https://b.example", "token": "t"}


@pytest.fixture
def logged_in(tmp_path, monkeypatch):
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path))
    logins = {"https://a.example": {"url": "https://a.example", "token": "mrs_saved"}}
    (tmp_path / "logins.json").write_text(json.dumps({"current": "https://a.example", "logins": logins}))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "env", "wanted"),
    [
        ({}, {}, ("https://a.example", "mrs_saved")),
        ({"url": "https://a.example/"}, {}, ("https://a.example", "mrs_saved")),
        (THERE, {}, ("https://b.example", "t")),
        ({}, {"MOORAGE_SERVER": "https://c.example", "MOORAGE_TOKEN": "e"}, ("https://c.example", "e")),
        (THERE, {"MOORAGE_SERVER": "https://c.example"}, ("https://b.example", "t")),
    ],
)
async def test_arguments_come_before_the_environment_and_that_before_the_login(logged_in, given, env, wanted):
    site = await find_site(Given(**given), None, env)
    assert await site.address() == (wanted[0], {"Authorization": f"Bearer {wanted[1]}"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"token": "t"}, UsageError),
        ({"url": "https://a.example", "context": "c"}, UsageError),
        ({"url": "a.example", "token": "t"}, UsageError),
        ({"url": "https://nobody.example"}, NotReady),
    ],
)
async def test_invalid_arguments_are_refused(logged_in, given, kind):
    with pytest.raises(kind):
        await find_site(Given(**given), None, {})


def test_a_refusal_that_is_no_json_is_an_error_too():
    error = decode_error(502, b"<html>")
    assert isinstance(error, ServerError)
    assert "502" in error.message


def test_a_null_counts_as_missing():
    nodes = [{"name": "n", "gpus": [{"index": 0, "owner": None}]}]
    gpus = read(Gpus, {"now": "2026-01-31T08:00:00Z", "nodes": nodes})
    assert gpus.nodes[0].gpus[0].owner == ""


def test_importing_moorage_imports_nothing_heavy():
    code = "import sys, moorage; print(sorted(set(sys.modules) & {'aiohttp', 'msgspec', 'click', 'asyncio'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
