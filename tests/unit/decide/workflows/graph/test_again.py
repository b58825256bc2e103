"""Which nodes of a run that has ended run again: a retry, and a retry from a step."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from moorage.decide.workflows.graph.again import nodes_to_forget
from moorage.model.workflow import Retry
from moorage.testing.workflowplayer import Ends, Player, by_node

TEMPLATES = """
  - name: say
    inputs: {parameters: [{name: x, default: "0"}]}
    container: {image: busybox, command: [echo, "{{inputs.parameters.x}}"]}
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
"""
GRAPH = (
    """
spec:
  entrypoint: main
  onExit: say
  hooks: {running: {expression: workflow.status == "Running", template: say}}
  templates:
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
"""
    + TEMPLATES
)


MADE = Ends(parameters={"y": "5"}, artifacts=("f",))


def table(order):
    """`last` fails, and the first attempt of `flaky`."""
    if order.record.name == "old.flaky(0)":
        return Ends(exit_code=1)
    return by_node(last=Ends(exit_code=1), make=MADE)(order)


def played(manifest: str = GRAPH, table=table) -> Player:
    return Player(manifest, table, name="old").play()


def forgotten(player: Player, selector: str = "") -> set[str]:
    ids = nodes_to_forget(player.nodes.values(), Retry(selector=selector, restart_successful=bool(selector)))
    return {player.nodes[identity].name.removeprefix("old") for identity in ids}


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
    assert [order.record.name.removeprefix("old") for order in player.created] == [
        ".deep[0].one",
        ".deep[1].two",
        ".last",
        ".end",
        ".onExit",
    ]


def test_from_the_first_step_everything_runs_again():
    player = played()
    kept = {node.name for node in player.nodes.values()} - {
        f"old{name}" for name in forgotten(player, "displayName=make")
    }
    assert kept == {"old.hooks.running"}


def test_the_exit_handler_of_a_step_runs_again_with_its_step_only():
    manifest = (
        """
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: good, template: say, hooks: {exit: {template: say}}}
      - {name: bad, template: say, hooks: {exit: {template: say}}}
"""
        + TEMPLATES
    )
    player = played(manifest, by_node(bad=Ends(exit_code=1)))
    assert forgotten(player) == {"", "[0]", "[0].bad", "[0].bad.onExit"}


def test_a_daemon_runs_again_with_what_it_stood_in():
    manifest = (
        """
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: server, template: server}
    - - {name: bad, template: say}
  - name: server
    daemon: true
    container: {image: busybox, command: [serve]}
"""
        + TEMPLATES
    )
    player = Player(manifest, by_node(bad=Ends(exit_code=1)), name="old")
    while not player.run.is_done and player.step():
        for name, pod in list(player.pods.items()):
            if pod.is_running and not pod.is_ready:
                player.pods[name] = dataclasses.replace(pod, is_ready=True)
                player.run.pod_seen(player.pods[name])
    assert forgotten(player) == {"", "[0]", "[0].server", "[1]", "[1].bad"}
