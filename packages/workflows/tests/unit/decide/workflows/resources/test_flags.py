from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.resources.flags import ACTIONS, Flags, read_flags


@pytest.mark.parametrize(
    ("action", "words", "flags"),
    [
        ("create", ["--validate=false"], Flags(values={"validate": "false"})),
        ("create", ["--validate"], Flags(values={"validate": "strict"})),
        ("delete", ["configmap", "--selector", "a=b"], Flags(words=("configmap",), values={"selector": "a=b"})),
        ("delete", ["cm", "-la=b"], Flags(words=("cm",), values={"selector": "a=b"})),
        ("delete", ["--ignore-not-found"], Flags(values={"ignore-not-found": "true"})),
        ("get", ["-n", "other", "pod/x"], Flags(words=("pod/x",), values={"namespace": "other"})),
        ("patch", ["pod", "x", "--type=merge"], Flags(words=("pod", "x"), values={"type": "merge"})),
        ("get", ["--", "pod", "x"], Flags(words=("pod", "x"))),
    ],
)
def test_flags_are_read_as_kubectl_reads_them(action: str, words: list[str], flags: Flags) -> None:
    assert read_flags(action, words) == flags


@pytest.mark.parametrize(
    ("action", "words", "why"),
    [
        ("create", ["--kubeconfig=/x"], "cannot be used with create: use --namespace"),
        ("create", ["--as=admin"], "cannot be used"),
        ("get", ["-o", "yaml"], "cannot be used"),
        ("get", ["--namespace"], "needs a value"),
        ("create", ["configmap", "x"], "create takes flags that begin with --"),
        ("delete", ["--cascade=never"], "use one of background"),
        ("delete", ["pod/x", "y"], "write KIND/NAME"),
        ("delete", ["pod/x/y"], "must be KIND/NAME"),
        ("delete", ["pods,jobs", "-l", "a=b"], "several kinds"),
        ("delete", ["pod", "x", "--grace-period=soon"], "use seconds"),
        ("delete", ["pod", "x", "--timeout=soon"], "use a duration"),
        ("apply", ["--force"], "never deletes"),
    ],
)
def test_what_is_not_carried_out_is_refused(action: str, words: list[str], why: str) -> None:
    with pytest.raises(TextError, match=why):
        read_flags(action, words)


def test_words_name_objects() -> None:
    assert read_flags("delete", ["pod", "a", "b"]).targets == (("pod", "a"), ("pod", "b"))
    assert read_flags("delete", ["pod/a", "job/b"]).targets == (("pod", "a"), ("job", "b"))
    assert read_flags("delete", ["pod", "--all"]).targets == (("pod", ""),)
    assert read_flags("delete", ["--timeout", "1m30s"]).seconds == 90
    assert read_flags("delete", []).seconds is None


@given(st.sampled_from(ACTIONS), st.lists(st.text(alphabet="-=/nlabcfor.,0 ", max_size=12), max_size=4))
def test_any_words_are_read_or_refused(action: str, words: list[str]) -> None:
    try:
        read_flags(action, words)
    except TextError:
        pass
