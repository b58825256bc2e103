from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.maps.notices import Event, MapState, NoticeRules, due, plain
from moorage_kube.errors import UsageError

STATE = MapState(
    namespace="lab", name="features", total=100, done=0, failed=0, address="https://moor/maps/features"
)
RULES = NoticeRules(failure_share=0.1)


@pytest.mark.parametrize(
    ("rules", "state", "events"),
    [
        pytest.param(RULES, {"done": 5}, [], id="all well: nothing"),
        pytest.param(RULES, {"done": 50, "failed": 1}, ["first-failure"], id="first failure"),
        pytest.param(RULES, {"done": 3, "failed": 1}, ["first-failure"], id="too few for a share"),
        pytest.param(RULES, {"done": 18, "failed": 2}, ["first-failure", "failure-share"], id="share reached"),
        pytest.param(RULES, {"done": 98, "failed": 2, "ended": True}, ["ended"], id="the end says it all"),
        pytest.param(RULES, {"total": 2, "failed": 2}, ["first-failure", "failure-share"], id="a small map"),
        pytest.param(NoticeRules(first_failure=False), {"failed": 9}, [], id="not wanted"),
        pytest.param(
            NoticeRules(at_end=False), {"failed": 9, "ended": True}, ["first-failure"], id="end not wanted"
        ),
    ],
)
def test_notices_are_due_when_it_happens(rules, state, events):
    assert [notice.event for notice in due(rules, replace(STATE, **state), frozenset()).notices] == events


counts = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=30)


@given(counts)
def test_each_notice_is_sent_at_most_once_however_often_the_caller_restarts(steps):
    marks: frozenset[str] = frozenset()
    sent: list[str] = []
    done = failed = 0
    for more_done, more_failed, ended in steps:
        done, failed = done + more_done, failed + more_failed
        state = replace(STATE, total=1000, done=done, failed=failed, ended=ended)
        found = due(RULES, state, marks)
        assert found.marks >= marks
        marks = found.marks
        sent += [notice.key for notice in found.notices]
        assert due(RULES, state, frozenset(sorted(marks))).notices == ()
    assert len(sent) == len(set(sent))


def test_a_retry_is_told_of_anew():
    ended = replace(STATE, done=99, failed=1, ended=True)
    first = due(RULES, ended, frozenset())
    again = due(RULES, replace(ended, round=2, done=100, failed=0), first.marks)
    assert [one.key for one in (*first.notices, *again.notices)] == [
        "lab/features/ended/1",
        "lab/features/ended/2",
    ]


def test_the_end_has_the_counts_the_first_error_and_the_lists_address():
    state = replace(
        STATE, done=97, failed=3, ended=True, outcome="failed", seconds=5400, first_failed_item="2019-10-05",
        first_error="Traceback\n\x1b[31mValueError: odd\u202e",
    )  # fmt: skip
    (notice,) = due(RULES, state, frozenset()).notices
    assert notice.event is Event.ENDED
    assert notice.text.splitlines() == [
        "map lab/features: failed",
        "97 of 100 items done, 3 failed",
        "after 1h30m",
        "first failed item: 2019-10-05",
        "Traceback [31mValueError: odd",
        "https://moor/maps/features",
    ]


@given(st.text())
def test_plain_text_is_one_line_that_can_be_encoded(text):
    assert len(plain(text).splitlines()) <= 1
    plain(text).encode()


def test_a_share_that_is_none_is_refused():
    with pytest.raises(UsageError, match="above 0 and up to 1"):
        NoticeRules(failure_share=0)
