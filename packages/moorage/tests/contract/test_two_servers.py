"""Two servers on one database behave as one: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from moorage.actions import people
from moorage.model.names import CONTAINER_LABEL
from moorage.model.people import LOCAL, OIDC, account_user
from moorage.server.docker import execroutes
from moorage.server.docker.endpoint import DockerCall
from moorage.server.docker.execs import IDLE, KILLED, SIZE_SECONDS
from moorage.server.docker.followers import Followers
from moorage.server.identity.attempts import PLACE
from moorage.server.identity.auth import User
from moorage.server.identity.logins import BELIEVED_SECONDS, RECHECK
from moorage.server.identity.oidc import Login, Refused
from moorage.server.identity.sessions import open_sessions
from moorage.server.identity.shared import Key, Kind, Value
from moorage.server.problems import Problem
from moorage.server.service import ServerService
from moorage_kube.clock import rfc3339
from moorage_kube.resources import PODS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
HOUR = timedelta(hours=1)
ADA = User("ada", account=account_user("ada"))
TERMINAL = {"Tty": True}
GRACE = User("grace", account=account_user("grace"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """An empty database."""
    if request.param == "sqlite":
        return tmp_path / "people.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


class Terminal:
    """A command that prints a line and ends with 3 once it may. `sizes` are those that it was told."""

    exit_code = 3

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.sizes: list[tuple[int, int]] = []

    async def __aenter__(self) -> Terminal:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes]]:
        await self.go_on.wait()
        yield 1, b"hello"

    async def resize(self, width: int, height: int) -> None:
        self.sizes.append((width, height))


class AnApi(FakeApi):
    """Acts for everybody, and runs the commands in `terminals`."""

    def __init__(self) -> None:
        super().__init__()
        self.terminals: list[Terminal] = []

    def as_user(self, _account: str) -> AnApi:
        return self

    async def exec(self, *_: object, **__: object) -> Terminal:
        self.terminals.append(Terminal())
        return self.terminals[-1]


class TwoServers:
    """Two servers of one cluster on one database, with a folder each."""

    def __init__(self, folder: Path, where: Path | str) -> None:
        self.api, self.clock = AnApi(), FakeClock()
        self.first, self.second = (self._server(folder / name, where) for name in ("first", "second"))

    def _server(self, folder: Path, where: Path | str) -> ServerService:
        folder.mkdir()
        return ServerService(
            self.api, usage_db=folder / "usage.db", people_db=where, page_token="page", clock=self.clock
        )

    def close(self) -> None:
        for service in (self.first, self.second):
            service.outputs.close()
            service.usage.close()
            service.sessions.close()


@pytest.fixture
async def servers(tmp_path: Path, where: Path | str) -> AsyncIterator[TwoServers]:
    both = TwoServers(tmp_path, where)
    for service in (both.first, both.second):
        await service.sessions.do(lambda store: store.all())  # opened one after the other
    await people.create_account(both.api, "ada", (), LOCAL)
    await people.set_password(both.api, "ada", PASSWORD, cost=2)
    yield both
    both.close()


async def log_in(service: ServerService, password: str = PASSWORD, address: str = "10.0.0.1") -> str:
    token, _ = await service.logins.by_password("ada", password, address=address, client="test")
    return token


async def wrong(service: ServerService) -> int:
    """The status of the answer to a wrong password."""
    with pytest.raises(Problem) as refused:
        await log_in(service, "wrong")
    return refused.value.status


async def test_a_login_at_one_server_is_good_at_the_other(servers: TwoServers) -> None:
    token = await log_in(servers.first)
    user = await servers.second.auth.identify({"authorization": f"Bearer {token}"})
    assert user is not None
    assert user.name == "ada"


async def test_a_logout_at_one_server_takes_effect_at_the_other(servers: TwoServers) -> None:
    token = await log_in(servers.first)
    session = await servers.second.logins.session_of(token)
    assert session is not None
    await servers.first.logins.end(session, "logged out")
    servers.clock.advance(BELIEVED_SECONDS)
    assert await servers.second.logins.session_of(token) is None
    assert await servers.first.logins.session_of(token) is None


async def test_a_logout_of_the_page_at_one_server_takes_effect_at_the_other(servers: TwoServers) -> None:
    value = await servers.first.auth.page_sessions.open()
    assert await servers.second.auth.page_sessions.holds(value)
    await servers.first.auth.page_sessions.end(value)
    servers.clock.advance(BELIEVED_SECONDS)
    assert not await servers.second.auth.page_sessions.holds(value)


class AProvider:
    """Renews each refresh token once, as providers that rotate them do."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def renew(self, refresh_token: str, *, subject: str) -> Login:
        self.asked.append(refresh_token)
        self.begun.set()
        await self.go_on.wait()
        if self.asked.count(refresh_token) > 1:
            raise Refused("the token was used twice")
        return Login(subject=subject, name="grace", groups=(), refresh_token=f"{refresh_token}+", expires=0)

    async def close(self) -> None:
        return


