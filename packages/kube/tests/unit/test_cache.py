"""The bounded cache against a plain list of (key, value, end), the longest unwritten first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.cache import BoundedCache
from moorage_kube.testing.clock import FakeClock

KEYS = st.sampled_from("abcde")
VALUES = st.one_of(st.none(), st.integers(0, 3))
SECONDS = st.one_of(st.none(), st.sampled_from([1.0, 2.0, 5.0]))
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES, SECONDS),
    st.tuples(st.just("change"), KEYS, VALUES),
    st.tuples(st.just("drop"), KEYS),
    st.tuples(st.just("drop where"), VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0, 3.0])),
)


class Model:
    def __init__(self, most: int, keep: float | None) -> None:
        self.most, self.keep, self.now = most, keep, 0.0
        self.rows: list[tuple[str, int | None, float | None]] = []

    def put(self, key: str, value: int | None, keep: float | None) -> None:
        lasts = self.keep if keep is None else keep
        self.rows = [row for row in self.rows if row[0] != key]
        self.rows.append((key, value, None if lasts is None else self.now + lasts))
        self.rows = self.rows[-self.most :]

    def live(self) -> dict[str, int | None]:
        return {key: value for key, value, end in self.rows if end is None or end > self.now}


@given(most=st.integers(1, 4), keep=SECONDS, steps=st.lists(STEPS, max_size=30))
def test_it_holds_what_a_plain_list_holds(most, keep, steps):
    clock, model = FakeClock(), Model(most, keep)
    cache: BoundedCache[str, int | None] = BoundedCache(most, keep_seconds=keep, clock=clock)
    for step in steps:
        match step:
            case ("put", key, value, lasts):
                cache.put(key, value, keep_seconds=lasts)
                model.put(key, value, lasts)
            case ("change", key, value):
                cache.change(key, value)
                if key in model.live():
                    model.rows = [(row[0], value, row[2]) if row[0] == key else row for row in model.rows]
            case ("drop", key):
                assert cache.drop(key) == model.live().get(key)
                model.rows = [row for row in model.rows if row[0] != key]
            case ("drop where", value):
                cache.drop_where(lambda held, value=value: held == value)
                model.rows = [row for row in model.rows if row[1] != value]
            case ("get", key):
                assert cache.get(key, "missing") == model.live().get(key, "missing")
                model.rows = [row for row in model.rows if row[0] != key or key in model.live()]
            case ("wait", seconds):
                clock.advance(seconds)
                model.now += seconds
        assert len(cache) <= most
        assert list(cache.values()) == list(model.live().values())
        assert [key for key in "abcde" if key in cache] == sorted(model.live())
        model.rows = [row for row in model.rows if row[0] in model.live()]


def test_a_cache_without_room_is_refused():
    with pytest.raises(ValueError, match="0 entries"):
        BoundedCache(0)


def test_values_that_are_over_leave_memory_when_another_is_put():
    clock = FakeClock()
    cache: BoundedCache[str, int] = BoundedCache(100, keep_seconds=5.0, clock=clock)
    for key in "abc":
        cache.put(key, 1)
    clock.advance(5.0)
    cache.put("d", 1)
    assert len(cache) == 1
    cache.put("e", 1, keep_seconds=0.0)
    assert len(cache) == 2  # "d" comes first
