"""Which boxes of a workflow's graph are shown."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.folding import FOLD_MIN, OPEN_AT_FIRST, RANGES, SHOWN_MAX, fold, worst
from moorage_workflows.model.workflow import NodePhase, NodeRecord, NodeType

STEP = {"name": "step", "container": {"image": "busybox"}}


def a_node(name, *, kind=NodeType.POD, phase=NodePhase.SUCCEEDED, parents=(), boundary="wf", template="step"):
    return NodeRecord(
        id=f"id-{name}" if name != "wf" else "wf",
        name=name,
        display_name=name.rpartition(".")[2],
        type=kind,
        phase=phase,
        boundary_id="" if name == "wf" else boundary,
        parents=parents,
        template=template,
        started_at="2026-03-01T12:00:00Z",
    )


def played(templates, *, table=None, entrypoint="main"):
    manifest = {"spec": {"entrypoint": entrypoint, "templates": [STEP, *templates]}}
    return tuple(Player(manifest, *([table] if table else [])).play().nodes.values())


def dag(*tasks, name="main"):
    after = ({"depends": " && ".join(after)} if after else {} for _, *after in tasks)
    named = [{"name": task[0], "template": "step"} | more for task, more in zip(tasks, after, strict=True)]
    return {"name": name, "dag": {"tasks": named}}


def drawn(box):
    """Every box that is shown, with those within."""
    return [inner for child in box.inside for inner in (child, *drawn(child))]


def shown(box):
    """Labels within, with what is open as a mapping; and edges by labels."""
    labels = [child.label for child in box.inside]
    return labels, {(labels[start], labels[end]) for start, end in box.edges}


DIAMOND = dag(("a",), ("b", "a"), ("c", "a"), ("d", "b", "c"))


def test_a_small_dag_is_open_with_its_steps_after_each_other():
    root = fold(played([DIAMOND]))
    (main,) = root.inside
    assert shown(main) == (["a", "b", "c", "d"], {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")})
    assert (main.phase, main.counts, root.counts) == (NodePhase.SUCCEEDED, {"Succeeded": 4}, {"Succeeded": 4})


def test_groups_of_steps_are_passed_through():
    steps = {
        "name": "main",
        "steps": [
            [{"name": "a", "template": "step"}],
            [{"name": "b", "template": "step"}, {"name": "c", "template": "step"}],
            [{"name": "d", "template": "step"}],
        ],
    }
    (main,) = fold(played([steps])).inside
    assert shown(main) == (["a", "b", "c", "d"], {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")})


@pytest.mark.parametrize("kind", ["steps", "dag"])
def test_items_of_a_loop_are_one_box_with_counts(kind):
    loop = {"name": "fan", "template": "step", "withSequence": {"count": "30"}}
    before, after = {"name": "a", "template": "step"}, {"name": "z", "template": "step"}
    if kind == "steps":
        main = {"name": "main", "steps": [[before], [loop], [after]]}
    else:
        tasks = [before, loop | {"depends": "a"}, after | {"depends": "fan.Succeeded || fan.Failed"}]
        main = {"name": "main", "dag": {"tasks": tasks}}
    nodes = played([main], table=lambda order: Ends(exit_code=int("(7:" in order.record.display_name)))
    (box,) = fold(nodes).inside
    labels, edges = shown(box)
    assert labels[:2] == ["a", "fan"]
    assert ("a", "fan") in edges
    group = box.inside[1]
    assert (group.members, group.counts, group.is_open) == (30, {"Succeeded": 29, "Failed": 1}, False)
    assert group.phase in (NodePhase.FAILED, NodePhase.ERROR)
    opened = fold(nodes, opened=[group.id]).inside[0].inside[1]
    assert [item.label for item in opened.inside][:3] == ["fan(0:0)", "fan(1:1)", "fan(2:2)"]
    assert len(opened.inside) == 30


def test_steps_of_one_template_after_the_same_steps_are_one_box_and_what_follows_each_of_them_too():
    count = FOLD_MIN
    tasks = [("a",), *((f"p{at}", "a") for at in range(count)), *((f"q{at}", f"p{at}") for at in range(count))]
    main = dag(*tasks, ("z", *(f"q{at}" for at in range(count))))
    main["dag"]["tasks"][0]["template"] = main["dag"]["tasks"][-1]["template"] = "other"
    (box,) = fold(played([main, STEP | {"name": "other"}])).inside
    assert [child.label for child in box.inside] == ["a", "step", "step", "z"]
    assert box.edges == ((0, 1), (1, 2), (2, 3))
    assert len({child.id for child in box.inside}) == 4


def test_fewer_equal_steps_stand_by_themselves():
    main = dag(*((f"p{at}",) for at in range(FOLD_MIN - 1)))
    assert len(fold(played([main])).inside[0].inside) == FOLD_MIN - 1


def test_a_retried_step_is_one_box_with_its_attempts():
    retried = STEP | {"name": "flaky", "retryStrategy": {"limit": 2}}
    main = {"name": "main", "steps": [[{"name": "a", "template": "flaky"}]]}
    (box,) = fold(played([main, retried], table=by_node(a=Ends(exit_code=1)))).inside[0].inside
    assert (box.label, box.members, len(box.attempts), box.phase) == ("a", 0, 3, NodePhase.FAILED)


def test_retries_of_a_template_stand_one_after_the_other():
    inner = DIAMOND | {"name": "inner", "retryStrategy": {"limit": 1}}
    main = {"name": "main", "steps": [[{"name": "sub", "template": "inner"}]]}
    nodes = played([main, inner], table=by_node(d=Ends(exit_code=1)))
    sub = fold(nodes, opened=[node.id for node in nodes]).inside[0].inside[0]
    assert shown(sub) == (["sub(0)", "sub(1)"], {("sub(0)", "sub(1)")})


def test_an_exit_handler_comes_after_the_rest():
    nodes = [a_node("wf"), a_node("wf.onExit", boundary="")]
    assert shown(fold(nodes)) == (["wf", "onExit"], {("wf", "onExit")})


def test_what_is_in_a_closed_box_is_reached_by_its_path():
    inner = DIAMOND | {"name": "inner"}
    loop = {"name": "fan", "template": "inner", "withSequence": {"count": "130"}}
    nodes = played([{"name": "main", "dag": {"tasks": [loop]}}, inner])
    node = next(node for node in nodes if node.name == "wf.fan(123:123).c")
    labels = {box.label for box in drawn(fold(nodes, reveal=node.id))}
    assert {"fan(123:123)", "c"} <= labels


def test_a_closed_box_stays_closed_although_it_is_small_or_something_in_it_is_asked_for():
    nodes = played([DIAMOND])
    (main,) = fold(nodes, closed=["wf"]).inside
    assert (main.inside, main.members) == ((), 4)
    inner = next(node.id for node in nodes if node.name == "wf.b")
    assert fold(nodes, closed=["wf"], opened=["wf"], reveal=inner).inside[0].inside == ()


def test_a_loop_of_thousands_opens_by_ranges():
    nodes = [a_node("wf", kind=NodeType.DAG), a_node("wf.fan", kind=NodeType.TASK_GROUP)]
    nodes += [a_node(f"wf.fan({at}:x)", parents=("id-wf.fan",)) for at in range(1900)]
    (fan,) = fold(nodes, opened=["id-wf.fan"]).inside[0].inside
    assert [box.label for box in fan.inside][:2] == ["fan 0–49", "fan 50–99"]
    assert len(fan.inside) == 38
    inner = fold(nodes, opened=[fan.inside[3].id]).inside[0].inside[0].inside[3]
    assert [box.label for box in inner.inside][:2] == ["fan(150:x)", "fan(151:x)"]
    assert inner.counts == {"Succeeded": 50}


def test_a_long_dag_is_folded_by_its_layers():
    nodes = [a_node("wf", kind=NodeType.DAG)]
    for at in range(500):
        before = (f"id-wf.t{at - 1}",) if at else ("wf",)
        nodes.append(a_node(f"wf.t{at}", parents=before, template=f"template-{at}"))
    (main,) = fold(nodes).inside
    assert [box.label for box in main.inside][:2] == ["t0 … t9", "t10 … t19"]
    assert main.edges == tuple((at, at + 1) for at in range(49))
    first = fold(nodes, opened=[main.inside[0].id]).inside[0].inside[0]
    assert first.edges == tuple((at, at + 1) for at in range(9))


KINDS = st.sampled_from([NodeType.POD, NodeType.DAG, NodeType.STEPS, NodeType.RETRY, NodeType.STEP_GROUP])


@st.composite
def damaged(draw):
    """Records that fit together somehow, or not at all."""
    count = draw(st.integers(0, 120))
    names = [f"n{at}" for at in range(count)]
    some = st.sampled_from([*names, "gone", ""])
    return [
        NodeRecord(
            id=name,
            name=draw(st.sampled_from([name, f"fan({at}:x)", f"n0({at})"])),
            display_name=name,
            type=draw(KINDS),
            phase=draw(st.sampled_from(list(NodePhase))),
            boundary_id=draw(some),
            parents=tuple(draw(st.lists(some, max_size=3))),
            template=draw(st.sampled_from(["", "a", "b"])),
        )
        for at, name in enumerate(names)
    ]


@given(damaged(), st.data())
@settings(max_examples=60)
def test_whatever_the_records_no_box_is_shown_twice_and_every_edge_leads_on(nodes, data):
    root = fold(nodes)
    for _ in range(3):
        boxes = drawn(root)
        assert max(Counter(box.id for box in boxes).values(), default=1) == 1
        for box in (root, *boxes):
            assert len(box.inside) <= 2 * RANGES + 1
            assert all(0 <= start < end < len(box.inside) for start, end in box.edges)
            assert not box.inside or len(box.inside) == box.members
        ids = data.draw(st.lists(st.sampled_from([box.id for box in boxes] or [""]), max_size=5))
        root = fold(nodes, opened=ids)


@given(damaged())
@settings(max_examples=60)
def test_with_all_open_each_step_is_counted_and_shown_once(nodes):
    opened, before = set(), -1
    root = fold(nodes)
    while len(opened) != before:
        before = len(opened)
        opened |= {box.id for box in drawn(root)}
        root = fold(nodes, opened=opened)
    single = [box for box in drawn(root) if box.node is not None and not box.inside]
    assert Counter(root.counts) == Counter(box.phase for box in single)
    hidden = {attempt.id for box in single for attempt in box.attempts}
    records = {node.id for node in nodes if node.type is not NodeType.STEP_GROUP} - hidden
    assert {box.node.id for box in drawn(root) if box.node is not None} == records


def test_few_boxes_are_open_at_first_however_deep_the_workflow_is():
    nodes = [a_node("wf", kind=NodeType.DAG)]
    for at in range(30):
        nodes.append(a_node(f"wf.s{at}", kind=NodeType.DAG, parents=("wf",), template=f"s{at}"))
        nodes += [a_node(f"wf.s{at}.t{t}", boundary=f"id-wf.s{at}", template=f"t{t}") for t in range(5)]
    assert 30 < len(drawn(fold(nodes))) <= OPEN_AT_FIRST + 1


def test_nothing_is_shown_of_nothing():
    root = fold([])
    assert (root.inside, root.counts, root.phase) == ((), {}, NodePhase.PENDING)


@pytest.mark.parametrize(
    ("phases", "want"),
    [
        (["Succeeded", "Failed", "Running"], "Failed"),
        (["Succeeded", "Running", "Pending"], "Running"),
        (["Succeeded", "Skipped"], "Succeeded"),
        ([], "Pending"),
    ],
)
def test_a_group_has_the_phase_that_is_worth_a_look(phases, want):
    assert worst(NodePhase(phase) for phase in phases) == want


def test_no_level_has_more_boxes_than_a_person_reads():
    assert SHOWN_MAX <= 2 * RANGES
