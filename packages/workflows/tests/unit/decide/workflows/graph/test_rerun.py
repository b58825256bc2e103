"""Which nodes of a run that has ended run again: a retry, a retry from a step, and a new run that takes over."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workflowmanifests import NESTED_EXPORT, a_workflow

from moorage_testing.workflowplayer import Ends, Player, by_node
from moorage_workflows.decide.workflows.collection import left
from moorage_workflows.decide.workflows.graph.rerun import nodes_taken_over, nodes_to_forget, with_exports_of
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.model.workflow import NodePhase, NodeType, Retry

GRAPH = a_workflow("""
  onExit: say
  hooks: {running: {expression: workflow.status == "Running", template: say}}
  templates:
  - name: twice
    retryStrategy: {limit: 3}
    container: {image: busybox, command: [echo]}
  - name: make
    outputs:
      parameters: [{name: y, valueFrom: {path: /y}}]
      artifacts: [{name: f, path: /f, artifactGC: {strategy: OnWorkflowDeletion}}]
    container: {image: busybox, command: [echo]}
  - name: inner
    steps:
    - - {name: one, template: say}
      - {name: other, template: say}
    - - {name: two, template: say}
  - name: main
    dag:
      tasks:
      - {name: make, template: make}
      - {name: loop, template: say, depends: make, withItems: [a, b]}
      - {name: deep, template: inner, depends: make}
      - {name: flaky, template: twice, depends: make}
      - {name: never, template: say, depends: make, when: "1 == 2"}
      - name: last
        template: say
        depends: loop && deep && flaky
        arguments: {parameters: [{name: x, value: "{{tasks.make.outputs.parameters.y}}"}]}
      - {name: end, template: say, depends: last}
""")
MADE = Ends(parameters={"y": "5"}, artifacts=("f",))


def table(order):
    """`last` fails, and the first attempt of `flaky`."""
    if order.record.name == "old.flaky(0)":
        return Ends(exit_code=1)
    return by_node(last=Ends(exit_code=1), make=MADE)(order)


def played(manifest=GRAPH, table=table) -> Player:
    return Player(manifest, table, name="old").play()


def forgotten(player: Player, selector: str = "") -> set[str]:
    ids = nodes_to_forget(player.nodes.values(), Retry(selector=selector, restart_successful=bool(selector)))
    return {player.nodes[identity].name.removeprefix("old") for identity in ids}


def taken_over(player: Player, name: str = "new", manifest=GRAPH) -> Player:
    """The new run, before it begins."""
    again = Player(manifest, by_node(make=MADE), name=name)
    nodes = nodes_taken_over(player.nodes.values(), earlier=player.workflow.name, name=name, now=again.now)
    again.nodes = {node.id: node for node in nodes}
    again.workflow = with_exports_of(again.workflow, player.workflow)
    again.run = Run(again.workflow, nodes=nodes, now=again.now)
    return again


FAILED = {"", ".last", ".end", ".onExit"}


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param("", FAILED, id="what failed, and not what a later attempt made good"),
        pytest.param(
            "displayName=one",
            FAILED | {".deep", ".deep[0]", ".deep[0].one", ".deep[1]", ".deep[1].two"},
            id="a step within a template, and all after both",
        ),
        pytest.param(
            "displayName=deep",
            FAILED | {".deep", ".deep[0]", ".deep[0].one", ".deep[0].other", ".deep[1]", ".deep[1].two"},
            id="a template: all that is in it",
        ),
        pytest.param(
            "displayName=flaky",
            FAILED | {".flaky", ".flaky(0)", ".flaky(1)"},
            id="a step with several attempts: all of them",
        ),
        pytest.param("name=old.loop(1:b)", FAILED | {".loop", ".loop(1:b)"}, id="an item of a loop alone"),
        pytest.param("displayName=loop", FAILED | {".loop", ".loop(0:a)", ".loop(1:b)"}, id="a loop"),
    ],
)
def test_what_runs_again_and_from_a_step_all_that_came_after_it(selector, want):
    assert forgotten(played(), selector) == want


def test_a_step_that_is_chosen_on_the_page_starts_again_with_what_came_after_it():
    player = played()
    selector = f"id={player.node('WF.deep[0].one').id}"
    ids = nodes_to_forget(player.nodes.values(), Retry(selector=selector, restart_successful=True))
    player.nodes = {identity: node for identity, node in player.nodes.items() if identity not in ids}
    player.workflow = msgspec.structs.replace(player.workflow, phase="Running", finished_at="", retries=1)
    player.created, player.table = [], by_node(make=MADE)
    player.restart()
    player.play()
    assert player.workflow.phase == "Succeeded"
    want = [".deep[0].one", ".deep[1].two", ".last", ".end", ".onExit"]
    assert [order.record.name.removeprefix("old") for order in player.created] == want


def test_from_the_first_step_everything_runs_again():
    player = played()
    rerun = {f"old{name}" for name in forgotten(player, "displayName=make")}
    assert {node.name for node in player.nodes.values()} - rerun == {"old.hooks.running"}


def test_the_exit_handler_of_a_step_runs_again_with_its_step_only():
    manifest = a_workflow("""
  - name: main
    steps:
    - - {name: good, template: say, hooks: {exit: {template: say}}}
      - {name: bad, template: say, hooks: {exit: {template: say}}}
