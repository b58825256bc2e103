"""Which logs are read, and which lines are new: nothing doubled, nothing lost, never more streams than allowed."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.attempts.reading import (
    TURN_SECONDS,
    TURNS_A_SECOND,
    NewLines,
    Read,
    Splitter,
    Stop,
    Wanted,
    plan_reads,
    stamp_of,
    without_stamp,
)
from moorage_kube.clock import rfc3339_micro
from moorage_kube.testing.clock import NOON


def line(millisecond: int, text: str = "x") -> bytes:
    return f"{rfc3339_micro(NOON + timedelta(milliseconds=millisecond))} {text}\n".encode()


# -- new lines


@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from("ab")), max_size=60),
    st.integers(0, 60),
    st.integers(0, 59),
)
def test_a_log_read_again_gives_each_line_once(stamps, kept, back):
    """Times go up, but for the disorder of two streams within a second; some lines are the same."""
    stamps.sort(key=lambda pair: pair[0] // 1000)
    log = [line(at, text) for at, text in stamps]
    fresh = NewLines(b"".join(log[:kept]))
    newest = fresh.newest
    since = None if newest is None else newest - timedelta(seconds=60 + back)
    again = [one for one in log if since is None or stamp_of(one) >= since]  # type: ignore[operator]
    assert log[:kept] + [one for one in again if fresh.is_new(one)] == log


def test_lines_that_were_dropped_from_the_kept_end_do_not_come_again():
    log = [line(at) for at in range(10)]
    fresh = NewLines(b"".join(log[4:8]), cut=True)
    assert [one for one in log if fresh.is_new(one)] == log[8:]


def test_lines_without_times_and_with_carriage_returns_are_lines():
    kept = b"10%\r20%\nplain\n"
    fresh = NewLines(kept)
    assert [one for one in (b"10%\r20%\n", b"plain\n", b"plain\n") if fresh.is_new(one)] == [b"plain\n"]
    assert fresh.since_seconds(NOON) is None


def test_how_far_back_is_counted_from_the_newest_line():
    fresh = NewLines(line(2000) + line(1000))
    assert fresh.since_seconds(NOON + timedelta(seconds=12)) == 10 + 1 + 60
    assert fresh.since_seconds(NOON - timedelta(hours=1)) == 1  # a clock that is behind


def test_kubelets_nanoseconds_and_offsets_are_read():
    assert stamp_of(b"2026-11-21T12:00:00.123456789Z hi\n") == NOON + timedelta(microseconds=123456)
    assert stamp_of(b"2026-11-21T21:00:00+09:00 hi\n") == NOON
    assert stamp_of(b"2026-99-21T21:00:00Z hi\n") is None
    assert without_stamp(b"2026-11-21T12:00:00.123456789Z  hi\n") == b" hi\n"


# -- lines from pieces


@given(st.lists(st.binary(max_size=9).map(lambda part: part.replace(b"x", b"\n")), max_size=20))
def test_pieces_that_end_anywhere_give_whole_lines(pieces):
    splitter = Splitter()
    given_lines = [one for piece in pieces for one in splitter.feed(piece)] + splitter.end()
    whole = b"".join(pieces)
    assert b"".join(given_lines) == whole + (b"" if not whole or whole.endswith(b"\n") else b"\n")


def test_a_line_without_end_takes_bounded_memory():
    splitter = Splitter(10)
    assert [one for _ in range(100) for one in splitter.feed(b"abcdefg")] == []
    assert splitter.feed(b"tail\nnext") == [b"abcdefgabc\n"]
    assert splitter.end() == [b"next\n"]


# -- streams

logs = st.lists(
    st.builds(
        Wanted,
        key=st.uuids().map(str),
        ended=st.booleans(),
        reading=st.booleans(),
        following=st.just(False),
        read_at=st.none() | st.floats(0, 100),
        not_before=st.floats(0, 200),
    ),
    max_size=30,
    unique_by=lambda log: log.key,
)


def carried_out(state, steps, now):
    """The logs after the steps."""
    reads = {step.key: step for step in steps if isinstance(step, Read)}
    stops = {step.key for step in steps if isinstance(step, Stop)}
    after = []
    for log in state:
        if log.key in stops:
            log = replace(log, reading=False, following=False)
        elif log.key in reads:
            log = replace(log, reading=True, following=reads[log.key].follow, read_at=now)
        after.append(log)
    return after


@given(logs, st.integers(1, 12))
def test_never_more_than_so_many_streams_begin(state, streams):
    reading = sum(log.reading for log in state)
    after = carried_out(state, plan_reads(state, streams=streams, now=100.0), 100.0)
    assert sum(log.reading for log in after) <= max(reading, streams)


@given(st.integers(1, 40), st.integers(1, 12))
def test_every_log_is_read_within_some_turns_however_many_there_are(many, streams):
    state = [Wanted(key=f"{at:03}", ended=False) for at in range(many)]
    read_at: dict[str, float] = {}
    now = 0.0
    for _ in range(40 * 12):
        now += TURN_SECONDS
        for step in (steps := plan_reads(state, streams=streams, now=now)):
            if isinstance(step, Read):
                read_at[step.key] = now
        state = carried_out(state, steps, now)
        # what is not followed ends at once
        state = [replace(log, reading=log.following) for log in state]
    assert len(read_at) == many
    followed = [log for log in state if log.following]
    assert len(followed) == (many if many <= streams else streams - max(1, streams // 10))
    others = [read_at[log.key] for log in state if not log.following]
    assert all(now - at <= TURN_SECONDS * (many + 1) for at in others)


def test_the_more_logs_take_turns_the_longer_is_a_turn():
    turn = 60.0
    state = [
        Wanted(key=f"{at:04}", ended=at == 0, read_at=100.0, reading=False)
        for at in range(int(turn * TURNS_A_SECOND))
    ]
    assert plan_reads(state, streams=100, now=100.0 + turn - 1) == (Read("0000", False),), (
        "what has ended does not wait"
    )
    assert len(plan_reads(state, streams=100, now=100.0 + turn)) == 100


def test_what_has_ended_is_read_first_and_not_followed():
    state = [Wanted(key="a", ended=False), Wanted(key="b", ended=True), Wanted(key="c", ended=False, not_before=9)]
    assert plan_reads(state, streams=5, now=1.0) == (Read("b", False), Read("a", True))


def test_followers_make_room_when_there_are_more_logs_than_streams():
    state = [
        Wanted(key=f"{at:02}", ended=False, reading=True, following=True, read_at=float(at)) for at in range(10)
    ]
    assert plan_reads([*state, Wanted(key="new", ended=False)], streams=10, now=50.0) == (Stop("00"),)


def test_what_a_kubelet_appends_when_the_container_is_removed_is_not_of_the_log():
    notice = b"unable to retrieve container logs for containerd://ed64e7f2"
    fresh = NewLines(line(1000))
    assert not fresh.is_new(notice)
    assert fresh.is_new(line(2000).replace(b"\n", b" " + notice + b"\n"))  # printed by the program itself
