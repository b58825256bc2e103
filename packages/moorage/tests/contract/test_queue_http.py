"""The queue over HTTP, asked without a socket: what workers and users see (docs/design/0005-map.md)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json

import pytest

from moorage.decide.maps.leasing import OUTPUT_BYTES, RESULT_BYTES
from moorage.model.mapjob import MAPJOBS
from moorage.queue.manager import Queue
from moorage.queue.store import QUEUE, Store, open_store
from moorage.server.service import ServerService
from moorage.sql.opening import open_database
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import soon
from moorage_local.testing.fakeapi import FakeApi

PAGE = "the-page-token"


class Api(FakeApi):
    """What users do is done as themselves; their rights are asked before."""

    def with_token(self, *_):
        return self


class Site:
    def __init__(self, folder, **more):
        self.clock = FakeClock()
        api = Api(users={"ada-token": "ada", "eve-token": "eve", "boss-token": "boss"})
        self.api = api
        api.readers |= {("ada", "lab"), ("boss", "lab"), ("boss", None)}
        self.service = ServerService(api, usage_db=folder / "usage.db", page_token=PAGE, clock=self.clock, **more)
        self.queue = self.service.queue

    async def ask(self, method, path, body=None, *, token="ada-token", raw=None, gone=None):
        """(status, decoded body). `gone`: an event after which the asker has left."""
        sent = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (b"host", b"localhost"),
                (b"authorization", f"Bearer {token}".encode()),
                (b"content-type", b"application/json"),
            ],
            "server": ("127.0.0.1", 8080),
            "client": ("127.0.0.1", 5000),
        }
        parts = [sent[at : at + 65536] for at in range(0, len(sent), 65536)] or [b""]
        messages = [
            {"type": "http.request", "body": part, "more_body": at < len(parts) - 1}
            for at, part in enumerate(parts)
        ]
        left = gone or asyncio.Event()
        answered = []

        async def receive():
            if messages:
                return messages.pop(0)
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            answered.append(message)

        await self.service.app(scope, receive, send)
        if not answered:
            return None, None
        text = b"".join(one.get("body", b"") for one in answered[1:])
        kind = dict(answered[0]["headers"])[b"content-type"]
        if kind.startswith(b"application/x-ndjson"):
            return answered[0]["status"], [json.loads(line) for line in text.splitlines()]
        return answered[0]["status"], json.loads(text)

    async def make(self, items=0, *, name="m", close=True, **fields):
        """A map with its worker's token."""
        body = {"name": name, "request": name} | fields
        status, made = await self.ask("POST", "/api/v1/maps/lab", body)
        assert status == 201, made
        lines = b"".join(b'{"value":%d}\n' % at for at in range(items))
        query = "close=true" if close else ""
        status, _ = await self.ask("POST", f"/api/v1/maps/lab/{name}/items?first=0&{query}", raw=lines)
        assert status == 200
        return (await self.ask("POST", f"/api/v1/maps/lab/{name}/token"))[1]["token"]

    async def work(self, token, **fields):
        fields = {"session": "w", "held": []} | fields
        return await self.ask("POST", "/api/v1/work", fields, token=token)

    async def until_parked(self, some=1):
        await soon("parked requests", lambda: sum(map(len, self.queue._parked.values())) >= some)


@contextlib.asynccontextmanager
async def a_site(folder, **more):
    made = Site(folder, **more)
    await made.queue.start()
    yield made
    await made.queue.close()
    made.service.usage.close()


@pytest.fixture
async def site(tmp_path):
    async with a_site(tmp_path) as made:
        yield made


def done(item, lease, **fields):
    return {"item": item, "lease": lease, "outcome": "done", "seconds": 0.5, "value": {"n": item}} | fields