""")
    player = played(manifest, by_node(bad=Ends(exit_code=1)))
    assert forgotten(player) == {"", "[0]", "[0].bad", "[0].bad.onExit"}


def test_a_daemon_runs_again_with_what_it_stood_in():
    manifest = a_workflow("""
  - name: main
    steps:
    - - {name: server, template: server}
    - - {name: bad, template: say}
  - name: server
    daemon: true
    container: {image: busybox, command: [serve]}
""")
    player = Player(manifest, by_node(bad=Ends(exit_code=1)), name="old")
    while not player.run.is_done and player.step():
        for name, pod in list(player.pods.items()):
            if pod.is_running and not pod.is_ready:
                player.pods[name] = msgspec.structs.replace(pod, is_ready=True)
                player.run.pod_seen(player.pods[name])
    assert forgotten(player) == {"", "[0]", "[0].server", "[1]", "[1].bad"}


def test_a_new_run_takes_over_what_succeeded_and_runs_the_rest():
    again = taken_over(played()).play()
    assert again.workflow.phase == "Succeeded"
    started = {order.record.name for order in again.created}
    assert started == {"new.last", "new.end", "new.onExit", "new.hooks.running"}
    [last] = [order for order in again.created if order.record.name == "new.last"]
    assert last.template["container"]["command"] == ["echo", "5"]
    assert (again.workflow.done, again.workflow.total) == (12, 12)
    whole = Player(GRAPH, by_node(make=MADE), name="new").play()
    attempts = {"WF.flaky(0)": "Pod Failed", "WF.flaky(1)": "Pod Succeeded"}  # as they were
    assert again.phases() == whole.phases() | attempts


def test_what_is_taken_over_has_outputs_and_neither_a_pod_nor_a_wish_to_delete_anything():
    player = played()
    again = taken_over(player)
    old, new = player.node("WF.make"), again.node("WF.make")
    assert (new.type, new.phase, new.pod_name, new.is_memoized) == (NodeType.POD, NodePhase.SUCCEEDED, "", True)
    assert new.message == f"taken over from {old.pod_name}"
    assert new.outputs.parameters == {"y": "5"}
    assert [artifact.key for artifact in new.outputs.artifacts] == [
        artifact.key for artifact in old.outputs.artifacts
    ]
    assert [each.name.name for each in left(player.nodes.values())] == ["f"]
    assert left(again.nodes.values()) == []


def test_a_step_whose_artifacts_are_deleted_runs_again():
    player = played()
    make = player.node("WF.make")
    deleted = tuple(msgspec.structs.replace(each, is_deleted=True) for each in make.outputs.artifacts)
    outputs = msgspec.structs.replace(make.outputs, artifacts=deleted)
    player.nodes[make.id] = msgspec.structs.replace(make, outputs=outputs)
    again = taken_over(player)
    assert "new.make" not in {node.name for node in again.nodes.values()}
    assert "new.deep[0].one" in {node.name for node in again.nodes.values()}


def test_a_run_that_took_over_is_taken_over_itself():
    second = taken_over(played())
    second.table = by_node(last=Ends(exit_code=1))
    second.play()
    third = taken_over(second, "third").play()
    want = {"third.last", "third.end", "third.onExit", "third.hooks.running"}
    assert {order.record.name for order in third.created} == want


@given(st.sets(st.sampled_from(["make", "one", "two", "other", "last", "end", "loop", "flaky"])))
def test_whatever_failed_the_new_run_starts_no_step_that_succeeded(bad):
    def some_fail(order):
        return Ends(exit_code=1) if order.record.display_name.split("(")[0] in bad else by_node(make=MADE)(order)

    player = played(table=some_fail)
    well = {
        node.name.removeprefix("old")
        for node in player.nodes.values()
        if node.type is NodeType.POD and node.phase is NodePhase.SUCCEEDED
    }
    again = taken_over(player).play()
    assert again.workflow.phase == "Succeeded"
    started = {order.record.name.removeprefix("new") for order in again.created}
    assert started & well <= {".hooks.running", ".onExit"}


def test_a_global_output_of_an_inner_step_is_taken_over() -> None:
    failed = played(NESTED_EXPORT, by_node(make=MADE, last=Ends(exit_code=1)))
    again = taken_over(failed, manifest=NESTED_EXPORT).play()
    assert [order.template["container"]["command"] for order in again.created] == [["echo", "5"]]
    assert again.workflow.parameters == {"g": "5"}
    assert [(artifact.name, artifact.collection) for artifact in again.workflow.artifacts] == [("file", {})]
