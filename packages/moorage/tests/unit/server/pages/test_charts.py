from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.server.pages.charts import ROWS, Chart, Series, shown
from moorage.server.pages.clusterpages import templates
from moorage_kube.testing.clock import NOON


def a_chart(values, **more):
    times = tuple(NOON + timedelta(minutes=at) for at in range(len(values)))
    series = (Series(name="mean", values=tuple(values), area=True),)
    return Chart(id="use", title="GPU utilisation", unit="%", times=times, series=series, most=100, **more)


def render(chart):
    return templates().get_template("chart.html").module.figure(chart)


def test_a_chart_is_drawn_from_its_data():
    data = {
        "times": [int(NOON.timestamp()), int(NOON.timestamp()) + 60],
        "unit": "%",
        "least": 0.0,
        "most": 100,
        "daily": False,
        "series": [{"name": "mean", "values": [33.33, 40], "area": True}],
    }
    assert a_chart([33.3333, 40]).data == data
    inside = render(a_chart([33.3333, 40])).partition('type="application/json">')[2].partition("</script>")[0]
    assert json.loads(inside) == data


def test_the_table_says_the_same_and_what_was_not_measured():
    assert a_chart([10, 20.5, None]).rows == [
        ("2026-11-21T12:02:00Z", [""]),
        ("2026-11-21T12:01:00Z", ["20.5 %"]),
        ("2026-11-21T12:00:00Z", ["10 %"]),
    ]
    assert "not measured" in render(a_chart([None]))


@given(st.lists(st.none() | st.floats(0, 100), max_size=200))
def test_a_table_is_short_and_shows_nothing_that_is_outside_the_values(values):
    rows = a_chart(values).rows
    assert len(rows) <= ROWS
    assert [moment for moment, _ in rows] == sorted((moment for moment, _ in rows), reverse=True)
    known = [value for value in values if value is not None]
    for _, (text,) in rows:
        if text:
            assert min(known) - 0.51 <= float(text.removesuffix(" %")) <= max(known) + 0.51


def test_a_single_reading_is_a_number():
    assert "GPU utilisation</b> 33.3 %</p>" in render(a_chart([33.3333, None]))
    assert "data-chart" not in render(a_chart([33.3333, None]))


def test_no_text_of_a_chart_ends_its_script():
    series = (Series(name="</script><b>", values=(1.0, 2.0)),)
    chart = Chart(id="x", title="t", unit="", times=(NOON, NOON + timedelta(minutes=1)), series=series)
    assert "<b>" not in render(chart)


@pytest.mark.parametrize(
    ("value", "unit", "want"),
    [(0.0, "%", "0 %"), (0.256, "", "0.26"), (99.94, "%", "99.9 %"), (1234.5, "GPU-hours", "1,234 GPU-hours")],
)
def test_values_are_short(value, unit, want):
    assert shown(value, unit) == want
