from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.backoff import DoublingDelay


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 0.2), (2, 0.4), (3, 0.8), (6, 6.4), (7, 10), (2000, 10)],
)
def test_the_delay_doubles_up_to_its_limit(failures, seconds):
    assert DoublingDelay(0.2, 10.0).after(failures) == pytest.approx(seconds)


@given(first=st.floats(0, 86_400), most=st.floats(0, 86_400), failures=st.integers(-5, 10**9))
def test_no_number_of_failures_breaks_it(first, most, failures):
    delay = DoublingDelay(first, most)
    assert math.isfinite(delay.after(failures))
    assert 0.0 <= delay.after(failures) <= max(most, 0.0)
    assert delay.after(failures) <= delay.after(failures + 1)
