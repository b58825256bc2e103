"""Idle work over HTTP and on pages: shown, and snoozed by who may change it."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from moorage.decide.idle.states import Record, State, read_record, write_record
from moorage.decide.usage.intervals import Interval, Open
from moorage.decide.usage.samples import GpuReading, Reading
from moorage.model.idle import IDLE_POLICIES
from moorage.model.names import IDLE_ANNOTATION
from moorage.model.workspace import WORKSPACES
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON

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


async def test_the_button_snoozes_no_longer_than_the_policy_allows(ada):
    spec = {"warnAfter": "1h", "snooze": {"longest": "30m"}}
    ada.api.put(IDLE_POLICIES, {"metadata": {"name": "short"}, "spec": spec})
    await ada.site.until(lambda: ada.site.service.context.idle.policies()[0].name == "short")
    await ada.put("lab")
    assert (await ada.ask("/workspaces/team/lab/snooze", method="POST")).status == 303
    assert (await ada.record("lab")).snoozed_until == NOON + timedelta(minutes=30)


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


def a_stay(uid, *, hours_ago, until_hours_ago, **more):
    return Interval(
        **{
            "pod_uid": uid, "namespace": "team", "pod": f"ws-lab-{uid}", "run": "", "attempt": 1, "owner": "ada",
            "node": "n1", "gpu_type": "a100", "gpus": 1, "cpu_milli": 100, "memory_bytes": 1 << 27,
            "started_at": NOON - timedelta(hours=hours_ago), "last_seen_at": NOON,
            "ended_at": None if until_hours_ago is None else NOON - timedelta(hours=until_hours_ago),
        } | more
    )  # fmt: skip


def measure(site, uid, *, hours_ago, until_hours_ago):
    gpus = (GpuReading(device="0", utilisation=0.0),)
    slots = range(int(until_hours_ago * 120) + 1, int(hours_ago * 120) + 1)
    site.service.samples.add(
        Reading(pod_uid=uid, at=NOON - slot * timedelta(seconds=30), cpu_milli=10, gpus=gpus) for slot in slots
    )


async def test_a_report_has_workspaces_also_those_that_were_started_again_and_maps_and_runs(ada):
    stays = [
        a_stay("a", hours_ago=6, until_hours_ago=3, part_of="workspace/lab"),
        a_stay("b", hours_ago=2, until_hours_ago=None, part_of="workspace/lab"),
        a_stay("m", hours_ago=2, until_hours_ago=None, part_of="map/squares"),
        a_stay("r", hours_ago=2, until_hours_ago=None, run="train"),
        a_stay("c", hours_ago=2, until_hours_ago=None, run="noise", gpus=0),
    ]
    ada.site.service.usage.apply([Open(stay) for stay in stays])
    measure(ada.site, "a", hours_ago=6, until_hours_ago=3)
    for uid in ("b", "m", "r", "c"):
        measure(ada.site, uid, hours_ago=2, until_hours_ago=0)
    body = {"since": "1d", "spec": {"warnAfter": "1h", "suspendAfter": "1h"}}
    answer = await ada.ask("/api/v1/idle/report", method="POST", kind="application/json", body=body)
    rows = {f"{row['kind']}/{row['name']}": row for row in answer.json["rows"]}
    assert sorted(rows) == ["map/squares", "run/train", "workspace/lab"]
    assert rows["workspace/lab"]["idleHours"] == pytest.approx(5.0, abs=0.6)
    assert answer.json["heldHours"] == pytest.approx(9.0)
