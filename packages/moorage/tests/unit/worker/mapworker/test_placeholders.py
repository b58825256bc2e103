"""The words {item} and {index} in the command of a map."""

from __future__ import annotations

import pytest

from moorage.worker.mapworker.placeholders import fill

ITEM = {"day": "x", "file name": "a, b.csv", "a.b": 1, "a": {"b": 2, "c": [3, {"d": None}]}}


@pytest.mark.parametrize(
    ("word", "value", "want"),
    [
        pytest.param("{index}: {item}", "x", "7: x", id="index and text"),
        pytest.param("{item}", [1, "x"], '[1, "x"]', id="other values as JSON"),
        pytest.param("{item.day}/{item.file name}", ITEM, "x/a, b.csv", id="fields, also with a space"),
        pytest.param("{item.a.b} {item.a.c.0}", ITEM, "1 3", id="a name with a dot, and a path"),
        pytest.param("{item.a.c.1.d}", ITEM, "null", id="deeper"),
        pytest.param("{items} { item } ${item_x}", "x", "{items} { item } ${item_x}", id="other braces"),
    ],
)
def test_placeholders_are_replaced(word, value, want):
    assert fill(["run", word], 7, value) == ["run", want]


@pytest.mark.parametrize(
    ("word", "value", "why"),
    [
        ("{item.dya}", {"day": 1, "n": 2}, "{item.dya}: this item has the fields day, n"),
        ("{item.day}", "text", "{item.day}: this item has no fields"),
        ("{item.2}", [1, 2], "{item.2}: this item has the fields 0 to 1"),
        ("{index.x}", 1, "{index.x}: the index is a number without fields: use {index}"),
    ],
)
def test_a_field_that_the_item_lacks_is_an_error_that_lists_its_fields(word, value, why):
    with pytest.raises(ValueError) as refused:
        fill([word], 0, value)
    assert str(refused.value) == why
