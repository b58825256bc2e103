"""Patches of pods: the same as the API server's own strategic merge, and messages for what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.apiserver.wire.patch import strategic_merge
from moorage_workflows.decide.workflows.podpatch import PatchError, patched_spec

POD = "io.k8s.api.core.v1.Pod"
names = st.sampled_from(["main", "wait", "extra"])
env = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, names, st.text("xy", max_size=2)),
    max_size=2,
    unique_by=lambda entry: entry["name"],
)
directives = st.sampled_from([{}, {}, {}, {"$patch": "delete"}, {"$patch": "merge"}])
fields = st.fixed_dictionaries(
    {},
    optional={
        "image": st.sampled_from(["a", "b"]),
        "command": st.lists(st.sampled_from(["c", "d"]), max_size=2),
        "env": env,
        "resources": st.dictionaries(
            st.sampled_from(["limits", "requests"]),
            st.dictionaries(st.sampled_from(["cpu", "memory"]), st.just("1"), max_size=2),
            max_size=2,
        ),
    },
)


def specs(more: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    containers = st.lists(
        st.builds(lambda name, given, directive: {"name": name, **given, **directive}, names, fields, more),
        max_size=3,
        unique_by=lambda container: container["name"],
    )
    return st.fixed_dictionaries(
        {},
        optional={
            "containers": containers,
            "initContainers": containers,
            "nodeSelector": st.dictionaries(names, st.just("x"), max_size=2),
            "tolerations": st.lists(st.sampled_from([{"key": "a"}, {"key": "b"}]), max_size=2),
            "hostname": st.sampled_from(["a", "b"]),
            "terminationGracePeriodSeconds": st.integers(1, 3),
        },
    )


def in_order(spec: Any) -> Any:
    """Lists that are merged by name, by name: their order is the API server's own affair."""
    if isinstance(spec, dict):
        return {key: in_order(value) for key, value in spec.items()}
    if isinstance(spec, list):
        items = [in_order(item) for item in spec]
        by_name = all(isinstance(item, dict) and "name" in item for item in items)
        return sorted(items, key=lambda item: str(item["name"])) if by_name else items
    return spec


@given(specs(st.just({})), specs(directives))
def test_a_patch_does_what_it_does_at_the_api_server(spec: dict[str, Any], patch: dict[str, Any]) -> None:
    before = json.dumps(spec)
    made = patched_spec(spec, json.dumps(patch))
    assert json.dumps(spec) == before
    assert in_order(made) == in_order(strategic_merge({"spec": spec}, {"spec": patch}, POD)["spec"])


SPEC = {
    "hostname": "a",
    "containers": [{"name": "main", "env": [{"name": "A"}]}],
    "volumes": [{"name": "work", "hostPath": {"path": "/x"}}],
}


@pytest.mark.parametrize(
    ("patch", "want"),
    [
        pytest.param("hostname: null", {"hostname": None}, id="null removes"),
        pytest.param("{hostname: b}", {"hostname": "b"}, id="YAML in braces"),
        pytest.param(
            "containers: [{name: main, env: [{$patch: replace}, {name: B}]}]",
            {"containers": [{"name": "main", "env": [{"name": "B"}]}]},
            id="a list that is replaced",
        ),
        pytest.param(
            "volumes: [{name: work, emptyDir: {}}]",
            {"volumes": [{"name": "work", "emptyDir": {}}]},
            id="a volume has one source",
        ),
        pytest.param(
            "{$patch: replace, hostname: c}", {"hostname": "c", "containers": None}, id="all is replaced"
        ),
    ],
)
def test_typical_patches(patch: str, want: dict[str, Any]) -> None:
    made = patched_spec(SPEC, patch)
    assert {key: made.get(key) for key in want} == want


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        pytest.param("[]", "must be an object", id="a list"),
        pytest.param("a: [", "neither valid JSON nor valid YAML", id="no document"),
        pytest.param("containers: [{image: x}]", "an entry of containers without name", id="no name"),
        pytest.param("$patch: upsert", "'upsert'", id="an unknown directive"),
    ],
)
def test_what_is_no_patch_is_refused(patch: str, words: str) -> None:
    with pytest.raises(PatchError, match=words):
        patched_spec(SPEC, patch)


@given(st.text())
def test_any_text_is_refused_or_applied(text: str) -> None:
    try:
        made = patched_spec(SPEC, text)
    except PatchError:
        return
    assert isinstance(made, dict)
