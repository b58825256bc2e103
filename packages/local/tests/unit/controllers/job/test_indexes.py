"""Completion indexes and pod failure policies by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.testing import builders
from moorage_kube.testing.builders import a_condition, a_container_status
from moorage_local.controllers.job.failure_policy import Verdict, judge
from moorage_local.controllers.job.indexes import first_missing, format_indexes, named, parse_indexes


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", set()),
        ("0", {0}),
        ("1,3-5,7", {1, 3, 4, 5, 7}),
        ("3,4", {3, 4}),
        ("0-99", set(range(10))),
        ("12", set()),
    ],
)
def test_indexes_are_read_below_the_limit(text, want):
    assert parse_indexes(text, 10) == want


@pytest.mark.parametrize(
    ("indexes", "want"),
    [((), ""), ((4,), "4"), ((3, 4), "3,4"), ((5, 3, 4), "3-5"), ((0, 1, 2, 9, 10), "0-2,9,10")],
)
def test_indexes_are_written_as_upstream_does(indexes, want):
    assert format_indexes(indexes) == want


@given(st.sets(st.integers(0, 60)))
def test_what_is_written_is_read_back(indexes):
    assert parse_indexes(format_indexes(indexes), 61) == indexes


TEXTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5)


@given(TEXTS, st.sets(st.integers(0, 30)), st.integers(0, 25))
def test_what_a_success_policy_names_is_found_among_the_indexes(spans, indexes, limit):
    text = ",".join(f"{first}-{last}" for first, last in spans)
    wanted = parse_indexes(text, limit)
    assert named(text, indexes, limit) == (indexes & wanted, indexes & wanted == wanted)


def test_a_span_over_all_numbers_takes_no_more_work_than_its_text():
    assert named("0-999999999999", {3, 5}, 2**31 - 1) == ({3, 5}, False)


@given(st.sets(st.integers(0, 20)), st.integers(0, 20), st.integers(0, 20))
def test_the_first_missing_indexes_are_the_lowest(done, completions, count):
    indexes = first_missing(done, completions, count)
    assert indexes == [index for index in range(completions) if index not in done][:count]


def a_pod(*codes, conditions=(), init=()):
    statuses = [a_container_status(f"c{at}", exit_code=code) for at, code in enumerate(codes)]
    first = [a_container_status(f"i{at}", exit_code=code) for at, code in enumerate(init)]
    true = [a_condition(*condition) for condition in conditions]
    return builders.a_pod(
        phase="Failed", statuses=statuses, conditions=true, status={"initContainerStatuses": first}
    )


def codes(action, operator, *values, container=None):
    rule = {"operator": operator, "values": list(values)}
    if container:
        rule["containerName"] = container
    return {"action": action, "onExitCodes": rule}


def conditions(action, *patterns):
    return {"action": action, "onPodConditions": [{"type": kind, "status": status} for kind, status in patterns]}


COUNTS, IGNORED = Verdict(), Verdict(counts=False)


@pytest.mark.parametrize(
    ("rules", "pod", "want"),
    [
        pytest.param([], a_pod(1), COUNTS, id="no rules"),
        pytest.param([codes("Ignore", "In", 1)], a_pod(1), IGNORED, id="in"),
        pytest.param([codes("Ignore", "In", 1)], a_pod(2), COUNTS, id="not in"),
        pytest.param([codes("Ignore", "NotIn", 1)], a_pod(2), IGNORED, id="NotIn"),
        pytest.param([codes("Ignore", "NotIn", 1)], a_pod(1), COUNTS, id="NotIn, listed"),
        pytest.param([codes("Ignore", "NotIn", 1)], a_pod(0), COUNTS, id="success is never matched"),
        pytest.param([codes("Ignore", "In", 3, container="c1")], a_pod(3, 0), COUNTS, id="another container"),
        pytest.param([codes("Ignore", "In", 3, container="c1")], a_pod(0, 3), IGNORED, id="that container"),
        pytest.param([codes("Ignore", "In", 3)], a_pod(None), COUNTS, id="still running"),
        pytest.param([codes("Ignore", "In", 3)], a_pod(0, init=[3]), IGNORED, id="an init container"),
        pytest.param(
            [conditions("Ignore", ("Gone", "True"))], a_pod(1, conditions=[("Gone", "True")]), IGNORED, id="c"
        ),
        pytest.param(
            [conditions("Ignore", ("Gone", "True"))],
            a_pod(1, conditions=[("Gone", "False")]),
            COUNTS,
            id="not true",
        ),
        pytest.param(
            [codes("Count", "In", 1), codes("FailJob", "In", 1)], a_pod(1), COUNTS, id="the first match decides"
        ),
    ],
)
def test_the_first_matching_rule_decides(rules, pod, want):
    assert judge({"rules": rules}, pod) == want


def test_without_a_policy_every_failure_counts():
    assert judge(None, a_pod(1)) == COUNTS
