"""The nodes of a container set: the pod's, and one for each container."""

from __future__ import annotations

import pytest

from moorage_testing.workflowplayer import NOON, Player
from moorage_workflows.decide.workflows.graph.events import ContainerSeen, Controls, PodSeen
from moorage_workflows.decide.workflows.graph.rerun import nodes_to_forget
from moorage_workflows.model.workflow import NodePhase, Retry

GRAPH = """
spec:
  entrypoint: main
  templates:
  - name: main
    containerSet:
      containers:
      - {name: a, image: busybox, command: ["true"]}
      - {name: b, image: busybox, command: ["true"], dependencies: [a]}
      - {name: c, image: busybox, command: ["true"], dependencies: [b]}
"""


def a_run() -> Player:
    player = Player(GRAPH)
    player.decide()
    player.decide()
    return player


def saw(player: Player, *, is_ended: bool = True, disrupted: str = "", **codes: int | None) -> None:
    """The pod's containers: their exit codes; None: it runs."""
    (name,) = player.pods
    containers = tuple(
        ContainerSeen(name=each, exit_code=code, is_running=code is None) for each, code in codes.items()
    )
    pod = PodSeen(
        name=name, is_running=not is_ended, is_ended=is_ended, containers=containers, disrupted=disrupted
    )
    player.pods[name] = pod
    player.run.pod_seen(pod)
    player.decide()


def test_each_container_is_a_node_below_the_pods_in_the_order_of_dependencies() -> None:
    player = a_run()
    assert player.phases() == {
        "WF": "Pod Running",
        "WF.a": "Container Pending",
        "WF.b": "Container Pending",
        "WF.c": "Container Pending",
    }
    pod = player.node("WF")
    assert {player.node(f"WF.{name}").boundary_id for name in "abc"} == {pod.id}
    assert player.node("WF.a").parents == (pod.id,)
    assert player.node("WF.c").parents == (player.node("WF.b").id,)


def test_a_set_succeeds_when_every_container_has() -> None:
    player = a_run()
    saw(player, is_ended=False, a=0, b=None)
    assert [player.node(f"WF.{name}").phase for name in "abc"] == ["Running", "Running", "Pending"]
    saw(player, a=0, b=0, c=0)
    assert set(player.phases().values()) == {"Pod Succeeded", "Container Succeeded"}
    assert player.workflow.phase == "Succeeded"
    assert (player.workflow.done, player.workflow.total) == (1, 1)


def test_a_container_that_fails_fails_the_pod_and_says_which_it_was() -> None:
    player = a_run()
    saw(player, a=0, b=3, c=64)
    assert player.phases() == {
        "WF": "Pod Failed",
        "WF.a": "Container Succeeded",
        "WF.b": "Container Failed",
        "WF.c": "Container Error",
    }
    assert player.node("WF").message == "b: Error (exit code 3)"
    assert player.node("WF.b").outputs.exit_code == "3"


def test_a_set_whose_node_went_away_runs_again_as_a_whole() -> None:
    player = a_run()
    saw(player, a=0, b=137, c=64, disrupted="DeletionByTaintManager")
    assert player.node("WF").infrastructure_retries == 1
    assert [player.node(f"WF.{name}").phase.is_fulfilled for name in "abc"] == [False, False, False]


def test_a_restart_of_the_operator_changes_nothing() -> None:
    player = a_run()
    saw(player, is_ended=False, a=0, b=None)
    before = dict(player.nodes)
    player.restart()
    player.decide()
    assert player.nodes == before
    saw(player, a=0, b=0, c=0)
    assert player.workflow.phase == "Succeeded"


def test_a_retry_forgets_every_container_of_a_pod_that_failed() -> None:
    player = a_run()
    saw(player, a=0, b=3, c=64)
    assert nodes_to_forget(player.nodes.values(), Retry()) == set(player.nodes)


@pytest.mark.parametrize("shutdown", ["Stop", "Terminate"])
def test_a_set_that_is_shut_down_has_no_open_node(shutdown: str) -> None:
    player = a_run()
    player.run.control(Controls(shutdown=shutdown))
    player.decide()
    saw(player, a=0, b=143)
    assert {node.phase for node in player.nodes.values()} == {NodePhase.FAILED, NodePhase.SUCCEEDED}
    assert player.workflow.phase == "Failed"
    assert player.now == NOON
