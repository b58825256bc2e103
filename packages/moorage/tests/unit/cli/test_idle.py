"""`moor idle report`: what a policy would have reclaimed, piece by piece."""

from __future__ import annotations

PATH = "/api/v1/idle/report"
PERIOD = {"since": "2026-01-04T12:00:00Z", "until": "2026-01-05T12:00:00Z", "policy": "gpus"}
IDLE = {"idleHours": 10.0, "reclaimedHours": 6.0}
REPORT = PERIOD | IDLE | {"heldHours": 48.0, "measuredHours": 48.0}
WORK = {"kind": "workspace", "namespace": "vision", "name": "lab", "owner": "ada", "gpus": 1}
ROW = WORK | IDLE | {"why": "GPU below 5 %"}


def test_a_report_lists_the_work_that_was_idle(moor):
    moor.server.answers[PATH] = REPORT | {"rows": [ROW]}
    done = moor("idle", "report")
    (line,) = done.out.splitlines()[1:]
    assert line.split()[:4] == ["workspace/lab", "(vision)", "ada", "1"]
    assert done.err.startswith("policy gpus would have reclaimed at most 6.0 of 48.0 GPU-hours")


def test_a_report_without_idle_work_is_a_note(moor):
    moor.server.answers[PATH] = REPORT
    done = moor("idle", "report")
    assert (done.out, done.err.splitlines()[0]) == ("", "there was no idle work")
