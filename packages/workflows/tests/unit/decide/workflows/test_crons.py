"""`when` and `stopStrategy` of CronWorkflows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from moorage_kube.errors import MoorageError
from moorage_kube.testing.clock import NOON
from moorage_workflows.decide.workflows.crons import cron_scope, is_to_stop, is_wanted

CRON = {
    "metadata": {"name": "nightly", "namespace": "lab", "labels": {"team": "a"}, "annotations": {"pause": "yes"}}
}

LAST = "cronworkflow.lastScheduledTime"


def a_scope(last=NOON - timedelta(minutes=5), succeeded=2, failed=1):
    return cron_scope(CRON, last_scheduled=last, succeeded=succeeded, failed=failed)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param("", True, id="no condition"),
        pytest.param("{{cronworkflow.failed}} < 2", True, id="a tag in a condition"),
        pytest.param("{{cronworkflow.succeeded}} < 2", False, id="a count that is too high"),
        pytest.param("{{=cronworkflow.lastScheduledTime == nil}}", False, id="it ran before"),
        pytest.param(
            f"{{{{= {LAST} == nil || (now() - {LAST}).Seconds() > 30 }}}}",
            True,
            id="Argo's own example: not twice within 30 s",
        ),
        pytest.param(f"{{{{=(now() - {LAST}).Minutes() > 30}}}}", False, id="within 30 minutes"),
        pytest.param("{{cronworkflow.annotations.pause}} != yes", False, id="annotations are annotations"),
        pytest.param("{{cronworkflow.labels.team}} == a && {{cronworkflow.name}} == nightly", True, id="labels"),
    ],
)
def test_when(when, expected):
    assert is_wanted(when, a_scope(), NOON) is expected


def test_the_first_slot_has_no_time_before_it():
    assert is_wanted("{{=cronworkflow.lastScheduledTime == nil}}", a_scope(last=None), NOON)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param("", False, id="none"),
        pytest.param("cronworkflow.succeeded >= 2", True, id="enough"),
        pytest.param("cronworkflow.failed >= 2", False, id="not yet"),
        pytest.param("cronworkflow.failed", False, id="a number is no yes"),
    ],
)
def test_the_stop_strategy(expression, expected):
    assert is_to_stop(expression, a_scope(), NOON) is expected


@pytest.mark.parametrize("text", ["{{cronworkflow.unknown}} == 1", "{{=cronworkflow.unknown}}", "(", "{{=(}}"])
def test_what_cannot_be_evaluated_is_an_error(text):
    with pytest.raises(MoorageError):
        is_wanted(text, a_scope(), NOON)
    with pytest.raises(MoorageError):
        is_to_stop("cronworkflow.unknown == 1", a_scope(), NOON)
