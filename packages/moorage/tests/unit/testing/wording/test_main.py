from __future__ import annotations

import pytest

from moorage_testing.wording.__main__ import KINDS, judge

LIMITS = {"commits since": "8fdfcaed", "docstrings": 10, "long in howto": 4}


@pytest.mark.parametrize(
    ("docstrings", "howto", "exceeded", "limits"),
    [
        pytest.param(10, 4, [], LIMITS, id="at the limits"),
        pytest.param(7, 4, [], {**LIMITS, "docstrings": 7}, id="a lower count lowers its limit"),
        pytest.param(7, 5, ["long in howto"], LIMITS, id="limits stay while one is exceeded"),
    ],
)
def test_limits_only_fall(docstrings, howto, exceeded, limits):
    assert judge({"docstrings": docstrings, "long in howto": howto}, LIMITS) == (exceeded, limits)


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("docstrings", "What becomes of it.", "'What' (write: use a noun: 'the fields that a run view needs')"),
        ("functions", "reconcile: 60 lines, 0 comments", "say why, at each step"),
        ("functions", "reconcile: 60 lines, 2 comments", ""),
        ("long in howto", "word " * 21, "21 words, at most 20"),
        ("long in howto", "word " * 20, ""),
        ("commits", "s" * 73, "73 letters, at most 72"),
        ("commits", "Refuse cluster-scoped writes by namespaced roles", ""),
    ],
)
def test_each_kind_of_text_is_judged(kind, text, why):
    assert KINDS[kind].judge(text).split(";")[0] == why
