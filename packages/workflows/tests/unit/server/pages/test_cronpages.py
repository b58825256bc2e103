"""The pages of schedules: what they say, and what their buttons do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.api.crons import Cron, CronRun
from moorage.model.argo import CRON_LABEL, CRON_WORKFLOWS, SCHEDULED_ANNOTATION, WORKFLOWS
from moorage_kube.moments import rfc3339
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON
from moorage_workflows.server.pages.cronboard import LATE, cron_row, local, overdue_slot

ADA = {"headers": {"authorization": "Bearer kube-token"}, "token": False}
EVIL = "<script>alert(1)</script>"
SLOT = datetime(2026, 3, 1, 8, tzinfo=UTC)


def a_cron(**fields):
    values = {"namespace": "team", "name": "nightly", "schedules": ("0 8 * * *",), "in_words": ("At 08:00",)}
    return Cron(**values | fields)


@pytest.mark.parametrize(
    ("cron", "now", "state"),
    [
        pytest.param(a_cron(last=SLOT), SLOT + timedelta(hours=9), "Active", id="its newest slot was run"),
        pytest.param(
            a_cron(last=SLOT), SLOT + timedelta(days=1), "Active", id="the operator has a moment to run it"
        ),
        pytest.param(
            a_cron(last=SLOT), SLOT + timedelta(days=1) + LATE, "Overdue", id="the next slot passed without a run"
        ),
        pytest.param(a_cron(), SLOT + timedelta(days=9), "Active", id="no operator has looked at it"),
        pytest.param(
            a_cron(created=SLOT, since=SLOT), SLOT + timedelta(days=1), "Active", id="its first slot has a moment"
        ),
        pytest.param(
            a_cron(created=SLOT, since=SLOT),
            SLOT + timedelta(days=1) + LATE,
            "Overdue",
            id="its first slot passed without a run",
        ),
        pytest.param(a_cron(last=SLOT, suspended=True), SLOT + timedelta(days=9), "Suspended", id="suspended"),
        pytest.param(a_cron(last=SLOT, stopped=True), SLOT + timedelta(days=9), "Stopped", id="stopped for good"),
        pytest.param(a_cron(problem="bad", schedules=("x",)), SLOT, "Invalid", id="no slot can be told"),
    ],
)
def test_a_schedule_has_the_state_that_a_person_wants_to_know(cron, now, state):
    assert cron_row(cron, now).state == state


def test_a_late_run_that_waits_for_an_earlier_one_says_so():
    cron = a_cron(last=SLOT, active=("nightly-1",), concurrency_policy="Forbid")
    row = cron_row(cron, SLOT + timedelta(days=2, hours=1))
    words = "The slot of 2026-03-03 08:00 UTC did not run: an earlier run is active, and the policy is Forbid"
    assert row.overdue == words


@given(st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)), st.integers(0, 10**7))
def test_only_a_slot_after_the_last_run_is_overdue(last, seconds):
    last = last.replace(tzinfo=UTC, second=0, microsecond=0)
    now = last + timedelta(seconds=seconds)
    slot = overdue_slot(a_cron(last=last), now)
    assert slot is None or last < slot <= now - LATE
    assert (slot is None) or slot.hour == 8


def test_times_are_told_on_the_clock_of_the_schedule():
    assert local(SLOT, "Asia/Tokyo") == "2026-03-01 17:00 JST"
    assert local(SLOT, "Nowhere/Else") == rfc3339(SLOT)
    assert local(None, "UTC") == ""


def test_the_last_run_is_told_with_its_slot():
    run = CronRun(
        name="nightly-1", phase="Failed", scheduled=SLOT, started=SLOT, finished=SLOT + timedelta(minutes=5)
    )
    row = cron_row(a_cron(last=SLOT, last_run=run), SLOT + timedelta(hours=1))
    assert (row.last.state, row.last.tone, row.last.slot, row.last.took) == (
        "Failed", "bad", "2026-03-01 08:00 UTC", "5m",
    )  # fmt: skip


class Browser:
    """ada, who may do everything with schedules of namespace team."""

    def __init__(self, site):
        self.site, self.api = site, site.api
        site.api.with_token = lambda token, *_: site.api
        site.api.readers |= {("ada", "team"), ("ada", None)}
        site.api.put(NAMESPACES, {"metadata": {"name": "team"}})

    async def get(self, path, **fields):
        return await self.site.ask(f"{path}?{urlencode(fields)}" if fields else path, **ADA)

    async def post(self, path, **form):
        headers = ADA["headers"] | {"content-type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        return await self.site.ask(path, method="POST", headers=headers, body=body, token=False)


@pytest.fixture
async def ada(site):
    async with site.running():
        reader = Browser(site)
        site.api.put(
            CRON_WORKFLOWS,
            {
                "metadata": {"name": "nightly", "namespace": "team", "creationTimestamp": rfc3339(NOON)},
                "spec": {
                    "schedules": ["0 8 * * 1-5"],
                    "timezone": "Asia/Tokyo",
                    "workflowSpec": {
                        "entrypoint": "main",
                        "templates": [{"name": "main", "container": {"image": "busybox", "command": ["true"]}}],
                    },
                },
                "status": {"lastScheduledTime": rfc3339(NOON), "succeeded": 3, "failed": 1},
            },
        )
        meta = {
            "name": "nightly-1",
            "namespace": "team",
            "uid": "u1",
            "labels": {CRON_LABEL: "nightly"},
            "annotations": {SCHEDULED_ANNOTATION: rfc3339(NOON)},
            "creationTimestamp": rfc3339(NOON),
        }
        site.api.put(WORKFLOWS, {"metadata": meta, "spec": {}, "status": {"phase": "Failed", "message": EVIL}})
        yield reader


@pytest.mark.anyio
async def test_schedules_are_listed_in_words_with_their_zone_next_slot_and_last_run(ada):
    page = await ada.get("/crons")
    assert page.status == 200
    assert [tuple(row.values()) for row in page.page.rows("Schedules by namespace and name")] == [
        ("nightly team", "Active", "At 08:00 on Monday through Friday Asia/Tokyo",
         "2026-11-23 08:00 JST in 1d 11h", "Failed 2026-11-21 21:00 JST")
    ]  # fmt: skip
    run = ("2026-11-21 21:00 JST", "/workflows/team/nightly-1")
    assert page.page.links("tbody") == [("nightly", "/crons/team/nightly"), run]
    assert (await ada.get("/crons/live")).text in page.text
    assert (await ada.get("/crons/live", q="other")).page.texts(".empty") == [
        "No schedule matches “other”. Show all 1"
    ]


@pytest.mark.anyio
async def test_a_schedule_shows_its_runs_as_text(ada):
    page = await ada.get("/crons/team/nightly")
    assert page.status == 200
    assert page.page.texts("h2") == ["Runs 3 succeeded, 1 failed; a run that would overlap: Allow"]
    assert page.page.links("tbody") == [("nightly-1", "/workflows/team/nightly-1")]
    assert page.page.buttons() == ["Run now", "Suspend", "Delete"]
    assert ("&lt;script&gt;alert" in page.text, "<script>alert" in page.text) == (True, False)
    assert (await ada.get("/crons/team/nightly/live")).text in page.text


@pytest.mark.anyio
async def test_a_schedule_is_suspended_and_resumed(ada):
    for verb, is_suspended, note in (
        ("suspend", True, "team/nightly is suspended: its slots are skipped."),
        ("resume", False, "team/nightly runs again at its next slot."),
    ):
        assert (await ada.get("/crons/team/nightly")).page.form(f"/crons/team/nightly/{verb}") == {}
        answer = await ada.post(f"/crons/team/nightly/{verb}")
        assert answer.status == 303
        assert (await ada.api.get(CRON_WORKFLOWS, "nightly", "team"))["spec"]["suspend"] is is_suspended
        assert (await ada.get(answer.headers["location"])).page.note == note


@pytest.mark.anyio
async def test_a_schedule_is_run_now_once_for_a_form_that_is_sent_twice(ada):
    path = "/crons/team/nightly/run"
    assert (await ada.get(path)).page.form(path).keys() == {"key"}
    first, again = [await ada.post("/crons/team/nightly/run", key="one form") for _ in range(2)]
    assert first.status == 303, first.text
    assert first.headers["location"] == again.headers["location"]
    assert len((await ada.api.list(WORKFLOWS, "team")).items) == 2


@pytest.mark.anyio
async def test_a_schedule_is_deleted_after_the_page_asked(ada):
    question = (await ada.get("/crons/team/nightly/delete")).page.texts(".ask p")
    assert question[0] == "It is in namespace team. Its workflows go with it."
    answer = await ada.post("/crons/team/nightly/delete")
    assert answer.headers["location"] == "/crons?done=deleted&what=team%2Fnightly"
    assert (await ada.api.list(CRON_WORKFLOWS, "team")).items == []


@pytest.mark.anyio
async def test_without_a_right_no_button_is_shown_and_no_page_asks(ada):
    ada.api.readers.clear()
    assert (await ada.get("/crons/team/nightly")).page.buttons() == []
    assert (await ada.get("/crons/team/nightly/delete")).status == 403


@pytest.mark.anyio
async def test_a_schedule_that_is_not_there_is_not_found(ada):
    assert (await ada.get("/crons/team/none")).status == 404


@pytest.mark.anyio
async def test_without_schedules_the_page_says_how_to_create_one(ada):
    await ada.post("/crons/team/nightly/delete")
    assert (await ada.get("/crons")).page.texts(".empty code") == ["moor cron create FILE"]
