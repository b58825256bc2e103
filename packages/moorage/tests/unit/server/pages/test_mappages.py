"""The pages of maps: who sees what, and that what users wrote is text."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest

from moorage.api.maps import FINISHED, Map, MapState
from moorage.decide.maps.leasing import Exchange, Outcome, Policy, Report
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import COMMAND_ANNOTATION, MAP_PLAN_ANNOTATION
from moorage.queue.store import NewItem
from moorage.server.pages.mapboard import map_rows
from moorage_kube.resources import NAMESPACES

pytestmark = pytest.mark.anyio

ADA = {"authorization": "Bearer kube-token"}
EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def queue(site):
    site.api.put(NAMESPACES, {"metadata": {"name": "lab", "creationTimestamp": "2001-01-01T00:00:00Z"}})
    await site.service.queue.start()
    yield site.service.queue
    await site.service.queue.close()


async def make(queue, name="features", owner="ada", *, items=4, failed=(), done=(), closed=True):
    """A map some of whose items have ended."""
    found = await queue.create_map(namespace="lab", name=name, owner=owner, policy=Policy(retries=0), request=name)
    values = [NewItem(value=msgspec.Raw(json.dumps(f"{EVIL} {at}").encode()), seconds=0.1) for at in range(items)]
    if values:
        await queue.add_items(found.map.id, values)
    await queue.change_map(found.map.id, closed=closed)
    request = 0
    while len(failed) + len(done) > request // 2:
        asked = Exchange(session="w", request=request + 1, want=1, held=[])
        ((item, lease, _),) = (await queue.exchange(found.map.id, asked)).items
        bad = {"outcome": Outcome.ERROR, "message": f"exit code 3 {EVIL}", "output": b"the end " + EVIL.encode()}
        told = bad if item in failed else {"outcome": Outcome.DONE}
        report = Report(item=item, lease=lease, seconds=4.0, **told)
        await queue.exchange(found.map.id, Exchange(session="w", request=request + 2, reports=[report], held=[]))
        request += 2


def put_mapjob(site):
    plan = {"nodes": 38, "machine": "n1", "market": "spot", "pods": 3600, "items": 150_000, "seconds": 1200}
    money = {"meanSeconds": 4.0, "money": 12.16, "currency": "USD", "pricePerHour": 0.96, "podsPerNode": 96}
    site.api.put(
        MAPJOBS,
        {
            "metadata": {
                "name": "features",
                "namespace": "lab",
                "annotations": {COMMAND_ANNOTATION: "make {item}", MAP_PLAN_ANNOTATION: json.dumps(plan | money)},
            },
            "spec": {"parallelism": 3600, "template": {}},
            "status": {
                "workers": {"restarts": 7},
                "conditions": [{"type": "Working", "status": "False", "message": "the quota allows 400 workers"}],
            },
        },
    )


async def test_all_maps_are_listed_with_their_progress(site, queue):
    await make(queue, items=4, failed=(1,), done=(0, 2))
    await make(queue, "other", "bob", items=3)
    page = await site.ask("/maps")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    rows = page.page.rows("Maps with their owners: those at work first, then the newest")
    assert [(row["Map"], row["Progress"]) for row in rows] == [
        ("features ada lab", "75 % · 3 of 4"), ("other bob lab", "0 % · 0 of 3"),
    ]  # fmt: skip
    assert page.page.links("tbody")[0] == ("features", "/maps/lab/features")
    assert (await site.ask("/maps/live")).text in page.text
    assert page.page.texts('nav [aria-current="page"]') == ["Maps"]


async def test_without_maps_the_page_says_how_to_make_one(site, queue):
    empty = "No map yet. A map runs one command for each of many items."
    assert (await site.ask("/maps")).page.texts(".empty") == [empty]


async def test_who_may_get_the_map_sees_what_failed_and_what_it_printed_as_text(site, queue):
    site.api.readers.add(("ada", "lab"))
    await make(queue, failed=(1,), done=(0,))
    put_mapjob(site)
    answer = await site.ask("/maps/lab/features", headers=ADA)
    assert answer.status == 200
    assert "the end &lt;script&gt;" in answer.text
    assert "<script>alert" not in answer.text
    assert (await site.ask("/maps/lab/features/live", headers=ADA)).text in answer.text
    page = answer.page
    assert (page.texts(".big"), page.texts("main .note")) == (
        ["50 % of 4 items"],
        ["The quota allows 400 workers."],
    )
    assert page.facts["Command"] == "make {item}"
    assert page.facts["Workers"] == "1 at work, at most 3,600, 7 replaced"
    assert page.texts("p.quiet") == ["38 nodes n1, spot, 3,600 workers"]
    assert [tuple(row.values()) for row in page.rows()] == [
        ("Items", "150,000", "2"), ("Time", "20m", "0s"), ("An item", "4 s", "4 s"),
        ("Cost", "12.16 USD", "0.00 USD of items alone"),
    ]  # fmt: skip


async def test_who_may_not_get_the_map_sees_how_far_it_is_and_nothing_of_its_items(site, queue):
    await make(queue, failed=(1,), done=(0,))
    put_mapjob(site)
    page = await site.ask("/maps/lab/features")
    assert page.status == 200
    assert page.page.texts(".legend li") == ["1 done", "1 failed", "2 to come"]
    assert [word for word in ("the end", "make {item}", "exit code 3") if word in page.text] == []
    hidden = "Only users who may get this map see the items and their output:"
    assert page.page.texts(".empty") == [f"{hidden} moor map items --failed features -n lab"]


async def test_a_map_without_items_or_mapjob_has_a_page_too(site, queue):
    await make(queue, items=0, closed=False)
    page = await site.ask("/maps/lab/features", headers=ADA)
    assert (page.status, page.page.facts["Items"]) == (200, "more may be added")


async def test_a_map_that_is_not_there_is_not_found(site, queue):
    assert (await site.ask("/maps/lab/none")).status == 404


async def test_strangers_see_no_page(site, queue):
    assert (await site.ask("/maps", token=False)).status == 401
    assert (await site.ask("/maps/lab/features/live", token=False)).status == 401


def test_maps_at_work_come_first_then_the_newest(site):
    def a_map(number, state, name=""):
        created = datetime(2026, 3, 1 + number % 28, number // 28, tzinfo=UTC)
        return Map(namespace="lab", name=name or f"m{number}", owner="ada", state=state, created_at=created)

    maps = [a_map(number, FINISHED) for number in range(105)]
    maps += [a_map(0, MapState.PAUSED, "held"), a_map(0, MapState.RUNNING, "at-work")]
    rows = map_rows(maps, site.clock.now())
    assert [row.name for row in rows[:2]] == ["at-work", "held"]
    assert [row.created.iso for row in rows[2:]] == sorted((row.created.iso for row in rows[2:]), reverse=True)
    assert len(rows) == 107