async def test_servers_do_not_use_one_refresh_token_twice(servers: TwoServers) -> None:
    provider = AProvider()
    both = [servers.first.logins, servers.second.logins]
    for logins in both:
        logins.provider = provider  # type: ignore[assignment]
    await servers.first.people.ensure("grace", (), OIDC, subject="1")
    sealed = await servers.first.logins._sealer.seal("r")
    token, session = await servers.first.logins._open(
        "grace", OIDC, address="", client="test", subject="1", refresh=sealed
    )
    servers.clock.advance(RECHECK.total_seconds())
    asking = asyncio.create_task(servers.first.logins.session_of(token))
    await provider.begun.wait()
    assert await servers.second.logins.session_of(token) == session  # as it was: the other server asks
    provider.go_on.set()
    assert await asking is not None
    servers.clock.advance(BELIEVED_SECONDS)
    assert [(await logins.session_of(token)) is not None for logins in both] == [True, True]
    assert provider.asked == ["r"]
    servers.clock.advance(RECHECK.total_seconds())
    assert await servers.second.logins.session_of(token) is not None
    assert provider.asked == ["r", "r+"]


async def test_wrong_passwords_at_both_servers_count_together(servers: TwoServers) -> None:
    tries = [await wrong(service) for _ in range(PLACE.burst) for service in (servers.first, servers.second)]
    assert tries == [401] * PLACE.burst + [429] * PLACE.burst
    with pytest.raises(Problem) as refused:
        await log_in(servers.second)
    assert refused.value.status == 429


async def test_tries_at_both_servers_at_once_are_counted_each(servers: TwoServers) -> None:
    services = [servers.first, servers.second] * PLACE.burst
    statuses = await asyncio.gather(*(wrong(service) for service in services))
    assert sorted(statuses) == [401] * PLACE.burst + [429] * PLACE.burst


async def test_the_right_password_at_one_server_forgives_at_the_other(servers: TwoServers) -> None:
    for _ in range(PLACE.burst - 1):
        assert await wrong(servers.first) == 401
    await log_in(servers.second)
    assert [await wrong(servers.first) for _ in range(PLACE.burst)] == [401] * PLACE.burst


def a_call(
    service: ServerService, id_: str, body: object = None, *, user: User = ADA, query: str = ""
) -> DockerCall:
    messages = [{"type": "http.request", "body": json.dumps(body or {}).encode(), "more_body": False}]

    async def receive() -> dict[str, object]:
        return messages.pop()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "path_params": {"id": id_},
        "query_string": query.encode(),
        "headers": [(b"x-moorage-namespace", b"lab")],
        "state": {"user": user},
    }
    return DockerCall(context=service.context, request=Request(scope, receive))


async def created(servers: TwoServers) -> str:
    """The id of an exec that the first server created."""
    labels = {CONTAINER_LABEL: "box"}
    container = {"name": "main", "state": {"running": {"startedAt": rfc3339(NOON)}}}
    status = {"phase": "Running", "containerStatuses": [container]}
    meta = {"namespace": "lab", "name": "box-1", "labels": labels}
    servers.api.put(PODS, {"metadata": meta, "spec": {}, "status": status})
    response = await execroutes.create(a_call(servers.first, "box", {"Cmd": ["sh"], "Tty": True}))
    return str(json.loads(response.body)["Id"])


async def shown(service: ServerService, exec_id: str) -> dict[str, object]:
    return dict(json.loads((await execroutes.show(a_call(service, exec_id))).body))


