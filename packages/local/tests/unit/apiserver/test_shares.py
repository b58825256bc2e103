"""Fair shares by user, and lists that are answered a piece at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from moorage_kube.errors import TooManyRequests
from moorage_kube.resources import CONFIGMAPS, Obj, Resource
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer
from moorage_local.apiserver.shares import SEAT_BYTES, SEATS, Shares
from moorage_local.apiserver.wire.answers import PIECE_BYTES

pytestmark = pytest.mark.anyio

ALICE, BOB = User(name="alice"), User(name="bob")
BYTES, COUNT = 100_000, 12
PATH = "/api/v1/namespaces/default/configmaps"


class Turns:
    """Requests that go on until they are ended."""

    def __init__(self, shares: Shares) -> None:
        self.begun: list[str] = []
        self._shares = shares
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, user: User, list_bytes: int = 0) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._work(name, user, list_bytes))
        await settle()

    async def _work(self, name: str, user: User, list_bytes: int) -> None:
        async with self._shares.turn(user, list_bytes):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)
        await settle()

    async def close(self) -> None:
        """Left to the garbage collector, those that wait would be closed in the middle of a later test."""
        await self.cancel(*self._tasks)


@pytest.fixture
async def turns_of() -> AsyncIterator[Callable[[Shares], Turns]]:
    made: list[Turns] = []

    def make(shares: Shares) -> Turns:
        made.append(Turns(shares))
        return made[-1]

    yield make
    for turns in made:
        await turns.close()


MakeTurns = Callable[[Shares], Turns]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_finds_no_seat_waits_in_the_queue_of_its_user_alone(turns_of: MakeTurns) -> None:
    turns = turns_of(Shares(seats=2))
    for name in ("a1", "a2", "a3", "a4"):
        await turns.begin(name, ALICE)
    await turns.begin("b1", BOB)
    assert turns.begun == ["a1", "a2", "b1"]
    await turns.end("a2")
    assert turns.begun == ["a1", "a2", "b1", "a3"]


async def test_a_large_list_takes_more_seats_and_is_not_overtaken(turns_of: MakeTurns) -> None:
    turns = turns_of(Shares(seats=3))
    await turns.begin("small", ALICE)
    await turns.begin("large", ALICE, 2 * SEAT_BYTES)
    await turns.begin("late", ALICE)
    assert turns.begun == ["small"]
    await turns.end("small")
    assert turns.begun == ["small", "large"]
    await turns.end("large")
    assert turns.begun == ["small", "large", "late"]


async def test_a_request_whose_client_has_gone_gives_its_place_to_the_next(turns_of: MakeTurns) -> None:
    turns = turns_of(Shares(seats=1))
    for name in ("first", "gone", "next"):
        await turns.begin(name, ALICE)
    await turns.cancel("gone")
    await turns.end("first")
    assert turns.begun == ["first", "next"]
    await turns.cancel("next")
    await turns.begin("last", ALICE)
    assert turns.begun == ["first", "next", "last"]


async def test_a_full_queue_is_refused_with_the_time_to_wait(turns_of: MakeTurns) -> None:
    shares = Shares(seats=1, waiting=1)
    turns = turns_of(shares)
    for name in ("first", "waits"):
        await turns.begin(name, ALICE)
    with pytest.raises(TooManyRequests, match="1 of user alice wait already") as refused:
        async with shares.turn(ALICE):
            pass
    assert refused.value.details == {"retryAfterSeconds": 1}


@pytest.mark.parametrize(
    "user",
    [
        User(name="admin", groups=("system:masters",)),
        User(name="system:node:node-1", groups=("system:nodes",)),
        User(name="system:serviceaccount:moorage-system:moorage-operator"),
    ],
)
async def test_the_platform_itself_waits_for_no_seat(turns_of: MakeTurns, user: User) -> None:
    turns = turns_of(Shares(seats=1, waiting=0))
    for name in ("1", "2", "3"):
        await turns.begin(name, user)
    assert turns.begun == ["1", "2", "3"]


class Asked:
    """One GET of an ASGI application, whose client takes pieces when it is let."""

    def __init__(self, app: Any, path: str, *, token: str = "alice-token", accept: str = "") -> None:
        self.pieces: list[bytes] = []
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._takes = asyncio.Semaphore(0)
        self._never = asyncio.Event()
        address, _, query = path.partition("?")
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"accept", accept.encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "path": address,
            "query_string": query.encode(),
            "headers": headers,
        }
        self.task = asyncio.create_task(app(scope | {"raw_path": address.encode()}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._never.is_set():
            self._never.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        elif message["body"]:
            await self._takes.acquire()
            self.pieces.append(message["body"])

    def take(self, pieces: int = 1_000_000) -> None:
        for _ in range(pieces):
            self._takes.release()

    async def whole(self) -> Any:
        self.take(10_000)
        await self.task
        return json.loads(b"".join(self.pieces))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def maps(api: InProcessClient) -> list[Obj]:
    """Large ConfigMaps that alice may read."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    group = "rbac.authorization.k8s.io"
    await api.create(
        Resource(group, "v1", "clusterroles", "ClusterRole", False), {"metadata": {"name": "r"}, "rules": rules}
    )
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
    }
    await api.create(Resource(group, "v1", "clusterrolebindings", "ClusterRoleBinding", False), binding)
    for number in range(COUNT):
        meta = {"name": f"m{number:02}", "namespace": "default", "labels": {"even": str(number % 2 == 0)}}
        await api.create(CONFIGMAPS, {"metadata": meta, "data": {"x": "x" * BYTES}})
    return (await api.list(CONFIGMAPS, "default")).items


