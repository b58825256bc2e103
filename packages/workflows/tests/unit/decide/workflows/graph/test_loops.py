"""Items of loops."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.loops import item_scope, items_of


@pytest.mark.parametrize(
    ("step", "items"),
    [
        pytest.param({"withItems": [1, "a", {"k": 2}]}, [1, "a", {"k": 2}], id="items as they are"),
        pytest.param({"withParam": '["a", 3]'}, ["a", 3], id="a parameter is JSON"),
        pytest.param({"withParam": "[]"}, [], id="none"),
        pytest.param({"withSequence": {"count": "3"}}, ["0", "1", "2"], id="a count begins at 0"),
        pytest.param({"withSequence": {"count": 2, "start": "5"}}, ["5", "6"], id="a count from a start"),
        pytest.param({"withSequence": {"count": "0"}}, [], id="a count of none"),
        pytest.param({"withSequence": {"start": "1", "end": "0"}}, ["1", "0"], id="downwards"),
        pytest.param(
            {"withSequence": {"end": 2, "format": "host-%02X"}}, ["host-00", "host-01", "host-02"], id="format"
        ),
    ],
)
def test_items(step: dict[str, Any], items: list[Any]) -> None:
    assert items_of(step) == items


@pytest.mark.parametrize(
    ("step", "word"),
    [
        ({"withParam": "nonsense"}, "withParam must be a JSON list"),
        ({"withParam": '{"a": 1}'}, "must be a list"),
        ({"withSequence": {"count": "many"}}, "withSequence.count must be a whole number"),
        ({"withSequence": {"count": 10**9}}, "at most 25,000"),
        ({"withSequence": {"count": 10**30}}, "at most 25,000"),
        ({"withSequence": {"start": 10**30, "end": 0}}, "at most 25,000"),
        ({"withItems": [0] * 25_001}, "at most 25,000"),
    ],
)
def test_what_is_no_loop_is_said(step: dict[str, Any], word: str) -> None:
    with pytest.raises(TextError, match=word):
        items_of(step)


def test_tags_of_an_item() -> None:
    assert item_scope({"b": [1], "a": "x"}) == {"item": '{"a":"x","b":[1]}', "item.a": "x", "item.b": "[1]"}
    assert item_scope(7) == {"item": "7"}
