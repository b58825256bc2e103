"""Patches, as tables; what strategic merge must give was taken from the real server's answers."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.documents import parse_json
from moorage_kube.errors import BadRequest, Invalid, ServerError, TooLarge
from moorage_local.apiserver.types.schema import OBJECT_META
from moorage_local.apiserver.wire.patch import apply_merge, json_patch, strategic_merge

POD_SPEC = "io.k8s.api.core.v1.PodSpec"
POD = "io.k8s.api.core.v1.Pod"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("target", "operations", "want"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": {"x": 1}}], {"a": {"x": 1}}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/1", "value": 9}], {"a": [1, 9]}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a/b": {"m~n": 1}}, [{"op": "replace", "path": "/a~1b/m~0n", "value": 2}], {"a/b": {"m~n": 2}}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}], {"a": 1}),
        ({"a": None}, [{"op": "test", "path": "/b", "value": None}], {"a": None}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"z": 1}}], {"z": 1}),
    ],
)
def test_json_patch_follows_rfc_6902(target: Any, operations: Any, want: Any) -> None:
    assert json_patch(target, operations) == want


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/nope"},
        {"op": "replace", "path": "/nope", "value": 1},
        {"op": "add", "path": "/nope/x", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "remove", "path": "/list/01"},
        {"op": "test", "path": "/a", "value": True},
        {"op": "move", "from": "/list", "path": "/list/0"},
        {"op": "what", "path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_apply_is_invalid(operation: Any) -> None:
    with pytest.raises(Invalid):
        json_patch({"a": 1, "list": [1, 2]}, [operation])


@pytest.mark.parametrize("patch", [{}, "x", [1], [{"op": "add"}], [{"op": "add", "path": "x", "value": 1}]])
def test_what_is_no_json_patch_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(BadRequest):
        json_patch({}, patch)


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


A, B = {"name": "a", "image": "1"}, {"name": "b", "image": "1"}


@pytest.mark.parametrize(
    ("patch", "want"),
    [
        pytest.param(
            {"containers": [{"name": "b", "image": "2"}]},
            [A, {"name": "b", "image": "2"}],
            id="merged by name, order kept",
        ),
        pytest.param(
            {"containers": [{"name": "c", "image": "2"}]},
            [{"name": "c", "image": "2"}, A, B],
            id="a new item stands before those the patch does not name",
        ),
        pytest.param({"containers": [{"$patch": "delete", "name": "a"}]}, [B], id="deleted by directive"),
        pytest.param(
            {"containers": [{"$patch": "replace"}, {"name": "z", "image": "9"}]},
            [{"name": "z", "image": "9"}],
            id="list replaced by directive",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": "2", "$patch": "replace"}]},
            [{"name": "a", "image": "2"}],
            id="a replace directive in an item replaces the list",
        ),
        pytest.param(
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}, [B, A], id="order set without items"
        ),
        pytest.param(
            {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a", "image": "2"}],
            },
            [B, {"name": "a", "image": "2"}],
            id="order set with items",
        ),
        pytest.param(
            {"containers": [{"name": "a", "image": None}]}, [{"name": "a"}, B], id="null deletes inside an item"
        ),
    ],
)
def test_lists_with_a_merge_key_are_merged(patch: Any, want: Any) -> None:
    start = pod(A, B)
    assert strategic_merge(start, {"spec": patch}, POD)["spec"]["containers"] == want
    assert start == pod(A, B)


def test_a_list_without_merge_key_is_replaced() -> None:
    start = pod({**A, "args": ["x", "y"]})
    patched = strategic_merge(start, {"spec": {"containers": [{"name": "a", "args": ["z"]}]}}, POD)
    assert patched["spec"]["containers"][0]["args"] == ["z"]


def test_lists_of_plain_values_are_united_and_can_be_cut() -> None:
    start = {"metadata": {"name": "p", "finalizers": ["a/1", "b/1"]}}
    grown = strategic_merge(start, {"metadata": {"finalizers": ["b/1", "c/1"]}}, POD)
    assert sorted(grown["metadata"]["finalizers"]) == ["a/1", "b/1", "c/1"]
    cut = strategic_merge(start, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/1"]}}, POD)
    assert cut["metadata"]["finalizers"] == ["b/1"]


def test_retain_keys_drops_what_is_not_named() -> None:
    start = pod(A, volumes=[{"name": "v", "emptyDir": {}}])
    patch = {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]}
    patched = strategic_merge(start, {"spec": patch}, POD)
    assert patched["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_a_map_is_replaced_or_emptied_by_directive() -> None:
    start = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    replaced = strategic_merge(start, {"metadata": {"labels": {"$patch": "replace", "c": "3"}}}, POD)
    assert replaced["metadata"]["labels"] == {"c": "3"}
    emptied = strategic_merge(start, {"metadata": {"labels": {"$patch": "delete"}}}, POD)
    assert emptied["metadata"]["labels"] == {}


def test_an_item_without_its_merge_key_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="merge key: name"):
        strategic_merge(pod(A), {"spec": {"containers": [{"image": "2"}]}}, POD)


def test_directives_never_reach_the_object() -> None:
    patch = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "emptyDir": {"$patch": "replace"}}]}}
    assert "$" not in repr(strategic_merge(pod(A), patch, POD))


def test_apply_merges_lists_by_the_keys_of_their_type() -> None:
    start = pod({**A, "ports": [{"containerPort": 80, "protocol": "TCP"}]}, B)
    wanted = {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}]}}
    applied = apply_merge(start, wanted, POD, None)
    assert applied["spec"]["containers"] == [
        {**A, "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}]},
        B,
    ]


def test_apply_replaces_lists_of_custom_kinds_unless_their_schema_has_keys() -> None:
    def schema(**more: Any) -> dict[str, Any]:
        items = {"type": "object", "properties": {"k": {"type": "string"}}}
        return {"type": "object", "properties": {"list": {"type": "array", "items": items, **more}}}

    start, wanted = {"list": [{"k": "a", "x": 1}]}, {"list": [{"k": "b"}]}
    assert apply_merge(start, wanted, None, schema()) == wanted
    by_key = schema(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]})
    assert apply_merge(start, wanted, None, by_key) == {"list": [{"k": "a", "x": 1}, {"k": "b"}]}


@given(
    items=st.lists(st.sampled_from("abcd"), unique=True, max_size=4),
    order=st.lists(st.sampled_from("abcde"), unique=True, max_size=5),
)
def test_an_order_holds_what_the_patch_lists_in_that_order(items: list[str], order: list[str]) -> None:
    """https://github.com/kubernetes/community/blob/master/contributors/devel/sig-api-machinery/strategic-merge-patch.md"""
    containers = [{"name": one, "image": "x"} for one in items]
    patch = {"spec": {"containers": containers, "$setElementOrder/containers": [{"name": one} for one in order]}}
    if [one for one in order if one in items] == items:
        merged = strategic_merge({"spec": {}}, patch, POD)
        assert [one["name"] for one in merged["spec"]["containers"]] == items
    else:
        with pytest.raises(ServerError, match="doesn't match .setElementOrder list"):
            strategic_merge({"spec": {}}, patch, POD)


