from __future__ import annotations

from datetime import timedelta

import pytest

from moorage.decide.usage.intervals import Interval, Open
from moorage.model.budget import BUDGETS
from moorage.model.reservation import EXPIRED, bookings_of
from moorage.server.pages.frontparts import BookingRow, booking_rows
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON

DAY = timedelta(days=1)


def a_reservation(name, start, end, *, user=""):
    """`start` and `end` in days from noon."""
    spec = {"machineGroup": "gpu", "machineType": "large", "count": 2}
    spec |= {"from": rfc3339(NOON + start * DAY), "to": rfc3339(NOON + end * DAY)} | (
        {"user": user} if user else {}
    )
    return {"metadata": {"namespace": "vision", "name": name}, "spec": spec}


def test_reservations_are_bars_over_the_coming_days():
    objs = [
        a_reservation("later", 2, 4, user="ada"),
        a_reservation("now", -1, 1),
        a_reservation("over", -3, -1),
        a_reservation("long", 10, 40),
        a_reservation("expired", 1, 2),
    ]
    rows = booking_rows(bookings_of(objs), {("vision", "expired"): EXPIRED}, NOON)
    assert [(row.name, row.whom, row.left, row.width, row.is_active) for row in rows] == [
        ("now", "vision", 0.0, 1.0, True),
        ("later", "ada", 2.0, 2.0, False),
        ("long", "vision", 10.0, 4, False),
    ]
    assert rows[0] == BookingRow(
        namespace="vision",
        name="now",
        what="2 × gpu/large",
        whom="vision",
        hue=rows[0].hue,
        begins="2026-11-20 12:00",
        ends="2026-11-22 12:00",
        left=0.0,
        width=1.0,
        is_active=True,
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/glance/history", "GPUs in use over time"),
        ("/glance/work", "Reservations, maps and workflows"),
        ("/glance/cost", "Cost, last 7 days"),
    ],
)
async def test_a_part_is_a_page_with_a_title_where_no_script_asks_for_it(site, path, title):
    async with site.running():
        page, part = await site.ask(path), await site.ask(path, headers={"hx-request": "true"})
        assert page.page.texts("title") == [f"Moorage: {title}"]
        assert part.text in page.text
        assert part.page.all("html") == []


@pytest.mark.anyio
async def test_the_use_over_time_is_charted_once_there_is_some(site):
    site.node(gpus=4)
    async with site.running():
        empty = "The history is empty: it begins with the first pod that holds a GPU."
        assert (await site.ask("/glance/history")).page.texts(".empty") == [empty]
        held = Interval(
            pod_uid="u",
            namespace="lab",
            pod="p",
            run="r",
            attempt=1,
            owner="ada",
            node="n1",
            gpu_type="a100",
            gpus=3,
            cpu_milli=0,
            memory_bytes=0,
            started_at=NOON - 2 * DAY,
            ended_at=NOON,
            last_seen_at=NOON,
        )
        site.service.usage.apply([Open(held)])
        site.clock.advance(601)
        page = (await site.ask("/glance/history")).page
        figures = [f"GPUs in use, last {time}" for time in ("24 hours", "30 days")]
        assert page.texts("[data-chart] figcaption") == figures
        assert "3 GPUs" in page.texts("#use-day td")


@pytest.mark.anyio
async def test_who_may_only_look_is_told_so_in_place_of_empty_lists(site):
    async with site.running():
        page = (await site.ask("/glance/work")).page
        assert page.texts(".empty") == [
            "No idle work holds a GPU.",
            "You may list no reservations, or this cluster has no machines to reserve.",
            "No map yet.",
            "You may list no workflows.",
        ]


@pytest.mark.anyio
async def test_a_budget_is_shown_to_whom_it_holds_for(site):
    obj = {"metadata": {"name": "hours", "generation": 1}}
    obj |= {"spec": {"period": "month", "users": ["ada", "ben"], "gpuHours": "5"}}
    start, end = NOON - 20 * DAY, NOON + 10 * DAY
    obj["status"] = {
        "start": rfc3339(start),
        "end": rfc3339(end),
        "computedAt": rfc3339(NOON),
        "observedGeneration": 1,
        "uses": [
            {"name": "ada", "used": "6.00", "percent": 120},
            {"name": "ben", "used": "1.00", "percent": 20},
        ],
    }
    site.api.put(BUDGETS, obj)
    async with site.running():
        answer = await site.ask("/glance/cost", headers={"authorization": "Bearer kube-token"}, token=False)
        assert [
            tuple(row.values()) for row in answer.page.rows("Budgets that hold for you, the fullest first")
        ] == [("hours", "ada", "120 % · 6.00 / 5 GPU-hours", rfc3339(end)[:10])]
        assert "ben" not in answer.text
        assert answer.page.all("table .b-over") != []
        assert "Budgets" not in (await site.ask("/glance/cost")).text  # who only looks has none