@pytest.mark.anyio
async def test_a_worker_takes_items_answers_and_is_told_when_all_is_done(site):
    token = await site.make(2)
    assert await site.work(token, request=1, want=5) == (
        200,
        {"state": "running", "lease": 60.0, "items": [[0, 1, 0]]},
    )
    status, reply = await site.work(token, request=2, want=5, reports=[done(0, 1)])
    assert (status, reply["items"]) == (200, [[1, 1, 1]])
    status, reply = await site.work(token, request=3, reports=[done(1, 1, value=None, path="/out/1")])
    assert (status, reply) == (200, {"state": "finished", "lease": 60.0})
    status, results = await site.ask("GET", "/api/v1/maps/lab/m/results")
    assert [(one["item"], one.get("value"), one.get("path")) for one in results] == [
        (0, {"n": 0}, None),
        (1, None, "/out/1"),
    ]
    status, found = await site.ask("GET", "/api/v1/maps/lab/m", token="ada-token")
    assert (found["state"], found["owner"], found["counts"]["done"], found["secondsLeft"]) == (
        "finished",
        "ada",
        2,
        0.0,
    )


@pytest.mark.anyio
async def test_a_token_is_good_for_its_own_map_only(site):
    first, second = await site.make(1, name="one"), await site.make(1, name="two")
    assert first != second
    await site.work(first, request=1, want=1)
    assert (await site.ask("GET", "/api/v1/maps/lab/one"))[1]["counts"]["leased"] == 1
    assert (await site.ask("GET", "/api/v1/maps/lab/two"))[1]["counts"]["leased"] == 0
    forged = f"{first.split('.')[0]}.{second.split('.')[1]}"
    for wrong in (forged, "", PAGE, "ada-token", first + "0"):
        assert (await site.work(wrong, request=1))[0] == 401
    assert (await site.ask("GET", "/api/v1/maps/lab/one", token=first))[0] == 401


@pytest.mark.anyio
async def test_a_map_is_its_owners_and_theirs_whom_rbac_allows(site):
    await site.make(1)
    assert (await site.ask("GET", "/api/v1/maps/lab/m", token="boss-token"))[0] == 200
    assert (await site.ask("POST", "/api/v1/maps/lab", {"name": "x", "request": "x"}, token="eve-token"))[0] == 403
    assert (await site.ask("GET", "/api/v1/maps/lab/m/results", token=PAGE))[0] == 403
    assert (await site.ask("PUT", "/api/v1/limits/mysql", {"capacity": 3}))[0] == 403
    assert (await site.ask("PUT", "/api/v1/limits/mysql", {"capacity": 3}, token="boss-token"))[0] == 200
    for method, path in [
        ("GET", ""),
        ("GET", "/items"),
        ("GET", "/results"),
        ("POST", "/retry"),
        ("POST", "/token"),
        ("DELETE", ""),
    ]:
        status, problem = await site.ask(method, f"/api/v1/maps/lab/m{path}", token="eve-token")
        assert (status, problem["code"]) == (403, "forbidden")
    assert (await site.ask("GET", "/api/v1/maps", token="eve-token"))[1] == {"maps": []}
    assert [one["name"] for one in (await site.ask("GET", "/api/v1/maps/lab", token="ada-token"))[1]["maps"]] == [
        "m"
    ]


@pytest.mark.anyio
async def test_who_left_the_team_neither_reads_nor_changes_nor_feeds_the_map_they_made(site):
    await site.make(3)
    site.api.readers.discard(("ada", "lab"))
    site.clock.advance(61)  # answers of reviews are kept for a minute
    asked = [
        ("GET", "", None),
        ("PATCH", "", {"state": "paused"}),
        ("GET", "/items", None),
        ("GET", "/items/0", None),
        ("POST", "/items?first=3", {"value": 1}),
        ("GET", "/results", None),
        ("GET", "/output", None),
        ("POST", "/retry", None),
        ("POST", "/token", None),
        ("DELETE", "", None),
    ]
    for method, path, body in asked:
        status, said = await site.ask(method, f"/api/v1/maps/lab/m{path}", body)
        assert (status, said["code"]) == (403, "forbidden"), (method, path)
    again = {"name": "m", "request": "m"}  # the answer to a request of before is not to be had either
    assert (await site.ask("POST", "/api/v1/maps/lab", again))[0] == 403
    for path in ("/api/v1/maps", "/api/v1/maps/lab"):
        assert await site.ask("GET", path) == (200, {"maps": []})
    assert (await site.ask("GET", "/api/v1/maps/lab/m", token="boss-token"))[1]["counts"]["total"] == 3


