from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.decide.workflows.resources.jsonpath import JsonPathError, parse, render

OBJ: dict[str, Any] = {
    "kind": "List",
    "metadata": {"name": "train", "labels": {"app.kubernetes.io/name": "x"}, "generation": 3},
    "items": [
        {"metadata": {"name": "a"}, "status": {"phase": "Running", "ready": True, "ratio": 0.5, "restarts": 2}},
        {"metadata": {"name": "b"}, "status": {"phase": "Failed", "ready": False, "restarts": 0}},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        pytest.param("{.metadata.name}", "train", id="a field"),
        pytest.param("{metadata.name}", "train", id="without the first dot"),
        pytest.param("{$.metadata.name}", "train", id="from the root"),
        pytest.param("{@.metadata.name}", "train", id="from here"),
        pytest.param(".metadata.name", ".metadata.name", id="text is text"),
        pytest.param("name: {.metadata.name}!", "name: train!", id="text around it"),
        pytest.param("{.metadata.generation}", "3", id="a number"),
        pytest.param("{.metadata.nothing.below}", "", id="what is missing"),
        pytest.param("{.metadata.labels}", '{"app.kubernetes.io/name":"x"}', id="a mapping is JSON"),
        pytest.param(r"{.metadata.labels.app\.kubernetes\.io/name}", "x", id="dots that are escaped"),
        pytest.param("{.metadata.labels['app.kubernetes.io/name']}", "x", id="a name in quotes"),
        pytest.param("{.items[*].metadata.name}", "a b", id="all entries"),
        pytest.param("{.items[0].metadata.name}", "a", id="the first"),
        pytest.param("{.items[-1].metadata.name}", "b", id="the last"),
        pytest.param("{.items[0:1].metadata.name}", "a", id="a slice"),
        pytest.param("{.items[1:].metadata.name}", "b", id="an open slice"),
        pytest.param("{.items[0,1].metadata.name}", "a b", id="a union of indexes"),
        pytest.param("{.metadata['name','generation']}", "train 3", id="a union of names"),
        pytest.param("{..name}", "train a b", id="everywhere below"),
        pytest.param('{.items[?(@.status.phase=="Failed")].metadata.name}', "b", id="a filter by text"),
        pytest.param("{.items[?(@.status.restarts > 1)].metadata.name}", "a", id="a filter by number"),
        pytest.param("{.items[?(@.status.ready == true)].metadata.name}", "a", id="a filter by truth"),
        pytest.param("{.items[?(@.status.ratio)].metadata.name}", "a", id="a filter by being there"),
        pytest.param("{.items[?(@.status.phase != 'Failed')].metadata.name}", "a", id="another value"),
        pytest.param(
            '{range .items[*]}{.metadata.name}={.status.phase}{"\\n"}{end}', "a=Running\nb=Failed\n", id="a range"
        ),
        pytest.param("{.kind}{.metadata.name}", "Listtrain", id="two paths"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_paths_give_what_kubectl_prints(template: str, text: str) -> None:
    assert render(parse(template), OBJ) == text


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param("{.metadata.name", "where '}' is to be|where a field", id="no closing brace"),
        pytest.param("{.items[}", "where", id="no closing bracket"),
        pytest.param("{range .items[*]}x", "range without an end", id="no end"),
        pytest.param("{end}", "end without a range", id="an end alone"),
        pytest.param('{"x}', "closing", id="no closing quote"),
        pytest.param("{.items[?(phase==1)]}", "filter", id="a name alone in a filter"),
        pytest.param("{range .a}" * 50, "more than 20 ranges", id="too deep"),
        pytest.param("x" * 20000, "20000 characters", id="too long"),
    ],
)
def test_what_cannot_be_read_is_refused(template: str, why: str) -> None:
    with pytest.raises(JsonPathError, match=why):
        parse(template)


def test_an_index_out_of_its_list_is_an_error() -> None:
    with pytest.raises(JsonPathError, match="index 5 of a list with 2 entries"):
        render(parse("{.items[5]}"), OBJ)


@given(st.text(alphabet="{}[].$@*?()='\",:-0129abrend \\\n<>!", max_size=40))
def test_any_text_is_read_or_refused(template: str) -> None:
    try:
        render(parse(template), OBJ)
    except JsonPathError:
        pass
