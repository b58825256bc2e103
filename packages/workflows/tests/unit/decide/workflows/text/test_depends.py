"""Conditions between tasks of a DAG."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.decide.workflows.text.depends import RESULTS, parse_depends
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem

OK = frozenset(("Ok", "Succeeded"))
FAILED = frozenset(("Failed",))
SKIPPED = frozenset(("Ok", "Skipped"))
OMITTED = frozenset(("Omitted",))


@pytest.mark.parametrize(
    ("text", "outcomes", "want"),
    [
        pytest.param("a", {"a": OK}, True, id="a name alone: it went well"),
        pytest.param("a", {"a": SKIPPED}, True, id="a name alone: it was skipped"),
        pytest.param("a", {"a": FAILED}, False, id="a name alone: it failed"),
        pytest.param("a", {"a": OMITTED}, False, id="a name alone: it was omitted"),
        pytest.param("a.Failed", {"a": FAILED}, True, id="a result"),
        pytest.param("a.Succeeded", {"a": SKIPPED}, False, id="another result"),
        pytest.param("!a.Failed", {"a": OK}, True, id="not"),
        pytest.param("not a.Failed", {"a": OK}, True, id="not, as a word"),
        pytest.param("!!a", {"a": OK}, True, id="not not"),
        pytest.param("a && b", {"a": OK, "b": FAILED}, False, id="both"),
        pytest.param("a || b", {"a": OK, "b": FAILED}, True, id="either"),
        pytest.param("a and b or c", {"a": FAILED, "b": OK, "c": OK}, True, id="words; and binds closer than or"),
        pytest.param("c || a && b", {"a": FAILED, "b": OK, "c": OK}, True, id="&& binds closer than ||"),
        pytest.param("(c || a) && b", {"a": FAILED, "b": FAILED, "c": OK}, False, id="brackets"),
        pytest.param("!(a || b)", {"a": FAILED, "b": FAILED}, True, id="not of brackets"),
        pytest.param("my-task-1.Omitted", {"my-task-1": OMITTED}, True, id="hyphens in a name"),
        pytest.param("a.AnySucceeded", {"a": frozenset(("AnySucceeded",))}, True, id="results of a loop"),
        pytest.param("a.AllFailed", {"a": frozenset(("AnySucceeded",))}, False, id="other results of a loop"),
        pytest.param("a", {}, False, id="a task without outcome has no true word"),
        pytest.param("", {}, True, id="no condition"),
    ],
)
def test_a_condition_follows_the_outcomes(text, outcomes, want):
    assert parse_depends(text).holds(outcomes) is want


def test_tasks_come_once_in_their_order():
    assert parse_depends("b && (a.Failed || b.Skipped) && stage-c").tasks == ("b", "a", "stage-c")


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        pytest.param("a b", 2, "join tasks", id="no operator"),
        pytest.param("a &&", 4, "name is missing", id="nothing after an operator"),
        pytest.param("&& a", 0, "name is missing", id="nothing before an operator"),
        pytest.param("a & b", 2, "not expected", id="a single ampersand"),
        pytest.param("(a", 2, r"'\)' is missing", id="an open bracket"),
        pytest.param("a)", 1, "not expected", id="a closing bracket too many"),
        pytest.param("a.Done", 2, "'Done' is not a result", id="an unknown result"),
        pytest.param("a.", 0, "without a result", id="a point alone"),
        pytest.param("a.Succeeded.b", 0, "without a result", id="two points"),
        pytest.param("{{x}}", 0, "not expected", id="a tag"),
        pytest.param("(" * 500, 100, "nested more than", id="brackets without end"),
        pytest.param("!" * 500, 100, "nested more than", id="nots without end"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text, position, why):
    with pytest.raises(SyntaxProblem, match=why) as caught:
        parse_depends(text)
    assert caught.value.position == position
    assert f"at character {position + 1}" in caught.value.message


NAMES = st.from_regex(r"[a-c](-[0-9])?", fullmatch=True)
LEAVES = st.tuples(st.just("is"), NAMES, st.sampled_from(("", *RESULTS)))
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(st.just("not"), inner)
        | st.tuples(st.sampled_from(("&&", "||")), st.lists(inner, min_size=1, max_size=4))
    ),
    max_leaves=12,
)


def written(tree) -> str:
    match tree:
        case ("is", name, result):
            return f"{name}.{result}" if result else name
        case ("not", inner):
            return f"!({written(inner)})"
    return "(" + f" {tree[0]} ".join(written(inner) for inner in tree[1]) + ")"


def truth(tree, outcomes) -> bool:
    match tree:
        case ("is", name, result):
            return (result or "Ok") in outcomes.get(name, ())
        case ("not", inner):
            return not truth(inner, outcomes)
    return (all if tree[0] == "&&" else any)(truth(inner, outcomes) for inner in tree[1])


@given(TREES, st.dictionaries(NAMES, st.frozensets(st.sampled_from(("Ok", *RESULTS)))))
def test_a_condition_means_what_its_tree_means(tree, outcomes):
    assert parse_depends(written(tree)).holds(outcomes) is truth(tree, outcomes)


@given(st.text(alphabet="ab-.&|!() SucedFail", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text):
    with contextlib.suppress(SyntaxProblem):
        assert parse_depends(text).holds({}) in (True, False)
