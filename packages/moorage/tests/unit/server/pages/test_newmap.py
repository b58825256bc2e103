"""The form of a new map, and what the page of a map does: pause, resume, cancel, retry, workers, items."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import msgspec
import pytest

from moorage.decide.maps.leasing import Exchange, Outcome, Policy, Report
from moorage.model.mapjob import MAPJOBS
from moorage.queue.store import NewItem
from moorage.server.pages.forms import BadForm
from moorage.server.pages.newmap import read_map
from moorage_kube.resources import NAMESPACES

pytestmark = pytest.mark.anyio


class Browser:
    """ada, whose form posts act with her Kubernetes token."""

    def __init__(self, site):
        self.site, self.api, self.queue = site, site.api, site.service.queue
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def get(self, path):
        return await self.site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)

    async def post(self, path, **form):
        headers = {
            "authorization": "Bearer kube-token",
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)

    async def patch(self, path, **body):
        headers = {"authorization": "Bearer kube-token", "content-type": "application/json"}
        return await self.site.ask(
            path, method="PATCH", headers=headers, body=json.dumps(body).encode(), token=False
        )

    async def make(self, name="squares"):
        """A map of three items, of which one failed."""
        self.site.api.put(NAMESPACES, {"metadata": {"name": "team", "creationTimestamp": "2001-01-01T00:00:00Z"}})
        stored = await self.queue.create_map(
            namespace="team", name=name, owner="ada", policy=Policy(retries=0), request=name
        )
        values = [NewItem(value=msgspec.Raw(json.dumps(f"day-{at}").encode())) for at in range(3)]
        await self.queue.add_items(stored.map.id, values)
        await self.queue.change_map(stored.map.id, closed=True)
        asked = Exchange(session="w", request=1, want=1, held=[])
        ((item, lease, _),) = (await self.queue.exchange(stored.map.id, asked)).items
        report = Report(item=item, lease=lease, seconds=4.0, outcome=Outcome.ERROR, message="exit code 3")
        await self.queue.exchange(stored.map.id, Exchange(session="w", request=2, reports=[report], held=[]))

    async def state(self, name="squares"):
        stored = await self.queue.read(lambda store: store.find_map("team", name))
        return stored.map.state.value


@pytest.fixture
async def ada(site):
    async with site.running():
        yield Browser(site)


FORM = {
    "name": "squares",
    "namespace": "team",
    "command": "python square.py {item}",
    "range": "0:10",
    "image": "python:3.12",
    "parallelism": "4",
}


async def test_a_map_is_checked_by_a_form_that_shows_its_command(ada):
    assert "New map" in (await ada.get("/maps/new")).text
    page = await ada.post("/maps/new", **FORM, do="check")
    assert page.status == 200
    assert "Map team/squares would be made with 10 items." in page.text
    assert (
        "moor map create squares -n team --range 0:10 --parallelism 4 --image python:3.12 -- python square.py"
        in page.text
    )
    assert (await ada.api.list(MAPJOBS)).items == []


async def test_each_refusal_of_a_map_stands_beside_its_field(ada):
    page = await ada.post("/maps/new", **(FORM | {"memory": "much", "volumes": "data:/data"}))
    assert page.status == 422
    for name, says in (("memory", "much"), ("volumes", "not found in namespace team")):
        assert says in page.text.partition(f'id="p-{name}">')[2].partition("</small>")[0]


@pytest.mark.parametrize(
    ("form", "faults"),
    [
        ({"command": "python a.py"}, {"command": "the command is the same for every item"}),
        ({"range": ""}, {"range": "give either a range or items"}),
        ({"items": "a"}, {"range": "give either a range or items, not both"}),
        ({"range": "0:x"}, {"range": "invalid range '0:x'"}),
        ({"range": "0:0"}, {"range": "range 0:0 has 0 items"}),
        ({"time": "soon", "name": ""}, {"time": "invalid time limit 'soon'", "name": "no name given"}),
    ],
)
def test_a_form_that_cannot_be_read_names_every_fault(form, faults):
    with pytest.raises(BadForm) as error:
        read_map(FORM | form)
    found = {fault.field: fault.message for fault in error.value.faults}
    assert found.keys() == faults.keys()
    assert all(found[name].startswith(text) for name, text in faults.items())


async def test_items_of_a_form_are_lines_or_a_range():
    _, workers, ranged = read_map(FORM)
    _, _, typed = read_map(FORM | {"range": "", "items": "a\r\n\r\nb\n"})
    assert (ranged.count, ranged.options, typed.count) == (10, ("--range", "0:10"), 2)
    assert [line async for line in typed.lines()] == [(1, b'{"value": "a"}'), (2, b'{"value": "b"}')]
    assert workers.parallelism == 4


async def test_a_map_is_paused_resumed_cancelled_and_its_failed_items_run_again(ada):
    await ada.make()
    page = (await ada.get("/maps/team/squares")).text
    for name in ("pause", "retry", "cancel", "items", "results", "delete"):
        assert f'id="{name}"' in page
    paused = await ada.post("/maps/team/squares/pause")
    assert paused.headers["location"] == "/maps/team/squares?done=paused&what=team%2Fsquares"
    assert await ada.state() == "paused"
    assert 'id="resume"' in (await ada.get("/maps/team/squares/live")).text
    assert (await ada.post("/maps/team/squares/resume")).status == 303
    assert await ada.state() == "running"
    assert "Cancel map squares?" in (await ada.get("/maps/team/squares/cancel")).text
    assert (await ada.post("/maps/team/squares/cancel")).status == 303
    assert await ada.state() == "cancelled"
    assert (await ada.post("/maps/team/squares/retry")).status == 303
    assert await ada.state() == "running"
    assert 'id="retry"' not in (await ada.get("/maps/team/squares/live")).text


async def test_the_number_of_workers_is_changed_on_the_mapjob(ada):
    await ada.make()
    spec = {"parallelism": 2, "template": {}, "command": ["true"]}
    ada.api.put(MAPJOBS, {"metadata": {"name": "squares", "namespace": "team"}, "spec": spec})
    assert 'id="f-workers"' in (await ada.get("/maps/team/squares")).text
    assert (await ada.post("/maps/team/squares/workers", workers="8")).status == 303
    assert (await ada.api.get(MAPJOBS, "squares", "team"))["spec"]["parallelism"] == 8
    asked = await ada.patch("/api/v1/maps/team/squares", parallelism=3)
    assert (asked.status, (await ada.api.get(MAPJOBS, "squares", "team"))["spec"]["parallelism"]) == (200, 3)
    refused = await ada.patch("/api/v1/maps/team/squares", parallelism=10_001)
    assert (refused.status, json.loads(refused.body)["field"]) == (422, "parallelism")
    wrong = await ada.post("/maps/team/squares/workers", workers="0")
    assert (wrong.status, "nvalid number of workers 0" in wrong.text) == (422, True)


async def test_items_are_listed_by_state_and_found_by_text(ada):
    await ada.make()
    every = (await ada.get("/maps/team/squares/items")).text
    assert all(f"day-{at}" in every for at in range(3))
    failed = (await ada.get("/maps/team/squares/items?state=dead")).text
    assert ("day-0" in failed, "exit code 3" in failed, "day-1" in failed) == (True, True, False)
    matching = (await ada.get("/maps/team/squares/items?q=DAY-2")).text
    assert ("day-2" in matching, "day-1" in matching) == (True, False)
    assert (await ada.get("/maps/team/squares/items?state=odd")).status == 400


async def test_who_may_only_look_changes_nothing(site):
    async with site.running():
        ada = Browser(site)
        await ada.make()
        page = (await site.ask("/maps/team/squares")).text
        assert 'id="pause"' not in page
        assert (await site.ask("/maps/team/squares/items")).status == 403
