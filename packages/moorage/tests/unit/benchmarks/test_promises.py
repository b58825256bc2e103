"""The durations that the texts promise are those of `benchmarks/figures.json`, which `make bench` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]
FIGURES = json.loads((ROOT / "benchmarks/figures.json").read_text())
TARGET_OR_DURATION = re.compile(
    r"\bmake (?P<target>quick|test|demo)\b(?!-)|^(?P<rule>quick|test|demo):|\b(?P<demo>demo|デモ)"
    r"|\b(?P<number>\d+) ?(?P<unit>s|min|minutes|秒|分)(?![a-z])",
    re.MULTILINE,
)
SECONDS = {"s": 1, "秒": 1, "min": 60, "minutes": 60, "分": 60}


def promises(text: str) -> set[tuple[str, int]]:
    """Target and seconds of each duration, in a line that names a target before it."""
    promised = set()
    for line in text.splitlines():
        target = None
        for match in TARGET_OR_DURATION.finditer(line):
            if match["number"] is None:
                target = match["target"] or match["rule"] or "demo"
            elif target is not None:
                promised.add((target, int(match["number"]) * SECONDS[match["unit"]]))
    return promised


def test_promises_are_read_from_a_text():
    assert promises("The demo takes under 3 minutes.\n    make test  # 45 min; make quick: 75 s\n") == {
        ("demo", 180),
        ("test", 2700),
        ("quick", 75),
    }
    assert promises("デモは 3 分以内。make quick は 75 秒以内") == {("demo", 180), ("quick", 75)}
    assert promises("quick: setup ## at most 75 s\nmake test-all  # 3 s, and 200 items in 5 min") == {
        ("quick", 75)
    }


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("README.md", {"demo", "quick"}),
        ("README.ja.md", {"demo", "quick"}),
        ("CONTRIBUTING.md", {"quick", "test"}),
        ("Makefile", {"demo", "quick"}),
        ("docs/tutorial/first-training.md", {"demo"}),
    ],
)
def test_a_text_promises_what_the_figures_promise(text, targets):
    assert promises((ROOT / text).read_text()) == {
        (target, FIGURES[target]["promised_seconds"]) for target in targets
    }


@pytest.mark.parametrize("target", FIGURES)
def test_what_was_measured_is_within_the_promise(target):
    measured = FIGURES[target]["measured"]
    if measured is not None:  # null: never measured
        assert measured.keys() == {"seconds", "cpu_seconds", "date", "machine"}
        assert measured["seconds"] <= FIGURES[target]["promised_seconds"]
