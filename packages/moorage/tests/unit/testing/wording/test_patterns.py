from __future__ import annotations

import pytest

from moorage_testing.wording.patterns import odd_phrases


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("What becomes of the step.", ["what", "archaic"]),
        ("what is kept of a Job: no more than a run is shown by", ["what", "keep"]),
        ("Whose address it is, for counting by it.", ["whose"]),
        ("read-only, for who may look", ["who"]),
        ("no node port is free", ["no X is"]),
        ("Give the lease back although the answer was lost", ["back"]),
        ("Secrets of its own beside those that nobody told", ["tell", "nobody", "beside", "own"]),
        ("Its tag stands in the file that went", ["stand", "go"]),
    ],
)
def test_an_odd_phrase_is_counted_by_its_pattern(text, names):
    assert [pattern.name for pattern, _ in odd_phrases(text)] == names


@pytest.mark.parametrize(
    "text",
    [
        "New state of the step.",
        "The fields of a Job that a run view needs.",
        "All node ports are in use.",
        "Users who are members of the tenant.",
        "Pods whose node was deleted.",
        "What is a map?",
        "`what` is the name of a field, and GPU stands for graphics processing unit.",
        'Fails with "nobody may do this".',
        "https://example.org/what/told",
    ],
)
def test_plain_words_questions_and_code_are_not_counted(text):
    assert odd_phrases(text) == []
