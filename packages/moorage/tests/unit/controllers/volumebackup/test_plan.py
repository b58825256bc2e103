"""When a volume is copied: once for each moment that was due, the last alone of those missed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.controllers.volumebackup.plan import BringBack, Copy, DropJob, JobSeen, Seen, plan
from moorage.model.volumebackup import (
    Restore,
    StoredBackup,
    VolumeBackupStatus,
    backup_job,
    backup_name,
    is_schedule,
    make_backup,
    parse_backup,
    restore_job,
)
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON

MADE = NOON - timedelta(hours=2)


def a_view(schedule="0 * * * *", *, status=None, restore=None, suspend=False, to="s3://b/x"):
    obj = make_backup("data", "lab", volume="data", to=to, schedule=schedule, keep=3, secret="", user="ada")
    obj["metadata"] |= {"uid": "u", "creationTimestamp": rfc3339(MADE)}
    view = parse_backup(obj)
    spec = msgspec_replace(view.spec, restore=restore, suspend=suspend)
    return replace(view, spec=spec, status=status or view.status)


def msgspec_replace(spec, **changes):
    import msgspec

    return msgspec.structs.replace(spec, **changes)


def a_job(at: datetime = NOON, **given) -> JobSeen:
    return JobSeen(**({"name": backup_job("data", at), "uid": f"u{at}", "created": at} | given))


def result(at: datetime, kept: list[str] | None = None) -> dict:
    name = backup_name("lab.data", at)
    return {"phase": "ready", "name": name, "files": 2, "bytes": 20, "sha256": "abc", "kept": kept or [name]}


def seen(now=NOON, **given) -> Seen:
    view = given.pop("backup", None) or a_view()
    return Seen(backup=view, now=now, **given)


LAST = VolumeBackupStatus(last_scheduled=rfc3339(NOON))


@pytest.mark.parametrize(
    ("given", "phase", "actions"),
    [
        pytest.param({}, "Idle", [Copy(NOON)], id="due, and those missed before are not made up for"),
        pytest.param({"backup": a_view(status=LAST)}, "Idle", [], id="taken up already"),
        pytest.param(
            {"backup": a_view(status=LAST), "now": NOON + timedelta(minutes=61)},
            "Idle",
            [Copy(NOON + timedelta(hours=1))],
            id="the next",
        ),
        pytest.param({"jobs": [a_job()]}, "Running", [], id="one at a time"),
        pytest.param({"backup": a_view(suspend=True)}, "Idle", [], id="suspended"),
        pytest.param({"volume": False}, "Failed", [], id="no volume"),
        pytest.param({"able": "no image"}, "Failed", [], id="nothing to run it in"),
        pytest.param({"backup": a_view("")}, "Idle", [Copy(MADE)], id="once"),
        pytest.param({"backup": a_view("", status=LAST)}, "Idle", [], id="once, and no more"),
        pytest.param({"backup": a_view(to="volume:../x")}, "Failed", [], id="no place"),
        pytest.param({"jobs": [a_job(failed=True)], "backup": a_view(status=LAST)}, "Failed", [], id="failed"),
        pytest.param(
            {"jobs": [a_job(succeeded=True)], "backup": a_view(status=LAST)},
            "Failed",
            [],
            id="ended without a word",
        ),
        pytest.param({"jobs": [a_job(ours=False)]}, "Idle", [Copy(NOON)], id="a stranger's Job"),
    ],
)
def test_what_is_to_be_done(given, phase, actions):
    decided = plan(seen(**given))
    assert (decided.status.phase, list(decided.actions)) == (phase, actions)


def test_a_moment_is_taken_up_before_its_job_is_made():
    assert plan(seen()).status.last_scheduled == rfc3339(NOON)
    assert plan(seen()).status.next == rfc3339(NOON + timedelta(hours=1))


def test_only_backups_that_are_whole_and_kept_are_listed():
    first, second, third = (NOON - timedelta(hours=one) for one in (2, 1, 0))
    names = [backup_name("lab.data", one) for one in (first, second, third)]
    jobs = [
        a_job(first, succeeded=True, ended=first, result=result(first)),
        a_job(second, failed=True, ended=second),
        a_job(third, succeeded=True, ended=third, result=result(third, [names[0], names[2]])),
    ]
    status = plan(seen(backup=a_view(status=LAST), jobs=jobs)).status
    assert [backup.name for backup in status.backups] == [names[0], names[2]]
    assert status.last_success == rfc3339(third)
    gone = a_view(
        status=VolumeBackupStatus(last_scheduled=rfc3339(NOON), backups=[StoredBackup(name="lab.data-old")])
    )
    status = plan(seen(backup=gone, jobs=jobs)).status
    assert [backup.name for backup in status.backups] == [
        names[0],
        names[2],
    ]  # the old one was removed at its place


def test_jobs_that_ended_go_but_the_last_ones():
    jobs = [a_job(NOON - timedelta(hours=number), failed=True) for number in range(6)]
    decided = plan(seen(backup=a_view(status=LAST), jobs=jobs))
    dropped = [action.job.created for action in decided.actions if isinstance(action, DropJob)]
    assert dropped == [NOON - timedelta(hours=one) for one in (5, 4, 3)]


WISH = Restore(id="r1", backup="lab.data-x", volume="new")


@pytest.mark.parametrize(
    ("job", "phase", "actions"),
    [
        (None, "Running", [BringBack()]),
        ({}, "Running", []),
        ({"succeeded": True}, "Done", []),
        ({"failed": True, "result": {"message": "not empty"}}, "Failed", []),
    ],
)
def test_a_restore_is_carried_out_once(job, phase, actions):
    jobs = [] if job is None else [a_job(name=restore_job("data", "r1"), **job)]
    view = a_view(status=LAST, restore=WISH)
    decided = plan(seen(backup=view, jobs=jobs))
    assert (decided.status.restore_id, decided.status.restore_phase) == ("r1", phase)
    assert list(decided.actions) == actions
    if phase in ("Done", "Failed"):
        over = VolumeBackupStatus(last_scheduled=rfc3339(NOON), restore_id="r1", restore_phase=phase)
        assert plan(seen(backup=a_view(status=over, restore=WISH))).actions == ()  # its Job may be gone by then


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40))
def test_however_seldom_it_is_looked_at_no_moment_is_taken_twice_and_time_goes_on(pauses):
    status, now, taken = VolumeBackupStatus(), MADE, []
    for pause in pauses:
        now += timedelta(seconds=pause)
        decided = plan(seen(now=now, backup=a_view("*/5 * * * *", status=status)))
        status = VolumeBackupStatus(last_scheduled=decided.status.last_scheduled)
        taken += [action.at for action in decided.actions if isinstance(action, Copy)]
        assert all(one <= now for one in taken)
        assert decided.look_again_in is not None
    assert taken == sorted(set(taken))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("0 3 * * *", True),
        ("*/15 8-18 * * 1-5", True),
        ("61 * * * *", False),
        ("0 3 * *", False),
        ("0 0 30 2 *", False),
        ("* * * * * *", False),
        ("; rm -rf /", False),
        ("", False),
    ],
)
def test_a_schedule_is_one_that_comes_to_pass(text, good):
    assert is_schedule(text) is good