@pytest.mark.anyio
async def test_what_a_map_prints_is_followed_no_longer_than_the_asker_is_in_the_team(site):
    token = await site.make(3)
    entry = {"item": 0, "lease": 1, "at": 5, "output": base64.b64encode(b"x").decode()}
    printed = {"session": "w", "pod": "p", "entries": [entry]}
    assert (await site.ask("POST", "/api/v1/work/output", printed, token=token))[0] == 200
    following = asyncio.create_task(site.ask("GET", "/api/v1/maps/lab/m/output?follow=true&after=0"))
    outputs = site.service.outputs
    await soon("the follower", lambda: outputs._news)
    site.api.readers.discard(("ada", "lab"))
    site.clock.advance(61)
    assert (await site.ask("POST", "/api/v1/work/output", printed, token=token))[0] == 200
    async with asyncio.timeout(120):
        status, lines = await following
    assert (status, [line["id"] for line in lines]) == (200, [1])


@pytest.mark.anyio
async def test_anothers_request_word_does_not_give_their_map(site):
    await site.make(1)
    status, said = await site.ask("POST", "/api/v1/maps/lab", {"name": "m", "request": "m"}, token="boss-token")
    assert (status, said["code"]) == (409, "exists")


@pytest.mark.anyio
async def test_an_idle_worker_is_held_until_there_are_items(site):
    token = await site.make(0, close=False)
    waiting = asyncio.create_task(site.work(token, request=1, want=1, wait=30))
    await site.until_parked()
    await site.ask("POST", "/api/v1/maps/lab/m/items", raw=b'{"value": "late"}\n')
    assert (await waiting)[1]["items"] == [[0, 1, "late"]]


@pytest.mark.anyio
async def test_idle_workers_are_told_at_once_when_the_last_item_is_done(site):
    token = await site.make(1)
    await site.work(token, request=1, want=1)
    idle = [asyncio.create_task(site.work(token, session=f"i{at}", request=1, want=1, wait=30)) for at in range(3)]
    await site.until_parked(3)
    await site.work(token, request=2, reports=[done(0, 1)])
    assert {(await one)[1]["state"] for one in idle} == {"finished"}


@pytest.mark.anyio
async def test_a_worker_that_left_while_held_is_given_nothing(site):
    token = await site.make(0, close=False)
    gone = asyncio.Event()
    body = {"session": "gone", "request": 1, "held": [], "want": 1, "wait": 30}
    left = asyncio.create_task(site.ask("POST", "/api/v1/work", body, token=token, gone=gone))
    await site.until_parked()
    gone.set()
    assert await left == (None, None)
    await site.ask("POST", "/api/v1/maps/lab/m/items", raw=b'{"value": 1}\n')
    assert (await site.work(token, session="here", request=1, want=1))[1]["items"] == [[0, 1, 1]]


@pytest.mark.anyio
async def test_a_token_that_comes_free_goes_to_one_who_waits(site):
    token = await site.make(2, limits={"mysql": {"tokens": 1, "capacity": 1}})
    await site.work(token, request=1, want=1)
    waiting = asyncio.create_task(site.work(token, session="next", request=1, want=1, wait=30))
    await site.until_parked()
    await site.work(token, request=2, reports=[done(0, 1)])
    assert (await waiting)[1]["items"] == [[1, 1, 1]]
    assert (await site.ask("GET", "/api/v1/limits"))[1] == {
        "limits": [{"name": "mysql", "capacity": 1, "held": 1}]
    }


