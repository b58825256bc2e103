"""How many schedules a CronWorkflow may have when it is stored."""

from __future__ import annotations

import pytest

from moorage.decide.admission.order import judge
from moorage.decide.admission.review import Refusal, Request


def a_cron(schedules: int, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": "c"}, "spec": {"schedules": ["0 8 * * *"] * schedules, **spec}}


TOO_MANY = Refusal("spec.schedules", "101 schedules", "at most 100 are allowed")


@pytest.mark.parametrize(
    ("before", "after", "refusals"),
    [
        pytest.param(None, a_cron(100), (), id="as many as are allowed"),
        pytest.param(None, a_cron(101), (TOO_MANY,), id="one more"),
        pytest.param(a_cron(1), a_cron(101), (TOO_MANY,), id="added later"),
        pytest.param(a_cron(101), a_cron(101, suspend=True), (), id="stored before the limit, and suspended"),
        pytest.param(None, {"metadata": {}, "spec": None}, (), id="without a spec"),
    ],
)
def test_a_cronworkflow_has_at_most_100_schedules(before, after, refusals):
    operation = "CREATE" if before is None else "UPDATE"
    request = Request(kind="CronWorkflow", operation=operation, user="ada", obj=after, old=before)
    assert judge(request).refusals == refusals
