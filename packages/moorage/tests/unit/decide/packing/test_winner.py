from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.packing.winner import winner

points = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(points, st.text(max_size=8))
def test_one_of_the_best_is_taken_and_the_same_lot_takes_the_same(given_points, lot):
    at = winner(given_points, lot)
    assert given_points[at] == max(given_points)
    assert at == winner(given_points, lot)


@given(points, st.text(max_size=8), st.sets(st.integers(0, 29)))
def test_shunned_nodes_are_taken_only_when_there_are_no_others(given_points, lot, shunned):
    shunned &= set(range(len(given_points)))
    at = winner(given_points, lot, shunned=shunned)
    others = [number for number in range(len(given_points)) if number not in shunned]
    if others:
        assert at in others
        assert given_points[at] == max(given_points[other] for other in others)
    else:
        assert given_points[at] == max(given_points)


@pytest.mark.parametrize("shunned", [set(), {0}], ids=["none shunned", "one shunned"])
def test_lots_of_different_pods_spread_over_equals(shunned):
    taken = Counter(winner([7] * 10, f"uid-{number}", shunned=shunned) for number in range(2000))
    assert len(taken) == (9 if shunned else 10)
    assert min(taken.values()) > 100  # 200 or 222 expected each, standard deviation 14