@pytest.mark.anyio
async def test_failures_are_listed_with_their_last_output_and_retried(site):
    token = await site.make(2, policy={"retries": 0})
    await site.work(token, request=1, want=1)
    output = bytes(range(256)) * 200
    failure = {
        "item": 0,
        "lease": 1,
        "outcome": "error",
        "message": "ValueError: no such date",
        "exit": 1,
        "output": base64.b64encode(output).decode(),
    }
    await site.work(token, request=2, reports=[failure])
    status, page = await site.ask("GET", "/api/v1/maps/lab/m/items?state=dead")
    assert (page["items"][0]["failure"]["message"], page["next"]) == ("ValueError: no such date", None)
    status, one = await site.ask("GET", "/api/v1/maps/lab/m/items/0")
    assert base64.b64decode(one["output"]) == output[-OUTPUT_BYTES:]
    assert (await site.ask("POST", "/api/v1/maps/lab/m/retry"))[1] == {"retried": 1}
    assert (await site.work(token, request=3, want=1))[1]["items"] == [[0, 2, 0]]


@pytest.mark.anyio
async def test_many_items_come_in_one_stream_and_may_be_sent_again(site):
    lines = b"".join(b'{"value": {"n": %d}, "seconds": 4}\n' % at for at in range(5000))
    await site.make(0, close=False)
    path = "/api/v1/maps/lab/m/items?first=0"
    assert (await site.ask("POST", path, raw=lines))[1] == {"added": 5000, "total": 5000}
    assert (await site.ask("POST", path, raw=lines))[1] == {"added": 0, "total": 5000}
    tagged = "/api/v1/maps/lab/m/items?request=more"
    assert (await site.ask("POST", tagged, raw=lines))[1] == {"added": 5000, "total": 10_000}
    assert (await site.ask("POST", tagged, raw=lines))[1] == {"added": 0, "total": 10_000}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("raw", "status", "field"),
    [
        pytest.param(b'{"value": 1}\n\n{"value"\n', 422, "line 3", id="no JSON"),
        pytest.param(b'{"key": "x"}\n', 422, "line 1", id="no value"),
        pytest.param(b'{"value": 1, "seconds": -1}\n', 422, "line 1", id="a length below zero"),
        pytest.param(b'{"value": "' + b"x" * 70_000 + b'"}\n', 413, "line 1", id="too long"),
    ],
)
async def test_a_line_that_is_no_item_is_named(site, raw, status, field):
    await site.make(0, close=False)
    got, problem = await site.ask("POST", "/api/v1/maps/lab/m/items", raw=raw)
    assert (got, problem["field"]) == (status, field)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param({"request": 1}, 422, "invalid", id="no session"),
        pytest.param({"session": "w", "request": -1}, 422, "invalid", id="a number below zero"),
        pytest.param({"session": "w", "reports": [{"item": 0}]}, 422, "invalid", id="half a report"),
        pytest.param(
            {"session": "w", "reports": [done(0, 1, value="x" * RESULT_BYTES)]}, 413, "result_too_large", id="long"
        ),
    ],
)
async def test_a_wrong_request_of_a_worker_gets_a_clear_error(site, body, status, code):
    token = await site.make(1)
    got, problem = await site.ask("POST", "/api/v1/work", body, token=token)
    assert (got, problem["code"]) == (status, code)


