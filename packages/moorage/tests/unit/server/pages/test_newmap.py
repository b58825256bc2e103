"""The form of a new map, and what the page of a map does: pause, resume, cancel, retry, workers, items."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import msgspec
import pytest

from moorage.api.maps import MapItem
from moorage.decide.maps.leasing import Exchange, Outcome, Policy, Report
from moorage.model.mapjob import MAPJOBS
from moorage.queue.store import NewItem
from moorage.server.pages.forms import BadForm
from moorage.server.pages.mapchanges import item_table
from moorage.server.pages.newmap import read_map
from moorage_kube.resources import NAMESPACES

pytestmark = pytest.mark.anyio


def raw(value):
    return msgspec.Raw(json.dumps(value).encode())


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

    async def make(self, name="squares", values=("day-0", "day-1", "day-2"), **reported):
        """A map of these items, the first of which failed, or did what is reported."""
        self.site.api.put(NAMESPACES, {"metadata": {"name": "team", "creationTimestamp": "2001-01-01T00:00:00Z"}})
        stored = await self.queue.create_map(
            namespace="team", name=name, owner="ada", policy=Policy(retries=0), request=name
        )
        await self.queue.add_items(stored.map.id, [NewItem(value=raw(value)) for value in values])
        await self.queue.change_map(stored.map.id, closed=True)
        asked = Exchange(session="w", request=1, want=1, held=[])
        ((item, lease, _),) = (await self.queue.exchange(stored.map.id, asked)).items
        outcome = reported or {"outcome": Outcome.ERROR, "message": "exit code 3"}
        report = Report(item=item, lease=lease, seconds=4.0, **outcome)
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
    assert (await ada.get("/maps/new")).page.heading == "New map"
    answer = await ada.post("/maps/new", **FORM, do="check")
    verdict, *_ = answer.page.texts("#verdict p")
    assert (answer.status, verdict) == (200, "Map team/squares would be made with 10 items.")
    line = "moor map create squares -n team --range 0:10 --parallelism 4 --image python:3.12 -- python square.py"
    assert answer.page.element("#line").text == f"{line} '{{item}}'"
    assert (await ada.api.list(MAPJOBS)).items == []


async def test_each_refusal_of_a_map_stands_beside_its_field(ada):
    answer = await ada.post("/maps/new", **(FORM | {"memory": "much", "volumes": "data:/data"}))
    assert (answer.status, answer.page.texts("small.wrong")) == (422, [
        "Invalid memory 'much': use a quantity such as 512Mi, 8Gi or 1.5G.",
        "Volume 'data' not found in namespace team; create it first: moor volume create data --size 10Gi.",
    ])  # fmt: skip


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
    buttons = ["Pause", "Retry failed items", "Cancel", "Items", "Download results", "Delete"]
    assert (await ada.get("/maps/team/squares")).page.buttons() == buttons
    paused = await ada.post("/maps/team/squares/pause")
    assert paused.headers["location"] == "/maps/team/squares?done=paused&what=team%2Fsquares"
    assert await ada.state() == "paused"
    assert (await ada.get("/maps/team/squares/live")).page.buttons() == ["Resume", *buttons[1:]]
    assert (await ada.post("/maps/team/squares/resume")).status == 303
    assert await ada.state() == "running"
    assert (await ada.get("/maps/team/squares/cancel")).page.heading == "Cancel map squares?"
    assert (await ada.post("/maps/team/squares/cancel")).status == 303
    assert await ada.state() == "cancelled"
    assert (await ada.post("/maps/team/squares/retry")).status == 303
    assert await ada.state() == "running"
    buttons.remove("Retry failed items")
    assert (await ada.get("/maps/team/squares/live")).page.buttons() == buttons


async def test_the_number_of_workers_is_changed_on_the_mapjob(ada):
    await ada.make()
    spec = {"parallelism": 2, "template": {}, "command": ["true"]}
    ada.api.put(MAPJOBS, {"metadata": {"name": "squares", "namespace": "team"}, "spec": spec})
    assert (await ada.get("/maps/team/squares")).page.form("/maps/team/squares/workers") == {"workers": "2"}
    assert (await ada.post("/maps/team/squares/workers", workers="8")).status == 303
    assert (await ada.api.get(MAPJOBS, "squares", "team"))["spec"]["parallelism"] == 8
    asked = await ada.patch("/api/v1/maps/team/squares", parallelism=3)
    assert (asked.status, (await ada.api.get(MAPJOBS, "squares", "team"))["spec"]["parallelism"]) == (200, 3)
    refused = await ada.patch("/api/v1/maps/team/squares", parallelism=10_001)
    assert (refused.status, json.loads(refused.body)["field"]) == (422, "parallelism")
    wrong = await ada.post("/maps/team/squares/workers", workers="0")
    assert (wrong.status, wrong.json["message"]) == (422, "invalid number of workers 0: use 1 to 10,000")


async def test_items_are_listed_by_state_and_found_by_text(ada):
    await ada.make()
    items = [('0 "day-0"', "failed error: exit code 3"), ('1 "day-1"', "ready"), ('2 "day-2"', "ready")]
    for query, want in (("", items), ("?state=dead", items[:1]), ("?q=DAY-2", items[2:])):
        rows = (await ada.get(f"/maps/team/squares/items{query}")).page.rows("Items in their order")
        assert [(row["Item"], row["State"]) for row in rows] == want
    assert (await ada.get("/maps/team/squares/items?state=odd")).status == 400


async def test_settings_and_results_of_a_sweep_are_columns(ada):
    settings = [{"lr": 0.1, "batch": 32}, {"lr": 0.01, "note": "<b>"}]
    result = raw({"loss": 0.5, "note": "x" * 300})
    await ada.make(values=settings, outcome=Outcome.DONE, value=result)
    page = (await ada.get("/maps/team/squares/items?q=batch")).page
    assert [list(row) for row in page.rows("Items in their order")] == [
        ["Item", "lr", "batch", "loss", "note", "State", "Lost or failed tries", "Time"]
    ]
    names = ("Item", "lr", "batch", "note", "loss", "value.note")
    rows = (await ada.get("/maps/team/squares/items")).page.rows("Items in their order")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("0", "0.1", "32", "–", "0.5", "x" * 200 + "…"),
        ("1", "0.01", "–", "<b>", "–", "–"),
    ]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([{"lr": 1}, "plain"], [("", "1"), ('"plain"', "")]),
        ([{f"f{at}": at for at in range(13)}], [(json.dumps({f"f{at}": at for at in range(13)}),)]),
        ([{"long": "x" * 5000}], [('{"long": "' + "x" * 190 + "…",)]),
    ],
    ids=["mixed", "too many", "too long"],
)
def test_what_is_no_column_is_beside_the_number(values, want):
    items = [MapItem(item=at, state="ready", value=raw(value)) for at, value in enumerate(values)]
    rows = item_table(items, {})[1]
    assert [(row.name, *row.cells) for row in rows] == want


async def test_who_may_only_look_changes_nothing(site):
    async with site.running():
        ada = Browser(site)
        await ada.make()
        assert (await site.ask("/maps/team/squares")).page.buttons() == []
        assert (await site.ask("/maps/team/squares/items")).status == 403
