"""JSONPath as Argo's function reads it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.decide.evaluation import Budget, TextError, TooMuchWork
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.jsonpath import query

STAFF = {
    "company": {"name": "Moor"},
    "employees": [
        {"name": "Ada", "age": 43.0, "tags": ["a", "b"]},
        {"name": "Bob", "age": 42.0, "boss": True},
        {"name": "Cy'd", "age": 17.0, "boss": None},
    ],
    "length": "key",
    "odd key": {"x.y": 1.0},
}


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("$", STAFF, id="all"),
        pytest.param("$.company.name", "Moor", id="keys"),
        pytest.param("$['odd key'][\"x.y\"]", 1.0, id="keys in quotes"),
        pytest.param("$.employees[0].name", "Ada", id="an index"),
        pytest.param("$.employees[-1].age", 17.0, id="an index from the end"),
        pytest.param("$.employees[*].name", ["Ada", "Bob", "Cy'd"], id="every element"),
        pytest.param("$.company.*", ["Moor"], id="every value of a map"),
        pytest.param("$.employees[0:2].name", ["Ada", "Bob"], id="a range"),
        pytest.param("$.employees[1:].name", ["Bob", "Cy'd"], id="a range to the end"),
        pytest.param("$.employees[::-1].name", ["Cy'd", "Bob", "Ada"], id="backwards"),
        pytest.param("$.employees[0:3:2].name", ["Ada", "Cy'd"], id="every second"),
        pytest.param("$.employees[0,2].name", ["Ada", "Cy'd"], id="two indexes"),
        pytest.param("$.employees[0]['name','age']", ["Ada", 43.0], id="two keys"),
        pytest.param("$.employees[0:1]", STAFF["employees"][:1], id="a range is a list, of one element too"),
        pytest.param("$.employees[?(@.age>42 && @.age<44)].age", [43.0], id="a filter of two conditions"),
        pytest.param('$.employees[?(@.name=="Bob")].age', [42.0], id="a filter of a string"),
        pytest.param("$.employees[?(@.name=='Cy\\'d')].age", [17.0], id="an escaped quote"),
        pytest.param("$.employees[?(@.boss)].name", ["Bob"], id="a filter of what is there and true"),
        pytest.param("$.employees[?(!@.boss)].name", ["Ada", "Cy'd"], id="a filter of what is not"),
        pytest.param("$.employees[?(@.name =~ /^[AB]/)].name", ["Ada", "Bob"], id="a pattern"),
        pytest.param("$.employees[?(@.age in [42, 17])].name", ["Bob", "Cy'd"], id="in a list"),
        pytest.param("$.employees[?(@.age * 2 - 1 >= 83)].name", ["Ada", "Bob"], id="arithmetic"),
        pytest.param("$.employees[?(@.name == $.employees[1].name)].age", [42.0], id="the root in a filter"),
        pytest.param("$.employees[?(@.tags[0] == 'a' || false)].name", ["Ada"], id="what is missing is not true"),
        pytest.param("$.employees[?(@.age > 0)][0].name", "Ada", id="an index picks of the results"),
        pytest.param("$.employees[*].tags", [["a", "b"]], id="results without the key are left out"),
        pytest.param("$.employees[(@.length-1)].age", 17.0, id="an index that is worked out"),
        pytest.param("$.employees.length", 3.0, id="the length of a list"),
        pytest.param("$.length", "key", id="a key named length"),
        pytest.param("$..age", [43.0, 42.0, 17.0], id="anywhere below"),
        pytest.param("$..employees[1].name", ["Bob"], id="further steps anywhere below"),
        pytest.param("$.employees[?(@.age > 99)]", [], id="nothing fits"),
        pytest.param(" $ ", STAFF, id="spaces around"),
    ],
)
def test_a_path_selects(path, want):
    assert query(path, STAFF, Budget()) == want


@pytest.mark.parametrize(
    ("path", "words"),
    [
        pytest.param("$.nobody", "key 'nobody' does not exist in a map with 4 keys", id="a missing key"),
        pytest.param("$.employees[9]", "index 9 does not exist in a list of 3 items", id="a missing index"),
        pytest.param("$.company.name.x", "does not exist in 'Moor'", id="a key of a string"),
        pytest.param("$.company[0:1]", "not a list", id="a range of a map"),
        pytest.param("", "does not start with", id="nothing"),
        pytest.param("company", "does not start with", id="no root"),
        pytest.param("$.", "a key is missing", id="no key"),
        pytest.param("$[", "missing", id="an open bracket"),
        pytest.param("$['a", "not closed", id="an open string"),
        pytest.param("$[?(@.a ==)]", "a value is missing", id="half a filter"),
        pytest.param("$[?(@.a =~ /x)]", "not closed", id="an open pattern"),
        pytest.param("$[0:1:0]", "step of a range is 0", id="a step of 0"),
        pytest.param("$ x", "not expected", id="more after the path"),
        pytest.param("$[?(" + "(" * 300 + "1", "nested more than", id="brackets without end"),
        pytest.param("$[?(" + "!" * 300 + "1)]", "nested more than", id="nots without end"),
        pytest.param("$[?(1" + "+1" * 300 + ")]", "more than 100 terms", id="terms without end"),
    ],
)
def test_what_does_not_exist_or_cannot_be_read_is_refused(path, words):
    with pytest.raises(TextError, match=words):
        query(path, STAFF, Budget())


def test_a_search_without_end_is_stopped():
    wide = [[0.0] * 300] * 300
    with pytest.raises(TooMuchWork):
        query("$..[?(@ == $[0][?(@ > 1)])]", wide, Budget())


PARTS = [
    "$",
    ".",
    "..",
    "*",
    "[",
    "]",
    "[*]",
    "[0]",
    "[-1:]",
    "['a']",
    "a",
    "b",
    "?(",
    "(",
    ")",
    "@",
    "==",
    "<",
    "'x'",
    "1",
]
PARTS += [",", ":", "&&", "!", "=~", "/x/", " ", "length", "[?(@.a)]", "[?(@ > 1)]", "[(@.length-1)]"]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(-10, 10) | st.sampled_from(["x", "a", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b"]), inner),
    max_leaves=12,
)


@given(st.lists(st.sampled_from(PARTS), max_size=10).map(lambda parts: "$" + "".join(parts)), JSON)
@settings(max_examples=500)
def test_any_path_selects_or_is_refused(path, document):
    with contextlib.suppress(TextError):
        query(path, document, Budget())


@given(JSON)
def test_everything_below_has_the_document_s_own_keys(document):
    def values_of_a(value):
        if isinstance(value, dict):
            here = [value["a"]] if value.get("a") is not None and not isinstance(value["a"], list) else []
            here += value["a"] if isinstance(value.get("a"), list) else []
            return here + [found for key in sorted(value) for found in values_of_a(value[key])]
        return [found for element in value for found in values_of_a(element)] if isinstance(value, list) else []

    assert query("$..a", document, Budget()) == values_of_a(document)


def test_the_position_of_what_is_wrong_is_named():
    with pytest.raises(SyntaxProblem, match="at character 6") as caught:
        query("$.a[?]", STAFF, Budget())
    assert caught.value.position == 5
