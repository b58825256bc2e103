"""From a warning to a suspension, step by step, and what must never happen on the way."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.idle.evidence import Idle, InUse, Unseen
from moorage.decide.idle.plan import (
    Act,
    Observed,
    Step,
    Work,
    after_notice,
    after_suspension,
    exempt_by,
    no_suspension,
    plan,
    recover,
    snooze,
)
from moorage.decide.idle.states import MEANINGS, MOVES, Record, State, move, read_record, write_record
from moorage.model.idle import Exemptions, Policy, QuietTimes
from moorage.model.moves import IllegalMove
from moorage_kube.errors import UsageError

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)  # a Monday
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
POLICY = Policy(
    name="gpus", warn_after=2 * HOUR, remind_after=4 * HOUR, suspend_after=8 * HOUR, snooze_longest=6 * HOUR
)
LAB = Work(kind="workspace", namespace="vision", name="lab", uid="u1", owner="ada", gpus=2, started=NOW - 9 * HOUR)


NOTHING = Record()


def idle_for(span, now=NOW):
    return Idle("it is idle", now - span, max(1, int(span / POLICY.window)), now)


def at(verdict, record=NOTHING, *, now=NOW, work=LAB, policy=POLICY):
    return plan(Observed(work=work, verdict=verdict, policy=policy, record=record, now=now))


class Life:
    """One piece of work over time, with a loop that does what is planned."""

    def __init__(self, work=LAB, policy=POLICY, start=NOW, reaches=True):
        self.work, self.policy, self.now, self.reaches = work, policy, start, reaches
        self.record, self.done = Record(), []
        self.used_at = start

    def look(self, *, after, used=False, unseen=False, killed=""):
        """Let time pass, look once. `killed`: the server dies before the "act", or before the "note" after it."""
        self.now += after
        if used:
            self.used_at = self.now
        verdict = Unseen("not measured") if unseen else InUse("GPU at 90 %", self.now) if used else None
        if unseen:
            self.used_at = self.now
        if verdict is None:
            idle = self.now - self.used_at
            verdict = idle_for(idle, self.now) if idle >= POLICY.window else InUse("just now", self.used_at)
        step = plan(
            Observed(work=self.work, verdict=verdict, policy=self.policy, record=self.record, now=self.now)
        )
        self.record = read_record(write_record(step.record))
        if killed == "act" and step.act:
            self.record = recover(self.record)
            return
        match step.act:
            case Act.NOTHING:
                return
            case Act.SUSPEND:
                self.done.append((Act.SUSPEND, self.now)) if not self.work.suspended else None
                self.work = replace(self.work, suspended=True)
                if killed != "note":
                    self.record = after_suspension(self.record)
            case act:
                self.done.append((act, self.now))
                if killed != "note":
                    self.record = after_notice(self.record, delivered=self.reaches)
        if killed == "note":
            self.record = recover(self.record)

    def pass_time(self, span, every=10 * MINUTE):
        for _ in range(int(span / every)):
            self.look(after=every)

    @property
    def acts(self):
        return [(str(act), (when - NOW) / HOUR) for act, when in self.done]


def test_a_workspace_is_warned_about_reminded_of_and_suspended():
    lab = Life()
    lab.pass_time(24 * HOUR)
    assert lab.acts == [("warn", 2.0), ("remind", 6.0), ("suspend", 10.0)]
    assert (lab.record.state, lab.record.pending) == (State.SUSPENDED, Act.REPORT)


def test_a_policy_without_suspension_warns_and_reminds_only():
    lab = Life(policy=replace(POLICY, suspend_after=None))
    lab.pass_time(72 * HOUR)
    assert lab.acts == [("warn", 2.0), ("remind", 6.0)]


def test_time_that_was_not_measured_yet_does_not_lead_to_a_warning():
    idle = Idle("it is idle", NOW - 2 * HOUR, 20, NOW - 10 * MINUTE)
    record = Record(state=State.IDLE, since=NOW - 2 * HOUR)
    assert at(idle, record).act is Act.NOTHING
    assert at(replace(idle, until=NOW), record).act is Act.WARN


@pytest.mark.parametrize("kind", ["map", "workflow"])
def test_maps_and_workflows_are_only_warned_about(kind):
    life = Life(work=replace(LAB, kind=kind))
    life.pass_time(24 * HOUR)
    assert life.acts == [("warn", 2.0), ("remind", 6.0)]


def test_a_run_is_suspended_only_with_a_checkpoint_newer_than_its_start():
    run = replace(LAB, kind="run")
    assert no_suspension(run, POLICY) == "it has no checkpoint"
    old = replace(run, checkpoint_at=run.started - HOUR)
    assert no_suspension(old, POLICY) == "it has no checkpoint newer than its start"
    assert no_suspension(replace(run, checkpoint_at=run.started + HOUR), POLICY) == ""
    life = Life(work=old)
    life.pass_time(24 * HOUR)
    assert life.acts == [("warn", 2.0), ("remind", 6.0)]


def test_use_ends_it_and_the_next_idleness_begins_anew():
    lab = Life()
    lab.pass_time(5 * HOUR)
    lab.look(after=10 * MINUTE, used=True)
    assert lab.record == Record()
    lab.pass_time(3 * HOUR)
    assert [act for act, _ in lab.acts] == ["warn", "warn"]


def test_a_source_of_readings_that_is_down_makes_nobody_idle():
    lab = Life()
    for _ in range(100):
        lab.look(after=HOUR, unseen=True)
    assert lab.done == []


def test_nothing_happens_in_quiet_hours():
    night = QuietTimes(UTC, ((frozenset(range(7)), datetime(1, 1, 1, 13).time(), datetime(1, 1, 1, 9).time()),))
    lab = Life(policy=replace(POLICY, quiet=night))
    lab.pass_time(120 * HOUR)
    # four loud hours a day, from 9 to 13: a span of four hours that begins at 9 ends at 9 on the next day
    assert lab.acts == [("warn", 21.0), ("remind", 45.0), ("suspend", 69.0)]


def test_a_snooze_puts_it_off_and_counts_in_a_row():
    lab = Life()
    lab.pass_time(3 * HOUR)
    lab.record = snooze(lab.record, POLICY, 6 * HOUR, by="ada", now=lab.now)
    assert (lab.record.state, lab.record.snoozed_until) == (State.SNOOZED, lab.now + 6 * HOUR)
    lab.pass_time(7 * HOUR)
    assert lab.acts == [("warn", 2.0), ("warn", 9.0)]
    for _ in range(2):
        lab.record = snooze(lab.record, POLICY, HOUR, by="ada", now=lab.now)
    with pytest.raises(UsageError, match="it was snoozed 3 times in a row: policy gpus allows 3 times"):
        snooze(lab.record, POLICY, HOUR, by="ada", now=lab.now)


def test_a_snooze_is_kept_within_the_limits():
    with pytest.raises(UsageError, match="cannot snooze for 7h: policy gpus allows 6h at most"):
        snooze(Record(), POLICY, 7 * HOUR, by="ada", now=NOW)
    with pytest.raises(UsageError, match="policy gpus allows no snooze"):
        snooze(Record(), replace(POLICY, snooze_times=0), HOUR, by="ada", now=NOW)
    written_by_hand = msgspec.structs.replace(
        snooze(Record(), POLICY, HOUR, by="ada", now=NOW), snoozed_until=NOW + timedelta(days=900)
    )
    step = at(idle_for(9 * HOUR, NOW + 7 * HOUR), written_by_hand, now=NOW + 7 * HOUR)
    assert step.act is Act.WARN


def test_a_resumed_workspace_begins_anew():
    lab = Life()
    lab.pass_time(24 * HOUR)
    lab.record = after_notice(lab.record, delivered=True)
    lab.work, lab.used_at = replace(lab.work, suspended=False), lab.now
    lab.look(after=10 * MINUTE, used=True)
    assert lab.record == Record()


@pytest.mark.parametrize(
    ("exempt", "why"),
    [
        (Exemptions(users=["ada"]), "its owner ada is exempt"),
        (Exemptions(names=["vision/l*"]), "its name is exempt (vision/l*)"),
        (Exemptions(names=["lab"]), "its name is exempt (lab)"),
        (Exemptions(labels={"keep": "yes"}), ""),
        (Exemptions(users=["bob"], names=["other/*"]), ""),
    ],
)
def test_exemptions_say_which_one_fits(exempt, why):
    assert exempt_by(LAB, exempt) == why
    step = at(idle_for(9 * HOUR), policy=replace(POLICY, exempt=exempt))
    assert (step.record.state is State.EXEMPT) == bool(why)


def test_no_notice_that_reached_nobody_leads_to_a_suspension():
    lab = Life(reaches=False)
    lab.pass_time(40 * HOUR)
    assert lab.acts[:4] == [("warn", 2.0), ("remind", 6.0), ("warn", 10.0), ("remind", 14.0)]
    assert {act for act, _ in lab.acts} == {"warn", "remind"}
    assert not lab.work.suspended


@pytest.mark.parametrize("when", ["act", "note"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_server_killed_at_a_step_does_nothing_twice(when, which):
    lab = Life()
    steps = 0
    for _ in range(24 * 6 * 3):
        before = len(lab.done), lab.record
        kill = when if steps == which else ""
        lab.look(after=10 * MINUTE, killed=kill)
        if lab.record != before[1] and (len(lab.done) > before[0] or lab.record.state != before[1].state):
            steps += lab.record.state in (State.WARNED, State.REMINDED, State.SUSPENDED)
    times = [act for act, _ in lab.done]
    assert times.count(Act.SUSPEND) == 1
    assert times.count(Act.REPORT) <= 1
    assert lab.work.suspended


@pytest.mark.parametrize(
    ("look", "suspends"),
    [
        pytest.param({}, True, id="still idle: suspended"),
        pytest.param({"used": True}, False, id="used since: not suspended"),
        pytest.param({"unseen": True}, False, id="not measured: not suspended yet"),
    ],
)
def test_a_server_that_died_before_a_suspension_looks_again_before_it_suspends(look, suspends):
    lab = Life()
    while lab.record.state is not State.SUSPENDED:
        lab.look(after=10 * MINUTE, killed="act" if lab.record.state is State.REMINDED else "")
    assert not lab.work.suspended
    lab.look(after=10 * MINUTE, **look)
    assert lab.work.suspended is suspends
    lab.pass_time(HOUR)
    assert lab.work.suspended is suspends  # used, or not measured: a new warning comes first


@given(st.randoms(use_true_random=False))
def test_over_any_life_the_rules_hold(rng: random.Random):
    lab = Life(work=replace(LAB, kind=rng.choice(["workspace", "run", "map"])))
    told: list[datetime] = []
    for _ in range(150):
        killed = rng.choice(["", "", "", "act", "note"])
        before = len(lab.done)
        roll = rng.random()
        lab.reaches = rng.random() < 0.8
        lab.look(
            after=rng.choice([5, 10, 60, 180]) * MINUTE, used=roll < 0.05, unseen=0.05 <= roll < 0.1, killed=killed
        )
        if roll > 0.95 and lab.record.state is not State.SUSPENDED:
            try:
                lab.record = snooze(lab.record, POLICY, HOUR, by="ada", now=lab.now)
            except UsageError:
                assert lab.record.snoozes >= POLICY.snooze_times
        assert len(lab.done) <= before + 1
        for act, when in lab.done[before:]:
            idle = when - lab.used_at
            if act in (Act.WARN, Act.REMIND):
                assert idle >= POLICY.warn_after
                if lab.reaches and not killed:
                    told.append(when)
            if act is Act.SUSPEND:
                assert lab.work.kind == "workspace"
                assert lab.used_at < max(told, default=lab.used_at) <= when
                assert idle >= POLICY.warn_after + POLICY.suspend_after
    assert [act for act, _ in lab.done].count(Act.SUSPEND) <= 1


@given(
    st.sampled_from(State),
    st.timedeltas(timedelta(0), timedelta(days=2)),
    st.sampled_from(["", "warn", "suspend"]),
)
def test_planning_again_at_once_changes_nothing_more(state, span, pending):
    record = Record(
        state=state,
        warned_at=NOW - span,
        since=NOW - span - 2 * HOUR,
        at=NOW - span,
        delivered=True,
        pending=pending,
    )
    verdict = Idle("it is idle", NOW - span - 2 * HOUR, 99, NOW)
    first = at(verdict, record, work=replace(LAB, suspended=state is State.SUSPENDED and not pending))
    work = replace(LAB, suspended=state is State.SUSPENDED or first.act is Act.SUSPEND)
    second = at(verdict, msgspec.structs.replace(first.record, told_at=NOW), work=work)
    if first.act is Act.SUSPEND:
        assert second.act is Act.REPORT
        return
    assert second == Step(msgspec.structs.replace(first.record, told_at=NOW), Act.NOTHING, changed=False)


def test_a_move_that_is_not_in_the_table_is_an_error_with_the_history():
    warned = move(move(Record(), State.IDLE, NOW), State.WARNED, NOW + HOUR)
    with pytest.raises(
        IllegalMove, match=r"from warned to idle; its last moves: idle 2026-01-05T12:00:00Z, warned"
    ):
        move(warned, State.IDLE, NOW)


def test_every_state_can_be_reached_and_left():
    for state in State:
        assert any(start is state for start, _ in MOVES)
        assert any(end is state for _, end in MOVES)


def test_a_record_that_somebody_wrote_by_hand_is_no_record():
    assert read_record("{") == read_record('{"state": "gone"}') == read_record("") == Record()


def test_the_page_of_idle_work_has_the_states():
    page = (Path(__file__).parents[6] / "docs" / "explanation" / "idle.md").read_text()
    assert "".join(f"| {state} | {meaning} |\n" for state, meaning in MEANINGS.items()) in page
