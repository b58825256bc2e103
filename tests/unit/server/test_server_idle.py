"""Idle work over HTTP and on pages: shown, and snoozed by who may change it."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from moorage.apimachinery.resources import NAMESPACES
from moorage.decide.idle.states import Record, State, read_record, write_record
from moorage.model.names import IDLE_ANNOTATION
from moorage.model.workspace import WORKSPACES
from moorage.testing.clock import NOON

pytestmark = pytest.mark.anyio

WARNED = Record(
    state=State.WARNED,
    since=NOON - timedelta(hours=3),
    why="GPU below 5 %",
    at=NOON,
    warned_at=NOON,
    warnings=1,
    delivered=True,
    gpus=1,
)


class Owner:
    """ada, who may see the namespace team; `may_change` lets her change what is in it."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def ask(self, path, *, method="GET", kind="text/html", body=None, **headers):
        sent = {"authorization": "Bearer kube-token", "accept": kind, **headers}
        data = b""
        if method == "POST":
            as_json = kind == "application/json"
            sent["content-type"] = kind if as_json else "application/x-www-form-urlencoded"
            data = (json.dumps(body or {}) if as_json else urlencode(body or {})).encode()
        return await self.site.ask(path, method=method, headers=sent, body=data, token=False)

    async def snooze(self, name, time):
        path = f"/api/v1/workspaces/team/{name}/snooze"
        return await self.ask(path, method="POST", kind="application/json", body={"time": time})

    async def put(self, name, record=WARNED, *, running=True):
        notes = {} if record is None else {IDLE_ANNOTATION: write_record(record)}
        meta = {"name": name, "namespace": "team", "annotations": notes}
        self.api.put(WORKSPACES, {"metadata": meta, "spec": {"type": "jupyterlab", "running": running}})
        workspaces = self.site.service.gateway.workspaces
        await self.site.until(lambda: workspaces.get(name, "team"))

    async def record(self, name):
        obj = await self.api.get(WORKSPACES, name, "team")
        return read_record(obj["metadata"]["annotations"].get(IDLE_ANNOTATION))


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Owner(site)


async def test_an_idle_workspace_has_a_button_that_snoozes_it(ada):
    await ada.put("lab")
    await ada.put("busy", None)
    await ada.put("off", WARNED, running=False)
    listed = (await ada.ask("/workspaces")).text
    assert 'action="/workspaces/team/lab/snooze"' in listed
    assert 'action="/workspaces/team/busy/snooze"' not in listed
    assert 'action="/workspaces/team/off/snooze"' not in listed
    answer = await ada.ask("/workspaces/team/lab/snooze", method="POST")
    assert (answer.status, answer.headers["location"]) == (303, "/workspaces?done=snoozed&what=team%2Flab")
    record = await ada.record("lab")
    assert (record.state, record.snoozed_by, record.snoozes) == (State.SNOOZED, "ada", 1)
    assert record.snoozed_until == NOON + timedelta(hours=4)
    after = (await ada.ask(answer.headers["location"])).text
    assert "team/lab is snoozed." in after
    assert 'action="/workspaces/team/lab/snooze"' not in after


async def test_the_button_is_in_japanese_for_who_reads_it(ada):
    await ada.put("lab")
    listed = (await ada.ask("/workspaces", **{"accept-language": "ja"})).text
    form = listed.partition('action="/workspaces/team/lab/snooze"')[2].partition("</form>")[0]
    assert ">延期<" in form
    after = await ada.ask("/workspaces?done=snoozed&what=team%2Flab", **{"accept-language": "ja"})
    assert "team/lab を延期しました。" in after.text


async def test_a_button_that_is_refused_says_why_on_the_page(ada):
    await ada.put("lab", Record(state=State.SUSPENDED, since=NOON, gpus=1, suspended_at=NOON))
    answer = await ada.ask("/workspaces/team/lab/snooze", method="POST")
    assert answer.status == 422
    assert "it is suspended: resume it instead of snoozing it" in answer.text


async def test_who_may_not_change_it_snoozes_nothing(ada):
    await ada.put("lab")
    ada.api.readers.discard(("ada", "team"))
    refused = await ada.snooze("lab", "1h")
    assert (refused.status, refused.json["code"]) == (403, "forbidden")
    assert (await ada.record("lab")).state is State.WARNED


async def test_a_snooze_over_http_is_kept_listed_and_limited(ada):
    await ada.put("lab")
    answer = await ada.snooze("lab", "2h")
    assert (answer.status, answer.json["state"], answer.json["next"]) == (200, "snoozed", "end")
    workspaces = ada.site.service.gateway.workspaces
    await ada.site.until(lambda: "snoozed" in str(workspaces.get("lab", "team")["metadata"]["annotations"]))
    listed = (await ada.ask("/api/v1/idle?namespace=team", kind="application/json")).json["work"]
    assert [(row["name"], row["state"], row["snoozes"]) for row in listed] == [("lab", "snoozed", 1)]
    assert (await ada.ask("/api/v1/idle?namespace=other", kind="application/json")).json["work"] == []
    for time, words in (("60d", "cannot snooze for 60d: policy built-in allows 1d at most"), ("soon", "time")):
        wrong = await ada.snooze("lab", time)
        assert (wrong.status, words in wrong.text) == (422, True), wrong.text
    assert (await ada.snooze("none", "1h")).status == 404
