"""Who reads the metrics of a service."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from moorage.cluster.metricsguard import MetricsGuard
from moorage.controllers.measures import OperatorMeasures, make_app
from moorage_kube.resources import TOKENREVIEWS
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


async def _page(_: Request) -> PlainTextResponse:
    return PlainTextResponse("gpus 8")


async def status_of(app: Any, path: str, token: str = "", method: str = "GET") -> int:
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
    answers: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        answers.append(message)

    await app(scope, receive, send)
    return int(answers[0]["status"])


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.users = {"of-prometheus": "prometheus", "of-ada": "ada"}
    api.readers = {("prometheus", "/metrics")}
    return api


@pytest.mark.parametrize(
    ("token", "status"),
    [("", 401), ("made-up", 403), ("of-ada", 403), ("of-prometheus", 200), ("of-the-page", 200)],
)
async def test_metrics_are_for_tokens_that_may_get_them(api: FakeApi, token: str, status: int) -> None:
    app = Starlette(routes=[Route("/metrics", _page), Route("/healthz", _page)])
    guard = MetricsGuard(app, api, token="of-the-page")
    assert await status_of(guard, "/metrics", token) == status
    assert await status_of(guard, "/healthz") == 200


async def test_one_answer_of_the_api_server_holds_for_a_while(api: FakeApi) -> None:
    guard = MetricsGuard(make_app(OperatorMeasures()), api)
    assert [await status_of(guard, "/metrics", "of-prometheus") for _ in range(3)] == [200] * 3
    assert [call.resource for call in api.calls].count(TOKENREVIEWS.plural) == 1
