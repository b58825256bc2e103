"""The labels that a user gives a run."""

from __future__ import annotations

import pytest

from moorage.decide.runs.labels import labels_from
from moorage.decide.runs.remarks import Remarks
from moorage.model.labels import USER_LABELS_MAX, user_labels


def problems(*texts: str) -> list[str]:
    remarks = Remarks()
    labels_from(texts, remarks)
    assert {problem.field for problem in remarks.problems} <= {"labels"}
    return [problem.message for problem in remarks.problems]


@pytest.mark.parametrize(
    "text", ["project=vision", "empty=", "example.org/Team=A.b-c_1", "app.kubernetes.io/name=web", "a=" + "v" * 63]
)
def test_a_label_is_taken_as_kubernetes_takes_it(text):
    remarks = Remarks()
    assert labels_from([text], remarks) == dict([text.split("=")])
    assert remarks.problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("project", "invalid label 'project': use KEY=VALUE"),
        ("=a", "invalid label key ''"),
        ("-a=b", "invalid label key '-a'"),
        ("a/b/c=d", "invalid label key 'a/b/c'"),
        ("Example.org/a=b", "invalid label key 'Example.org/a'"),
        ("/a=b", "invalid label key '/a'"),
        ("k" * 64 + "=b", f"invalid label key {'k' * 64!r}"),
        ("d" * 254 + "/a=b", f"invalid label key {'d' * 254 + '/a'!r}"),
        ("a=b c", "invalid value 'b c' of label a"),
        ("a=" + "v" * 64, f"invalid value {'v' * 64!r} of label a"),
        ("moorage.dev/owner=eve", "label 'moorage.dev/owner' is reserved"),
        ("place.machine.moorage.dev/x=y", "label 'place.machine.moorage.dev/x' is reserved"),
        ("kubernetes.io/a=b", "label 'kubernetes.io/a' is reserved"),
        ("batch.kubernetes.io/job-name=b", "label 'batch.kubernetes.io/job-name' is reserved"),
        ("k8s.io/a=b", "label 'k8s.io/a' is reserved"),
        ("job-name=b", "label 'job-name' is reserved"),
    ],
)
def test_an_invalid_label_is_refused(text, message):
    assert problems(text) == [message]


def test_the_last_value_of_a_key_holds():
    assert labels_from(["a=1", "a=2"], Remarks()) == {"a": "2"}


def test_the_number_of_labels_is_bounded():
    texts = [f"a{number}=x" for number in range(USER_LABELS_MAX + 1)]
    assert problems(*texts) == ["65 labels given; at most 64 are allowed"]
    assert len(user_labels(dict(text.split("=") for text in texts))) == USER_LABELS_MAX
