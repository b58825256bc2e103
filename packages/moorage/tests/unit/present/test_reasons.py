"""Reasons of Kubernetes in our sentences."""

from __future__ import annotations

import pytest

from moorage.present.reasons import attempt_words, message_words, reason_words

RETRIES = "it failed, and has no retry left (--retries)"
UNPULLED = "its image cannot be pulled: check its name and tag, and whether its registry needs a login"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("BackoffLimitExceeded", RETRIES),
        ("DeadlineExceeded", "it reached its time limit (--time), and was stopped"),
        ("OutOfMemory: killed for its own memory", "killed for its own memory"),
        ("exit code 3", "exit code 3"),
        ("Odd", "Odd"),
    ],
)
def test_a_reason_is_our_sentence_or_itself(reason, words):
    assert reason_words(reason) == words


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("DeadlineExceeded", "Job was active longer than specified deadline", reason_words("DeadlineExceeded")),
        ("ImagePullBackOff", 'Back-off pulling image "x"', UNPULLED),
        ("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: no such tag', f"{UNPULLED} (no such tag)"),
        ("ErrImagePull", "manifest unknown", "manifest unknown"),
        ("ErrImagePull", "", UNPULLED),
        ("Unschedulable", "0/2 nodes are available", "0/2 nodes are available"),
        ("Odd", "never seen", "never seen"),
    ],
)
def test_a_message_with_a_detail_passes_as_it_is(reason, message, words):
    assert message_words(reason, message) == words


def test_an_attempt_has_its_cause_once():
    rule = "Pod lab/train-x has condition DisruptionTarget matching FailJob rule at index 0"
    assert attempt_words("disrupted", "PodFailurePolicy", rule) == "disrupted"
    assert attempt_words("failed by itself", "BackoffLimitExceeded", "") == RETRIES
    assert attempt_words("", "", "") == ""
