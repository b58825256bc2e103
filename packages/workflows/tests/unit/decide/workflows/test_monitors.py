"""Heartbeats: each once, in order, to the right address."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.targets import Email
from moorage_kube.testing.clock import NOON
from moorage_workflows.decide.workflows.monitors import (
    Beat,
    Due,
    RunState,
    beat_address,
    due,
    make_notice,
    parse_monitor,
    usual_time,
)

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
UID = "0b8c3f9e-8a55-4b1e-9a3e-6a0a0c1d2e3f"
START, SUCCESS, FAILURE, OVERDUE = Beat
HC, CR, X = "https://hc-ping.com/abc", "https://cronitor.link/p/K/m", "https://x.example/beat"


def a_run(phase="Running", *, started=NOON, finished=None, created=NOON - MINUTE, **more) -> RunState:
    return RunState(
        namespace="lab",
        name="n-1",
        uid=UID,
        phase=phase,
        created=created,
        started=started,
        finished=finished,
        **more,
    )


def a_monitor(**annotations: str):
    keys = {"monitor": "moorage.dev/monitor", "notify": "moorage.dev/notify"}
    given = {keys.get(key, f"moorage.dev/monitor-{key}"): text for key, text in annotations.items()}
    return parse_monitor(given)


ENDED = a_run("Succeeded", finished=NOON + MINUTE)


@pytest.mark.parametrize(
    ("run", "sent", "now", "after", "expected"),
    [
        pytest.param(a_run("", started=None), (), NOON, None, Due(look_again_at=NOON + 9 * MINUTE), id="waits"),
        pytest.param(a_run(), (), NOON, None, Due(START), id="started"),
        pytest.param(a_run(), (START,), NOON, None, Due(), id="goes on, and nobody knows how long it should"),
        pytest.param(a_run(), (START,), NOON, HOUR, Due(look_again_at=NOON + HOUR), id="goes on"),
        pytest.param(a_run(), (START,), NOON + HOUR, HOUR, Due(OVERDUE), id="overdue"),
        pytest.param(a_run(), (START, OVERDUE), NOON + 9 * HOUR, HOUR, Due(), id="overdue once"),
        pytest.param(a_run("", started=None), (), NOON + HOUR, None, Due(OVERDUE), id="does not start"),
        pytest.param(ENDED, (), NOON + 2 * MINUTE, None, Due(START), id="a short run starts before it ends"),
        pytest.param(ENDED, (START,), NOON + 2 * MINUTE, None, Due(SUCCESS), id="succeeded"),
        pytest.param(a_run("Failed", finished=NOON), (START,), NOON, None, Due(FAILURE), id="failed"),
        pytest.param(a_run("Error", started=None), (), NOON, None, Due(FAILURE), id="failed before it started"),
        pytest.param(a_run(is_deleted=True), (START,), NOON, None, Due(FAILURE), id="deleted while it ran"),
        pytest.param(ENDED, (START, SUCCESS), NOON, None, Due(is_done=True), id="all is said"),
        pytest.param(ENDED, (), NOON + 9 * HOUR, None, Due(is_done=True), id="old news is no news"),
        pytest.param(ENDED, (START,), NOON + 9 * HOUR, None, Due(SUCCESS), id="what was begun is finished"),
    ],
)
def test_the_next_beat(run, sent, now, after, expected):
    assert due(run, frozenset(sent), now, after) == expected


@given(
    st.lists(st.sampled_from(("", "Running", "Running", "Succeeded", "Failed")), max_size=12),
    st.lists(st.integers(0, 40), min_size=12, max_size=12),
    st.sampled_from((None, 5, 30)),
)
def test_beats_come_once_and_in_order(phases, minutes, after):
    """However often it is asked, whatever was seen of the run."""
    sent: list[Beat] = []
    now, started = NOON, None
    for phase, passed in zip(phases, minutes, strict=False):
        now += passed * MINUTE
        started = started or (now if phase else None)
        finished = now if phase in ("Succeeded", "Failed") else None
        run = a_run(phase, started=started, finished=finished)
        for _ in range(5):
            decided = due(run, frozenset(sent), now, None if after is None else after * MINUTE)
            if decided.beat is None:
                break
            sent.append(decided.beat)
        else:
            raise AssertionError("it never settles")
        if finished:
            break
    assert len(set(sent)) == len(sent)
    assert not set(sent) & {SUCCESS, FAILURE} or sent[-1] in (SUCCESS, FAILURE)
    assert not set(sent) & {SUCCESS, FAILURE} or START in sent


@pytest.mark.parametrize(
    ("annotations", "beat", "expected"),
    [
        pytest.param({"monitor": HC}, START, f"{HC}/start?rid={UID}", id="Healthchecks: start"),
        pytest.param({"monitor": f"{HC}/"}, SUCCESS, f"{HC}?rid={UID}", id="Healthchecks: success"),
        pytest.param({"monitor": f"{HC}?a=1"}, FAILURE, f"{HC}/fail?a=1&rid={UID}", id="Healthchecks: failure"),
        pytest.param({"monitor": HC}, OVERDUE, "", id="Healthchecks finds out itself"),
        pytest.param({"monitor": CR}, START, f"{CR}?state=run&series={UID}", id="Cronitor: run"),
        pytest.param({"monitor": CR}, SUCCESS, f"{CR}?state=complete&series={UID}", id="Cronitor: complete"),
        pytest.param({"monitor": CR}, FAILURE, f"{CR}?state=fail&series={UID}&message=a+b", id="Cronitor: fail"),
        pytest.param({"overdue": X}, OVERDUE, X, id="an address for one beat"),
        pytest.param({"monitor": HC, "success": X}, SUCCESS, X, id="the address for one beat wins"),
        pytest.param({"start": X}, SUCCESS, "", id="none"),
    ],
)
def test_where_a_beat_goes(annotations, beat, expected):
    monitor, problems = a_monitor(**annotations)
    assert problems == ()
    assert (
        beat_address(monitor, beat, UID, "a b" if beat is FAILURE and "cronitor" in expected else "") == expected
    )


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        pytest.param({"monitor": "ftp://x/secret"}, "moorage.dev/monitor: a webhook is an address", id="scheme"),
        pytest.param({"start": "https://u:secret@x/"}, "holds no user and no password", id="password"),
        pytest.param({"notify": "command:secret"}, "commands are not run for workflows", id="command"),
        pytest.param({"monitor": "https://x.example/", "after": "2d"}, "moorage.dev/monitor-after: ", id="days"),
        pytest.param({"monitor": "https://x.example/", "after": "0s"}, "use a duration such as 2h", id="no time"),
    ],
)
def test_what_is_wrong_is_said_without_secrets(annotations, problem):
    _, problems = a_monitor(**annotations)
    assert len(problems) == 1
    assert problem in problems[0]
    assert "secret" not in problems[0]


def test_no_annotation_is_no_monitor():
    assert a_monitor() == (None, ())


def test_people_are_told_of_failures():
    monitor, _ = a_monitor(notify="mailto:ada@example.com")
    assert monitor.targets == (Email(("ada@example.com",)),)
    notice = make_notice(a_run("Failed", message="child failed", cron="nightly"), FAILURE, NOON)
    assert notice.text == (
        "workflow lab/n-1 failed\nschedule: nightly\nchild failed\nshow it: moor workflow get n-1 -n lab"
    )
    assert make_notice(a_run(), OVERDUE, NOON + HOUR).title == "workflow lab/n-1 is overdue: it has run for 60m"
    assert make_notice(a_run(), START, NOON) is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param([], None, id="nothing is known"),
        pytest.param([3600, 3600], None, id="two say little"),
        pytest.param([1, 2, 3], 10 * MINUTE, id="ten minutes at least"),
        pytest.param([3600] * 19 + [7200], timedelta(hours=1.5), id="one slow run of twenty does not count"),
        pytest.param([3600] * 3, timedelta(hours=1.5), id="half as long again"),
    ],
)
def test_the_usual_time(seconds, expected):
    assert usual_time(seconds) == expected
