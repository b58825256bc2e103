"""Names of nodes and pods, with the vectors of Argo's own documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.decide.workflows.graph.naming import fnv1a, item_text, node_id, pod_name


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("steps-z2zdn[0].hello1", 27420706),
        ("steps-z2zdn[1].hello2a", 2006760091),
        ("steps-z2zdn[1].hello2b", 2023537710),
        ("", 2166136261),
    ],
)
def test_hashes_are_those_of_argo(name: str, digest: int) -> None:
    assert fnv1a(name) == digest


def test_the_root_is_named_as_its_workflow() -> None:
    assert node_id("wf", "wf") == "wf"
    assert pod_name("wf", "wf", "main") == "wf"
    assert pod_name("steps-z2zdn", "steps-z2zdn[0].hello1", "whalesay") == "steps-z2zdn-whalesay-27420706"


@given(
    st.text("abc-", min_size=1, max_size=63), st.text("abc-", max_size=300), st.integers(0, 3), st.integers(0, 3)
)
def test_every_way_to_run_a_step_again_has_a_name_of_its_own(wf, template, retries, lost) -> None:
    names = {
        pod_name(wf, f"{wf}.a", template, retries=one, lost=two)
        for one in range(retries + 1)
        for two in range(lost + 1)
    }
    assert len(names) == (retries + 1) * (lost + 1)
    assert all(len(name) <= 253 for name in names)


@pytest.mark.parametrize(
    ("item", "text"),
    [
        pytest.param("hello world", "hello world", id="text"),
        pytest.param(3, "3", id="number"),
        pytest.param(True, "true", id="truth value"),
        pytest.param({"b": 1, "a": "x"}, "a:x,b:1", id="map, by key"),
        pytest.param(["a", 2], "[a 2]", id="list"),
        pytest.param("f(x)", "fx", id="no parentheses"),
    ],
)
def test_items_are_written_as_argo_writes_them(item: object, text: str) -> None:
    assert item_text(item) == text