@pytest.mark.anyio
@pytest.mark.parametrize(("is_its_own", "left"), [(True, 0), (False, 1)])
async def test_a_deleted_map_takes_along_the_mapjob_that_stands_for_it(site, is_its_own, left):
    await site.make(1)
    stored = await site.queue.read(lambda store: store.find_map("lab", "m"))
    status = {"queue": {"uid": stored.uid if is_its_own else "another"}}
    site.api.put(MAPJOBS, {"metadata": {"name": "m", "namespace": "lab"}, "spec": {}, "status": status})
    assert (await site.ask("DELETE", "/api/v1/maps/lab/m"))[0] == 200
    assert len((await site.api.list(MAPJOBS, "lab")).items) == left
    if not is_its_own:
        assert (await site.ask("GET", "/api/v1/maps/lab/m"))[0] == 404


@pytest.mark.anyio
async def test_a_deleted_map_sends_its_workers_away(site):
    token = await site.make(1)
    await site.work(token, request=1, want=1)
    assert (await site.ask("DELETE", "/api/v1/maps/lab/m"))[0] == 200
    assert (await site.work(token, request=2, want=1))[0] == 410


@pytest.mark.anyio
async def test_a_map_is_paused_resumed_and_cancelled(site):
    token = await site.make(2)
    assert (await site.ask("PATCH", "/api/v1/maps/lab/m", {"state": "paused"}))[1]["state"] == "paused"
    waiting = asyncio.create_task(site.work(token, request=1, want=1, wait=30))
    await site.until_parked()
    await site.ask("PATCH", "/api/v1/maps/lab/m", {"state": "running", "priority": 7})
    assert (await waiting)[1]["items"] == [[0, 1, 0]]
    await site.ask("PATCH", "/api/v1/maps/lab/m", {"state": "cancelled"})
    returned = {"item": 0, "lease": 1, "outcome": "returned"}
    assert (await site.work(token, request=2, want=1, wait=30, reports=[returned]))[1]["state"] == "cancelled"
    assert (await site.ask("POST", "/api/v1/maps/lab/m/retry"))[1] == {"retried": 0}
    assert (await site.ask("GET", "/api/v1/maps/lab/m"))[1]["state"] == "running"


@pytest.mark.anyio
async def test_many_workers_at_once_share_transactions_and_lose_nothing(tmp_path):
    groups = []

    class Counting(Store):
        def exchange(self, calls, now):
            groups.append(len(calls))
            return super().exchange(calls, now)

    async with a_site(
        tmp_path, open_queue=lambda where, quota: Counting(open_database(where, QUEUE), quota)
    ) as site:
        await _work_at_once(site)
    assert max(groups) > 10


async def _work_at_once(site):
    """60 workers that share 300 items."""
    token = await site.make(300)

    async def worker(name):
        held, number = [], 0
        while True:
            number += 1
            reports = [done(item, lease) for item, lease, _ in held]
            _, reply = await site.work(token, session=name, request=number, want=3, wait=30, reports=reports)
            held = reply.get("items", [])
            if not held and reply["state"] == "finished":
                return

    async with asyncio.timeout(120):
        await asyncio.gather(*(worker(f"w{at}") for at in range(60)))
    _, results = await site.ask("GET", "/api/v1/maps/lab/m/results")
    assert [one["value"] for one in results] == [{"n": at} for at in range(300)]
    counts = (await site.ask("GET", "/api/v1/maps/lab/m"))[1]["counts"]
    assert (counts["granted"], counts["refused"]) == (300, 0)


@pytest.mark.anyio
async def test_an_outage_of_the_database_is_told_and_over_when_it_is_over(tmp_path):
    from moorage_kube.errors import StorageError

    reachable = [False]

    def open_when_reachable():
        if not reachable[0]:
            raise StorageError("could not open it")
        return open_store(tmp_path / "queue.db")

    clock = FakeClock()
    queue = Queue(open_when_reachable, clock=clock)
    running = asyncio.create_task(queue.run())
    with pytest.raises(StorageError):
        await queue.read(lambda store: store.list_maps())
    reachable[0] = True
    await soon("the secret of the queue", lambda: queue._secret, tick=lambda: clock.advance(1))
    assert await queue.read(lambda store: store.list_maps()) == []
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