async def test_an_exec_that_one_server_created_runs_on_the_other(servers: TwoServers) -> None:
    exec_id = await created(servers)
    with pytest.raises(Problem) as refused:
        await execroutes.start(a_call(servers.second, exec_id, user=GRACE))
    assert refused.value.status == 404
    answer = await execroutes.start(a_call(servers.second, exec_id, TERMINAL))
    assert isinstance(answer, StreamingResponse)
    for service in (servers.first, servers.second):
        with pytest.raises(Problem) as refused:
            await execroutes.start(a_call(service, exec_id))
        assert refused.value.code == "started"
        assert (await shown(service, exec_id))["Running"] is True
    (terminal,) = servers.api.terminals
    terminal.go_on.set()
    assert [chunk async for chunk in answer.body_iterator] == [b"hello"]
    for service in (servers.first, servers.second):
        state = await shown(service, exec_id)
        assert (state["Running"], state["ExitCode"]) == (False, 3)
    servers.clock.advance(IDLE.total_seconds())
    with pytest.raises(Problem) as refused:
        await shown(servers.second, exec_id)
    assert refused.value.status == 404


async def test_an_exec_starts_once_however_many_servers_are_asked_at_once(servers: TwoServers) -> None:
    exec_id = await created(servers)
    answers = await asyncio.gather(
        *(execroutes.start(a_call(service, exec_id, TERMINAL)) for service in (servers.first, servers.second)),
        return_exceptions=True,
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Problem", "StreamingResponse"]
    (terminal,) = servers.api.terminals
    terminal.go_on.set()
    for answer in answers:
        if isinstance(answer, StreamingResponse):
            assert [chunk async for chunk in answer.body_iterator] == [b"hello"]


async def test_the_size_of_a_terminal_reaches_the_server_where_it_runs(servers: TwoServers) -> None:
    exec_id = await created(servers)
    answer = await execroutes.start(a_call(servers.second, exec_id, TERMINAL))
    (terminal,) = servers.api.terminals
    await execroutes.resize(a_call(servers.first, exec_id, query="h=40&w=120"))
    async with asyncio.timeout(60):
        while not terminal.sizes:
            servers.clock.advance(SIZE_SECONDS)
            await asyncio.sleep(0)
    await execroutes.resize(a_call(servers.second, exec_id, query="h=24&w=80"))
    assert terminal.sizes == [(120, 40), (80, 24)]
    terminal.go_on.set()
    assert isinstance(answer, StreamingResponse)
    assert [chunk async for chunk in answer.body_iterator] == [b"hello"]


async def test_a_command_whose_client_leaves_has_ended_for_every_server(servers: TwoServers) -> None:
    exec_id = await created(servers)
    answer = await execroutes.start(a_call(servers.second, exec_id, TERMINAL))
    assert isinstance(answer, StreamingResponse)
    await answer.body_iterator.aclose()  # type: ignore[union-attr]
    state = await shown(servers.first, exec_id)
    assert (state["Running"], state["ExitCode"]) == (False, KILLED)


async def test_who_follows_a_pod_at_one_server_holds_its_removal_at_the_other(servers: TwoServers) -> None:
    first, second = (service.context.part(Followers) for service in (servers.first, servers.second))
    assert not await second.has("uid")
    async with first.following("uid"), first.following("uid"):
        assert await second.has("uid")
        async with second.following("uid"):
            pass
        assert await second.has("uid")
    assert not await first.has("uid")
    assert not await second.has("uid")


def test_shared_values_are_bounded_and_end(where: Path | str) -> None:
    kind = Kind("test", 3)
    with ExitStack() as stack:
        first, second = (open_sessions(where) for _ in range(2))
        for store in (first, second):
            stack.callback(store.close)
        for number in range(6):
            first.shared.put(Key(kind, f"{number}"), Value(b"x", NOON + number * HOUR), NOON)
        living = [number for number in range(6) if second.shared.get(Key(kind, f"{number}"), NOON)]
        assert living == [3, 4, 5]
        assert second.shared.get(Key(kind, "3"), NOON + 3 * HOUR) is None
        keys = [Key(kind, "5"), Key(kind, "9")]
        assert second.shared.change(keys, lambda bodies: ([None, None], bodies), NOON) == [b"x", None]
        assert not first.shared.drop(Key(kind, "5"))
        assert not first.shared.drop(Key(kind, "9"))
        first.shared.trim(kind, NOON + 5 * HOUR)
        assert first.shared.get(Key(kind, "4"), NOON) is None