def test_a_deleted_item_needs_no_place_in_the_order() -> None:
    patch = {
        "spec": {
            "containers": [{"name": "a", "$patch": "delete"}],
            "$setElementOrder/containers": [{"name": "b"}],
        }
    }
    had = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    assert strategic_merge(had, patch, POD) == {"spec": {"containers": [{"name": "b"}]}}


# --- cheap questions with dear answers


def test_copies_that_double_are_bounded() -> None:
    doubling = [{"op": "add", "path": "/a", "value": ["x" * 100]}]
    doubling += [{"op": "copy", "from": "/a", "path": "/a/-"} for _ in range(60)]
    with pytest.raises(Invalid) as error:
        json_patch({}, doubling)
    assert "the accumulated size increase of copy" in str(error.value.hint)
    assert "exceeding the limit 3145728" in str(error.value.hint)


def test_copies_below_the_limit_are_made_and_are_values_of_their_own() -> None:
    operations = [
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/a/-", "value": 2},
    ]
    assert json_patch({"a": [1]}, operations) == {"a": [1, 2], "b": [1]}


def test_the_number_of_operations_is_bounded() -> None:
    operation = {"op": "add", "path": "/a", "value": 1}
    assert json_patch({}, [operation] * 10_000) == {"a": 1}
    with pytest.raises(TooLarge, match="maximum operations in a JSON patch is 10000, got 10001"):
        json_patch({}, [operation] * 10_001)


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([{"op": "add", "path": "/a" * 100_000, "value": 1}], id="a pointer of many steps"),
        pytest.param([{"op": "test", "path": "/a" * 100_000, "value": 1}] * 2, id="a test of many steps"),
        pytest.param(
            [{"op": "add", "path": "/a", "value": {}}]
            + [{"op": "copy", "from": "", "path": "/b"}, {"op": "move", "from": "/b", "path": "/a/b"}] * 9,
            id="copies of the whole in itself",
        ),
        pytest.param(
            [{"op": "add", "path": "/a" * depth, "value": {}} for depth in range(1, 3000)],
            id="one level at a time",
        ),
        pytest.param(
            [{"op": "add", "path": "", "value": {"a": 1}}]
            + [
                operation
                for _ in range(1500)
                for operation in (
                    {"op": "move", "from": "/a", "path": "/b"},
                    {"op": "add", "path": "/a", "value": {}},
                    {"op": "move", "from": "/b", "path": "/a/c"},
                )
            ],
            id="moved one level down, again and again",
        ),
    ],
)
def test_a_patch_that_digs_is_refused_or_done_but_never_a_defect(operations: Any) -> None:
    with contextlib.suppress(Invalid):
        parse_json(json.dumps(json_patch({}, operations)))


