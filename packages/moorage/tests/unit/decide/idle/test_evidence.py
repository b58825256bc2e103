"""Verdicts: each window of the time must be measured and without use; all else is use."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.idle.evidence import Connection, Facts, Idle, InUse, Kernels, Unseen, Window, judge
from moorage.model.idle import Policy

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
POLICY = Policy(name="p", warn_after=timedelta(hours=1))


def windows(*readings, end=NOW, length=5 * MINUTE):
    """One window for each (GPU, CPU), the last one ending at `end`."""
    first = end - len(readings) * length
    return tuple(
        Window(start=first + at * length, end=first + (at + 1) * length, gpu_peak=gpu, cpu_milli=cpu)
        for at, (gpu, cpu) in enumerate(readings)
    )


QUIET = (0.0, 10.0)
LONG_AGO = NOW - 24 * HOUR


def facts(*readings, **changes):
    return Facts(**({"started": LONG_AGO, "windows": windows(*readings)} | changes))


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            facts(QUIET, QUIET, QUIET),
            Idle(
                "GPU below 5 % and CPU below 200m in each 5m window since 11:45 UTC (3 windows)",
                NOW - 15 * MINUTE,
                3,
                NOW,
            ),
            id="three windows without use",
        ),
        pytest.param(facts(), Unseen("no reading of its GPUs yet"), id="never measured"),
        pytest.param(
            facts(QUIET, QUIET, windows=windows(QUIET, end=NOW - 20 * MINUTE)),
            Unseen("no reading of its GPUs since 11:40 UTC"),
            id="the source of readings is down",
        ),
        pytest.param(
            facts(QUIET, (None, 10.0)),
            Unseen("its GPU use was not measured in the 5m up to 12:00 UTC"),
            id="no reading of the GPU",
        ),
        pytest.param(
            facts(QUIET, (37.2, 10.0)), InUse("GPU at 37 % in the 5m up to 12:00 UTC", NOW), id="a busy GPU"
        ),
        pytest.param(
            facts(QUIET, (0.0, 900.0)),
            InUse("CPU at 900m in the 5m up to 12:00 UTC", NOW),
            id="a data loader works on the CPU",
        ),
        pytest.param(
            facts(QUIET, (80.0, 10.0), QUIET),
            Idle(
                "GPU below 5 % and CPU below 200m in each 5m window since 11:55 UTC (1 window)",
                NOW - 5 * MINUTE,
                1,
                NOW,
            ),
            id="idle since the last use",
        ),
        pytest.param(
            facts(QUIET, QUIET, checkpoint_at=NOW - 2 * MINUTE),
            Idle(
                "GPU below 5 % and CPU below 200m in each 5m window since 11:58 UTC (1 window);"
                " last checkpoint at 11:58 UTC",
                NOW - 2 * MINUTE,
                1,
                NOW,
            ),
            id="a checkpoint is a sign of life",
        ),
        pytest.param(
            facts(QUIET, QUIET, connection=Connection(seen_at=NOW, acted_at=NOW - HOUR)),
            InUse("a browser is connected", NOW),
            id="a debugger's pause: connected, and used an hour ago",
        ),
        pytest.param(
            facts(
                QUIET,
                QUIET,
                connection=Connection(seen_at=NOW, acted_at=NOW - 9 * HOUR),
                kernels=Kernels(last_activity=NOW - 9 * HOUR),
            ),
            Idle(
                "GPU below 5 % and CPU below 200m in each 5m window since 11:50 UTC (2 windows);"
                " last kernel activity at 03:00 UTC; a browser is connected, last used at 03:00 UTC",
                NOW - 10 * MINUTE,
                2,
                NOW,
            ),
            id="a notebook left open over night",
        ),
        pytest.param(
            facts(QUIET, QUIET, kernels=Kernels(last_activity=NOW - 3 * HOUR, busy_since_output=NOW - 3 * HOUR)),
            InUse("a kernel is busy", NOW),
            id="a cell that waits for something",
        ),
        pytest.param(
            facts(QUIET, QUIET, unseen="Jupyter does not answer"),
            Unseen("Jupyter does not answer"),
            id="what cannot be asked is in use",
        ),
    ],
)
def test_a_verdict_says_why(seen, want):
    assert judge(seen, POLICY, NOW) == want


def test_a_gap_between_windows_is_never_idle_evidence():
    early, late = windows(QUIET, QUIET, end=NOW - 30 * MINUTE), windows(QUIET, QUIET)
    verdict = judge(Facts(started=LONG_AGO, windows=early + late), POLICY, NOW)
    assert isinstance(verdict, Idle)
    assert verdict.since == NOW - 10 * MINUTE


readings = st.one_of(
    st.just(QUIET), st.tuples(st.one_of(st.none(), st.floats(0, 100)), st.one_of(st.none(), st.floats(0, 8000)))
)


@given(st.lists(readings, max_size=30), st.booleans())
def test_all_windows_since_the_start_of_idleness_are_measured_and_without_use(series, gap):
    seen = windows(*series)
    if gap and len(seen) > 2:
        seen = seen[: len(seen) // 2] + seen[len(seen) // 2 + 1 :]
    verdict = judge(Facts(started=LONG_AGO, windows=seen), POLICY, NOW)
    if not isinstance(verdict, Idle):
        return
    at = verdict.since
    for window in (window for window in seen if window.end > verdict.since):
        assert window.start <= at, "a hole"
        assert window.gpu_peak is not None
        assert window.cpu_milli is not None
        assert window.gpu_peak < POLICY.gpu_below
        assert window.cpu_milli < POLICY.cpu_below_milli
        at = window.end
    assert at >= NOW - 2 * POLICY.window