@pytest.mark.parametrize(
    ("accept", "kind", "item"),
    [
        pytest.param(
            "application/json",
            "ConfigMapList",
            lambda obj: {"metadata": obj["metadata"], "data": obj["data"]},
            id="json",
        ),
        pytest.param(
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            "PartialObjectMetadataList",
            lambda obj: {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            },
            id="metadata",
        ),
    ],
)
async def test_a_large_list_is_sent_in_pieces_and_is_the_same(
    server: ApiServer, maps: list[Obj], accept: str, kind: str, item: Callable[[Obj], Obj]
) -> None:
    asked = Asked(server.app, f"{PATH}?labelSelector=even%3DTrue", accept=accept)
    answer = await asked.whole()
    assert answer["kind"] == kind
    assert answer["items"] == [item(obj) for obj in maps if obj["metadata"]["labels"]["even"] == "True"]
    assert max(map(len, asked.pieces)) <= PIECE_BYTES + 2 * BYTES
    assert b"content-length" not in asked.headers


async def test_a_table_of_large_objects_has_a_row_for_each(server: ApiServer, maps: list[Obj]) -> None:
    table = await Asked(server.app, PATH, accept="application/json;as=Table;v=v1;g=meta.k8s.io").whole()
    assert table["kind"] == "Table"
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert [row["cells"][0] for row in table["rows"]] == [obj["metadata"]["name"] for obj in maps]


async def test_others_are_answered_between_two_pieces_of_a_list(server: ApiServer, maps: list[Obj]) -> None:
    asked = Asked(server.app, PATH)
    asked.take(10_000)
    other = Asked(server.app, "/healthz")
    other.take()
    await other.task
    assert other.pieces == [b"ok"]
    assert len(asked.pieces) < 3 < len(maps)
    assert len((await asked.whole())["items"]) == COUNT


async def test_clients_that_read_nothing_hold_a_piece_each_and_keep_back_their_user_alone(
    server: ApiServer, maps: list[Obj]
) -> None:
    stuck = [Asked(server.app, PATH) for _ in range(SEATS + 1)]
    await settle()
    mine = Asked(server.app, f"{PATH}/m00")
    mine.take()
    others = Asked(server.app, f"{PATH}/m00", token="admin-token")
    assert (await others.whole())["metadata"]["name"] == "m00"
    assert not mine.task.done()
    for asked in stuck:
        await asked.end()
    await mine.task
    assert mine.status == 200


async def test_a_watch_takes_no_seat(server: ApiServer, maps: list[Obj]) -> None:
    watches = [Asked(server.app, f"{PATH}?watch=true") for _ in range(SEATS + 1)]
    await settle()
    assert (await Asked(server.app, f"{PATH}/m00").whole())["metadata"]["name"] == "m00"
    for watch in watches:
        with contextlib.suppress(asyncio.CancelledError):
            await watch.end()


async def test_more_than_may_wait_is_answered_with_retry_after(server: ApiServer, maps: list[Obj]) -> None:
    server.shares = Shares(seats=1, waiting=0)
    stuck = Asked(server.app, PATH)
    await settle()
    refused = Asked(server.app, PATH)
    status = await refused.whole()
    assert (refused.status, status["reason"], refused.headers[b"retry-after"]) == (429, "TooManyRequests", b"1")
    await stuck.end()
