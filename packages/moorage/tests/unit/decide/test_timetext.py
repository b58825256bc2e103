"""Moments as users write them: of `--since`, of REST and of Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moorage.decide.timetext import moment_before
from moorage_kube.errors import UsageError
from moorage_kube.testing.clock import NOON


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("2h", NOON - timedelta(hours=2), id="a span before now"),
        pytest.param("1d12h", NOON - timedelta(hours=36), id="days and hours"),
        pytest.param("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC), id="a day begins at midnight UTC"),
        pytest.param("2026-11-20T08:30", datetime(2026, 11, 20, 8, 30, tzinfo=UTC), id="without a zone: UTC"),
        pytest.param("2026-11-20T08:30:00+09:00", datetime(2026, 11, 19, 23, 30, tzinfo=UTC), id="with a zone"),
    ],
)
def test_a_moment_is_read_as_a_span_a_day_or_a_time(text, want):
    assert moment_before(text, NOON, "since") == want


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+23:59", "9" * 5000 + "d"])
def test_an_invalid_moment_names_its_field_and_the_forms(text):
    with pytest.raises(UsageError, match="invalid until .*: use a span, a day or a time") as caught:
        moment_before(text, NOON, "until")
    assert (caught.value.code, caught.value.field) == ("bad_request", "until")
    assert "24h, 7d or 90m before now" in (caught.value.hint or "")
