"""What is counted stands on the page, within its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from moorage.metrics.counters import Histogram, Tally
from moorage.metrics.families import OTHER, Family, Measured, measured
from moorage.metrics.page import exposition

GAUGE = Family(name="moorage_things", help="Things by kind", labels=("kind",), series_max=3)
COUNTER = Family(name="moorage_acts_total", help="Acts", kind="counter", labels=("kind",), series_max=3)
TIMES = Family(
    name="moorage_act_duration_seconds",
    help="Time of an act",
    kind="histogram",
    labels=("kind",),
    series_max=3,
    bounds=(0.1, 1.0),
)

kinds = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), max_size=30)


def series(page: bytes) -> dict[tuple[str, ...], float]:
    """Name and labels of each sample → its value."""
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@given(kinds)
def test_no_value_is_lost_at_the_bound_and_no_series_is_beyond_it(values):
    row = measured(GAUGE, (((kind,), value) for kind, value in values))
    assert sum(row.values.values()) == sum(value for _, value in values)
    assert len(set(row.values) - {(OTHER,)}) <= GAUGE.series_max


@given(kinds)
def test_a_counter_and_a_histogram_keep_to_their_bounds(values):
    tally, histogram = Tally(COUNTER), Histogram(TIMES)
    for kind, value in values:
        tally.add(kind, by=value)
        histogram.observe(value / 4, kind)
    page = series(exposition([tally.read(), histogram.read()]))
    total = sum(value for _, value in values)
    assert sum(value for key, value in page.items() if key[0] == "moorage_acts_total") == total
    counts = {key[1]: value for key, value in page.items() if key[0] == "moorage_act_duration_seconds_count"}
    assert sum(counts.values()) == len(values)
    assert len(set(counts) - {f"kind={OTHER}"}) <= TIMES.series_max


def test_the_page_has_each_family_in_prometheus_format():
    histogram = Histogram(TIMES)
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds, 'a "quoted"\nname')
    page = exposition([Measured(family=GAUGE, values={("a",): 2}), histogram.read()])
    assert page.decode() == (
        "# HELP moorage_things Things by kind\n"
        "# TYPE moorage_things gauge\n"
        'moorage_things{kind="a"} 2.0\n'
        "# HELP moorage_act_duration_seconds Time of an act\n"
        "# TYPE moorage_act_duration_seconds histogram\n"
        'moorage_act_duration_seconds_bucket{kind="a \\"quoted\\"\\nname",le="0.1"} 2.0\n'
        'moorage_act_duration_seconds_bucket{kind="a \\"quoted\\"\\nname",le="1.0"} 3.0\n'
        'moorage_act_duration_seconds_bucket{kind="a \\"quoted\\"\\nname",le="+Inf"} 4.0\n'
        'moorage_act_duration_seconds_count{kind="a \\"quoted\\"\\nname"} 4.0\n'
        'moorage_act_duration_seconds_sum{kind="a \\"quoted\\"\\nname"} 7.65\n'
    )


@given(st.dictionaries(st.tuples(st.text(), st.text()), st.floats(allow_nan=False)))
def test_any_text_and_number_is_read_back_from_the_page(values):
    family = Family(name="moorage_odd", help="back\\slash and\nline", labels=("b", "a"))
    (read,) = text_string_to_metric_families(exposition([Measured(family=family, values=values)]).decode())
    assert read.documentation == family.help
    assert {(sample.labels["b"], sample.labels["a"]): sample.value for sample in read.samples} == values


@pytest.mark.parametrize("name", ["process_cpu_seconds_total", "process_resident_memory_bytes"])
def test_a_page_may_tell_of_its_process(name):
    assert (name,) in series(exposition([], process=True))
    assert (name,) not in series(exposition([]))
