"""Quantities: what the API server reads, and nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import QuantityError
from moorage_kube.quantity import (
    amount,
    counted,
    format_amount,
    format_bytes,
    format_milli,
    parse_count,
    parse_milli,
    parse_quantity,
    problem_of_bytes,
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0", 0),
        ("2", 2),
        ("+2", 2),
        ("-2", -2),
        ("500m", Fraction(1, 2)),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("1.5Gi", 1610612736),
        ("1.5G", 1500000000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("12e-1", Fraction(6, 5)),
        (7, 7),
        (0.5, Fraction(1, 2)),
        ("007", 7),
    ],
)
def test_what_a_quantity_means(text, want):
    assert parse_quantity(text) == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "1K",
        "1Mb",
        "1 Gi",
        "1i",
        "e3",
        "1e",
        "1e3m",
        "1.1.1",
        "--1",
        ".",
        "Gi",
        "0x10",
        "1_000",
    ]
    + ["nan", "inf", "٣", "1e31", "1e-31", "9" * 200, None, True],
)
def test_what_is_no_quantity_is_refused_with_the_text(text):
    with pytest.raises(QuantityError, match="invalid quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "count", "milli"),
    [("1", 1, 1000), ("100m", 1, 100), ("1.0001", 2, 1001), ("1n", 1, 1), ("0", 0, 0), ("2.5", 3, 2500)],
)
def test_whole_units_and_thousandths_are_rounded_up(text, count, milli):
    assert (parse_count(text), parse_milli(text)) == (count, milli)


@pytest.mark.parametrize(
    ("resource", "text", "want", "back"),
    [
        ("cpu", "1500m", 1500, "1500m"),
        ("cpu", "2", 2000, "2"),
        ("memory", "8Gi", 8 * 2**30, "8Gi"),
        ("nvidia.com/gpu", "4", 4, "4"),
        ("hugepages-2Mi", "4Mi", 4 * 2**20, "4Mi"),
        ("pods", "110", 110, "110"),
    ],
)
def test_the_schedulers_integers(resource, text, want, back):
    assert amount(resource, text) == want
    assert format_amount(resource, want) == back


@pytest.mark.parametrize(
    ("count", "want"),
    [
        (0, "0"),
        (1000, "1000"),
        (1024, "1Ki"),
        (1500, "1.4Ki"),
        (1610612736, "1.5Gi"),
        (8589934592, "8Gi"),
        (2**40 - 1, "1023.9Gi"),
        (2**60, "1Ei"),
    ],
)
def test_bytes_for_people(count, want):
    assert format_bytes(count) == want


@given(st.integers(0, 2**62))
def test_bytes_are_never_overstated_and_off_by_less_than_a_tenth_of_the_unit(count):
    shown = parse_quantity(format_bytes(count))
    assert shown <= count
    assert count - shown <= max(0, count // 10)


@given(st.integers(0, 10**9))
def test_millicores_are_read_back(milli):
    assert parse_milli(format_milli(milli)) == milli


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_refused_as_one(text):
    try:
        value = parse_quantity(text)
    except QuantityError:
        return
    assert isinstance(value, Fraction)


@given(
    st.decimals(min_value=-(10**6), max_value=10**6, places=3),
    st.sampled_from(["", "m", "k", "M", "Gi", "Ki", "u"]),
)
def test_a_unit_multiplies(number, unit):
    scale = {
        "": 1,
        "m": Fraction(1, 1000),
        "k": 1000,
        "M": 10**6,
        "Gi": 2**30,
        "Ki": 2**10,
        "u": Fraction(1, 10**6),
    }
    assert parse_quantity(f"{number:f}{unit}") == Fraction(number) * scale[unit]


@pytest.mark.parametrize(("count", "text"), [(0, "0 items"), (1, "1 item"), (2, "2 items"), (1200, "1,200 items")])
def test_a_number_comes_with_its_noun(count, text):
    assert counted(count, "item") == text
    assert counted(count, "copy", "copies").endswith("copy" if count == 1 else "copies")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("400m", ("the suffix m means thousandths of a byte", "use Mi, such as 400Mi")),
        ("5u", ("the suffix u means millionths of a byte", "use Mi, such as 5Mi")),
        ("8", ("less than 1 MiB", "the unit may be missing: 8Gi")),
        ("0", None),
        ("400M", None),
        ("0.1Gi", None),
        ("107374182400m", None),  # 0.1Gi as the API server stores it
    ],
)
def test_less_than_a_mebibyte_is_a_slip(text, want):
    assert problem_of_bytes(text) == want
