"""When a run will usually be done, by past runs like it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.forecast import LEAST, LEAST_LEFT, SHARE, Like, Stay, base_of, history_of, work_of

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
ADA = Like(owner="ada", name="train-x7k2", work="w1", gpu_type="a100")


def stays(*minutes, like=ADA):
    return [
        Stay(like=like, ended=NOON - timedelta(hours=at), took=timedelta(minutes=many))
        for at, many in enumerate(minutes)
    ]


def test_the_time_by_which_eight_of_ten_like_it_were_done():
    said = history_of(stays(10, 20, 30, 40, 50, 60, 70, 80, 90, 600)).usual(ADA)
    assert (said.total, said.done, said.of, said.known) == (timedelta(minutes=80), 8, 10, 10)
    assert said.likeness == "work"


def test_what_ran_long_already_is_compared_with_what_ran_as_long():
    past = history_of(stays(1, 1, 1, 1, 1, 30, 40, 50, 60, 70))
    said = past.usual(ADA, timedelta(minutes=5))
    assert (said.total, said.done, said.of, said.known) == (timedelta(minutes=60), 4, 5, 10)


def test_what_outlived_its_like_is_not_foretold():
    said = history_of(stays(10, 20, 30, 40, 50)).usual(ADA, timedelta(minutes=45))
    assert (said.total, said.of, said.known) == (None, 1, 5)


def test_fewer_than_five_are_no_ground():
    assert history_of(stays(*[10] * (LEAST - 1))).usual(ADA) is None


@pytest.mark.parametrize(
    ("like", "likeness"),
    [
        (ADA, "work"),
        (Like(owner="ada", name="train-q2q2", work="other", gpu_type="a100"), "name"),
        (Like(owner="ada", name="else", gpu_type="a100"), "owner"),
        (Like(owner="bob", name="else", gpu_type="a100"), "type"),
        (Like(owner="bob", name="else", gpu_type="t4"), None),
        (Like(owner="ada", name="else"), None),
    ],
)
def test_the_closest_likeness_with_enough_past_is_asked(like, likeness):
    said = history_of(stays(10, 20, 30, 40, 50)).usual(like)
    assert (said and said.likeness) == likeness


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("train-x7k2", "train"),
        ("nightly-12", "nightly"),
        ("my-train", "my-train"),
        ("llm", "llm"),
        ("eval-suite-h3k9x", "eval-suite"),
        ("-x7k2", "-x7k2"),
    ],
)
def test_a_name_is_compared_without_what_made_it_new(name, base):
    assert base_of(name) == base


def test_work_is_told_apart_by_image_and_command_and_not_by_the_runner():
    def spec(*command, image="py", args=()):
        return {"containers": [{"image": image, "command": list(command), "args": list(args)}]}

    plain = work_of(spec("python", "train.py"))
    wrapped = ["python3", "/moorage/run/runner.py", "--report", "https://s/api/v1/runs/lab/train-x7k2", "--"]
    assert work_of(spec(*wrapped, "python", "train.py")) == plain
    assert work_of(spec("python", args=["train.py"])) == plain
    assert work_of(spec("python", "train.py", image="other")) != plain
    assert work_of(spec("python", "eval.py")) != plain
    assert "train" not in plain
    assert len(plain) == 16
    assert work_of(spec()) == work_of({}) == ""


seconds = st.lists(st.floats(0, 1e6), min_size=LEAST, max_size=40)


@given(seconds, st.floats(0, 1e6), st.floats(0, 1e6))
def test_having_run_longer_never_brings_the_end_nearer(past, one, more):
    history = history_of([Stay(like=ADA, ended=NOON, took=timedelta(seconds=took)) for took in past])
    early, late = history.usual(ADA, timedelta(seconds=one)), history.usual(ADA, timedelta(seconds=one + more))
    assert early is not None
    assert late is not None
    if late.total is not None:
        assert early.total is not None
        assert early.total <= late.total
        assert late.total > timedelta(seconds=one + more)


@given(seconds, st.floats(0, 1e6))
def test_the_numbers_said_are_those_of_the_past(past, elapsed):
    said = history_of([Stay(like=ADA, ended=NOON, took=timedelta(seconds=took)) for took in past]).usual(
        ADA, timedelta(seconds=elapsed)
    )
    spans = [timedelta(seconds=took) for took in past]
    left = [span for span in spans if span > timedelta(seconds=elapsed)]
    assert abs(said.of - len(left)) <= sum(abs(span.total_seconds() - elapsed) < 1e-5 for span in spans)
    if said.total is None:
        assert said.of < LEAST_LEFT
    else:
        assert said.done >= SHARE * said.of
        assert sum(span <= said.total for span in left) >= said.done