@pytest.mark.parametrize("index", ["²", "9" * 5000, "-1", "01", "1_0", "٣"])
def test_an_odd_index_is_out_of_range(index: str) -> None:
    with pytest.raises(Invalid) as error:
        json_patch({"a": [1, 2, 3, 4]}, [{"op": "add", "path": f"/a/{index}", "value": 1}])
    assert "is out of range" in str(error.value.hint)


@pytest.mark.parametrize("patch", [{"$deleteFromPrimitiveList/finalizers": 5}, {"$retainKeys": 5}])
def test_a_directive_of_another_shape_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(BadRequest):
        strategic_merge({"finalizers": ["a"], "b": 1}, patch, OBJECT_META)


class Counted(str):
    """A name that counts how often it is compared with another."""

    compared = 0

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize(
    "merge",
    [
        pytest.param(
            lambda names: strategic_merge(
                {"containers": [{"name": name} for name in names]},
                {"containers": [{"name": name, "image": "x"} for name in reversed(names)]},
                POD_SPEC,
            ),
            id="items merged",
        ),
        pytest.param(
            lambda names: strategic_merge(
                {"containers": [{"name": name} for name in names]},
                {"containers": [{"name": name, "$patch": "delete"} for name in names]},
                POD_SPEC,
            ),
            id="items deleted",
        ),
        pytest.param(
            lambda names: strategic_merge({"finalizers": names}, {"finalizers": names[::-1]}, OBJECT_META),
            id="plain values united",
        ),
        pytest.param(
            lambda names: strategic_merge(
                {"finalizers": names}, {"$deleteFromPrimitiveList/finalizers": names[::-1]}, OBJECT_META
            ),
            id="plain values cut",
        ),
        pytest.param(
            lambda names: apply_merge(
                {"containers": [{"name": name} for name in names]},
                {"containers": [{"name": name} for name in reversed(names)]},
                POD_SPEC,
                None,
            ),
            id="items applied",
        ),
    ],
)
def test_lists_are_merged_in_steps_that_grow_with_their_length(merge: Any) -> None:
    Counted.compared = 0
    merge([Counted(f"n{number}") for number in range(2000)])
    assert Counted.compared < 20 * 2000  # 2000 squared is 4,000,000


@pytest.mark.parametrize(
    ("operation", "fitting"),
    [
        pytest.param({"op": "add", "path": "/a/0", "value": 1}, 199, id="add: each moves all, one more each time"),
        pytest.param({"op": "add", "path": "/a/50000", "value": 1}, 398, id="add in the middle moves half"),
        pytest.param({"op": "remove", "path": "/a/0"}, 200, id="remove"),
        pytest.param({"op": "replace", "path": "/a/0", "value": 1}, 100, id="replace removes and adds"),
        pytest.param({"op": "move", "from": "/a/0", "path": "/a/0"}, 100, id="move removes and adds"),
        pytest.param({"op": "add", "path": "/a/-", "value": 1}, 9_999, id="add at the end moves nothing"),
    ],
)
def test_how_far_a_json_patch_moves_items_of_lists_is_bounded(operation: Any, fitting: int) -> None:
    first = {"op": "add", "path": "/a", "value": [0] * 100_000}
    json_patch({}, [first, *[operation] * fitting])
    with pytest.raises(TooLarge):
        json_patch({}, [first, *[operation] * (fitting + 2)])
