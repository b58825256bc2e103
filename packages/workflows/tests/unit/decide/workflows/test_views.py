"""A workflow as people see it: objects read, nodes as a tree, and both written as Argo's API has them."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.argo import is_step, step_path
from moorage_kube.errors import SelectorError
from moorage_workflows.decide.workflows.views import (
    NODES_BYTES_MAX,
    argo_nodes,
    matching_nodes,
    nodes_of,
    tree_of,
    view_workflow,
    workflow_object,
)
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType, Outputs, WorkflowRecord

BEGAN = "2026-11-23T14:00:00Z"
WORD = st.text("abc-", min_size=1, max_size=6)


def a_node(name, kind=NodeType.POD, phase=NodePhase.SUCCEEDED, *, boundary="", **more):
    fields = {"id": f"id-{name}", "display_name": name.rpartition(".")[2], "started_at": BEGAN} | more
    return NodeRecord(
        name=name, type=kind, phase=phase, boundary_id=f"id-{boundary}" if boundary else "", **fields
    )


def a_record(**more):
    document = {"metadata": {"labels": {"team": "vision"}}, "spec": {"entrypoint": "main"}}
    return WorkflowRecord(**{"uid": "u1", "namespace": "lab", "name": "train", "document": document} | more)


def names(nodes):
    return [(row.depth, row.guides + row.node.display_name) for row in tree_of(nodes)]


def test_steps_stand_below_their_template_without_their_groups():
    nodes = [
        a_node("wf", NodeType.STEPS),
        a_node("wf[0]", NodeType.STEP_GROUP, boundary="wf"),
        a_node("wf[0].prepare", boundary="wf"),
        a_node("wf[1]", NodeType.STEP_GROUP, boundary="wf"),
        a_node("wf[1].train", boundary="wf", started_at="2026-11-23T14:05:00Z"),
    ]
    assert names(nodes) == [(0, "wf"), (1, "├ prepare"), (1, "└ train")]


def test_items_of_a_loop_stand_below_it_in_the_order_of_their_numbers():
    items = [a_node(f"wf.fan({n}:x)", boundary="wf", display_name=f"fan({n}:x)") for n in (10, 2, 0)]
    nodes = [a_node("wf", NodeType.DAG), a_node("wf.fan", NodeType.TASK_GROUP, boundary="wf"), *items]
    assert names(nodes) == [
        (0, "wf"),
        (1, "└ fan"),
        (2, "  ├ fan(0:x)"),
        (2, "  ├ fan(2:x)"),
        (2, "  └ fan(10:x)"),
    ]


def lines(nodes):
    return [
        row.guides + (f"{row.more} {row.node.phase}" if row.more else row.node.display_name)
        for row in tree_of(nodes, whole=False)
    ]


def loop(number, kind=NodeType.POD, **phases):
    """Items of a loop; `phases`: by their number, as text."""
    return [
        a_node(
            f"wf.fan({at}:x)",
            kind,
            NodePhase(phases.get(f"at{at}", "Succeeded")),
            boundary="wf",
            display_name=f"fan({at}:x)",
        )
        for at in range(number)
    ]


def test_items_of_a_large_loop_are_counted_by_their_phases_with_what_is_below_them():
    failed = {f"at{at}": "Failed" for at in range(30, 60)}
    items = loop(100, NodeType.STEPS, **failed)
    below = [a_node(f"{item.name}.{name}", boundary=item.name) for item in items for name in ("a", "b")]
    last = a_node("wf.last", boundary="wf", started_at="2026-11-23T15:00:00Z")
    shown = lines([a_node("wf", NodeType.STEPS), *items, *below, last])
    assert shown[:5] == ["wf", "├ fan(0:x)", "│ ├ a", "│ └ b", "├ fan(1:x)"]
    assert [line for line in shown if "│" not in line] == [
        "wf",
        *(f"├ fan({at}:x)" for at in (0, 1, 2, *range(30, 50))),
        "├ 67 Succeeded",
        "├ 10 Failed",
        "└ last",
    ]


def test_the_count_is_the_last_row_where_nothing_comes_after_it():
    shown = lines([a_node("wf", NodeType.STEPS), *loop(50)])
    assert shown == ["wf", "├ fan(0:x)", "├ fan(1:x)", "├ fan(2:x)", "└ 47 Succeeded"]


def test_a_single_item_is_shown_and_not_counted():
    running = {f"at{at}": "Running" for at in range(21)}
    shown = lines([a_node("wf", NodeType.STEPS), *loop(21, **running)])
    assert shown[-1] == "└ fan(20:x)"


def test_steps_with_names_of_their_own_are_counted_where_there_are_hundreds():
    few = [a_node(f"wf.t{at}", boundary="wf", template="say") for at in range(100)]
    assert len(lines([a_node("wf", NodeType.DAG), *few])) == 101
    many = [a_node(f"wf.t{at}", boundary="wf", template="say") for at in range(1000)]
    shown = lines([a_node("wf", NodeType.DAG), *many, a_node("wf.z", boundary="wf", template="other")])
    assert shown == ["wf", *(f"├ t{at}" for at in range(20)), "├ 980 Succeeded", "└ z"]


def test_attempts_stand_below_the_item_that_is_retried():
    nodes = [
        a_node("wf", NodeType.DAG),
        a_node("wf.fan", NodeType.TASK_GROUP, boundary="wf"),
        a_node("wf.fan(0:a(b)c)", NodeType.RETRY, boundary="wf"),
        a_node("wf.fan(0:a(b)c)(0)", boundary="wf"),
        a_node("wf.fan(0:a(b)c)(1)", boundary="wf"),
    ]
    assert [row.depth for row in tree_of(nodes)] == [0, 1, 2, 3, 3]


def test_the_exit_handler_is_the_last_root():
    nodes = [a_node("wf.onExit", started_at="2026-01-01T00:00:00Z"), a_node("wf")]
    assert names(nodes) == [(0, "wf"), (0, "onExit")]


@given(
    st.lists(
        st.builds(
            lambda name, boundary, kind: NodeRecord(
                id=name, name=name, display_name=name, type=kind, phase=NodePhase.PENDING, boundary_id=boundary
            ),
            st.sampled_from(["a", "a(0)", "a(0)(0)", "b", "b.c", "(", "x)"]),
            st.sampled_from(["", "a", "b", "a(0)", "none"]),
            st.sampled_from([NodeType.POD, NodeType.STEP_GROUP, NodeType.DAG, NodeType.RETRY]),
        ),
        max_size=7,
        unique_by=lambda node: node.id,
    )
)
def test_every_node_but_groups_of_steps_has_one_row(nodes):
    shown = [row.node.id for row in tree_of(nodes)]
    assert sorted(shown) == sorted(node.id for node in nodes if node.type is not NodeType.STEP_GROUP)
    assert tree_of(nodes, whole=False) == tree_of(nodes)  # of so few none is counted


@given(
    st.lists(
        st.builds(
            lambda name, parameters, result, message: a_node(
                name,
                message=message,
                inputs={"parameters": parameters} if parameters else {},
                outputs=Outputs(
                    parameters=parameters, result=result, artifacts=(Artifact(name="model", key="k/model.tgz"),)
                ),
            ),
            WORD,
            st.dictionaries(WORD, st.text(max_size=5), max_size=2),
            st.none() | st.text(max_size=5),
            st.text(max_size=5),
        ),
        max_size=4,
        unique_by=lambda node: node.name,
    )
)
def test_nodes_written_as_argo_does_read_back_the_same(nodes):
    read, unreadable = nodes_of({"nodes": json.loads(json.dumps(argo_nodes(nodes)))})
    assert unreadable == ""
    kept = {
        node.id: (node.name, node.phase, node.message, node.inputs, _without_places(node.outputs)) for node in read
    }
    assert kept == {
        node.id: (node.name, node.phase, node.message, node.inputs, _without_places(node.outputs))
        for node in nodes
    }


def _without_places(outputs):
    return outputs.parameters, outputs.result, [(each.name, each.key) for each in outputs.artifacts]


def test_a_template_of_another_object_is_named_as_argo_names_it():
    nodes = [
        a_node("wf", template="train", template_ref="cluster/ml"),
        a_node("wf2", template="t", template_ref="ml"),
    ]
    written = argo_nodes(nodes)
    assert written["id-wf"]["templateRef"] == {"name": "ml", "template": "train", "clusterScope": True}
    assert written["id-wf2"]["templateRef"] == {"name": "ml", "template": "t"}
    assert [node.template_ref for node in nodes_of({"nodes": written})[0]] == ["cluster/ml", "ml"]


def test_children_are_made_from_the_parents_of_the_records():
    nodes = [a_node("a", NodeType.DAG), a_node("b", boundary="a"), a_node("c", boundary="a", parents=("id-b",))]
    written = argo_nodes(nodes)
    assert [written[identity].get("children") for identity in written] == [["id-b"], ["id-c"], None]
    assert [node.parents for node in nodes_of({"nodes": written})[0]] == [(), ("id-a",), ("id-b",)]


def pack(text):
    return base64.b64encode(gzip.compress(text)).decode()


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({"compressedNodes": pack(b'{"n": {"name": "n"}}')}, ("n", ""), id="gzip in base64 is read"),
        pytest.param({"compressedNodes": "!"}, ("", "are not gzip in base64"), id="another text is odd"),
        pytest.param({"compressedNodes": pack(b"[[")}, ("", "cannot be read"), id="broken JSON is odd"),
        pytest.param({"compressedNodes": pack(b"[]")}, ("", ""), id="a list instead of nodes is none"),
        pytest.param({"offloadNodeStatusVersion": "fnv:1"}, ("", "own database"), id="offloaded nodes are named"),
        pytest.param({}, ("", ""), id="no nodes yet"),
    ],
)
def test_packed_nodes(status, want):
    nodes, unreadable = nodes_of(status)
    assert "".join(node.name for node in nodes) == want[0]
    assert want[1] in unreadable
    assert bool(unreadable) == bool(want[1])


def test_a_bomb_of_packed_nodes_is_refused():
    bomb = pack(b" " * (NODES_BYTES_MAX + 2**20))
    assert f"more than {NODES_BYTES_MAX} bytes" in nodes_of({"compressedNodes": bomb})[1]


def test_a_record_becomes_the_object_with_its_nodes():
    record = a_record(
        phase="Succeeded", started_at=BEGAN, finished_at="2026-11-23T14:02:00Z", created_at=BEGAN, owner="ada",
        cron="nightly", done=2, total=3, parameters={"accuracy": "0.9"}, gone_at=BEGAN,
    )  # fmt: skip
    view = view_workflow(workflow_object(record, [a_node("train", template="main")]))
    assert (view.namespace, view.name, view.uid, view.owner, view.cron) == ("lab", "train", "u1", "ada", "nightly")
    assert (view.phase, view.progress, view.outputs.parameters) == ("Succeeded", "2/3", {"accuracy": "0.9"})
    assert (bool(view.gone_at), [node.name for node in view.nodes]) == (True, ["train"])
    assert view.duration(view.finished).total_seconds() == 120


def test_the_record_is_newer_than_the_object():
    live = {
        "metadata": {"name": "train", "namespace": "lab", "uid": "u1", "resourceVersion": "7"},
        "spec": {"entrypoint": "main", "shutdown": "Stop"},
        "status": {"phase": "Running", "progress": "0/1", "conditions": [{"type": "PodRunning"}]},
    }
    made = workflow_object(a_record(phase="Failed", message="no", done=1, total=1), [], live)
    assert made["metadata"]["resourceVersion"] == "7"
    assert made["spec"]["shutdown"] == "Stop"
    assert made["status"] == {
        "phase": "Failed",
        "message": "no",
        "progress": "1/1",
        "conditions": [{"type": "PodRunning"}],
    }


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param("", ["a", "b"], id="an empty selector chooses all"),
        pytest.param("displayName=a", ["a"], id="by the name that is shown"),
        pytest.param("templateName!=t", ["b"], id="by what it is not"),
        pytest.param("inputs.parameters.size.value=big", ["b"], id="by an input parameter"),
        pytest.param("phase=Failed,displayName=a", [], id="all parts must hold"),
    ],
)
def test_nodes_are_chosen_by_fields(selector, want):
    nodes = [a_node("a", template="t"), a_node("b", NodeType.SUSPEND, inputs={"parameters": {"size": "big"}})]
    assert [node.name for node in matching_nodes(nodes, selector)] == want


def test_an_odd_selector_is_refused():
    with pytest.raises(SelectorError):
        matching_nodes([], "displayName")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["metadata", "spec", "status", "nodes", "n", "outputs", "parameters", "artifacts", "children", "labels"]
)


@given(st.recursive(JSON, lambda inner: st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12))
def test_no_odd_object_fails(obj):
    odd = obj if isinstance(obj, dict) else {"status": obj}
    for key in ("labels", "annotations"):
        if isinstance(odd.get("metadata"), dict):
            odd["metadata"].pop(key, None)
    tree_of(view_workflow(odd).nodes)


def test_steps_without_groups_in_the_records_stand_in_the_order_of_their_groups():
    nodes = [
        a_node("wf", NodeType.STEPS),
        a_node("wf[2].approve", boundary="wf"),
        a_node("wf[1].fit(1:b)", boundary="wf", display_name="fit(1:b)"),
        a_node("wf[1].fit(0:a)", boundary="wf", display_name="fit(0:a)"),
        a_node("wf[0].prepare", boundary="wf"),
    ]
    assert [row.node.display_name for row in tree_of(nodes)] == [
        "wf",
        "prepare",
        "fit(0:a)",
        "fit(1:b)",
        "approve",
    ]


@pytest.mark.parametrize(
    ("name", "path", "wanted"),
    [
        pytest.param("wf", "wf", "wf", id="the workflow itself"),
        pytest.param("wf[0].a", "a", "a", id="a step"),
        pytest.param("wf[0].fit(1:x.y[2])[0].eval(0)", "fit(1:x.y[2]).eval(0)", "eval", id="a step of an item"),
        pytest.param("wf.a.b", "a.b", "b", id="a task of a task"),
        pytest.param("wf.fan(0:a)", "fan(0:a)", "fan", id="an item"),
    ],
)
def test_a_step_is_named_without_its_workflow(name, path, wanted):
    assert step_path(name, "wf") == path
    assert is_step(path, path)
    assert is_step(path, wanted)
    assert not is_step(path, "other")
