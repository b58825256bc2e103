"""What work should ask for, by what its past runs used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.usage.rightsizing import (
    GIB,
    KEPT,
    MARGIN,
    MIB,
    NEAR,
    Advice,
    Asked,
    Kind,
    Past,
    advise,
    asked_now,
    nice_cpu,
    nice_memory,
    works_of,
)
from moorage_kube.testing.clock import NOON

HOUR = timedelta(hours=1)


def a_past(*, took: timedelta = HOUR, cpu: int = 4000, memory: int = 16 * GIB, gpus: int = 0, **more: Any) -> Past:
    ended = more.pop("ended", NOON)
    values: dict[str, Any] = {
        "namespace": "vision",
        "owner": "ada",
        "run": "train-x7k2",
        "work": "w",
        "well": True,
    }
    asked = Asked(cpu_milli=cpu, memory_bytes=memory, gpus=gpus)
    return Past(asked=asked, started=ended - took, ended=ended, **(values | more))


def gpu_past(mean: float, busy: int, gpus: int = 4, **more: Any) -> Past:
    return a_past(
        **(
            {"gpus": gpus, "gpu_mean": mean, "gpus_busy": busy, "gpu_seconds": 1800 * gpus, "gpus_measured": gpus}
            | more
        )
    )


def said(advice: tuple[Advice, ...]) -> list[tuple[Kind, int | None]]:
    return [(each.kind, each.to) for each in advice]


@pytest.mark.parametrize(
    ("pasts", "want"),
    [
        pytest.param([], [], id="nothing known"),
        pytest.param([a_past()] * 5, [], id="nothing measured"),
        pytest.param([a_past(memory_peak=2 * GIB)] * 3, [(Kind.LOWER_MEMORY, 2560 * MIB)], id="too much memory"),
        pytest.param([a_past(memory_peak=2 * GIB)] * 2, [], id="two runs are too few"),
        pytest.param([a_past(memory_peak=2 * GIB, took=timedelta(minutes=1))] * 9, [], id="all too short"),
        pytest.param(
            [a_past(memory_peak=2 * GIB, took=timedelta(minutes=5))] * 3, [], id="fifteen minutes together"
        ),
        pytest.param([a_past(memory_peak=2 * GIB, well=False)] * 9, [], id="none ended well"),
        pytest.param(
            [*[a_past(memory_peak=2 * GIB)] * 3, a_past(memory_peak=13 * GIB, well=False)], [],
            id="one that failed used more",
        ),
        pytest.param([a_past(memory_peak=12 * GIB)] * 3, [], id="a margin is left"),
        pytest.param([a_past(memory_peak=15 * GIB)], [(Kind.RAISE_MEMORY_NEAR, 18 * GIB)], id="near it, once"),
        pytest.param([a_past(killed=True, well=False)], [(Kind.RAISE_MEMORY_KILLED, 24 * GIB)], id="killed"),
        pytest.param(
            [a_past(memory=32 * GIB, memory_peak=20 * GIB), a_past(killed=True, well=False)],
            [(Kind.RAISE_MEMORY_KILLED, 24 * GIB)],
            id="killed, and with more it ended well: by that peak",
        ),
        pytest.param(
            [a_past(killed=True, well=False, memory=8 * GIB), *[a_past(memory_peak=10 * GIB)] * 3], [],
            id="was killed with less than it asks for now",
        ),
        pytest.param(
            [a_past(killed=True, well=False, memory=10 * GIB), *[a_past(memory_peak=GIB)] * 3], [],
            id="one that was killed had all of its limit",
        ),
        pytest.param(
            [a_past(cpu_peak=900, cpu_mean=500)] * 3, [(Kind.LOWER_CPU, 1500)], id="far too many CPUs"
        ),
        pytest.param([a_past(cpu_peak=4000, cpu_mean=3900)] * 3, [(Kind.RAISE_CPU, 6000)], id="always full"),
        pytest.param(
            [a_past(cpu_peak=4000, cpu_mean=3900)] * 3 + [a_past(cpu_peak=4000, cpu_mean=2000)], [],
            id="once not at its limit",
        ),
    ],
)  # fmt: skip
def test_memory_and_cpu(pasts, want):
    assert said(advise(a_past().asked, pasts)) == want


@pytest.mark.parametrize(
    ("pasts", "want"),
    [
        pytest.param([gpu_past(0.3, 0)] * 3, [(Kind.NO_GPUS, 0)], id="never used"),
        pytest.param([gpu_past(0.3, 0)] * 2, [], id="two runs are too few"),
        pytest.param([gpu_past(0.3, 0, gpu_seconds=600)] * 3, [], id="half an hour is too little"),
        pytest.param([gpu_past(0.3, 0, gpus_measured=3)] * 5, [], id="not all were measured"),
        pytest.param([gpu_past(0.3, 0), gpu_past(0.3, 0), gpu_past(80, 4)], [], id="one run used them"),
        pytest.param([gpu_past(24, 1)] * 3, [(Kind.FEWER_GPUS, 1)], id="one of four"),
        pytest.param(
            [gpu_past(24, 1), gpu_past(40, 2), gpu_past(24, 1)], [(Kind.FEWER_GPUS, 2)], id="two at most"
        ),
        pytest.param([gpu_past(8, 4)] * 3, [(Kind.LITTLE_USED_GPUS, None)], id="all, and little"),
        pytest.param([gpu_past(60, 4)] * 3, [], id="well used"),
        pytest.param([gpu_past(0.3, 0, gpus=2)] * 5, [], id="of runs with another number of GPUs"),
    ],
)
def test_gpus(pasts, want):
    assert said(advise(Asked(gpus=4), pasts)) == want


def test_advice_says_what_it_stands_on():
    (advice,) = advise(a_past().asked, [a_past(memory_peak=2 * GIB), *[a_past(memory_peak=GIB)] * 2])
    assert advice == Advice(kind=Kind.LOWER_MEMORY, asked=16 * GIB, to=2560 * MIB, used=2 * GIB, runs=3, hours=3.0)
    (gpus,) = advise(Asked(gpus=4), [gpu_past(1.0, 0)] * 3)
    assert (gpus.used, gpus.runs, gpus.hours) == (1.0, 3, 6.0)


def test_runs_of_one_command_are_one_work_and_those_of_another_person_are_not():
    old = [a_past(memory_peak=2 * GIB, run=f"train-{at}", ended=NOON - at * HOUR) for at in range(2, 30)]
    newest = a_past(run="other-name", memory=8 * GIB, memory_peak=GIB)
    theirs = a_past(owner="bob", run="train-1", memory_peak=15 * GIB)
    unknown = [a_past(work="", run=f"eval-{at}", memory_peak=15 * GIB) for at in (1, 2)]
    works = works_of([*unknown, theirs, *old, newest])
    assert [(work.owner, work.name, len(work.pasts), said(work.advice)) for work in works] == [
        ("ada", "eval-2", 2, [(Kind.RAISE_MEMORY_NEAR, 18 * GIB)]),
        ("ada", "other-name", KEPT, [(Kind.LOWER_MEMORY, 2560 * MIB)]),
        ("bob", "train-1", 1, [(Kind.RAISE_MEMORY_NEAR, 18 * GIB)]),
    ]
    assert asked_now(works[1], Asked(memory_bytes=3 * GIB)).advice == ()
    assert said(asked_now(works[1], Asked(memory_bytes=2 * GIB)).advice) == [(Kind.RAISE_MEMORY_NEAR, 2560 * MIB)]


def test_numbers_are_those_that_people_write():
    assert [nice_memory(value) for value in (1, 65 * MIB, GIB + 1, 5 * GIB - 1, 63.1 * GIB, 65 * GIB)] == [
        64 * MIB, 128 * MIB, 1280 * MIB, 5 * GIB, 64 * GIB, 68 * GIB,
    ]  # fmt: skip
    assert [nice_cpu(value) for value in (1, 101, 1001, 4001)] == [100, 200, 1500, 5000]


PASTS = st.lists(
    st.builds(
        a_past,
        took=st.integers(0, 7200).map(lambda seconds: timedelta(seconds=seconds)),
        cpu=st.integers(0, 64_000),
        memory=st.integers(0, 256 * GIB),
        gpus=st.integers(0, 8),
        well=st.booleans(),
        killed=st.booleans(),
        memory_peak=st.none() | st.integers(0, 256 * GIB),
        cpu_peak=st.none() | st.integers(0, 64_000),
        cpu_mean=st.none() | st.floats(0, 64_000),
        gpu_mean=st.none() | st.floats(0, 100),
        gpu_seconds=st.integers(0, 100_000),
        gpus_measured=st.integers(0, 8),
        gpus_busy=st.integers(0, 8),
    ),
    max_size=12,
)
ASKED = st.builds(
    Asked, cpu_milli=st.integers(0, 64_000), memory_bytes=st.integers(0, 256 * GIB), gpus=st.integers(0, 8)
)


@given(ASKED, PASTS)
def test_advice_that_was_followed_is_not_given_again_and_never_lowers_below_a_peak(asked, pasts):
    advice = {each.resource: each for each in advise(asked, pasts)}
    peaks = [past.memory_peak or 0 for past in pasts]
    if (memory := advice.get("memory")) is not None:
        assert memory.to is not None
        assert (memory.to < asked.memory_bytes) == (memory.kind is Kind.LOWER_MEMORY)
        if memory.kind is Kind.LOWER_MEMORY:
            assert memory.to >= max(peaks) * MARGIN
        after = advise(replace(asked, memory_bytes=memory.to), pasts)
        assert "memory" not in {each.resource for each in after}
        assert max(peaks) < NEAR * memory.to
    if (cpu := advice.get("cpu")) is not None and cpu.kind is Kind.LOWER_CPU:
        assert cpu.to is not None
        assert (
            max(past.cpu_peak or 0 for past in pasts if past.cpu_mean is not None) * MARGIN
            <= cpu.to
            < asked.cpu_milli
        )
    if (gpus := advice.get("gpus")) is not None and gpus.to is not None:
        assert (
            max(
                past.gpus_busy
                for past in pasts
                if past.asked.gpus == asked.gpus and past.gpu_mean is not None and past.gpus_measured >= asked.gpus
            )
            <= gpus.to
            < asked.gpus
        )


@given(PASTS, st.randoms())
def test_the_order_of_what_is_read_does_not_matter(pasts, random):
    pasts = [
        replace(past, ended=past.ended + timedelta(seconds=at), run=f"r-{at}") for at, past in enumerate(pasts)
    ]
    shuffled = list(pasts)
    random.shuffle(shuffled)
    assert works_of(shuffled) == works_of(pasts)


@given(ASKED, PASTS)
def test_what_was_not_measured_gives_no_advice(asked, pasts):
    blank = [
        replace(past, killed=False, memory_peak=None, cpu_peak=None, cpu_mean=None, gpu_mean=None)
        for past in pasts
    ]
    assert advise(asked, blank) == ()
