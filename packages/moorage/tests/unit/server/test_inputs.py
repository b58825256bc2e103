"""Odd numbers, deep and broken bodies: one clear refusal each, on every route, never a failure of the server."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from starlette.routing import Route

pytestmark = pytest.mark.anyio

ADA = {"authorization": "Bearer kube-token", "content-type": "application/json"}
ODD = [
    "²",
    "٣",
    "1_000",
    " 7",
    "10e2",
    "1.5",
    "NaN",
    "",
    "-",
    "0x10",
    "9" * 23,
    "9" * 5000,
    "-" + "9" * 23,
    "\x00",
]
MAP = "/api/v1/maps/lab/m"
NUMBERS = [
    f"{MAP}/items?after=",
    f"{MAP}/items?limit=",
    f"{MAP}/results?after=",
    f"{MAP}/output?item=",
    f"{MAP}/output?after=",
    f"{MAP}/items/",
    "/api/v1/audit?before=",
    "/api/v1/audit?limit=",
    "/api/v1/jobs/lab/none/logs?tail=",
    "/api/v1/workspaces/lab?limit=",
    "/api/v1/containers?namespace=lab&limit=",
    "/containers/json?namespace=lab&limit=",
    "/login/cli?challenge=" + "x" * 43 + "&state=s&port=",
]
CODES = {"bad_request", "not_found", "forbidden", "invalid", "odd_path"}
MOMENTS = ["/api/v1/top?since=", "/api/v1/top?until=", "/api/v1/audit?since=", "/api/v1/jobs?since="]
FILTERS = ['[]', '"a"', "1", '{"label":1}', '{"label":[1]}', '{"status":"abc"}', '{"x":{"y":{}}}', "{", "NaN",
           '{"label":["a"],"odd":["b"]}', "[" * 300, '{"label":' * 2000,
           '{"label":[' + "9" * 5000 + "]}"]  # fmt: skip
DEEP = {
    "300 lists": b"[" * 300 + b"]" * 300,
    "100,000 lists": b"[" * 100_000,
    "300 objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "300 deep in a pod": b'{"pod":{"metadata":{},"spec":' + b'{"a":' * 300 + b"1" + b"}" * 302,
    "300 deep in labels": b'{"Image":"x","Labels":' + b'{"a":' * 300 + b"1" + b"}" * 301,
    "a number beyond 64 bits": b'{"Image":"x","HostConfig":{"Memory":' + b"9" * 23 + b"}}",
    "an infinite number": b'{"Image":"x","HostConfig":{"Memory":1e999}}',
    "no UTF-8": b'{"name":"\xff"}',
    "half a surrogate": rb'{"name":"\ud800","command":["\ud800"]}',
    "a list": b"[]",
    "null": b"null",
}


@pytest.fixture
async def running(site):
    site.api.with_token = lambda _token, _account="": site.api
    site.api.readers |= {("ada", "lab"), ("ada", None)}
    async with site.running():
        await site.until(lambda: site.service.queue._secret)
        made = await site.ask("/api/v1/maps/lab", method="POST", body=b'{"name":"m","request":"r"}', headers=ADA)
        assert made.status == 201
        yield site


@pytest.mark.parametrize("path", NUMBERS + MOMENTS)
async def test_an_odd_number_is_a_bad_request(running, path):
    for text in ODD:
        answer = await running.ask(path + quote(text), headers=ADA)
        assert answer.status < 500, (path, text, answer.text)
        if answer.status >= 400:
            assert answer.json["code"] in {"bad_request", "not_found", "forbidden", "invalid", "odd_path"}, (
                path,
                text,
            )


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9" * 5000 + "d"])
async def test_a_moment_beyond_all_calendars_is_a_bad_request(running, text):
    for path in MOMENTS:
        answer = await running.ask(path + quote(text), headers=ADA)
        assert (answer.status, answer.json["code"]) == (400, "bad_request"), path


async def test_a_limit_out_of_range_names_the_range(running):
    for limit, status in ((-2, 400), (-1, 200), (0, 200), (500, 200), (501, 400)):
        answer = await running.ask(f"/containers/json?namespace=lab&limit={limit}", headers=ADA)
        assert answer.status == status
        if status == 400:
            assert "from -1 to 500" in answer.json["message"]


@pytest.mark.parametrize("filters", FILTERS)
async def test_odd_filters_are_a_bad_request(running, filters):
    answer = await running.ask(f"/containers/json?namespace=lab&filters={quote(filters)}", headers=ADA)
    assert answer.status in (200, 400)


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP.keys())
async def test_a_deep_or_broken_body_is_refused_by_every_route(running, body):
    token = (await running.ask(f"{MAP}/token", method="POST", headers=ADA)).json["token"]
    for route in running.service.app.routes:
        if not isinstance(route, Route):
            continue
        methods = sorted((route.methods or {"POST"}) & {"POST", "PUT", "PATCH"})
        path = route.path.replace("{namespace}", "lab").replace("{name}", "m").replace("{version:float}", "1.45")
        path = path.replace("{run}", "r").replace("{limit}", "l").replace("{item}", "0")
        for method in methods:
            headers = ADA | ({"authorization": f"Bearer {token}"} if path.startswith("/api/v1/work") else {})
            answer = await running.ask(path, method=method, body=body, headers=headers)
            assert answer.status < 500 or answer.json["code"] in {"cannot_act", "not_supported"}, (
                method,
                path,
                answer.text,
            )


async def test_a_deep_value_of_an_item_or_a_result_is_refused_by_its_line(running):
    deep = "[" * 300 + "]" * 300
    lines = f'{{"value":1}}\n{{"value":{deep}}}\n'.encode()
    answer = await running.ask(f"{MAP}/items", method="POST", body=lines, headers=ADA)
    assert (answer.status, answer.json["field"]) == (422, "line 2")
    token = (await running.ask(f"{MAP}/token", method="POST", headers=ADA)).json["token"]
    report = {"item": 0, "lease": 1, "outcome": "done", "seconds": 0.5}
    body = json.dumps({"session": "w", "held": [], "reports": [report | {"value": 0}]}).replace(
        '"value": 0', f'"value": {deep}'
    )
    bearer = {"authorization": f"Bearer {token}"}
    answer = await running.ask("/api/v1/work", method="POST", body=body.encode(), headers=bearer)
    assert (answer.status, answer.json["code"]) == (422, "invalid")
