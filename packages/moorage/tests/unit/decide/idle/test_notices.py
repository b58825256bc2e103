"""Notices about idle work: what they tell owners to type is what the policy allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from moorage.decide.idle.notices import make_notice
from moorage.decide.idle.plan import Act, Work
from moorage.decide.idle.states import Record, State
from moorage.model.idle import BUILT_IN

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
WARNED = Record(state=State.WARNED, since=NOW, warned_at=NOW, gpus=1)
LAB = Work(kind="workspace", namespace="vision", name="lab", uid="u1", owner="ada", gpus=1)


@pytest.mark.parametrize(
    ("longest", "words"), [(24 * HOUR, "--for 4h (up to 1d)"), (2 * HOUR, "--for 2h (up to 2h)")]
)
@pytest.mark.parametrize(
    ("work", "command"),
    [
        (LAB, "moor workspace snooze lab -n vision"),
        (replace(LAB, kind="run", name="train"), "moor snooze run/train -n vision"),
    ],
)
def test_a_notice_names_a_snooze_that_the_policy_allows(longest, words, work, command):
    notice = make_notice(Act.WARN, work, WARNED, replace(BUILT_IN, snooze_longest=longest))
    assert notice.lines[-1] == f"Needed: use it, or snooze it: {command} {words}"


@pytest.mark.parametrize("times", [0, 2])
def test_a_notice_names_no_snooze_where_none_is_left(times):
    record = Record(state=State.REMINDED, since=NOW, warned_at=NOW, gpus=1, snoozes=times)
    assert (
        make_notice(Act.REMIND, LAB, record, replace(BUILT_IN, snooze_times=times)).lines[-1] == "Needed: use it"
    )
