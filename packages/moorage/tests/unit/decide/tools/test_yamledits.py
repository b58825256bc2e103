"""Edits of YAML text: what stands there stays, whatever its style."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from moorage.decide.admission.fields import at
from moorage.decide.tools.yamledits import Add, Edit, Remove, nodes_of, patched, patches_of
from moorage_kube.yamldocuments import parse_yaml_documents

CPU = Add(path=("c", "requests"), values={"cpu": "500m"})


def edited(text: str, edit: Edit) -> str | None:
    patches = patches_of(text, nodes_of(text)[0], edit)
    return None if patches is None else patched(text, patches)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "c:\n  image: x  # why\n", "c:\n  image: x  # why\n  requests:\n    cpu: 500m\n", id="block style"
        ),
        pytest.param("c:\n  image: x", "c:\n  image: x\n  requests:\n    cpu: 500m", id="no line end"),
        pytest.param(
            "c:\r\n  image: x\r\nd: 1\r\n",
            "c:\r\n  image: x\r\n  requests:\r\n    cpu: 500m\r\nd: 1\r\n",
            id="line ends of Windows",
        ),
        pytest.param(
            "c:\n  image: x\n  source: |\n    a",
            "c:\n  image: x\n  requests:\n    cpu: 500m\n  source: |\n    a",
            id="before a text without a line end",
        ),
        pytest.param(
            "c:\n  source: |\n    a",
            "c:\n  requests:\n    cpu: 500m\n  source: |\n    a",
            id="before a text without a line end that is alone",
        ),
        pytest.param("c: {image: x}\n", "c: {image: x, requests: {cpu: 500m}}\n", id="flow style"),
        pytest.param("c: {image: x,}\n", "c: {image: x,requests: {cpu: 500m}}\n", id="a comma at the end"),
        pytest.param("c: {}\n", 'c: {"requests": {"cpu": "500m"}}\n', id="empty"),
        pytest.param("c:\nd: 1\n", "c: {requests: {cpu: 500m}}\nd: 1\n", id="nothing there"),
        pytest.param("c: ~\n", "c: {requests: {cpu: 500m}}\n", id="null"),
        pytest.param("c:\n  requests:\n", "c:\n  requests: {cpu: 500m}\n", id="nothing there, further down"),
        pytest.param('{"c": {"image": "x"}}', '{"c": {"image": "x", "requests": {"cpu": "500m"}}}', id="JSON"),
        pytest.param(
            "c:\n  args:\n  - |\n    a\n\n# end\n",
            "c:\n  args:\n  - |\n    a\n\n  requests:\n    cpu: 500m\n# end\n",
            id="behind a text of several lines",
        ),
        pytest.param(
            "c:\n  requests:\n    memory: 1Gi # m\n  # later\nd: 1\n",
            "c:\n  requests:\n    memory: 1Gi # m\n    cpu: 500m\n  # later\nd: 1\n",
            id="beside another amount",
        ),
        pytest.param("c:\n  requests: {cpu: 1}\n", "c:\n  requests: {cpu: 1}\n", id="there already"),
        pytest.param("c: &a\n  image: x\nd: *a\n", None, id="shared by an anchor: left alone"),
        pytest.param("d: &a {image: x}\nc: *a\n", None, id="an alias: left alone"),
        pytest.param("d: &a {x: 1}\nc:\n  <<: *a\n", None, id="a merge key: left alone"),
        pytest.param(
            "d: &a 1\nc:\n  e: *a # shared\nf: 1\n",
            "d: &a 1\nc:\n  e: *a # shared\n  requests:\n    cpu: 500m\nf: 1\n",
            id="behind an alias",
        ),
        pytest.param("d: &a 1\nc: {e: *a}\n", "d: &a 1\nc: {e: *a, requests: {cpu: 500m}}\n", id="alias in flow"),
        pytest.param("d: &a 1\nc:\n  e:\n  - *a\n", None, id="behind an alias in a list: left alone"),
        pytest.param("c: [1]\n", None, id="a list: left alone"),
    ],
)
def test_keys_are_added_where_they_belong(text, want):
    assert edited(text, CPU) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("m:\n  a: 1\n  b: 2 # two\n  c: 3\n", "m:\n  a: 1\n  c: 3\n", id="a line"),
        pytest.param("m:\n  b: 2\nn: 1\n", "m: {}\nn: 1\n", id="the only one"),
        pytest.param("m: {a: 1, b: 2}\n", "m: {a: 1}\n", id="the last of a flow"),
        pytest.param("m: {b: 2, a: 1}\n", "m: {a: 1}\n", id="the first of a flow"),
        pytest.param("m: {b: 2}\n", "m: {}\n", id="the only one of a flow"),
        pytest.param("m:\n  b: |\n    x\n  a: 1\n", "m:\n  a: 1\n", id="a text of several lines"),
        pytest.param("m:\n  a: 1\n", None, id="not there"),
        pytest.param("m:\n  a: 1\n  b: &x 1\nn: *x\n", None, id="an anchor that others use: left alone"),
    ],
)
def test_keys_are_removed_with_their_lines(text, want):
    assert edited(text, Remove(path=("m",), keys=frozenset({"b"}))) == want


_words = st.text("abxyz ü#:'\"-\n", max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "resources", "requests", "cpu"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from("ab"), _values, min_size=1), st.data(), st.sampled_from([None, True, False])
)
def test_an_edit_changes_what_it_says_and_nothing_else(document, data, flow):
    text = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    text = text.removesuffix("\n") if data.draw(st.booleans()) else text
    before = parse_yaml_documents(text)[0]
    paths = [path for path in _mappings(before, ()) if path]
    assume(paths)
    path = data.draw(st.sampled_from(paths))
    adding = Add(path=(*path, "resources", "requests"), values={"cpu": "1500m", "memory": "2Gi"})
    removing = Remove(path=path[:-1], keys=frozenset({path[-1]}))
    edit: Edit = data.draw(st.sampled_from([adding, removing] if isinstance(path[-1], str) else [adding]))
    result = edited(text, edit)
    if result is None:
        return
    after = parse_yaml_documents(result)[0]
    wanted = copy.deepcopy(before)
    if isinstance(edit, Remove):
        at(wanted, edit.path).pop(path[-1])
    else:
        held = at(wanted, path)
        for step in ("resources", "requests"):
            held[step] = held.get(step) if held.get(step) is not None else {}
            held = held[step]
        for key, value in edit.values.items():
            held.setdefault(key, value)
    assert after == wanted


def _mappings(value: Any, path: tuple[Any, ...]):
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from _mappings(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _mappings(inner, (*path, index))
