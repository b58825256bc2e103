"""Tags in documents."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError, TooMuchWork
from moorage_workflows.decide.workflows.text.errors import AbsentValue, SyntaxProblem, UnresolvedTag
from moorage_workflows.decide.workflows.text.tags import Reference, references, substitute, substitute_text

SCOPE = {
    "inputs.parameters.name": "ada",
    "inputs.parameters.count": "3",
    "inputs.parameters.my-list": '["a","b"]',
    "inputs.parameters": '[{"name":"name","value":"ada"}]',
    "inputs.parameters.later": "{{steps.a.outputs.result}}",
    "steps.a.outputs.result": 'say "hi"\nand \\ more',
    "steps.b.outputs.parameters.x": None,
    "which": "a",
    "number": 5,
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("plain", "plain", id="no tag"),
        pytest.param("{{inputs.parameters.name}}", "ada", id="a tag"),
        pytest.param("{{ inputs.parameters.name }}!", "ada!", id="spaces in a tag"),
        pytest.param("{{which}}{{which}}", "aa", id="two tags"),
        pytest.param("{{unknown}} {{which}}", "{{unknown}} a", id="an unknown tag stays"),
        pytest.param("{{ unknown }}", "{{ unknown }}", id="an unknown tag stays as written"),
        pytest.param("{{steps.a.outputs.result}}", 'say "hi"\nand \\ more', id="quotes and newlines of a value"),
        pytest.param("{{steps.{{which}}.outputs.result}}", 'say "hi"\nand \\ more', id="a tag in a tag"),
        pytest.param("{{steps.{{unknown}}.id}}", "{{steps.{{unknown}}.id}}", id="an unknown tag in a tag"),
        pytest.param("{{inputs.parameters.later}}", "{{steps.a.outputs.result}}", id="tags of a value stay"),
        pytest.param("}} {{which}} }}", "}} a }}", id="closing braces alone"),
        pytest.param("{{{which}}}", "{{{which}}}", id="three braces: the tag is named {which"),
        pytest.param("{{=inputs.parameters.name}}", "ada", id="an expression"),
        pytest.param("{{=asInt(inputs.parameters.count) + 1}}", "4", id="a number"),
        pytest.param("{{=inputs.parameters.name == 'ada'}}", "true", id="a bool"),
        pytest.param('{{=inputs.parameters.name == "ada"}}', "true", id="double quotes in an expression"),
        pytest.param("{{=[1.5, 2.0, 'x']}}", '[1.5,2,"x"]', id="a list is compact JSON"),
        pytest.param("{{={b: 1, a: nil} }}", '{"a":null,"b":1}', id="a map is JSON with sorted keys"),
        pytest.param("{{='a\\n' + `b`}}", "a\nb", id="escapes in an expression"),
        pytest.param("{{=inputs.parameters['my-list'] | fromJSON() | join('-')}}", "a-b", id="a hyphen in a name"),
        pytest.param("{{=inputs.parameters.name + which}}", "adaa", id="longer names win over inputs.parameters"),
        pytest.param("{{inputs.parameters}}", '[{"name":"name","value":"ada"}]', id="but not in a simple tag"),
        pytest.param("{{=toJson(number)}}", "5", id="a value that is not a string"),
        pytest.param("{{=steps.b.outputs.parameters.x ?? 'none'}}", "none", id="an absent output has a fallback"),
        pytest.param("{{=steps.b.outputs.parameters.x}}", "{{=steps.b.outputs.parameters.x}}", id="nil stays"),
        pytest.param("{{=unknown}}", "{{=unknown}}", id="an unknown variable stays"),
        pytest.param("{{=unknown.x ?? 'y'}}", "{{=unknown.x ?? 'y'}}", id="an unknown first name is no nil"),
        pytest.param("{{=inputs.parameters.none ?? 'y'}}", "y", id="an unknown last name is nil before ??"),
        pytest.param("{{=asInt(which)}}", "{{=asInt(which)}}", id="what fails stays"),
        pytest.param("{{=item ?? 'x'}}", "{{=item ?? 'x'}}", id="item waits"),
        pytest.param("{{=retries == '0'}}", "{{=retries == '0'}}", id="retries wait"),
        pytest.param("{{=lastRetry?.status ?? 'x'}}", "{{=lastRetry?.status ?? 'x'}}", id="lastRetry waits"),
        pytest.param("{{=workflow.status == ''}}", "{{=workflow.status == ''}}", id="workflow.status waits"),
    ],
)
def test_tags_of_a_text_are_replaced(text, want):
    assert substitute_text(text, SCOPE) == want


def test_tags_stand_anywhere_in_a_document():
    document = {
        "{{which}}": ["{{inputs.parameters.name}}", {"deep": "{{=1 + 1}}"}],
        "number": 3,
        "float": 1.0,
        "none": None,
        "text": "é{{which}}\u2028",
    }
    assert substitute(document, SCOPE) == {
        "a": ["ada", {"deep": "2"}],
        "number": 3,
        "float": 1.0,
        "none": None,
        "text": "éa\u2028",
    }


@pytest.mark.parametrize("document", ["plain", {"a": ["{ {x} }"]}, {"a": "{{unknown}}"}], ids=str)
def test_a_document_that_does_not_change_is_the_same_one(document):
    assert substitute(document, SCOPE) is document


def test_braces_that_no_tag_closes_in_their_string_stay():
    document = {"script": 'print("{{")', "after": "{{which}}", "deep": {"er": {"x": 1}}}
    assert substitute(document, SCOPE) == {**document, "after": "a"}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        pytest.param("{{which", SyntaxProblem, "not closed", id="a tag without its end"),
        pytest.param("{{=1 +}}", SyntaxProblem, "a value is missing", id="wrong syntax never stays"),
        pytest.param("{{=nosuch(1)}}", SyntaxProblem, "no function nosuch", id="nor does an unknown function"),
        pytest.param("{{number}}", TextError, "of type int", id="a simple tag of a number"),
        pytest.param("{{steps.b.outputs.parameters.x}}", AbsentValue, "absent optional", id="an absent output"),
        pytest.param("{{=repeat('x', 99999999)}}", TooMuchWork, "string of", id="a huge string"),
    ],
)
def test_what_cannot_be_replaced_is_refused_even_where_tags_may_stay(text, kind, words):
    with pytest.raises(kind, match=words):
        substitute_text(text, SCOPE)


@pytest.mark.parametrize("text", ["{{steps.c.id}}", "{{=steps.c.id}}", "{{=steps.c.id ?? 'x'}}", "{{ steps }}"])
def test_a_strict_tag_has_to_be_known(text):
    with pytest.raises(UnresolvedTag, match="steps"):
        substitute_text(text, SCOPE, strict=("steps.", "tasks."))


@pytest.mark.parametrize("text", ["{{stepsx.c}}", "{{other}}", "{{=other}}", "{{=item.x}}"])
def test_other_tags_may_stay_beside_strict_ones(text):
    assert substitute_text(text, SCOPE, strict=("steps.", "tasks.")) == text


def test_where_there_is_something_strict_an_expression_must_not_fail():
    with pytest.raises(TextError, match="'a' is not a whole number") as caught:
        substitute_text("{{=asInt(which)}}", SCOPE, strict=("steps.",))
    assert "asInt(which)" in caught.value.message


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("{{other.x}}", "other.x"),
        ("{{=other.x + 1}}", "other.x"),
        ("{{=item}}", "item"),
        ("{{=1 > 0 ? a : b}}", "a"),
    ],
)
def test_every_tag_has_to_be_known_where_none_may_stay(text, tag):
    with pytest.raises(UnresolvedTag) as caught:
        substitute_text(text, SCOPE, allow_unresolved=False)
    assert caught.value.tag == tag


def test_references_have_their_paths():
    document = {
        "spec": {
            "templates": [{"container": {"args": ["x", "{{a.b}} and {{= c + '1' }}"]}}],
            "odd key {{k}}": "{{steps.{{inner}}.id}}",
        },
        "open": "{{ never",
    }
    assert references(document) == [
        Reference("spec.templates[0].container.args[1]", "a.b", False),
        Reference("spec.templates[0].container.args[1]", "c + '1'", True),
        Reference('spec["odd key {{k}}"]', "k", False),
        Reference('spec["odd key {{k}}"]', "inner", False),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
VALUES = st.text(max_size=30).filter(lambda text: text.isprintable() or True)


@given(VALUES)
def test_a_value_arrives_unchanged_in_a_string_and_in_a_key(value):
    assert substitute({"{{x}}": ["<{{x}}>"]}, {"x": value}) == {value: [f"<{value}>"]}


@given(VALUES)
def test_an_expression_gives_a_string_unchanged(value):
    assert substitute_text("{{=x}}", {"x": value}) == value


@given(JSON)
def test_an_expression_gives_json_that_means_the_same(value):
    text = substitute_text("{{=toJson(x)}}", {"x": value})
    assert json.loads(text, parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@given(JSON, st.dictionaries(st.sampled_from(("x", "y.z")), st.text(max_size=5)))
def test_any_document_is_replaced_or_refused(document, scope):
    with contextlib.suppress(TextError):
        substitute({"a": document, "b": "{{x}}{{=y.z}}"}, scope)


@given(
    st.lists(st.sampled_from(["{{", "}}", "=", "x", '"', "\\", "'", "(", "a.b", " ", "\n", "{", "}"]), max_size=15)
)
def test_any_braces_are_replaced_or_refused(parts):
    with contextlib.suppress(TextError):
        assert isinstance(substitute_text("".join(parts), {"x": "1", "a.b": "{{"}), str)


def test_nesting_without_end_is_refused():
    with pytest.raises(TooMuchWork, match="tags within tags"):
        substitute_text("{{x {{a}}}}", {"a": "{{a}}"})
