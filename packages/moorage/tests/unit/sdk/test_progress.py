"""Lines of progress: what they say, and when they are drawn."""

from __future__ import annotations

import io

import pytest

from moorage.sdk.progress import Bar, Meter, Transfer, transfer_line
from moorage_kube.testing.clock import FakeClock

MIB = 2**20


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("transfer", "want"),
    [
        pytest.param(Transfer(bytes=0), "0 B", id="nothing is known"),
        pytest.param(Transfer(bytes=3 * MIB, files=2), "3.0 MiB  2 files", id="no total"),
        pytest.param(
            Transfer(bytes=MIB, bytes_total=4 * MIB, files=1, files_total=3, bytes_per_second=MIB),
            "[######..................]   25%  1.0 MiB of 4.0 MiB  1.0 MiB/s  3s left  1 of 3 files",
            id="with a total: percent and time left",
        ),
        pytest.param(
            Transfer(bytes=4 * MIB, bytes_total=4 * MIB, files=3, files_total=3, bytes_per_second=MIB),
            "[########################]  100%  4.0 MiB of 4.0 MiB  1.0 MiB/s  3 of 3 files",
            id="the end: no time left",
        ),
        pytest.param(
            Transfer(bytes=999, bytes_total=1000),
            "[########################]   99%  999 B of 1000 B",
            id="100% only at the end",
        ),
    ],
)
def test_a_line_of_a_transfer(transfer, want):
    assert transfer_line(transfer) == want


def drawn(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().split("\r")[1:]]


def test_a_meter_counts_and_tells_the_rate():
    clock, stream = FakeClock(), TerminalText()
    with Bar(stream=stream, clock=clock) as bar:
        meter = Meter(bar, clock=clock)
        meter.begin(2, 4 * MIB)
        clock.advance(2.0)
        meter.add(1, 2 * MIB)
    assert drawn(stream) == [
        "[........................]    0%  0 B of 4.0 MiB  0 of 2 files",
        "[############............]   50%  2.0 MiB of 4.0 MiB  1.0 MiB/s  2s left  1 of",
    ]


def test_what_was_there_before_does_not_count_as_speed():
    clock, stream = FakeClock(), TerminalText()
    meter = Meter(Bar(stream=stream, clock=clock), clock=clock)
    meter.set(files=0, size=10 * MIB, files_total=None, bytes_total=None)
    clock.advance(1.0)
    meter.set(files=0, size=11 * MIB, files_total=None, bytes_total=None)
    assert drawn(stream)[-1] == "11.0 MiB  1.0 MiB/s"


def test_a_short_transfer_draws_nothing():
    clock, stream = FakeClock(), TerminalText()
    with Bar(stream=stream, clock=clock, after=1.0) as bar:
        bar.show("early", now=True)
        clock.advance(1.0)
        bar.show("late")
    assert stream.getvalue() == "\rlate\n"


def test_a_pipe_gets_nothing():
    stream = io.StringIO()
    with Bar(stream=stream, clock=FakeClock()) as bar:
        Meter(bar, clock=FakeClock()).add(1, 1)
    assert stream.getvalue() == ""
